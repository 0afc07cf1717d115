"""The compiled part of a model's rows: products of per-component kernels, enumerated and drawn from.

This is the source that stored encodings are proven against, so it shares nothing with `omstore.rows`. A
`world` is a tuple of arrays, made by `omstore.model.kernel_rows.World`, in memory and checked there; row
numbers, and the mapped arrays of a listed numbering, are checked here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel, kernel

__all__ = [
    "BAD_NUMBER",
    "ILLEGAL",
    "OK",
    "ROW_RANGE",
    "RUN",
    "count_nodes",
    "count_rows",
    "draw_rows",
    "fill_rows",
    "number_rows",
]

RUN = 8
"""`fill_rows` writes, and `tail` is read, up to this many elements less one beyond the last edge."""

OK = 0
ROW_RANGE = 1
"""A row number isn't one of the graph's."""
ILLEGAL = 2
"""A row without successors where one was to be drawn."""
BAD_NUMBER = 3
"""A listed numbering names a state or a node that doesn't exist."""


@inner_kernel
def _decode(number: int, sizes: Any, ranks: Any) -> None:
    for component in range(sizes.size - 1, -1, -1):
        following = number // sizes[component]
        ranks[component] = number - following * sizes[component]
        number = following


@inner_kernel
def _number_of(node: Any, num_numbers: Any, product: Any) -> Any:
    """Return the number of a node, or -1; without a listed numbering they are the same."""
    if product.size == 0:
        return node
    number = np.int64(product[node])
    return number if 0 <= number < num_numbers else np.int64(-1)


@inner_kernel
def _count_node(
    world: Any, movers: Any, num_actions: Any, node: Any, frozen: Any, num_numbers: Any, ranks: Any
) -> Any:
    """Count the edges of a node, without going through its joint actions; -1 for a bad number."""
    sizes, _, first_pair, pair_actions, _, _, offsets, _, _, _, _, product, _ = world
    number = _number_of(node, num_numbers, product)
    if number < 0:
        return np.int64(-1)
    _decode(number, sizes, ranks)
    total = np.int64(1)
    for agent in range(num_actions.size):
        within = np.int64(0)
        for action in range(num_actions[agent]):
            outcomes = np.int64(1)
            if frozen == 0:
                for component in range(sizes.size):
                    if movers[component] == agent:
                        pair = first_pair[component] + ranks[component] * pair_actions[component] + action
                        outcomes *= offsets[pair + 1] - offsets[pair]
            within += outcomes
        total *= within
    if frozen == 0:
        for component in range(sizes.size):
            if movers[component] < 0:
                pair = first_pair[component] + ranks[component]
                total *= offsets[pair + 1] - offsets[pair]
    return total


@kernel
def count_nodes(world: Any, movers: Any, num_actions: Any, nodes: Any, frozen: Any, counts: Any) -> int:
    """Count the edges of nodes that exist; a frozen (absorbing) node has one a row. Returns a status."""
    sizes = world[0]
    ranks = np.zeros(sizes.size, np.int64)
    num_numbers = np.int64(1)
    for component in range(sizes.size):
        num_numbers *= sizes[component]
    for i in range(nodes.size):
        counts[i] = _count_node(world, movers, num_actions, nodes[i], frozen[i], num_numbers, ranks)
        if counts[i] < 0:
            return BAD_NUMBER
    return OK


@kernel
def number_rows(
    world: Any,
    movers: Any,
    num_actions: Any,
    rows: Any,
    block_of: Any,
    firsts: Any,
    frozen: Any,
    numbers: Any,
) -> int:
    """Number the first edges of rows that exist, given those of the blocks of nodes that the rows lie in.

    Row i is in block ``block_of[i]`` of those given, whose first edge is ``firsts[block_of[i]]``, and whose
    nodes' flags are ``frozen[block_of[i]]``; ``frozen.shape[1]`` nodes make a block. Returns a status.
    """
    sizes, _, first_pair, pair_actions, actions_of, _, offsets, _, _, _, _, _, _ = world
    num_joint_actions = actions_of.shape[0]
    block_nodes = frozen.shape[1]
    ranks = np.zeros(sizes.size, np.int64)
    num_numbers = np.int64(1)
    for component in range(sizes.size):
        num_numbers *= sizes[component]
    counted = np.int64(-1)  # node up to which `edge` is counted, within the block of the row before
    edge = np.int64(0)
    block = np.int64(-1)
    for i in range(rows.size):
        node = rows[i] // num_joint_actions
        action = rows[i] - node * num_joint_actions
        begin = node - node % block_nodes
        if block_of[i] != block or node < counted:
            block = block_of[i]
            edge = firsts[block]
            counted = begin
        while counted < node:
            count = _count_node(
                world, movers, num_actions, counted, frozen[block, counted - begin], num_numbers, ranks
            )
            if count < 0:
                return BAD_NUMBER
            edge += count
            counted += 1
        if frozen[block, node - begin]:
            numbers[i] = edge + action
            continue
        if _count_node(world, movers, num_actions, node, 0, num_numbers, ranks) < 0:  # decodes the node
            return BAD_NUMBER
        before = np.int64(0)
        for other in range(action):
            outdegree = np.int64(1)
            for component in range(sizes.size):
                pair = first_pair[component] + ranks[component] * pair_actions[component]
                pair += actions_of[other, component]
                outdegree *= offsets[pair + 1] - offsets[pair]
            before += outdegree
        numbers[i] = edge + before
    return OK


@kernel
def count_rows(world: Any, num_nodes: int, rows: Any, frozen: Any, sums: Any) -> tuple[int, int]:
    """Write the running sum of the rows' outdegrees, one longer than the rows. Returns status, position."""
    sizes, _, first_pair, pair_actions, actions_of, _, offsets, _, _, _, _, product, _ = world
    num_joint_actions = actions_of.shape[0]
    ranks = np.zeros(sizes.size, np.int64)
    num_numbers = np.int64(1)
    for component in range(sizes.size):
        num_numbers *= sizes[component]
    decoded = np.int64(-1)
    sums[0] = 0
    for i in range(rows.size):
        node = rows[i] // num_joint_actions
        action = rows[i] - node * num_joint_actions
        if node < 0 or node >= num_nodes:
            return ROW_RANGE, i
        if frozen[i]:
            sums[i + 1] = sums[i] + 1
            continue
        if node != decoded:
            number = _number_of(node, num_numbers, product)
            if number < 0:
                return BAD_NUMBER, i
            _decode(number, sizes, ranks)
            decoded = node
        outdegree = np.int64(1)
        for component in range(sizes.size):
            pair = first_pair[component] + ranks[component] * pair_actions[component]
            pair += actions_of[action, component]
            outdegree *= offsets[pair + 1] - offsets[pair]
        sums[i + 1] = sums[i] + outdegree
    return OK, -1


@inner_kernel
def _sort_row(nodes: Any, codes: Any, weights: Any, count: int) -> None:
    """Sort a row by next node: an insertion sort for the few that a listed numbering puts out of order."""
    for i in range(1, count):
        node, code, weight = nodes[i], codes[i], weights[i]
        j = i
        while j > 0 and nodes[j - 1] > node:
            nodes[j], codes[j], weights[j] = nodes[j - 1], codes[j - 1], weights[j - 1]
            j -= 1
        nodes[j], codes[j], weights[j] = node, code, weight


@inner_kernel
def _enumerate(
    world: Any, ranks: Any, action: int, num_nodes: int, nodes: Any, codes: Any, weights: Any
) -> int:
    """Write a row's edges, sorted by next node: node, combined class, probability. Returns how many, or -1.

    The components before are expanded in place, last outcome first, so that nothing is overwritten unread.
    """
    sizes, _, first_pair, pair_actions, actions_of, _, offsets, step, kind, chance, _, _, node_at = world
    nodes[0], codes[0], weights[0] = 0, 0, 1.0
    count = 1
    for component in range(sizes.size):
        pair = first_pair[component] + ranks[component] * pair_actions[component]
        pair += actions_of[action, component]
        begin, fanout = offsets[pair], offsets[pair + 1] - offsets[pair]
        for i in range(count - 1, -1, -1):
            node, code, weight = nodes[i], codes[i], weights[i]
            for k in range(fanout - 1, -1, -1):
                nodes[i * fanout + k] = node + step[begin + k]
                codes[i * fanout + k] = code + kind[begin + k]
                # Not 1.0 * p: the first factor is taken as it is, as whoever multiplies by hand does.
                p = chance[begin + k]
                weights[i * fanout + k] = p if component == 0 else weight * p
        count *= fanout
    if node_at.size:
        for i in range(count):
            node = np.int64(node_at[nodes[i]])
            if node < 0 or node >= num_nodes:
                return -1
            nodes[i] = node
        _sort_row(nodes, codes, weights, count)
    return count


@kernel
def fill_rows(
    world: Any,
    tail: Any,
    num_nodes: int,
    rows: Any,
    frozen: Any,
    sums: Any,
    mode: int,
    frozen_code: int,
    longest: Any,
    out_next: Any,
    out_code: Any,
    out_probability: Any,
) -> tuple[int, int]:
    """Write the edges of rows that `count_rows` counted: next nodes, and by `mode` nothing more (0), codes (1)
    or probabilities (2). `longest` are the most outcomes of a row without its last component, and with it.

    `tail` holds, where it isn't empty, the products of the last two components for every pair of their pairs:
    a row then is a few runs of a dozen edges, instead of many of three.
    """
    (
        sizes,
        _,
        first_pair,
        pair_actions,
        actions_of,
        prefix_of,
        offsets,
        step,
        kind,
        chance,
        combined,
        product,
        node_at,
    ) = world
    tail_offsets, tail_step, tail_kind = tail
    num_joint_actions = actions_of.shape[0]
    last = sizes.size - 1
    listed = node_at.size > 0
    joined = tail_offsets.size > 0
    before = last - 1 if joined else last
    tail_pairs = sizes[last] * pair_actions[last]
    ranks = np.zeros(sizes.size, np.int64)
    length = longest[1] if listed else longest[0]
    nodes = np.empty(length, np.int64)
    codes = np.empty(length, np.int64)
    weights = np.empty(length, np.float64)
    num_numbers = np.int64(1)
    for component in range(sizes.size):
        num_numbers *= sizes[component]
    decoded = np.int64(-1)
    prefix = np.int64(-1)
    count: Any = np.int64(0)
    for i in range(rows.size):
        node = rows[i] // num_joint_actions
        action = rows[i] - node * num_joint_actions
        at = sums[i]
        if frozen[i]:
            out_next[at] = node
            if mode == 1:
                out_code[at] = frozen_code
            elif mode == 2:
                out_probability[at] = 1.0
            continue
        if node != decoded:
            number = _number_of(node, num_numbers, product)
            if number < 0:
                return BAD_NUMBER, i
            _decode(number, sizes, ranks)
            decoded = node
            prefix = np.int64(-1)
        if listed:
            count = _enumerate(world, ranks, action, num_nodes, nodes, codes, weights)
            if count != sums[i + 1] - at:
                return BAD_NUMBER, i
            for k in range(count):
                out_next[at + k] = nodes[k]
                if mode == 1:
                    out_code[at + k] = combined[codes[k]]
                elif mode == 2:
                    out_probability[at + k] = weights[k]
            continue
        if prefix_of[action] != prefix:
            # The components before: few joint actions in a row differ in more than the last.
            prefix = prefix_of[action]
            nodes[0], codes[0], weights[0] = 0, 0, 1.0
            count = np.int64(1)
            for component in range(before):
                pair = first_pair[component] + ranks[component] * pair_actions[component]
                pair += actions_of[action, component]
                begin, fanout = offsets[pair], offsets[pair + 1] - offsets[pair]
                for j in range(count - 1, -1, -1):
                    one, code, weight = nodes[j], codes[j], weights[j]
                    for k in range(fanout - 1, -1, -1):
                        nodes[j * fanout + k] = one + step[begin + k]
                        codes[j * fanout + k] = code + kind[begin + k]
                        p = chance[begin + k]
                        weights[j * fanout + k] = p if component == 0 else weight * p
                count *= fanout
        pair = ranks[last] * pair_actions[last] + actions_of[action, last]
        if joined:
            pair += (ranks[before] * pair_actions[before] + actions_of[action, before]) * tail_pairs
            begin, fanout = tail_offsets[pair], tail_offsets[pair + 1] - tail_offsets[pair]
            for j in range(count):
                base = tail_step.dtype.type(nodes[j])
                class_base = np.uint64(codes[j])
                # Eight at a time, beyond the run's end too: what is written there, the next run overwrites.
                # (Loops of unknown length would be done one by one below 32, and runs are a dozen long.)
                # Unsigned positions, so that the compiler needn't look for negative ones at every element.
                for k in range(0, fanout, RUN):
                    source = np.uint64(begin + k)
                    target = np.uint64(at + k)
                    for lane in range(RUN):
                        place = np.uint64(lane)
                        out_next[target + place] = base + tail_step[source + place]
                    if mode == 1:
                        for lane in range(RUN):
                            place = np.uint64(lane)
                            out_code[target + place] = combined[
                                class_base + np.uint64(tail_kind[source + place])
                            ]
                at += fanout
            continue
        pair += first_pair[last]
        begin, fanout = offsets[pair], offsets[pair + 1] - offsets[pair]
        for j in range(count):
            one = nodes[j]
            if mode == 1:
                code = codes[j]
                for k in range(fanout):
                    out_next[at + k] = one + step[begin + k]
                    out_code[at + k] = combined[code + kind[begin + k]]
            elif mode == 2:
                weight = weights[j]
                for k in range(fanout):
                    out_next[at + k] = one + step[begin + k]
                    p = chance[begin + k]
                    out_probability[at + k] = p if last == 0 else weight * p
            else:
                for k in range(fanout):
                    out_next[at + k] = one + step[begin + k]
            at += fanout
    return OK, -1


@kernel
def draw_rows(
    world: Any,
    num_nodes: int,
    rows: Any,
    frozen: Any,
    frozen_code: int,
    longest: Any,
    uniforms: Any,
    out_next: Any,
    out_code: Any,
    out_probability: Any,
) -> tuple[int, int]:
    """Draw an edge of every row: the one at which the running sum of its probabilities passes `uniforms`."""
    sizes, _, _, _, actions_of, _, _, _, _, _, combined, product, _ = world
    num_joint_actions = actions_of.shape[0]
    ranks = np.zeros(sizes.size, np.int64)
    nodes = np.empty(longest[1], np.int64)
    codes = np.empty(longest[1], np.int64)
    weights = np.empty(longest[1], np.float64)
    num_numbers = np.int64(1)
    for component in range(sizes.size):
        num_numbers *= sizes[component]
    for i in range(rows.size):
        node = rows[i] // num_joint_actions
        action = rows[i] - node * num_joint_actions
        if node < 0 or node >= num_nodes:
            return ROW_RANGE, i
        if frozen[i]:
            out_next[i], out_code[i], out_probability[i] = node, frozen_code, 1.0
            continue
        number = _number_of(node, num_numbers, product)
        if number < 0:
            return BAD_NUMBER, i
        _decode(number, sizes, ranks)
        count = _enumerate(world, ranks, action, num_nodes, nodes, codes, weights)
        if count < 0:
            return BAD_NUMBER, i
        if count == 0:
            return ILLEGAL, i
        reached = 0.0
        chosen = count - 1
        for k in range(count):
            reached += weights[k]
            if uniforms[i] < reached:
                chosen = k
                break
        out_next[i] = nodes[chosen]
        out_code[i] = combined[codes[chosen]] if combined.size else 0
        out_probability[i] = weights[chosen]
    return OK, -1
