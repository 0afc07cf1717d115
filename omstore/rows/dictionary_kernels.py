"""The compiled part of the dictionary encoding: rows to patterns, decoding, comparing and checking them.

Arrays come as they are mapped, and nothing read from them is trusted: a kernel returns a status (those of
`omstore.rows.kernels`) and the position where it stopped, and never reads outside the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from omstore.compiled import inner_kernel, kernel

__all__ = [
    "block_bounds",
    "block_reach",
    "block_starts",
    "check_nodes",
    "check_reach",
    "chunk_offsets",
    "compare_chunk",
    "decode_chunk",
    "fill_nodes",
    "resolve_rows",
]

# The statuses of omstore.rows.kernels, literally: a compiled kernel is cached by its own file's content.
OK = 0
ROW_RANGE = 1
BAD_OFFSETS = 3
BAD_NODE = 4
BAD_CODE = 5
BAD_PATTERN = 7

_BLOCK = 128  # rows in flight; enough to hide memory latency
_U8 = ir.IntType(8)


def _intrinsic(function: Any) -> Any:
    """Let kernels call a generator of LLVM code with the arguments behind `typing`, which mypy can't know."""
    return intrinsic(function)


# The twin of the one in omstore.rows.kernels: a kernel may call only what lies in its own file.
@_intrinsic
def _prefetch(typing: Any, array: Any, position: Any) -> Any:
    """Ask for the cache line of an element ahead of its use; any position is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), _U8.as_pointer())
        i32 = ir.IntType(32)
        prefetch = builder.module.declare_intrinsic(
            "llvm.prefetch",
            (_U8.as_pointer(),),
            ir.FunctionType(ir.VoidType(), [_U8.as_pointer(), i32, i32, i32]),
        )
        # read, keep in all caches, data
        builder.call(prefetch, [pointer, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@kernel
def resolve_rows(
    rows: Any,
    num_joint_actions: int,
    num_nodes: int,
    position: Any,
    placed: bool,
    block: Any,
    block_pattern: Any,
    first_edge: Any,
    starts: Any,
    numbered: int,
    pattern_offsets: Any,
    out_base: Any,
    out_pattern: Any,
    out_first_edge: Any,
) -> tuple[int, int]:
    """Find each row's base position and pattern; and its first edge where `numbered` isn't 0.

    `block_pattern` and `starts` are flat, by block and joint action. With `numbered` 1, `starts` hold how
    many edges of the node come before the row; with 2, the outdegrees before it are added up.
    """
    nodes = np.empty(_BLOCK, np.int64)
    places = np.empty(_BLOCK, np.int64)
    num_blocks = block_pattern.size // num_joint_actions
    num_patterns = pattern_offsets.size - 1
    num_rows = num_nodes * num_joint_actions
    for first in range(0, rows.size, _BLOCK):
        count = min(_BLOCK, rows.size - first)
        for i in range(count):
            row = rows[first + i]
            if row < 0 or row >= num_rows:
                return ROW_RANGE, first + i
            node = row // num_joint_actions
            nodes[i] = node
            places[i] = row - node * num_joint_actions
            _prefetch(block, node)
            if placed:
                _prefetch(position, node)
            if numbered:
                _prefetch(first_edge, node)
        for i in range(count):
            number = np.int64(block[nodes[i]])
            if number >= num_blocks:
                return BAD_PATTERN, first + i
            places[i] += number * num_joint_actions
            _prefetch(block_pattern, places[i])
            if numbered == 1:
                _prefetch(starts, places[i])
        for i in range(count):
            node = nodes[i]
            at = places[i]
            out_base[first + i] = np.int64(position[node]) if placed else node
            pattern = np.int64(block_pattern[at])
            out_pattern[first + i] = pattern
            if pattern < num_patterns:
                _prefetch(pattern_offsets, pattern)
            if numbered:
                edge = np.int64(first_edge[node])
                if numbered == 1:
                    edge += np.int64(starts[at])
                else:
                    for k in range(at - (rows[first + i] - node * num_joint_actions), at):
                        before = np.int64(block_pattern[k])
                        if before >= num_patterns:
                            return BAD_PATTERN, first + i
                        edge += np.int64(pattern_offsets[before + 1]) - np.int64(pattern_offsets[before])
                out_first_edge[first + i] = edge
    return OK, -1


@kernel
def block_starts(block_pattern: Any, pattern_offsets: Any, out: Any, totals: Any) -> tuple[int, int]:
    """Number the edges within each block: `out` before each joint action, `totals` in all.

    `out` may be empty. Returns status and block.
    """
    num_patterns = pattern_offsets.size - 1
    for number in range(len(block_pattern)):
        total: Any = np.int64(0)
        for action in range(block_pattern.shape[1]):
            pattern = np.int64(block_pattern[number, action])
            if pattern >= num_patterns:
                return BAD_PATTERN, number
            if out.size:
                out[number, action] = total
            length = np.int64(pattern_offsets[pattern + 1]) - np.int64(pattern_offsets[pattern])
            if length < 0:
                return BAD_OFFSETS, number
            total += length
        totals[number] = total
    return OK, -1


@kernel
def chunk_offsets(
    first_row: int,
    num_joint_actions: int,
    block: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    num_deltas: int,
    sums: Any,
) -> tuple[int, int]:
    """Write the running sum of outdegrees of consecutive rows; `block_pattern` is flat."""
    num_blocks = block_pattern.size // num_joint_actions
    num_patterns = pattern_offsets.size - 1
    total: Any = np.int64(0)
    sums[0] = 0
    node = np.int64(first_row // num_joint_actions)
    action = np.int64(first_row - node * num_joint_actions)
    for i in range(sums.size - 1):
        number = np.int64(block[node])
        if number >= num_blocks:
            return BAD_PATTERN, i
        pattern = np.int64(block_pattern[number * num_joint_actions + action])
        if pattern >= num_patterns:
            return BAD_PATTERN, i
        start = np.int64(pattern_offsets[pattern])
        stop = np.int64(pattern_offsets[pattern + 1])
        if start < 0 or stop < start or stop > num_deltas:
            return BAD_OFFSETS, i
        total += stop - start
        sums[i + 1] = total
        action += 1
        if action == num_joint_actions:
            action = np.int64(0)
            node += 1
    return OK, -1


@inner_kernel
def _pattern_of(
    node: Any, action: Any, num_joint_actions: Any, block: Any, block_pattern: Any, num_patterns: Any
) -> Any:
    """Pattern of a row, -1 where the tables don't fit together."""
    at = np.int64(block[node]) * num_joint_actions + action
    if at >= block_pattern.size:
        return np.int64(-1)
    pattern = np.int64(block_pattern[at])
    if pattern >= num_patterns:
        return np.int64(-1)
    return pattern


@inner_kernel
def _list_start(pattern_list: Any, list_offsets: Any, num_codes: Any, pattern: Any, count: Any) -> Any:
    """First code of a pattern's list, -1 where the tables don't fit together."""
    number = np.int64(pattern_list[pattern])
    if number < 0 or number >= list_offsets.size - 1:
        return np.int64(-1)
    begin = np.int64(list_offsets[number])
    end = np.int64(list_offsets[number + 1])
    if begin < 0 or end > num_codes or end - begin != count:
        return np.int64(-1)
    return begin


@kernel
def decode_chunk(
    first_row: int,
    num_joint_actions: int,
    num_nodes: int,
    num_positions: int,
    num_outcomes: int,
    position: Any,
    placed: bool,
    node_at: Any,
    block: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    delta: Any,
    coded: bool,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    sums: Any,
    out_next_node: Any,
    out_outcome: Any,
) -> tuple[int, int]:
    """Write the edges of consecutive rows whose running sums are known."""
    num_patterns = pattern_offsets.size - 1
    node = np.int64(first_row // num_joint_actions)
    action = np.int64(first_row - node * num_joint_actions)
    for i in range(sums.size - 1):
        pattern = _pattern_of(node, action, num_joint_actions, block, block_pattern, num_patterns)
        if pattern < 0:
            return BAD_PATTERN, i
        at = sums[i]
        count = sums[i + 1] - at
        start = np.int64(pattern_offsets[pattern])
        if start < 0 or start + count > delta.size:
            return BAD_OFFSETS, i
        wrong: Any = False
        if placed:
            base = np.int64(position[node])
            for k in range(count):
                where = base + np.int64(delta[start + k])
                outside = (where < 0) | (where >= num_positions)
                other = np.int64(node_at[np.int64(0) if outside else where])
                wrong |= outside | (other < 0) | (other >= num_nodes)
                out_next_node[at + k] = other
        else:
            for k in range(count):
                other = node + np.int64(delta[start + k])
                wrong |= (other < 0) | (other >= num_nodes)
                out_next_node[at + k] = other
        if wrong:
            return BAD_NODE, i
        if coded:
            begin = _list_start(pattern_list, list_offsets, list_code.size, pattern, count)
            if begin < 0:
                return BAD_PATTERN, i
            highest = np.int64(0)
            for k in range(count):
                code = list_code[begin + k]
                highest = max(highest, np.int64(code))
                out_outcome[at + k] = code
            if highest >= num_outcomes:
                return BAD_CODE, i
        action += 1
        if action == num_joint_actions:
            action = np.int64(0)
            node += 1
    return OK, -1


@kernel
def compare_chunk(
    first_row: int,
    num_joint_actions: int,
    num_nodes: int,
    num_positions: int,
    position: Any,
    placed: bool,
    node_at: Any,
    block: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    delta: Any,
    coded: bool,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    sums: Any,
    next_node: Any,
    outcome: Any,
) -> tuple[int, int]:
    """Compare consecutive rows with their patterns; status, and the first that differs (-1: none).

    A next node is right where ``node_at`` the pattern's position is it, as a reader will find it.
    """
    num_patterns = pattern_offsets.size - 1
    node = np.int64(first_row // num_joint_actions)
    action = np.int64(first_row - node * num_joint_actions)
    for i in range(sums.size - 1):
        pattern = _pattern_of(node, action, num_joint_actions, block, block_pattern, num_patterns)
        if pattern < 0:
            return BAD_PATTERN, i
        at = sums[i]
        count = sums[i + 1] - at
        start = np.int64(pattern_offsets[pattern])
        stop = np.int64(pattern_offsets[pattern + 1])
        if start < 0 or stop < start or stop > delta.size:
            return BAD_OFFSETS, i
        if stop - start != count:
            return OK, i
        differs: Any = False
        if placed:
            base = np.int64(position[node])
            for k in range(count):
                where = base + np.int64(delta[start + k])
                outside = (where < 0) | (where >= num_positions)
                other = np.int64(node_at[np.int64(0) if outside else where])
                differs |= outside | (other != np.int64(next_node[at + k])) | (other >= num_nodes)
        else:
            for k in range(count):
                other = node + np.int64(delta[start + k])
                differs |= (other != np.int64(next_node[at + k])) | (other >= num_nodes)
        if coded:
            begin = _list_start(pattern_list, list_offsets, list_code.size, pattern, count)
            if begin < 0:
                return BAD_PATTERN, i
            for k in range(count):
                differs |= list_code[begin + k] != outcome[at + k]
        if differs:
            return OK, i
        action += 1
        if action == num_joint_actions:
            action = np.int64(0)
            node += 1
    return OK, -1


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
