"""Operands of opcodes, where they stand in the file: numbers, and the bytes of texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy import opcodes as op
from omstore.legacy.machine.arrays import copy, float_bits, u16, u32, u64
from omstore.legacy.machine.tags import BOOL, BYTES, ENCODED, FLOAT, INT, RAWAT

__all__ = ["copy_data", "line_end", "long", "number_at", "same_bytes", "scalar_bits", "signed", "span"]


@inner_kernel
def span(data: Any, at: Any) -> Any:
    """Start and length of the text or bytes whose opcode is at `at`."""
    code = data[at]
    if code == op.SHORT_BINUNICODE or code == op.SHORT_BINBYTES:
        return at + 2, np.int64(data[at + 1])
    if code == op.BINUNICODE or code == op.BINBYTES:
        return at + 5, u32(data, at + 1)
    return at + 9, u64(data, at + 1)


@inner_kernel
def signed(value: Any) -> Any:
    """The two's complement of 32 bits."""
    return (value ^ 0x80000000) - 0x80000000


@inner_kernel
def long(data: Any, at: Any, length: Any) -> Any:
    """Little-endian two's complement of up to 8 bytes."""
    value = np.int64(0)
    for i in range(length):
        value |= np.int64(data[at + i]) << (8 * i)
    if 0 < length < 8 and data[at + length - 1] & 0x80:
        value -= np.int64(1) << (8 * length)
    return value


@inner_kernel
def number_at(data: Any, pc: Any) -> Any:
    """(tag, value, offset behind) of the number whose opcode is at `pc`; tag 0 when there is none."""
    code = data[pc]
    if code == op.BININT1:
        return np.int64(INT), np.int64(data[pc + 1]), pc + 2
    if code == op.BINFLOAT:
        return np.int64(FLOAT), float_bits(data, pc + 1), pc + 9
    if code == op.BININT2:
        return np.int64(INT), u16(data, pc + 1), pc + 3
    if code == op.BININT:
        return np.int64(INT), signed(u32(data, pc + 1)), pc + 5
    if code == op.NEWTRUE or code == op.NEWFALSE:
        return np.int64(BOOL), np.int64(code == op.NEWTRUE), pc + 1
    if code == op.LONG1 and data[pc + 1] <= 8:
        length = np.int64(data[pc + 1])
        return np.int64(INT), long(data, pc + 2, length), pc + 2 + length
    return np.int64(0), np.int64(0), pc


@inner_kernel
def line_end(data: Any, at: Any) -> Any:
    """Offset of the next newline; pass 1 has seen that there is one."""
    while data[at] != 10:
        at += 1
    return at


@inner_kernel
def same_bytes(data: Any, at: Any, pool: Any, offset: Any, length: Any) -> Any:
    """Whether two runs of bytes are equal, eight at a time."""
    i = np.int64(0)
    while i + 8 <= length:
        if u64(data, at + i) != u64(pool, offset + i):
            return False
        i += 8
    while i < length:
        if data[at + i] != pool[offset + i]:
            return False
        i += 1
    return True


@inner_kernel
def _latin1(data: Any, at: Any, left: Any) -> Any:
    """(byte, width) of the UTF-8 character at `at`; width 0 when it isn't a whole one below 256."""
    byte = np.int64(data[at])
    if byte < 0x80:
        return byte, np.int64(1)
    if (byte & 0xFC) == 0xC0 and left > 1:
        return (byte & 3) << 6 | (np.int64(data[at + 1]) & 0x3F), np.int64(2)
    return byte, np.int64(0)


@inner_kernel
def copy_data(data: Any, tag: Any, value: Any, size: Any, out: Any, to: Any) -> Any:
    """Copy `size` raw bytes of a bytes-like value; False when it has another length."""
    if tag == RAWAT:
        copy(out, to, data, value, size)
        return True
    if tag != BYTES and tag != ENCODED:
        return False
    start, length = span(data, value)
    if tag == BYTES:
        if length == size:
            copy(out, to, data, start, size)
        return length == size
    i = np.int64(0)
    done = np.int64(0)
    while i < length:
        byte, width = _latin1(data, start + i, length - i)
        if width == 0 or done >= size:
            return False
        out[to + done] = byte
        done += 1
        i += width
    return done == size


@inner_kernel
def scalar_bits(data: Any, tag: Any, value: Any, size: Any, swapped: Any) -> Any:
    """(fits, bits) of a number of `size` raw bytes, big-endian when `swapped` isn't 0."""
    bits = np.int64(0)
    if tag != BYTES and tag != ENCODED:
        return False, bits
    start, length = span(data, value)
    i = np.int64(0)
    done = np.int64(0)
    while i < length:
        byte = np.int64(data[start + i])
        width = np.int64(1)
        if tag == ENCODED:
            byte, width = _latin1(data, start + i, length - i)
        if width == 0 or done >= size:
            return False, bits
        bits |= byte << (8 * (size - 1 - done if swapped != 0 else done))
        done += 1
        i += width
    return done == size, bits
