"""A team that chases: a known stochastic behaviour that looks at everybody's cell, so that it takes some learning."""

from __future__ import annotations

import numpy as np

from tools.worlds.pursuit import ACTIONS, Pursuit
from tools.worlds.world import Floats, Ints

__all__ = ["Chase", "distances"]


def distances(world: Pursuit) -> Ints:
    """(44, 44) steps from cell to cell around walls."""
    number = {(int(r), int(c)): i for i, (r, c) in enumerate(world.cells)}
    steps = np.full((world.num_cells, world.num_cells), world.num_cells, np.int64)
    np.fill_diagonal(steps, 0)
    for (row, column), cell in number.items():
        for dr, dc in ACTIONS.values():
            neighbour = number.get((row + dr, column + dc), cell)
            steps[cell, neighbour] = min(steps[cell, neighbour], 1)
    for middle in range(world.num_cells):
        steps = np.minimum(steps, steps[:, middle, None] + steps[middle])
    return steps


class Chase:
    """Every member of the team plays a softmax over its actions; the focal agent plays all alike.

    A pursuer's logit of an action is minus `sharpness` times its distance from the evader's cell after the move it
    intends; the evader's is `sharpness` times its distance from the nearest pursuer.

    Parameters
    ----------
    world : Pursuit
    focal_agent : int
    sharpness : float
        Nats a step; 0 is uniform.
    """

    def __init__(self, world: Pursuit, focal_agent: int, sharpness: float) -> None:
        self.world = world
        self.focal_agent = focal_agent
        self.sharpness = sharpness
        self._steps = distances(world)
        number = {(int(r), int(c)): i for i, (r, c) in enumerate(world.cells)}
        self._target = np.array(
            [[number.get((r + dr, c + dc), i) for dr, dc in ACTIONS.values()] for (r, c), i in number.items()]
        )

    def member(self, nodes: Ints, agent: int) -> Floats:
        """(B,) nodes -> (B, 5) probabilities of a member's actions."""
        cells = self.world.cells_of(nodes)
        target = self._target[cells[:, agent]]
        if agent < self.world.num_agents - 1:
            near = self._steps[target, cells[:, -1:]]
        else:
            near = -self._steps[target[:, :, None], cells[:, None, :-1]].min(axis=2)
        logits = -self.sharpness * near
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def team(self, nodes: Ints) -> Floats:
        """(B,) nodes -> (B, team actions) probabilities, members in agent order."""
        return self._joint(nodes, [a for a in range(self.world.num_agents) if a != self.focal_agent])

    def __call__(self, nodes: Ints) -> Floats:
        """(B,) nodes -> (B, A) probabilities of joint actions."""
        return self._joint(nodes, list(range(self.world.num_agents)))

    def _joint(self, nodes: Ints, members: list[int]) -> Floats:
        joint = np.ones((len(nodes), 1))
        for agent in members:
            own = np.full((1, len(ACTIONS)), 1 / len(ACTIONS))
            if agent != self.focal_agent:
                own = self.member(nodes, agent)
            joint = (joint[:, :, None] * own[:, None, :]).reshape(len(nodes), -1)
        return joint
