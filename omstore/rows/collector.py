"""Collecting the distinct patterns of rows: what one thread holds."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, MemoryBudgetError, UsageError
from omstore.memory import format_bytes
from omstore.rows import collect_kernels as kernels
from omstore.rows import merge_kernels
from omstore.rows.compressed import delta_dtype
from omstore.rows.encoding import RowChunk, next_node_dtype, no_codes, outcome_dtype

__all__ = ["NO_BLOCK", "PatternCollector", "PatternCounts", "PatternMemory"]

NO_BLOCK = (1 << 32) - 1
"""Given for a node none of whose rows were kept."""

_CACHE = 1 << 19  # entries of the cache of patterns seen lately, at most: 4 MiB
_BLOCKS = 1 << 18  # patterns in the first blocks for which there is room
_MOST = (1 << 32) - 2  # patterns, lists or blocks that uint32 can number, besides `NO_PATTERN`


class PatternMemory:
    """Counts the bytes that collectors hold together, and refuses more than `limit`.

    Parameters
    ----------
    limit : int
        Bytes of anonymous memory.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int, what: str) -> None:
        """Count `nbytes` more; raises MemoryBudgetError with `what` was found so far where they are too many."""
        with self._lock:
            if self.used + nbytes > self.limit:
                raise MemoryBudgetError(
                    f"the dictionary of rows needs more than {format_bytes(self.limit)} of memory: "
                    f"{format_bytes(self.used)} hold {what}, and {format_bytes(nbytes)} more were needed",
                    "Use --rows csr-compressed, which collects no rows, or raise --max-ram.",
                )
            self.used += nbytes

    def give_back(self, nbytes: int) -> None:
        """Count `nbytes` less."""
        with self._lock:
            self.used -= nbytes


@dataclass(frozen=True)
class PatternCounts:
    """What was collected from some rows.

    Attributes
    ----------
    num_nodes, num_rows, num_edges : int
        Looked at.
    num_patterns, num_entries : int
        Distinct patterns, and differences in them.
    num_lists, num_codes : int
        Distinct lists of codes, and codes in them.
    num_blocks : int
        Distinct blocks of patterns.
    nbytes : int
        Of these tables on disk, without the arrays of nodes.
    """

    num_nodes: int
    num_rows: int
    num_edges: int
    num_patterns: int
    num_entries: int
    num_lists: int
    num_codes: int
    num_blocks: int
    nbytes: int


class PatternCollector:
    """Stores every distinct row once: for one thread, which gives it rows in ascending order.

    Identical rows are found by hash and then compared in full. Memory: 4 or 8 bytes a difference, about
    48 bytes a pattern and ``4 A + 40`` a block, up to twice that where arrays have just grown; counted by
    `memory`.

    Parameters
    ----------
    num_nodes, num_joint_actions, num_outcomes : int
        N, A and K of the graph.
    positions : (N,) unsigned integers, or None
        Where each node stands; None where positions are nodes.
    num_positions : int, optional
        Positions in all; N by default.
    memory : PatternMemory
        Shared with other threads' collectors.
    """

    def __init__(
        self,
        num_nodes: int,
        num_joint_actions: int,
        num_outcomes: int,
        *,
        positions: NDArray[Any] | None = None,
        num_positions: int | None = None,
        memory: PatternMemory,
    ) -> None:
        self.num_nodes, self.num_joint_actions, self.num_outcomes = num_nodes, num_joint_actions, num_outcomes
        self.num_positions = num_nodes if num_positions is None else num_positions
        self.coded = num_outcomes > 1
        self._placed = positions is not None
        unsigned = next_node_dtype(self.num_positions)
        self._positions = as_input(np.empty(0, unsigned) if positions is None else positions, unsigned)
        if self._placed and len(self._positions) != num_nodes:
            raise UsageError(f"{len(self._positions):,} positions were given for {num_nodes:,} nodes")
        self._memory = memory
        self._counts = np.zeros(kernels.NUM_COUNTS, np.int64)
        self._current = np.zeros(num_joint_actions, np.uint32)
        self._taken = 0
        self.num_rows = self.num_edges = 0

        codes, deltas = outcome_dtype(num_outcomes), delta_dtype(self.num_positions)
        self._cache = self._array(1 << 11, np.int64)
        self._block_cache = self._array(1 << 12, np.int64)
        self.pattern_offsets = self._array(1 << 10, np.int64)
        self.delta = self._array(1 << 13, deltas)
        self.pattern_list = self._array(1 << 10, np.uint32)
        self._pattern_hash = self._array(1 << 10, np.int64)
        self._pattern_first = self._array(1 << 10, np.int64)
        self._pattern_slots = self._array(1 << 11, np.uint32)
        self.list_offsets = self._array(1 << 8, np.int64)
        self.list_code = self._array(1 << 11, codes)
        self._list_hash = self._array(1 << 8, np.int64)
        self._list_first = self._array(1 << 8, np.int64)
        self._list_slots = self._array(1 << 9, np.uint32)
        blocks = max(1, min(1 << 4, _BLOCKS // num_joint_actions))
        self.block_pattern = self._array(blocks, np.uint32, (num_joint_actions,))
        self._block_hash = self._array(blocks, np.int64)
        self._block_first = self._array(blocks, np.int64)
        self._block_slots = self._array(1 << 5, np.uint32)

    @property
    def num_patterns(self) -> int:
        """Distinct patterns so far."""
        return int(self._counts[kernels.NUM_PATTERNS])

    @property
    def num_lists(self) -> int:
        """Distinct lists of codes so far."""
        return int(self._counts[kernels.NUM_LISTS])

    @property
    def num_blocks(self) -> int:
        """Distinct blocks of patterns so far."""
        return int(self._counts[kernels.NUM_BLOCKS])

    def counts(self) -> PatternCounts:
        """Return what was collected so far."""
        patterns, entries = self.num_patterns, int(self._counts[kernels.NUM_DELTAS])
        lists, codes = self.num_lists, int(self._counts[kernels.NUM_CODES])
        nbytes = 8 * (patterns + 1) + self.delta.itemsize * entries
        nbytes += 4 * self.num_joint_actions * self.num_blocks
        if self.coded:
            nbytes += 4 * patterns + 8 * (lists + 1) + self.list_code.itemsize * codes
        return PatternCounts(
            self.num_rows // self.num_joint_actions,
            self.num_rows,
            self.num_edges,
            patterns,
            entries,
            lists,
            codes,
            self.num_blocks,
            nbytes,
        )

    def add(self, chunk: RowChunk, keep: NDArray[np.uint8] | None = None) -> NDArray[np.uint32]:
        """Collect the rows of a chunk; return the blocks of the nodes whose last row it holds.

        A node's rows may come in several chunks, but must come one after the other from its first one on.

        Parameters
        ----------
        chunk : RowChunk
            Its codes in the terms of the graph being written; None where there is one outcome only.
        keep : (n,) uint8, optional
            0 for the rows that have no pattern (`NO_PATTERN` in their block): those that factor.

        Returns
        -------
        (nodes,) uint32
            This collector's own numbers, see :func:`merge_collectors`; `NO_BLOCK` where no row was kept.

        Raises
        ------
        CorruptStoreError
            Where a next node doesn't exist.
        MemoryBudgetError
            Where the tables grow beyond what `memory` allows.
        """
        count = len(chunk.offsets) - 1
        if self.coded != (chunk.outcome is not None):
            raise UsageError(f"rows come {'without' if self.coded else 'with'} outcome codes")
        if chunk.first_row + count > self.num_nodes * self.num_joint_actions:
            raise UsageError(f"row {chunk.first_row + count - 1} isn't within the graph")
        blocks = np.empty(
            (chunk.first_row % self.num_joint_actions + count) // self.num_joint_actions, np.uint32
        )
        offsets = as_input(chunk.offsets, np.int64)
        next_node = as_input(chunk.next_node, next_node_dtype(self.num_nodes))
        codes = no_codes() if chunk.outcome is None else as_input(chunk.outcome, self.list_code.dtype)
        kept = as_input(np.empty(0, np.uint8) if keep is None else keep, np.uint8)
        self._counts[kernels.NUM_FINISHED] = 0
        row = 0
        while True:
            status, row = kernels.collect_rows(
                chunk.first_row,
                row,
                self.num_joint_actions,
                self.num_nodes,
                offsets,
                next_node,
                codes,
                self.coded,
                kept,
                self._positions,
                self._placed,
                self._counts,
                self._current,
                self._cache,
                self._block_cache,
                self.pattern_offsets,
                self.delta,
                self.pattern_list,
                self._pattern_hash,
                self._pattern_first,
                self._pattern_slots,
                self.list_offsets,
                self.list_code,
                self._list_hash,
                self._list_first,
                self._list_slots,
                self.block_pattern,
                self._block_hash,
                self._block_first,
                self._block_slots,
                blocks,
            )
            if status == kernels.DONE:
                break
            if status == kernels.BAD_NODE:
                number = chunk.first_row + row
                raise CorruptStoreError(
                    f"row {number} (node {number // self.num_joint_actions}) has a next node that isn't within "
                    f"0 to {self.num_nodes - 1:,}"
                )
            self._grow(status, int(offsets[row + 1] - offsets[row]))
        self.num_rows += count
        self.num_edges += int(offsets[-1] - offsets[0])
        return blocks

    def absorb(self, other: PatternCollector) -> NDArray[np.uint32]:
        """Take over what another thread's collector holds; return which block here each of its blocks is."""
        list_map = np.zeros(max(1, other.num_lists), np.uint32)
        if self.coded:
            self._merge(
                merge_kernels.merge_lists,
                (other.list_offsets, other.list_code, other._list_hash, other._list_first),
                (self, ("list_offsets", "list_code", "_list_hash", "_list_first", "_list_slots")),
                list_map[: other.num_lists],
                other.list_offsets,
            )
        pattern_map = np.zeros(other.num_patterns, np.uint32)
        self._merge(
            merge_kernels.merge_patterns,
            (
                other.pattern_offsets,
                other.delta,
                other.pattern_list,
                other._pattern_hash,
                other._pattern_first,
                list_map,
                self.coded,
            ),
            (
                self,
                (
                    "pattern_offsets",
                    "delta",
                    "pattern_list",
                    "_pattern_hash",
                    "_pattern_first",
                    "_pattern_slots",
                ),
            ),
            pattern_map,
            other.pattern_offsets,
        )
        block_map = np.zeros(other.num_blocks, np.uint32)
        row = 0
        while True:
            status, row = kernels.merge_blocks(
                other.block_pattern,
                other._block_first,
                pattern_map,
                row,
                self._counts,
                self._current,
                self.block_pattern,
                self._block_hash,
                self._block_first,
                self._block_slots,
                block_map,
            )
            if status == kernels.DONE:
                break
            self._grow(status, 0)
        self.num_rows += other.num_rows
        self.num_edges += other.num_edges
        return block_map

    def _merge(
        self,
        merge: Any,
        theirs: tuple[Any, ...],
        ours: tuple[PatternCollector, tuple[str, ...]],
        out: NDArray[np.uint32],
        offsets: NDArray[np.int64],
    ) -> None:
        row = 0
        while True:
            arrays = [getattr(self, name) for name in ours[1]]
            status, row = merge(*theirs, row, self._counts, *arrays, out)
            if status == kernels.DONE:
                return
            self._grow(status, int(offsets[row + 1] - offsets[row]))

    def release(self) -> None:
        """Give back the memory; the collector is of no use then."""
        self.__dict__.update(
            {name: None for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        )
        self._memory.give_back(self._taken)
        self._taken = 0

    def _array(self, length: int, dtype: Any, item_shape: tuple[int, ...] = ()) -> NDArray[Any]:
        nbytes = length * int(np.prod(item_shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        self._take(nbytes)
        return np.zeros((length, *item_shape), dtype)

    def _take(self, nbytes: int) -> None:
        found = self.counts() if hasattr(self, "block_pattern") else None
        what = "nothing yet"
        if found is not None:
            what = (
                f"{found.num_patterns:,} patterns of {found.num_entries:,} edges after {self.num_rows:,} rows"
            )
        self._memory.take(nbytes, what)
        self._taken += nbytes

    def _grow(self, status: int, needed: int) -> None:
        """Make room after a kernel found none, for `needed` entries more."""
        if status == kernels.GROW_DELTAS:
            self._enlarge("delta", needed)
        elif status == kernels.GROW_CODES:
            self._enlarge("list_code", needed)
        elif status == kernels.GROW_LISTS:
            for name in ("list_offsets", "_list_hash", "_list_first"):
                self._enlarge(name)
            self._refill("_list_slots", self._list_hash, self.num_lists)
        elif status == kernels.GROW_PATTERNS:
            for name in ("pattern_offsets", "pattern_list", "_pattern_hash", "_pattern_first"):
                self._enlarge(name)
            self._refill("_pattern_slots", self._pattern_hash, self.num_patterns)
            if len(self._cache) < min(_CACHE, len(self._pattern_slots)):
                self._replace("_cache", self._array(2 * len(self._cache), np.int64))
        elif status == kernels.GROW_BLOCKS:
            for name in ("block_pattern", "_block_hash", "_block_first"):
                self._enlarge(name)
            self._refill("_block_slots", self._block_hash, self.num_blocks)
        if max(self.num_patterns, self.num_lists, self.num_blocks) > _MOST // 2:
            raise MemoryBudgetError(
                f"the rows have more than {_MOST // 2:,} distinct patterns, lists of codes or blocks",
                "Use --rows csr-compressed.",
            )

    def _enlarge(self, name: str, needed: int = 0) -> None:
        old: NDArray[Any] = getattr(self, name)
        length = 2 * len(old)
        while length < len(old) + needed:
            length *= 2
        new = self._array(length, old.dtype, old.shape[1:])
        new[: len(old)] = old
        self._replace(name, new)

    def _refill(self, name: str, hashes: NDArray[np.int64], count: int) -> None:
        slots = self._array(2 * len(getattr(self, name)), np.uint32)
        merge_kernels.refill(hashes[:count], slots)
        self._replace(name, slots)

    def _replace(self, name: str, new: NDArray[Any]) -> None:
        old: NDArray[Any] = getattr(self, name)
        setattr(self, name, new)
        self._memory.give_back(old.nbytes)
        self._taken -= old.nbytes
