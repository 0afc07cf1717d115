"""The compiled part of the factored encoding that draws edges, without making a row.

See `omstore.rows.factored_kernels` for what is trusted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from omstore.compiled import inlined_kernel, intrinsic, kernel, prefetch
from omstore.rows.factored_kernels import BAD_PRODUCT, before_in_block, before_row, number_of
from omstore.rows.kernels import (
    BAD_CODE,
    BAD_NODE,
    BAD_PATTERN,
    BY_EDGE,
    BY_OUTCOME,
    BY_ROWS,
    ILLEGAL,
    OK,
    ROW_RANGE,
)
from omstore.rows.patterns import NO_PATTERN

__all__ = ["SHORT", "count_passed", "divided", "reciprocal", "sample_rows", "search"]

SHORT = 8
"""Outcomes of a kernel that are compared all at once when drawing."""

_BATCH = 128  # rows in flight; enough to hide memory latency


@intrinsic
def count_passed(typing: Any, ascending: Any, position: Any, number: Any) -> Any:
    """How many of `SHORT` ascending floats a number of their type isn't below; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        align = signature.args[0].dtype.bitwidth // 8
        vector = ir.VectorType(data.type.pointee, SHORT)
        place = builder.bitcast(builder.gep(data, [arguments[1]]), vector.as_pointer())
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, arguments[2], ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), SHORT), None)
        splat = builder.shuffle_vector(first, nothing, zeros)
        passed = builder.fcmp_ordered(">=", splat, builder.load(place, align=align))
        bits = builder.bitcast(passed, ir.IntType(SHORT))
        return builder.zext(builder.ctpop(bits), ir.IntType(64))

    return types.int64(ascending, types.int64, ascending.dtype), generate


@intrinsic
def upper_half(typing: Any, one: Any, two: Any) -> Any:
    """Upper 64 bits of the product of two unsigned numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


@inlined_kernel
def reciprocal(divisor: Any) -> Any:
    """Prepare a division; see `divided`."""
    return np.uint64(18446744073709551615) // np.uint64(divisor) + np.uint64(1)


@inlined_kernel
def divided(number: Any, divisor: Any, reciprocal: Any) -> Any:
    """Divide numbers of 32 bits by a multiplication (Lemire, Kaser and Kurz, "Faster remainder by direct
    computation", Software: Practice and Experience 49, 2019).
    """
    return np.int64(upper_half(np.uint64(number), reciprocal)) if divisor > 1 else np.int64(number)


@inlined_kernel
def search(cumulative: Any, start: Any, length: Any, uniform: Any) -> Any:
    """Number within a pair of the outcome at which the cumulative probability passes `uniform`."""
    low = np.int64(0)
    high = length - 1
    while low < high:
        middle = (low + high) >> 1
        if uniform < cumulative[start + middle]:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def sample_rows(
    tables: Any,
    combination: Any,
    num_products: int,
    product: Any,
    node_at: Any,
    block: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    starts_in_block: Any,
    first_edge: Any,
    num_nodes: int,
    num_joint_actions: int,
    num_outcomes: int,
    rows: Any,
    uniforms: Any,
    mode: int,
    table: Any,
    out_next_node: Any,
    out_outcome: Any,
    out_edge: Any,
    out_probability: Any,
    exceptional: Any,
    patterns: Any,
) -> tuple[int, int, int]:
    """Draw one edge of every row, one component after the other; rows that don't factor are listed.

    What of a uniform number lies within the interval that it chose is a uniform number again, and chooses for
    the next component. Each step is taken for a batch of rows before the next: they don't wait for each
    other. Of a row that is listed, `out_edge` is its first edge. Returns status, position and how many are
    listed.
    """
    layout = tables.layout
    action_pair = tables.action_pair
    offsets = tables.offsets
    pairs = tables.pairs
    chances = tables.chances
    gains = tables.gains
    cumulative = tables.cumulative
    padded = tables.padded
    group_start = tables.group_start
    group_component = tables.group_component
    in_order = tables.in_order
    components = layout.shape[0]
    num_rows = num_nodes * num_joint_actions
    small = num_rows < 4294967296 and num_products < 4294967296
    searched = padded.size == 0 or tables.longest > SHORT
    by_actions = reciprocal(num_joint_actions)
    listed: Any = np.int64(0)
    base = np.zeros(components, np.int64)
    # Of the rows in flight: node, joint action, what is left of the product number; then 5 sums of each row
    # (next product number, combination, edge within the row, edges before it, edges), and 2 floats (what is
    # left of the uniform number, probability). Few arrays: each takes a register.
    node_of = np.empty(_BATCH, np.int64)
    action_of = np.empty(_BATCH, np.int64)
    left = np.empty(_BATCH, np.int64)
    states = np.empty(components * _BATCH, np.int64)
    sums = np.empty(_BATCH * 8, np.int64)
    floats = np.empty(_BATCH * 2, np.float64)
    for first in range(0, rows.size, _BATCH):
        count = min(_BATCH, rows.size - first)
        for i in range(count):
            row = rows[first + i]
            if row < 0 or row >= num_rows:
                return ROW_RANGE, first + i, listed
            node = divided(row, num_joint_actions, by_actions) if small else row // num_joint_actions
            node_of[i] = node
            action_of[i] = row - node * num_joint_actions
            prefetch(first_edge, node)
            prefetch(block, node)
            prefetch(product, node)
        for i in range(count):
            number = number_of(product, num_products, node_of[i])
            if number < 0:
                return BAD_PRODUCT, first + i, listed
            left[i] = number
            floats[2 * i] = uniforms[first + i]
            floats[2 * i + 1] = 1.0
            sums[8 * i] = 0
            sums[8 * i + 1] = 0
            sums[8 * i + 2] = 0
            sums[8 * i + 3] = 0
            sums[8 * i + 4] = 1
        for c in range(components - 1, 0, -1):
            size = layout[c, 0]
            by_size = reciprocal(size)
            for i in range(count):
                number = left[i]
                rest = divided(number, size, by_size) if small else number // size
                states[np.uint64(c * _BATCH + i)] = number - rest * size
                left[i] = rest
        for i in range(count):
            states[i] = left[i]
        for c in range(components):
            actions = layout[c, 1]
            for i in range(count):
                place = np.uint64(c * _BATCH + i)
                local = states[place] * actions
                states[place] = local
                pair = np.int64(action_pair[np.uint64(action_of[i]), c]) + local
                start = np.int64(pairs[np.uint64(4 * pair)])
                length = np.int64(pairs[np.uint64(4 * pair + 1)])
                uniform = floats[2 * i]
                if searched and (length > SHORT or padded.size == 0):
                    chosen = search(cumulative, start, length, uniform)
                else:
                    chosen = count_passed(padded, pair * SHORT, uniform)
                    chosen = max(min(chosen, length - 1), np.int64(0))
                at = 2 * (start + chosen)  # an outcome that exists, or for an illegal row the next
                probability = chances[np.uint64(at + 1)]
                floats[2 * i] = (uniform - chances[np.uint64(at)]) / probability
                floats[2 * i + 1] *= probability
                sums[8 * i] += gains[np.uint64(at)]
                sums[8 * i + 1] += gains[np.uint64(at + 1)]
                sums[8 * i + 2] = sums[8 * i + 2] * length + chosen
                # Edges before the row: see `before_row`, taken the first agent first.
                own = sums[8 * i + 4]
                earlier = own * np.int64(pairs[np.uint64(4 * pair + 2)])
                sums[8 * i + 3] = sums[8 * i + 3] * np.int64(pairs[np.uint64(4 * pair + 3)]) + earlier
                sums[8 * i + 4] = own * length
        for i in range(count):
            node = node_of[i]
            action = action_of[i]
            own_block = np.int64(block[node]) if block.size else np.int64(0)
            edge = sums[8 * i + 3]
            pattern = np.int64(NO_PATTERN)
            if own_block > 0:
                if own_block > block_pattern.shape[0]:
                    return BAD_PATTERN, first + i, listed
                pattern = np.int64(block_pattern[own_block - 1, action])
                edge = np.int64(-1)
                if own_block <= starts_in_block.shape[0]:
                    edge = starts_in_block[own_block - 1, action]
                if edge < 0:
                    base[:] = states[i::_BATCH]
                    edge = before_in_block(
                        action_pair, offsets, base, block_pattern, pattern_offsets, own_block - 1, action
                    )
                if edge < 0:
                    return BAD_PATTERN, first + i, listed
            elif not in_order:
                base[:] = states[i::_BATCH]
                edge, _ = before_row(layout, group_start, group_component, action_pair, offsets, base, action)
            edge += np.int64(first_edge[node])
            if pattern != NO_PATTERN:
                exceptional[listed] = first + i
                patterns[listed] = pattern
                listed += 1
                out_edge[first + i] = edge
                continue
            if sums[8 * i + 4] == 0:
                return ILLEGAL, first + i, listed
            node = sums[8 * i]
            if node_at.size:
                node = np.int64(node_at[node])
                if node < 0 or node >= num_nodes:
                    return BAD_NODE, first + i, listed
            code = np.int64(combination[sums[8 * i + 1]])
            if code >= num_outcomes:
                return BAD_CODE, first + i, listed
            edge += sums[8 * i + 2]
            chance = floats[2 * i + 1]
            if mode == BY_OUTCOME:
                chance = table[code]
            elif mode == BY_EDGE:
                chance = table[edge] if 0 <= edge < table.size else np.nan
            elif mode != BY_ROWS:
                chance = table[0]
            out_next_node[first + i] = node
            out_outcome[first + i] = code
            out_edge[first + i] = edge
            out_probability[first + i] = chance
    return OK, -1, listed
