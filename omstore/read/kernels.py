"""The compiled part of reading: checking batches of numbers, resolving attributes, legacy ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel

__all__ = ["edge_codes", "find_legacy", "first_outside", "row_numbers", "take_items"]


@kernel
def first_outside(values: Any, limit: int) -> int:
    """Return the position of the first value outside 0..limit-1, or -1."""
    for i in range(values.size):
        if values[i] < 0 or values[i] >= limit:
            return i
    return -1


@kernel
def row_numbers(nodes: Any, joint_actions: Any, num_nodes: int, num_joint_actions: int, out: Any) -> int:
    """Write ``node * A + joint_action``; returns the position of the first pair out of range, or -1."""
    for i in range(nodes.size):
        node = nodes[i]
        action = joint_actions[i]
        if node < 0 or node >= num_nodes or action < 0 or action >= num_joint_actions:
            return i
        out[i] = node * num_joint_actions + action
    return -1


@kernel
def take_items(table: Any, indices: Any, out: Any) -> None:
    """Copy items ``table[indices]`` of a (K, C) table; indices were checked."""
    width = table.shape[1]
    if width == 1:
        for i in range(indices.size):
            out[i, 0] = table[np.int64(indices[i]), 0]
        return
    for i in range(indices.size):
        index = np.int64(indices[i])
        for j in range(width):
            out[i, j] = table[index, j]


@kernel
def edge_codes(codes: Any, own: Any, next_node: Any, nodes: Any, offsets: Any, limit: int, out: Any) -> int:
    """Write the value code of every edge: its node's own (`own` holds code + 1, 0 for none), else that of its
    next node.

    `own` is empty where nodes have no values of their own; `offsets` are empty where every row has one edge.
    Nodes were checked. Returns the first edge whose code isn't below `limit`, or -1.
    """
    if own.size == 0:
        for i in range(next_node.size):
            code = np.int64(codes[next_node[i]])
            if code >= limit:
                return i
            out[i] = code
        return -1
    for row in range(nodes.size):
        code = np.int64(own[nodes[row]]) - 1
        if code >= limit:
            return offsets[row] if offsets.size else row
        begin = offsets[row] if offsets.size else np.int64(row)
        end = offsets[row + 1] if offsets.size else np.int64(row + 1)
        if code >= 0:
            for i in range(begin, end):
                out[i] = code
            continue
        for i in range(begin, end):
            found = np.int64(codes[next_node[i]])
            if found >= limit:
                return i
            out[i] = found
    return -1


@kernel
def find_legacy(legacy_id: Any, node_of_legacy: Any, wanted: Any, out: Any) -> int:
    """Find the nodes of legacy ids, -1 where there is none; returns -2 if the order names no node, else -1.

    Legacy ids usually are 0..N-1, so the id itself is tried as the position before searching for it.
    """
    count = legacy_id.size
    for i in range(wanted.size):
        target = wanted[i]
        out[i] = -1
        low = np.int64(0)
        high = np.int64(count)
        middle = target if 0 <= target < count else (low + high) // 2
        while low < high:
            node = np.int64(node_of_legacy[middle])
            if node < 0 or node >= count:
                return -2
            found = legacy_id[node]
            if found == target:
                out[i] = node
                break
            if found < target:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
    return -1
