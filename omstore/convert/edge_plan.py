"""How edges are dealt to ranges of nodes, so that a range at a time can be sorted in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel
from omstore.convert.resolve import EdgeChunk

__all__ = ["EdgePlan", "NodeCounts"]

_BUCKETS = 1 << 16


@kernel
def _count_by_bucket(nodes: NDArray[np.int64], shift: int, counts: NDArray[np.int64]) -> None:
    for i in range(nodes.shape[0]):
        counts[nodes[i] >> shift] += 1


class NodeCounts:
    """Edges counted by ranges of source nodes, at most 65,536 of them and all of one length."""

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        self.shift = max(0, num_nodes.bit_length() - _BUCKETS.bit_length() + 1)
        self.counts = np.zeros((num_nodes >> self.shift) + 1, np.int64)

    def add(self, nodes: NDArray[np.int64]) -> None:
        """Count the source nodes of edges."""
        _count_by_bucket(nodes, self.shift, self.counts)


_ROW_BYTES = 20
"""Bytes of anonymous memory a row costs while its region is sorted: its count, offset and outdegree."""


class EdgePlan:
    """Regions: ranges of nodes whose edges fit the budget together.

    Parameters
    ----------
    counted : NodeCounts
    num_joint_actions : int
    edge_bytes : int
        What an edge costs while its region is sorted; a row costs `_ROW_BYTES`.
    budget : int
        Bytes for one region; one range of `NodeCounts` is the least.

    Attributes
    ----------
    first_node : (regions + 1,) int64
    row_dtype : numpy.dtype
        Holds a row number within a region.
    """

    def __init__(
        self,
        counted: NodeCounts,
        num_joint_actions: int,
        edge_bytes: int,
        budget: int,
    ) -> None:
        counts, shift, num_nodes = counted.counts, counted.shift, counted.num_nodes
        width = 1 << shift
        firsts, region_of_bucket = [0], np.zeros(len(counts), np.int32)
        cost = 0
        for bucket, count in enumerate(counts.tolist()):
            here = min(width, num_nodes - bucket * width)
            added = count * edge_bytes + here * num_joint_actions * _ROW_BYTES
            if cost and cost + added > budget:
                firsts.append(bucket * width)
                cost = 0
            cost += added
            region_of_bucket[bucket] = len(firsts) - 1
        self.shift = shift
        self.first_node = np.array([*firsts, num_nodes], np.int64)
        self.region_of_bucket = region_of_bucket
        self.num_joint_actions = num_joint_actions
        largest = int(np.max(np.diff(self.first_node))) * num_joint_actions
        self.row_dtype = np.dtype(np.uint32 if largest < 1 << 32 else np.uint64)

    @property
    def num_regions(self) -> int:
        """How many there are."""
        return len(self.first_node) - 1

    def deal(self, chunk: EdgeChunk) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the region and the row within the region of every edge."""
        regions = self.region_of_bucket[chunk.node >> self.shift]
        rows = (chunk.node - self.first_node[regions]) * self.num_joint_actions + chunk.joint_action
        return regions, rows

    def num_rows(self, region: int) -> int:
        """Rows of a region, legal or not."""
        return int(self.first_node[region + 1] - self.first_node[region]) * self.num_joint_actions
