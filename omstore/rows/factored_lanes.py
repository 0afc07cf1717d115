"""A row of the factored encoding made edge by edge: what kernels that decode and that compare rows share."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from omstore.compiled import inlined_kernel, intrinsic

__all__ = ["LANES", "expand", "lanes_differ", "sort_row", "write_row"]

LANES = 8
"""Elements of the vectors in which edges are copied: arrays that are written are this much longer."""


def _vector_at(context: Any, builder: Any, kind: Any, array: Any, position: Any) -> tuple[Any, Any, int]:
    """Pointer to a vector of `LANES` elements of an array, its type, and the bytes it is aligned to."""
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(data.type.pointee, LANES)
    pointer = builder.bitcast(builder.gep(data, [position]), vector.as_pointer())
    return pointer, vector, kind.dtype.bitwidth // 8


@intrinsic
def copy_lanes(typing: Any, out: Any, at: Any, source: Any, place: Any) -> Any:
    """Copy a vector of elements of equal width; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, _, align = _vector_at(context, builder, signature.args[0], arguments[0], arguments[1])
        origin, _, _ = _vector_at(context, builder, signature.args[2], arguments[2], arguments[3])
        builder.store(builder.load(origin, align=align), to, align=align)
        return context.get_dummy_value()

    return types.void(out, types.int64, source, types.int64), generate


@intrinsic
def add_lanes(typing: Any, out: Any, at: Any, source: Any, place: Any, number: Any) -> Any:
    """Write a vector of elements, each plus a number, of which the lower bits count; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, vector, align = _vector_at(context, builder, signature.args[0], arguments[0], arguments[1])
        origin, _, _ = _vector_at(context, builder, signature.args[2], arguments[2], arguments[3])
        added = arguments[4]
        if vector.element.width < 64:
            added = builder.trunc(added, vector.element)
        i32 = ir.IntType(32)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), added, ir.Constant(i32, 0))
        zeros = ir.Constant(ir.VectorType(i32, LANES), None)
        splat = builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)
        builder.store(builder.add(builder.load(origin, align=align), splat), to, align=align)
        return context.get_dummy_value()

    return types.void(out, types.int64, source, types.int64, types.int64), generate


@intrinsic
def lanes_differ(typing: Any, own: Any, at: Any, other: Any, place: Any) -> Any:
    """Whether two vectors of elements of equal width differ; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one, _, align = _vector_at(context, builder, signature.args[0], arguments[0], arguments[1])
        two, _, _ = _vector_at(context, builder, signature.args[2], arguments[2], arguments[3])
        unequal = builder.icmp_unsigned("!=", builder.load(one, align=align), builder.load(two, align=align))
        bits = ir.IntType(LANES)
        return builder.icmp_unsigned("!=", builder.bitcast(unequal, bits), ir.Constant(bits, 0))

    return types.boolean(own, types.int64, other, types.int64), generate


@inlined_kernel
def expand(
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
    for c in range(first, stop):
        pair = action_pair[action, c] + base[c]
        if offsets[pair] == offsets[pair + 1]:
            return np.int64(0)  # with nothing written: where no state has outcomes, the place is another's
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
def write_row(
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
                add_lanes(out_next, at + k, tail_numbers, place + k, number)
                k += LANES
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
                copy_lanes(out_code, at + k, strips, strip + k)
                k += LANES
        at += tail_length
    return largest, highest


@inlined_kernel
def sort_row(nodes: Any, codes: Any, coded: bool, chances: Any, chanced: bool, first: Any, stop: Any) -> None:
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
