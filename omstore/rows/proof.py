"""Proving that an encoding holds the rows of its source: every edge compared, or those of rows drawn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import ProofError, UsageError
from omstore.rows import kernels
from omstore.rows.dictionary_writer import recode
from omstore.rows.encoding import Edges, GraphSize, RowChunk, RowEncoding, no_codes
from omstore.rows.ranges import Ticker, chunk_rows, node_ranges, over_ranges

__all__ = ["Proof", "draw_rows", "prove"]

_DRAWN = 1 << 20  # random rows at a time: 8 MiB

_BATCH_EDGES = 1 << 18  # edges gathered at a time where rows were drawn: 4 MiB from each side


@dataclass(frozen=True)
class Proof:
    """What was compared, and found equal.

    Attributes
    ----------
    num_rows, num_edges : int
    largest_difference : int
        Of floating-point values that the encoding computes (attributes at level ``rows``), in units in the last
        place; everything else is equal to the bit.
    """

    num_rows: int
    num_edges: int
    largest_difference: int

    def __add__(self, other: Proof) -> Proof:
        return Proof(
            self.num_rows + other.num_rows,
            self.num_edges + other.num_edges,
            max(self.largest_difference, other.largest_difference),
        )

    def to_dict(self) -> dict[str, int]:
        """Give what the manifest records as ``rows.proof``."""
        return {
            "rows": self.num_rows,
            "edges": self.num_edges,
            "largest_difference_ulp": self.largest_difference,
        }


def draw_rows(size: GraphSize, count: int, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Give `count` random rows, with repetition, in ascending batches for `prove`."""
    for first in range(0, count, _DRAWN):
        yield np.sort(rng.integers(0, size.num_rows, min(_DRAWN, count - first)))


class _Tally:
    """What threads have compared so far, and the first row that differs."""

    def __init__(self, tick: Ticker) -> None:
        self.rows = self.edges = self.ulps = 0
        self._tick = tick
        self._lock = threading.Lock()

    def count(self, rows: int, edges: int, ulps: int) -> None:
        with self._lock:
            self.rows += rows
            self.edges += edges
            self.ulps = max(self.ulps, ulps)
            self._tick(edges)


def prove(
    source: RowEncoding,
    encoded: RowEncoding,
    *,
    rows: NDArray[np.int64] | None = None,
    code_map: NDArray[Any] | None = None,
    values: Mapping[str, NDArray[Any]] | None = None,
    most_ulps: int = 4,
    also: Callable[[RowChunk], object] = lambda chunk: None,
    threads: int = 2,
    tick: Ticker = lambda n: None,
) -> Proof:
    """Compare an encoding with the rows it was made from: outdegrees, next nodes, outcome codes and numbers
    of edges, exactly.

    Parameters
    ----------
    source, encoded : RowEncoding
    rows : (B,) int64, optional
        Compare these only, in batches; by default every row is swept, by `threads` threads.
    code_map : (source's K,) integers, optional
        The encoding's code for each of the source's; by default they are the same.
    values : mapping of str to (source's K, ...) array, optional
        For attributes that the encoding itself computes (level ``rows``): their values by the source's codes,
        where the source doesn't compute them too.
    most_ulps : int
        Units in the last place that computed floating-point values may be off.
    also : callable
        Given every chunk that is swept from the source, to compare what else there is; may be called by several
        threads at once.
    threads : int
    tick : callable
        Told the number of edges compared.

    Returns
    -------
    Proof

    Raises
    ------
    ProofError
        Naming the first row that differs, and how.
    CorruptStoreError
        If a file is damaged where it was read.
    """
    ours, theirs = source.size, encoded.size
    for name in ("num_nodes", "num_joint_actions", "num_edges"):
        if getattr(ours, name) != getattr(theirs, name):
            raise ProofError(
                f"the encoded rows have {name} {getattr(theirs, name):,} instead of {getattr(ours, name):,}"
            )
    tally = _Tally(tick)
    comparison = _Comparison(source, encoded, code_map, dict(values or {}), most_ulps)
    if rows is not None:
        _prove_rows(comparison, np.sort(np.asarray(rows, np.int64)), tally, threads)
    else:
        actions, step = ours.num_joint_actions, chunk_rows(ours)

        def compare(thread: int, first: int, stop: int) -> None:
            for chunk in source.sweep(first * actions, stop * actions, step):
                ulps = comparison.chunk(chunk)
                also(chunk)
                tally.count(len(chunk.offsets) - 1, int(chunk.offsets[-1]), ulps)

        over_ranges(node_ranges(ours), compare, threads)
        if (tally.rows, tally.edges) != (ours.num_rows, ours.num_edges):
            raise ProofError(
                f"{tally.rows:,} rows and {tally.edges:,} edges were compared, but there are "
                f"{ours.num_rows:,} and {ours.num_edges:,}"
            )
    return Proof(tally.rows, tally.edges, tally.ulps)


class _Comparison:
    """Compares rows from two encodings."""

    def __init__(
        self,
        source: RowEncoding,
        encoded: RowEncoding,
        code_map: NDArray[Any] | None,
        values: dict[str, NDArray[Any]],
        most_ulps: int,
    ) -> None:
        self.source = source
        self.encoded = encoded
        self.code_map = code_map
        self.values = values
        self.most_ulps = most_ulps
        # Whether there are values to compare shows in any row.
        first = next(iter(encoded.sweep(0, min(1, encoded.size.num_rows), 1)), None)
        self.computes = first is not None and bool(first.attributes)

    def chunk(self, chunk: RowChunk) -> int:
        """Compare consecutive rows; return how many ulps computed values are off, at most."""
        recoded = recode(chunk, self.code_map, self.encoded.size.num_outcomes)
        wrong = self.encoded.matches(recoded)
        if wrong >= 0:
            raise self._difference(chunk.first_row + wrong)
        if not self.computes:
            return 0
        ulps = 0
        count = len(chunk.offsets) - 1
        for own in self.encoded.sweep(chunk.first_row, chunk.first_row + count, max(1, count)):
            ulps = max(ulps, self._attributes(chunk, own, None))
        return ulps

    def batch(self, rows: NDArray[np.int64], mine: Edges, own: Edges) -> int:
        """Compare gathered rows; return how many ulps computed values are off, at most."""
        chunk = recode(
            RowChunk(0, 0, mine.offsets, mine.next_node, mine.outcome, mine.attributes),
            self.code_map,
            self.encoded.size.num_outcomes,
        )
        codes, own_codes = chunk.outcome, own.outcome
        wrong = kernels.first_difference(
            as_input(mine.offsets, np.int64),
            as_input(mine.next_node, np.int64),
            no_codes() if codes is None else as_input(codes, codes.dtype),
            as_input(own.offsets, np.int64),
            as_input(own.next_node, np.int64),
            no_codes() if own_codes is None else as_input(own_codes, own_codes.dtype),
            codes is not None and own_codes is not None,
        )
        if wrong < 0 and mine.edge is not None and own.edge is not None:
            edges = np.flatnonzero(mine.edge != own.edge)
            if len(edges):
                wrong = int(np.searchsorted(mine.offsets, edges[0], side="right")) - 1
        if wrong >= 0:
            raise self._difference(int(rows[wrong]))
        return self._attributes(replace(chunk, outcome=mine.outcome), own, rows)

    def _attributes(self, mine: RowChunk, own: RowChunk | Edges, rows: NDArray[np.int64] | None) -> int:
        """Compare the values of attributes that the encoding computes."""
        ulps = 0
        for name, found in own.attributes.items():
            if name in mine.attributes:
                expected = mine.attributes[name]
            elif name in self.values:
                table = self.values[name]
                codes = np.zeros(len(found), np.uint8) if mine.outcome is None else mine.outcome
                expected = table[codes]
            else:
                raise UsageError(f"the encoding computes {name!r}, but nothing was given to compare it with")
            if np.array_equal(expected, found):
                continue
            difference = _ulps(np.asarray(expected), np.asarray(found))
            if len(difference) and int(difference.max()) > self.most_ulps:
                edge = int(np.argmax(difference > self.most_ulps))
                row = int(np.searchsorted(mine.offsets, edge, side="right")) - 1
                number = mine.first_row + row if rows is None else int(rows[row])
                raise ProofError(
                    f"{self._name(number)}: {name} of its edge {edge - int(mine.offsets[row])} is "
                    f"{found[edge]} instead of {expected[edge]}, {int(difference[edge])} ulp off"
                )
            ulps = max(ulps, int(difference.max(initial=0)))
        return ulps

    def _name(self, row: int) -> str:
        actions = self.source.size.num_joint_actions
        return f"row {row} (node {row // actions}, joint action {row % actions})"

    def _difference(self, row: int) -> ProofError:
        """Say how a row differs."""
        batch = np.array([row], np.int64)
        mine, own = self.source.gather(batch, edges=True), self.encoded.gather(batch, edges=True)
        chunk = recode(
            RowChunk(row, 0, mine.offsets, mine.next_node, mine.outcome),
            self.code_map,
            self.encoded.size.num_outcomes,
        )
        reason = "its edges are numbered otherwise"
        if len(mine.next_node) != len(own.next_node):
            reason = f"{len(own.next_node)} successors instead of {len(mine.next_node)}"
        elif not np.array_equal(mine.next_node, own.next_node):
            edge = int(np.argmax(mine.next_node != own.next_node))
            reason = f"its successor {edge} is node {own.next_node[edge]} instead of {mine.next_node[edge]}"
        elif chunk.outcome is not None and own.outcome is not None:
            wrong = np.flatnonzero(chunk.outcome != own.outcome)
            if len(wrong):
                edge = int(wrong[0])
                reason = f"its successor {edge} has outcome code {own.outcome[edge]} instead of {chunk.outcome[edge]}"
        return ProofError(f"{self._name(row)} isn't what its source has: {reason}")


def _prove_rows(comparison: _Comparison, rows: NDArray[np.int64], tally: _Tally, threads: int) -> None:
    """Compare ascending rows, as many at a time as have some edges together."""
    step = chunk_rows(comparison.source.size, _BATCH_EDGES)

    def compare(thread: int, first: int, stop: int) -> None:
        part = as_input(rows[first:stop], np.int64)
        mine = comparison.source.gather(part, edges=True)
        own = comparison.encoded.gather(part, edges=True)
        tally.count(len(part), int(mine.offsets[-1]), comparison.batch(part, mine, own))

    batches = ((first, min(first + step, len(rows))) for first in range(0, len(rows), step))
    over_ranges(batches, compare, threads)


def _ulps(expected: NDArray[Any], found: NDArray[Any]) -> NDArray[np.int64]:
    """How far values are apart: in floating-point numbers between them, or 0 and 2^62 where they aren't
    floating-point; over all items of an edge the most."""
    if expected.dtype != found.dtype or expected.shape != found.shape:
        raise UsageError(
            f"values of {found.dtype} and shape {found.shape} can't be compared with {expected.dtype}, {expected.shape}"
        )
    if expected.dtype == np.float64:
        mine, own = _ordinal(expected), _ordinal(found)
        apart = np.abs(mine - own)
        apart[(mine < 0) != (own < 0)] = 1 << 62  # a difference over zero may overflow, and is no rounding
        apart[expected == found] = 0
    else:
        apart = np.where(expected == found, 0, 1 << 62)
    most: NDArray[np.int64] = apart.reshape(len(apart), -1).max(axis=1, initial=0)
    return most


def _ordinal(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Number floating-point values in their order."""
    bits = np.ascontiguousarray(values).view(np.int64)
    return np.where(bits < 0, np.int64(-(1 << 63)) - bits, bits)
