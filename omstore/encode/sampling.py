"""Which nodes a forecast looks at: ranges of consecutive nodes, spread evenly over the graph."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from omstore.rows import GraphSize

__all__ = ["SAMPLED_EDGES", "NodeSample", "sample_nodes"]

SAMPLED_EDGES = 1 << 22
"""Edges, or rows, that a sample has at most, about: a fraction of a second's work. Not a part of the budget:
what is chosen must not depend on it."""

_RANGES = 64


@dataclass(frozen=True)
class NodeSample:
    """Ranges of nodes of a graph.

    Attributes
    ----------
    ranges : tuple of (int, int)
        First node and the one behind the last, ascending.
    num_nodes : int
        Nodes in them.
    share : float
        Of all nodes, 0 to 1.
    """

    ranges: tuple[tuple[int, int], ...]
    num_nodes: int
    share: float

    @property
    def whole(self) -> bool:
        """Whether it is the whole graph."""
        return self.share >= 1.0

    def quarters(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Cut into three parts that are each spread over the graph: a quarter, a quarter, and a half."""
        return self.ranges[0::4], self.ranges[2::4], self.ranges[1::2]


def sample_nodes(size: GraphSize, *, seed: int = 0, edges: int = SAMPLED_EDGES) -> NodeSample:
    """Choose the nodes of a sample: the same ones for the same graph and seed.

    The graph is cut into 64 strata, and a range of nodes drawn in each of them. The whole graph is taken
    where it has no more than `edges` edges and rows.

    Parameters
    ----------
    size : GraphSize
    seed : int
    edges : int
        Edges, or rows, of the sample, about.
    """
    per_node = max(size.num_edges / max(1, size.num_nodes), size.num_joint_actions, 1)
    wanted = max(1, int(edges / per_node))
    if wanted >= size.num_nodes:
        count = min(_RANGES, size.num_nodes)
        bounds = [size.num_nodes * i // count for i in range(count + 1)] if count else [0]
        whole = tuple((bounds[i], bounds[i + 1]) for i in range(count))
        return NodeSample(whole, size.num_nodes, 1.0)
    count = min(_RANGES, wanted)
    length = math.ceil(wanted / count)
    rng = np.random.default_rng(seed)
    ranges = []
    for stratum in range(count):
        first, stop = size.num_nodes * stratum // count, size.num_nodes * (stratum + 1) // count
        at = first + int(rng.integers(max(1, stop - first - length + 1)))
        ranges.append((at, min(at + length, stop)))
    taken = sum(stop - first for first, stop in ranges)
    return NodeSample(tuple(ranges), taken, taken / size.num_nodes)
