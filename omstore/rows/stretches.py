"""Stretches of arrays compared and copied in compiled code, by a few instructions."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from omstore.compiled import intrinsic

__all__ = ["copy_bytes", "same_bytes", "same_row"]

_LANES = 8  # elements of the vectors in which rows are compared
_U8 = ir.IntType(8)


@intrinsic
def copy_bytes(typing: Any, source: Any, begin: Any, out: Any, at: Any, count: Any) -> Any:
    """Copy ``source[begin : begin + count]`` to ``out[at:]``, of the same dtype, by the C library's memcpy."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i64 = ir.IntType(64)
        pointers = []
        for place in (0, 2):
            data = context.make_array(signature.args[place])(context, builder, arguments[place]).data
            pointers.append(builder.bitcast(builder.gep(data, [arguments[place + 1]]), _U8.as_pointer()))
        copy = builder.module.globals.get("memcpy")
        if copy is None:
            kind = ir.FunctionType(_U8.as_pointer(), [_U8.as_pointer(), _U8.as_pointer(), i64])
            copy = ir.Function(builder.module, kind, "memcpy")
        nbytes = builder.mul(arguments[4], ir.Constant(i64, signature.args[0].dtype.bitwidth // 8))
        builder.call(copy, [pointers[1], pointers[0], nbytes])
        return context.get_dummy_value()

    if source.dtype != out.dtype:
        return None
    return types.void(source, types.int64, out, types.int64, types.int64), generate


@intrinsic
def same_bytes(typing: Any, mine: Any, at: Any, other: Any, begin: Any, count: Any) -> Any:
    """Whether ``mine[at : at + count]`` are the bytes of ``other[begin : begin + count]``, of the same dtype.

    By the C library's memcmp: rows are short, and compiled loops spend their time on beginning and ending.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        pointers = []
        for place in (0, 2):
            data = context.make_array(signature.args[place])(context, builder, arguments[place]).data
            pointers.append(builder.bitcast(builder.gep(data, [arguments[place + 1]]), _U8.as_pointer()))
        compare = builder.module.globals.get("memcmp")
        if compare is None:
            kind = ir.FunctionType(i32, [_U8.as_pointer(), _U8.as_pointer(), i64])
            compare = ir.Function(builder.module, kind, "memcmp")
        nbytes = builder.mul(arguments[4], ir.Constant(i64, signature.args[0].dtype.bitwidth // 8))
        found = builder.call(compare, [*pointers, nbytes])
        return builder.icmp_signed("==", found, ir.Constant(i32, 0))

    if mine.dtype != other.dtype:
        return None
    return types.boolean(mine, types.int64, other, types.int64, types.int64), generate


@intrinsic
def same_row(
    typing: Any,
    mine: Any,
    at: Any,
    place: Any,
    placed: Any,
    other: Any,
    begin: Any,
    count: Any,
    base: Any,
) -> Any:
    """Whether the places of ``mine[at : at + count]``, minus `base`, are ``other[begin : begin + count]``.

    A place is ``place[element]`` where `placed`, else the element itself; elements are unsigned, and places
    exist. Vectors are compared, the last of which ends with the row and overlaps the one before: nothing outside
    the rows is read. Where `other` has 32 bits differences wrap around, which makes none equal that aren't:
    places are less than 2^31 apart then (codes, which are as wide as `other`, have base 0).

    Not a kernel, since one called in a loop may count references to its arrays: atomically, by all threads.
    """

    plain = isinstance(place, types.NoneType)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        wide = ir.IntType(signature.args[4].dtype.bitwidth)
        _, first, _, is_placed, _, start, length, moved = arguments
        arrays = {
            number: context.make_array(signature.args[number])(context, builder, arguments[number]).data
            for number in ((0, 4) if plain else (0, 2, 4))
        }
        moved = builder.trunc(moved, wide) if wide.width < 64 else moved

        def splat(value: Any) -> Any:
            nothing = ir.Constant(ir.VectorType(value.type, _LANES), ir.Undefined)
            zeros = ir.Constant(ir.VectorType(i32, _LANES), None)
            return builder.shuffle_vector(
                builder.insert_element(nothing, value, ir.Constant(i32, 0)), nothing, zeros
            )

        def load(number: int, position: Any, lanes: int) -> Any:
            """Elements as wide as those of `other`."""
            pointer = builder.gep(arrays[number], [position])
            kind, bits = pointer.type.pointee, pointer.type.pointee.width
            goal: Any = wide
            if lanes > 1:
                pointer = builder.bitcast(pointer, ir.VectorType(kind, lanes).as_pointer())
                goal = ir.VectorType(wide, lanes)
            value = builder.load(pointer, align=bits // 8)
            if bits == wide.width:
                return value
            return builder.zext(value, goal) if bits < wide.width else builder.trunc(value, goal)

        def placed_at(position: Any, lanes: int) -> Any:
            values = []
            for lane in range(lanes):
                element = builder.load(
                    builder.gep(arrays[0], [builder.add(position, ir.Constant(i64, lane))])
                )
                element = builder.zext(element, i64) if element.type.width < 64 else element
                values.append(load(2, element, 1))
            if lanes == 1:
                return values[0]
            vector = ir.Constant(ir.VectorType(wide, lanes), ir.Undefined)
            for lane, value in enumerate(values):
                vector = builder.insert_element(vector, value, ir.Constant(i32, lane))
            return vector

        def compare(offset: Any, lanes: int, by_place: bool, found: Any) -> None:
            position = builder.add(first, offset)
            own = placed_at(position, lanes) if by_place else load(0, position, lanes)
            apart = builder.sub(own, splat(moved) if lanes > 1 else moved)
            apart = builder.xor(apart, load(4, builder.add(start, offset), lanes))
            builder.store(builder.or_(builder.load(found), apart), found)

        zero = ir.Constant(ir.VectorType(wide, _LANES), None)
        reserve: Any = cgutils.alloca_once
        vectors, single = reserve(builder, zero.type), reserve(builder, wide)
        builder.store(zero, vectors)
        builder.store(ir.Constant(wide, 0), single)
        lanes = ir.Constant(i64, _LANES)
        one = ir.Constant(i64, 1)

        def compare_all(by_place: bool) -> None:
            with builder.if_else(builder.icmp_signed(">=", length, lanes)) as (long, short):
                with long:
                    whole = builder.udiv(builder.sub(length, one), lanes)
                    with cgutils.for_range(builder, whole, intp=i64) as loop:
                        compare(builder.mul(loop.index, lanes), _LANES, by_place, vectors)
                    compare(builder.sub(length, lanes), _LANES, by_place, vectors)
                with short, cgutils.for_range(builder, length, intp=i64) as loop:
                    compare(loop.index, 1, by_place, single)

        if plain:
            compare_all(False)
        else:
            with builder.if_else(is_placed) as (yes, no):
                with yes:
                    compare_all(True)
                with no:
                    compare_all(False)
        unequal = builder.icmp_unsigned("!=", builder.load(vectors), zero)
        bits = builder.bitcast(unequal, ir.IntType(_LANES))
        return builder.and_(
            builder.icmp_unsigned("==", bits, ir.Constant(bits.type, 0)),
            builder.icmp_unsigned("==", builder.load(single), ir.Constant(wide, 0)),
        )

    i64 = types.int64
    return types.boolean(mine, i64, place, types.boolean, other, i64, i64, i64), generate
