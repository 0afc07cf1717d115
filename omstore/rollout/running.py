"""Rollouts: many environments from each root and candidate, until the horizon or the end of the episode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.errors import UsageError
from omstore.read.graph import Graph
from omstore.rollout.environments import Plan
from omstore.rollout.policies import PolicyTable
from omstore.rollout.tables import RolloutTables

__all__ = ["RolloutState", "rollout"]


class RolloutState:
    """Environments that are advanced one step at a time, by the policies of the nodes that they are at.

    For graphs over whose nodes a policy can't be tabulated as a whole: ask for `nodes`, evaluate the policies
    there, `step`. The numbers are those of :func:`rollout`, to the bit. Memory: 36 bytes an environment, of
    which there are R * C * n_rollouts.

    Parameters
    ----------
    tables : RolloutTables or Graph
    roots : (R,) int64
        Nodes.
    candidates : (R, C) int64
        The learner's first actions, -1 for none.
    first_key : (R,) uint64
        Key of each root's random numbers: ``stream_key(seed, phase, update, root)``.
    learner : sequence of int
        The agents that learn, ascending; where several, their actions are one mixed-radix integer.
    n_rollouts, horizon : int
        At least 1.
    discount : float
    reward_weights : (agents,) float64
        The learner's reward is the weighted sum of the agents'.
    threads : int
        Has no influence on the result.

    Attributes
    ----------
    number : int
        Steps made.

    Raises
    ------
    UsageError
        Naming the root or candidate that doesn't exist.
    """

    def __init__(
        self,
        tables: RolloutTables | Graph,
        roots: ArrayLike,
        candidates: ArrayLike,
        first_key: ArrayLike,
        *,
        learner: Sequence[int],
        n_rollouts: int,
        horizon: int,
        discount: float,
        reward_weights: ArrayLike,
        threads: int = 2,
    ) -> None:
        self._plan = Plan(
            tables,
            roots,
            candidates,
            first_key,
            learner,
            n_rollouts,
            horizon,
            discount,
            reward_weights,
            threads,
        )
        self.number = 0
        self._threads = threads
        self._blocks = list(_mapped(self._plan.block, self._plan.pieces(threads), threads))

    def nodes(self) -> NDArray[np.int64]:
        """Return the nodes that environments are at and go on from, ascending, each once; none at the end."""
        if self.number >= self._plan.horizon:
            return np.empty(0, np.int64)
        at = [block.nodes[block.alive[: block.count]] for block in self._blocks]
        count, num_nodes = sum(map(len, at)), self._plan.tables.graph.num_nodes
        if count * 16 < num_nodes:
            return np.unique(np.concatenate(at)) if at else np.empty(0, np.int64)
        flags = np.zeros(num_nodes, np.bool_)
        for nodes in at:
            flags[nodes] = True
        return np.flatnonzero(flags)

    def step(self, learner_table: PolicyTable | None, other_table: PolicyTable) -> None:
        """Advance every environment one step.

        Parameters
        ----------
        learner_table, other_table : PolicyTable
            With a row for every one of `nodes`. The learner's isn't looked at in the first step, where it
            plays the candidates, and may be None.

        Raises
        ------
        UsageError
            Naming a node that a table has no row for; or a candidate that is part of no legal joint action.
        CorruptStoreError
            If a file is damaged where it was read.
        """
        if self.number >= self._plan.horizon:
            raise UsageError(f"the horizon of {self._plan.horizon} steps has been reached")
        policies = self._plan.policies(learner_table, other_table, self.number)
        for _ in _mapped(lambda block: block.step(self.number, policies), self._blocks, self._threads):
            pass
        self.number += 1

    def result(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the means of the returns and of their squares so far, (R, C) each; 0 without a candidate."""
        return self._plan.means([block.sums() for block in self._blocks])


def rollout(
    graph: RolloutTables | Graph,
    roots: ArrayLike,
    candidates: ArrayLike,
    first_key: ArrayLike,
    *,
    learner: Sequence[int],
    learner_table: PolicyTable | None,
    other_table: PolicyTable,
    n_rollouts: int,
    horizon: int,
    discount: float,
    reward_weights: ArrayLike,
    threads: int = 2,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Estimate action values: the mean discounted return of each root's candidates, by rollouts.

    In a rollout the learner plays the candidate first and by its table after, the other side by its table at
    every step, until an edge is done, a node has no legal joint action, or the horizon is reached. Joint
    actions are drawn from the product of both policies restricted to legal ones and normalized again; where
    that product is 0 on all legal ones, each of them is as likely. The last step's reward counts
    ``discount ** (horizon - 1)``.

    Random numbers are those of ``extend_key(first_key[root], candidate, rollout)``: number ``3 t`` of it draws
    the other side's action at step t, ``3 t + 1`` the learner's, ``3 t + 2`` the successor. So the result is
    the same, to the bit, whatever the number of threads, the other roots and candidates of the batch, and the
    row encoding (but where a random number lies within rounding of a boundary of factored rows, about one
    draw in 2^44). Memory: two megabytes a thread, and 16 bytes for each 1024 rollouts of a candidate.

    Parameters
    ----------
    graph : RolloutTables or Graph
        Tables are made once; a graph's are made anew at each call.
    roots : (R,) int64
        Nodes.
    candidates : (R, C) int64
        The learner's first actions, -1 for none.
    first_key : (R,) uint64
        Key of each root's random numbers: ``stream_key(seed, phase, update, root)``.
    learner : sequence of int
        The agents that learn, ascending; where several, their actions are one mixed-radix integer.
    learner_table, other_table : PolicyTable
        With rows for all nodes that may be visited. The learner's may be None with a horizon of 1.
    n_rollouts, horizon : int
        At least 1.
    discount : float
    reward_weights : (agents,) float64
        The learner's reward is the weighted sum of the agents'.
    threads : int

    Returns
    -------
    means, squares : (R, C) float64
        Of the returns, and of their squares; 0 where there is no candidate.

    Raises
    ------
    UsageError
        Naming the root, candidate or node that doesn't exist, isn't legal or isn't in a table.
    CorruptStoreError
        If a file is damaged where it was read.
    """
    plan = Plan(
        graph, roots, candidates, first_key, learner, n_rollouts, horizon, discount, reward_weights, threads
    )
    policies = [plan.policies(learner_table, other_table, step) for step in range(min(horizon, 2))]

    def run(piece: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        block = plan.block(piece)
        for step in range(horizon):
            block.step(step, policies[min(step, 1)])
        return block.sums()

    return plan.means(list(_mapped(run, plan.pieces(threads), threads)))


def _mapped(function: Callable[[Any], Any], items: Sequence[Any], threads: int) -> Iterable[Any]:
    """Apply a function to items, in threads; results in the order of items."""
    if threads < 2 or len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(function, items))
