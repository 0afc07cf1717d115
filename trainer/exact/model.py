"""Backward induction on a stored graph: the truth that rollouts and learning are measured against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import omstore
from omstore.compiled import as_input
from omstore.errors import UsageError
from trainer.exact.problems import Policy, Problem, Solution
from trainer.exact.steps import OTHER, Step, Steps
from trainer.joint_actions import find_agent
from trainer.tables import Side

__all__ = ["ExactModel"]

_MOST_SWEEPS = 100_000


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
        self.steps = Steps(graph, self.focal_agent, threads)

    def num_actions(self, side: Side) -> int:
        """Return how many actions a side has."""
        return len(self.steps.joint[side])

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
        reward: Side | int = "agent",
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
        policy = self.steps.checked(team if side == "agent" else agent, OTHER[side])
        agent_plays, team_plays = (None, policy) if side == "agent" else (policy, None)
        step = Step(side, agent_plays, team_plays, self._weights(side), discount)
        return self.steps.action_values(step, values)

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
        steps = [self._step(problem, discount) for problem in problems]
        actions = [None if problem.responds is None else np.empty(nodes, np.int64) for problem in problems]
        before, after = np.zeros((2, len(problems), nodes))
        error, sweeps = 0.0, 0
        while sweeps < (_MOST_SWEEPS if horizon is None else horizon):
            self.steps.back_up(steps, before, after, actions)
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

    def _step(self, problem: Problem, discount: float) -> Step:
        agent, team = (
            None if policy is None else self.steps.checked(policy, side) for side, policy in _sides(problem)
        )
        return Step(problem.responds or "policies", agent, team, self._weights(problem.counted), discount)

    def _weights(self, side: Side | int) -> NDArray[np.float64]:
        """Return how much each agent's reward counts."""
        weights = np.zeros(len(self.graph.agents))
        if isinstance(side, int):
            if not 0 <= side < len(weights):
                raise UsageError(f"there is no agent {side}: there are {len(weights)}")
            weights[side] = 1.0
            return as_input(weights, np.float64)
        if side == "agent":
            weights[self.focal_agent] = 1.0
        else:
            weights[:] = 1 / (len(weights) - 1)
            weights[self.focal_agent] = 0.0
        return as_input(weights, np.float64)


def _sides(problem: Problem) -> tuple[tuple[Side, Policy | None], tuple[Side, Policy | None]]:
    return ("agent", problem.agent), ("team", problem.team)


def _check(horizon: int | None, discount: float) -> None:
    if (horizon is not None and horizon < 1) or not 0 <= discount <= 1:
        raise UsageError(f"a horizon of {horizon} steps is at least 1; a discount of {discount} is 0 to 1")
