"""Rollouts: many environments from each root and candidate, until the horizon or the end of the episode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, UsageError
from omstore.read.graph import Graph
from omstore.rollout import action_kernels, outcome_kernels
from omstore.rollout.policies import PolicyTable
from omstore.rollout.tables import RolloutTables

__all__ = ["PART", "RolloutState", "rollout"]

PART = 1024
"""Rollouts of a candidate whose returns are summed before the sums are: part of the result, by rounding."""

_BLOCK = 4096  # environments that a thread takes at a time at most: what is known of them stays in its cache


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
        self._plan = _Plan(
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
    draw in 2^44). Memory: a megabyte a thread, and 16 bytes for each 1024 rollouts of a candidate.

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
    plan = _Plan(
        graph, roots, candidates, first_key, learner, n_rollouts, horizon, discount, reward_weights, threads
    )
    policies = [plan.policies(learner_table, other_table, step) for step in range(min(horizon, 2))]

    def run(piece: slice) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        block = plan.block(piece)
        for step in range(horizon):
            block.step(step, policies[min(step, 1)])
        return block.sums()

    return plan.means(list(_mapped(run, plan.pieces(threads), threads)))


class _Plan:
    """What all environments share: arguments, checked, and the parts that candidates' rollouts are cut into."""

    def __init__(
        self,
        tables: RolloutTables | Graph,
        roots: ArrayLike,
        candidates: ArrayLike,
        first_key: ArrayLike,
        learner: Sequence[int],
        n_rollouts: int,
        horizon: int,
        discount: float,
        reward_weights: ArrayLike,
        threads: int,
    ) -> None:
        self.tables = tables if isinstance(tables, RolloutTables) else RolloutTables(tables)
        self.sides = self.tables.sides(learner)
        self.weights = self.tables.weights(reward_weights)
        self.reward = self.tables.reward(self.weights)
        if threads < 1:
            raise UsageError(f"{threads} threads do no work: at least 1 is needed")
        if n_rollouts < 1 or horizon < 1:
            raise UsageError(f"{n_rollouts} rollouts of {horizon} steps are none: each is at least 1")
        self.n_rollouts, self.horizon = n_rollouts, horizon
        self.powers = np.cumprod(np.concatenate(([1.0], np.full(horizon - 1, float(discount)))))
        self.roots = as_input(np.asarray(roots), np.int64)
        self.candidates = as_input(np.asarray(candidates), np.int64)
        self.keys = as_input(np.asarray(first_key), np.uint64)
        shape = self.candidates.shape
        if len(shape) != 2 or self.roots.shape != shape[:1] or self.keys.shape != shape[:1]:
            raise UsageError(
                f"(R,) roots, (R, C) candidates and (R,) keys were asked for, not {self.roots.shape}, {shape} "
                f"and {self.keys.shape}"
            )
        _check(self.roots, 0, self.tables.graph.num_nodes, "root")
        _check(self.candidates.reshape(-1), -1, len(self.sides.learner_joint), "candidate")
        self.per_part = min(n_rollouts, PART)
        self.parts_each = -(-n_rollouts // PART)
        self.num_parts = self.candidates.size * self.parts_each

    def pieces(self, threads: int) -> list[slice]:
        """Cut the parts into those of blocks: as many for each thread."""
        blocks = -(-self.num_parts * self.per_part // _BLOCK)
        blocks = -(-blocks // threads) * threads
        step = max(1, -(-self.num_parts // max(1, blocks)))
        return [slice(first, min(first + step, self.num_parts)) for first in range(0, self.num_parts, step)]

    def block(self, piece: slice) -> _Block:
        """Place the environments of some parts at their roots."""
        return _Block(self, piece)

    def policies(self, learner: PolicyTable | None, other: PolicyTable, step: int) -> tuple[Any, ...]:
        """Give the tables as the kernels take them."""
        if learner is None:
            if step:
                raise UsageError("from the second step on the learner plays by a table, and there is none")
            learner = PolicyTable(
                np.ones((1, len(self.sides.learner_joint)), np.float32) / len(self.sides.learner_joint)
            )
        for table, joint, whose in (
            (learner, self.sides.learner_joint, "learner"),
            (other, self.sides.other_joint, "other side"),
        ):
            if table.num_actions != len(joint):
                raise UsageError(
                    f"the {whose}'s table is of {table.num_actions} actions, but it has {len(joint)}"
                )
        return (*_table_arrays(learner), *_table_arrays(other))

    def means(
        self, sums: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Add the parts of each candidate up in their order, and divide."""
        means = []
        for which in range(2):
            parts = np.concatenate([part[which] for part in sums]) if sums else np.empty(0)
            parts = parts.reshape(self.candidates.size, self.parts_each)
            total = np.zeros(len(parts))
            for k in range(self.parts_each):
                total += parts[:, k]
            means.append((total / self.n_rollouts).reshape(self.candidates.shape))
        return means[0], means[1]


class _Block:
    """Some environments: where they are, what they have returned, and which go on."""

    def __init__(self, plan: _Plan, piece: slice) -> None:
        self._plan = plan
        parts = np.arange(piece.start, piece.stop)
        which, part = np.divmod(parts, plan.parts_each)
        per_part = plan.per_part
        self._root = which // max(1, plan.candidates.shape[1])
        self._candidate = plan.candidates.reshape(-1)[which]
        self.keys = np.empty(len(parts) * per_part, np.uint64)
        action_kernels.start(
            plan.keys, as_input(self._root, np.int64), as_input(self._candidate, np.int64),
            as_input(part * PART, np.int64), per_part, self.keys,
        )  # fmt: skip
        self.nodes = np.repeat(plan.roots[self._root], per_part)
        self.returns = np.zeros(len(self.keys))
        number = (part * PART)[:, None] + np.arange(per_part)
        wanted = (number < plan.n_rollouts) & (self._candidate >= 0)[:, None]
        self.alive = np.flatnonzero(wanted.reshape(-1)).astype(np.int32)
        self.count = len(self.alive)

    def step(self, step: int, policies: tuple[Any, ...]) -> None:
        """Advance the environments that go on."""
        if not self.count:
            return
        plan = self._plan
        node, action = np.empty(self.count, np.int64), np.empty(self.count, np.int64)
        uniform = np.empty(self.count, np.float64)
        self._draw_actions(step, policies, node, action, uniform)
        count = self.count
        if not count:
            return
        node, action = as_input(node[:count], np.int64), as_input(action[:count], np.int64)
        drawn = plan.tables.source.draw(node, action, as_input(uniform[:count], np.float64))
        reward, done = plan.reward, plan.tables.done
        rewards, dones = plan.tables.resolve(drawn, node, action, plan.weights)
        status, kept = outcome_kernels.advance(
            plan.powers[step],
            count,
            node,
            as_input(drawn.next_node, np.int64),
            as_input(drawn.code, np.int64),
            reward.how,
            reward.values if rewards is None else as_input(rewards, np.float64),
            reward.codes,
            reward.own,
            done.how,
            done.values if dones is None else as_input(dones, np.uint8),
            done.codes,
            done.own,
            self.alive,
            self.nodes,
            self.returns,
        )
        if status != outcome_kernels.OK:
            raise CorruptStoreError(
                f"nodes/attributes: node {node[kept]} or the one behind it has a code that isn't in the table",
                "Publish again, or `omstore rollback` to an earlier version.",
            )
        self.count = kept

    def sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Sum the returns and their squares of each part."""
        parts = len(self._root)
        sums, squares = np.empty(parts), np.empty(parts)
        outcome_kernels.sum_parts(self.returns, self._plan.per_part, sums, squares)
        return sums, squares

    def _draw_actions(
        self,
        step: int,
        policies: tuple[Any, ...],
        node: NDArray[np.int64],
        action: NDArray[np.int64],
        uniform: NDArray[np.float64],
    ) -> None:
        plan = self._plan
        given: tuple[Any, ...] = (
            step,
            self.count,
            self.alive,
            self.keys,
            self.nodes,
            as_input(self._candidate, np.int64),
            plan.per_part,
            plan.sides.learner_joint,
            plan.sides.other_joint,
            *policies,
        )
        out: tuple[Any, ...] = (node, action, uniform)
        legality = plan.tables.legality
        if legality.always:
            status, at = action_kernels.draw_actions(*given, *out)
        else:
            mask: tuple[Any, ...] = legality.bits(self.nodes[self.alive[: self.count]])
            status, at = action_kernels.draw_legal_actions(*given, *mask, *out)
            if status == action_kernels.OK:
                self.count = at
        if status == action_kernels.OK:
            return
        environment = int(self.alive[at])
        part = environment // plan.per_part
        at_node = int(self.nodes[environment])
        if status == action_kernels.ILLEGAL_CANDIDATE:
            raise UsageError(
                f"candidate {self._candidate[part]} of root {self._root[part]} is part of no legal joint action "
                f"of node {at_node}",
                "Give -1 for it; graph.legal tells which joint actions are legal.",
            )
        whose = "learner" if status == action_kernels.UNCOVERED else "other side"
        raise UsageError(
            f"node {at_node}, {step} steps from root {self._root[part]}, has no row in the {whose}'s policy table",
            "Tabulate the policy over all nodes, or over RolloutState.nodes() at every step.",
        )


def _table_arrays(table: PolicyTable) -> tuple[Any, ...]:
    return table.cumulative, table.stride, table.nodes, table.row_of


def _check(values: NDArray[np.int64], low: int, high: int, name: str) -> None:
    outside = np.flatnonzero((values < low) | (values >= high))
    if len(outside):
        at = int(outside[0])
        raise UsageError(f"{name} {values[at]} at position {at} isn't within {low} to {high - 1:,}")


def _mapped(function: Callable[[Any], Any], items: Sequence[Any], threads: int) -> Iterable[Any]:
    """Apply a function to items, in threads; results in the order of items."""
    if threads < 2 or len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as executor:
        return list(executor.map(function, items))
