"""The interface of row encodings: the structure of a graph, whatever holds it.

An encoding answers which successors a row has and which outcome code each of them carries. What the codes
mean (probability, reward, ...) is resolved above it, in `omstore.read`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, UsageError
from omstore.rows import kernels

__all__ = [
    "DrawnEdges",
    "Edges",
    "GraphSize",
    "Probabilities",
    "RowChunk",
    "RowEncoding",
    "next_node_dtype",
    "outcome_dtype",
]

_HINT = "Convert or build the store again."


@dataclass(frozen=True)
class GraphSize:
    """The counts that every encoding is checked against, all of them 64-bit.

    Attributes
    ----------
    num_nodes, num_joint_actions : int
        N and A; there are N * A rows.
    num_edges : int
        E, successors over all rows.
    num_outcomes : int
        K, entries in the table of outcomes; with K = 1 an encoding holds no codes.
    """

    num_nodes: int
    num_joint_actions: int
    num_edges: int
    num_outcomes: int = 1

    @property
    def num_rows(self) -> int:
        """N * A."""
        return self.num_nodes * self.num_joint_actions


@dataclass(frozen=True)
class Edges:
    """The edges of a batch of B rows, ragged: row b owns ``offsets[b]:offsets[b + 1]``.

    Attributes
    ----------
    offsets : (B + 1,) int64
    next_node : (E',) int64
    outcome : (E',) unsigned integers, or None
        Codes; None where there is one outcome only.
    edge : (E',) int64, or None
        Numbers of the edges in the whole graph, where they were asked for.
    attributes : mapping of str to (E', ...) array
        Values of the attributes at level ``rows``: those that the encoding itself answers.
    """

    offsets: NDArray[np.int64]
    next_node: NDArray[np.int64]
    outcome: NDArray[Any] | None
    edge: NDArray[np.int64] | None
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class DrawnEdges:
    """One edge drawn for each of B rows: next node, outcome code, edge number (int64) and probability; and
    the attributes at level ``rows``."""

    next_node: NDArray[np.int64]
    outcome: NDArray[np.int64]
    edge: NDArray[np.int64]
    probability: NDArray[np.float64]
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @classmethod
    def empty(cls, count: int) -> DrawnEdges:
        """Make room for `count` edges, to be filled in."""
        next_node, outcome, edge = (np.empty(count, np.int64) for _ in range(3))
        return cls(next_node, outcome, edge, np.empty(count, np.float64))


@dataclass(frozen=True)
class RowChunk:
    """Consecutive rows ``first_row`` and on, as a sweep meets them.

    Attributes
    ----------
    first_row, first_edge : int
        Numbers of the first row and edge in the whole graph.
    offsets : (n + 1,) int64
        Where each row's edges begin in the arrays below.
    next_node : (E',) uint32 or uint64
    outcome : (E',) unsigned integers, or None
        Both may be views of mapped files, or of a buffer that the next chunk overwrites.
    attributes : mapping of str to (E', ...) array
        Values of the attributes at level ``rows``.
    """

    first_row: int
    first_edge: int
    offsets: NDArray[np.int64]
    next_node: NDArray[Any]
    outcome: NDArray[Any] | None
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class Probabilities:
    """Where the probability of an edge is found: a constant, a table by outcome code, an array by edge, or
    the row encoding itself.

    Parameters
    ----------
    level : str
        ``"graph"``, ``"outcome"``, ``"edge"`` or ``"rows"``.
    values : array_like
        (1,), (K,) or (E,) float64; by edge anything with ``take(edges)`` where it isn't in memory or mapped;
        empty at level ``rows``.
    """

    def __init__(self, level: str, values: Any) -> None:
        self.level = level
        self.mode = {
            "graph": kernels.CONSTANT,
            "outcome": kernels.BY_OUTCOME,
            "edge": kernels.BY_EDGE,
            "rows": kernels.BY_ROWS,
        }[level]
        self.values = values


class RowEncoding(ABC):
    """The rows of a graph: one interface for every encoding.

    Row numbers are ``node * A + joint_action``. All methods are batched, and take and give arrays.

    Attributes
    ----------
    name : str
        The encoding's name in the manifest.
    size : GraphSize
    """

    name: str
    size: GraphSize

    @abstractmethod
    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of successors of each row, (B,) -> (B,); UsageError for a row out of range."""

    @abstractmethod
    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Edges:
        """Return the edges of rows in any order; memory: the result.

        Parameters
        ----------
        rows : (B,) int64
        edges : bool
            Whether to number the edges too (8 bytes an edge).

        Raises
        ------
        UsageError
            For a row out of range, with its position.
        CorruptStoreError
            If a file is damaged where it was read.
        """

    @abstractmethod
    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw one edge for each row: the one at which the running sum of probabilities passes ``uniforms``.

        Parameters
        ----------
        rows : (B,) int64
        uniforms : (B,) float64
            In [0, 1).
        probabilities : Probabilities

        Raises
        ------
        UsageError
            For a row out of range or without successors, with its position.
        CorruptStoreError
            If a file is damaged where it was read.
        """

    @abstractmethod
    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Go through rows start_row..stop_row in order, `chunk_rows` at a time, reading sequentially.

        Memory: one chunk; mapped pages are given back behind it.
        """

    @abstractmethod
    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes on disk of each part, by its name."""

    def matches(self, chunk: RowChunk) -> int:
        """Return the position of a chunk's first row that this encoding holds otherwise, -1 if there is none.

        Number of the first edge, outdegrees, next nodes and outcome codes must be equal; attributes aren't
        compared. Memory: the rows, decoded; an encoding that can compares them without.

        Parameters
        ----------
        chunk : RowChunk
            Its codes in this encoding's terms; None where this encoding has none.

        Raises
        ------
        CorruptStoreError
            If this encoding's files are damaged where they were read.
        """
        count = len(chunk.offsets) - 1
        if not count:
            return -1
        for own in self.sweep(chunk.first_row, chunk.first_row + count, count):
            if own.first_edge != chunk.first_edge:
                return 0
            if (own.outcome is None) != (chunk.outcome is None):
                raise UsageError("one has outcome codes, the other hasn't")
            coded = own.outcome is not None
            return int(
                kernels.first_difference(
                    as_input(chunk.offsets, np.int64),
                    as_input(chunk.next_node, chunk.next_node.dtype),
                    as_input(chunk.outcome, chunk.outcome.dtype) if chunk.outcome is not None else no_codes(),
                    as_input(own.offsets, np.int64),
                    as_input(own.next_node, own.next_node.dtype),
                    as_input(own.outcome, own.outcome.dtype) if own.outcome is not None else no_codes(),
                    coded,
                )
            )
        return 0

    def check_probabilities(self, probabilities: Probabilities) -> None:  # noqa: B027 - most draw by these
        """Check that an encoding which draws by probabilities of its own draws by these; others do nothing.

        Raises
        ------
        CorruptStoreError
            Naming what doesn't agree.
        """

    def verify(self, chunk_rows: int = 1 << 16) -> None:
        """Read everything once and check its structure.

        Offsets rise and end at the number of edges, next nodes and codes exist, and every row is sorted.

        Raises
        ------
        CorruptStoreError
            Naming the first row that is wrong.
        """
        rows, edges = self.verify_rows(0, self.size.num_rows, chunk_rows)
        if (rows, edges) != (self.size.num_rows, self.size.num_edges):
            raise CorruptStoreError(
                f"rows: {rows:,} rows and {edges:,} edges instead of "
                f"{self.size.num_rows:,} and {self.size.num_edges:,}",
                _HINT,
            )

    def verify_rows(self, start_row: int, stop_row: int, chunk_rows: int = 1 << 16) -> tuple[int, int]:
        """Read consecutive rows once and check them; gives the row and the edge behind the last.

        Raises
        ------
        CorruptStoreError
            Naming the first row that is wrong.
        """
        rows, edges = start_row, -1 if start_row else 0
        for chunk in self.sweep(start_row, stop_row, chunk_rows):
            count = len(chunk.offsets) - 1
            edges = chunk.first_edge if edges < 0 else edges
            if chunk.first_row != rows or chunk.first_edge != edges:
                raise CorruptStoreError(f"rows: row {rows} doesn't begin at edge {edges}", _HINT)
            codes = chunk.outcome
            status, position = kernels.check_rows(
                as_input(chunk.offsets, np.int64),
                as_input(chunk.next_node, chunk.next_node.dtype),
                no_codes() if codes is None else as_input(codes, codes.dtype),
                codes is not None,
                self.size.num_nodes,
                self.size.num_outcomes,
            )
            if status != kernels.OK:
                raise_status(status, rows + position, rows + position, self.size)
            rows += count
            edges += int(chunk.offsets[-1])
        return rows, edges


def next_node_dtype(num_nodes: int) -> np.dtype[Any]:
    """Return what next nodes are stored as: uint32 while it suffices, else uint64."""
    return np.dtype(np.uint32 if num_nodes < 1 << 32 else np.uint64)


def outcome_dtype(num_outcomes: int) -> np.dtype[Any]:
    """Return what outcome codes are stored as: uint8, uint16 or uint32."""
    return np.dtype(
        np.uint8 if num_outcomes <= 1 << 8 else np.uint16 if num_outcomes <= 1 << 16 else np.uint32
    )


def no_codes() -> NDArray[np.uint8]:
    """Stand in for codes in a kernel call where there are none."""
    codes = np.empty(0, np.uint8)
    codes.flags.writeable = False
    return codes


def check_sweep(size: GraphSize, start_row: int, stop_row: int, chunk_rows: int) -> None:
    """Raise UsageError unless the arguments of a sweep make sense."""
    if not 0 <= start_row <= stop_row <= size.num_rows:
        raise UsageError(f"rows {start_row} to {stop_row} aren't within 0 to {size.num_rows:,}")
    if chunk_rows < 1:
        raise UsageError(f"a sweep goes at least one row at a time, not {chunk_rows}")


def raise_status(status: int, position: int, row: int, size: GraphSize) -> None:
    """Raise the error for a kernel's status, if it is one.

    Parameters
    ----------
    status, position : int
        What the kernel returned.
    row : int
        The row at `position` of the batch.
    size : GraphSize
        Of the graph.
    """
    if status == kernels.OK:
        return
    where = f"row {row} (node {row // size.num_joint_actions}, joint action {row % size.num_joint_actions})"
    if status == kernels.ROW_RANGE:
        raise UsageError(
            f"row {row} at position {position} of the batch isn't within 0 to {size.num_rows - 1:,}"
        )
    if status == kernels.ILLEGAL:
        raise UsageError(
            f"{where} at position {position} of the batch has no successors to draw from",
            "Draw joint actions from the legal mask (graph.legal).",
        )
    reason = {
        kernels.BAD_OFFSETS: "its offsets fall or point behind the edges",
        kernels.BAD_NODE: f"a next node isn't within 0 to {size.num_nodes - 1:,}",
        kernels.BAD_CODE: f"an outcome code isn't within 0 to {size.num_outcomes - 1:,}",
        kernels.UNSORTED: "its edges aren't sorted by next node, then outcome",
        kernels.BAD_PATTERN: "its block, pattern or list of codes isn't there or doesn't fit",
    }[status]
    raise CorruptStoreError(f"rows: {where} is damaged: {reason}", _HINT)
