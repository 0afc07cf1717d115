"""Sorting records by a key of bytes, in memory where they fit, else out of core by distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.convert.scatter import Scatter

__all__ = ["key_of_integers", "sort_by_key"]

Chunks = Callable[[], Iterator[NDArray[Any]]]

_SAMPLE = 1 << 16
_MIN_BUDGET = 1 << 20


def key_of_integers(values: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Write int64 as 8 bytes whose memcmp order is the order of the numbers."""
    flipped = values.view(np.uint64) ^ np.uint64(1 << 63)
    return flipped.astype(">u8").view(np.uint8).reshape(-1, 8)


def _comparable(keys: NDArray[np.uint8]) -> NDArray[Any]:
    """View (n, k) bytes as n strings: numpy compares them whole, as memcmp does, zeros included."""
    keys = np.ascontiguousarray(keys)
    return keys.view(f"S{keys.shape[1]}").reshape(-1)


def sort_by_key(
    chunks: Chunks, num_records: int, dtype: np.dtype[Any], scratch: Path, budget: int
) -> Iterator[NDArray[Any]]:
    """Sort records by their field ``key``, ties in the order they came.

    Parameters
    ----------
    chunks : callable
        Gives the records anew at every call: arrays of `dtype`.
    num_records : int
        An upper bound of how many there are.
    dtype : numpy.dtype
        Structured, packed, with a field ``key`` of (k,) uint8.
    scratch : Path
        Folder for the out-of-core sort's file.
    budget : int
        Bytes of anonymous memory.

    Yields
    ------
    ndarray of dtype
        Parts of the sorted sequence; equal keys never fall into two parts.
    """
    key_bytes = dtype["key"].itemsize
    # records, the contiguous keys, the order (int64), and the sorted copy
    record_cost = 2 * dtype.itemsize + key_bytes + 16
    parts = -(-num_records * record_cost // max(budget, _MIN_BUDGET))
    if parts <= 1:
        collected = list(chunks())
        if collected:
            yield _sorted(np.concatenate(collected) if len(collected) > 1 else collected[0])
        return
    splitters = _splitters(chunks, num_records, parts)
    scatter = Scatter(scratch / "sort-by-key", dtype, len(splitters) + 1, max(1 << 20, budget // 4))
    try:
        for records in chunks():
            regions = np.searchsorted(splitters, _comparable(records["key"]), side="right")
            scatter.append(np.ascontiguousarray(records), regions.astype(np.int32))
        scatter.finish()
        for region in range(len(splitters) + 1):
            if scatter.counts[region]:
                yield _sorted(scatter.read(region, drop=True))
    finally:
        scatter.close()


def _sorted(records: NDArray[Any]) -> NDArray[Any]:
    result: NDArray[Any] = records[np.argsort(_comparable(records["key"]), kind="stable")]
    return result


def _splitters(chunks: Chunks, num_records: int, parts: int) -> NDArray[Any]:
    """Choose keys that split the records evenly, from a regular sample."""
    step = max(1, num_records // _SAMPLE)
    sampled = []
    seen = 0
    for records in chunks():
        first = -seen % step
        sampled.append(np.ascontiguousarray(records["key"][first::step]))
        seen += len(records)
    sample = np.sort(_comparable(np.concatenate(sampled)))
    at = (np.arange(1, parts) * len(sample)) // parts
    return np.unique(sample[at])
