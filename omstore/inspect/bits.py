"""Bitmaps with one bit a node, row or edge, in memory or, where they don't fit the budget, in a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["count_set", "first_where", "new_bits"]

_STEP = 1 << 20
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


def new_bits(count: int, limit: int, scratch: Path | None = None) -> NDArray[np.uint8]:
    """Make a bitmap of zeros; bit i is bit ``i & 7`` of byte ``i >> 3``.

    Parameters
    ----------
    count : int
        Bits.
    limit : int
        Bytes it may take of anonymous memory; a larger one lies in a deleted file, whose pages the kernel
        writes out when it needs the room.
    scratch : Path, optional
        Folder for that file; by default the system's for temporary files.
    """
    size = (count + 7) // 8
    if size <= limit:
        return np.zeros(size, np.uint8)
    with tempfile.TemporaryFile(dir=scratch) as file:
        file.truncate(size)
        bits: NDArray[Any] = np.memmap(file, np.uint8, "r+", shape=(size,))
        return bits.view(np.ndarray)


def count_set(bits: NDArray[np.uint8]) -> int:
    """Count the bits set; memory a few MiB."""
    total = 0
    for start in range(0, len(bits), _STEP):
        total += int(_ONES[bits[start : start + _STEP]].sum(dtype=np.int64))
    return total


def first_where(bits: NDArray[np.uint8], count: int, *, value: int, most: int) -> tuple[list[int], int]:
    """Find the first positions (at most `most`) whose bit has a value, and count all of them."""
    found: list[int] = []
    for start in range(0, len(bits), _STEP):
        part = np.unpackbits(bits[start : start + _STEP], bitorder="little")[: count - 8 * start]
        if len(found) < most:
            at = np.flatnonzero(part == value)[: most - len(found)]
            found += [8 * start + int(i) for i in at]
    set_bits = count_set(bits)
    return found, set_bits if value else count - set_bits
