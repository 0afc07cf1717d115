"""The compiled part of verifying the dictionary encoding: nodes against their blocks and positions.

Nothing read is trusted: a kernel returns a status (those of `omstore.rows.kernels`) and the node where it
stopped, and never reads outside the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel
from omstore.rows.kernels import BAD_NODE, BAD_OFFSETS, BAD_PATTERN, OK

__all__ = ["block_bounds", "block_reach", "check_nodes", "check_places", "check_reach", "fill_nodes"]


@kernel
def block_bounds(block_pattern: Any, pattern_offsets: Any, delta: Any, least: Any, largest: Any) -> None:
    """Find each block's least and largest difference, 0 where it has no edges; the tables being sound."""
    for number in range(len(block_pattern)):
        low: Any = np.int64(0)
        high: Any = np.int64(0)
        empty = True
        for action in range(block_pattern.shape[1]):
            pattern = np.int64(block_pattern[number, action])
            start = np.int64(pattern_offsets[pattern])
            stop = np.int64(pattern_offsets[pattern + 1])
            if start < stop:
                first = np.int64(delta[start])
                last = np.int64(delta[stop - 1])
                low = first if empty else min(low, first)
                high = last if empty else max(high, last)
                empty = False
        least[number] = low
        largest[number] = high


@kernel
def check_places(position: Any, node_at: Any) -> int:
    """Check that every node is found at its own position; the first that isn't, or -1."""
    for node in range(position.size):
        where = np.int64(position[node])
        if where < 0 or where >= node_at.size or np.int64(node_at[where]) != node:
            return node
    return -1


@kernel
def check_nodes(
    position: Any,
    placed: bool,
    num_positions: int,
    node_at: Any,
    block: Any,
    totals: Any,
    least: Any,
    largest: Any,
    first_edge: Any,
) -> tuple[int, int]:
    """Check nodes one by one: positions ascend and are found back, blocks exist, edges are numbered right.

    And that the furthest next nodes of their blocks, `least` and `largest`, stay within the positions.
    Returns status and node.
    """
    for node in range(block.size):
        number = np.int64(block[node])
        if number >= totals.size:
            return BAD_PATTERN, node
        if np.int64(first_edge[node + 1]) - np.int64(first_edge[node]) != totals[number]:
            return BAD_OFFSETS, node
        base = np.int64(node)
        if placed:
            base = np.int64(position[node])
            if base < 0 or base >= num_positions or np.int64(node_at[base]) != node:
                return BAD_NODE, node
            if node and np.int64(position[node - 1]) >= base:
                return BAD_NODE, node
        if base + least[number] < 0 or base + largest[number] >= num_positions:
            return BAD_NODE, node
    return OK, -1


@kernel
def block_reach(
    block_pattern: Any,
    pattern_offsets: Any,
    delta: Any,
    seen: Any,
    origin: int,
    offsets: Any,
    reach: Any,
) -> int:
    """Collect each block's distinct differences, so that next nodes are checked once a node, not once a row.

    ``seen[d - origin]`` is the last block with difference d. Stops before the first block that `reach` has no
    room for, and returns it; ``offsets[b + 1]`` is where the next block begins in `reach`.
    """
    for number in range(len(block_pattern)):
        at = offsets[number]
        for action in range(block_pattern.shape[1]):
            pattern = np.int64(block_pattern[number, action])
            for k in range(np.int64(pattern_offsets[pattern]), np.int64(pattern_offsets[pattern + 1])):
                difference = np.int64(delta[k])
                if seen[difference - origin] != number + 1:
                    if at >= reach.size:
                        return number
                    seen[difference - origin] = number + 1
                    reach[at] = difference
                    at += 1
        offsets[number + 1] = at
    return len(block_pattern)


@kernel
def check_reach(
    position: Any, node_at: Any, num_nodes: int, block: Any, offsets: Any, reach: Any
) -> tuple[int, int]:
    """Check that there is a node at every position that a node's block reaches; status and node.

    The positions themselves were found to be in range by :func:`check_nodes`.
    """
    for node in range(block.size):
        number = np.int64(block[node])
        base = np.int64(position[node])
        for k in range(offsets[number], offsets[number + 1]):
            where = base + reach[k]
            if where < 0 or where >= node_at.size or np.int64(node_at[where]) >= num_nodes:
                return BAD_NODE, node
    return OK, -1


@kernel
def fill_nodes(position: Any, first_node: int, node_at: Any) -> int:
    """Enter nodes at their positions; the first that is out of range or doesn't ascend, else -1."""
    for i in range(position.size):
        where = np.int64(position[i])
        if where < 0 or where >= node_at.size or (i and where <= np.int64(position[i - 1])):
            return i
        node_at[where] = first_node + i
    return -1
