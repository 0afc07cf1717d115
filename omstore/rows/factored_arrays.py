"""What a factored graph holds, and how rows are made of it; what is asked of an encoding is in `factored`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.format.hot import drop_pages
from omstore.rows import factored_decode, factored_kernels, kernels
from omstore.rows.encoding import (
    Edges,
    GraphSize,
    next_node_dtype,
    no_codes,
    raise_status,
)
from omstore.rows.factored_tables import (
    Component,
    Factoring,
    build_tables,
    code_table,
    find_bad_kernel,
    find_problem,
)
from omstore.rows.patterns import PatternTable

__all__ = ["FactoredArrays"]

_HINT = "Convert or build the store again."
_BLOCK_STARTS = 1 << 20  # rows of blocks whose first edges are kept: 8 MiB
_DROPPED = 16 << 20  # bytes from which on a mapped array is worth giving back behind a sweep
_VERIFIED = 1 << 20  # nodes, or product numbers, checked at a time


class FactoredArrays:
    """Tables and arrays of a factored graph: lengths and first edges of rows, and their edges.

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
