"""What a model answers, checked: shapes, ranges, sums. Messages name the state and the joint action."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel
from omstore.errors import ModelError
from omstore.model.protocol import IndependentModel, Kernel, Outcomes, TransitionModel

__all__ = ["Answers", "checked_kernel", "checked_model"]

TOLERANCE = 1e-6
"""How far the probabilities of a row may be from summing to 1."""

_MAX_AGENTS_ACTIONS = 1 << 40


@kernel
def _first_bad_sum(offsets: Any, probability: Any, tolerance: float) -> tuple[int, float]:
    """Find the first row whose probabilities are out of 0..1 or don't sum to 1; -1 where all do."""
    for row in range(offsets.size - 1):
        if offsets[row] == offsets[row + 1]:
            continue
        total = 0.0
        good = True
        for i in range(offsets[row], offsets[row + 1]):
            good = good and probability[i] >= 0.0
            total += probability[i]
        if not good or not abs(total - 1.0) <= tolerance:
            return row, total
    return -1, 1.0


def checked_model(model: TransitionModel) -> TransitionModel:
    """Check what a model says of itself; returns it.

    Raises
    ------
    ModelError
        Naming what is missing or doesn't fit.
    """
    name = type(model).__name__
    for attribute in ("agents", "num_actions", "sizes"):
        if not hasattr(model, attribute):
            raise ModelError(
                f"{name} has no `{attribute}`", "A TransitionModel needs agents, num_actions and sizes."
            )
    if not model.agents or len(model.agents) != len(model.num_actions):
        raise ModelError(
            f"{name} has {len(model.agents)} agents, and num_actions of {len(model.num_actions)}",
            "Give one name and one number of actions for each agent.",
        )
    if min(model.num_actions) < 1 or math.prod(model.num_actions) > _MAX_AGENTS_ACTIONS:
        raise ModelError(f"{name} has num_actions {tuple(model.num_actions)}, at least 1 each were expected")
    if len(set(map(str, model.agents))) != len(model.agents):
        raise ModelError(f"{name} has two agents of one name: {', '.join(map(str, model.agents))}")
    _ = model.space  # refuses sizes that don't make a space
    if isinstance(model, IndependentModel):
        movers = tuple(model.movers)
        agents = range(len(model.agents))
        if len(movers) != len(model.sizes) or any(m is not None and m not in agents for m in movers):
            raise ModelError(
                f"{name} has movers {movers} for {len(model.sizes)} components and {len(model.agents)} agents",
                "`movers` names, for each component, the agent that moves it, or None.",
            )
        _ = model.checked_kernels
    return model


def checked_kernel(model: IndependentModel, component: int) -> Kernel:
    """Check a kernel, and give it as int64 and float64 with next values ascending in every pair.

    Raises
    ------
    ModelError
        Naming the component, the value and the action.
    """
    given = model.kernel(component)
    size, actions = int(model.sizes[component]), model.kernel_num_actions(component)
    where = f"{type(model).__name__}: the kernel of component {component}"
    offsets = np.ascontiguousarray(given.offsets, np.int64)
    following = np.ascontiguousarray(given.next_state, np.int64)
    probability = np.ascontiguousarray(given.probability, np.float64)
    if offsets.shape != (size * actions + 1,) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise ModelError(
            f"{where} has offsets of shape {offsets.shape}; {size * actions + 1} that begin at 0 and never "
            f"fall were expected ({size} values x {actions} actions, and the end)"
        )
    if following.shape != (offsets[-1],) or probability.shape != (offsets[-1],):
        raise ModelError(
            f"{where} has {following.shape} next values and {probability.shape} probabilities, where the "
            f"offsets end at {offsets[-1]}"
        )
    pair = np.repeat(np.arange(size * actions), np.diff(offsets))

    def at(number: int) -> str:
        return f"{where}, value {number // actions}, action {number % actions}"

    outside = (following < 0) | (following >= size)
    if outside.any():
        first = int(np.argmax(outside))
        raise ModelError(
            f"{at(int(pair[first]))}: next value {following[first]} isn't within 0 to {size - 1}"
        )
    row, total = _first_bad_sum(offsets, probability, TOLERANCE)
    if row >= 0:
        raise ModelError(
            f"{at(row)}: probabilities {probability[offsets[row] : offsets[row + 1]].tolist()} sum to "
            f"{total:.9g}; numbers from 0 on that sum to 1 (within {TOLERANCE:g}) were expected"
        )
    order = np.lexsort((following, pair))
    following, probability = following[order], probability[order]
    repeated = (following[1:] == following[:-1]) & (pair[1:] == pair[:-1])
    if repeated.any():
        first = int(np.argmax(repeated))
        raise ModelError(
            f"{at(int(pair[first]))}: next value {following[first]} occurs twice",
            "Add up the probabilities of outcomes that lead to the same value.",
        )
    positive = probability > 0.0  # outcomes that can't happen are no successors
    offsets = np.concatenate(([0], np.cumsum(positive)))[offsets]
    return Kernel(offsets, following[positive], probability[positive])


class Answers:
    """Asks a model, and checks every answer.

    Parameters
    ----------
    model : TransitionModel
    """

    def __init__(self, model: TransitionModel) -> None:
        self.model = model
        self.space = model.space
        self._name = type(model).__name__
        self._agents = len(model.agents)

    def absorbing(self, states: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(B, C) -> (B,) bool."""
        return self._flags("absorbing", states, self.model.absorbing(states))

    def done(self, states: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(B, C) -> (B,) bool; in absorbing states unless the model says otherwise."""
        given = self.model.done(states)
        return self.absorbing(states) if given is None else self._flags("done", states, given)

    def reward(self, states: NDArray[np.int64]) -> NDArray[np.float64]:
        """(B, C) -> (B, agents) float64."""
        given = self.model.reward(states)
        shape = (len(states), self._agents)
        if given is None:
            return np.zeros(shape)
        values = np.asarray(given, np.float64)
        if values.shape != shape:
            raise ModelError(
                f"{self._name}.reward gave {values.shape} for states {states.shape}, not {shape}"
            )
        if not np.isfinite(values).all():
            bad = int(np.argmin(np.isfinite(values).all(axis=1)))
            raise ModelError(
                f"{self._name}.reward gave {values[bad].tolist()} for state {tuple(states[bad].tolist())}, "
                "where finite numbers were expected"
            )
        return values

    def legal(self, states: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """(B, C) -> (B, A) bool; None: all are."""
        given = self.model.legal(states)
        if given is None:
            return None
        values = np.asarray(given)
        shape = (len(states), self.model.num_joint_actions)
        if values.shape != shape or values.dtype.kind not in "bui":
            raise ModelError(
                f"{self._name}.legal gave {values.dtype} {values.shape} for states {states.shape}, "
                f"not bool {shape}"
            )
        return values.astype(np.bool_, copy=False)

    def vectors(self, states: NDArray[np.int64], width: int | None = None) -> NDArray[Any]:
        """(B, C) -> (B, W)."""
        values: NDArray[Any] = np.asarray(self.model.vectors(states))
        good = values.ndim == 2 and len(values) == len(states) and values.shape[1] > 0
        if not good or (width is not None and values.shape[1] != width):
            expected = "W" if width is None else width
            raise ModelError(
                f"{self._name}.vectors gave {values.shape} for states {states.shape}, "
                f"not ({len(states)}, {expected})"
            )
        return values

    def successors(self, states: NDArray[np.int64], joint_actions: NDArray[np.int64]) -> Outcomes:
        """Ask for rows, (B, C) and (B,), that are neither absorbing nor illegal; outcomes of probability 0
        are left out."""
        components = len(self.space.sizes)
        if not len(states):
            return Outcomes(np.zeros(1, np.int64), np.empty((0, components), np.int64), np.empty(0))
        found = self.model.successors(states, joint_actions)
        if not isinstance(found, Outcomes):
            raise ModelError(f"{self._name}.successors gave {type(found).__name__}, not Outcomes")
        offsets = np.ascontiguousarray(found.offsets, np.int64)
        following = np.asarray(found.next_states)
        if following.size == 0 and len(following) == 0:
            following = np.empty((0, components), np.int64)
        probability = np.ascontiguousarray(found.probability, np.float64)
        count = len(following)
        if offsets.shape != (len(states) + 1,) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise ModelError(
                f"{self._name}.successors gave offsets of shape {offsets.shape} for {len(states)} rows; "
                f"{len(states) + 1} that begin at 0 and never fall were expected"
            )
        if following.shape != (offsets[-1], components) or following.dtype.kind not in "iu":
            raise ModelError(
                f"{self._name}.successors gave {following.dtype} next states of shape {following.shape}, not "
                f"integers of shape ({offsets[-1]}, {components})"
            )
        if probability.shape != (count,):
            raise ModelError(
                f"{self._name}.successors gave {probability.shape} probabilities, not ({count},)"
            )
        following = np.ascontiguousarray(following, np.int64)

        def at(outcome: int, row: int | None = None) -> str:
            if row is None:
                row = int(np.searchsorted(offsets, outcome, side="right")) - 1
            actions = self.model.actions(joint_actions[row : row + 1])[0].tolist()
            return f"{self._name}: state {tuple(states[row].tolist())}, joint action {tuple(actions)}"

        outside = self.space.first_outside(following)
        if outside is not None:
            position, component = outside
            raise ModelError(
                f"{at(position)}: component {component} of next state "
                f"{tuple(following[position].tolist())} isn't within 0 to {self.space.sizes[component] - 1}"
            )
        row, total = _first_bad_sum(offsets, probability, TOLERANCE)
        if row >= 0:
            raise ModelError(
                f"{at(-1, row)}: probabilities {probability[offsets[row] : offsets[row + 1]].tolist()} sum "
                f"to {total:.9g}; numbers from 0 on that sum to 1 (within {TOLERANCE:g}) were expected"
            )
        reward = self._edge_reward(found.reward, count, at)
        done = None
        if found.done is not None:
            done = np.asarray(found.done)
            if done.shape != (count,):
                raise ModelError(f"{self._name}.successors gave {done.shape} done flags, not ({count},)")
            done = done.astype(np.bool_)
        positive = probability > 0.0
        if not positive.all():
            offsets = np.concatenate(([0], np.cumsum(positive)))[offsets]
            following, probability = following[positive], probability[positive]
            reward = None if reward is None else reward[positive]
            done = None if done is None else done[positive]
        return Outcomes(offsets, following, probability, reward, done)

    def _edge_reward(self, given: Any, count: int, at: Any) -> NDArray[np.float64] | None:
        if given is None:
            return None
        reward = np.asarray(given, np.float64)
        if reward.shape != (count, self._agents):
            raise ModelError(
                f"{self._name}.successors gave rewards of {reward.shape}, not ({count}, {self._agents})"
            )
        if not np.isfinite(reward).all():
            bad = int(np.argmin(np.isfinite(reward).all(axis=1)))
            raise ModelError(f"{at(bad)}: reward {reward[bad].tolist()}, where finite numbers were expected")
        return reward

    def _flags(self, what: str, states: NDArray[np.int64], given: Any) -> NDArray[np.bool_]:
        if given is None:
            return np.zeros(len(states), np.bool_)
        values = np.asarray(given)
        if values.shape != (len(states),) or values.dtype.kind not in "bui":
            raise ModelError(
                f"{self._name}.{what} gave {values.dtype} {values.shape} for states {states.shape}, "
                f"not bool ({len(states)},)"
            )
        return values.astype(np.bool_, copy=False)
