"""The dictionary encoding: every distinct row stored once, for worlds that look alike from many places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, UsageError
from omstore.format.hot import drop_pages, map_hot
from omstore.rows import dictionary_checks, dictionary_kernels, kernels
from omstore.rows.encoding import (
    DrawnEdges,
    Edges,
    GraphSize,
    Probabilities,
    RowChunk,
    RowEncoding,
    check_sweep,
    next_node_dtype,
    no_codes,
    outcome_dtype,
    raise_status,
)
from omstore.rows.patterns import PatternTable

__all__ = ["DictionaryRows"]

_STARTS_BYTES = 64 << 20
"""For edge numbers, a table of the edges before each row of a block is made in memory, up to this size."""

_REACH = 1 << 22  # differences held while verifying: 32 MiB
_SPAN = 1 << 24  # differences from the least to the largest that verifying can mark: 64 MiB
_HINT = "Convert or build the store again."


class DictionaryRows(RowEncoding):
    """Rows as patterns: node -> block of patterns -> list of (difference of positions, outcome code).

    Random access touches a node's entries and the tables, which are small and stay in the cache. Memory: what
    `PatternTable` makes for sampling, and up to 64 MiB for numbers of edges, made when first asked for.

    Parameters
    ----------
    size : GraphSize
    table : PatternTable
    block : (N,) uint32
        Each node's block.
    first_edge : (N + 1,) uint64
        Number of each node's first edge.
    position : (N,) uint32 or uint64, or None
        Where each node stands, ascending; None where positions are nodes.

    Attributes
    ----------
    table : PatternTable
    block, position : arrays
        Views of those given, for kernels; `position` is empty where positions are nodes.
    block_pattern : (blocks * A,) uint32
        View of the table's: the pattern of each row of each block.
    """

    name = "dictionary"

    def __init__(
        self,
        size: GraphSize,
        table: PatternTable,
        block: NDArray[np.uint32],
        first_edge: NDArray[np.uint64],
        position: NDArray[Any] | None = None,
    ) -> None:
        self.size = size
        self.table = table
        self.block = as_input(block, np.uint32)
        self._first_edge = as_input(first_edge, np.uint64)
        positions = next_node_dtype(table.num_positions)
        self.position = as_input(np.empty(0, positions) if position is None else position, positions)
        self.block_pattern = as_input(table.block_pattern.reshape(-1), np.uint32)
        self._starts: NDArray[np.uint32] | None = None
        self._found = False
        if (position is not None) != table.placed or len(self.position) != size.num_nodes * table.placed:
            raise CorruptStoreError("rows: position and node_at don't go together", _HINT)
        if len(self.block) != size.num_nodes or len(self._first_edge) != size.num_nodes + 1:
            raise CorruptStoreError("rows: block and first_edge don't go with the number of nodes", _HINT)
        if int(self._first_edge[0]) != 0 or int(self._first_edge[-1]) != size.num_edges:
            raise CorruptStoreError(
                f"rows/first_edge: from {self._first_edge[0]} to {self._first_edge[-1]} isn't "
                f"{size.num_edges:,} edges",
                _HINT,
            )

    @classmethod
    def open(cls, folder: Path, description: Mapping[str, Any], size: GraphSize) -> DictionaryRows:
        """Map the arrays of a version's folder, each checked against the counts first.

        Parameters
        ----------
        folder : Path
            The version's folder.
        description : mapping
            ``manifest.rows``.
        size : GraphSize

        Raises
        ------
        CorruptStoreError
            Naming the file that is missing, truncated or foreign.
        """
        rows = Path(folder) / "rows"
        num_positions = description.get("num_positions")
        table = PatternTable.open(
            rows,
            size.num_outcomes,
            num_nodes=size.num_nodes,
            num_joint_actions=size.num_joint_actions,
            placed=num_positions is not None,
        )
        if num_positions is not None and num_positions != table.num_positions:
            raise CorruptStoreError(
                f"{rows / 'node_at'} is of {table.num_positions:,} positions, not {num_positions:,}", _HINT
            )
        position = None
        if num_positions is not None:
            dtype = next_node_dtype(table.num_positions)
            position = map_hot(rows / "position", dtype=dtype, item_shape=(), rows=size.num_nodes)
        return cls(
            size,
            table,
            map_hot(rows / "block", dtype=np.uint32, item_shape=(), rows=size.num_nodes),
            map_hot(rows / "first_edge", dtype=np.uint64, item_shape=(), rows=size.num_nodes + 1),
            position,
        )

    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of successors of each row; see :class:`RowEncoding`."""
        rows = as_input(rows, np.int64)
        _, patterns, _ = self._resolve(rows, edges=False)
        counts, status, position = self.table.outdegree(patterns)
        self._raise(status, position, rows)
        return counts

    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Edges:
        """Return the edges of rows in any order; see :class:`RowEncoding`."""
        rows = as_input(rows, np.int64)
        bases, patterns, first_edges = self._resolve(rows, edges=edges)
        found, status, position = self.table.gather(bases, patterns)
        self._raise(status, position, rows)
        if not edges:
            return found
        numbers = np.empty(int(found.offsets[-1]), np.int64)
        kernels.number_edges(first_edges, found.offsets, numbers)
        return Edges(found.offsets, found.next_node, found.outcome, numbers)

    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw one edge for each row by indexed search, the one that csr draws; see :class:`RowEncoding`."""
        rows = as_input(rows, np.int64)
        bases, patterns, first_edges = self._resolve(rows, edges=True)
        drawn, status, position = self.table.sample(bases, patterns, first_edges, uniforms, probabilities)
        self._raise(status, position, rows)
        return drawn

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Go through rows in order, decoded into buffers that are used again; see :class:`RowEncoding`."""
        check_sweep(self.size, start_row, stop_row, chunk_rows)
        if start_row == stop_row:
            return
        self.table.check_codes()
        first_edge = self._edge_before(start_row)
        dtype = next_node_dtype(self.size.num_nodes)
        next_node: NDArray[Any] = np.empty(0, dtype)
        codes: NDArray[Any] = np.empty(0, outcome_dtype(self.size.num_outcomes))
        for first in range(start_row, stop_row, chunk_rows):
            last = min(first + chunk_rows, stop_row)
            sums = self._chunk_offsets(first, last)
            total = int(sums[-1])
            if total > len(next_node):
                next_node = np.empty(total + total // 8, dtype)
                codes = np.empty(len(next_node) if self.table.coded else 0, codes.dtype)
            self._check_first_edges(first, first_edge, sums)
            status, position = dictionary_kernels.decode_chunk(
                first,
                self.size.num_joint_actions,
                self.size.num_nodes,
                self.table.num_positions,
                self.position,
                self.table.placed,
                self.table.node_at,
                self.block,
                self.block_pattern,
                self.table.pattern_offsets,
                self.table.delta,
                self.table.coded,
                self.table.pattern_list,
                self.table.list_offsets,
                self.table.list_code,
                sums,
                next_node,
                codes,
            )
            self._raise_in_chunk(status, position, first)
            yield RowChunk(
                first, first_edge, sums, next_node[:total], codes[:total] if self.table.coded else None
            )
            first_edge += total
            self._give_back(first, last)

    def matches(self, chunk: RowChunk) -> int:
        """Compare a chunk with the patterns themselves, decoding nothing; see :class:`RowEncoding`."""
        count = len(chunk.offsets) - 1
        if not count:
            return -1
        if self.table.coded != (chunk.outcome is not None):
            raise UsageError("one has outcome codes, the other hasn't")
        if self._edge_before(chunk.first_row) != chunk.first_edge:
            return 0
        sums = as_input(chunk.offsets, np.int64)
        codes = no_codes() if chunk.outcome is None else chunk.outcome
        self._check_places()
        status, position = dictionary_kernels.compare_chunk(
            chunk.first_row,
            self.size.num_joint_actions,
            self.size.num_nodes,
            self.position,
            self.table.placed,
            self.block,
            self.block_pattern,
            self.table.pattern_offsets,
            self.table.delta,
            self.table.coded,
            self.table.pattern_list,
            self.table.list_offsets,
            self.table.list_code,
            sums,
            as_input(chunk.next_node, next_node_dtype(self.size.num_nodes)),
            as_input(codes, outcome_dtype(self.size.num_outcomes)),
        )
        self._raise_in_chunk(status, max(position, 0), chunk.first_row)
        wrong = self._wrong_first_edge(chunk.first_row, chunk.first_edge, sums)
        if wrong >= 0 and (position < 0 or wrong < position):
            position = wrong
        self._give_back(chunk.first_row, chunk.first_row + count)
        return int(position)

    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes of each array."""
        parts = {"block": self.block.nbytes, "first_edge": self._first_edge.nbytes}
        if self.table.placed:
            parts["position"] = self.position.nbytes
        return {**parts, **self.table.nbytes()}

    def verify(self, chunk_rows: int = 1 << 16) -> None:
        """Check the tables, and every node against its block: in this order, without decoding the rows.

        Every next node is looked up once a node and difference, however many rows have it. Memory: 24 bytes
        a block, and up to 96 MiB for the blocks' differences; where that isn't enough, the rows are swept.

        Raises
        ------
        CorruptStoreError
            Naming the first list, pattern, block or node that is wrong.
        """
        table, size = self.table, self.size
        table.verify()
        totals = np.empty(table.num_blocks, np.int64)
        status, number = dictionary_kernels.block_starts(
            table.block_pattern, table.pattern_offsets, np.empty((0, 0), np.uint32), totals
        )
        if status != kernels.OK:
            raise CorruptStoreError(f"rows: block {number} names a pattern that doesn't exist", _HINT)
        least, largest = np.empty_like(totals), np.empty_like(totals)
        dictionary_checks.block_bounds(
            table.block_pattern, table.pattern_offsets, table.delta, least, largest
        )
        status, node = dictionary_checks.check_nodes(
            self.position,
            table.placed,
            table.num_positions,
            table.node_at,
            self.block,
            totals,
            least,
            largest,
            self._first_edge,
        )
        self._raise_in_chunk(status, 0, node * size.num_joint_actions)
        if not table.placed:
            return
        nodes = sum(
            int(np.count_nonzero(table.node_at[first : first + _SPAN] != size.num_nodes))
            for first in range(0, table.num_positions, _SPAN)
        )
        if nodes != size.num_nodes:
            raise CorruptStoreError(f"rows/node_at holds {nodes:,} nodes, not {size.num_nodes:,}", _HINT)
        if not self._verify_reach(least, largest):
            super().verify(chunk_rows)

    def _verify_reach(self, least: NDArray[np.int64], largest: NDArray[np.int64]) -> bool:
        """Check that every next node exists; false where the blocks have too many differences for that."""
        table = self.table
        if not len(least):
            return True
        origin = int(least.min())
        span = int(largest.max()) - origin + 1
        if span > _SPAN:
            return False
        offsets = np.zeros(table.num_blocks + 1, np.int64)
        reach = np.empty(_REACH, np.int64)
        seen = np.zeros(span, np.uint32)
        done = dictionary_checks.block_reach(
            table.block_pattern, table.pattern_offsets, table.delta, seen, origin, offsets, reach
        )
        if done < table.num_blocks:
            return False
        status, node = dictionary_checks.check_reach(
            self.position, table.node_at, self.size.num_nodes, self.block, offsets, reach
        )
        self._raise_in_chunk(status, 0, node * self.size.num_joint_actions)
        return True

    def _resolve(
        self, rows: NDArray[np.int64], *, edges: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Base positions, patterns and, where asked for, first edges of rows."""
        count = len(rows)
        bases, patterns = np.empty(count, np.int64), np.empty(count, np.int64)
        first_edges = np.empty(count if edges else 0, np.int64)
        starts, numbered = self._row_starts() if edges else (as_input(np.empty(0, np.uint32), np.uint32), 0)
        status, position = dictionary_kernels.resolve_rows(
            rows,
            self.size.num_joint_actions,
            self.size.num_nodes,
            self.position,
            self.table.placed,
            self.block,
            self.block_pattern,
            self._first_edge,
            starts,
            numbered,
            self.table.pattern_offsets,
            bases,
            patterns,
            first_edges,
        )
        self._raise(status, position, rows)
        return bases, patterns, first_edges

    def _row_starts(self) -> tuple[NDArray[np.uint32], int]:
        """The edges before each row of a block, made once, and how to number edges with them."""
        if self._starts is None:
            table = self.table
            starts = np.empty((0, 0), np.uint32)
            if table.block_pattern.nbytes <= _STARTS_BYTES:
                starts = np.empty(table.block_pattern.shape, np.uint32)
            totals = np.empty(table.num_blocks, np.int64)
            status, number = dictionary_kernels.block_starts(
                table.block_pattern, table.pattern_offsets, starts, totals
            )
            if status != kernels.OK:
                raise CorruptStoreError(f"rows: block {number} or one of its patterns is damaged", _HINT)
            if len(totals) and int(totals.max()) >= 1 << 32:
                starts = starts[:0]
            self._starts = as_input(starts.reshape(-1), np.uint32)
        return self._starts, 1 if self._starts.size else 2

    def _edge_before(self, row: int) -> int:
        """Number of a row's first edge."""
        node, action = divmod(row, self.size.num_joint_actions)
        if action == 0:
            return int(self._first_edge[node])
        return int(self._resolve(as_input(np.array([row]), np.int64), edges=True)[2][0])

    def _chunk_offsets(self, first: int, last: int) -> NDArray[np.int64]:
        sums = np.empty(last - first + 1, np.int64)
        status, position = dictionary_kernels.chunk_offsets(
            first,
            self.size.num_joint_actions,
            self.block,
            self.block_pattern,
            self.table.pattern_offsets,
            len(self.table.delta),
            sums,
        )
        self._raise_in_chunk(status, position, first)
        return sums

    def _check_places(self) -> None:
        """Check once that nodes are found at their positions: then next nodes may be compared there."""
        if self.table.placed and not self._found:
            node = dictionary_checks.check_places(self.position, self.table.node_at)
            if node >= 0:
                raise CorruptStoreError(f"rows/node_at doesn't hold node {node} at its position", _HINT)
        self._found = True

    def _wrong_first_edge(self, first: int, first_edge: int, sums: NDArray[np.int64]) -> int:
        """Position of the first row that begins a node at another edge than the file says, or -1."""
        actions = self.size.num_joint_actions
        begin = -first % actions
        starts = sums[begin::actions]  # the end of the last row included, if it ends a node
        node = (first + begin) // actions
        numbers = self._first_edge[node : node + len(starts)].view(np.int64)
        wrong = numbers != first_edge + starts
        return min(begin + int(np.argmax(wrong)) * actions, len(sums) - 2) if wrong.any() else -1

    def _check_first_edges(self, first: int, first_edge: int, sums: NDArray[np.int64]) -> None:
        wrong = self._wrong_first_edge(first, first_edge, sums)
        if wrong >= 0:
            raise_status(kernels.BAD_OFFSETS, wrong, first + wrong, self.size)

    def _give_back(self, first: int, last: int) -> None:
        """Give back the pages of what belongs to nodes that were passed."""
        nodes = slice(first // self.size.num_joint_actions, last // self.size.num_joint_actions)
        if nodes.stop - nodes.start >= 1 << 12:  # else it costs more than it gives
            for array in (self.block, self._first_edge, self.position):
                drop_pages(array[nodes])

    def _raise(self, status: int, position: int, rows: NDArray[np.int64]) -> None:
        if status != kernels.OK:
            raise_status(status, position, int(rows[position]), self.size)

    def _raise_in_chunk(self, status: int, position: int, first: int) -> None:
        if status != kernels.OK:
            raise_status(status, position, first + position, self.size)
