"""The compiled part of rollouts that draws successors of dictionary rows: next nodes and codes, and no edges.

The same draws, to the bit, as those of `omstore.rows.pattern_kernels.sample_patterns`, which also numbers edges
and gives probabilities. What is mapped isn't trusted: a kernel returns a status (those of
`omstore.rows.kernels`) and the position where it stopped, and never reads outside the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel, prefetch
from omstore.rows.kernels import BAD_CODE, BAD_NODE, BAD_OFFSETS, BAD_PATTERN, ILLEGAL, OK

__all__ = ["draw_patterns"]

_BATCH = 128  # rows in flight; enough to hide memory latency


@kernel
def draw_patterns(
    position: Any,
    node_at: Any,
    num_positions: int,
    block: Any,
    block_pattern: Any,
    num_joint_actions: int,
    pattern_offsets: Any,
    delta: Any,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    by_lists: bool,
    constant: float,
    cumulative: Any,
    guide: Any,
    coded: bool,
    num_nodes: int,
    num_outcomes: int,
    count: int,
    nodes: Any,
    actions: Any,
    uniforms: Any,
    out_next: Any,
    out_code: Any,
) -> tuple[int, int]:
    """Draw a next node (and where `coded` its code) for each of `count` pairs of node and joint action.

    By indexed search, in the tables of `omstore.rows.patterns.PatternTable`: of the lists of codes, or (not
    `by_lists`) of a `constant` probability. `position` and `node_at` are empty where positions are nodes,
    `pattern_list` where there are no codes; `block_pattern` is flat. Each step is taken for a batch of rows
    before the next, and asks for what the next needs.
    """
    patterns = np.empty(_BATCH, np.int64)
    starts = np.empty(_BATCH, np.int64)
    lengths = np.empty(_BATCH, np.int64)
    lists = np.empty(_BATCH, np.int64)
    entries = np.empty(_BATCH, np.int64)
    places = np.empty(_BATCH, np.int64)
    num_blocks = block_pattern.size // num_joint_actions
    num_patterns = pattern_offsets.size - 1
    num_lists = list_offsets.size - 1
    listed = pattern_list.size > 0
    for first in range(0, count, _BATCH):
        some = min(_BATCH, count - first)
        for i in range(some):
            node = nodes[np.uint64(first + i)]
            prefetch(block, node)
            prefetch(position, node)
        for i in range(some):
            number = np.int64(block[nodes[np.uint64(first + i)]])
            if number >= num_blocks:
                return BAD_PATTERN, first + i
            patterns[i] = number * num_joint_actions + actions[np.uint64(first + i)]
            prefetch(block_pattern, patterns[i])
        for i in range(some):
            pattern = np.int64(block_pattern[np.uint64(patterns[i])])
            if pattern >= num_patterns:
                return BAD_PATTERN, first + i
            patterns[i] = pattern
            prefetch(pattern_offsets, pattern)
            if listed:
                prefetch(pattern_list, pattern)
        for i in range(some):
            start = np.int64(pattern_offsets[np.uint64(patterns[i])])
            stop = np.int64(pattern_offsets[np.uint64(patterns[i] + 1)])
            if start < 0 or stop < start or stop > delta.size:
                return BAD_OFFSETS, first + i
            if start == stop:
                return ILLEGAL, first + i
            starts[i] = start
            lengths[i] = stop - start
            if listed:
                number = np.int64(pattern_list[np.uint64(patterns[i])])
                if number >= num_lists:
                    return BAD_PATTERN, first + i
                lists[i] = number
                prefetch(list_offsets, number)
        if listed:
            for i in range(some):
                begin = np.int64(list_offsets[np.uint64(lists[i])])
                end = np.int64(list_offsets[np.uint64(lists[i] + 1)])
                if begin < 0 or end > list_code.size or end - begin != lengths[i]:
                    return BAD_PATTERN, first + i
                lists[i] = begin
                if by_lists:
                    scaled = uniforms[np.uint64(first + i)] * lengths[i]
                    places[i] = begin + min(np.int64(scaled), lengths[i] - 1)
                    prefetch(guide, places[i])
        for i in range(some):
            u = uniforms[np.uint64(first + i)]
            last = lengths[i] - 1
            begin = np.int64(0)
            k = np.int64(0)
            if by_lists:
                begin = lists[i]
                k = min(np.int64(guide[np.uint64(places[i])]), last)
            elif constant > 0.0:
                scaled = u / constant
                k = np.int64(scaled) if scaled < last else last
            if by_lists or constant > 0.0:
                # Rounding may have led one place too far.
                while k > 0 and u < cumulative[np.uint64(begin + k - 1)]:
                    k -= 1
                while k < last and not u < cumulative[np.uint64(begin + k)]:
                    k += 1
            entries[i] = k
            prefetch(delta, starts[i] + k)
            if coded:
                prefetch(list_code, lists[i] + k)
        for i in range(some):
            node = nodes[np.uint64(first + i)]
            base = np.int64(position[node]) if position.size else np.int64(node)
            place = base + np.int64(delta[np.uint64(starts[i] + entries[i])])
            if place < 0 or place >= num_positions:
                return BAD_NODE, first + i
            places[i] = place
            prefetch(node_at, place)
        for i in range(some):
            node = places[i]
            if node_at.size:
                node = np.int64(node_at[np.uint64(node)])
            if node < 0 or node >= num_nodes:
                return BAD_NODE, first + i
            out_next[np.uint64(first + i)] = node
            if coded:
                code = np.int64(list_code[np.uint64(lists[i] + entries[i])])
                if code >= num_outcomes:
                    return BAD_CODE, first + i
                out_code[np.uint64(first + i)] = code
    return OK, -1
