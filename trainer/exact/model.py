"""Backward induction on a stored graph: the truth that rollouts and learning are measured against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import omstore
from omstore import PolicyTable
from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.rollout import Sides
from trainer.exact.kernels import action_backup, best_backup, policy_backup, row_backup
from trainer.exact.problems import Policy, Problem, Solution
from trainer.joint_actions import find_agent
from trainer.tables import Side

__all__ = ["ExactModel"]

_CHUNK_EDGES = 1 << 17
"""Edges read at a time, about: 7 MB. Fewer take more calls, more don't stay in cache."""

_MOST_SWEEPS = 100_000

_OTHER: dict[Side, Side] = {"agent": "team", "team": "agent"}


@dataclass(frozen=True)
class _Chunk:
    """Consecutive nodes of a sweep."""

    nodes: slice
    offsets: NDArray[np.int64]
    next_node: NDArray[np.int64]
    probability: NDArray[np.float64]
    reward: NDArray[np.float64]
    done: NDArray[np.bool_]

    @classmethod
    def of(cls, chunk: omstore.SweepChunk, num_joint_actions: int) -> _Chunk:
        found = chunk.successors
        node, rest = divmod(chunk.first_row, num_joint_actions)
        count, more = divmod(len(found.offsets) - 1, num_joint_actions)
        assert rest == more == 0  # chunks of as many rows as were asked for
        return cls(
            slice(node, node + count),
            as_input(found.offsets, np.int64),
            as_input(found.next_node, np.int64),
            as_input(found.probability, np.float64),
            as_input(found.reward, np.float64),
            as_input(found.done, np.bool_),
        )


class ExactModel:
    """A graph whose values are computed, not estimated, by sweeps over all rows.

    Actions are played as in rollouts (`omstore.rollout.rollout`): joint actions have the product of both policies
    restricted to legal ones and normalized again; where that is 0 on all legal ones, each of them is as likely. An
    edge that is done ends the episode, and so does a node without a legal joint action.

    Any row encoding will do. A sweep streams the rows; memory: 16 bytes a node for each problem, 8 more for a best
    response, and some megabytes a thread. Nodes are backed up one by one, so threads have no influence.

    Parameters
    ----------
    graph : Graph
    focal_agent : int or str
        Number or name; the other agents are the team.
    threads : int

    Raises
    ------
    UsageError
        If there is no such agent, or fewer than 1 thread.
    """

    def __init__(self, graph: omstore.Graph, focal_agent: int | str = 0, *, threads: int = 2) -> None:
        if threads < 1:
            raise UsageError(f"{threads} threads do no work: at least 1 is needed")
        self.graph = graph
        self.focal_agent = find_agent(graph.agents, focal_agent)
        self.threads = threads
        sides = Sides.of(graph.num_actions, [self.focal_agent])
        self._joint: dict[Side, NDArray[np.int32]] = {
            "agent": sides.learner_joint,
            "team": sides.other_joint,
        }
        edges_of_node = max(graph.num_joint_actions, graph.num_edges // max(1, graph.num_nodes))
        self._nodes_at_a_time = max(1, _CHUNK_EDGES // edges_of_node)

    def num_actions(self, side: Side) -> int:
        """Return how many actions a side has."""
        return len(self._joint[side])

    def uniform(self, side: Side) -> NDArray[np.float64]:
        """Return the policy that plays every action alike, (N, actions); takes no memory."""
        count = self.num_actions(side)
        return np.broadcast_to(np.float64(1 / count), (self.graph.num_nodes, count))

    def evaluate(
        self,
        agent: Policy,
        team: Policy,
        *,
        horizon: int | None,
        discount: float,
        reward: Side = "agent",
        tolerance: float = 1e-9,
    ) -> Solution:
        """Return the values of two policies; see `solve`."""
        problem = Problem(agent, team, reward)
        return self.solve([problem], horizon=horizon, discount=discount, tolerance=tolerance)[0]

    def best_response(
        self,
        other: Policy,
        *,
        side: Side = "agent",
        horizon: int | None,
        discount: float,
        tolerance: float = 1e-9,
    ) -> Solution:
        """Return the values of the best response of a side to the other's policy, and its first actions; see
        `solve`. No policy of this side, whatever it remembers, has higher values at any node."""
        problem = Problem(None, other) if side == "agent" else Problem(other, None)
        return self.solve([problem], horizon=horizon, discount=discount, tolerance=tolerance)[0]

    def action_values(
        self, agent: Policy, team: Policy, *, side: Side = "agent", horizon: int, discount: float
    ) -> NDArray[np.float64]:
        """Return what a side's first actions are worth, when both play by their policies after.

        Parameters
        ----------
        agent, team : Policy
        side : {"agent", "team"}
            Whose actions, and whose reward counts.
        horizon : int
            Steps, the first included.
        discount : float

        Returns
        -------
        (N, actions) float64
            NaN where an action is part of no legal joint action. What `omstore.rollout.rollout` estimates.
        """
        _check(horizon, discount)
        problem = Problem(agent, team, side)
        values = np.zeros(self.graph.num_nodes)
        if horizon > 1:
            values = self.solve([problem], horizon=horizon - 1, discount=discount)[0].values
        result = np.empty((self.graph.num_nodes, self.num_actions(side)))
        other = _OTHER[side]
        policy = self._checked(team if side == "agent" else agent, other)

        def back_up(chunk: _Chunk) -> None:
            rows = self._rows(chunk, self._weights(side), values, discount)
            action_backup(
                rows, chunk.offsets, _part(policy, chunk.nodes), self._joint[side], self._joint[other],
                result[chunk.nodes],
            )  # fmt: skip

        self._sweep(back_up)
        return result

    def solve(
        self, problems: Sequence[Problem], *, horizon: int | None, discount: float, tolerance: float = 1e-9
    ) -> list[Solution]:
        """Solve problems together, in the same sweeps: reading the rows takes longer than backing them up.

        Parameters
        ----------
        problems : sequence of Problem
        horizon : int or None
            Steps, at least 1. None: no end; sweeps go on until every value is within `tolerance` of its limit. After
            k of them it is within ``discount ** k * largest reward / (1 - discount)``, and often nearer: the bound
            that is used is ``discount / (1 - discount)`` times the largest change of the last sweep.
        discount : float
            0 to 1; below 1 without an end. The reward of the last of `horizon` steps counts ``discount ** (horizon -
            1)``.
        tolerance : float
            Above 0, a return.

        Returns
        -------
        list of Solution
            One a problem.

        Raises
        ------
        UsageError
            If a policy has another shape, or a number makes no sense.
        CorruptStoreError
            If a file is damaged where it was read.
        """
        _check(horizon, discount)
        if horizon is None and (not discount < 1 or not tolerance > 0):
            raise UsageError(f"without an end discount is below 1, not {discount}, and tolerance above 0")
        nodes = self.graph.num_nodes
        policies = [
            {side: self._checked(policy, side) for side, policy in _sides(problem) if policy is not None}
            for problem in problems
        ]
        actions = [None if problem.responds is None else np.empty(nodes, np.int64) for problem in problems]
        weights = [self._weights(problem.counted) for problem in problems]
        before, after = np.zeros((2, len(problems), nodes))
        error, sweeps = 0.0, 0

        def back_up(chunk: _Chunk) -> None:
            for k, problem in enumerate(problems):
                rows = self._rows(chunk, weights[k], before[k], discount)
                self._back_up(problem, policies[k], chunk, rows, after[k], actions[k])

        while sweeps < (_MOST_SWEEPS if horizon is None else horizon):
            self._sweep(back_up)
            sweeps += 1
            if horizon is None:
                change = float(np.abs(after - before).max(initial=0.0))
                error = change * discount / (1 - discount)
            before, after = after, before
            if horizon is None and error <= tolerance:
                break
        return [
            Solution(before[k].copy(), actions[k], sweeps, error if horizon is None else 0.0)
            for k in range(len(problems))
        ]

    # Inside

    def _back_up(
        self,
        problem: Problem,
        policies: dict[Side, Policy],
        chunk: _Chunk,
        rows: NDArray[np.float64],
        values: NDArray[np.float64],
        actions: NDArray[np.int64] | None,
    ) -> None:
        responds = problem.responds
        if responds is None:
            own, other = (_part(policies[side], chunk.nodes) for side in ("agent", "team"))
            joint = self._joint["agent"], self._joint["team"]
            policy_backup(rows, chunk.offsets, own, other, *joint, values[chunk.nodes])
            return
        assert actions is not None
        joint = self._joint[responds], self._joint[_OTHER[responds]]
        other = _part(policies[_OTHER[responds]], chunk.nodes)
        best_backup(rows, chunk.offsets, other, *joint, values[chunk.nodes], actions[chunk.nodes])

    def _rows(
        self, chunk: _Chunk, weights: NDArray[np.float64], values: NDArray[np.float64], discount: float
    ) -> NDArray[np.float64]:
        rows = np.empty(len(chunk.offsets) - 1)
        row_backup(
            chunk.offsets,
            chunk.next_node,
            chunk.probability,
            chunk.reward,
            chunk.done,
            weights,
            as_input(values, np.float64),
            float(discount),
            rows,
        )
        return as_input(rows, np.float64)

    def _sweep(self, back_up: Callable[[_Chunk], None]) -> None:
        """Give all nodes to `back_up`, a chunk at a time; each thread goes through a part of its own."""
        joint = self.graph.num_joint_actions
        bounds = np.linspace(0, self.graph.num_nodes, self.threads + 1).astype(np.int64).tolist()

        def run(first: int, last: int) -> None:
            rows = self._nodes_at_a_time * joint
            for chunk in self.graph.sweep(rows, start_node=first, stop_node=last):
                back_up(_Chunk.of(chunk, joint))

        if self.threads == 1:
            run(0, self.graph.num_nodes)
            return
        with ThreadPoolExecutor(self.threads) as executor:
            list(executor.map(run, bounds[:-1], bounds[1:]))

    def _weights(self, side: Side) -> NDArray[np.float64]:
        """Return how much each agent's reward counts."""
        weights = np.zeros(len(self.graph.agents))
        if side == "agent":
            weights[self.focal_agent] = 1.0
        else:
            weights[:] = 1 / (len(weights) - 1)
            weights[self.focal_agent] = 0.0
        return as_input(weights, np.float64)

    def _checked(self, policy: Policy, side: Side) -> Policy:
        shape = (self.graph.num_nodes, self.num_actions(side))
        if isinstance(policy, PolicyTable):
            if not policy.everywhere or (policy.num_rows, policy.num_actions) != shape:
                raise UsageError(
                    f"the {side}'s table has {policy.num_rows} rows of {policy.num_actions} actions; exact values "
                    f"take one of all {shape[0]:,} nodes and {shape[1]} actions"
                )
            return policy
        if policy.shape != shape or policy.dtype.kind != "f":
            raise UsageError(
                f"the {side}'s policy is {policy.dtype} of shape {policy.shape}; exact values take floats of {shape}"
            )
        return policy


def _sides(problem: Problem) -> tuple[tuple[Side, Policy | None], tuple[Side, Policy | None]]:
    return ("agent", problem.agent), ("team", problem.team)


def _part(policy: Policy, nodes: slice) -> NDArray[np.float64]:
    """Return the probabilities of some nodes, (n, actions)."""
    part = policy.probabilities(nodes) if isinstance(policy, PolicyTable) else policy[nodes]
    return as_input(part, np.float64)


def _check(horizon: int | None, discount: float) -> None:
    if (horizon is not None and horizon < 1) or not 0 <= discount <= 1:
        raise UsageError(f"a horizon of {horizon} steps is at least 1; a discount of {discount} is 0 to 1")
