"""The compiled part of rollouts that draws successors of factored rows: next nodes and codes, and no edges.

The same draws, to the bit, as those of `omstore.rows.factored_draws.sample_rows`, which also numbers edges
and gives probabilities. Tables come checked; what is mapped (`product`, `node_at`, `block`, `block_pattern`)
isn't trusted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel, prefetch
from omstore.rows.factored_draws import SHORT, count_passed, divided, reciprocal, search
from omstore.rows.factored_kernels import BAD_PRODUCT
from omstore.rows.kernels import BAD_CODE, BAD_NODE, BAD_PATTERN, ILLEGAL, OK
from omstore.rows.patterns import NO_PATTERN

__all__ = ["draw_factored"]

_BATCH = 128  # rows in flight; enough to hide memory latency


@kernel
def draw_factored(
    layout: Any,
    action_pair: Any,
    pairs: Any,
    outcomes: Any,
    cumulative: Any,
    padded: Any,
    longest: int,
    combination: Any,
    coded: bool,
    num_products: int,
    product: Any,
    node_at: Any,
    block: Any,
    block_pattern: Any,
    num_nodes: int,
    num_outcomes: int,
    count: int,
    nodes: Any,
    actions: Any,
    uniforms: Any,
    out_next: Any,
    out_code: Any,
    exceptional: Any,
    patterns: Any,
) -> tuple[int, int, int]:
    """Draw a next node (and where `coded` its code) for each of `count` pairs of node and joint action.

    Rows that don't factor are listed with their patterns instead. `outcomes` has 4 numbers for each outcome: the
    sum of probabilities before it, its probability, and what it adds to the next product number and to the
    combination (whole numbers below 2^53); and 4 behind the last. Returns status, position and how many are
    listed.
    """
    components = layout.shape[0]
    small = num_products < 4294967296
    searched = padded.size == 0 or longest > SHORT
    listed: Any = np.int64(0)
    states = np.empty(components * _BATCH, np.int64)
    left = np.empty(_BATCH, np.int64)
    rest_of = np.empty(_BATCH, np.float64)  # what is left of the uniform number
    number_of = np.empty(_BATCH, np.float64)  # next product number
    kind_of = np.empty(_BATCH, np.float64)  # combination
    possible = np.empty(_BATCH, np.int64)
    for first in range(0, count, _BATCH):
        some = min(_BATCH, count - first)
        if block.size or product.size:
            for i in range(some):
                node = nodes[np.uint64(first + i)]
                prefetch(block, node)
                prefetch(product, node)
        for i in range(some):
            number = np.int64(nodes[np.uint64(first + i)])
            if product.size:
                number = np.int64(product[number])
                if number < 0 or number >= num_products:
                    return BAD_PRODUCT, first + i, listed
            left[i] = number
            rest_of[i] = uniforms[np.uint64(first + i)]
            number_of[i] = 0.0
            kind_of[i] = 0.0
            possible[i] = 1
        for c in range(components - 1, 0, -1):
            size = layout[c, 0]
            inverse = reciprocal(size)
            for i in range(some):
                number = left[i]
                rest = divided(number, size, inverse) if small else number // size
                states[np.uint64(c * _BATCH + i)] = number - rest * size
                left[i] = rest
        for i in range(some):
            states[i] = left[i]
        for c in range(components):
            own_actions = layout[c, 1]
            for i in range(some):
                local = states[np.uint64(c * _BATCH + i)] * own_actions
                pair = np.int64(action_pair[np.uint64(actions[np.uint64(first + i)]), c]) + local
                start = np.int64(pairs[np.uint64(4 * pair)])
                length = np.int64(pairs[np.uint64(4 * pair + 1)])
                uniform = rest_of[i]
                if searched and (length > SHORT or padded.size == 0):
                    chosen = search(cumulative, start, length, uniform)
                else:
                    chosen = count_passed(padded, pair * SHORT, uniform)
                    chosen = max(min(chosen, length - 1), np.int64(0))
                at = 4 * (start + chosen)  # an outcome that exists, or for an illegal row the next
                rest_of[i] = (uniform - outcomes[np.uint64(at)]) / outcomes[np.uint64(at + 1)]
                number_of[i] += outcomes[np.uint64(at + 2)]
                if coded:
                    kind_of[i] += outcomes[np.uint64(at + 3)]
                possible[i] &= length > 0
        for i in range(some):
            if block.size:
                own_block = np.int64(block[nodes[first + i]])
                if own_block > 0:
                    if own_block > block_pattern.shape[0]:
                        return BAD_PATTERN, first + i, listed
                    pattern = np.int64(block_pattern[own_block - 1, actions[first + i]])
                    if pattern != NO_PATTERN:
                        exceptional[listed] = first + i
                        patterns[listed] = pattern
                        listed += 1
                        continue
            if not possible[i]:
                return ILLEGAL, first + i, listed
            node = np.int64(number_of[i])
            if node_at.size:
                node = np.int64(node_at[node])
                if node < 0 or node >= num_nodes:
                    return BAD_NODE, first + i, listed
            out_next[np.uint64(first + i)] = node
            if coded:
                code = np.int64(combination[np.int64(kind_of[i])])
                if code >= num_outcomes:
                    return BAD_CODE, first + i, listed
                out_code[first + i] = code
    return OK, -1, listed
