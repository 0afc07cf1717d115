"""The factored encoding: one kernel for each component of the state instead of edges, and the exceptions.

A few kilobytes answer for hundreds of billions of edges. What a row says is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.format.hot import map_hot
from omstore.rows import factored_compare, factored_decode, factored_draws, kernels
from omstore.rows.csr import sample_arrays
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
)
from omstore.rows.factored_arrays import FactoredArrays
from omstore.rows.factored_check import check_combination, check_structure
from omstore.rows.factored_files import block_dtype, read_components
from omstore.rows.factored_lanes import LANES
from omstore.rows.factored_tables import Component, Factoring
from omstore.rows.patterns import PatternTable

__all__ = ["Component", "FactoredRows", "Factoring"]

_SAMPLE_EDGES = 1 << 20  # gathered at a time to sample from where rows have to be sorted
_MOST_ULPS = 4  # that a probability may be from the product of the components'


class FactoredRows(FactoredArrays, RowEncoding):
    """Rows made from components that move independently, and rows that don't factor, as patterns.

    See :class:`~omstore.rows.factored_arrays.FactoredArrays` for parameters, attributes and memory.
    """

    name = "factored"

    @classmethod
    def open(cls, folder: Path, description: Mapping[str, Any], size: GraphSize) -> FactoredRows:
        """Map the arrays of a version's folder and read its tables, each checked against the counts first.

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
        components, combination = read_components(rows, description)
        factoring = Factoring(components, combination)
        node_at = block = exceptions = chances = None
        if description.get("product"):
            numbers = next_node_dtype(factoring.num_products)
            product = map_hot(rows / "product", dtype=numbers, item_shape=(), rows=size.num_nodes)
            nodes = next_node_dtype(size.num_nodes + 1)
            node_at = map_hot(rows / "node_at", dtype=nodes, item_shape=(), rows=factoring.num_products)
            factoring = replace(factoring, product=product)
        if description.get("exceptions"):
            apart = rows / "exceptions"
            num_outcomes = size.num_outcomes
            if combination is None:
                chances = map_hot(apart / "probability", dtype=np.float64, item_shape=())
                num_outcomes = len(chances)
            exceptions = PatternTable.open(
                apart, num_outcomes, num_nodes=size.num_nodes, num_joint_actions=size.num_joint_actions
            )
            block = map_hot(
                apart / "block", dtype=block_dtype(exceptions.num_blocks), item_shape=(), rows=size.num_nodes
            )
        return cls(
            size,
            factoring,
            map_hot(rows / "first_edge", dtype=np.uint64, item_shape=(), rows=size.num_nodes + 1),
            node_at=node_at,
            ordered=bool(description.get("sorted", True)),
            block=block,
            exceptions=exceptions,
            exception_probability=chances,
        )

    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of successors of each row; see :class:`RowEncoding`."""
        return np.diff(self._lengths(as_input(rows, np.int64), 0, len(rows))[0])

    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Edges:
        """Return the edges of rows in any order; see :class:`RowEncoding`."""
        rows = as_input(rows, np.int64)
        sums, exceptional, patterns = self._lengths(rows, 0, len(rows))
        total = int(sums[-1])
        next_node = np.empty(total + LANES, np.int64)
        codes = np.empty(total + LANES if self._coded else 0, outcome_dtype(self.size.num_outcomes))
        chances = np.empty(total if self._products else 0, np.float64)
        self._decode(rows, 0, sums, exceptional, patterns, next_node, codes, chances)
        numbers = None
        if edges:
            numbers = np.empty(total, np.int64)
            kernels.number_edges(self._starts(rows), sums, numbers)
        attributes = {"probability": chances} if self._products else {}
        outcome = codes[:total] if self._coded else None
        return Edges(sums, next_node[:total], outcome, numbers, attributes)

    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw one edge for each row, one component after the other; see :class:`RowEncoding`.

        The probabilities given must be those of the components; they say what is returned. Equal to the draw
        of csr but where a uniform number lies within rounding of a boundary. Where rows aren't in the order
        of product numbers they are made and scanned.
        """
        rows, uniforms = as_input(rows, np.int64), as_input(uniforms, np.float64)
        if not self.ordered:
            return self._sample_made(rows, uniforms, probabilities)
        count = len(rows)
        drawn = DrawnEdges.empty(count)
        mode, table = probabilities.mode, probabilities.values
        read_later = mode == kernels.BY_EDGE and not isinstance(table, np.ndarray)
        if mode == kernels.BY_ROWS or read_later:
            mode, table = kernels.BY_ROWS, np.empty(0)
        elif mode == kernels.BY_OUTCOME and len(table) < self.size.num_outcomes:
            raise UsageError(f"{len(table)} probabilities were given for {self.size.num_outcomes} outcomes")
        capacity = count if len(self._block) else 0
        exceptional, patterns = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        status, position, listed = factored_draws.sample_rows(
            self._tables,
            self._codes,
            self.factoring.num_products,
            self._product,
            self._node_at,
            self._block,
            self._block_pattern,
            self._pattern_offsets,
            self._block_starts,
            self._first_edge,
            self.size.num_nodes,
            self.size.num_joint_actions,
            self.size.num_outcomes,
            rows,
            uniforms,
            mode,
            as_input(table, np.float64),
            drawn.next_node,
            drawn.outcome,
            drawn.edge,
            drawn.probability,
            exceptional,
            patterns,
        )
        if status != kernels.OK:
            self._raise(status, position, int(rows[position]))
        if listed:
            self._sample_exceptions(
                rows, uniforms, probabilities, drawn, exceptional[:listed], patterns[:listed]
            )
        if read_later:
            drawn.probability[:] = np.asarray(table if table.size else probabilities.values.take(drawn.edge))
        return replace(drawn, attributes={"probability": drawn.probability}) if self._products else drawn

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Go through rows in order; chunks are views of a buffer; see :class:`RowEncoding`."""
        check_sweep(self.size, start_row, stop_row, chunk_rows)
        if start_row == stop_row:
            return
        first_edge = int(self._starts(as_input(np.array([start_row]), np.int64))[0])
        nodes = np.empty(0, next_node_dtype(self.size.num_nodes))
        codes = np.empty(0, outcome_dtype(self.size.num_outcomes))
        chances = np.empty(0, np.float64)
        no_rows = as_input(np.empty(0), np.int64)
        for first in range(start_row, stop_row, chunk_rows):
            last = min(first + chunk_rows, stop_row)
            sums, exceptional, patterns = self._lengths(no_rows, first, last - first)
            total = int(sums[-1])
            if total + LANES > len(nodes):
                room = total + (total >> 3) + LANES
                nodes = np.empty(room, nodes.dtype)
                codes = np.empty(room if self._coded else 0, codes.dtype)
                chances = np.empty(room if self._products else 0, np.float64)
            self._decode(no_rows, first, sums, exceptional, patterns, nodes, codes, chances)
            attributes = {"probability": chances[:total]} if self._products else {}
            outcome = codes[:total] if self._coded else None
            yield RowChunk(first, first_edge, sums, nodes[:total], outcome, attributes)
            first_edge += total
            self._drop(first, last)

    def matches(self, chunk: RowChunk) -> int:
        """Return the position of the first row that is held otherwise, or -1; see :class:`RowEncoding`.

        Rows that factor are compared as they are made, one at a time.
        """
        count = len(chunk.offsets) - 1
        if not count:
            return -1
        if (chunk.outcome is not None) != self._coded:
            raise UsageError("one has outcome codes, the other hasn't")
        if self._starts(as_input(np.array([chunk.first_row]), np.int64))[0] != chunk.first_edge:
            return 0
        no_rows = as_input(np.empty(0), np.int64)
        if self.ordered:
            differ, exceptional, patterns = self._compare(chunk, no_rows, self._block)
        else:
            differ, *_ = self._compare(chunk, no_rows, no_codes())
            _, exceptional, patterns = self._lengths(no_rows, chunk.first_row, count)
            differ = np.setdiff1d(differ, exceptional, assume_unique=True)
        wrong = self._compare_exceptions(chunk, exceptional, patterns)
        first = int(differ[0]) if len(differ) else -1
        return max(first, wrong) if first < 0 or wrong < 0 else min(first, wrong)

    def find_different(
        self,
        chunk: RowChunk,
        rows: NDArray[np.int64] | None = None,
        *,
        probabilities: NDArray[np.float64] | None = None,
    ) -> NDArray[np.int64]:
        """Find the rows that the components don't make as they are, exceptions or not.

        Parameters
        ----------
        chunk : RowChunk
            Attributes aren't compared.
        rows : (n,) int64, optional
            The chunk's rows, where they aren't consecutive.
        probabilities : (E',) float64, optional
            Of the chunk's edges: those that aren't the product of the components' to 4 ulp differ too.

        Returns
        -------
        (d,) int64
            Positions in the chunk, ascending.
        """
        rows = as_input(np.empty(0) if rows is None else rows, np.int64)
        differ, *_ = self._compare(chunk, rows, no_codes())
        if probabilities is None or len(differ) == len(chunk.offsets) - 1:
            return differ
        return self._find_unlikely(chunk, rows, as_input(differ, np.int64), probabilities)

    def _compare(
        self, chunk: RowChunk, rows: NDArray[np.int64], block: NDArray[Any]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Positions of the rows that the components make otherwise; and of those that have a pattern in a
        `block`, which aren't compared, and their patterns."""
        count = len(chunk.offsets) - 1
        # In dtypes that hold all of ours, and the code of what never occurs: cut off, a number might seem equal.
        nodes, codes = chunk.next_node, no_codes() if chunk.outcome is None else chunk.outcome
        wide = next_node_dtype(self.size.num_nodes), self._codes.dtype
        nodes = nodes if nodes.dtype.itemsize >= wide[0].itemsize else nodes.astype(wide[0])
        codes = codes if codes.dtype.itemsize >= wide[1].itemsize else codes.astype(wide[1])
        sums, nodes, codes = (
            as_input(chunk.offsets, np.int64),
            as_input(nodes, nodes.dtype),
            as_input(codes, codes.dtype),
        )
        parts = (
            self._tables,
            self._codes,
            self._coded,
            self.factoring.num_products,
            self._product,
            self._node_at,
        )
        chosen = self.size.num_joint_actions, chunk.first_row, rows
        differ, exceptional, patterns = np.empty((3, count), np.int64)
        if not self.ordered:
            longest = int(np.diff(sums).max(initial=0))
            listed = factored_compare.compare_rows(*parts, *chosen, sums, nodes, codes, longest, differ)
            return differ[:listed], exceptional[:0], patterns[:0]
        status, position, listed, apart = factored_compare.compare_ordered(
            *parts, *chosen, block, self._block_pattern, sums, nodes, codes, differ, exceptional, patterns
        )
        if status != kernels.OK:
            self._raise(status, position, int(rows[position]) if len(rows) else chunk.first_row + position)
        return differ[:listed], exceptional[:apart], patterns[:apart]

    def _find_unlikely(
        self,
        chunk: RowChunk,
        rows: NDArray[np.int64],
        differ: NDArray[np.int64],
        probabilities: NDArray[np.float64],
    ) -> NDArray[np.int64]:
        """Add to the rows that differ those of other probabilities."""
        sums = as_input(chunk.offsets, np.int64)
        own = np.array(probabilities)  # of rows that differ already they stay as they are
        status, position = factored_decode.decode_probabilities(
            self._tables,
            self.factoring.num_products,
            self._product,
            self.size.num_joint_actions,
            chunk.first_row,
            rows,
            differ,
            sums,
            own,
        )
        if status != kernels.OK:
            self._raise(status, position, int(rows[position]) if len(rows) else chunk.first_row + position)
        if not self.ordered:
            nodes = np.empty(len(own) + LANES, next_node_dtype(self.size.num_nodes))
            codes = np.empty(0, outcome_dtype(self.size.num_outcomes))
            self._decode_made(rows, chunk.first_row, sums, differ, nodes, codes)
            factored_decode.sort_rows(sums, nodes, codes, False, own, True)
        apart = np.flatnonzero(~(np.abs(own - probabilities) <= _MOST_ULPS * np.spacing(np.abs(own))))
        return np.union1d(differ, np.searchsorted(sums, apart, side="right") - 1)

    def check_probabilities(self, probabilities: Probabilities) -> None:
        """Check that the products of the components' probabilities are those of their codes, within 1e-9.

        Raises
        ------
        CorruptStoreError
            Naming the first combination of classes that isn't.
        """
        if self.combination is not None and probabilities.level in ("graph", "outcome"):
            check_combination(self.factoring, np.asarray(probabilities.values, np.float64))

    def verify(self, chunk_rows: int = 1 << 16) -> None:
        """Check everything that is stored, in seconds: edges aren't made for it.

        Kernels were checked when they were read. Exceptions are sorted and their next nodes exist; product
        numbers and nodes are each other's inverse; first edges agree with the outdegrees.

        Raises
        ------
        CorruptStoreError
            Naming what is wrong.
        """
        check_structure(self)

    def _sample_exceptions(
        self,
        rows: NDArray[np.int64],
        uniforms: NDArray[np.float64],
        probabilities: Probabilities,
        drawn: DrawnEdges,
        exceptional: NDArray[np.int64],
        patterns: NDArray[np.int64],
    ) -> None:
        """Draw for the rows that were listed, whose first edges are in `drawn` already."""
        assert self.exceptions is not None  # rows with a pattern were found
        if probabilities.mode == kernels.BY_ROWS:
            table = self._exception_table()
            probabilities = Probabilities("graph" if len(table) == 1 else "outcome", table)
        part, status, position = self.exceptions.sample(
            rows[exceptional] // self.size.num_joint_actions,
            patterns,
            drawn.edge[exceptional],
            uniforms[exceptional],
            probabilities,
        )
        if status != kernels.OK:
            at = int(exceptional[position])
            self._raise(status, at, int(rows[at]))
        drawn.next_node[exceptional] = part.next_node
        drawn.outcome[exceptional] = 0 if self._products else part.outcome
        drawn.edge[exceptional] = part.edge
        drawn.probability[exceptional] = part.probability

    def _sample_made(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw from rows that are made and sorted first, a million edges at a time."""
        count = len(rows)
        drawn = DrawnEdges.empty(count)
        ends = np.cumsum(self.outdegree(rows))
        starts = self._starts(rows)
        first = 0
        while first < count:
            done = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, done + _SAMPLE_EDGES, side="right")))
            piece = slice(first, last)
            edges = self.gather(rows[piece])
            mode, table = probabilities.mode, probabilities.values
            if mode == kernels.BY_ROWS:
                mode, table = kernels.BY_EDGE, edges.attributes["probability"]
            elif mode == kernels.BY_EDGE:
                numbers = np.empty(len(edges.next_node), np.int64)
                kernels.number_edges(as_input(starts[piece], np.int64), edges.offsets, numbers)
                table = probabilities.values.take(numbers)
            part, status, position = sample_arrays(
                self.size,
                as_input(edges.offsets.astype(np.uint64), np.uint64),
                -1,
                as_input(edges.next_node, next_node_dtype(self.size.num_nodes)),
                None if edges.outcome is None else as_input(edges.outcome, edges.outcome.dtype),
                as_input(np.arange(last - first), np.int64),
                uniforms[piece],
                mode,
                table,
            )
            if status != kernels.OK:
                self._raise(status, first + position, int(rows[first + position]))
            drawn.next_node[piece] = part.next_node
            drawn.outcome[piece] = part.outcome
            drawn.edge[piece] = part.edge - edges.offsets[:-1] + starts[piece]
            drawn.probability[piece] = part.probability
            first = last
        return replace(drawn, attributes={"probability": drawn.probability}) if self._products else drawn

    def _compare_exceptions(
        self, chunk: RowChunk, exceptional: NDArray[np.int64], patterns: NDArray[np.int64]
    ) -> int:
        """Position of the first exceptional row of a chunk that is held otherwise, or -1."""
        if not len(exceptional):
            return -1
        part = self._gather_exceptions(exceptional + chunk.first_row, exceptional, patterns)
        begins, counts = (
            chunk.offsets[exceptional],
            chunk.offsets[exceptional + 1] - chunk.offsets[exceptional],
        )
        longer = np.flatnonzero(counts != np.diff(part.offsets))
        same = int(longer[0]) if len(longer) else len(exceptional)  # rows of equal lengths before
        total = int(part.offsets[same])
        edges = np.repeat(begins[:same] - part.offsets[:same], counts[:same]) + np.arange(total)
        wrong = chunk.next_node[edges] != part.next_node[:total]
        if self._coded and chunk.outcome is not None and part.outcome is not None:
            wrong |= chunk.outcome[edges] != part.outcome[:total]
        if wrong.any():
            return int(exceptional[np.searchsorted(part.offsets, int(np.argmax(wrong)), side="right") - 1])
        return int(exceptional[same]) if same < len(exceptional) else -1
