"""A world with most of its rows taken away: the same shapes at a fraction of the size, with illegal rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tools.worlds.pursuit import Pursuit
from tools.worlds.world import Ints, Successors

__all__ = ["Thinned"]


class Thinned:
    """The pursuit world where joint action a is legal in node k only if (a + k) is a multiple of `every`.

    All nodes and all joint actions still occur, so that nothing inferred from the data changes.
    """

    def __init__(self, world: Pursuit, every: int):
        if not 1 <= every <= world.num_joint_actions:
            raise ValueError(f"every node needs a legal row: 1..{world.num_joint_actions}, not {every}")
        self._world = world
        self._every = every
        self.agents = world.agents
        self.num_actions = world.num_actions
        self.num_nodes = world.num_nodes
        self.num_joint_actions = world.num_joint_actions
        self.width = world.width
        self.num_places = world.num_places

    def vectors(self, nodes: Ints) -> NDArray[np.uint8]:
        """(B,) nodes -> (B, W) state vectors."""
        return self._world.vectors(nodes)

    def places(self, nodes: Ints) -> Ints:
        """(B,) nodes -> (B, agents) cells."""
        return self._world.places(nodes)

    def absorbing(self, nodes: Ints) -> NDArray[np.bool_]:
        """(B,) nodes -> (B,)."""
        return self._world.absorbing(nodes)

    def legal(self, nodes: Ints) -> NDArray[np.bool_]:
        """(B,) nodes -> (B, A)."""
        return np.asarray((np.asarray(nodes)[:, None] + np.arange(self.num_joint_actions)) % self._every == 0)

    def successors(self, nodes: Ints, joint_actions: Ints) -> Successors:
        """All successors of B rows; none of an illegal one."""
        full = np.flatnonzero((nodes + joint_actions) % self._every == 0)
        rows = self._world.successors(nodes[full], joint_actions[full])
        outdegree = np.zeros(len(nodes), np.int64)
        outdegree[full] = np.diff(rows.offsets)
        offsets = np.concatenate(([0], np.cumsum(outdegree))).astype(np.int64)
        return Successors(offsets, rows.next_node, rows.probability, rows.reward, rows.done)
