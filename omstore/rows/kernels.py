"""The compiled part of the row encodings: bounds of rows, gathering, sampling and checking edges.

Arrays come as they are mapped: offsets uint64, next nodes uint32 or uint64, codes uint8, uint16 or uint32
(see `omstore.compiled.as_input`). Nothing read from them is trusted: whatever a damaged file holds, a
kernel returns a status and the position where it stopped, and never reads outside the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel, prefetch

__all__ = [
    "BAD_CODE",
    "BAD_NODE",
    "BAD_OFFSETS",
    "BAD_PATTERN",
    "BY_EDGE",
    "BY_OUTCOME",
    "BY_ROWS",
    "CONSTANT",
    "ILLEGAL",
    "OK",
    "ROW_RANGE",
    "UNSORTED",
    "add_nodes",
    "check_rows",
    "copy_chunk",
    "first_difference",
    "gather_edges",
    "number_edges",
    "row_bounds",
    "sample_rows",
]

OK = 0
ROW_RANGE = 1
"""A row number isn't one of the graph's."""
ILLEGAL = 2
"""A row without successors where one was to be sampled."""
BAD_OFFSETS = 3
"""The file's offsets fall, or point behind the edges."""
BAD_NODE = 4
"""The file names a next node that doesn't exist."""
BAD_CODE = 5
"""The file holds an outcome code that isn't in the table."""
UNSORTED = 6
"""A row's edges aren't sorted by next node, then outcome."""
BAD_PATTERN = 7
"""The file names a block, pattern or list of codes that doesn't exist or doesn't fit."""

CONSTANT = 0
"""The probability table holds one number, for every edge."""
BY_OUTCOME = 1
"""The probability table is indexed by outcome code."""
BY_EDGE = 2
"""The probability table is indexed by edge."""
BY_ROWS = 3
"""There is no table: the row encoding knows the probabilities itself."""

_BLOCK = 128  # rows in flight; enough to hide memory latency


@kernel
def row_bounds(
    offsets: Any, uniform: int, num_rows: int, num_edges: int, rows: Any, starts: Any, sums: Any
) -> tuple[int, int]:
    """Find each row's first edge (`starts`) and the running sum of outdegrees (`sums`, one longer).

    `uniform` is the outdegree of every row, or -1 where `offsets` hold it.
    """
    total = 0
    sums[0] = 0
    for i in range(rows.size):
        row = rows[i]
        if row < 0 or row >= num_rows:
            return ROW_RANGE, i
        if uniform >= 0:
            start = row * uniform
            stop = start + uniform
        else:
            start = np.int64(offsets[row])
            stop = np.int64(offsets[row + 1])
        if start < 0 or stop < start or stop > num_edges:
            return BAD_OFFSETS, i
        starts[i] = start
        total += stop - start
        sums[i + 1] = total
    return OK, -1


@kernel
def gather_edges(
    next_node: Any,
    outcome: Any,
    coded: bool,
    num_nodes: int,
    num_outcomes: int,
    starts: Any,
    sums: Any,
    out_next_node: Any,
    out_outcome: Any,
) -> tuple[int, int]:
    """Copy the edges of rows whose bounds are known; `coded` is false where there are no codes."""
    for i in range(starts.size):
        if i + 8 < starts.size:  # a few rows ahead: rows are short, and lie anywhere
            prefetch(next_node, starts[i + 8])
            if coded:
                prefetch(outcome, starts[i + 8])
        start = starts[i]
        at = sums[i]
        count = sums[i + 1] - at
        largest = np.int64(0)
        for k in range(count):
            node = np.int64(next_node[start + k])
            # A node of 2^63 or more is negative here, and large once its sign is shifted out.
            largest = max(largest, node if node >= 0 else np.int64(num_nodes))
            out_next_node[at + k] = node
        if largest >= num_nodes:
            return BAD_NODE, i
        if coded:
            highest = np.int64(0)
            for k in range(count):
                code = outcome[start + k]
                highest = max(highest, np.int64(code))
                out_outcome[at + k] = code
            if highest >= num_outcomes:
                return BAD_CODE, i
    return OK, -1


@kernel
def number_edges(starts: Any, sums: Any, out: Any) -> None:
    """Write the numbers of the edges of rows whose bounds are known."""
    for i in range(starts.size):
        at = sums[i]
        for k in range(sums[i + 1] - at):
            out[at + k] = starts[i] + k


@kernel
def sample_rows(
    offsets: Any,
    uniform: int,
    num_rows: int,
    num_edges: int,
    next_node: Any,
    outcome: Any,
    coded: bool,
    num_nodes: int,
    num_outcomes: int,
    rows: Any,
    uniforms: Any,
    mode: int,
    table: Any,
    out_next_node: Any,
    out_outcome: Any,
    out_edge: Any,
    out_probability: Any,
) -> tuple[int, int]:
    """Draw one edge of every row by inverting its cumulative probability at ``uniforms``.

    The last edge of positive probability takes what rounding leaves of 1. `table` is read as `mode` says.
    """
    starts = np.empty(_BLOCK, np.int64)
    stops = np.empty(_BLOCK, np.int64)
    for first in range(0, rows.size, _BLOCK):
        block = min(_BLOCK, rows.size - first)
        for i in range(block):
            row = rows[first + i]
            if row < 0 or row >= num_rows:
                return ROW_RANGE, first + i
            if uniform >= 0:
                start = row * uniform
                stop = start + uniform
            else:
                start = np.int64(offsets[row])
                stop = np.int64(offsets[row + 1])
            if start < 0 or stop < start or stop > num_edges:
                return BAD_OFFSETS, first + i
            if start == stop:
                return ILLEGAL, first + i
            starts[i] = start
            stops[i] = stop
            prefetch(next_node, start)
            if mode == BY_EDGE:
                prefetch(table, start)
            elif coded:
                prefetch(outcome, start)
        for i in range(block):
            u = uniforms[first + i]
            reached = 0.0
            chosen = starts[i]
            chance = 0.0
            for edge in range(starts[i], stops[i]):
                place: Any = np.int64(0)
                if mode == BY_EDGE:
                    place = edge
                elif mode == BY_OUTCOME and coded:
                    place = np.int64(outcome[edge])
                    if place >= num_outcomes:
                        return BAD_CODE, first + i
                probability = table[place]
                if probability > 0.0:
                    chosen = edge
                    chance = probability
                    reached += probability
                    if u < reached:
                        break
            node = np.int64(next_node[chosen])
            if node < 0 or node >= num_nodes:
                return BAD_NODE, first + i
            code = np.int64(outcome[chosen]) if coded else np.int64(0)
            if code >= num_outcomes:
                return BAD_CODE, first + i
            out_next_node[first + i] = node
            out_outcome[first + i] = code
            out_edge[first + i] = chosen
            out_probability[first + i] = chance
    return OK, -1


@kernel
def check_rows(
    sums: Any, next_node: Any, outcome: Any, coded: bool, num_nodes: int, num_outcomes: int
) -> tuple[int, int]:
    """Check consecutive rows: nodes and codes in range, each row sorted. Returns status and row."""
    for i in range(sums.size - 1):
        last_node = np.int64(-1)
        last_code = np.int64(-1)
        for edge in range(sums[i], sums[i + 1]):
            node = np.int64(next_node[edge])
            if node < 0 or node >= num_nodes:
                return BAD_NODE, i
            code = np.int64(outcome[edge]) if coded else np.int64(0)
            if code < 0 or code >= num_outcomes:
                return BAD_CODE, i
            if node < last_node or (node == last_node and code < last_code):
                return UNSORTED, i
            last_node = node
            last_code = code
    return OK, -1


@kernel
def copy_chunk(chunk: Any, first_edge: int, starts: Any, counts: Any, places: Any, out: Any) -> None:
    """Copy of every row the edges that lie in a decoded chunk, which begins at `first_edge`.

    A row's ``counts[i]`` edges begin at ``starts[i]``, and go to ``out[places[i]:]``.
    """
    last_edge = first_edge + chunk.size
    for i in range(starts.size):
        begin = max(starts[i], first_edge)
        end = min(starts[i] + counts[i], last_edge)
        shift = places[i] - starts[i]
        for edge in range(begin, end):
            out[edge + shift] = chunk[edge - first_edge]


@kernel
def add_nodes(
    first_row: int, rows: Any, num_joint_actions: int, sums: Any, deltas: Any, num_nodes: int, out: Any
) -> tuple[int, int]:
    """Turn differences into next nodes, for rows `rows`, or from `first_row` on where `rows` is empty."""
    for i in range(sums.size - 1):
        row = rows[i] if rows.size else first_row + i
        node = row // num_joint_actions
        for edge in range(sums[i], sums[i + 1]):
            moved = node + np.int64(deltas[edge])
            if moved < 0 or moved >= num_nodes:
                return BAD_NODE, i
            out[edge] = moved
    return OK, -1


@kernel
def first_difference(
    sums: Any, next_node: Any, outcome: Any, own_sums: Any, own_node: Any, own_outcome: Any, coded: bool
) -> int:
    """Compare the same rows from two encodings; position of the first that differs, or -1."""
    for i in range(sums.size - 1):
        start = sums[i]
        own = own_sums[i]
        count = sums[i + 1] - start
        if own_sums[i + 1] - own != count:
            return i
        differs = False
        for k in range(count):
            differs |= np.int64(next_node[start + k]) != np.int64(own_node[own + k])
        if coded:
            for k in range(count):
                differs |= np.int64(outcome[start + k]) != np.int64(own_outcome[own + k])
        if differs:
            return i
    return -1
