"""Numbers of any type as 64-bit words (or bytes), reversibly, and how many blocks a column makes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import BadDataError

__all__ = ["SPLIT", "from_words", "is_bytewise", "num_blocks", "to_words"]

SPLIT = 16
"""Vectors of up to this many words get a block per component (actions, rewards), longer ones one block
(states)."""


def is_bytewise(dtype: np.dtype[Any]) -> bool:
    """Tell whether a column is handled as bytes rather than words."""
    return dtype.itemsize == 1 and dtype.kind in "ub"


def to_words(values: NDArray[Any]) -> NDArray[np.int64]:
    """Map numbers to 64-bit words, reversibly: integers by value, floats by bit pattern."""
    dtype = values.dtype
    if dtype.kind in "iu" and dtype != np.uint64:
        return values.astype(np.int64, copy=False)
    if dtype.itemsize == 8:
        return values.view(np.int64)
    if dtype.kind == "f" and dtype.itemsize in (2, 4):
        return values.view(np.dtype(f"u{dtype.itemsize}")).astype(np.int64)
    raise BadDataError(
        f"numbers of type {dtype} can't be stored", "Convert them to float64 or int64 in the exporter."
    )


def from_words(words: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Undo `to_words`."""
    if dtype.kind in "iu" and dtype != np.uint64:
        return words.astype(dtype, copy=False)
    if dtype.itemsize == 8:
        return words.view(dtype)
    return words.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype)


def num_blocks(dtype: np.dtype[Any], width: int) -> int:
    """Return how many blocks a column of this type and width has in a chunk."""
    if width == 0:
        return 0
    return 1 if is_bytewise(dtype) or width > SPLIT else width
