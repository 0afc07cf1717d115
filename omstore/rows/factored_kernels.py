"""The compiled part of the factored encoding that finds rows: lengths, starts, and where a node's outcomes stand.

Tables come checked (`omstore.rows.factored_tables`). What is mapped isn't trusted: `product` and `node_at`
(node -> product number and back; empty where they are equal), `block` (empty without exceptions),
`block_pattern` and `pattern_offsets`. A kernel returns a status and the position where it stopped, and never
reads outside the arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inlined_kernel, kernel
from omstore.rows.kernels import BAD_PATTERN, OK, ROW_RANGE
from omstore.rows.patterns import NO_PATTERN

__all__ = [
    "BAD_PRODUCT",
    "CHANGED",
    "before_in_block",
    "before_row",
    "block_starts",
    "enter_node",
    "leaves",
    "locate",
    "node_edges",
    "number_of",
    "row_length",
    "row_lengths",
    "row_starts",
]

BAD_PRODUCT = 20
"""The file holds a product number that isn't one."""
CHANGED = 21
"""A row isn't as long as it was a moment before: the file changed while it was read."""


@inlined_kernel
def locate(layout: Any, number: Any, base: Any) -> None:
    """Write each component's local state, times its actions; `number` is a product number."""
    left = np.int64(number)
    for c in range(layout.shape[0] - 1, 0, -1):
        size = layout[c, 0]
        # Division of 32 bits is several times faster on many processors.
        if left < 4294967296:
            rest = np.int64(np.uint32(left) // np.uint32(size))
        else:
            rest = left // size
        base[c] = (left - rest * size) * layout[c, 1]
        left = rest
    base[0] = left * layout[0, 1]


@inlined_kernel
def number_of(product: Any, num_products: int, node: Any) -> Any:
    """Product number of a node, or -1 if what is stored is none."""
    if product.size == 0:
        return np.int64(node)
    number = np.int64(product[node])
    return number if 0 <= number < num_products else np.int64(-1)


@inlined_kernel
def leaves(row: Any, start: Any, num_joint_actions: int) -> Any:
    """Whether a row isn't of the node whose rows begin at `start`; negative: of none."""
    return start < 0 or row < start or row - start >= num_joint_actions


@inlined_kernel
def enter_node(
    row: Any, num_joint_actions: int, layout: Any, product: Any, num_products: int, base: Any
) -> Any:
    """Return the first row of a row's node, and whether its product number is one; then `base` is where it stands,
    see `locate`."""
    node = row // num_joint_actions
    number = number_of(product, num_products, node)
    if number >= 0:
        locate(layout, number, base)
    return node * num_joint_actions, number >= 0


@inlined_kernel
def row_length(action_pair: Any, offsets: Any, base: Any, action: Any) -> Any:
    """Edges of a row that factors."""
    length = np.int64(1)
    for c in range(base.size):
        pair = action_pair[action, c] + base[c]
        length *= offsets[pair + 1] - offsets[pair]
    return length


@inlined_kernel
def before_row(
    layout: Any,
    group_start: Any,
    group_component: Any,
    action_pair: Any,
    offsets: Any,
    base: Any,
    action: Any,
) -> Any:
    """Edges of the rows before `action`'s of a node, and of all its rows, if all of them factor.

    Agent after agent, the last first: the rows before are those of a smaller action of this agent with any
    later actions, and those of the same action with smaller later actions.
    """
    before = np.int64(0)
    total = np.int64(1)
    for group in range(group_start.size - 2, -1, -1):
        first = group_start[group]
        stop = group_start[group + 1]
        c = group_component[first]
        zero = layout[c, 2] + base[c]
        chosen = action_pair[action, c] - layout[c, 2]
        if stop == first + 1:
            start = offsets[zero]
            earlier = offsets[zero + chosen] - start
            own = offsets[zero + chosen + 1] - start - earlier
            whole = offsets[zero + layout[c, 1]] - start
        else:
            earlier = np.int64(0)
            own = np.int64(0)
            whole = np.int64(0)
            for candidate in range(layout[c, 1]):
                product = np.int64(1)
                for member in range(first, stop):
                    c = group_component[member]
                    pair = layout[c, 2] + base[c] + candidate
                    product *= offsets[pair + 1] - offsets[pair]
                if candidate < chosen:
                    earlier += product
                elif candidate == chosen:
                    own = product
                whole += product
        before = earlier * total + own * before
        total *= whole
    return before, total


@inlined_kernel
def _pattern_length(pattern_offsets: Any, pattern: Any) -> Any:
    """Edges of a pattern, or -1 if there is none or its offsets fall."""
    last = pattern_offsets.size - 1
    if pattern >= last:
        return np.int64(-1)
    start = np.int64(pattern_offsets[pattern])
    stop = np.int64(pattern_offsets[pattern + 1])
    return stop - start if 0 <= start <= stop <= np.int64(pattern_offsets[last]) else np.int64(-1)


@inlined_kernel
def before_in_block(
    action_pair: Any,
    offsets: Any,
    base: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    block: Any,
    action: Any,
) -> Any:
    """Edges of the rows before `action`'s of a node with exceptions, or -1 where its patterns are damaged."""
    before = np.int64(0)
    for earlier in range(action):
        pattern = np.int64(block_pattern[block, earlier])
        if pattern == NO_PATTERN:
            before += row_length(action_pair, offsets, base, earlier)
        else:
            length = _pattern_length(pattern_offsets, pattern)
            if length < 0:
                return np.int64(-1)
            before += length
    return before


@kernel
def block_starts(block_pattern: Any, pattern_offsets: Any, out: Any) -> None:
    """Write the edges before each row of a node of each block; -1 where it depends on the node."""
    for block in range(block_pattern.shape[0]):
        before = np.int64(0)
        for action in range(block_pattern.shape[1]):
            out[block, action] = before
            pattern = np.int64(block_pattern[block, action])
            length = np.int64(-1)
            if pattern != NO_PATTERN:
                length = _pattern_length(pattern_offsets, pattern)
            before = before + length if before >= 0 and length >= 0 else np.int64(-1)


@kernel
def row_lengths(
    tables: Any,
    num_products: int,
    product: Any,
    block: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    num_nodes: int,
    num_joint_actions: int,
    first_row: int,
    rows: Any,
    sums: Any,
    exceptional: Any,
    patterns: Any,
) -> tuple[int, int, int]:
    """Write the running sum of the rows' lengths; list the positions and patterns of those that don't factor.

    Rows are `rows`, or those from `first_row` on where it is empty. `exceptional` and `patterns` are as long
    as the batch where there is a `block`. Returns status, position and how many are exceptional.
    """
    layout = tables.layout  # taken out once: in a loop each use would count references
    action_pair = tables.action_pair
    offsets = tables.offsets
    base = np.zeros(layout.shape[0], np.int64)
    listed: Any = np.int64(0)
    total: Any = np.int64(0)
    sums[0] = 0
    start: Any = np.int64(-num_joint_actions)  # the current node's first row
    number: Any = np.int64(0)
    own_block = np.int64(0)
    for i in range(sums.size - 1):
        row = rows[i] if rows.size else first_row + i
        action = row - start
        if action < 0 or action >= num_joint_actions or start < 0:
            if row < 0 or row >= num_nodes * num_joint_actions:
                return ROW_RANGE, i, listed
            node = row // num_joint_actions
            start = node * num_joint_actions
            action = row - start
            number = number_of(product, num_products, node)
            if number < 0:
                return BAD_PRODUCT, i, listed
            locate(layout, number, base)
            own_block = np.int64(block[node]) if block.size else np.int64(0)
            if own_block > block_pattern.shape[0]:
                return BAD_PATTERN, i, listed
        pattern = np.int64(NO_PATTERN)
        if own_block > 0:
            pattern = np.int64(block_pattern[own_block - 1, action])
        if pattern == NO_PATTERN:
            total += row_length(action_pair, offsets, base, action)
        else:
            length = _pattern_length(pattern_offsets, pattern)
            if length < 0:
                return BAD_PATTERN, i, listed
            exceptional[listed] = i
            patterns[listed] = pattern
            listed += 1
            total += length
        sums[i + 1] = total
    return OK, -1, listed


@kernel
def row_starts(
    tables: Any,
    num_products: int,
    product: Any,
    block: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    starts_in_block: Any,
    first_edge: Any,
    num_joint_actions: int,
    rows: Any,
    out: Any,
) -> tuple[int, int]:
    """Write the numbers of the rows' first edges; rows are within the graph."""
    layout = tables.layout  # taken out once: in a loop each use would count references
    action_pair = tables.action_pair
    offsets = tables.offsets
    group_start = tables.group_start
    group_component = tables.group_component
    base = np.zeros(layout.shape[0], np.int64)
    for i in range(rows.size):
        node = rows[i] // num_joint_actions
        action = rows[i] - node * num_joint_actions
        own_block = np.int64(block[node]) if block.size else np.int64(0)
        if own_block > block_pattern.shape[0]:
            return BAD_PATTERN, i
        before = np.int64(-1)
        if 0 < own_block <= starts_in_block.shape[0]:
            before = starts_in_block[own_block - 1, action]
        if before < 0:
            number = number_of(product, num_products, node)
            if number < 0:
                return BAD_PRODUCT, i
            locate(layout, number, base)
            if own_block == 0:
                before, _ = before_row(
                    layout, group_start, group_component, action_pair, offsets, base, action
                )
            else:
                before = before_in_block(
                    action_pair, offsets, base, block_pattern, pattern_offsets, own_block - 1, action
                )
                if before < 0:
                    return BAD_PATTERN, i
        out[i] = np.int64(first_edge[node]) + before
    return OK, -1


@kernel
def node_edges(
    tables: Any,
    num_products: int,
    product: Any,
    block: Any,
    block_pattern: Any,
    pattern_offsets: Any,
    first_node: int,
    out: Any,
) -> tuple[int, int]:
    """Write the numbers of edges of consecutive nodes; returns status and position."""
    layout = tables.layout  # taken out once: in a loop each use would count references
    action_pair = tables.action_pair
    offsets = tables.offsets
    group_start = tables.group_start
    group_component = tables.group_component
    base = np.zeros(layout.shape[0], np.int64)
    num_joint_actions = action_pair.shape[0]
    for i in range(out.size):
        node = first_node + i
        number = number_of(product, num_products, node)
        if number < 0:
            return BAD_PRODUCT, i
        locate(layout, number, base)
        own_block = np.int64(block[node]) if block.size else np.int64(0)
        if own_block > block_pattern.shape[0]:
            return BAD_PATTERN, i
        if own_block == 0:
            _, out[i] = before_row(layout, group_start, group_component, action_pair, offsets, base, 0)
        else:
            total = before_in_block(
                action_pair, offsets, base, block_pattern, pattern_offsets, own_block - 1, num_joint_actions
            )
            if total < 0:
                return BAD_PATTERN, i
            out[i] = total
    return OK, -1
