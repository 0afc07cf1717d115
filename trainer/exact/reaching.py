"""How likely it is to reach goal nodes, such as captures: within some steps, or ever, between sound bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, UsageError
from trainer.exact.model import ExactModel
from trainer.exact.problems import Policy
from trainer.exact.steps import Step

__all__ = ["Reached", "done_nodes", "reach"]

_NEVER = -1e300
"""What leaving for a node counts where no probability, however small, may lead there."""

_DECIDED = 1e-4
"""Probability that something is decided from which on it divides: rounding then counts ten thousand times at most."""

_ROUNDING = 1e-15
"""What sums of products may be too large by, of numbers that are probabilities."""

_MOST_SWEEPS = 100_000

_ROWS_AT_A_TIME = 1 << 16


@dataclass(frozen=True)
class Reached:
    """Probabilities of reaching the goal.

    Attributes
    ----------
    lower, upper : (N,) float64
        Bounds on the probability from each node; equal within a number of steps. Sound but for the rounding of sums.
    sweeps : int
        Over all rows, those that find out where it is 0 or 1 included.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    sweeps: int

    @property
    def values(self) -> NDArray[np.float64]:
        """(N,) the middle between both bounds."""
        return self.lower if self.lower is self.upper else (self.lower + self.upper) / 2

    @property
    def error(self) -> float:
        """Largest distance between a node's bounds."""
        return 0.0 if self.lower is self.upper else float((self.upper - self.lower).max(initial=0.0))


def done_nodes(model: ExactModel) -> NDArray[np.bool_]:
    """Return which nodes are entered with done, (N,) bool.

    A sweep over all edges, unless the store says of each node whether edges to it are done.
    """
    graph = model.graph
    done = graph.attribute("done")
    nodes = np.zeros(graph.num_nodes, np.bool_)
    if done.level == "next_node" or (done.level == "next_node_unless_node" and done.codes is not None):
        flags = np.asarray(done.values[:], np.uint8) > 0
        if done.codes is None:
            return flags
        if int(np.max(done.codes, initial=0)) >= len(flags):
            raise CorruptStoreError(
                f"nodes/attributes/done: a node has a code that isn't within 0 to {len(flags) - 1}",
                "Publish again, or `omstore rollback` to an earlier version.",
            )
        nodes[:] = flags[done.codes]
        if done.own is not None:
            _add_of_own(model, np.flatnonzero(np.asarray(done.own) > 0), nodes)
        return nodes
    if done.level == "graph" and not np.asarray(done.values[:]).any():
        return nodes
    model.steps.sweep(lambda chunk: _mark(nodes, chunk.next_node[chunk.done]))
    return nodes


def _mark(nodes: NDArray[np.bool_], found: NDArray[np.int64]) -> None:
    nodes[found] = True  # threads only ever write the same


def _add_of_own(model: ExactModel, own: NDArray[np.int64], nodes: NDArray[np.bool_]) -> None:
    """Mark what nodes with a value of their own lead to with done."""
    joint = model.graph.num_joint_actions
    step = max(1, _ROWS_AT_A_TIME // joint)
    for first in range(0, len(own), step):
        piece = own[first : first + step]
        found = model.graph.successors(np.repeat(piece, joint), np.tile(np.arange(joint), len(piece)))
        nodes[found.next_node[found.done]] = True


def reach(
    model: ExactModel,
    *,
    choice: Literal["policies", "most", "least"] = "policies",
    agent: Policy | None = None,
    team: Policy | None = None,
    goal: NDArray[np.bool_] | None = None,
    horizon: int | None = None,
    tolerance: float = 1e-6,
    max_sweeps: int = _MOST_SWEEPS,
) -> Reached:
    """Compute how likely the goal is reached from each node.

    Parameters
    ----------
    model : ExactModel
    choice : {"policies", "most", "least"}
        Both sides play by policies; or one player chooses all joint actions, anew at each step, to make it as likely
        or as unlikely as can be.
    agent, team : Policy, optional
        Where both play by policies.
    goal : (N,) bool, optional
        Nodes to reach; who is there has reached it. Default: those entered with done (`done_nodes`). Other edges
        that are done don't end anything here: the graph's rows go on.
    horizon : int or None
        Steps, at least 0. None: any number of them.
    tolerance : float
        Without a horizon: sweeps go on until the bounds of every node are as near.
    max_sweeps : int
        Without a horizon: gives up being nearer after as many; `Reached.error` says how near it came.

    Returns
    -------
    Reached

    Raises
    ------
    UsageError
        If policies are missing or of another shape, or a number makes no sense.

    Notes
    -----
    Without a horizon, nodes where the probability is exactly 0 (for "most" also those where it is 1) are found first, by
    which edges there are. For one player this is interval iteration [1]_ then: one iteration goes up from 0 and one down
    from 1. Where one who wants the most can stay among other nodes for ever (end components), the second may stop above
    the probability; so once the first hardly rises, what lies half of `tolerance` above it is tried as an upper bound [2]_: the
    probability is the least of all numbers that the sweep doesn't make larger. Under policies it is sound value iteration
    [3]_: every node but those where it is 0 gets to the goal or to one of these, so in the end all is decided.
    `max_sweeps`, or a whole sweep without change, ends the search; the bounds are bounds whenever it ends.

    .. [1] S. Haddad, B. Monmege: Interval iteration algorithm for MDPs and IMDPs. Theor. Comput. Sci. 735, 2018.
    .. [2] A. Hartmanns, B. L. Kaminski: Optimistic value iteration. CAV 2020.
    .. [3] T. Quatmann, J.-P. Katoen: Sound value iteration. CAV 2018.
    """
    if horizon is not None and horizon < 0:
        raise UsageError(f"a horizon of {horizon} steps is at least 0")
    if not tolerance > 0 or max_sweeps < 1:
        raise UsageError(f"a tolerance of {tolerance} is above 0, and {max_sweeps} sweeps are at least 1")
    return _Search(model, choice, agent, team, goal).run(horizon, tolerance, max_sweeps)


class _Search:
    """One goal, one way of choosing actions."""

    def __init__(
        self,
        model: ExactModel,
        choice: Literal["policies", "most", "least"],
        agent: Policy | None,
        team: Policy | None,
        goal: NDArray[np.bool_] | None,
    ) -> None:
        nodes = model.graph.num_nodes
        if choice == "policies":
            if agent is None or team is None:
                raise UsageError("to reach a goal by policies takes the focal agent's and the team's")
            agent, team = model.steps.checked(agent, "agent"), model.steps.checked(team, "team")
        if goal is not None and (goal.shape != (nodes,) or goal.dtype != np.bool_):
            raise UsageError(
                f"a goal is (N,) bool for {nodes:,} nodes, not {goal.dtype} of shape {goal.shape}",
                "A mask of nodes: True for those to reach.",
            )
        self.model = model
        self.choice = choice
        self.goal = done_nodes(model) if goal is None else goal
        no_reward = as_input(np.empty(0), np.float64)
        self.step = Step(choice, agent, team, no_reward, 1.0, ends=False)
        self.sweeps = 0
        self._after = np.empty((1, nodes))

    def expect(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expected value of the next node, actions chosen; overwritten by the next call."""
        self.model.steps.back_up([self.step], values[None], self._after)
        self.sweeps += 1
        found: NDArray[np.float64] = self._after[0]
        return found

    def run(self, horizon: int | None, tolerance: float, max_sweeps: int) -> Reached:
        lower = self.goal.astype(np.float64)
        if horizon is not None:
            for _ in range(horizon):
                found = self.expect(lower)
                lower[:] = np.where(self.goal, 1.0, found)
            return Reached(lower, lower, self.sweeps)
        possible = self._positive()
        sure = self._almost_sure(possible) if self.choice == "most" else self.goal
        lower[sure] = 1.0
        if self.choice == "policies":
            return self._of_chain(lower, possible & ~sure, tolerance, max_sweeps)
        return self._between(lower, possible.astype(np.float64), possible & ~sure, tolerance, max_sweeps)

    def _of_chain(
        self, lower: NDArray[np.float64], open_: NDArray[np.bool_], tolerance: float, max_sweeps: int
    ) -> Reached:
        """Iterate how likely the goal has been reached, and how likely nothing is decided yet, by policies.

        From where nothing is decided, the goal is reached with a probability between the least and the most of
        ``reached / (1 - undecided)`` over all nodes, after any number of steps.
        """
        steps = [self.step, self.step]
        before = np.stack((lower, open_.astype(np.float64)))
        after = np.empty_like(before)
        least, most = 0.0, 1.0
        while self.sweeps < max_sweeps and (most - least) * float(before[1].max(initial=0.0)) > tolerance:
            self.model.steps.back_up(steps, before, after)
            self.sweeps += 1
            np.maximum(before[0], after[0], out=after[0])  # but for rounding
            np.minimum(before[1], after[1], out=after[1])
            after[:, ~open_] = before[:, ~open_]
            decided = 1.0 - after[1][open_]
            if decided.min(initial=1.0) >= _DECIDED:
                ratio = after[0][open_] / decided
                least, most = max(least, float(ratio.min())), min(most, float(ratio.max()))
            if np.array_equal(before, after):
                break
            before, after = after, before
        reached, undecided = before
        return Reached(reached + undecided * least, np.minimum(reached + undecided * most, 1.0), self.sweeps)

    def _between(
        self,
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        open_: NDArray[np.bool_],
        tolerance: float,
        max_sweeps: int,
    ) -> Reached:
        """Iterate from below and from above where the probability isn't known yet; and guess."""
        steps = [self.step, self.step]
        before = np.stack((lower, upper))
        after = np.empty_like(before)
        next_guess = 0
        while self.sweeps < max_sweeps and float((before[1] - before[0]).max(initial=0.0)) > tolerance:
            self.model.steps.back_up(steps, before, after)
            self.sweeps += 1
            # Both go one way only, but for rounding, which isn't let in.
            np.maximum(before[0], after[0], out=after[0])
            np.minimum(before[1], after[1], out=after[1])
            after[:, ~open_] = before[:, ~open_]
            rises = float((after[0] - before[0]).max(initial=0.0))
            still = np.array_equal(before, after)
            before, after = after, before
            if still or (rises <= tolerance / 4 and next_guess <= self.sweeps < max_sweeps):
                next_guess = self.sweeps + self.sweeps // 4 + 1
                if self._guess(before, open_, tolerance) or still:
                    break
        return Reached(before[0].copy(), before[1].copy(), self.sweeps)

    def _guess(self, bounds: NDArray[np.float64], open_: NDArray[np.bool_], tolerance: float) -> bool:
        """Look whether a little more than the lower bound is an upper one; it is if no action makes more of it."""
        guess = bounds[1].copy()
        guess[open_] = np.minimum(guess[open_], bounds[0][open_] + tolerance / 2)
        expected = self.expect(guess)
        holds = bool((expected[open_] <= guess[open_] * (1 + _ROUNDING)).all())
        if holds:
            bounds[1][open_] = np.minimum(guess[open_], np.maximum(expected[open_], bounds[0][open_]))
        return holds

    def _positive(self) -> NDArray[np.bool_]:
        """Return from where the goal can be reached at all; for "least", from where it can't be avoided for sure."""
        known = self.goal.copy()
        while True:
            more = known | (self.expect(known.astype(np.float64)) > 0)
            if np.array_equal(more, known):
                return known
            known = more

    def _almost_sure(self, possible: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return from where one player reaches the goal with probability 1: the largest set of nodes from each of
        which some joint actions, none of which may leave the set, lead to the goal."""
        inside = possible
        while True:
            known = self.goal.copy()
            values = np.empty(len(known))
            while True:
                values[:] = np.where(inside, known, _NEVER)
                # above 0: some joint action never leaves the set, and may come nearer
                more = known | (inside & (self.expect(values) > 0))
                if np.array_equal(more, known):
                    break
                known = more
            if np.array_equal(known, inside):
                return inside
            inside = known
