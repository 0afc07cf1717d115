"""One Bellman backup of all nodes of a graph: under policies, or by the best actions, in any row encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.exact import reduce_kernels
from omstore.exact.backup import Backup, policy_block, policy_rows
from omstore.exact.dictionary import DictionarySource
from omstore.exact.factored import FactoredSource
from omstore.exact.gains import Terms, Valuation
from omstore.exact.row_source import EdgeSource, ResolvedSource, RowSource
from omstore.read.graph import Graph
from omstore.rollout.policies import Sides

__all__ = ["Sweeper"]

_PARTS_PER_THREAD = 4
"""A thread that is held up leaves more of the parts to the others."""


class Sweeper:
    """Backs values up over all rows of a graph, by the shortest way that its encoding has.

    Memory: 8 bytes a node for each value function that is backed up, 25 more where rewards are nodes' own, 8 more for
    each agent that is a side against all others in factored rows, and some megabytes a thread. Nodes are backed up one
    by one: neither threads nor what else is backed up have an influence on a result.

    Parameters
    ----------
    graph : Graph
    threads : int

    Attributes
    ----------
    graph : Graph
    threads : int

    Raises
    ------
    UsageError
        If there are fewer than 1 thread.
    """

    def __init__(self, graph: Graph, *, threads: int = 2) -> None:
        if threads < 1:
            raise UsageError(f"{threads} threads do no work: at least 1 is needed")
        self.graph = graph
        self.threads = threads
        self._sources: dict[tuple[bool, bool], RowSource] = {}

    def method(self, backup: Backup) -> str:
        """Return how rows are gone through: ``"factored"``, ``"dictionary"``, ``"edges"`` or ``"resolved edges"``."""
        return self._source_of(backup).name

    def rows(
        self,
        values: NDArray[np.float64],
        weights: Sequence[float] | NDArray[np.float64],
        discount: float = 1.0,
        *,
        ends: bool = True,
        out: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return the expected return of every row: its weighted reward, and the discounted value of what follows.

        Parameters
        ----------
        values : (N,) float64
            Of the nodes, one step later.
        weights : (agents,) floats
            How much each agent's reward counts.
        discount : float
        ends : bool
            Whether nothing follows an edge that is done.
        out : (N, A) float64, optional

        Returns
        -------
        (N, A) float64
            NaN where the joint action isn't legal. 8 bytes a row: for small graphs.

        Raises
        ------
        UsageError
            If shapes don't go together.
        CorruptStoreError
            If a file is damaged where it was read.
        """
        shape = (self.graph.num_nodes, self.graph.num_joint_actions)
        result = np.empty(shape) if out is None else out
        if result.shape != shape or result.dtype != np.float64:
            raise UsageError(f"rows are float64 of shape {shape}, not {result.dtype} of {result.shape}")
        backup = Backup(values, weights, np.empty(self.graph.num_nodes), discount, ends)
        backup.check(self.graph)
        source = self._source_of(backup)
        gains = [source.gains(_valuation(backup))]

        def run(first: int, stop: int) -> None:
            for block in source.visit(first, stop, gains):
                result[block.nodes] = block.rows[0].reshape(-1, shape[1])

        self._share(source, run)
        return result

    def sweep(self, backups: Sequence[Backup]) -> None:
        """Back up all nodes once, of several value functions together: reading rows takes longer than that.

        Results go into each `Backup`'s `out` and `actions`. They must not be the `values` of any.

        Raises
        ------
        UsageError
            If a shape is wrong.
        CorruptStoreError
            If a file is damaged where it was read.
        """
        for backup in backups:
            backup.check(self.graph)
        together: dict[RowSource, list[Backup]] = {}
        for backup in backups:
            source = self._source_of(backup)
            if isinstance(source, FactoredSource) and source.finds_best and backup.one_player:
                self._best(source, backup)
            elif isinstance(source, FactoredSource) and self._respond(source, backup):
                continue
            else:
                together.setdefault(source, []).append(backup)
        for source, several in together.items():
            plain = [backup for backup in several if backup.out.ndim == 1]
            if isinstance(source, DictionarySource) and plain:
                self._play(source, plain)
                several = [backup for backup in several if backup.out.ndim == 2]
            if several:
                self._reduced(source, several)

    def _play(self, source: DictionarySource, backups: Sequence[Backup]) -> None:
        """Back up without keeping rows."""
        gains = [source.gains(_valuation(backup)) for backup in backups]
        self._share(source, lambda first, stop: source.play(first, stop, backups, gains))
        for gain in gains:
            source.terms.give_back(gain)

    def _reduced(self, source: RowSource, backups: Sequence[Backup]) -> None:
        """Work out the rows of some nodes at a time, and what they come to."""
        gains = [source.gains(_valuation(backup)) for backup in backups]
        sides = [backup.sides(self.graph) for backup in backups]

        def run(first: int, stop: int) -> None:
            for block in source.visit(first, stop, gains):
                for backup, joint, rows in zip(backups, sides, block.rows, strict=True):
                    _reduce(backup, joint, block.nodes, as_input(rows, np.float64))

        self._share(source, run)
        for gain in gains:
            source.terms.give_back(gain)

    def _best(self, source: FactoredSource, backup: Backup) -> None:
        """Let one player choose, without keeping rows."""
        gains = source.gains(_valuation(backup))

        def run(first: int, stop: int) -> None:
            nodes, best = source.best(first, stop, gains)
            backup.out[nodes] = -best if backup.minimise else best

        self._share(source, run)
        source.terms.give_back(gains)

    def _respond(self, source: FactoredSource, backup: Backup) -> bool:
        """Back up two sides without keeping rows, where that can be; or return False."""
        if backup.out.ndim == 2:
            return False
        sides = backup.sides(self.graph)
        own_side = range(len(self.graph.num_actions)) if backup.own_side is None else backup.own_side
        found = source.split(sides, own_side)
        if found is None:
            return False
        source, own_is_last = found
        gains = source.gains(_valuation(backup))
        sizes = len(sides.learner_joint), len(sides.other_joint)

        def policies(
            nodes: slice | NDArray[np.int64], count: int
        ) -> tuple[NDArray[np.float64] | None, NDArray[np.float64]]:
            own = None if backup.own is None else policy_rows(backup.own, nodes, count, sizes[0])
            return own, policy_rows(backup.other, nodes, count, sizes[1])

        def run(first: int, stop: int) -> None:
            for nodes, values, actions in source.respond(first, stop, gains, own_is_last, sides, policies):
                backup.out[nodes] = -values if backup.minimise else values
                if backup.actions is not None:
                    backup.actions[nodes] = actions

        self._share(source, run)
        source.terms.give_back(gains)
        return True

    def _share(self, source: RowSource, run: Callable[[int, int], None]) -> None:
        """Let threads go through all units, a part each at a time."""
        bounds = source.bounds(1 if self.threads == 1 else self.threads * _PARTS_PER_THREAD)
        if len(bounds) < 3:
            run(bounds[0], bounds[-1])
            return
        with ThreadPoolExecutor(self.threads) as executor:
            list(executor.map(run, bounds[:-1], bounds[1:]))

    def _source_of(self, backup: Backup) -> RowSource:
        """Choose the shortest way through the rows for what a backup counts."""
        counts = len(backup.weights) > 0, backup.ends
        if counts not in self._sources:
            terms = Terms(self.graph, rewards=counts[0], ends=counts[1])
            source: RowSource | None = FactoredSource.of(self.graph, terms)
            source = source or DictionarySource.of(self.graph, terms)
            if source is None:
                by_table = terms.by_next_node or terms.by_code
                source = EdgeSource(self.graph, terms) if by_table else ResolvedSource(self.graph, terms)
            self._sources[counts] = source
        return self._sources[counts]


def _valuation(backup: Backup) -> Valuation:
    return Valuation(
        as_input(backup.values, np.float64),
        as_input(np.asarray(backup.weights, np.float64), np.float64),
        backup.discount,
        -1.0 if backup.minimise else 1.0,
    )


def _reduce(
    backup: Backup, sides: Sides, nodes: slice | NDArray[np.int64], rows: NDArray[np.float64]
) -> None:
    """Write what rows come to at their nodes."""
    joint = sides.learner_joint, sides.other_joint
    count = len(rows) // (len(joint[0]) * len(joint[1]))
    other = policy_block(backup.other, nodes, count, len(joint[1]))
    out = backup.out[nodes] if isinstance(nodes, slice) else np.empty((count, *backup.out.shape[1:]))
    chosen: NDArray[np.int64] = np.empty(0, np.int64)
    if backup.own is not None:
        own = policy_block(backup.own, nodes, count, len(joint[0]))
        reduce_kernels.policy_values(rows, own, other, *joint, out)
    elif out.ndim == 2:
        reduce_kernels.action_values(rows, other, *joint, out)
    else:
        if backup.actions is not None:
            chosen = backup.actions[nodes] if isinstance(nodes, slice) else np.empty(count, np.int64)
        reduce_kernels.best_values(rows, other, *joint, out, chosen)
    if backup.minimise:
        np.negative(out, out)
    if not isinstance(nodes, slice):
        backup.out[nodes] = out
        if backup.actions is not None:
            backup.actions[nodes] = chosen
