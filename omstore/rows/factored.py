"""The factored encoding: one kernel for each component of the state instead of edges, and the exceptions.

A few kilobytes answer for hundreds of billions of edges. What a row says is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, UsageError
from omstore.format.hot import drop_pages, map_hot
from omstore.rows import factored_decode, factored_kernels, kernels
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
    raise_status,
)
from omstore.rows.factored_check import check_structure
from omstore.rows.factored_decode import LANES
from omstore.rows.factored_files import block_dtype, read_components
from omstore.rows.factored_tables import (
    Component,
    Factoring,
    build_tables,
    code_table,
    find_bad_kernel,
    find_problem,
)
from omstore.rows.patterns import PatternTable

__all__ = ["Component", "FactoredRows", "Factoring"]

_HINT = "Convert or build the store again."
_BLOCK_STARTS = 1 << 20  # rows of blocks whose first edges are kept: 8 MiB
_SAMPLE_EDGES = 1 << 20  # gathered at a time to sample from where rows have to be sorted
_MOST_ULPS = 4  # that a probability may be from the product of the components'
_DROPPED = 16 << 20  # bytes from which on a mapped array is worth giving back behind a sweep
_VERIFIED = 1 << 20  # nodes, or product numbers, checked at a time


class FactoredRows(RowEncoding):
    """Rows made from components that move independently, and rows that don't factor, as patterns.

    Memory: the tables (see :func:`~omstore.rows.factored_tables.build_tables`), usually kilobytes, and at most
    8 MiB for exceptions. Everything that grows with the nodes is mapped. Several threads may use it at once.

    Parameters
    ----------
    size : GraphSize
    factoring : Factoring
        Its `product` may be mapped, of any unsigned dtype.
    first_edge : (N + 1,) uint64
        Number of each node's first edge.
    node_at : (products,) uint32 or uint64, optional
        The node with a product number, N where there is none; needed with `factoring.product`.
    ordered : bool
        Whether product numbers ascend with nodes; otherwise every row is sorted after it was made.
    block : (N,) uint8 or uint32, optional
        0 where all of a node's rows factor, else its block of patterns + 1.
    exceptions : PatternTable, optional
        Needed with `block`; positions are nodes.
    exception_probability : (codes,) float64, optional
        In product mode: what the exceptions' codes stand for.

    Attributes
    ----------
    factoring : Factoring
    exceptions : PatternTable or None
    exception_probability : array or None

    Raises
    ------
    CorruptStoreError
        If these don't make a graph of this size.
    """

    name = "factored"

    def __init__(
        self,
        size: GraphSize,
        factoring: Factoring,
        first_edge: NDArray[Any],
        *,
        node_at: NDArray[Any] | None = None,
        ordered: bool = True,
        block: NDArray[Any] | None = None,
        exceptions: PatternTable | None = None,
        exception_probability: NDArray[np.float64] | None = None,
    ) -> None:
        problem = find_problem(factoring, size) or find_bad_kernel(factoring)
        if problem is None and (factoring.product is None) != (node_at is None):
            problem = "product numbers are stored one way only"
        if problem is None and node_at is not None and len(node_at) != factoring.num_products:
            problem = f"there are {len(node_at):,} instead of {factoring.num_products:,} product numbers"
        if problem is None and len(first_edge) != size.num_nodes + 1:
            problem = f"there are {len(first_edge):,} first edges of {size.num_nodes:,} nodes"
        if problem is None and block is not None and len(block) != size.num_nodes:
            problem = f"there are blocks of {len(block):,} instead of {size.num_nodes:,} nodes"
        if problem is None and (block is None) != (exceptions is None):
            problem = "exceptions and blocks don't come together"
        if problem:
            raise CorruptStoreError(f"rows: {problem}", _HINT)
        self.size = size
        self.factoring = factoring
        self.ordered = ordered
        self.exceptions = exceptions
        self.exception_probability = exception_probability
        self._coded = size.num_outcomes > 1
        self._products = factoring.combination is None
        self._tables = build_tables(factoring, size.num_joint_actions)
        self._codes = code_table(factoring.combination, size.num_outcomes)
        nodes = next_node_dtype(size.num_nodes + 1)
        product, numbers = factoring.product, next_node_dtype(factoring.num_products)
        self._product = as_input(np.empty(0, np.uint32) if product is None else product, numbers)
        self._node_at = as_input(np.empty(0, np.uint32) if node_at is None else node_at, nodes)
        self._first_edge = as_input(first_edge, np.uint64)
        self._block = no_codes() if block is None else as_input(block, block.dtype)
        if exceptions is None:
            self._block_pattern = as_input(np.empty((0, size.num_joint_actions)), np.uint32)
            self._pattern_offsets = as_input(np.zeros(1), np.uint64)
        else:
            self._block_pattern = exceptions.block_pattern
            self._pattern_offsets = exceptions.pattern_offsets
        kept = min(len(self._block_pattern), _BLOCK_STARTS // size.num_joint_actions)
        starts = np.empty((kept, size.num_joint_actions), np.int64)
        factored_kernels.block_starts(self._block_pattern[:kept], self._pattern_offsets, starts)
        self._block_starts = as_input(starts, np.int64)

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

    @property
    def components(self) -> Sequence[Component]:
        """The components, most significant first."""
        return self.factoring.components

    @property
    def combination(self) -> NDArray[np.int64] | None:
        """Outcome codes of combinations of classes, -1: never; None in product mode."""
        return self.factoring.combination

    def product_numbers(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the mixed-radix numbers of nodes' local states, (B,) -> (B,) int64; nodes exist."""
        return self._product[nodes].astype(np.int64) if self._product.size else nodes.astype(np.int64)

    def exceptional_nodes(self) -> NDArray[np.int64]:
        """Return the nodes with rows that don't factor, ascending; memory: 8 bytes each."""
        parts = [np.empty(0, np.int64)]
        for first in range(0, len(self._block), _VERIFIED):
            parts.append(np.flatnonzero(self._block[first : first + _VERIFIED]) + first)
        return np.concatenate(parts)

    @property
    def node_at(self) -> NDArray[Any] | None:
        """The node with each product number, N where there is none; None where they are equal."""
        return None if self.factoring.product is None else self._node_at

    @property
    def block(self) -> NDArray[Any]:
        """(N,) 0 where all rows of a node factor, else its block of patterns + 1; empty without exceptions."""
        return self._block

    @property
    def first_edge(self) -> NDArray[np.uint64]:
        """(N + 1,) number of each node's first edge."""
        return self._first_edge

    def node_edges(self, first: int, stop: int) -> NDArray[np.int64]:
        """Count the edges of nodes first..stop-1, from the kernels: (stop - first,) int64."""
        counts = np.empty(stop - first, np.int64)
        status, position = factored_kernels.node_edges(
            self._tables,
            self.factoring.num_products,
            self._product,
            self._block,
            self._block_pattern,
            self._pattern_offsets,
            first,
            counts,
        )
        if status != kernels.OK:
            self._raise(status, position, (first + position) * self.size.num_joint_actions)
        return counts

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
        drawn = DrawnEdges(
            np.empty(count, np.int64),
            np.empty(count, np.int64),
            np.empty(count, np.int64),
            np.empty(count, np.float64),
        )
        mode, table = probabilities.mode, probabilities.values
        read_later = mode == kernels.BY_EDGE and not isinstance(table, np.ndarray)
        if mode == kernels.BY_ROWS or read_later:
            mode, table = kernels.BY_ROWS, np.empty(0)
        elif mode == kernels.BY_OUTCOME and len(table) < self.size.num_outcomes:
            raise UsageError(f"{len(table)} probabilities were given for {self.size.num_outcomes} outcomes")
        capacity = count if len(self._block) else 0
        exceptional, patterns = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        status, position, listed = factored_kernels.sample_rows(
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
        differ = self.find_different(chunk)
        if len(self._block):
            no_rows = as_input(np.empty(0), np.int64)
            _, exceptional, patterns = self._lengths(no_rows, chunk.first_row, count)
            differ = np.setdiff1d(differ, exceptional, assume_unique=True)
            wrong = self._compare_exceptions(chunk, exceptional, patterns)
            differ = np.concatenate((differ, [wrong])) if wrong >= 0 else differ
        return int(differ.min()) if len(differ) else -1

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
        differ = np.empty(len(chunk.offsets) - 1, np.int64)
        # In a dtype that holds all of ours: cut off, a number might seem equal.
        nodes, codes = chunk.next_node, no_codes() if chunk.outcome is None else chunk.outcome
        wide = next_node_dtype(self.size.num_nodes), outcome_dtype(self.size.num_outcomes)
        nodes = nodes if nodes.dtype.itemsize >= wide[0].itemsize else nodes.astype(wide[0])
        codes = codes if codes.dtype.itemsize >= wide[1].itemsize else codes.astype(wide[1])
        sums = as_input(chunk.offsets, np.int64)
        rows = as_input(np.empty(0) if rows is None else rows, np.int64)
        count = factored_decode.compare_rows(
            self._tables,
            self._codes,
            self._coded,
            self.factoring.num_products,
            self._product,
            self._node_at,
            self.size.num_joint_actions,
            chunk.first_row,
            rows,
            self.ordered,
            sums,
            as_input(nodes, nodes.dtype),
            as_input(codes, codes.dtype),
            int(np.diff(sums).max(initial=0)),
            differ,
        )
        if probabilities is None or count == len(differ):
            return differ[:count]
        return self._find_unlikely(chunk, rows, as_input(differ[:count], np.int64), probabilities)

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

    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes of the tables and of what is mapped."""
        entries = len(self._tables.probability)
        classes = self.factoring.combination
        parts = {
            "kernel_offsets": 8 * len(self._tables.offsets),
            "kernel_next": 4 * entries,
            "kernel_class": 0 if classes is None else 4 * entries,
            "kernel_probability": 8 * entries,
            "combination": 0 if classes is None else 4 * len(classes),
            "product": self._product.nbytes,
            "node_at": self._node_at.nbytes,
            "first_edge": self._first_edge.nbytes,
        }
        if self.exceptions is not None:
            parts["exceptions/block"] = self._block.nbytes
            parts |= {f"exceptions/{name}": size for name, size in self.exceptions.nbytes().items()}
        if self.exception_probability is not None:
            parts["exceptions/probability"] = self.exception_probability.nbytes
        return parts

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

    def _lengths(
        self, rows: NDArray[np.int64], first_row: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Running sums of outdegrees of rows; positions of exceptional rows, and their patterns."""
        sums = np.empty(count + 1, np.int64)
        capacity = count if len(self._block) else 0
        exceptional, patterns = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        if count:
            status, position, listed = factored_kernels.row_lengths(
                self._tables,
                self.factoring.num_products,
                self._product,
                self._block,
                self._block_pattern,
                self._pattern_offsets,
                self.size.num_nodes,
                self.size.num_joint_actions,
                first_row,
                rows,
                sums,
                exceptional,
                patterns,
            )
            if status != kernels.OK:
                self._raise(status, position, int(rows[position]) if len(rows) else first_row + position)
            return sums, as_input(exceptional[:listed], np.int64), as_input(patterns[:listed], np.int64)
        sums[0] = 0
        return sums, exceptional, patterns

    def _starts(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of the first edges of rows that exist."""
        starts = np.empty(len(rows), np.int64)
        status, position = factored_kernels.row_starts(
            self._tables,
            self.factoring.num_products,
            self._product,
            self._block,
            self._block_pattern,
            self._pattern_offsets,
            self._block_starts,
            self._first_edge,
            self.size.num_joint_actions,
            rows,
            starts,
        )
        if status != kernels.OK:
            self._raise(status, position, int(rows[position]))
        return starts

    def _decode(
        self,
        rows: NDArray[np.int64],
        first_row: int,
        sums: NDArray[np.int64],
        exceptional: NDArray[np.int64],
        patterns: NDArray[np.int64],
        next_node: NDArray[Any],
        codes: NDArray[Any],
        chances: NDArray[np.float64],
    ) -> None:
        """Make the edges of rows whose lengths are known, into arrays that are long enough."""
        size = self.size
        sums = as_input(sums, np.int64)
        exceptional = as_input(exceptional, np.int64)
        self._decode_made(rows, first_row, sums, exceptional, next_node, codes)
        if self._products:
            status, position = factored_decode.decode_probabilities(
                self._tables,
                self.factoring.num_products,
                self._product,
                size.num_joint_actions,
                first_row,
                rows,
                exceptional,
                sums,
                chances,
            )
            if status != kernels.OK:
                self._raise(status, position, int(rows[position]) if len(rows) else first_row + position)
        if not self.ordered:  # before exceptions, which are sorted, are in their places
            factored_decode.sort_rows(sums, next_node, codes, self._coded, chances, self._products)
        if len(exceptional):
            part = self._gather_exceptions(
                rows[exceptional] if len(rows) else exceptional + first_row, exceptional, patterns
            )
            factored_decode.place_edges(exceptional, part.offsets, part.next_node, sums, next_node)
            if self._coded:
                factored_decode.place_edges(exceptional, part.offsets, part.outcome, sums, codes)
            if self._products:
                chance = self._exception_chances(part.outcome, len(part.next_node))
                factored_decode.place_edges(exceptional, part.offsets, chance, sums, chances)

    def _decode_made(
        self,
        rows: NDArray[np.int64],
        first_row: int,
        sums: NDArray[np.int64],
        exceptional: NDArray[np.int64],
        next_node: NDArray[Any],
        codes: NDArray[Any],
    ) -> None:
        """Make next nodes and codes of the rows that factor, in the order of product numbers."""
        status, position = factored_decode.decode_rows(
            self._tables,
            self._codes,
            len(codes) > 0,
            self.factoring.num_products,
            self._product,
            self._node_at,
            self.size.num_nodes,
            self.size.num_joint_actions,
            self.size.num_outcomes,
            first_row,
            rows,
            exceptional,
            sums,
            next_node,
            codes,
        )
        if status != kernels.OK:
            self._raise(status, position, int(rows[position]) if len(rows) else first_row + position)

    def _gather_exceptions(
        self, rows: NDArray[np.int64], positions: NDArray[np.int64], patterns: NDArray[np.int64]
    ) -> Edges:
        assert self.exceptions is not None  # rows with a pattern were found
        part, status, position = self.exceptions.gather(rows // self.size.num_joint_actions, patterns)
        if status != kernels.OK:
            self._raise(status, int(positions[position]), int(rows[position]))
        return part

    def _exception_chances(self, codes: NDArray[Any] | None, count: int) -> NDArray[np.float64]:
        table = self._exception_table()
        return np.full(count, float(table[0])) if codes is None else table[codes]

    def _exception_table(self) -> NDArray[np.float64]:
        table = self.exception_probability
        if table is None or not len(table):
            raise CorruptStoreError("rows/exceptions/probability: exceptions have no probabilities", _HINT)
        return table

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
        drawn = DrawnEdges(
            np.empty(count, np.int64),
            np.empty(count, np.int64),
            np.empty(count, np.int64),
            np.empty(count, np.float64),
        )
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

    def _drop(self, first_row: int, stop_row: int) -> None:
        """Give back the mapped pages behind a sweep."""
        first, stop = first_row // self.size.num_joint_actions, stop_row // self.size.num_joint_actions
        for array in (self._product, self._block):
            if array.nbytes >= _DROPPED:
                drop_pages(array[first:stop])

    def _raise(self, status: int, position: int, row: int) -> None:
        if status in (factored_kernels.BAD_PRODUCT, factored_kernels.CHANGED):
            node = row // self.size.num_joint_actions
            reason = {
                factored_kernels.BAD_PRODUCT: f"rows/product isn't within 0 to {self.factoring.num_products - 1:,}",
                factored_kernels.CHANGED: "it changed while it was read",
            }[status]
            raise CorruptStoreError(f"rows: node {node} is damaged: {reason}", _HINT)
        raise_status(status, position, row, self.size)
