"""The compiled part of comparing rows with a factoring, where nodes ascend with product numbers.

Nothing is made and written: a row is each of its head's outcomes with its node's list of the tail, and the edges
are compared with that list where it lies, a vector at a time. The first functions are twins of those in
`omstore.rows.factored_decode`, since a kernel may call only what lies in its own file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from omstore.compiled import inlined_kernel, intrinsic, kernel

__all__ = ["compare_ordered"]

# The statuses of omstore.rows.kernels, literally: a compiled kernel is cached by its own file's content.
OK = 0
BAD_PATTERN = 7

_NO_PATTERN = 0xFFFFFFFF
_LANES = 8  # elements of a vector: lists that are compared with are this much longer
_WHOLE = _LANES - 1


@intrinsic
def _lanes_differ(typing: Any, own: Any, at: Any, other: Any, place: Any, number: Any) -> Any:
    """Bits of the lanes in which a vector isn't another of equal width, plus a number; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = []
        for kind, array, position in (
            (signature.args[0], arguments[0], arguments[1]),
            (signature.args[2], arguments[2], arguments[3]),
        ):
            data = context.make_array(kind)(context, builder, array).data
            vector = ir.VectorType(data.type.pointee, _LANES)
            pointer = builder.bitcast(builder.gep(data, [position]), vector.as_pointer())
            loaded.append(builder.load(pointer, align=kind.dtype.bitwidth // 8))
        added = arguments[4]
        if vector.element.width < 64:
            added = builder.trunc(added, vector.element)
        i32 = ir.IntType(32)
        undefined = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(undefined, added, ir.Constant(i32, 0))
        splat = builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(i32, _LANES), None))
        unequal = builder.icmp_unsigned("!=", loaded[0], builder.add(loaded[1], splat))
        return builder.zext(builder.bitcast(unequal, ir.IntType(_LANES)), ir.IntType(64))

    if own.dtype.bitwidth != other.dtype.bitwidth:
        return None
    return types.int64(own, types.int64, other, types.int64, types.int64), generate


@inlined_kernel
def _locate(layout: Any, number: Any, base: Any) -> None:
    """Write each component's local state, times its actions; `number` is a product number."""
    left = np.int64(number)
    for c in range(layout.shape[0] - 1, 0, -1):
        size = layout[c, 0]
        rest = left // size
        base[c] = (left - rest * size) * layout[c, 1]
        left = rest
    base[0] = left * layout[0, 1]


@inlined_kernel
def _expand(
    action_pair: Any,
    offsets: Any,
    scaled_next: Any,
    scaled_class: Any,
    base: Any,
    action: Any,
    first: Any,
    stop: Any,
    place: Any,
    numbers: Any,
    classes: Any,
) -> Any:
    """List the outcomes of components first..stop-1 together, from `place` on; gives how many.

    Scaled next states and classes are added up. In place, from the back: what an outcome becomes never lies
    before it.
    """
    count = np.int64(1)
    numbers[place] = 0
    classes[place] = 0
    for c in range(first, stop):
        pair = action_pair[action, c] + base[c]
        start = offsets[pair]
        length = offsets[pair + 1] - start
        for i in range(count - 1, -1, -1):
            number = np.int64(numbers[np.uint64(place + i)])
            kind = classes[np.uint64(place + i)]
            for k in range(length):
                numbers[np.uint64(place + i * length + k)] = number + scaled_next[np.uint64(start + k)]
                classes[np.uint64(place + i * length + k)] = kind + scaled_class[np.uint64(start + k)]
        count *= length
    return count


@kernel
def compare_ordered(
    tables: Any,
    combination: Any,
    coded: bool,
    num_products: int,
    product: Any,
    node_at: Any,
    num_joint_actions: int,
    first_row: int,
    rows: Any,
    block: Any,
    block_pattern: Any,
    sums: Any,
    next_node: Any,
    code: Any,
    differ: Any,
    exceptional: Any,
    patterns: Any,
) -> tuple[int, int, int, int]:
    """Compare rows with what the components say; list those that differ.

    Rows of a pattern aren't compared, but listed in `exceptional` with their `patterns`; where `block` is empty
    there are none. Returns status, position, how many differ and how many are exceptional.

    `sums`, `next_node` and `code` are those of a chunk, whose rows are within the graph; their dtypes hold all
    nodes and codes. Codes of a node's tail behind heads of one class are listed once (a *strip*).
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
    tail_numbers = np.empty(tail_place[tails] + _LANES, next_node.dtype)
    tail_classes = np.empty(tail_place[tails] + _LANES, np.int32)
    head_pairs = np.zeros(head, np.int64)
    head_numbers = np.empty(tables.longest_head, np.int64)
    head_classes = np.empty(tables.longest_head, np.int32)
    head_length = np.int64(0)
    strip_stamps = np.full(kinds * tails, np.int64(-1))
    strips = np.empty(kinds * tail_numbers.size if coded else 0, code.dtype)
    tail_span = tail_numbers.size
    placed = node_at.size > 0
    room = min(next_node.size, code.size) if coded else next_node.size
    listed: Any = np.int64(0)
    apart: Any = np.int64(0)
    own_block = np.int64(0)
    start: Any = np.int64(-num_joint_actions)
    stamp = np.int64(0)
    known: Any = False
    new = True  # the node, and with it its heads
    for i in range(sums.size - 1):
        row = rows[i] if rows.size else first_row + i
        action = row - start
        if action < 0 or action >= num_joint_actions or start < 0:
            node = row // num_joint_actions
            start = node * num_joint_actions
            action = row - start
            number = np.int64(node)
            if product.size:
                number = np.int64(product[node])
            known = number >= 0 and number < num_products
            if known:
                _locate(layout, number, base)
            stamp += 1
            new = True
            if block.size:
                own_block = np.int64(block[node])
                if own_block > block_pattern.shape[0]:
                    return BAD_PATTERN, i, listed, apart
        if own_block > 0:
            pattern = np.int64(block_pattern[own_block - 1, action])
            if pattern != _NO_PATTERN:
                exceptional[apart] = i
                patterns[apart] = pattern
                apart += 1
                continue
        at = sums[i]
        count = sums[i + 1] - at
        if not known:
            differ[listed] = i
            listed += 1
            continue
        same: Any = not new
        new = False
        for c in range(head):
            pair = action_pair[action, c] + base[c]
            same &= head_pairs[c] == pair
            head_pairs[c] = np.int64(pair)
        if not same:
            head_length = _expand(
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
        tail = np.int64(tail_of[action])
        place = tail_place[tail]
        if stamps[tail] != stamp:  # the node's rows share it
            stamps[tail] = stamp
            lengths[tail] = _expand(
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
        if head_length * tail_length != count:
            differ[listed] = i
            listed += 1
            continue
        # Vectors reach behind a row; within the chunk they must stay.
        inside = not placed and sums[i + 1] + _LANES <= room
        whole = tail_length - (tail_length & _WHOLE)
        rest = (np.int64(1) << (tail_length & _WHOLE)) - 1
        wrong = np.int64(0)
        for h in range(head_length):
            shift = head_numbers[np.uint64(h)]
            kind = np.int64(head_classes[np.uint64(h)])
            which = kind if kinds > 1 else np.int64(0)
            strip = which * tail_span + place
            if coded:
                mark = np.uint64(which * tails + tail)
                if kinds == 1 or strip_stamps[mark] != stamp:
                    strip_stamps[mark] = stamp
                    for k in range(tail_length):
                        strips[np.uint64(strip + k)] = combination[
                            np.uint64(kind * kind_unit + tail_classes[np.uint64(place + k)])
                        ]
            if inside:
                lane: Any = np.int64(0)
                while lane < whole:
                    wrong |= _lanes_differ(next_node, at + lane, tail_numbers, place + lane, shift)
                    if coded:
                        wrong |= _lanes_differ(code, at + lane, strips, strip + lane, np.int64(0))
                    lane += _LANES
                wrong |= _lanes_differ(next_node, at + lane, tail_numbers, place + lane, shift) & rest
                if coded:
                    wrong |= _lanes_differ(code, at + lane, strips, strip + lane, np.int64(0)) & rest
            else:
                for j in range(tail_length):
                    other = np.uint64(shift + np.int64(tail_numbers[place + j]))
                    if placed:
                        other = np.uint64(node_at[other])
                    wrong |= np.int64(other != np.uint64(next_node[at + j]))
                    if coded:
                        wrong |= np.int64(strips[strip + j] != code[at + j])
            at += tail_length
        if wrong:
            differ[listed] = i
            listed += 1
    return OK, -1, listed, apart
