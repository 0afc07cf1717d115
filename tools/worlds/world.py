"""What a world answers: who acts, which states there are, and the successors of (node, joint action)
pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Successors", "World", "decode_joint_actions", "encode_joint_actions", "ragged_positions"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Successors:
    """The successors of a batch of B rows, ragged: row b owns ``offsets[b]:offsets[b + 1]``.

    Attributes
    ----------
    offsets : (B + 1,) int64
    next_node : (E,) int64
        Ascending within a row.
    probability : (E,) float64
    reward : (E, agents) float64
    done : (E,) bool
    """

    offsets: Ints
    next_node: Ints
    probability: Floats
    reward: Floats
    done: NDArray[np.bool_]

    @property
    def row_of_edge(self) -> Ints:
        """(E,) position in the batch of the row each edge belongs to."""
        return np.repeat(np.arange(self.offsets.size - 1, dtype=np.int64), np.diff(self.offsets))


class World(Protocol):
    """A finite world with known transitions; nodes are numbered 0..num_nodes-1 in an order of the world's
    own."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Names, agent 0 first."""

    @property
    def num_actions(self) -> tuple[int, ...]:
        """Number of actions of each agent."""

    @property
    def num_nodes(self) -> int: ...

    @property
    def num_joint_actions(self) -> int: ...

    @property
    def width(self) -> int:
        """Bits of a state vector."""

    @property
    def num_places(self) -> int:
        """Number of different values in `places`."""

    def vectors(self, nodes: Ints) -> NDArray[np.uint8]:
        """(B,) nodes -> (B, W) state vectors."""

    def places(self, nodes: Ints) -> Ints:
        """(B,) nodes -> (B, agents) what an agent's behaviour may look at (its cell, say)."""

    def absorbing(self, nodes: Ints) -> NDArray[np.bool_]:
        """(B,) nodes -> (B,) whether a walk ends there."""

    def legal(self, nodes: Ints) -> NDArray[np.bool_]:
        """(B,) nodes -> (B, A) whether a joint action has a successor."""

    def successors(self, nodes: Ints, joint_actions: Ints) -> Successors:
        """All successors of B rows."""


def encode_joint_actions(actions: Ints, num_actions: tuple[int, ...]) -> Ints:
    """(B, agents) actions -> (B,) mixed-radix integers, agent 0 most significant."""
    code = np.zeros(actions.shape[0], np.int64)
    for agent, radix in enumerate(num_actions):
        code = code * radix + actions[:, agent]
    return code


def decode_joint_actions(codes: Ints, num_actions: tuple[int, ...]) -> Ints:
    """Undo `encode_joint_actions`: (B,) -> (B, agents)."""
    actions = np.empty((codes.size, len(num_actions)), np.int64)
    rest = np.asarray(codes, np.int64)
    for agent in range(len(num_actions) - 1, -1, -1):
        rest, actions[:, agent] = np.divmod(rest, num_actions[agent])
    return actions


def ragged_positions(starts: Ints, lengths: Ints) -> Ints:
    """Concatenate ``arange(start, start + length)`` over all pairs."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if ends.size else 0
    return np.asarray(np.arange(total) + np.repeat(starts - (ends - lengths), lengths), np.int64)
