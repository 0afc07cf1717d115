"""Building the index out of core: one range of hashes at a time, written front to back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, MemoryBudgetError, UsageError
from omstore.format.hot import drop_pages
from omstore.index.kernels import (
    CORRUPT,
    NODE_BITS,
    count_groups,
    place_entries,
    scatter_group_entries,
    sort_groups,
)
from omstore.memory import DEFAULT_BUDGET, format_bytes

__all__ = ["build_index", "capacity_for"]

_ENTRY_BYTES = 16  # hash and node
_SCAN_BYTES = 8 << 20  # of keys between two calls of `drop_pages`
_MIN_BUDGET = 4 << 20


class SlotWriter(Protocol):
    """Takes the table front to back: a `HotWriter` of dtype uint64."""

    def append(self, values: NDArray[np.uint64], /) -> object:
        """Append slots; the array is reused after the call."""
        ...


def capacity_for(num_states: int) -> int:
    """Return how many homes a table for `num_states` states has: load 0.7.

    A present state is then found in 2.2 slots on average and an absent one given up after 6.
    """
    return max(1, -(-num_states * 10 // 7))


def build_index(
    packed: NDArray[np.uint8],
    writer: SlotWriter,
    budget_bytes: int = DEFAULT_BUDGET,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Write the slots of the index over packed states.

    Reads the states front to back once, and once more for every range of hashes that fits the budget. The
    bytes written are the same whatever the budget.

    Parameters
    ----------
    packed : (N, Wb) uint8 array
        Packed states in node order, usually mapped; pages of a mapping are given back as they are read.
        The states must be distinct, which isn't checked here: conversion finds duplicates when it sorts
        the states. Of duplicates, the lowest node is found.
    writer : SlotWriter
        Where the slots go; isn't closed.
    budget_bytes : int
        Bytes of anonymous memory to use; at least 4 MiB.
    progress : callable, optional
        Called with the number of states just read; in total `N` times (1 + number of ranges).

    Returns
    -------
    int
        Slots written: the capacity and what the last states were pushed behind it, and an empty slot at
        the end.

    Raises
    ------
    MemoryBudgetError
        If the budget is below the minimum, or the states' hashes are so uneven that a range cannot be
        made small enough.
    """
    if packed.ndim != 2 or packed.dtype != np.uint8 or packed.shape[1] == 0:
        raise UsageError(f"packed states must be (N, Wb) uint8, not {packed.shape} {packed.dtype}")
    if len(packed) >= 1 << NODE_BITS:
        raise UsageError(f"{len(packed):,} states are more than the index can number (2^{NODE_BITS} - 1)")
    if budget_bytes < _MIN_BUDGET:
        raise MemoryBudgetError(
            f"the index can't be built in {format_bytes(budget_bytes)}",
            f"Allow at least {format_bytes(_MIN_BUDGET)}, for example with --max-ram.",
        )
    capacity = capacity_for(len(packed))
    table = _TableWriter(writer, capacity, window_slots=min(capacity + 64, budget_bytes // 64))
    most_entries = budget_bytes * 5 // 8 // _ENTRY_BYTES
    shift, counts = _count(packed, most_entries, progress)
    for first_group, last_group in _ranges(counts, most_entries, budget_bytes):
        # Not bound to names: the entries must be gone before the next range's are made.
        table.place(*_collect(packed, counts, shift, first_group, last_group, progress))
    return table.finish()


def _chunks(packed: NDArray[np.uint8]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield (first node, flat keys) front to back; asking for the next chunk gives this one's pages back."""
    chunk_rows = max(1, _SCAN_BYTES // packed.shape[1])
    for first in range(0, len(packed), chunk_rows):
        yield first, as_input(packed[first : first + chunk_rows], np.uint8).reshape(-1)
        drop_pages(packed[first : first + chunk_rows])


def _count(
    packed: NDArray[np.uint8], most_entries: int, progress: Callable[[int], object] | None
) -> tuple[int, NDArray[np.int64]]:
    """Count the states per group of hashes; returns by how much to shift a hash to its group, and the counts.

    At most 1,024 groups: appending to so many places at a time stays within the caches (with one group for
    eight states the same build took four times as long); more only where a range would hold less than eight
    of them.
    """
    few = min(len(packed) // 64, 1023).bit_length()
    needed = (8 * len(packed) // most_entries).bit_length()
    bits = max(1, few, needed)
    counts = np.zeros(1 << bits, np.int64)
    shift = 64 - bits
    for _, keys in _chunks(packed):
        count_groups(keys, packed.shape[1], shift, counts)
        if progress is not None:
            progress(len(keys) // packed.shape[1])
    return shift, counts


def _ranges(counts: NDArray[np.int64], most_entries: int, budget_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut the groups into ranges of at most `most_entries` states, as few as possible."""
    first = 0
    sums = np.cumsum(counts)
    while first < len(counts):
        before = int(sums[first - 1]) if first else 0
        last = int(np.searchsorted(sums, before + most_entries, side="right"))
        if last == first:
            raise MemoryBudgetError(
                f"{int(counts[first]):,} states fall into one group of hashes; "
                f"the index can't be built in {format_bytes(budget_bytes)}",
                "Allow more memory (--max-ram).",
            )
        yield first, last
        first = last


def _collect(
    packed: NDArray[np.uint8],
    counts: NDArray[np.int64],
    shift: int,
    first_group: int,
    last_group: int,
    progress: Callable[[int], object] | None,
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return hashes and nodes of the states in a range of groups, sorted by hash, then node."""
    sizes = counts[first_group:last_group]
    total = int(sizes.sum())
    # The groups' starts, which scattering moves to their ends.
    ends = np.cumsum(sizes)
    ends -= sizes
    hashes = np.empty(total, np.uint64)
    nodes = np.empty(total, np.int64)
    for first_node, keys in _chunks(packed):
        if (
            scatter_group_entries(keys, packed.shape[1], first_node, shift, first_group, ends, hashes, nodes)
            == CORRUPT
        ):
            raise _changed()
        if progress is not None:
            progress(len(keys) // packed.shape[1])
    if len(ends) and ends[-1] != total:
        raise _changed()
    sort_groups(ends, shift, hashes, nodes)
    return hashes, nodes


def _changed() -> CorruptStoreError:
    return CorruptStoreError(
        "the states changed while their index was built", "Another process writes to them; stop it."
    )


class _TableWriter:
    """Places sorted entries and writes the table a window at a time."""

    def __init__(self, writer: SlotWriter, capacity: int, window_slots: int) -> None:
        self._writer = writer
        self._capacity = capacity
        self._window = np.zeros(max(window_slots, 1), np.uint64)
        self._base = 0  # position of the window's first slot
        self._previous = -1  # position of the last slot filled

    def place(self, hashes: NDArray[np.uint64], nodes: NDArray[np.int64]) -> None:
        done = 0
        while True:
            done, self._previous = place_entries(
                hashes, nodes, done, self._capacity, self._previous, self._base, self._window
            )
            if done == len(hashes):
                return
            self._flush(len(self._window))

    def finish(self) -> int:
        """Write what is left, up to the last home or the last state, and an empty slot."""
        total = max(self._capacity, self._previous + 1) + 1
        while self._base < total:
            self._flush(min(len(self._window), total - self._base))
        return total

    def _flush(self, count: int) -> None:
        self._writer.append(self._window[:count])
        self._base += count
        self._window[:] = 0
