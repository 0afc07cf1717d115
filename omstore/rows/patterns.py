"""Rows as patterns: each a list of (position of next node - position of node, outcome code), stored once.

A :class:`PatternTable` answers for batches of (base position, pattern). The dictionary encoding holds one for
all rows; the factored encoding holds one for the rows that don't factor, its positions being nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.format.hot import map_hot
from omstore.rows import kernels, pattern_kernels
from omstore.rows.compressed import delta_dtype
from omstore.rows.encoding import DrawnEdges, Edges, Probabilities, next_node_dtype, outcome_dtype

__all__ = ["NO_PATTERN", "PatternTable"]

NO_PATTERN = (1 << 32) - 1
"""Among exceptions: the row factors, and has no pattern."""

_SEARCHED = 1 << 22  # entries of lists for which tables for indexed search are made: 12 bytes each
_TAKEN = 1 << 20  # edges whose probabilities are read at a time from an array that isn't mapped
_HINT = "Convert or build the store again."


class PatternTable:
    """Patterns, the lists of codes they share, and blocks of patterns: mapped from files, or in memory.

    Memory: nothing for mapped tables; at most 48 MiB for sampling by indexed search, made at the first
    draw (12 bytes an entry of the lists; larger lists are scanned).

    Parameters
    ----------
    num_nodes, num_outcomes : int
        N and K of the graph; with K = 1 there are no lists.
    block_pattern : (blocks, A) uint32
        Each node's block is a list of A patterns.
    pattern_offsets : (patterns + 1,) uint64
        Where each pattern begins in `delta`.
    delta : (entries,) int32 or int64
        Position of next node - position of node, ascending within a pattern.
    pattern_list : (patterns,) uint32, or None
        Each pattern's list of codes.
    list_offsets : (lists + 1,) uint64, or None
    list_code : (codes,) uint8, uint16 or uint32, or None
    node_at : (positions,) uint32 or uint64, or None
        The node at a position, N where there is none; None where positions are nodes.

    Attributes
    ----------
    num_positions : int
        Positions that a next node may have.
    """

    def __init__(
        self,
        num_nodes: int,
        num_outcomes: int,
        block_pattern: NDArray[np.uint32],
        pattern_offsets: NDArray[np.uint64],
        delta: NDArray[Any],
        pattern_list: NDArray[np.uint32] | None = None,
        list_offsets: NDArray[np.uint64] | None = None,
        list_code: NDArray[Any] | None = None,
        node_at: NDArray[Any] | None = None,
    ) -> None:
        self.num_nodes = num_nodes
        self.num_outcomes = num_outcomes
        self.num_positions = num_nodes if node_at is None else len(node_at)
        self.coded = pattern_list is not None
        self.placed = node_at is not None
        self.block_pattern = as_input(block_pattern, np.uint32)
        self.pattern_offsets = as_input(pattern_offsets, np.uint64)
        self.delta = as_input(delta, delta_dtype(self.num_positions))
        self.pattern_list = as_input(_none(np.uint32) if pattern_list is None else pattern_list, np.uint32)
        self.list_offsets = as_input(
            np.zeros(1, np.uint64) if list_offsets is None else list_offsets, np.uint64
        )
        self.list_code = as_input(
            _none(np.uint8) if list_code is None else list_code, outcome_dtype(num_outcomes)
        )
        nodes = next_node_dtype(num_nodes)  # N, which stands for no node, fits as well
        self.node_at = as_input(_none(nodes) if node_at is None else node_at, nodes)
        self._searched: tuple[Any, tuple[int, NDArray[np.float64], NDArray[np.uint32]]] | None = None
        self._longest: int | None = None
        self._lists_checked = False
        if self.coded != (num_outcomes > 1):
            raise CorruptStoreError(f"rows: {num_outcomes} outcomes don't go with these patterns", _HINT)
        if len(self.pattern_offsets) < 1 or int(self.pattern_offsets[-1]) != len(self.delta):
            raise CorruptStoreError("rows: pattern_offsets don't end at the end of delta", _HINT)
        if self.coded and len(self.pattern_list) != self.num_patterns:
            raise CorruptStoreError(
                f"rows: pattern_list is of {len(self.pattern_list):,}, not {self.num_patterns:,} patterns",
                _HINT,
            )
        if len(self.list_offsets) < 1 or int(self.list_offsets[-1]) != len(self.list_code):
            raise CorruptStoreError("rows: list_offsets don't end at the end of list_code", _HINT)

    @classmethod
    def open(
        cls,
        folder: Path,
        num_outcomes: int,
        *,
        num_nodes: int,
        num_joint_actions: int,
        placed: bool = False,
    ) -> PatternTable:
        """Map the arrays of a folder, each checked against the others first.

        Parameters
        ----------
        folder : Path
            Such as ``rows`` or ``rows/exceptions`` in a version's folder.
        num_outcomes, num_nodes, num_joint_actions : int
            K, N and A of the graph.
        placed : bool
            Whether there is ``node_at``; otherwise positions are nodes, as those of exceptions are.

        Raises
        ------
        CorruptStoreError
            Naming the file that is missing, truncated or foreign.
        """
        folder = Path(folder)
        coded = num_outcomes > 1
        nodes = next_node_dtype(num_nodes)
        node_at = map_hot(folder / "node_at", dtype=nodes, item_shape=()) if placed else None
        positions = num_nodes if node_at is None else len(node_at)
        return cls(
            num_nodes,
            num_outcomes,
            map_hot(folder / "block_pattern", dtype=np.uint32, item_shape=(num_joint_actions,)),
            map_hot(folder / "pattern_offsets", dtype=np.uint64, item_shape=()),
            map_hot(folder / "delta", dtype=delta_dtype(positions), item_shape=()),
            map_hot(folder / "pattern_list", dtype=np.uint32, item_shape=()) if coded else None,
            map_hot(folder / "list_offsets", dtype=np.uint64, item_shape=()) if coded else None,
            map_hot(folder / "list_code", dtype=outcome_dtype(num_outcomes), item_shape=())
            if coded
            else None,
            node_at,
        )

    @property
    def num_patterns(self) -> int:
        """Distinct patterns."""
        return len(self.pattern_offsets) - 1

    @property
    def num_lists(self) -> int:
        """Distinct lists of codes."""
        return len(self.list_offsets) - 1

    @property
    def num_blocks(self) -> int:
        """Distinct blocks of patterns."""
        return len(self.block_pattern)

    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes of each array, by its name on disk."""
        names = ["block_pattern", "pattern_offsets", "delta"]
        names += ["pattern_list", "list_offsets", "list_code"] if self.coded else []
        names += ["node_at"] if self.placed else []
        return {name: int(getattr(self, name).nbytes) for name in names}

    def outdegree(self, patterns: NDArray[np.int64]) -> tuple[NDArray[np.int64], int, int]:
        """Return the length of each pattern, (B,) -> (B,) int64, and a kernel's status and position.

        The status isn't `OK` where a pattern doesn't exist or its offsets are damaged; what to do with it is
        the caller's, who knows the rows (`omstore.rows.encoding.raise_status`).
        """
        _, sums, status, position = self._bounds(as_input(patterns, np.int64))
        return np.diff(sums), status, position

    def gather(self, bases: NDArray[np.int64], patterns: NDArray[np.int64]) -> tuple[Edges, int, int]:
        """Return the edges of B rows, without their numbers; and a kernel's status and position.

        Parameters
        ----------
        bases : (B,) int64
            Positions of the rows' nodes.
        patterns : (B,) int64
            The rows' patterns.
        """
        bases, patterns = as_input(bases, np.int64), as_input(patterns, np.int64)
        starts, sums, status, position = self._bounds(patterns)
        if status != kernels.OK:
            sums[:] = 0
        total = int(sums[-1])
        next_node = np.empty(total, np.int64)
        outcome = np.empty(total if self.coded else 0, outcome_dtype(self.num_outcomes))
        if status == kernels.OK:
            status, position = pattern_kernels.gather_patterns(
                self.delta,
                self.pattern_list,
                self.list_offsets,
                self.list_code,
                self.coded,
                self.node_at,
                self.placed,
                self.num_positions,
                self.num_nodes,
                self.num_outcomes,
                bases,
                patterns,
                starts,
                sums,
                next_node,
                outcome,
            )
        return Edges(sums, next_node, outcome if self.coded else None, None), status, position

    def sample(
        self,
        bases: NDArray[np.int64],
        patterns: NDArray[np.int64],
        first_edges: NDArray[np.int64],
        uniforms: NDArray[np.float64],
        probabilities: Probabilities,
    ) -> tuple[DrawnEdges, int, int]:
        """Draw one edge for each of B rows, the one that csr draws; and a kernel's status and position.

        By indexed search (Chen and Asau, AIIE Transactions 6, 1974): the expected number of comparisons is
        below 2, whatever the outdegree.

        Parameters
        ----------
        bases, patterns : (B,) int64
            As in :meth:`gather`.
        first_edges : (B,) int64
            Number of each row's first edge: it numbers the edge drawn, and finds probabilities by edge.
        uniforms : (B,) float64
            In [0, 1).
        probabilities : Probabilities
            At level ``graph``, ``outcome`` or ``edge``.
        """
        bases, patterns = as_input(bases, np.int64), as_input(patterns, np.int64)
        first_edges, uniforms = as_input(first_edges, np.int64), as_input(uniforms, np.float64)
        if probabilities.mode == kernels.BY_EDGE and not isinstance(probabilities.values, np.ndarray):
            return self._sample_taken(bases, patterns, first_edges, uniforms, probabilities)
        return self._sample(bases, patterns, first_edges, uniforms, probabilities)

    def verify(self) -> None:
        """Check the tables in themselves; memory: none.

        Offsets rise and end where they should, lists and codes exist, lists are as long as their patterns,
        and every pattern is sorted. Whether next nodes exist depends on the nodes too, and is the caller's.

        Raises
        ------
        CorruptStoreError
            Naming the first list or pattern that is wrong.
        """
        reasons = {
            kernels.BAD_OFFSETS: "its offsets fall or point behind the end",
            kernels.BAD_PATTERN: "its list of codes isn't there or isn't as long",
            kernels.UNSORTED: "it isn't sorted by difference, then code",
        }
        self._lists_checked = False
        self.check_codes()
        status, number = pattern_kernels.check_patterns(
            self.pattern_offsets,
            self.delta,
            self.pattern_list,
            self.list_offsets,
            self.list_code,
            self.coded,
        )
        if status != kernels.OK:
            raise CorruptStoreError(f"rows: pattern {number} is damaged: {reasons[status]}", _HINT)

    def check_codes(self) -> None:
        """Check once that every code in the lists exists: decoding then copies them as they are.

        Raises
        ------
        CorruptStoreError
            Naming the list.
        """
        if self._lists_checked:
            return
        status, number = pattern_kernels.check_lists(self.list_offsets, self.list_code, self.num_outcomes)
        if status != kernels.OK:
            reason = "its offsets fall or point behind the end"
            if status == kernels.BAD_CODE:
                reason = f"an outcome code isn't within 0 to {self.num_outcomes - 1:,}"
            raise CorruptStoreError(f"rows: list {number} is damaged: {reason}", _HINT)
        self._lists_checked = True

    def _bounds(self, patterns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], int, int]:
        starts = np.empty(len(patterns), np.int64)
        sums = np.empty(len(patterns) + 1, np.int64)
        status, position = pattern_kernels.pattern_bounds(
            self.pattern_offsets, len(self.delta), patterns, starts, sums
        )
        return starts, sums, status, position

    def _sample(
        self,
        bases: NDArray[np.int64],
        patterns: NDArray[np.int64],
        first_edges: NDArray[np.int64],
        uniforms: NDArray[np.float64],
        probabilities: Probabilities,
    ) -> tuple[DrawnEdges, int, int]:
        table = as_input(probabilities.values, np.float64)
        search, cumulative, guide = self.prepared(probabilities.mode, table)
        count = len(patterns)
        drawn = DrawnEdges.empty(count)
        status, position = pattern_kernels.sample_patterns(
            self.pattern_offsets,
            self.delta,
            self.pattern_list,
            self.list_offsets,
            self.list_code,
            self.coded,
            self.node_at,
            self.placed,
            self.num_positions,
            self.num_nodes,
            self.num_outcomes,
            bases,
            patterns,
            first_edges,
            uniforms,
            search,
            probabilities.mode,
            table,
            cumulative,
            guide,
            drawn.next_node,
            drawn.outcome,
            drawn.edge,
            drawn.probability,
        )
        return drawn, status, position

    def _sample_taken(
        self,
        bases: NDArray[np.int64],
        patterns: NDArray[np.int64],
        first_edges: NDArray[np.int64],
        uniforms: NDArray[np.float64],
        probabilities: Probabilities,
    ) -> tuple[DrawnEdges, int, int]:
        """Draw with probabilities by edge that have to be read: those of a million edges at a time."""
        _, sums, status, position = self._bounds(patterns)
        drawn = DrawnEdges(
            np.zeros(len(patterns), np.int64),
            np.zeros(len(patterns), np.int64),
            np.zeros(len(patterns), np.int64),
            np.zeros(len(patterns), np.float64),
        )
        first = 0
        while first < len(patterns) and status == kernels.OK:
            stop = int(np.searchsorted(sums, sums[first] + _TAKEN, side="right")) - 1
            piece = slice(first, max(first + 1, stop))
            starts = sums[piece] - sums[first]
            shift = first_edges[piece] - starts
            counts = np.diff(sums[first : piece.stop + 1])
            numbers = np.arange(int(counts.sum())) + np.repeat(shift, counts)
            table = Probabilities("edge", np.asarray(probabilities.values.take(numbers), np.float64))
            part, status, position = self._sample(
                bases[piece], patterns[piece], as_input(starts, np.int64), uniforms[piece], table
            )
            for name in ("next_node", "outcome", "probability"):
                getattr(drawn, name)[piece] = getattr(part, name)
            drawn.edge[piece] = part.edge + shift
            position += first
            first = piece.stop
        return drawn, status, position

    def prepared(
        self, mode: int, table: NDArray[np.float64]
    ) -> tuple[int, NDArray[np.float64], NDArray[np.uint32]]:
        """Return how to search for the edge drawn, and the tables for it: made once, and kept.

        Parameters
        ----------
        mode : int
            See `Probabilities`.
        table : (1 or K,) float64
            The probability of every edge, or of every code; not used where each edge has its own.

        Returns
        -------
        how : int
            `SCAN`, `SEARCH_CONSTANT` or `SEARCH_LISTS` of ``pattern_kernels``.
        cumulative : float64
            Sums of probabilities: of as many edges as the longest pattern has, or along every list of codes.
        guide : uint32
            Where to begin in each list; empty but for `SEARCH_LISTS`.

        Raises
        ------
        CorruptStoreError
            If patterns or lists are damaged.
        """
        nothing = as_input(_none(np.float64), np.float64), as_input(_none(np.uint32), np.uint32)
        if mode == kernels.BY_EDGE:
            return pattern_kernels.SCAN, *nothing
        constant = mode == kernels.CONSTANT or not self.coded
        key = (constant, float(table[0]) if constant else table.tobytes())
        known = self._searched
        if known is not None and known[0] == key:
            return known[1]
        prepared: tuple[int, NDArray[np.float64], NDArray[np.uint32]] = (pattern_kernels.SCAN, *nothing)
        if constant and self._max_outdegree() <= _SEARCHED:
            cumulative = np.empty(self._max_outdegree(), np.float64)
            pattern_kernels.count_up(float(table[0]), cumulative)
            prepared = (pattern_kernels.SEARCH_CONSTANT, as_input(cumulative, np.float64), nothing[1])
        elif not constant and len(self.list_code) <= _SEARCHED:
            cumulative = np.empty(len(self.list_code), np.float64)
            guide = np.empty(len(self.list_code), np.uint32)
            if not pattern_kernels.cumulate_lists(
                self.list_offsets, self.list_code, table, cumulative, guide
            ):
                raise CorruptStoreError("rows: the lists of outcome codes are damaged", _HINT)
            prepared = (
                pattern_kernels.SEARCH_LISTS,
                as_input(cumulative, np.float64),
                as_input(guide, np.uint32),
            )
        self._searched = (key, prepared)  # one assignment: threads may share the table
        return prepared

    def _max_outdegree(self) -> int:
        if self._longest is None:
            lengths = np.diff(self.pattern_offsets.view(np.int64))
            self._longest = int(lengths.max()) if len(lengths) else 0
            if not 0 <= self._longest <= len(self.delta):
                raise CorruptStoreError("rows: the patterns' offsets are damaged", _HINT)
        return self._longest


def _none(dtype: Any) -> NDArray[Any]:
    return np.empty(0, dtype)
