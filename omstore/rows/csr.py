"""The csr encoding: offsets, next nodes and outcome codes as they are, memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.format.hot import drop_pages, map_hot
from omstore.rows import kernels
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

__all__ = ["CsrRows"]


class CsrRows(RowEncoding):
    """Rows in memory-mapped arrays; random access costs a page fault at worst, sequential passes none.

    Parameters
    ----------
    size : GraphSize
    offsets : (N * A + 1,) uint64, or None
        None where every row has `outdegree` successors.
    next_node : (E,) uint32 or uint64
    outcome : (E,) uint8, uint16 or uint32, or None
        None where there is one outcome only.
    outdegree : int, optional
        Of every row.
    """

    name = "csr"

    def __init__(
        self,
        size: GraphSize,
        offsets: NDArray[np.uint64] | None,
        next_node: NDArray[Any],
        outcome: NDArray[Any] | None,
        outdegree: int | None = None,
    ) -> None:
        self.size = size
        self._uniform = -1 if outdegree is None else outdegree
        self._offsets = as_input(np.empty(0, np.uint64) if offsets is None else offsets, np.uint64)
        self._next_node = as_input(next_node, next_node_dtype(size.num_nodes))
        self._coded = outcome is not None
        self._outcome = no_codes() if outcome is None else as_input(outcome, outcome_dtype(size.num_outcomes))
        if outdegree is not None and outdegree * size.num_rows != size.num_edges:
            raise CorruptStoreError(
                f"rows: {size.num_rows:,} rows of {outdegree} edges aren't {size.num_edges:,} edges"
            )

    @classmethod
    def open(cls, folder: Path, description: Mapping[str, Any], size: GraphSize) -> CsrRows:
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
        outdegree = description.get("outdegree")
        rows = Path(folder) / "rows"
        return cls(
            size,
            None
            if outdegree is not None
            else map_hot(rows / "offsets", dtype=np.uint64, item_shape=(), rows=size.num_rows + 1),
            map_hot(
                rows / "next_node", dtype=next_node_dtype(size.num_nodes), item_shape=(), rows=size.num_edges
            ),
            None
            if size.num_outcomes == 1
            else map_hot(
                rows / "outcome", dtype=outcome_dtype(size.num_outcomes), item_shape=(), rows=size.num_edges
            ),
            outdegree,
        )

    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of successors of each row; see :class:`RowEncoding`."""
        return np.diff(self._bounds(as_input(rows, np.int64))[1])

    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Edges:
        """Return the edges of rows in any order; see :class:`RowEncoding`."""
        rows = as_input(rows, np.int64)
        starts, sums = self._bounds(rows)
        total = int(sums[-1])
        next_node = np.empty(total, np.int64)
        outcome = np.empty(total if self._coded else 0, self._outcome.dtype)
        status, position = kernels.gather_edges(
            self._next_node,
            self._outcome,
            self._coded,
            self.size.num_nodes,
            self.size.num_outcomes,
            starts,
            sums,
            next_node,
            outcome,
        )
        if status != kernels.OK:
            raise_status(status, position, int(rows[position]), self.size)
        numbers = None
        if edges:
            numbers = np.empty(total, np.int64)
            kernels.number_edges(starts, sums, numbers)
        return Edges(sums, next_node, outcome if self._coded else None, numbers)

    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw one edge for each row, scanning it once; see :class:`RowEncoding`."""
        rows = as_input(rows, np.int64)
        drawn, status, position = sample_arrays(
            self.size,
            self._offsets,
            self._uniform,
            self._next_node,
            self._outcome if self._coded else None,
            rows,
            uniforms,
            probabilities.mode,
            probabilities.values,
        )
        if status != kernels.OK:
            raise_status(status, position, int(rows[position]), self.size)
        return drawn

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Go through rows in order; chunks are views of the mapping; see :class:`RowEncoding`."""
        check_sweep(self.size, start_row, stop_row, chunk_rows)
        for first in range(start_row, stop_row, chunk_rows):
            last = min(first + chunk_rows, stop_row)
            bounds = self._slice_bounds(first, last)
            begin, end = int(bounds[0]), int(bounds[-1])
            if not 0 <= begin <= end <= self.size.num_edges or (np.diff(bounds) < 0).any():
                falls = int(np.argmax(np.diff(bounds) < 0)) if end <= self.size.num_edges else 0
                raise_status(kernels.BAD_OFFSETS, falls, first + falls, self.size)
            next_node = self._next_node[begin:end]
            outcome = self._outcome[begin:end] if self._coded else None
            yield RowChunk(first, begin, bounds - begin, next_node, outcome)
            drop_pages(next_node)
            if outcome is not None:
                drop_pages(outcome)

    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes of offsets, next nodes and codes."""
        return {
            "offsets": self._offsets.nbytes,
            "next_node": self._next_node.nbytes,
            "outcome": self._outcome.nbytes,
        }

    def _slice_bounds(self, first: int, last: int) -> NDArray[np.int64]:
        if self._uniform >= 0:
            return np.arange(first, last + 1, dtype=np.int64) * self._uniform
        part = self._offsets[first : last + 1]
        bounds = part.astype(np.int64)
        drop_pages(part)
        return bounds

    def _bounds(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        starts = np.empty(len(rows), np.int64)
        sums = np.empty(len(rows) + 1, np.int64)
        status, position = kernels.row_bounds(
            self._offsets, self._uniform, self.size.num_rows, self.size.num_edges, rows, starts, sums
        )
        if status != kernels.OK:
            raise_status(status, position, int(rows[position]), self.size)
        return starts, sums


def sample_arrays(
    size: GraphSize,
    offsets: NDArray[np.uint64],
    uniform: int,
    next_node: NDArray[Any],
    outcome: NDArray[Any] | None,
    rows: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    mode: int,
    table: NDArray[np.float64],
) -> tuple[DrawnEdges, int, int]:
    """Draw one edge for each row of arrays in csr form, which may hold a part of the graph only.

    Returns the edges, numbered as in the arrays, and the kernel's status and position.
    """
    count = len(rows)
    drawn = DrawnEdges.empty(count)
    status, position = kernels.sample_rows(
        offsets,
        uniform,
        size.num_rows if uniform >= 0 else len(offsets) - 1,
        len(next_node),
        next_node,
        no_codes() if outcome is None else outcome,
        outcome is not None,
        size.num_nodes,
        size.num_outcomes,
        rows,
        as_input(uniforms, np.float64),
        mode,
        as_input(table, np.float64),
        drawn.next_node,
        drawn.outcome,
        drawn.edge,
        drawn.probability,
    )
    return drawn, status, position
