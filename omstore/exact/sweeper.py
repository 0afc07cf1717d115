"""One Bellman backup of all nodes of a graph: under policies, or by the best actions, in any row encoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.exact import reduce_kernels
from omstore.exact.backup import Backup, policy_block
from omstore.exact.gains import Gains, Terms, Valuation
from omstore.exact.row_source import Block, EdgeSource, ResolvedSource, RowSource
from omstore.read.graph import Graph
from omstore.rollout.policies import Sides

__all__ = ["Sweeper"]

_PARTS_PER_THREAD = 4
"""A thread that is held up leaves more of the parts to the others."""


class Sweeper:
    """Backs values up over all rows of a graph, by the shortest way that its encoding has.

    Memory: 8 bytes a node for each value function that is backed up, 25 more where rewards are nodes' own, and
    some megabytes a thread. Nodes are backed up one by one: neither threads nor what else is backed up have an
    influence on a result.

    Parameters
    ----------
    graph : Graph
    threads : int

    Attributes
    ----------
    graph : Graph
    threads : int
    method : str
        How rows are gone through: ``"factored"``, ``"dictionary"``, ``"edges"`` or ``"resolved edges"``.

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
        self._source = _choose(graph)

    @property
    def method(self) -> str:
        """How rows are gone through."""
        return self._source.name

    def rows(
        self,
        values: NDArray[np.float64],
        weights: Sequence[float] | NDArray[np.float64],
        discount: float = 1.0,
        *,
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
        probe = Backup(values, weights, np.empty(self.graph.num_nodes), discount)
        probe.check(self.graph)
        gains = [self._source.gains(_valuation(probe))]

        def keep(block: Block) -> None:
            result[block.nodes] = block.rows[0].reshape(-1, shape[1])

        self._sweep(gains, keep)
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
        sides = []
        for backup in backups:
            backup.check(self.graph)
            sides.append(backup.sides(self.graph))
        gains = [self._source.gains(_valuation(backup)) for backup in backups]

        def reduce(block: Block) -> None:
            for backup, joint, rows in zip(backups, sides, block.rows, strict=True):
                _reduce(backup, joint, block.nodes, as_input(rows, np.float64))

        self._sweep(gains, reduce)

    def _sweep(self, gains: Sequence[Gains], give: Callable[[Block], None]) -> None:
        """Give all nodes to a function, some at a time; threads share the work."""
        units = self._source.num_units
        parts = 1 if self.threads == 1 else min(units, self.threads * _PARTS_PER_THREAD)
        bounds = np.linspace(0, units, max(1, parts) + 1).astype(np.int64).tolist()

        def run(first: int, stop: int) -> None:
            for block in self._source.visit(first, stop, gains):
                give(block)

        if len(bounds) == 2:
            run(0, units)
            return
        with ThreadPoolExecutor(self.threads) as executor:
            list(executor.map(run, bounds[:-1], bounds[1:]))


def _choose(graph: Graph) -> RowSource:
    """Choose the shortest way through the rows."""
    terms = Terms(graph)
    if terms.by_next_node or terms.by_code:
        return EdgeSource(graph, terms)
    return ResolvedSource(graph, terms)


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
