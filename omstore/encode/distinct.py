"""Distinct rows of 64-bit words, numbered; values of attributes as such words, and sorted.

Values are equal where their bits are: -0.0 and 0.0 differ, a NaN equals itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input, kernel

__all__ = ["MAX_DISTINCT", "DistinctWords", "sort_words", "words_of"]

MAX_DISTINCT = 1 << 16
"""More distinct values than this have no codes."""


@kernel
def _number(words: Any, slots: Any, store: Any, count: int, codes: Any) -> int:
    """Number distinct rows of words in order of appearance; return how many there are, -1 when too many."""
    width = words.shape[1]
    mask = slots.shape[0] - 1
    last = -1
    for i in range(words.shape[0]):
        if last >= 0:
            same = True
            for k in range(width):
                if words[i, k] != words[i - 1, k]:
                    same = False
                    break
            if same:
                codes[i] = last
                continue
        mixed = np.uint64(0)
        for k in range(width):
            mixed = (mixed ^ np.uint64(words[i, k])) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(32)
        slot = np.int64(mixed & np.uint64(mask))
        while True:
            code = slots[slot]
            if code < 0:
                if count == store.shape[0]:
                    return -1
                slots[slot] = count
                for k in range(width):
                    store[count, k] = words[i, k]
                code = count
                count += 1
                break
            same = True
            for k in range(width):
                if store[code, k] != words[i, k]:
                    same = False
                    break
            if same:
                break
            slot = (slot + 1) & mask
        codes[i] = code
        last = code
    return count


class DistinctWords:
    """The distinct rows of words met so far, up to `limit`, numbered in order of appearance.

    Memory: 16 bytes and the words, for each of `limit`.
    """

    def __init__(self, width: int, limit: int = MAX_DISTINCT) -> None:
        slots = 1 << (4 * limit - 1).bit_length()
        self._slots = np.full(slots, -1, np.int32)
        self._store = np.empty((limit, width), np.int64)
        self.count = 0

    @property
    def overflowed(self) -> bool:
        """There were more than the limit."""
        return self.count < 0

    def number(self, words: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the number of every row of words, (n, width) -> (n,); meaningless once `overflowed`."""
        codes = np.empty(len(words), np.int32)
        if self.count >= 0:
            given = as_input(words, np.int64)
            self.count = int(_number(given, self._slots, self._store, self.count, codes))
        return codes

    @property
    def words(self) -> NDArray[np.int64]:
        """The distinct rows, (count, width)."""
        return self._store[: max(self.count, 0)]


def words_of(values: NDArray[Any]) -> NDArray[np.int64]:
    """Write values, (n, ...) floats or integers, as (n, c) words: equal where the bits are."""
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    if flat.dtype == np.float64:
        return flat.view(np.int64)
    if flat.dtype.kind == "f":  # as bits, not by value: NaNs keep their payload
        return flat.view(f"i{flat.dtype.itemsize}").astype(np.int64)
    return flat.view(np.int64) if flat.dtype == np.uint64 else flat.astype(np.int64)


def sort_words(words: NDArray[np.int64], floats: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Sort rows of words by value, column by column, and drop repetitions.

    Parameters
    ----------
    words : (n, c) int64
    floats : (c,) bool
        Which columns are the bits of floats: they sort as the floats do, -0.0 before 0.0.

    Returns
    -------
    first : (k,) int64
        A given row for each distinct one, in sorted order.
    code_of : (n,) int64
        The position of every given row in it.
    """
    if not len(words) or not words.shape[1]:
        return np.zeros(min(1, len(words)), np.int64), np.zeros(len(words), np.int64)
    keys = np.where(floats & (words < 0), words ^ np.int64(0x7FFFFFFFFFFFFFFF), words)
    order = np.lexsort(keys.T[::-1])
    ordered = keys[order]
    begins = np.concatenate([[True], (ordered[1:] != ordered[:-1]).any(axis=1)])
    code_of = np.empty(len(words), np.int64)
    code_of[order] = np.cumsum(begins) - 1
    return order[begins], code_of
