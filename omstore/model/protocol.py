"""What a transition model is: a base class that a researcher's world fills in, in a few lines.

A model says, for batches of states and joint actions, what can happen. Nothing of it is stored unless it is
built (`omstore.build`); with `--rows procedural` a store even leaves its rows to the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.errors import ModelError
from omstore.model.space import ProductSpace

__all__ = ["IndependentModel", "Kernel", "ModelOrigin", "Outcomes", "TransitionModel"]


@dataclass(frozen=True)
class Outcomes:
    """What can happen in B rows, ragged: row b owns ``offsets[b]:offsets[b + 1]`` of each array.

    Outcomes of a row may come in any order. A row without any isn't legal.

    Attributes
    ----------
    offsets : (B + 1,) integers
    next_states : (E', C) integers
    probability : (E',) floats
        Of each row summing to 1 within 1e-6.
    reward : (E', agents) floats, or None
        None: `TransitionModel.reward` of the next states.
    done : (E',) bool, or None
        None: `TransitionModel.done` of the next states.
    """

    offsets: NDArray[Any]
    next_states: NDArray[Any]
    probability: NDArray[Any]
    reward: NDArray[Any] | None = None
    done: NDArray[Any] | None = None

    @classmethod
    def certain(
        cls, next_states: ArrayLike, reward: ArrayLike | None = None, done: ArrayLike | None = None
    ) -> Outcomes:
        """Make the outcomes of rows that have one each: (B, C) next states, with probability 1."""
        states = np.asarray(next_states, np.int64)
        return cls(
            np.arange(len(states) + 1),
            states,
            np.ones(len(states)),
            None if reward is None else np.asarray(reward, np.float64),
            None if done is None else np.asarray(done, np.bool_),
        )

    @classmethod
    def of_rows(cls, rows: Iterable[Sequence[tuple[Any, ...]]]) -> Outcomes:
        """Make outcomes of lists, for worlds where speed doesn't matter.

        Parameters
        ----------
        rows : iterable of sequences of tuples
            One sequence a row, of ``(next state, probability)``, ``(next state, probability, reward)`` or
            ``(next state, probability, reward, done)``; all of the same length.
        """
        counts, flat = [0], []
        for row in rows:
            flat += list(row)
            counts.append(len(row))
        if not flat:
            return cls(np.array(counts), np.empty((0, 0), np.int64), np.empty(0))
        columns = list(zip(*flat, strict=True))
        return cls(
            np.cumsum(counts),
            np.array(columns[0], np.int64).reshape(len(flat), -1),
            np.array(columns[1], np.float64),
            np.array(columns[2], np.float64).reshape(len(flat), -1) if len(columns) > 2 else None,
            np.array(columns[3], np.bool_) if len(columns) > 3 else None,
        )


@dataclass(frozen=True)
class Kernel:
    """How one component of the state moves: P(next value | value, action), whatever the others do.

    The pair (value, action) is number ``value * num_actions + action`` and owns
    ``offsets[pair]:offsets[pair + 1]`` of the other arrays; a pair that owns nothing isn't legal.

    Attributes
    ----------
    offsets : (size * num_actions + 1,) integers
    next_state : (m,) integers
        Next values of the component.
    probability : (m,) floats
    """

    offsets: NDArray[Any]
    next_state: NDArray[Any]
    probability: NDArray[Any]

    @classmethod
    def of_table(cls, table: ArrayLike) -> Kernel:
        """Make a kernel of a dense table, (size, num_actions, size) probabilities; zeros are left out."""
        dense = np.asarray(table, np.float64)
        if dense.ndim != 3 or dense.shape[0] != dense.shape[2]:
            raise ModelError(f"a kernel's table is (size, actions, size), not {dense.shape}")
        flat = dense.reshape(-1, dense.shape[2])
        pair, target = np.nonzero(flat)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(pair, minlength=len(flat)))))
        return cls(offsets.astype(np.int64), target.astype(np.int64), flat[pair, target])


@dataclass(frozen=True)
class ModelOrigin:
    """Where a model came from: the name to load it by, and the parameters it was made with (JSON values)."""

    name: str
    parameters: Mapping[str, Any]


class TransitionModel:
    """A world: who acts, what states there are, and what happens.

    Subclass it, set `agents`, `num_actions` and `sizes`, and write `successors`; everything else has a
    default. All methods are batched, must not change what they are given, and must answer the same whenever
    asked the same: builds ask again to prove what they wrote, in two threads at once.

    A state is a tuple of C integers, component c from 0 to ``sizes[c] - 1``; B states are a (B, C) int64
    array. A joint action is one integer, agent 0 most significant; `actions` takes it apart.

    Attributes
    ----------
    agents : sequence of str
        Names, agent 0 first.
    num_actions : sequence of int
        Actions of each agent.
    sizes : sequence of int
        Values of each component of the state.
    component_bits : int or None
        Bits that a component of `vectors` takes (1, 8, 16 or 32). None: found out, by one pass more over the
        states.
    origin : ModelOrigin or None
        How the model is loaded again; set by `load_model`, needed for ``--rows procedural``.
    """

    agents: Sequence[str]
    num_actions: Sequence[int]
    sizes: Sequence[int]
    component_bits: int | None = None
    origin: ModelOrigin | None = None

    @property
    def num_joint_actions(self) -> int:
        """A, the product of `num_actions`."""
        return math.prod(self.num_actions)

    @cached_property
    def space(self) -> ProductSpace:
        """The states there may be."""
        return ProductSpace(self.sizes)

    def actions(self, joint_actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take joint actions apart, (B,) -> (B, agents): one action an agent."""
        return ProductSpace(self.num_actions).states(joint_actions)

    def initial_states(self) -> ArrayLike | None:
        """Return the states to explore from, (B, C); None: the graph has every state of the product."""
        return None

    def successors(self, states: NDArray[np.int64], joint_actions: NDArray[np.int64]) -> Outcomes:
        """Return what can happen in B rows, (B, C) and (B,); isn't asked for absorbing or illegal rows."""
        raise NotImplementedError(f"{type(self).__name__} doesn't say what its successors are")

    def reward(self, next_states: NDArray[np.int64]) -> ArrayLike | None:
        """Return the rewards for entering states, (B, C) -> (B, agents); None: 0 everywhere."""
        return None

    def done(self, next_states: NDArray[np.int64]) -> ArrayLike | None:
        """Return whether an episode ends on entering states, (B, C) -> (B,); None: in absorbing ones."""
        return None

    def absorbing(self, states: NDArray[np.int64]) -> ArrayLike | None:
        """Return which states lead back to themselves, (B, C) -> (B,) bool; None: none does.

        Every joint action then leads back with probability 1 and reward 0.
        """
        return None

    def legal(self, states: NDArray[np.int64]) -> ArrayLike | None:
        """Return which joint actions are legal, (B, C) -> (B, A) bool; None: all."""
        return None

    def vectors(self, states: NDArray[np.int64]) -> NDArray[Any]:
        """Return the state vectors that are stored and that networks see, (B, C) -> (B, W).

        Whole numbers from 0 on, another vector for every state. By default one-hot, a component beside the
        other: W is the sum of the sizes.
        """
        return self.one_hot(states, self.sizes)

    @staticmethod
    def one_hot(values: NDArray[np.int64], sizes: Sequence[int]) -> NDArray[np.uint8]:
        """One-hot vectors of integers, (B, C) with C sizes -> (B, sum of sizes) uint8."""
        starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)
        vectors = np.zeros((len(values), int(np.sum(sizes))), np.uint8)
        vectors[np.arange(len(values))[:, None], values + starts] = 1
        return vectors


class IndependentModel(TransitionModel):
    """A world whose components move independently of each other: per-component kernels say it all.

    Instead of `successors`, write `kernel`. Such a world needs no enumerating: its rows are the products of
    its kernels, built as ``factored`` in kilobytes, and answered in compiled code. Only absorbing states
    break the rule.
    """

    @property
    def movers(self) -> Sequence[int | None]:
        """Which agent's action moves each component; None: nobody's. By default component c is agent c's."""
        return tuple(range(len(self.sizes)))

    def kernel(self, component: int) -> Kernel:
        """Return how a component moves, given its value and its mover's action (one action for nobody)."""
        raise NotImplementedError(f"{type(self).__name__} doesn't say what its kernels are")

    def count_edges(self) -> int | None:
        """Return the number of edges, where a closed form is known; None: they are counted state by state."""
        return None

    @cached_property
    def checked_kernels(self) -> tuple[Kernel, ...]:
        """The kernels, each checked once: arrays of int64 and float64, next values ascending in a pair."""
        from omstore.model.checks import checked_kernel

        return tuple(checked_kernel(self, component) for component in range(len(self.sizes)))

    def kernel_actions(self, joint_actions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the action that each component's kernel goes by, (B,) -> (B, C)."""
        actions = self.actions(joint_actions)
        moved = np.zeros((len(actions), len(self.sizes)), np.int64)
        for component, mover in enumerate(self.movers):
            if mover is not None:
                moved[:, component] = actions[:, mover]
        return moved

    def successors(self, states: NDArray[np.int64], joint_actions: NDArray[np.int64]) -> Outcomes:
        """Return the products of the kernels; probabilities are multiplied in component order."""
        kernels = self.checked_kernels
        actions = self.kernel_actions(joint_actions)
        pairs = np.empty_like(actions)
        counts = np.empty_like(actions)
        for component, kernel in enumerate(kernels):
            pairs[:, component] = states[:, component] * self.kernel_num_actions(component)
            pairs[:, component] += actions[:, component]
            counts[:, component] = np.diff(kernel.offsets)[pairs[:, component]]
        outdegree = counts.prod(axis=1)
        offsets = np.concatenate(([0], np.cumsum(outdegree)))
        row = np.repeat(np.arange(len(states)), outdegree)
        rank = np.arange(offsets[-1]) - offsets[row]
        positions = np.empty((len(row), len(kernels)), np.int64)
        for component in range(len(kernels) - 1, -1, -1):  # the last component's outcome changes fastest
            rank, digit = np.divmod(rank, np.maximum(counts[row, component], 1))
            positions[:, component] = kernels[component].offsets[pairs[row, component]] + digit
        next_states = np.empty_like(positions)
        probability = np.ones(len(row))
        for component, kernel in enumerate(kernels):
            next_states[:, component] = kernel.next_state[positions[:, component]]
            factor = kernel.probability[positions[:, component]]
            probability = factor if component == 0 else probability * factor
        return Outcomes(offsets, next_states, probability)

    def kernel_num_actions(self, component: int) -> int:
        """Actions that a component's kernel goes by; 1 where nobody moves it."""
        mover = self.movers[component]
        return 1 if mover is None else self.num_actions[mover]
