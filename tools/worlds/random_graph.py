"""A small random transition graph, for properties that must hold of any graph: illegal rows, ragged
outdegrees, odd widths."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tools.worlds.world import Floats, Ints, Successors, ragged_positions

__all__ = ["LEVELS", "RandomGraph"]

LEVELS = ("graph", "next_node", "node", "row", "edge")
"""What rewards and done flags may be a function of."""


class RandomGraph:
    """A random graph with distinct random states; the same seed gives the same graph.

    Parameters
    ----------
    num_nodes : int
        Nodes; at most 2^width.
    num_actions : tuple of int
        Actions of each agent.
    width : int
        Bits of a state vector.
    max_outdegree : int
        Legal rows have 1..max_outdegree successors.
    illegal : float
        About this fraction of rows has no successor; every node keeps at least one legal row.
    reward_level, done_level : str
        What the rewards and done flags are a function of, one of `LEVELS`.
    duplicates : bool
        Whether a row may have the same next node twice, with different probabilities or rewards.
    """

    def __init__(
        self,
        num_nodes: int = 12,
        num_actions: tuple[int, ...] = (3, 2),
        *,
        width: int = 13,
        max_outdegree: int = 4,
        illegal: float = 0.2,
        reward_level: str = "edge",
        done_level: str = "next_node",
        duplicates: bool = False,
        seed: int = 0,
    ):
        if not 1 <= num_nodes <= 2**width:
            raise ValueError(f"{width} bits make {2**width} states, not {num_nodes}")
        if {reward_level, done_level} - set(LEVELS):
            raise ValueError(f"levels are {', '.join(LEVELS)}, not {reward_level} and {done_level}")
        rng = np.random.default_rng(seed)
        self.num_nodes = num_nodes
        self.num_actions = num_actions
        self.num_joint_actions = math.prod(num_actions)
        self.num_places = num_nodes
        self.width = width
        self.agents = tuple(f"agent_{i}" for i in range(len(num_actions)))
        self._vectors = self._distinct_vectors(rng)
        rows = num_nodes * self.num_joint_actions
        outdegree = rng.integers(1, max_outdegree + 1, rows)
        outdegree[rng.random(rows) < illegal] = 0
        kept = np.arange(num_nodes) * self.num_joint_actions + rng.integers(
            0, self.num_joint_actions, num_nodes
        )
        outdegree[kept] = np.maximum(outdegree[kept], 1)
        if not duplicates:
            outdegree = np.minimum(outdegree, num_nodes)
        self._offsets = np.concatenate(([0], np.cumsum(outdegree))).astype(np.int64)
        self._row = np.repeat(np.arange(rows), outdegree)
        self._next_node = np.concatenate(
            [np.sort(rng.choice(num_nodes, degree, replace=duplicates)) for degree in outdegree]
        ).astype(np.int64)
        weight = rng.integers(1, 17, self.num_edges).astype(np.float64)
        self._probability = weight / np.bincount(self._row, weights=weight, minlength=rows)[self._row]
        values = np.round(rng.normal(size=(max(rows, self.num_edges), len(num_actions))), 3)
        self._reward: Floats = values[self._function_of(reward_level)]
        flags = rng.random(max(rows, self.num_edges)) < 0.3
        self._done: NDArray[np.bool_] = flags[self._function_of(done_level)]

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return int(self._offsets[-1])

    def _distinct_vectors(self, rng: np.random.Generator) -> NDArray[np.uint8]:
        if self.width <= 16:
            codes = rng.permutation(2**self.width)[: self.num_nodes]
            return ((codes[:, None] >> np.arange(self.width)[::-1]) & 1).astype(np.uint8)
        vectors = np.unique(rng.integers(0, 2, (2 * self.num_nodes, self.width), np.uint8), axis=0)
        return np.asarray(rng.permutation(vectors)[: self.num_nodes], np.uint8)

    def _function_of(self, level: str) -> Ints:
        """(E,) a number that is the same for edges that must have the same value."""
        return {
            "graph": np.zeros(self.num_edges, np.int64),
            "next_node": self._next_node,
            "node": self._row // self.num_joint_actions,
            "row": self._row,
            "edge": np.arange(self.num_edges),
        }[level]

    def vectors(self, nodes: Ints) -> NDArray[np.uint8]:
        """(B,) nodes -> (B, W) state vectors."""
        return np.asarray(self._vectors[nodes])

    def places(self, nodes: Ints) -> Ints:
        """(B,) nodes -> (B, agents): the node itself, seen by everybody."""
        return np.repeat(np.asarray(nodes, np.int64)[:, None], len(self.num_actions), axis=1)

    def absorbing(self, nodes: Ints) -> NDArray[np.bool_]:
        """No node is absorbing."""
        return np.zeros(len(nodes), np.bool_)

    def legal(self, nodes: Ints) -> NDArray[np.bool_]:
        """(B,) nodes -> (B, A)."""
        return np.asarray(np.diff(self._offsets).reshape(self.num_nodes, -1)[nodes] > 0)

    def successors(self, nodes: Ints, joint_actions: Ints) -> Successors:
        """All successors of B rows."""
        rows = np.asarray(nodes, np.int64) * self.num_joint_actions + joint_actions
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        edges = ragged_positions(starts, lengths)
        return Successors(
            np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            self._next_node[edges],
            self._probability[edges],
            self._reward[edges],
            self._done[edges],
        )
