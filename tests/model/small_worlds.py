"""Small worlds for tests of models: a walker on a line, dice that move nobody, and pursuit beside its twin."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.model import IndependentModel, Kernel, Outcomes, TransitionModel


class Drift(TransitionModel):
    """Two walkers on a ring that can't pass each other: not independent; rewards by edge.

    Explored from one state, so that only some of the product's states are nodes. Walker 1 may not move left
    from place 0.
    """

    agents = ("one", "two")
    num_actions = (2, 3)

    def __init__(self, length: int = 5, slip: float = 0.25) -> None:
        self.length = length
        self.slip = slip
        self.sizes = (length, length, 2)

    def initial_states(self) -> Any:
        return [(0, 2, 0)]

    def legal(self, states: np.ndarray) -> np.ndarray:
        legal = np.ones((len(states), 6), np.bool_)
        legal[states[:, 1] == 0, 2::3] = False
        return legal

    def absorbing(self, states: np.ndarray) -> np.ndarray:
        return states[:, 0] == states[:, 1]

    def rows(self, state: tuple[int, ...], actions: tuple[int, int]) -> list[tuple[Any, ...]]:
        """All outcomes of one row, written as the rules read."""
        one, two, seen = state
        moved_one = (one + actions[0]) % self.length
        moved_two = (two + (0, 1, -1)[actions[1]]) % self.length
        found: dict[tuple[int, ...], float] = {}
        for one_next, chance_one in ((moved_one, 1 - self.slip), (one, self.slip)):
            for two_next, chance_two in ((moved_two, 0.5), (two, 0.5)):
                if one_next == two and two_next == one and one != two:
                    one_next, two_next = one, two  # they would pass: both stay
                key = (one_next, two_next, int(seen or one_next == 3))
                found[key] = found.get(key, 0.0) + chance_one * chance_two
        return [
            (key, chance, (0.5 * key[0] - actions[0], chance * 8), key[2] == 1 and actions[1] == 1)
            for key, chance in found.items()
        ]

    def successors(self, states: np.ndarray, joint_actions: np.ndarray) -> Outcomes:
        actions = self.actions(joint_actions)
        return Outcomes.of_rows(
            self.rows(tuple(state), tuple(action))
            for state, action in zip(states.tolist(), actions.tolist(), strict=True)
        )


class Weather(IndependentModel):
    """Two independent agents of different sizes, a component that nobody moves, an illegal action, and
    vectors that sort neither up nor down."""

    agents = ("a", "b")
    num_actions = (2, 3)
    sizes = (3, 2, 4)
    movers = (0, None, 1)

    def __init__(self, seed: int = 0, absorb: bool = True, vectors: str = "shuffled") -> None:
        self.rng_seed = seed
        self.absorb = absorb
        self.kind = vectors

    def kernel(self, component: int) -> Kernel:
        rng = np.random.default_rng([self.rng_seed, component])
        size, actions = self.sizes[component], self.kernel_num_actions(component)
        table = rng.integers(0, 3, (size, actions, size)).astype(np.float64)
        table[..., 0] += table.sum(axis=2) == 0
        table /= table.sum(axis=2, keepdims=True)
        if component == 2:
            table[1, 2] = 0.0  # agent b can't take action 2 at 1
        return Kernel.of_table(table)

    def absorbing(self, states: np.ndarray) -> Any:
        return (states[:, 0] == 2) & (states[:, 2] == 3) if self.absorb else None

    def reward(self, next_states: np.ndarray) -> np.ndarray:
        return next_states[:, [0, 2]] * 0.5

    def vectors(self, states: np.ndarray) -> np.ndarray:
        if self.kind == "one-hot":
            return super().vectors(states)
        if self.kind == "shuffled":  # by component, in an order of its own
            return np.stack([np.array([2, 0, 1])[states[:, 0]], states[:, 1], 3 - states[:, 2]], axis=1)
        mixed = (self.space.numbers(states) * 7 + 3) % self.space.count  # by nothing a component knows
        return np.stack([mixed // 5, mixed % 5], axis=1)


class ManyProbabilities(IndependentModel):
    """Two walkers with so many distinct probabilities that their products have no codes."""

    agents = ("x", "y")
    num_actions = (2, 2)
    sizes = (40, 40)

    def kernel(self, component):
        table = np.random.default_rng(component).random((40, 2, 40))
        table[table < 0.7] = 0
        return Kernel.of_table(table / table.sum(axis=2, keepdims=True))


def make_drift(length: int = 5, slip: float = 0.25) -> Drift:
    return Drift(length, slip)


def make_weather(seed: int = 0, vectors: str = "one-hot") -> Weather:
    return Weather(seed, vectors=vectors)
