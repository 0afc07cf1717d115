"""Sums of several numbers side by side, for kernels: generators of LLVM code.

Four numbers at a time, in as many vectors as there are registers for, from the first outcome to the last: no compiler
found that by itself, and sums that go to memory in between take four times as long. A sum is made in the order of
outcomes, whatever lies beside it. `at`, `place` and the like are positions in an array; nothing is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from omstore.compiled import intrinsic

__all__ = ["LANES", "dot", "find_best", "find_most", "mix", "mix_rounded", "spread", "turn", "weigh"]

LANES = 4
"""Numbers in a vector; lanes are filled up to a multiple."""

_code: Any = cgutils  # untyped in part
_INDEX, _SHORT, _DOUBLE = ir.IntType(64), ir.IntType(32), ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, LANES)
_LEAST = float("-inf")

# Groups of vectors whose sums stay in registers, of which there are sixteen: eight sums and the chance; or seven sums,
# the best of each, and the chance.
_SUMMED, _COMPARED = (8, 3, 1), (7, 4, 2, 1)


def _pointers(context: Any, builder: Any, signature: Any, arguments: Any) -> Callable[[int], Any]:
    """Return what finds the data of an array among the arguments."""
    return lambda which: context.make_array(signature.args[which])(context, builder, arguments[which]).data


def _at(builder: Any, data: Any, place: Any, ahead: int, kind: Any) -> Any:
    pointer = builder.gep(data, [builder.add(place, ir.Constant(_INDEX, ahead))])
    return builder.bitcast(pointer, kind.as_pointer())


def _load(builder: Any, data: Any, place: Any, ahead: int = 0, kind: Any = _VECTOR) -> Any:
    return builder.load(_at(builder, data, place, ahead, kind), align=8)


def _fused(builder: Any, kind: Any) -> Any:
    """Return the function that multiplies and adds, rounding once where the machine can."""
    name = "llvm.fmuladd.f64" if kind is _DOUBLE else f"llvm.fmuladd.v{LANES}f64"
    return _code.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)


def _spread(builder: Any, number: Any, kind: Any) -> Any:
    if kind is _DOUBLE:
        return number
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(_SHORT, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_SHORT, LANES), None))


def _greater(builder: Any, a: Any, b: Any) -> Any:
    """Return the greater one; `b` if either is no number."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _rounded(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """Multiply and add, rounding the product too, as compilers do."""
    return builder.fadd(builder.fmul(a, b), c)


def _sums(
    builder: Any,
    source: Any,
    at: Any,
    step: Any,
    pair: tuple[Any, Any, Any, Any],
    width: int,
    kind: Any,
    fuse: bool = True,
) -> list[Any]:
    """Make `width` sums side by side over the outcomes of a pair, (nexts, chances, first, stop)."""
    nexts, chances, first, stop = pair
    fused = _fused(builder, kind) if fuse else None
    count = 1 if kind is _DOUBLE else LANES
    sums = [_code.alloca_once(builder, kind) for _ in range(width)]
    for each in sums:
        builder.store(ir.Constant(kind, 0.0 if kind is _DOUBLE else None), each)
    with _code.for_range(builder, stop, start=first) as loop:
        chance = _spread(builder, builder.load(builder.gep(chances, [loop.index])), kind)
        follows = builder.load(builder.gep(nexts, [loop.index]))
        place = builder.add(at, builder.mul(follows, step))
        for number, each in enumerate(sums):
            part = _load(builder, source, place, number * count, kind)
            factors = chance, part, builder.load(each)
            builder.store(builder.call(fused, factors) if fused else _rounded(builder, *factors), each)
    return [builder.load(each) for each in sums]


def _groups(builder: Any, length: Any, widths: Sequence[int], make: Callable[[Any, int], None]) -> Any:
    """Go through `length` numbers, `make` being given where a group of as many vectors begins; returns how far."""
    done = ir.Constant(_INDEX, 0)
    for width in widths:
        size = ir.Constant(_INDEX, width * LANES)
        count = builder.sdiv(builder.sub(length, done), size)
        with _code.for_range(builder, count) as loop:
            make(builder.add(done, builder.mul(loop.index, size)), width)
        done = builder.add(done, builder.mul(count, size))
    return done


@intrinsic
def mix(
    typing: Any, source: Any, at: Any, step: Any, nexts: Any, chances: Any, first: Any, stop: Any,
    out: Any, place: Any, length: Any,
) -> Any:  # fmt: skip
    """Write the sum of `chances` times the slices of `source` that `nexts` number, each of `length` numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        _, at, step, _, _, first, stop, _, place, length = arguments
        pair = data(3), data(4), first, stop

        def make(begin: Any, width: int, kind: Any = _VECTOR) -> None:
            sums = _sums(builder, data(0), builder.add(at, begin), step, pair, width, kind)
            for number, each in enumerate(sums):
                target = _at(builder, data(7), builder.add(place, begin), number * LANES, kind)
                builder.store(each, target, align=8)

        done = _groups(builder, length, _SUMMED, make)
        lanes = ir.Constant(_INDEX, LANES)
        some_left, some_fit = (
            builder.icmp_signed(sign, length, to) for sign, to in ((">", done), (">=", lanes))
        )
        with builder.if_then(some_left), builder.if_else(some_fit) as (long, short):
            with long:  # begins before the end of the last one: what is the same is written again
                make(builder.sub(length, lanes), 1)
            with short, _code.for_range(builder, length) as loop:
                make(loop.index, 1, _DOUBLE)
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, index, nexts, chances, index, index, out, index, index), generate


@intrinsic
def mix_rounded(
    typing: Any, source: Any, step: Any, nexts: Any, chances: Any, first: Any, stop: Any, out: Any, place: Any,
    length: Any,
) -> Any:  # fmt: skip
    """Do what `mix` does, but round products as well: what comes out is what a loop over edges makes. `length` is a
    multiple of four."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        _, step, _, _, first, stop, _, place, length = arguments

        def make(begin: Any, width: int) -> None:
            pair = data(2), data(3), first, stop
            for number, each in enumerate(_sums(builder, data(0), begin, step, pair, width, _VECTOR, False)):
                target = _at(builder, data(6), builder.add(place, begin), number * LANES, _VECTOR)
                builder.store(each, target, align=8)

        _groups(builder, length, _SUMMED, make)
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, nexts, chances, index, index, out, index, index), generate


@intrinsic
def weigh(
    typing: Any, source: Any, step: Any, which: Any, first: Any, places: Any, weights: Any, out: Any, place: Any,
    length: Any,
) -> Any:  # fmt: skip
    """Write the sum of slices of `source`, each number times its own of `weights`: of the slice ``which[first +
    places[k]]`` times slice k of `weights`, for every k. Slices are `step` apart; `length` is a multiple of four.
    Products are rounded."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        _, step, _, first, _, _, _, place, length = arguments
        count = context.make_array(signature.args[4])(context, builder, arguments[4])
        count = builder.extract_value(count.shape, 0)

        def make(begin: Any, width: int) -> None:
            sums = [_code.alloca_once(builder, _VECTOR) for _ in range(width)]
            for each in sums:
                builder.store(ir.Constant(_VECTOR, None), each)
            with _code.for_range(builder, count) as loop:
                there = builder.load(builder.gep(data(4), [loop.index]))
                there = builder.add(first, builder.sext(there, _INDEX))
                found = builder.sext(builder.load(builder.gep(data(2), [there])), _INDEX)
                at = builder.add(begin, builder.mul(found, step))
                by = builder.add(begin, builder.mul(loop.index, step))
                for number, each in enumerate(sums):
                    x, y = (_load(builder, data(k), start, number * LANES) for k, start in ((0, at), (5, by)))
                    builder.store(_rounded(builder, x, y, builder.load(each)), each)
            for number, each in enumerate(sums):
                target = _at(builder, data(6), builder.add(place, begin), number * LANES, _VECTOR)
                builder.store(builder.load(each), target, align=8)

        _groups(builder, length, _SUMMED, make)
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, which, index, places, weights, out, index, index), generate


@intrinsic
def spread(
    typing: Any, source: Any, place: Any, step: Any, nexts: Any, chances: Any, first: Any, stop: Any, out: Any,
    length: Any,
) -> Any:  # fmt: skip
    """Add a slice of `source`, times each of `chances`, to the slices of `out` that `nexts` number, `step` apart.

    `length` is a multiple of four.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        _, place, step, _, _, first, stop, _, length = arguments
        fused = _fused(builder, _VECTOR)

        def make(begin: Any, width: int) -> None:
            parts = [_load(builder, data(0), builder.add(place, begin), k * LANES) for k in range(width)]
            with _code.for_range(builder, stop, start=first) as loop:
                chance = _spread(builder, builder.load(builder.gep(data(4), [loop.index])), _VECTOR)
                follows = builder.load(builder.gep(data(3), [loop.index]))
                at = builder.add(begin, builder.mul(follows, step))
                for number, part in enumerate(parts):
                    target = _at(builder, data(7), at, number * LANES, _VECTOR)
                    more = builder.call(fused, [chance, part, builder.load(target, align=8)])
                    builder.store(more, target, align=8)

        _groups(builder, length, _SUMMED, make)
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, index, nexts, chances, index, index, out, index), generate


@intrinsic
def find_most(typing: Any, source: Any, step: Any, first: Any, stop: Any, out: Any, length: Any) -> Any:
    """Write the greatest of slices first..stop-1 of `source`, number by number, at least one of them; slices are `step`
    apart; `length` is a multiple of four."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        _, step, first, stop, _, length = arguments

        def make(begin: Any, width: int) -> None:
            mosts = [_code.alloca_once(builder, _VECTOR) for _ in range(width)]
            at = builder.add(begin, builder.mul(first, step))
            for number, each in enumerate(mosts):
                builder.store(_load(builder, data(0), at, number * LANES), each)
            with _code.for_range(builder, stop, start=first) as loop:
                at = builder.add(begin, builder.mul(loop.index, step))
                for number, each in enumerate(mosts):
                    here = _load(builder, data(0), at, number * LANES)
                    builder.store(_greater(builder, here, builder.load(each)), each)
            for number, each in enumerate(mosts):
                target = _at(builder, data(4), begin, number * LANES, _VECTOR)
                builder.store(builder.load(each), target, align=8)

        _groups(builder, length, _SUMMED, make)
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, index, index, out, index), generate


@intrinsic
def find_best(
    typing: Any, turned: Any, at: Any, lanes: Any, nexts: Any, chances: Any, offsets: Any, pair: Any, stop: Any
) -> Any:  # fmt: skip
    """Return the best over the last component's actions and all heads; -inf where nothing is legal."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        _, at, lanes, _, _, _, first_pair, stop_pair = arguments
        best = _code.alloca_once(builder, _DOUBLE)
        builder.store(ir.Constant(_DOUBLE, _LEAST), best)

        def make(begin: Any, width: int) -> None:
            bests = [_code.alloca_once(builder, _VECTOR) for _ in range(width)]
            for each in bests:
                builder.store(ir.Constant(_VECTOR, [_LEAST] * LANES), each)
            with _code.for_range(builder, stop_pair, start=first_pair) as loop:
                first = _load(builder, data(5), loop.index, 0, _INDEX)
                stop = _load(builder, data(5), loop.index, 1, _INDEX)
                with builder.if_then(builder.icmp_signed("<", first, stop)):
                    pair = data(3), data(4), first, stop
                    sums = _sums(builder, data(0), builder.add(at, begin), lanes, pair, width, _VECTOR)
                    for one, each in zip(sums, bests, strict=True):
                        builder.store(_greater(builder, one, builder.load(each)), each)
            found = [builder.load(each) for each in bests]
            while len(found) > 1:
                found = [_greater(builder, found[-1], found[-2]), *found[:-2]]
            numbers = [builder.extract_element(found[0], ir.Constant(_SHORT, k)) for k in range(LANES)]
            while len(numbers) > 1:
                numbers = [_greater(builder, numbers[-1], numbers[-2]), *numbers[:-2]]
            builder.store(_greater(builder, numbers[0], builder.load(best)), best)

        _groups(builder, lanes, _COMPARED, make)
        return builder.load(best)

    index = types.int64
    return types.float64(turned, index, index, nexts, chances, offsets, index, index), generate


@intrinsic
def turn(typing: Any, source: Any, a: Any, b: Any, c: Any, d: Any, out: Any, place: Any, step: Any) -> Any:
    """Write four vectors at `a`, `b`, `c`, `d` as the columns of four vectors, `step` apart."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        rows = [_load(builder, data(0), arguments[1 + k]) for k in range(4)]

        def shuffled(x: Any, y: Any, *which: int) -> Any:
            return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_SHORT, 4), list(which)))

        even = [shuffled(rows[k], rows[k + 1], 0, 4, 2, 6) for k in (0, 2)]
        odd = [shuffled(rows[k], rows[k + 1], 1, 5, 3, 7) for k in (0, 2)]
        place = arguments[6]
        for which in ((0, 1, 4, 5), (2, 3, 6, 7)):
            for pair in (even, odd):
                builder.store(shuffled(*pair, *which), _at(builder, data(5), place, 0, _VECTOR), align=8)
                place = builder.add(place, arguments[7])
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, index, index, index, out, index, index), generate


@intrinsic
def dot(typing: Any, a: Any, at: Any, b: Any, start: Any, stop: Any) -> Any:
    """Return the sum of ``a[at + k] * b[k]`` for k in start..stop-1, a multiple of four."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        total = _code.alloca_once(builder, _VECTOR)
        builder.store(ir.Constant(_VECTOR, None), total)
        step = ir.Constant(_INDEX, LANES)
        with _code.for_range_slice(builder, arguments[3], arguments[4], step, _INDEX) as (k, _):
            x, y = _load(builder, data(0), builder.add(arguments[1], k)), _load(builder, data(2), k)
            builder.store(builder.call(_fused(builder, _VECTOR), [x, y, builder.load(total)]), total)
        vector = builder.load(total)
        parts = [builder.extract_element(vector, ir.Constant(_SHORT, k)) for k in range(LANES)]
        return builder.fadd(builder.fadd(parts[0], parts[1]), builder.fadd(parts[2], parts[3]))

    return types.float64(a, types.int64, b, types.int64, types.int64), generate
