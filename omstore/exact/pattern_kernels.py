"""Expected returns of rows that are patterns, without decoding them; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel

__all__ = ["BAD_NODE", "BAD_PATTERN", "OK", "back_up_patterns"]

OK, BAD_NODE, BAD_PATTERN = 0, 1, 2


@kernel
def back_up_patterns(
    first: Any,
    stop: Any,
    num_joint: Any,
    num_nodes: Any,
    position: Any,
    node_at: Any,
    block: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    delta: Any,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    probability: Any,
    table: Any,
    plain: Any,
    base: Any,
    marked: Any,
    out: Any,
) -> tuple[int, int]:
    """Write the expected returns of the rows of nodes first..stop-1.

    Parameters
    ----------
    first, stop, num_joint, num_nodes : int
    position, node_at, block, block_pattern, pattern_offsets, delta, pattern_list, list_offsets, list_code : arrays
        Of `omstore.rows.DictionaryRows`; patterns and lists are checked, `position` too, blocks aren't.
    probability : (K,) float64
    table, plain, base, marked : arrays
        Of `omstore.exact.gains.Gains`, by position; NaN where no node is.
    out : (rows,) float64
        NaN for a row without edges.

    Returns
    -------
    status, row : int
    """
    num_patterns = pattern_offsets.size - 1
    for node in range(first, stop):
        own, start = table, 0.0
        if marked.size and marked[node]:
            own, start = plain, base[node]
        at = np.int64(position[node]) if position.size else node
        place = np.int64(block[node]) * num_joint
        if place + num_joint > block_pattern.size:
            return BAD_PATTERN, node * num_joint
        for joint in range(num_joint):
            pattern = np.int64(block_pattern[place + joint])
            row = (node - first) * num_joint + joint
            if pattern >= num_patterns:
                return BAD_PATTERN, node * num_joint + joint
            begin, end = np.int64(pattern_offsets[pattern]), np.int64(pattern_offsets[pattern + 1])
            if begin == end:
                out[row] = np.nan
                continue
            # Entries ascend: the first and the last say whether all are within the table.
            if at + np.int64(delta[begin]) < 0 or at + np.int64(delta[end - 1]) >= own.size:
                return BAD_NODE, node * num_joint + joint
            total = 0.0
            if pattern_list.size:
                code = np.int64(list_offsets[pattern_list[pattern]])
                for entry in range(begin, end):
                    chance = probability[np.int64(list_code[code + entry - begin])]
                    total += chance * (start + own[at + np.int64(delta[entry])])
            else:
                for entry in range(begin, end):
                    total += probability[0] * (start + own[at + np.int64(delta[entry])])
            if total != total and node_at.size:
                for entry in range(begin, end):
                    if np.int64(node_at[at + np.int64(delta[entry])]) >= num_nodes:
                        return BAD_NODE, node * num_joint + joint
            out[row] = total
    return OK, 0
