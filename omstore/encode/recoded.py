"""Rows with other outcome codes: what a source's rows are once attributes have been hoisted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError, UsageError
from omstore.rows import DrawnEdges, Edges, GraphSize, Probabilities, RowChunk, RowEncoding
from omstore.rows.encoding import outcome_dtype

__all__ = ["RecodedRows"]


class RecodedRows(RowEncoding):
    """The rows of a source, each outcome code mapped to another; the edges and their order stay.

    Parameters
    ----------
    source : RowEncoding
    code_map : (K,) int64
        Old code -> new code.
    num_outcomes : int
        Of the new codes; with 1, there are no codes.
    """

    name = "recoded"

    def __init__(self, source: RowEncoding, code_map: NDArray[np.int64], num_outcomes: int) -> None:
        size = source.size
        if len(code_map) != size.num_outcomes:
            raise UsageError(f"a map of {len(code_map):,} codes was given for {size.num_outcomes:,} outcomes")
        self.source = source
        self.size = GraphSize(size.num_nodes, size.num_joint_actions, size.num_edges, num_outcomes)
        self.code_map = np.asarray(code_map, outcome_dtype(num_outcomes))

    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of successors of each row; see :class:`RowEncoding`."""
        return self.source.outdegree(rows)

    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Edges:
        """Return the edges of rows; see :class:`RowEncoding`. Memory: the new codes on top."""
        found = self.source.gather(rows, edges=edges)
        return replace(found, outcome=self._mapped(found.outcome, len(found.next_node)))

    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw one edge for each row; `probabilities` are by new code; see :class:`RowEncoding`."""
        if probabilities.level == "outcome":
            values = np.asarray(probabilities.values)
            probabilities = Probabilities("outcome", values[self.code_map.astype(np.int64)])
        drawn = self.source.sample(rows, uniforms, probabilities)
        codes = self._mapped(drawn.outcome, len(drawn.outcome))
        none = np.zeros(len(drawn.outcome), np.int64)
        return replace(drawn, outcome=none if codes is None else codes.astype(np.int64))

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Go through rows in order; see :class:`RowEncoding`. Memory: the new codes of a chunk on top."""
        for chunk in self.source.sweep(start_row, stop_row, chunk_rows):
            yield replace(chunk, outcome=self._mapped(chunk.outcome, len(chunk.next_node)))

    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes on disk of the source."""
        return self.source.nbytes()

    def _mapped(self, codes: NDArray[Any] | None, count: int) -> NDArray[Any] | None:
        if self.size.num_outcomes == 1:
            return None
        if codes is None:
            return np.full(count, self.code_map[0])
        if len(codes) and codes.max() >= len(self.code_map):
            raise CorruptStoreError(
                f"rows: an outcome code isn't within 0 to {len(self.code_map) - 1:,}",
                "Convert or build the store again.",
            )
        mapped: NDArray[Any] = self.code_map[codes]
        return mapped
