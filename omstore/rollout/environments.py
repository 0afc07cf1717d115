"""Environments of rollouts: where they are, what they have returned, and how they go one step on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, UsageError
from omstore.read.graph import Graph
from omstore.rollout import action_kernels, key_kernels, outcome_kernels
from omstore.rollout.policies import PolicyTable
from omstore.rollout.tables import RolloutTables

__all__ = ["PART", "Block", "Plan"]

PART = 1024
"""Rollouts of a candidate whose returns are summed before the sums are: part of the result, by rounding."""

_BLOCK = 16384  # environments that a thread takes at a time at most: fewer make more calls, more fall out of its cache


class Plan:
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

    def block(self, piece: slice) -> Block:
        """Place the environments of some parts at their roots."""
        return Block(self, piece)

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


class Block:
    """Some environments: where they are, what they have returned, and which go on."""

    def __init__(self, plan: Plan, piece: slice) -> None:
        self._plan = plan
        parts = np.arange(piece.start, piece.stop)
        which, part = np.divmod(parts, plan.parts_each)
        per_part = plan.per_part
        self._root = which // max(1, plan.candidates.shape[1])
        self._candidate = plan.candidates.reshape(-1)[which]
        self.keys = np.empty(len(parts) * per_part, np.uint64)
        key_kernels.environment_keys(
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
