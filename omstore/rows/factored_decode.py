"""The compiled part of the factored encoding that makes edges: decoding, comparing and sorting rows.

See `omstore.rows.factored_kernels` for what is trusted; the first three functions are twins of those there, since
a kernel may call only what lies in its own file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from omstore.compiled import inlined_kernel, intrinsic, kernel
from omstore.rows.factored_kernels import BAD_PRODUCT, CHANGED
from omstore.rows.kernels import BAD_CODE, BAD_NODE, OK

__all__ = ["LANES", "compare_rows", "decode_probabilities", "decode_rows", "place_edges", "sort_rows"]


LANES = 8
"""Elements of the vectors in which edges are copied: arrays that are written are this much longer."""

_LANES = LANES
_COMPARED = 1 << 11  # edges to make before they are compared: they stay in the L1 cache


def _vector_at(context: Any, builder: Any, kind: Any, array: Any, position: Any) -> tuple[Any, Any, int]:
    """Pointer to a vector of `_LANES` elements of an array, its type, and the bytes it is aligned to."""
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(data.type.pointee, _LANES)
    pointer = builder.bitcast(builder.gep(data, [position]), vector.as_pointer())
    return pointer, vector, kind.dtype.bitwidth // 8


@intrinsic
def _copy_lanes(typing: Any, out: Any, at: Any, source: Any, place: Any) -> Any:
    """Copy a vector of elements of equal width; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, _, align = _vector_at(context, builder, signature.args[0], arguments[0], arguments[1])
        origin, _, _ = _vector_at(context, builder, signature.args[2], arguments[2], arguments[3])
        builder.store(builder.load(origin, align=align), to, align=align)
        return context.get_dummy_value()

    return types.void(out, types.int64, source, types.int64), generate


@intrinsic
def _add_lanes(typing: Any, out: Any, at: Any, source: Any, place: Any, number: Any) -> Any:
    """Write a vector of elements, each plus a number, of which the lower bits count; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, vector, align = _vector_at(context, builder, signature.args[0], arguments[0], arguments[1])
        origin, _, _ = _vector_at(context, builder, signature.args[2], arguments[2], arguments[3])
        added = arguments[4]
        if vector.element.width < 64:
            added = builder.trunc(added, vector.element)
        i32 = ir.IntType(32)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), added, ir.Constant(i32, 0))
        zeros = ir.Constant(ir.VectorType(i32, _LANES), None)
        splat = builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)
        builder.store(builder.add(builder.load(origin, align=align), splat), to, align=align)
        return context.get_dummy_value()

    return types.void(out, types.int64, source, types.int64, types.int64), generate


@intrinsic
def _lanes_differ(typing: Any, own: Any, at: Any, other: Any, place: Any) -> Any:
    """Whether two vectors of elements of equal width differ; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, _, align = _vector_at(context, builder, signature.args[0], arguments[0], arguments[1])
        two, _, _ = _vector_at(context, builder, signature.args[2], arguments[2], arguments[3])
        unequal = builder.icmp_unsigned("!=", builder.load(one, align=align), builder.load(two, align=align))
        bits = ir.IntType(_LANES)
        return builder.icmp_unsigned("!=", builder.bitcast(unequal, bits), ir.Constant(bits, 0))

    return types.boolean(own, types.int64, other, types.int64), generate


@inlined_kernel
def _locate(layout: Any, number: Any, base: Any) -> None:
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
def _number_of(product: Any, num_products: int, node: Any) -> Any:
    """Product number of a node, or -1 if what is stored is none."""
    if product.size == 0:
        return np.int64(node)
    number = np.int64(product[node])
    return number if 0 <= number < num_products else np.int64(-1)


@inlined_kernel
def _length(action_pair: Any, offsets: Any, base: Any, action: Any) -> Any:
    """Edges of a row that factors."""
    length = np.int64(1)
    for c in range(base.size):
        pair = action_pair[action, c] + base[c]
        length *= offsets[pair + 1] - offsets[pair]
    return length


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
        if length == 0:
            return np.int64(0)
        for i in range(count - 1, -1, -1):
            number = np.int64(numbers[np.uint64(place + i)])
            kind = classes[np.uint64(place + i)]
            for k in range(length):
                numbers[np.uint64(place + i * length + k)] = number + scaled_next[np.uint64(start + k)]
                classes[np.uint64(place + i * length + k)] = kind + scaled_class[np.uint64(start + k)]
        count *= length
    return count


@inlined_kernel
def _list_codes(
    combination: Any, kind: Any, place: Any, length: Any, tail_classes: Any, strip: Any, strips: Any
) -> Any:
    """Write the codes of a tail behind a head of class `kind` into a strip; gives the highest."""
    highest = np.int64(0)
    for k in range(length):
        code = combination[np.uint64(kind + tail_classes[np.uint64(place + k)])]
        highest = max(highest, np.int64(code))
        strips[np.uint64(strip + k)] = code
    return highest


@inlined_kernel
def _write_row(
    combination: Any,
    node_at: Any,
    head_length: Any,
    head_numbers: Any,
    head_classes: Any,
    tail: Any,
    place: Any,
    tail_length: Any,
    tail_numbers: Any,
    tail_classes: Any,
    coded: bool,
    kinds: Any,
    kind_unit: Any,
    stamp: Any,
    strip_stamps: Any,
    strips: Any,
    at: Any,
    out_next: Any,
    out_code: Any,
) -> Any:
    """Write a row's edges from `at` on, and up to 7 elements of rubbish behind; largest node, highest code.

    It is each of the head's outcomes with the whole tail: short runs, which vectors of 8 copy fastest. Codes
    of a tail behind a head of some class are listed once for a node (a *strip*).
    """
    largest = np.int64(0)
    highest = np.int64(0)
    for i in range(head_length):
        number = head_numbers[np.uint64(i)]
        if node_at.size:
            for j in range(tail_length):
                node = np.int64(node_at[np.uint64(number + np.int64(tail_numbers[np.uint64(place + j)]))])
                # A node of 2^63 or more is negative here.
                largest = max(largest, node if node >= 0 else np.int64(9223372036854775807))
                out_next[np.uint64(at + j)] = node
        else:
            k: Any = np.int64(0)
            while k < tail_length:
                _add_lanes(out_next, at + k, tail_numbers, place + k, number)
                k += _LANES
        if coded:
            kind = np.int64(head_classes[np.uint64(i)])
            which = kind if kinds > 1 else np.int64(0)
            strip = which * tail_numbers.size + place
            mark = which * (strip_stamps.size // kinds) + tail
            if kinds == 1 or strip_stamps[mark] != stamp:
                strip_stamps[mark] = stamp
                code = _list_codes(
                    combination, kind * kind_unit, place, tail_length, tail_classes, strip, strips
                )
                highest = max(highest, code)
            k = np.int64(0)
            while k < tail_length:
                _copy_lanes(out_code, at + k, strips, strip + k)
                k += _LANES
        at += tail_length
    return largest, highest


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
    tail_numbers = np.empty(tail_place[tails] + _LANES, out_next.dtype)
    tail_classes = np.empty(tail_place[tails] + _LANES, np.int32)
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
        action = row - start
        if action < 0 or action >= num_joint_actions or start < 0:
            node = row // num_joint_actions
            start = node * num_joint_actions
            action = row - start
            number = _number_of(product, num_products, node)
            if number < 0:
                return BAD_PRODUCT, i
            _locate(layout, number, base)
            stamp += 1
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
        if head_length * tail_length != sums[i + 1] - sums[i]:
            return CHANGED, i
        largest, highest = _write_row(
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
    tail_numbers = np.empty(tail_place[tails] + _LANES, next_node.dtype)
    tail_classes = np.empty(tail_place[tails] + _LANES, np.int32)
    head_numbers = np.empty(tables.longest_head, np.int64)
    head_classes = np.empty(tables.longest_head, np.int32)
    strip_stamps = np.full(kinds * tails, np.int64(-1))
    strips = np.empty(kinds * tail_numbers.size if coded else 0, code.dtype)
    nodes = np.empty(longest + _COMPARED + _LANES, next_node.dtype)
    codes = np.empty(nodes.size if coded else 0, code.dtype)
    chances = np.empty(0, np.float64)
    listed: Any = np.int64(0)
    start: Any = np.int64(-num_joint_actions)
    stamp = np.int64(0)
    known = False
    first = np.int64(0)  # the first row made and not compared yet
    for i in range(sums.size - 1):
        row = rows[i] if rows.size else first_row + i
        action = row - start
        if action < 0 or action >= num_joint_actions or start < 0:
            node = row // num_joint_actions
            start = node * num_joint_actions
            action = row - start
            number = _number_of(product, num_products, node)
            known = number >= 0
            if known:
                _locate(layout, number, base)
            stamp += 1
        count = sums[i + 1] - sums[i]
        made = known and _length(action_pair, offsets, base, action) == count
        if made and count > 0:
            tail = np.int64(tail_of[action])
            place = tail_place[tail]
            if stamps[tail] != stamp:
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
            at = sums[i] - sums[first]
            _write_row(
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
            _sort(nodes, codes, coded, chances, False, at, at + count)
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
    while k + _LANES <= stop - first:
        if _lanes_differ(own, k, other, first + k):
            return True
        k += _LANES
    while k < stop - first:
        if own[k] != other[first + k]:
            return True
        k += 1
    return False


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
        number = _number_of(product, num_products, node)
        if number < 0:
            return BAD_PRODUCT, i
        _locate(layout, number, base)
        action = row - node * num_joint_actions
        if _length(action_pair, offsets, base, action) != sums[i + 1] - sums[i]:
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


@inlined_kernel
def _sort(nodes: Any, codes: Any, coded: bool, chances: Any, chanced: bool, first: Any, stop: Any) -> None:
    """Sort edges by next node, in place (Shell's sort with Ciura's gaps: rows are short)."""
    for gap in (701, 301, 132, 57, 23, 10, 4, 1):
        for i in range(first + gap, stop):
            j = i
            while j - gap >= first and nodes[j - gap] > nodes[j]:
                other = j - gap
                nodes[j], nodes[other] = nodes[other], nodes[j]
                if coded:
                    codes[j], codes[other] = codes[other], codes[j]
                if chanced:
                    chances[j], chances[other] = chances[other], chances[j]
                j = other


@kernel
def sort_rows(sums: Any, nodes: Any, codes: Any, coded: bool, chances: Any, chanced: bool) -> None:
    """Sort every row by next node, in place."""
    for i in range(sums.size - 1):
        _sort(nodes, codes, coded, chances, chanced, sums[i], sums[i + 1])


@kernel
def place_edges(exceptional: Any, part: Any, values: Any, sums: Any, out: Any) -> None:
    """Copy the values of rows gathered apart (`part`: their running sums) to where their rows lie."""
    for j in range(exceptional.size):
        at = sums[exceptional[j]]
        for k in range(part[j + 1] - part[j]):
            out[at + k] = values[part[j] + k]
