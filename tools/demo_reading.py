"""Reading a store: root states from the replay, rollouts from them, a sweep over all rows.

python tools/demo_reading.py demo/exports/pursuit/2
"""

from __future__ import annotations

import sys

import numpy as np
from torch.utils.data import DataLoader

import omstore
from trainer.roots import RootStates


def main(path: str) -> None:
    store = omstore.open(path)
    graph, replay = store.graph, store.replay
    if graph is None or replay is None:
        raise SystemExit(f"{path} has no graph or no replay")
    print(store)

    # A state of the replay, found in the graph by its hash, and what happens when everybody stays.
    node = graph.lookup(replay.states(slice(0, 1)))
    stay = graph.encode_joint(np.zeros((1, len(graph.agents)), np.int64))
    found = graph.successors(node, stay)
    print(f"\nthe replay's first state is node {node[0]} (legacy id {graph.legacy_ids(node)[0]}),")
    print(f"with {graph.legal(node).sum()} legal joint actions; when everybody stays:")
    for target, probability, reward in zip(found.next_node, found.probability, found.reward, strict=True):
        print(f"  node {target} with probability {probability:g}, rewards {reward.tolist()}")

    # Root states stream from the replay, to any number of workers; nothing else is held in memory.
    rng = np.random.default_rng(0)
    roots = RootStates(store, batch=512, budget=2048, seed=0)
    print("\nrollouts of 10 steps from root states, by uniformly drawn joint actions:")
    for batch in DataLoader(roots, batch_size=None):
        at, total = batch.node.numpy(), 0.0
        for _ in range(10):
            step = graph.sample(at, rng.integers(0, graph.num_joint_actions, len(at)), rng)
            at, total = step.next_node, total + step.reward[:, 0].mean()
        print(f"  update {batch.update}: {len(at)} roots, mean return of {graph.agents[0]} {total:+.3f}")

    # All rows in order, sequential reads only: the reward expected of the best joint action.
    best = np.full(graph.num_nodes, -np.inf)
    for chunk in graph.sweep():
        edges = chunk.successors
        legal = np.flatnonzero(edges.outdegree)
        expected = np.add.reduceat(edges.probability * edges.reward[:, 0], edges.offsets[legal])
        np.maximum.at(best, chunk.rows[legal] // graph.num_joint_actions, expected)
    print(f"\nfrom a sweep over {graph.num_edges:,} edges: the best joint action of a node is expected to")
    print(f"reward {graph.agents[0]} with {best[np.isfinite(best)].mean():+.4f} on average")


if __name__ == "__main__":
    main(sys.argv[1])
