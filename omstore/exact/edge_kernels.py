"""Expected returns of rows from their edges, one edge after the other; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel

__all__ = [
    "BAD_CODE",
    "BAD_NODE",
    "CONSTANT",
    "OK",
    "PER_CODE",
    "PER_EDGE",
    "back_up_edges",
    "back_up_resolved",
]

OK, BAD_NODE, BAD_CODE = 0, 1, 2
CONSTANT, PER_CODE, PER_EDGE = 0, 1, 2
"""Where probabilities are found."""


@kernel
def back_up_edges(
    first_row: Any,
    num_joint_actions: Any,
    offsets: Any,
    next_node: Any,
    codes: Any,
    how: Any,
    probability: Any,
    table: Any,
    plain: Any,
    base: Any,
    marked: Any,
    code_reward: Any,
    code_keep: Any,
    out: Any,
) -> tuple[int, int]:
    """Write the expected return of consecutive rows: sum of p * (gain of the next node).

    Parameters
    ----------
    first_row, num_joint_actions : int
    offsets : (rows + 1,) int64
    next_node : (E,) unsigned integers
    codes : (E,) unsigned integers, or empty
    how : int
        ``CONSTANT``, ``PER_CODE`` or ``PER_EDGE``: what `probability` holds.
    probability : (1,), (K,) or (E,) float64
    table, plain, base, marked, code_reward, code_keep : arrays
        As in `omstore.exact.gains.Gains`.
    out : (rows,) float64
        NaN for a row without edges.

    Returns
    -------
    status, row : int
        ``OK``, or what is wrong with the edges of a row.
    """
    by_code = code_reward.size > 0
    for row in range(offsets.size - 1):
        if offsets[row] == offsets[row + 1]:
            out[row] = np.nan
            continue
        own, start = table, 0.0
        if marked.size:
            node = (first_row + row) // num_joint_actions
            if marked[node]:
                own, start = plain, base[node]
        total = 0.0
        if how == PER_CODE and not by_code:  # what most large graphs need, without questions at every edge
            for edge in range(offsets[row], offsets[row + 1]):
                follows, code = np.int64(next_node[edge]), np.int64(codes[edge])
                if follows < 0 or follows >= own.size:
                    return BAD_NODE, row
                if code >= probability.size:
                    return BAD_CODE, row
                total += probability[code] * (start + own[follows])
            out[row] = total
            continue
        for edge in range(offsets[row], offsets[row + 1]):
            follows = np.int64(next_node[edge])
            if follows < 0 or follows >= own.size:
                return BAD_NODE, row
            code = np.int64(codes[edge]) if codes.size else np.int64(0)
            if how == PER_CODE:
                if code >= probability.size:
                    return BAD_CODE, row
                chance = probability[code]
            elif how == PER_EDGE:
                chance = probability[edge]
            else:
                chance = probability[0]
            if by_code:
                if code >= code_reward.size:
                    return BAD_CODE, row
                total += chance * ((start + code_reward[code]) + code_keep[code] * own[follows])
            else:
                total += chance * (start + own[follows])
        out[row] = total
    return OK, 0


@kernel
def back_up_resolved(
    offsets: Any,
    next_node: Any,
    probability: Any,
    reward: Any,
    done: Any,
    weights: Any,
    values: Any,
    discount: Any,
    ends: Any,
    sign: Any,
    out: Any,
) -> None:
    """Write the expected return of rows whose edges' attributes are resolved.

    Parameters
    ----------
    offsets : (rows + 1,) int64
    next_node, probability, reward, done : (E,), (E, agents) int64, float64, float64, bool
        After an edge that is done nothing follows.
    weights : (agents,) float64, or empty
    values : (N,) float64
    discount, sign : float
    ends : bool
        Whether done counts.
    out : (rows,) float64
        NaN for a row without edges.
    """
    for row in range(offsets.size - 1):
        if offsets[row] == offsets[row + 1]:
            out[row] = np.nan
            continue
        total = 0.0
        for edge in range(offsets[row], offsets[row + 1]):
            gain = 0.0
            for agent in range(weights.size):
                gain += weights[agent] * reward[edge, agent]
            if not (ends and done[edge]):
                gain += discount * values[next_node[edge]]
            total += probability[edge] * gain
        out[row] = sign * total
