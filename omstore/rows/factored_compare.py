"""The compiled part of comparing rows with a factoring.

Where nodes ascend with product numbers nothing is made and written: a row is each of its head's outcomes with its
node's list of the tail, and the edges are compared with that list where it lies, a vector at a time. Elsewhere rows are
made, sorted and compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from omstore.compiled import inlined_kernel, intrinsic, kernel
from omstore.rows.factored_kernels import enter_node, leaves, row_length
from omstore.rows.factored_lanes import LANES, expand, lanes_differ, sort_row, write_row
from omstore.rows.kernels import BAD_PATTERN, OK
from omstore.rows.patterns import NO_PATTERN

__all__ = ["compare_ordered", "compare_rows"]

_COMPARED = 1 << 11  # edges to make before they are compared: they stay in the L1 cache
_WHOLE = LANES - 1


@intrinsic
def _lanes_apart(typing: Any, own: Any, at: Any, other: Any, place: Any, number: Any) -> Any:
    """Bits of the lanes in which a vector isn't another of equal width, plus a number; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        loaded = []
        for kind, array, position in (
            (signature.args[0], arguments[0], arguments[1]),
            (signature.args[2], arguments[2], arguments[3]),
        ):
            data = context.make_array(kind)(context, builder, array).data
            vector = ir.VectorType(data.type.pointee, LANES)
            pointer = builder.bitcast(builder.gep(data, [position]), vector.as_pointer())
            loaded.append(builder.load(pointer, align=kind.dtype.bitwidth // 8))
        added = arguments[4]
        if vector.element.width < 64:
            added = builder.trunc(added, vector.element)
        i32 = ir.IntType(32)
        undefined = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(undefined, added, ir.Constant(i32, 0))
        splat = builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(i32, LANES), None))
        unequal = builder.icmp_unsigned("!=", loaded[0], builder.add(loaded[1], splat))
        return builder.zext(builder.bitcast(unequal, ir.IntType(LANES)), ir.IntType(64))

    if own.dtype.bitwidth != other.dtype.bitwidth:
        return None
    return types.int64(own, types.int64, other, types.int64, types.int64), generate


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
    tail_numbers = np.empty(tail_place[tails] + LANES, next_node.dtype)
    tail_classes = np.empty(tail_place[tails] + LANES, np.int32)
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
        if leaves(row, start, num_joint_actions):
            start, known = enter_node(row, num_joint_actions, layout, product, num_products, base)
            stamp += 1
            new = True
            if block.size:
                own_block = np.int64(block[start // num_joint_actions])
                if own_block > block_pattern.shape[0]:
                    return BAD_PATTERN, i, listed, apart
        action = row - start
        if own_block > 0:
            pattern = np.int64(block_pattern[own_block - 1, action])
            if pattern != NO_PATTERN:
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
        if head_length * tail_length != count:
            differ[listed] = i
            listed += 1
            continue
        # Vectors reach behind a row; within the chunk they must stay.
        inside = not placed and sums[i + 1] + LANES <= room
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
                    wrong |= _lanes_apart(next_node, at + lane, tail_numbers, place + lane, shift)
                    if coded:
                        wrong |= _lanes_apart(code, at + lane, strips, strip + lane, np.int64(0))
                    lane += LANES
                wrong |= _lanes_apart(next_node, at + lane, tail_numbers, place + lane, shift) & rest
                if coded:
                    wrong |= _lanes_apart(code, at + lane, strips, strip + lane, np.int64(0)) & rest
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


@kernel
def compare_rows(
    tables: Any,
    combination: Any,
    coded: bool,
    num_products: int,
    product: Any,
    node_at: Any,
    num_joint_actions: int,
    first_row: int,
    rows: Any,
    sums: Any,
    next_node: Any,
    code: Any,
    longest: int,
    differ: Any,
) -> Any:
    """Compare rows with what the components say, exceptions or not; list those that differ, and say how many.

    `sums`, `next_node` and `code` are those of a chunk, whose rows are within the graph and have at most
    `longest` edges; their dtypes hold all nodes and codes. Rows are made one behind the other, until there
    are enough to compare them at once.
    """
    layout = tables.layout
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
    tail_numbers = np.empty(tail_place[tails] + LANES, next_node.dtype)
    tail_classes = np.empty(tail_place[tails] + LANES, np.int32)
    head_numbers = np.empty(tables.longest_head, np.int64)
    head_classes = np.empty(tables.longest_head, np.int32)
    strip_stamps = np.full(kinds * tails, np.int64(-1))
    strips = np.empty(kinds * tail_numbers.size if coded else 0, code.dtype)
    nodes = np.empty(longest + _COMPARED + LANES, next_node.dtype)
    codes = np.empty(nodes.size if coded else 0, code.dtype)
    chances = np.empty(0, np.float64)
    listed: Any = np.int64(0)
    start: Any = np.int64(-num_joint_actions)
    stamp = np.int64(0)
    known = False
    first = np.int64(0)  # the first row made and not compared yet
    for i in range(sums.size - 1):
        row = rows[i] if rows.size else first_row + i
        if leaves(row, start, num_joint_actions):
            start, known = enter_node(row, num_joint_actions, layout, product, num_products, base)
            stamp += 1
        action = row - start
        count = sums[i + 1] - sums[i]
        made = known and row_length(action_pair, offsets, base, action) == count
        if made and count > 0:
            tail = np.int64(tail_of[action])
            place = tail_place[tail]
            if stamps[tail] != stamp:
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
            at = sums[i] - sums[first]
            write_row(
                combination,
                node_at,
                head_length,
                head_numbers,
                head_classes,
                tail,
                place,
                lengths[tail],
                tail_numbers,
                tail_classes,
                coded,
                kinds,
                kind_unit,
                stamp,
                strip_stamps,
                strips,
                at,
                nodes,
                codes,
            )
            sort_row(nodes, codes, coded, chances, False, at, at + count)
        stop = i + 1 if made else i
        if not made or stop == sums.size - 1 or sums[stop] - sums[first] >= _COMPARED:
            origin = sums[first]
            if _differ(nodes, next_node, origin, sums[stop]) or (
                coded and _differ(codes, code, origin, sums[stop])
            ):
                for j in range(first, stop):
                    wrong = False
                    for edge in range(sums[j], sums[j + 1]):
                        wrong |= nodes[edge - origin] != next_node[edge]
                        if coded:
                            wrong |= codes[edge - origin] != code[edge]
                    if wrong:
                        differ[listed] = j
                        listed += 1
            if not made:
                differ[listed] = i
                listed += 1
            first = np.int64(i + 1)
    return listed


@inlined_kernel
def _differ(own: Any, other: Any, first: Any, stop: Any) -> Any:
    """Whether elements `first` to `stop` of `other` differ from the first ones of `own`."""
    k = np.int64(0)
    while k + LANES <= stop - first:
        if lanes_differ(own, k, other, first + k):
            return True
        k += LANES
    while k < stop - first:
        if own[k] != other[first + k]:
            return True
        k += 1
    return False
