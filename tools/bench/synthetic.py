"""Large stores made through the writers, for benches that need size and not meaning."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from omstore.format.manifest import Counts, Manifest
from omstore.format.states import StateCodec
from omstore.index import build_index
from omstore.publish.staging import stage
from omstore.rows import row_writer

__all__ = ["LARGEST_OUTDEGREE", "write_synthetic"]

NUM_ACTIONS = (5, 5, 5)
LARGEST_OUTDEGREE = 125
_NEARBY = 6000  # next nodes lie that near, as where agents make one step


def write_synthetic(
    export: Path, num_nodes: int, *, encoding: str = "csr", transitions: int = 0, seed: int = 0
) -> None:
    """Publish a store shaped as 3-agent pursuit with slip: 125 joint actions, 39 successors a row on average.

    A row of d successors has probability 1/d each; outcome code d - 1. Rewards and done flags are functions
    of the next node. Memory: the rows of 256 nodes at a time.
    """
    rng = np.random.default_rng(seed)
    codec = StateCodec(147, 1)
    joint_actions = int(np.prod(NUM_ACTIONS))
    packed = np.zeros((num_nodes, codec.packed_bytes), np.uint8)
    packed[:, 3:7] = np.arange(num_nodes, dtype=">u4").view(np.uint8).reshape(-1, 4)
    with stage(export) as staging:
        staging.write_hot("nodes/state", packed)
        slots = staging.hot("index/slots", np.uint64)
        build_index(packed, slots)
        writer = row_writer(encoding, staging, num_nodes, joint_actions, LARGEST_OUTDEGREE)
        for first in range(0, num_nodes, 256):
            nodes = np.arange(first, min(first + 256, num_nodes))
            # the product of three agents' outcomes, of 1 to 5 each: skewed as in the world
            outdegree = rng.integers(1, 6, (len(nodes) * joint_actions, 3)).prod(axis=1)
            row = np.repeat(np.arange(len(outdegree)), outdegree)
            source = np.repeat(nodes, joint_actions)[row]
            low = np.clip(source - _NEARBY // 2, 0, max(0, num_nodes - _NEARBY))
            next_node = low + rng.integers(0, min(_NEARBY, num_nodes), len(row))
            next_node = np.sort(row * (1 << 32) + next_node) & ((1 << 32) - 1)
            writer.append(outdegree, next_node, outdegree[row] - 1)
        rows, size = writer.finish()
        staging.write_hot("outcomes/probability", 1.0 / np.arange(1, LARGEST_OUTDEGREE + 1))
        staging.write_hot("nodes/attributes/reward", rng.choice([-1.0, -0.01, 0.01, 1.0], (num_nodes, 3)))
        staging.write_hot("nodes/attributes/done", rng.integers(0, 2, num_nodes, np.uint8))
        attributes = {
            "probability": {"level": "outcome", "path": "outcomes/probability"},
            "reward": {"level": "next_node", "path": "nodes/attributes/reward"},
            "done": {"level": "next_node", "path": "nodes/attributes/done"},
        }
        if transitions:
            nodes = rng.integers(0, num_nodes, transitions)
            staging.write_hot("replay/node", nodes)
            staging.write_hot("replay/next_node", nodes[::-1])
            staging.write_hot("replay/joint_action", rng.integers(0, joint_actions, transitions, np.uint8))
            for name, column in (("state", nodes), ("next_state", nodes[::-1])):
                staging.cold(f"replay/{name}", np.uint8, (codec.packed_bytes,)).append(packed[column])
            staging.cold("replay/reward", np.float64, (3,)).append(np.zeros((transitions, 3)))
            staging.cold("replay/done", np.uint8).append(np.zeros(transitions, np.uint8))
        counts = Counts(num_nodes, joint_actions, size.num_rows, size.num_edges, transitions)
        agents = ("pursuer_0", "pursuer_1", "evader")
        staging.publish(Manifest(counts, agents, NUM_ACTIONS, codec, rows, attributes))
