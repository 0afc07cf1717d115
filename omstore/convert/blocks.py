"""Small encodings of one column of a few thousand records: what the spool writes to scratch.

A block holds the 64-bit words (or bytes) of one column, or of one component of a short vector. Floats are
handled as their bit patterns throughout, so NaN payloads and the sign of zero survive. The encodings are
chosen for what legacy records hold: constants, repeated values, small integers, node numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel

__all__ = ["Block", "decode_bytes", "decode_words", "encode_bytes", "encode_words", "equal_words"]

CONSTANT = 0
BITS = 1
OFFSET8 = 2
OFFSET16 = 3
OFFSET32 = 4
DICTIONARY = 5
DICTIONARY_BITS = 6
RAW = 7

_OFFSET_TYPES: dict[int, type[np.unsignedinteger[Any]]] = {
    OFFSET8: np.uint8,
    OFFSET16: np.uint16,
    OFFSET32: np.uint32,
}


class Block(NamedTuple):
    """One encoded block: how, the number the codes are relative to, the dictionary and the codes."""

    encoding: int
    base: int
    table: NDArray[np.int64] | None
    payload: NDArray[Any] | None


@kernel
def _range(words: NDArray[np.int64], column: int) -> tuple[int, int]:
    low = words[0, column]
    high = low
    for i in range(words.shape[0]):
        value = words[i, column]
        low = min(low, value)
        high = max(high, value)
    return low, high


@kernel
def _dictionary(
    words: NDArray[np.int64], column: int, table: NDArray[np.int64], codes: NDArray[np.uint8]
) -> int:
    """Number the distinct words in order of appearance; -1 as soon as there are more than 256."""
    slots = np.full(1024, -1, np.int16)
    count = 0
    last = words[0, column]
    last_code = -1
    for i in range(words.shape[0]):
        value = words[i, column]
        if value == last and last_code >= 0:
            codes[i] = last_code
            continue
        mixed = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)
        slot = np.int64(mixed >> np.uint64(54))
        while True:
            code = slots[slot]
            if code < 0:
                if count == 256:
                    return -1
                slots[slot] = count
                table[count] = value
                code = count
                count += 1
                break
            if table[code] == value:
                break
            slot = (slot + 1) & 1023
        codes[i] = code
        last = value
        last_code = code
    return count


@kernel
def _subtract8(words: NDArray[np.int64], column: int, base: int, out: NDArray[np.uint8]) -> None:
    for i in range(words.shape[0]):
        out[i] = words[i, column] - base


@kernel
def _subtract16(words: NDArray[np.int64], column: int, base: int, out: NDArray[np.uint16]) -> None:
    for i in range(words.shape[0]):
        out[i] = words[i, column] - base


@kernel
def _subtract32(words: NDArray[np.int64], column: int, base: int, out: NDArray[np.uint32]) -> None:
    for i in range(words.shape[0]):
        out[i] = words[i, column] - base


@kernel
def _add(codes: NDArray[Any], base: int, out: NDArray[np.int64], first: int, column: int) -> None:
    for i in range(codes.shape[0]):
        out[first + i, column] = base + np.int64(codes[i])


@kernel
def _look_up(
    codes: NDArray[np.uint8], table: NDArray[np.int64], out: NDArray[np.int64], first: int, column: int
) -> None:
    for i in range(codes.shape[0]):
        out[first + i, column] = table[codes[i]]


@kernel
def _equal(a: NDArray[np.int64], a_column: int, b: NDArray[np.int64], b_column: int) -> bool:
    n = a.shape[0]
    i = 0
    while i < n:
        stop = min(n, i + 64)  # blocks, so that the inner loop has no exit and vectorises
        difference = np.int64(0)
        for k in range(i, stop):
            difference |= a[k, a_column] ^ b[k, b_column]
        if difference != 0:
            return False
        i = stop
    return True


def equal_words(a: NDArray[np.int64], a_column: int, b: NDArray[np.int64], b_column: int) -> bool:
    """Tell whether two columns of words are the same, leaving at the first difference."""
    return bool(_equal(a, a_column, b, b_column))


def encode_words(words: NDArray[np.int64], column: int, *, floats: bool) -> tuple[Block, int, int]:
    """Encode one column of 64-bit words.

    Parameters
    ----------
    words : (n, k) int64, C-contiguous, n > 0
        Integers, or bit patterns of floats.
    column : int
        Which of the k.
    floats : bool
        The words are bit patterns: try a dictionary before offsets, whose range says nothing.

    Returns
    -------
    block : Block
    low, high : int
        Smallest and largest word.
    """
    low, high = (int(x) for x in _range(words, column))
    if low == high:
        return Block(CONSTANT, low, None, None), low, high
    n = len(words)
    span = high - low
    if (floats and span > 1) or span >= 1 << 32:
        codes = np.empty(n, np.uint8)
        table = np.empty(256, np.int64)
        count = int(_dictionary(words, column, table, codes))
        if count > 0:
            table = table[:count].copy()
            if count == 2:
                return Block(DICTIONARY_BITS, 0, table, np.packbits(codes)), low, high
            return Block(DICTIONARY, 0, table, codes), low, high
        if span >= 1 << 32:
            return Block(RAW, 0, None, words[:, column].copy()), low, high
    if span < 1 << 8:
        small = np.empty(n, np.uint8)
        _subtract8(words, column, low, small)
        if span == 1:
            return Block(BITS, low, None, np.packbits(small)), low, high
        return Block(OFFSET8, low, None, small), low, high
    if span < 1 << 16:
        medium = np.empty(n, np.uint16)
        _subtract16(words, column, low, medium)
        return Block(OFFSET16, low, None, medium), low, high
    large = np.empty(n, np.uint32)
    _subtract32(words, column, low, large)
    return Block(OFFSET32, low, None, large), low, high


def encode_bytes(data: NDArray[np.uint8]) -> tuple[Block, int, int]:
    """Encode a flat array of bytes: constant, bits when they are two neighbouring numbers, else as they are.

    Returns
    -------
    block : Block
    low, high : int
        Smallest and largest byte.
    """
    low, high = int(data.min()), int(data.max())
    if low == high:
        return Block(CONSTANT, low, None, None), low, high
    if high - low == 1:
        return Block(BITS, low, None, np.packbits(data if low == 0 else data - np.uint8(low))), low, high
    return Block(RAW, 0, None, data), low, high


def decode_words(
    encoding: int,
    base: int,
    table: NDArray[np.int64] | None,
    payload: NDArray[np.uint8],
    count: int,
    out: NDArray[np.int64],
    first: int,
    column: int,
) -> None:
    """Decode a block of ``count`` words into ``out[first:first + count, column]`` (out is C-contiguous)."""
    if encoding == CONSTANT:
        out[first : first + count, column] = base
    elif encoding == BITS:
        _add(np.unpackbits(payload, count=count), base, out, first, column)
    elif encoding in _OFFSET_TYPES:
        _add(payload.view(_OFFSET_TYPES[encoding]), base, out, first, column)
    elif encoding == RAW:
        out[first : first + count, column] = payload.view(np.int64)
    else:
        if table is None:
            raise ValueError("a dictionary block without its dictionary")
        codes = np.unpackbits(payload, count=count) if encoding == DICTIONARY_BITS else payload
        _look_up(codes, table, out, first, column)


def decode_bytes(encoding: int, base: int, payload: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Decode a block of bytes into the flat array ``out``."""
    if encoding == CONSTANT:
        out[:] = base
    elif encoding == BITS:
        out[:] = np.unpackbits(payload, count=len(out))
        if base:
            out += np.uint8(base)
    else:
        out[:] = payload
