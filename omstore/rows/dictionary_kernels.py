"""The compiled part of the dictionary encoding: rows to patterns, decoding and comparing them.

Arrays come as they are mapped, and nothing read from them is trusted: a kernel returns a status (those of
`omstore.rows.kernels`) and the position where it stopped, and never reads outside the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel, kernel, prefetch
from omstore.rows.kernels import BAD_NODE, BAD_OFFSETS, BAD_PATTERN, OK, ROW_RANGE
from omstore.rows.stretches import copy_bytes, same_bytes

__all__ = [
    "block_starts",
    "chunk_offsets",
    "compare_chunk",
    "decode_chunk",
    "resolve_rows",
]

_BLOCK = 128  # rows in flight; enough to hide memory latency
_ROWS = 32  # consecutive rows in flight: their edges stay in the first level of the cache
_AHEAD = 128  # edges of a row asked for ahead; the processor sees by itself where it goes on


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
            prefetch(block, node)
            if placed:
                prefetch(position, node)
            if numbered:
                prefetch(first_edge, node)
        for i in range(count):
            number = np.int64(block[nodes[i]])
            if number >= num_blocks:
                return BAD_PATTERN, first + i
            places[i] += number * num_joint_actions
            prefetch(block_pattern, places[i])
            if numbered == 1:
                prefetch(starts, places[i])
        for i in range(count):
            node = nodes[i]
            at = places[i]
            out_base[first + i] = np.int64(position[node]) if placed else node
            pattern = np.int64(block_pattern[at])
            out_pattern[first + i] = pattern
            if pattern < num_patterns:
                prefetch(pattern_offsets, pattern)
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
def _find_rows(
    first_row: Any,
    count: Any,
    num_joint_actions: Any,
    block: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    delta: Any,
    coded: Any,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    patterns: Any,
    starts: Any,
    counts: Any,
    lists: Any,
) -> Any:
    """Find where the differences and codes of a few consecutive rows begin, and ask for them ahead of use.

    Rows lie anywhere in the tables: what is asked for in one loop arrives while the others' is being found.
    """
    num_patterns = pattern_offsets.size - 1
    num_blocks = block_pattern.size // num_joint_actions
    node = np.int64(first_row // num_joint_actions)
    action = np.int64(first_row - node * num_joint_actions)
    for i in range(count):
        number = np.int64(block[node])
        if number >= num_blocks:
            return BAD_PATTERN, i
        pattern = np.int64(block_pattern[number * num_joint_actions + action])
        if pattern >= num_patterns:
            return BAD_PATTERN, i
        patterns[i] = pattern
        prefetch(pattern_offsets, pattern)
        if coded:
            prefetch(pattern_list, pattern)
        action += 1
        if action == num_joint_actions:
            action = np.int64(0)
            node += 1
    for i in range(count):
        start = np.int64(pattern_offsets[patterns[i]])
        stop = np.int64(pattern_offsets[patterns[i] + 1])
        if start < 0 or stop < start or stop > delta.size:
            return BAD_OFFSETS, i
        starts[i] = start
        counts[i] = stop - start
        for k in range(start, min(stop, start + _AHEAD), 16):
            prefetch(delta, k)
        if coded:
            number = np.int64(pattern_list[patterns[i]])
            if number >= list_offsets.size - 1:
                return BAD_PATTERN, i
            lists[i] = number
            prefetch(list_offsets, number)
    if coded:
        for i in range(count):
            begin = np.int64(list_offsets[lists[i]])
            end = np.int64(list_offsets[lists[i] + 1])
            if begin < 0 or end > list_code.size or end - begin != counts[i]:
                return BAD_PATTERN, i
            lists[i] = begin
            for k in range(begin, min(end, begin + _AHEAD), 64):
                prefetch(list_code, k)
    return OK, -1


@kernel
def decode_chunk(
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
    out_next_node: Any,
    out_outcome: Any,
) -> tuple[int, int]:
    """Write the edges of consecutive rows whose running sums are known; the lists' codes were checked."""
    patterns = np.empty(_ROWS, np.int64)
    starts = np.empty(_ROWS, np.int64)
    counts = np.empty(_ROWS, np.int64)
    lists = np.empty(_ROWS, np.int64)
    node = np.int64(first_row // num_joint_actions)
    left: Any = num_joint_actions - (first_row - node * num_joint_actions)  # rows to come of this node
    for first in range(0, sums.size - 1, _ROWS):
        some = min(_ROWS, sums.size - 1 - first)
        status, stopped = _find_rows(
            first_row + first,
            some,
            num_joint_actions,
            block,
            block_pattern,
            pattern_offsets,
            delta,
            coded,
            pattern_list,
            list_offsets,
            list_code,
            patterns,
            starts,
            counts,
            lists,
        )
        if status != OK:
            return status, first + stopped
        for i in range(some):
            at = sums[first + i]
            start = starts[i]
            count = counts[i]
            if sums[first + i + 1] - at != count:
                return BAD_OFFSETS, first + i
            if left == 0:
                left = num_joint_actions
                node += 1
            left -= 1
            out = np.uint64(at)
            theirs = np.uint64(start)
            wrong = np.int64(0)
            if placed:
                base = np.int64(position[node])
                for k in range(np.uint64(count)):
                    where = np.uint64(base + np.int64(delta[theirs + k]))
                    inside = where < np.uint64(num_positions)
                    other = node_at[where if inside else np.uint64(0)]
                    wrong |= np.int64(not inside) | np.int64(np.uint64(other) >= np.uint64(num_nodes))
                    out_next_node[out + k] = other
            else:
                for k in range(np.uint64(count)):
                    moved = np.uint64(node + np.int64(delta[theirs + k]))
                    wrong |= np.int64(moved >= np.uint64(num_nodes))
                    out_next_node[out + k] = moved
            if wrong:
                return BAD_NODE, first + i
            if coded:
                copy_bytes(list_code, lists[i], out_outcome, at, count)
    return OK, -1


@kernel
def compare_chunk(
    first_row: int,
    num_joint_actions: int,
    num_nodes: int,
    position: Any,
    placed: bool,
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

    A next node is right where its position - the node's is the pattern's difference; so it is what a reader
    finds at the pattern's position, as each node was found at its own (`dictionary_checks.check_places`).
    """
    if sums.size > 1:
        # Once, in one go: what follows may use next nodes as places.
        highest = next_node.dtype.type(0)
        for edge in range(np.uint64(sums[0]), np.uint64(sums[sums.size - 1])):
            highest = max(highest, next_node[edge])
        if np.uint64(highest) >= np.uint64(num_nodes) and sums[sums.size - 1] > sums[0]:
            for i in range(sums.size - 1):
                for edge in range(sums[i], sums[i + 1]):
                    if np.uint64(next_node[edge]) >= np.uint64(num_nodes):
                        return OK, i
    patterns = np.empty(_ROWS, np.int64)
    starts = np.empty(_ROWS, np.int64)
    counts = np.empty(_ROWS, np.int64)
    lists = np.empty(_ROWS, np.int64)
    node = np.int64(first_row // num_joint_actions)
    left: Any = num_joint_actions - (first_row - node * num_joint_actions)  # rows to come of this node
    for first in range(0, sums.size - 1, _ROWS):
        some = min(_ROWS, sums.size - 1 - first)
        status, stopped = _find_rows(
            first_row + first,
            some,
            num_joint_actions,
            block,
            block_pattern,
            pattern_offsets,
            delta,
            coded,
            pattern_list,
            list_offsets,
            list_code,
            patterns,
            starts,
            counts,
            lists,
        )
        if status != OK:
            return status, first + stopped
        for i in range(some):
            at = sums[first + i]
            start = starts[i]
            count = counts[i]
            if sums[first + i + 1] - at != count:
                return OK, first + i
            if left == 0:
                left = num_joint_actions
                node += 1
            left -= 1
            # Unsigned places, as a signed one is first asked whether it counts from the end.
            mine = np.uint64(at)
            theirs = np.uint64(start)
            differs = np.int64(0)
            if placed:
                base = np.int64(position[node])
                for k in range(np.uint64(count)):
                    differs |= (np.int64(position[next_node[mine + k]]) - base) ^ np.int64(delta[theirs + k])
            else:
                for k in range(np.uint64(count)):
                    differs |= (np.int64(next_node[mine + k]) - node) ^ np.int64(delta[theirs + k])
            if differs != 0 or (coded and not same_bytes(outcome, at, list_code, lists[i], count)):
                return OK, first + i
    return OK, -1
