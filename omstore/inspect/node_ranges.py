"""Which nodes' rows are read: all of them, or of a graph too large for that a random part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from omstore.read import Graph, SweepChunk

__all__ = ["SAMPLED_EDGES", "SWEPT_EDGES", "NodeRanges", "ranges_to_read"]

SWEPT_EDGES = 2_000_000_000
"""Edges up to which everything is read: about a minute."""

SAMPLED_EDGES = 1 << 28
"""Edges, about, of a sample: some seconds. Shares of nodes are right to a few percent, those of edges better."""

_MOST_RANGES = 1024


@dataclass(frozen=True)
class NodeRanges:
    """Ranges of nodes, ascending and apart from each other.

    Attributes
    ----------
    ranges : sequence of (int, int)
        First node, and the one behind the last.
    num_nodes : int
        In all ranges together.
    whole : bool
        Whether they are the whole graph.
    """

    ranges: Sequence[tuple[int, int]]
    num_nodes: int
    whole: bool

    def sweep(self, graph: Graph, chunk_rows: int) -> Iterator[SweepChunk]:
        """Go through the rows of the ranges in order."""
        for start, stop in self.ranges:
            yield from graph.sweep(chunk_rows, start_node=start, stop_node=stop)

    def describe(self, graph: Graph, num_edges: int) -> str:
        """Say how much of the graph was read."""
        return (
            f"{self.num_nodes:,} of {graph.num_nodes:,} nodes "
            f"({num_edges:,} of {graph.num_edges:,} edges, in {len(self.ranges):,} random ranges)"
        )


def ranges_to_read(graph: Graph) -> NodeRanges:
    """Choose which nodes' rows to read: all of them while there are at most `SWEPT_EDGES`.

    Else about `SAMPLED_EDGES`, in ranges of equal length: one at a random place in each of as many equal
    parts of the graph (stratified, so that regions that differ all count), the same ones at each call.

    Parameters
    ----------
    graph : Graph
    """
    nodes = graph.num_nodes
    if graph.num_edges <= SWEPT_EDGES:
        return NodeRanges(((0, nodes),), nodes, True)
    wanted = max(1, min(nodes, SAMPLED_EDGES * nodes // graph.num_edges))
    count = min(wanted, _MOST_RANGES)
    length = wanted // count
    rng = np.random.default_rng(0)
    starts = []
    for part in range(count):
        first, last = part * nodes // count, (part + 1) * nodes // count
        starts.append(first + int(rng.integers(0, max(1, last - first - length + 1))))
    return NodeRanges(tuple((start, start + length) for start in starts), count * length, False)
