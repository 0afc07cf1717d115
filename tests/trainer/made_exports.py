"""Small exports through the writer API, with replays whose every transition is known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import omstore
from tools.worlds.random_graph import RandomGraph

NUM_ACTIONS = (2, 3, 4)
"""Different ones, so that a digit taken for another shows."""


@dataclass(frozen=True)
class MadeExport:
    """An export and its replay's columns as they were given."""

    export: Path
    world: RandomGraph
    states: np.ndarray
    joint_actions: np.ndarray

    def open(self) -> omstore.Store:
        return omstore.open(self.export)


def make_export(
    export: Path,
    transitions: int = 500,
    *,
    strangers: tuple[int, ...] = (),
    nodes: int = 40,
    graph: bool = True,
    rewards: np.ndarray | None = None,
) -> MadeExport:
    """A random graph of three agents and a replay of random transitions; those in `strangers` are in states that
    the graph hasn't. Rewards, (transitions, 3), are those of the replay alone; None: 0."""
    world = RandomGraph(nodes, NUM_ACTIONS, width=13, seed=4)
    rng = np.random.default_rng(6)
    states = world.vectors(rng.integers(0, nodes, transitions)).copy()
    known = {tuple(vector) for vector in world.vectors(np.arange(nodes)).tolist()}
    for i in strangers:
        while tuple(states[i].tolist()) in known:
            states[i] = rng.integers(0, 2, 13)
    joint_actions = rng.integers(0, 24, transitions)
    with omstore.create(
        export, agents=world.agents, num_actions=NUM_ACTIONS, state_width=13, rows="csr"
    ) as writer:
        if graph:
            numbers = writer.add_nodes(world.vectors(np.arange(nodes)))
            rows = np.arange(nodes * 24)
            found = world.successors(rows // 24, rows % 24)
            writer.add_rows(
                numbers[rows // 24],
                rows % 24,
                offsets=found.offsets,
                next_nodes=numbers[found.next_node],
                probability=found.probability,
                reward=found.reward,
                done=found.done,
            )
        if transitions:
            after = world.vectors(rng.integers(0, nodes, transitions))
            writer.add_transitions(states, joint_actions, after, rewards)
    return MadeExport(export, world, states, joint_actions)
