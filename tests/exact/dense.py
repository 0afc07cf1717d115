"""Backups in plain NumPy, over edges that `Graph.successors` gives one node at a time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import omstore

Floats = NDArray[np.float64]


def dense_rows(
    graph: omstore.Graph, values: Floats, weights: Sequence[float], discount: float, nodes: Sequence[int]
) -> Floats:
    """(n, A) expected return of every row, NaN where it isn't legal."""
    count = graph.num_joint_actions
    out = np.full((len(nodes), count), np.nan)
    for i, node in enumerate(nodes):
        found = graph.successors(np.full(count, node), np.arange(count))
        for joint in range(count):
            edges = slice(found.offsets[joint], found.offsets[joint + 1])
            if found.offsets[joint] == found.offsets[joint + 1]:
                continue
            follows = np.where(found.done[edges], 0.0, values[found.next_node[edges]])
            gain = found.reward[edges] @ np.asarray(weights, float) + discount * follows
            out[i, joint] = np.dot(found.probability[edges], gain)
    return out


def joint_table(num_actions: Sequence[int], own_side: Sequence[int]) -> NDArray[np.int64]:
    """(L, O) the joint action of both sides' actions."""
    others = [agent for agent in range(len(num_actions)) if agent not in own_side]
    table = []
    for mine in itertools.product(*(range(num_actions[agent]) for agent in own_side)):
        for theirs in itertools.product(*(range(num_actions[agent]) for agent in others)):
            actions = dict(zip((*own_side, *others), (*mine, *theirs), strict=True))
            table.append(np.ravel_multi_index([actions[a] for a in range(len(num_actions))], num_actions))
    own = int(np.prod([num_actions[agent] for agent in own_side], dtype=int))
    return np.array(table).reshape(own, -1)


def mean_under(rows: Floats, chances: Floats) -> float:
    """The mean of legal rows by their chances; by none, if these are all 0; 0 where nothing is legal."""
    legal = ~np.isnan(rows)
    if not legal.any():
        return 0.0
    chances = np.where(legal, chances, 0.0)
    if chances.sum() == 0.0:
        chances = legal.astype(float)
    return float(np.nansum(np.where(legal, rows, 0.0) * chances) / chances.sum())


def random_policy(rng: np.random.Generator, nodes: int, actions: int) -> Floats:
    """Random policies of which some never play some actions, and some none at all."""
    weights = rng.random((nodes, actions)) * (rng.random((nodes, actions)) < 0.6)
    weights[weights.sum(axis=1) == 0, 0] = 1.0
    policy = weights / weights.sum(axis=1, keepdims=True)
    policy[::7] = 0.0
    return np.asarray(policy)
