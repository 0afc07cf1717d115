"""The compiled part of rollouts that adds rewards up and takes out environments that are done."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inlined_kernel, kernel

__all__ = [
    "BAD_CODE",
    "BY_CODE",
    "BY_NEXT",
    "BY_NODE",
    "CONSTANT",
    "GIVEN",
    "OK",
    "UNLESS",
    "advance",
    "sum_parts",
    "weigh",
]

OK = 0
BAD_CODE = 1
"""A node or an edge has a code that isn't in the table of values."""

CONSTANT = 0
"""One value, for every edge."""
BY_NEXT = 1
"""A value for each next node."""
BY_NODE = 2
"""A value for each node."""
UNLESS = 3
"""The node's own value where it has one, else its next node's."""
BY_CODE = 4
"""A value for each outcome code."""
GIVEN = 5
"""A value for each environment that goes on, in their order."""

_BATCH = 128  # edges in flight; enough to hide memory latency


@inlined_kernel
def _find(
    how: Any,
    codes: Any,
    own: Any,
    node: Any,
    following: Any,
    code: Any,
    first: Any,
    count: Any,
    places: Any,
) -> None:
    """Write where in a table of values the values of a batch of edges are.

    By loops of its own for each way: passing arrays costs more than the work on an edge.
    """
    if how == GIVEN:
        for i in range(count):
            places[i] = first + i
    elif how == CONSTANT:
        for i in range(count):
            places[i] = 0
    elif how == BY_CODE:
        for i in range(count):
            places[i] = code[np.uint64(first + i)] if code.size else np.int64(0)
    else:
        for i in range(count):
            places[i] = (node if how == BY_NODE else following)[np.uint64(first + i)]
        if codes.size:
            for i in range(count):
                places[i] = np.int64(codes[np.uint64(places[i])])
        if how == UNLESS:
            for i in range(count):
                mine = np.int64(own[np.uint64(node[np.uint64(first + i)])])
                places[i] = mine - 1 if mine else places[i]


@kernel
def advance(
    discount: float,
    count: int,
    node: Any,
    following: Any,
    code: Any,
    reward_how: int,
    reward: Any,
    reward_codes: Any,
    reward_own: Any,
    done_how: int,
    done: Any,
    done_codes: Any,
    done_own: Any,
    alive: Any,
    nodes: Any,
    returns: Any,
) -> tuple[int, int]:
    """Add discounted rewards, move to the next nodes, and keep in `alive` what isn't done.

    `node`, `following` and `code` (empty without codes) are in the order of `alive`. Returns a status and how
    many go on, or where it stopped.
    """
    kept: Any = np.int64(0)
    rewarded = np.empty(_BATCH, np.int64)
    ended = np.empty(_BATCH, np.int64)
    for first in range(0, count, _BATCH):
        some = min(_BATCH, count - first)
        _find(reward_how, reward_codes, reward_own, node, following, code, first, some, rewarded)
        _find(done_how, done_codes, done_own, node, following, code, first, some, ended)
        for i in range(some):
            if rewarded[i] >= reward.size or ended[i] >= done.size:
                return BAD_CODE, first + i
        for i in range(some):
            environment = np.uint64(alive[np.uint64(first + i)])
            returns[environment] += discount * reward[np.uint64(rewarded[i])]
            nodes[environment] = following[np.uint64(first + i)]
            alive[np.uint64(kept)] = environment
            kept += np.int64(done[np.uint64(ended[i])] == 0)
    return OK, kept


@kernel
def weigh(values: Any, weights: Any, out: Any) -> None:
    """Write the weighted sum of each item's rewards, the agents in their order."""
    for i in range(values.shape[0]):
        total = 0.0
        for agent in range(weights.size):
            total += weights[agent] * values[i, agent]
        out[i] = total


@kernel
def sum_parts(returns: Any, per_part: int, sums: Any, squares: Any) -> None:
    """Write the sums of each part's returns and of their squares, in their order."""
    for part in range(sums.size):
        total = 0.0
        square = 0.0
        for k in range(part * per_part, (part + 1) * per_part):
            total += returns[k]
            square += returns[k] * returns[k]
        sums[part] = total
        squares[part] = square
