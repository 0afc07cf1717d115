"""The compiled part of pattern tables: gathering, sampling and checking rows that are patterns.

A pattern is a list of (position of the next node - position of the node, outcome code). Arrays come as they
are mapped, and nothing read from them is trusted: a kernel returns a status (those of `omstore.rows.kernels`)
and the position in the batch where it stopped, and never reads outside the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel, kernel, prefetch
from omstore.rows.kernels import (
    BAD_CODE,
    BAD_NODE,
    BAD_OFFSETS,
    BAD_PATTERN,
    BY_EDGE,
    BY_OUTCOME,
    ILLEGAL,
    OK,
    UNSORTED,
)

__all__ = [
    "SCAN",
    "SEARCH_CONSTANT",
    "SEARCH_LISTS",
    "check_lists",
    "check_patterns",
    "count_up",
    "cumulate_lists",
    "gather_patterns",
    "pattern_bounds",
    "sample_patterns",
]

SEARCH_CONSTANT = 0
"""Every edge has the same probability; `cumulative` holds the running sums of it."""
SEARCH_LISTS = 1
"""`cumulative` and `guide` belong to the lists of codes, entry by entry."""
SCAN = 2
"""The row is scanned: probabilities by edge, or tables that would be too large."""

_BLOCK = 128  # rows in flight; enough to hide memory latency


@kernel
def pattern_bounds(
    pattern_offsets: Any, num_deltas: int, patterns: Any, starts: Any, sums: Any
) -> tuple[int, int]:
    """Find where each pattern begins (`starts`) and the running sum of outdegrees (`sums`, one longer)."""
    total: Any = np.int64(0)
    sums[0] = 0
    count = pattern_offsets.size - 1
    for i in range(patterns.size):
        if i + 16 < patterns.size:
            ahead = patterns[i + 16]
            if 0 <= ahead < count:
                prefetch(pattern_offsets, ahead)
        pattern = patterns[i]
        if pattern < 0 or pattern >= count:
            return BAD_PATTERN, i
        start = np.int64(pattern_offsets[pattern])
        stop = np.int64(pattern_offsets[pattern + 1])
        if start < 0 or stop < start or stop > num_deltas:
            return BAD_OFFSETS, i
        starts[i] = start
        total += stop - start
        sums[i + 1] = total
    return OK, -1


@inner_kernel
def _list_start(pattern_list: Any, list_offsets: Any, num_codes: Any, pattern: Any, count: Any) -> Any:
    """First code of a pattern's list, -1 where the tables don't fit together."""
    number = np.int64(pattern_list[pattern])
    if number < 0 or number >= list_offsets.size - 1:
        return -1
    begin = np.int64(list_offsets[number])
    end = np.int64(list_offsets[number + 1])
    if begin < 0 or end > num_codes or end - begin != count:
        return -1
    return begin


@kernel
def gather_patterns(
    delta: Any,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    coded: bool,
    node_at: Any,
    placed: bool,
    num_positions: int,
    num_nodes: int,
    num_outcomes: int,
    bases: Any,
    patterns: Any,
    starts: Any,
    sums: Any,
    out_next_node: Any,
    out_outcome: Any,
) -> tuple[int, int]:
    """Write the edges of rows whose bounds are known: base position + differences, and codes.

    `placed` is false where positions are nodes.
    """
    for i in range(starts.size):
        if i + 8 < starts.size:  # a few rows ahead: rows are short, and lie anywhere
            prefetch(delta, starts[i + 8])
            if coded:
                prefetch(pattern_list, patterns[i + 8])
        start = starts[i]
        at = sums[i]
        count = sums[i + 1] - at
        base = bases[i]
        if placed:
            for k in range(count):
                position = base + np.int64(delta[start + k])
                if position < 0 or position >= num_positions:
                    return BAD_NODE, i
                node = np.int64(node_at[position])
                if node < 0 or node >= num_nodes:
                    return BAD_NODE, i
                out_next_node[at + k] = node
        else:
            wrong = False
            for k in range(count):
                node = base + np.int64(delta[start + k])
                wrong |= (node < 0) | (node >= num_nodes)
                out_next_node[at + k] = node
            if wrong:
                return BAD_NODE, i
        if coded:
            begin = _list_start(pattern_list, list_offsets, list_code.size, patterns[i], count)
            if begin < 0:
                return BAD_PATTERN, i
            highest = np.int64(0)
            for k in range(count):
                code = np.int64(list_code[begin + k])
                highest = max(highest, code)
                out_outcome[at + k] = code
            if highest >= num_outcomes:
                return BAD_CODE, i
    return OK, -1


@kernel
def count_up(probability: float, out: Any) -> None:
    """Write the running sums of a constant, added one at a time as a scan does."""
    reached = 0.0
    for k in range(out.size):
        if probability > 0.0:
            reached += probability
        out[k] = reached


@kernel
def cumulate_lists(list_offsets: Any, list_code: Any, table: Any, cumulative: Any, guide: Any) -> bool:
    """Prepare indexed search in each list of codes; false where the tables don't fit together.

    ``cumulative[k]`` is the running sum of probabilities including entry k, and infinite from the last entry
    of positive probability on: it takes what rounding leaves. ``guide[j]`` of a list of n is the first entry
    whose running sum passes j / n.
    """
    for number in range(list_offsets.size - 1):
        begin = np.int64(list_offsets[number])
        end = np.int64(list_offsets[number + 1])
        if begin < 0 or end < begin or end > list_code.size:
            return False
        reached = 0.0
        last: Any = begin
        for k in range(begin, end):
            code = np.int64(list_code[k])
            if code >= table.size:
                return False
            probability = table[code]
            if probability > 0.0:
                reached += probability
                last = k
            cumulative[k] = reached
        for k in range(last, end):
            cumulative[k] = np.inf
        entry: Any = np.int64(0)
        count = end - begin
        for j in range(count):
            while not cumulative[begin + entry] > j / count:
                entry += 1
            guide[begin + j] = entry
    return True


@inner_kernel
def _near(scaled: Any, count: Any) -> Any:
    """Whole part of a number, kept within 0 to count - 1 (whatever it is)."""
    if not scaled > 0.0:
        return 0
    if scaled >= count - 1:
        return count - 1
    return np.int64(scaled)


@kernel
def sample_patterns(
    pattern_offsets: Any,
    delta: Any,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    coded: bool,
    node_at: Any,
    placed: bool,
    num_positions: int,
    num_nodes: int,
    num_outcomes: int,
    bases: Any,
    patterns: Any,
    first_edges: Any,
    uniforms: Any,
    search: int,
    mode: int,
    table: Any,
    cumulative: Any,
    guide: Any,
    out_next_node: Any,
    out_outcome: Any,
    out_edge: Any,
    out_probability: Any,
) -> tuple[int, int]:
    """Draw one edge of every row by inverting its cumulative probability at ``uniforms``.

    The same edge as `omstore.rows.kernels.sample_rows` draws. `search` says how, `mode` how `table` is read.
    """
    starts = np.empty(_BLOCK, np.int64)
    counts = np.empty(_BLOCK, np.int64)
    lists = np.empty(_BLOCK, np.int64)
    places = np.empty(_BLOCK, np.int64)
    entries = np.empty(_BLOCK, np.int64)
    num_patterns = pattern_offsets.size - 1
    num_lists = list_offsets.size - 1
    for first in range(0, patterns.size, _BLOCK):
        block = min(_BLOCK, patterns.size - first)
        for i in range(block):
            pattern = patterns[first + i]
            if pattern < 0 or pattern >= num_patterns:
                return BAD_PATTERN, first + i
            prefetch(pattern_offsets, pattern)
            if coded:
                prefetch(pattern_list, pattern)
        for i in range(block):
            pattern = patterns[first + i]
            start = np.int64(pattern_offsets[pattern])
            stop = np.int64(pattern_offsets[pattern + 1])
            if start < 0 or stop < start or stop > delta.size:
                return BAD_OFFSETS, first + i
            if start == stop:
                return ILLEGAL, first + i
            starts[i] = start
            counts[i] = stop - start
            if coded:
                number = np.int64(pattern_list[pattern])
                if number >= num_lists:
                    return BAD_PATTERN, first + i
                lists[i] = number
                prefetch(list_offsets, number)
        if coded:
            for i in range(block):
                begin = np.int64(list_offsets[lists[i]])
                end = np.int64(list_offsets[lists[i] + 1])
                if begin < 0 or end > list_code.size or end - begin != counts[i]:
                    return BAD_PATTERN, first + i
                lists[i] = begin
                if search == SEARCH_LISTS:
                    place = begin + _near(uniforms[first + i] * counts[i], counts[i])
                    places[i] = place
                    prefetch(guide, place)
                elif search == SCAN:
                    prefetch(list_code, begin)
        for i in range(block):
            u = uniforms[first + i]
            last = counts[i] - 1
            if search == SEARCH_LISTS:
                begin = lists[i]
                k = np.int64(guide[places[i]])
                if k > last:
                    k = last
                # Rounding of u * n may have led one place too far.
                while k > 0 and u < cumulative[begin + k - 1]:
                    k -= 1
                while k < last and not u < cumulative[begin + k]:
                    k += 1
            elif search == SEARCH_CONSTANT:
                k = np.int64(0)
                if table[0] > 0.0:
                    k = _near(u / table[0], counts[i])
                    while k > 0 and u < cumulative[k - 1]:
                        k -= 1
                    while k < last and not u < cumulative[k]:
                        k += 1
            else:
                k = np.int64(0)
                reached = 0.0
                for j in range(counts[i]):
                    at: Any = np.int64(0)
                    if mode == BY_EDGE:
                        at = first_edges[first + i] + j
                        if at < 0 or at >= table.size:
                            return BAD_OFFSETS, first + i
                    elif mode == BY_OUTCOME and coded:
                        at = np.int64(list_code[lists[i] + j])
                        if at >= num_outcomes:
                            return BAD_CODE, first + i
                    probability = table[at]
                    if probability > 0.0:
                        k = np.int64(j)
                        reached += probability
                        if u < reached:
                            break
            entries[i] = k
            prefetch(delta, starts[i] + k)
            if coded:
                prefetch(list_code, lists[i] + k)
        for i in range(block):
            position = bases[first + i] + np.int64(delta[starts[i] + entries[i]])
            if position < 0 or position >= num_positions:
                return BAD_NODE, first + i
            places[i] = position
            if placed:
                prefetch(node_at, position)
        for i in range(block):
            node = places[i]
            if placed:
                node = np.int64(node_at[node])
            if node < 0 or node >= num_nodes:
                return BAD_NODE, first + i
            code = np.int64(list_code[lists[i] + entries[i]]) if coded else np.int64(0)
            if code >= num_outcomes:
                return BAD_CODE, first + i
            edge = first_edges[first + i] + entries[i]
            chance = 0.0
            if mode == BY_EDGE:
                if edge < 0 or edge >= table.size:
                    return BAD_OFFSETS, first + i
                chance = table[edge]
            elif mode == BY_OUTCOME:
                chance = table[code]
            else:
                chance = table[0]
            out_next_node[first + i] = node
            out_outcome[first + i] = code
            out_edge[first + i] = edge
            out_probability[first + i] = chance if chance > 0.0 else 0.0
    return OK, -1


@kernel
def check_lists(list_offsets: Any, list_code: Any, num_outcomes: int) -> tuple[int, int]:
    """Check the lists of codes: offsets rise from 0 to the end, codes exist. Returns status and list."""
    count = list_offsets.size - 1
    if list_offsets[0] != 0 or np.int64(list_offsets[count]) != list_code.size:
        return BAD_OFFSETS, 0
    for number in range(count):
        begin = np.int64(list_offsets[number])
        end = np.int64(list_offsets[number + 1])
        if begin < 0 or end < begin or end > list_code.size:
            return BAD_OFFSETS, number
        for k in range(begin, end):
            if np.int64(list_code[k]) >= num_outcomes:
                return BAD_CODE, number
    return OK, -1


@kernel
def check_patterns(
    pattern_offsets: Any, delta: Any, pattern_list: Any, list_offsets: Any, list_code: Any, coded: bool
) -> tuple[int, int]:
    """Check the patterns, the lists being sound: offsets rise, lists fit, edges are sorted.

    Returns status and pattern.
    """
    count = pattern_offsets.size - 1
    if pattern_offsets[0] != 0 or np.int64(pattern_offsets[count]) != delta.size:
        return BAD_OFFSETS, 0
    for pattern in range(count):
        start = np.int64(pattern_offsets[pattern])
        stop = np.int64(pattern_offsets[pattern + 1])
        if start < 0 or stop < start or stop > delta.size:
            return BAD_OFFSETS, pattern
        begin = np.int64(0)
        if coded:
            begin = _list_start(pattern_list, list_offsets, list_code.size, pattern, stop - start)
            if begin < 0:
                return BAD_PATTERN, pattern
        for k in range(1, stop - start):
            before = np.int64(delta[start + k - 1])
            after = np.int64(delta[start + k])
            if after < before:
                return UNSORTED, pattern
            if coded and after == before and list_code[begin + k] < list_code[begin + k - 1]:
                return UNSORTED, pattern
    return OK, -1
