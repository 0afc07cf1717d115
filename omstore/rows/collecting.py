"""Putting together the patterns that several threads collected, in an order that depends on none of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.rows import merge_kernels
from omstore.rows.collector import NO_BLOCK, PatternCollector, PatternCounts, PatternMemory
from omstore.rows.patterns import NO_PATTERN, PatternTable
from omstore.rows.write import Staging

__all__ = [
    "NO_BLOCK",
    "MergedPatterns",
    "PatternCollector",
    "PatternCounts",
    "PatternMemory",
    "merge_collectors",
]

_PIECE = 1 << 20  # entries written at a time


class MergedPatterns:
    """What several threads collected, numbered by first appearance over all rows; see `merge_collectors`.

    Attributes
    ----------
    block_maps : list of (blocks,) uint32
        For each collector: the number here of each of its blocks.
    counts : PatternCounts
    """

    def __init__(self, collector: PatternCollector, block_maps: list[NDArray[np.uint32]]) -> None:
        self._collector = collector
        self.counts = collector.counts()
        self._pattern_order, self._pattern_new = _by_first(collector._pattern_first, collector.num_patterns)
        self._list_order, self._list_new = _by_first(collector._list_first, collector.num_lists)
        self._block_order, block_new = _by_first(collector._block_first, collector.num_blocks)
        self.block_maps = [block_new[block_map] for block_map in block_maps]

    def write(self, staging: Staging, prefix: str) -> None:
        """Write ``block_pattern``, ``pattern_offsets``, ``delta`` and, with several outcomes, ``pattern_list``,
        ``list_offsets`` and ``list_code`` as hot arrays; memory: a million entries at a time."""
        held = self._collector
        self._write_ragged(
            staging,
            f"{prefix}/pattern_offsets",
            f"{prefix}/delta",
            held.pattern_offsets,
            held.delta,
            self._pattern_order,
        )
        if held.coded:
            self._write_ragged(
                staging,
                f"{prefix}/list_offsets",
                f"{prefix}/list_code",
                held.list_offsets,
                held.list_code,
                self._list_order,
            )
            with staging.hot(f"{prefix}/pattern_list", np.uint32) as writer:
                for part in _pieces(self._pattern_order):
                    writer.append(self._list_new[held.pattern_list[part]])
        step = max(1, _PIECE // held.num_joint_actions)
        with staging.hot(f"{prefix}/block_pattern", np.uint32, (held.num_joint_actions,)) as writer:
            for part in _pieces(self._block_order, step):
                blocks = held.block_pattern[part]
                new = np.empty(blocks.size, np.uint32)
                merge_kernels.renumber(blocks.reshape(-1), self._pattern_new, NO_PATTERN, 0, new)
                writer.append(new.reshape(blocks.shape))

    def blocks_of(
        self, collector: int, blocks: NDArray[np.uint32], nothing: int, shift: int
    ) -> NDArray[np.uint32]:
        """Turn what :meth:`PatternCollector.add` returned into the blocks' final numbers.

        Parameters
        ----------
        collector : int
            Which one, by its place in the list merged.
        blocks : (n,) uint32
        nothing : int
            What `NO_BLOCK` becomes.
        shift : int
            Added to all others.
        """
        new = np.empty(len(blocks), np.uint32)
        merge_kernels.renumber(np.ascontiguousarray(blocks), self.block_maps[collector], nothing, shift, new)
        return new

    def table(self, node_at: NDArray[Any] | None = None) -> PatternTable:
        """Make the table in memory; for few patterns."""
        held = self._collector
        order = self._pattern_order
        offsets, delta = _ragged(held.pattern_offsets, held.delta, order)
        blocks = held.block_pattern[self._block_order]
        new = np.empty(blocks.size, np.uint32)
        merge_kernels.renumber(blocks.reshape(-1), self._pattern_new, NO_PATTERN, 0, new)
        lists: tuple[Any, Any, Any] = (None, None, None)
        if held.coded:
            lists = (
                self._list_new[held.pattern_list[order]],
                *_ragged(held.list_offsets, held.list_code, self._list_order),
            )
        return PatternTable(
            held.num_nodes, held.num_outcomes, new.reshape(blocks.shape), offsets, delta, *lists, node_at
        )

    def release(self) -> None:
        """Give back the memory; only the block maps stay."""
        self._collector.release()

    def _write_ragged(
        self,
        staging: Staging,
        offsets_name: str,
        values_name: str,
        offsets: NDArray[np.int64],
        values: NDArray[Any],
        order: NDArray[np.int64],
    ) -> None:
        total = 0
        with staging.hot(offsets_name, np.uint64) as starts, staging.hot(values_name, values.dtype) as out:
            starts.append(np.zeros(1, np.uint64))
            for part in _pieces(order):
                ends = total + np.cumsum(offsets[part + 1] - offsets[part])
                starts.append(ends.astype(np.uint64))
                first = 0
                while first < len(part):  # of these, as many as have a million entries together
                    begin = total if first == 0 else int(ends[first - 1])
                    last = max(first + 1, int(np.searchsorted(ends, begin + _PIECE, side="right")))
                    piece = np.empty(int(ends[last - 1]) - begin, values.dtype)
                    merge_kernels.copy_lists(offsets, values, part[first:last], piece)
                    out.append(piece)
                    first = last
                total = int(ends[-1])


def merge_collectors(collectors: Sequence[PatternCollector]) -> MergedPatterns:
    """Put together what threads collected: patterns, lists and blocks are numbered by their first rows.

    The result doesn't depend on which thread took which rows. The first collector takes over the others',
    which are released one by one.

    Raises
    ------
    MemoryBudgetError
        Where the merged tables grow beyond what the collectors' memory allows.
    """
    base, *others = collectors
    maps = [np.arange(base.num_blocks, dtype=np.uint32)]
    for other in others:
        maps.append(base.absorb(other))
        other.release()
    return MergedPatterns(base, maps)


def _by_first(firsts: NDArray[np.int64], count: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """The order by first appearance, and every number's place in it."""
    order = np.argsort(firsts[:count], kind="stable")
    new = np.empty(count, np.uint32)
    new[order] = np.arange(count, dtype=np.uint32)
    return order, new


def _pieces(order: NDArray[np.int64], step: int = _PIECE) -> list[NDArray[np.int64]]:
    bounds = [*range(0, len(order), step), len(order)]
    return [order[first:last] for first, last in itertools.pairwise(bounds)]


def _ragged(
    offsets: NDArray[np.int64], values: NDArray[Any], order: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[Any]]:
    ends = np.zeros(len(order) + 1, np.uint64)
    np.cumsum(offsets[order + 1] - offsets[order], out=ends[1:].view(np.int64))
    out = np.empty(int(ends[-1]), values.dtype)
    merge_kernels.copy_lists(offsets, values, order, out)
    return ends, out
