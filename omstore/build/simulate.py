"""Replays simulated on a model: episodes of uniformly random actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import ModelError
from omstore.model.checks import Answers
from omstore.model.rows import ProceduralRows
from omstore.rows import Probabilities

__all__ = ["SimulatedSteps", "simulate"]

_EPISODES = 1 << 8
"""Episodes that run side by side. A part of what a seed means: another number gives another replay."""

_TRIES = 64


@dataclass(frozen=True)
class SimulatedSteps:
    """Consecutive transitions, (n,) or (n, agents) arrays; episodes one behind the other."""

    node: NDArray[np.int64]
    joint_action: NDArray[np.int64]
    next_node: NDArray[np.int64]
    reward: NDArray[np.float64]
    done: NDArray[np.uint8]


def simulate(
    source: ProceduralRows,
    count: int,
    *,
    seed: int = 0,
    horizon: int = 100,
    tick: Callable[[int], object] = lambda n: None,
) -> Iterator[SimulatedSteps]:
    """Play episodes until there are `count` transitions.

    An episode begins in one of the model's initial states, or in any state that isn't absorbing, each equally
    likely; every step takes one of the node's legal joint actions, each equally likely; it ends when done, or
    after `horizon` steps.

    Parameters
    ----------
    source : ProceduralRows
    count, seed, horizon : int
        Equal ones give equal replays.
    tick : callable
        Told numbers of transitions.

    Yields
    ------
    SimulatedSteps
        Memory: 256 episodes.

    Raises
    ------
    ModelError
        If all states tried to begin in are absorbing, or a state has no legal joint action.
    """
    run = _Simulation(source, np.random.default_rng(seed), horizon)
    left = count
    while left > 0:
        steps = run.block()
        if len(steps.node) > left:
            steps = SimulatedSteps(*(getattr(steps, name)[:left] for name in SimulatedSteps.__annotations__))
        left -= len(steps.node)
        tick(len(steps.node))
        yield steps


class _Simulation:
    def __init__(self, source: ProceduralRows, rng: np.random.Generator, horizon: int) -> None:
        self.source = source
        self.rng = rng
        self.horizon = horizon
        self.answers = Answers(source.model)
        self.num_joint_actions = source.size.num_joint_actions
        self.by_rows = Probabilities("rows", np.empty(0))
        given = source.model.initial_states()
        self.initial: NDArray[np.int64] | None = None
        if given is not None:
            numbers = source.numbering.space.numbers(np.asarray(given, np.int64))
            self.initial = source.numbering.nodes(numbers)

    def block(self) -> SimulatedSteps:
        """Play episodes side by side; give their transitions one episode behind the other."""
        nodes = self._begin()
        alive = np.arange(_EPISODES)
        columns: list[tuple[NDArray[Any], ...]] = []
        for step in range(self.horizon):
            joint_actions = self._actions(nodes)
            next_nodes, rewards, done = self._step(nodes, joint_actions)
            order = alive * self.horizon + step
            columns.append((order, nodes, joint_actions, next_nodes, rewards, done))
            going = np.flatnonzero(done == 0)
            if not len(going):
                break
            nodes, alive = next_nodes[going], alive[going]
        order, *rest = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        by_episode = np.argsort(order)
        return SimulatedSteps(*(values[by_episode] for values in rest))

    def _begin(self) -> NDArray[np.int64]:
        if self.initial is not None:
            return self.initial[self.rng.integers(0, len(self.initial), _EPISODES)]
        nodes = self.rng.integers(0, self.source.size.num_nodes, _EPISODES)
        for _ in range(_TRIES):
            absorbing = np.flatnonzero(self.answers.absorbing(self.source.numbering.states(nodes)))
            if not len(absorbing):
                return nodes
            nodes[absorbing] = self.rng.integers(0, self.source.size.num_nodes, len(absorbing))
        raise ModelError(
            f"{type(self.source.model).__name__}: {_TRIES} states drawn to begin an episode in were all "
            "absorbing",
            "Say where episodes begin with `initial_states`.",
        )

    def _actions(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw legal joint actions: any, and again where it isn't legal."""
        chosen = self.rng.integers(0, self.num_joint_actions, len(nodes))
        open_ = np.arange(len(nodes))
        for _ in range(_TRIES):
            rows = nodes[open_] * self.num_joint_actions + chosen[open_]
            open_ = open_[self.source.outdegree(rows) == 0]
            if not len(open_):
                return chosen
            chosen[open_] = self.rng.integers(0, self.num_joint_actions, len(open_))
        for i in open_.tolist():  # few are legal: look at all of them
            rows = nodes[i] * self.num_joint_actions + np.arange(self.num_joint_actions)
            legal = np.flatnonzero(self.source.outdegree(rows) > 0)
            if not len(legal):
                state = tuple(self.source.numbering.states(nodes[i : i + 1])[0].tolist())
                raise ModelError(
                    f"{type(self.source.model).__name__}: state {state} has no legal joint action",
                    "Make it absorbing, or done on entering it.",
                )
            chosen[i] = legal[self.rng.integers(0, len(legal))]
        return chosen

    def _step(
        self, nodes: NDArray[np.int64], joint_actions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.uint8]]:
        rows = nodes * self.num_joint_actions + joint_actions
        drawn = self.source.sample(rows, self.rng.random(len(rows)), self.by_rows)
        if "reward" in drawn.attributes:
            return drawn.next_node, drawn.attributes["reward"], drawn.attributes["done"]
        following = self.source.numbering.states(drawn.next_node)
        rewards = self.answers.reward(following)
        rewards[self.answers.absorbing(self.source.numbering.states(nodes))] = 0.0
        return drawn.next_node, rewards, self.answers.done(following).astype(np.uint8)
