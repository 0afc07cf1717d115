"""The compiled part of the factored encoding that makes edges: decoding and sorting rows.

See `omstore.rows.factored_kernels` for what is trusted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel
from omstore.rows.factored_kernels import (
    BAD_PRODUCT,
    CHANGED,
    enter_node,
    leaves,
    locate,
    number_of,
    row_length,
)
from omstore.rows.factored_lanes import LANES, expand, sort_row, write_row
from omstore.rows.kernels import BAD_CODE, BAD_NODE, OK

__all__ = ["decode_probabilities", "decode_rows", "place_edges", "sort_rows"]


@kernel
def decode_rows(
    tables: Any,
    combination: Any,
    coded: bool,
    num_products: int,
    product: Any,
    node_at: Any,
    num_nodes: int,
    num_joint_actions: int,
    num_outcomes: int,
    first_row: int,
    rows: Any,
    exceptional: Any,
    sums: Any,
    out_next: Any,
    out_code: Any,
) -> tuple[int, int]:
    """Write the edges of the rows that factor between those listed in `exceptional`; see `row_lengths`.

    The arrays written are `LANES` longer than the edges; what is behind them is rubbish.
    """
    layout = tables.layout  # taken out once: in a loop each use would count references
    action_pair = tables.action_pair
    offsets = tables.offsets
    scaled_next = tables.scaled_next
    scaled_class = tables.scaled_class
    head_class = tables.head_class
    head = tables.head
    tail_of = tables.tail_of
    tail_place = tables.tail_place
    kinds = tables.head_kinds
    kind_unit = tables.kind_unit
    base = np.zeros(layout.shape[0], np.int64)
    tails = tail_place.size - 1
    stamps = np.full(tails, np.int64(-1))
    lengths = np.zeros(tails, np.int64)
    tail_numbers = np.empty(tail_place[tails] + LANES, out_next.dtype)
    tail_classes = np.empty(tail_place[tails] + LANES, np.int32)
    head_numbers = np.empty(tables.longest_head, np.int64)
    head_classes = np.empty(tables.longest_head, np.int32)
    strip_stamps = np.full(kinds * tails, np.int64(-1))
    strips = np.empty(kinds * tail_numbers.size if coded else 0, out_code.dtype)
    skipped: Any = np.int64(0)
    start: Any = np.int64(-num_joint_actions)
    stamp = np.int64(0)
    for i in range(sums.size - 1):
        if skipped < exceptional.size and exceptional[skipped] == i:
            skipped += 1
            continue
        row = rows[i] if rows.size else first_row + i
        if leaves(row, start, num_joint_actions):
            start, known = enter_node(row, num_joint_actions, layout, product, num_products, base)
            if not known:
                return BAD_PRODUCT, i
            stamp += 1
        action = row - start
        tail = np.int64(tail_of[action])
        place = tail_place[tail]
        if stamps[tail] != stamp:  # the node's rows share it
            stamps[tail] = stamp
            lengths[tail] = expand(
                action_pair,
                offsets,
                scaled_next,
                scaled_class,
                base,
                action,
                head,
                base.size,
                place,
                tail_numbers,
                tail_classes,
            )
        tail_length = lengths[tail]
        head_length = expand(
            action_pair,
            offsets,
            scaled_next,
            head_class,
            base,
            action,
            np.int64(0),
            head,
            np.int64(0),
            head_numbers,
            head_classes,
        )
        if head_length * tail_length != sums[i + 1] - sums[i]:
            return CHANGED, i
        largest, highest = write_row(
            combination,
            node_at,
            head_length,
            head_numbers,
            head_classes,
            tail,
            place,
            tail_length,
            tail_numbers,
            tail_classes,
            coded,
            kinds,
            kind_unit,
            stamp,
            strip_stamps,
            strips,
            sums[i],
            out_next,
            out_code,
        )
        if largest >= num_nodes:
            return BAD_NODE, i
        if highest >= num_outcomes:
            return BAD_CODE, i
    return OK, -1


@kernel
def decode_probabilities(
    tables: Any,
    num_products: int,
    product: Any,
    num_joint_actions: int,
    first_row: int,
    rows: Any,
    exceptional: Any,
    sums: Any,
    out: Any,
) -> tuple[int, int]:
    """Write the probabilities of the rows that factor: products in the order of the components."""
    layout = tables.layout
    action_pair = tables.action_pair
    offsets = tables.offsets
    probabilities = tables.probability
    base = np.zeros(layout.shape[0], np.int64)
    skipped: Any = np.int64(0)
    for i in range(sums.size - 1):
        if skipped < exceptional.size and exceptional[skipped] == i:
            skipped += 1
            continue
        row = rows[i] if rows.size else first_row + i
        node = row // num_joint_actions
        number = number_of(product, num_products, node)
        if number < 0:
            return BAD_PRODUCT, i
        locate(layout, number, base)
        action = row - node * num_joint_actions
        if row_length(action_pair, offsets, base, action) != sums[i + 1] - sums[i]:
            return CHANGED, i
        if sums[i + 1] == sums[i]:
            continue
        own = out[sums[i] : sums[i + 1]]
        own[0] = 1.0
        count = np.int64(1)
        for c in range(base.size):
            pair = action_pair[action, c] + base[c]
            start = offsets[pair]
            length = offsets[pair + 1] - start
            for j in range(count - 1, -1, -1):
                chance = own[j]
                for k in range(length):
                    own[j * length + k] = chance * probabilities[start + k]
            count *= length
    return OK, -1


@kernel
def sort_rows(sums: Any, nodes: Any, codes: Any, coded: bool, chances: Any, chanced: bool) -> None:
    """Sort every row by next node, in place."""
    for i in range(sums.size - 1):
        sort_row(nodes, codes, coded, chances, chanced, sums[i], sums[i + 1])


@kernel
def place_edges(exceptional: Any, part: Any, values: Any, sums: Any, out: Any) -> None:
    """Copy the values of rows gathered apart (`part`: their running sums) to where their rows lie."""
    for j in range(exceptional.size):
        at = sums[exceptional[j]]
        for k in range(part[j + 1] - part[j]):
            out[at + k] = values[part[j] + k]
