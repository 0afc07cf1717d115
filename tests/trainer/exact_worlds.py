"""Graphs and policies that exact values are tested on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import omstore
from tools.worlds.pursuit import GRID, WALLS
from tools.worlds.random_graph import RandomGraph

__all__ = ["free_cells", "sparse", "stored"]


def stored(folder: Path, world: RandomGraph, rows: str = "csr") -> omstore.Graph:
    """A random graph's store."""
    everything = np.arange(world.num_nodes * world.num_joint_actions)
    nodes, actions = np.divmod(everything, world.num_joint_actions)
    found = world.successors(nodes, actions)
    with omstore.create(
        folder, agents=world.agents, num_actions=world.num_actions, state_width=world.width, rows=rows
    ) as writer:
        numbers = writer.add_nodes(world.vectors(np.arange(world.num_nodes)))
        writer.add_rows(
            numbers[nodes],
            actions,
            offsets=found.offsets,
            next_nodes=numbers[found.next_node],
            probability=found.probability,
            reward=found.reward,
            done=found.done,
        )
    graph = omstore.open(folder).graph
    assert graph is not None
    return graph


def sparse(rng: np.random.Generator, nodes: int, actions: int, plays: float = 0.6) -> np.ndarray:
    """Random policies that play some actions, a share of `plays`, or the first one."""
    weights = rng.random((nodes, actions)) * (rng.random((nodes, actions)) < plays)
    weights[weights.sum(axis=1) == 0, 0] = 1.0
    return weights / weights.sum(axis=1, keepdims=True)


def free_cells(graph: omstore.Graph, agents: int) -> np.ndarray:
    """(N, agents) the agents' free cells in row-major order, walls skipped: from the state vectors alone."""
    bits = graph.states(np.arange(graph.num_nodes)).reshape(-1, agents, GRID * GRID)
    free = [
        row * GRID + column for row in range(GRID) for column in range(GRID) if (row, column) not in WALLS
    ]
    return np.searchsorted(free, bits.argmax(axis=2))
