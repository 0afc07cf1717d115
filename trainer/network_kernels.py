"""The compiled forward pass of an `OpponentMLP`: states in, probabilities out, a small block of states at a time.

Between the layers nothing leaves a core's cache. Every state's numbers are sums in one order, whatever its
neighbours are, so they don't depend on what is evaluated beside it. The matrix products are register tiles as in
Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils as untyped_cgutils
from numba.core import types

from omstore.compiled import inlined_kernel, intrinsic, kernel

__all__ = ["NARROW", "WIDE", "evaluate", "list_bits"]

WIDE = 16
"""Outputs of a tile, two vectors: weights are laid out in panels of so many outputs."""
NARROW = 8
"""The same of a layer with no more outputs than this."""

_LANES = 8  # float32 of a vector
_ROWS = 6  # states of a wide tile: 12 sums, 2 vectors of weights and an input fit into 16 registers
_NARROW_ROWS = 8
_BLOCK = 48  # states at a time, a multiple of both: their hidden units take 24 KiB a layer

cgutils: Any = untyped_cgutils

_LOG2E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUNDING = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number, kept in the lowest bits
_LEAST = np.float32(-87.0)  # exp of it is the smallest that isn't denormal


def _tile(rows: int, vectors: int, rectified: bool) -> Any:
    """Make the product of `rows` states and a panel of `vectors` * 8 outputs, with all sums in registers."""

    @intrinsic
    def tile(
        typing: Any,
        inputs: Any,
        start: Any,
        stride: Any,
        active: Any,
        first_active: Any,
        count: Any,
        weights: Any,
        panel: Any,
        bias: Any,
        first_bias: Any,
        out: Any,
        place: Any,
        out_stride: Any,
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def at(array: int, position: int) -> Any:
                made = context.make_array(signature.args[array])(context, builder, arguments[array])
                return builder.gep(made.data, [arguments[position]])

            function = _tile_function(builder.module, rows, vectors, rectified)
            builder.call(
                function,
                [
                    at(0, 1),
                    arguments[2],
                    at(3, 4),
                    arguments[5],
                    at(6, 7),
                    at(8, 9),
                    at(10, 11),
                    arguments[12],
                ],
            )
            return context.get_dummy_value()

        whole = types.int64
        signature = types.void(
            inputs, whole, whole, active, whole, whole, weights, whole, bias, whole, out, whole, whole
        )
        return signature, generate

    return tile


def _tile_function(module: Any, rows: int, vectors: int, rectified: bool) -> Any:
    """Find or write the function of a tile: one of its own, so that all registers are for its loop."""
    single, whole = ir.FloatType(), ir.IntType(64)
    singles, wholes = single.as_pointer(), whole.as_pointer()
    vector = ir.VectorType(single, _LANES)
    function = cgutils.get_or_insert_function(
        module,
        ir.FunctionType(ir.VoidType(), [singles, whole, wholes, whole, singles, singles, singles, whole]),
        f"omstore_tile_{rows}_{vectors}_{rectified:d}",
    )
    if function.blocks:
        return function
    function.linkage = "internal"
    function.attributes.add("noinline")
    inputs, stride, active, count, panel, bias, out, out_stride = function.args
    multiply_add = cgutils.get_or_insert_function(
        module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{_LANES}f32"
    )
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), None)
    nothing = ir.Constant(vector, ir.Undefined)

    def vector_at(pointer: Any, number: int) -> Any:
        place = builder.gep(pointer, [ir.Constant(whole, number * _LANES)])
        return builder.bitcast(place, vector.as_pointer())

    def row_of(pointer: Any, apart: Any, number: int) -> Any:
        return builder.gep(pointer, [builder.mul(apart, ir.Constant(whole, number))])

    states = [row_of(inputs, stride, number) for number in range(rows)]
    begin = [builder.load(vector_at(bias, number), align=4) for number in range(vectors)]
    entry = builder.block
    loop, done = builder.append_basic_block("loop"), builder.append_basic_block("done")
    builder.branch(loop)
    builder.position_at_end(loop)
    step = builder.phi(whole)
    sums = [[builder.phi(vector) for _ in range(vectors)] for _ in range(rows)]
    unit = builder.load(builder.gep(active, [step]))
    own = builder.gep(panel, [builder.mul(unit, ir.Constant(whole, vectors * _LANES))])
    weights = [builder.load(vector_at(own, number), align=4) for number in range(vectors)]
    added = []
    for state, partial in zip(states, sums, strict=True):
        value = builder.insert_element(
            nothing, builder.load(builder.gep(state, [unit])), ir.Constant(ir.IntType(32), 0)
        )
        splat = builder.shuffle_vector(value, nothing, zeros)
        added.append(
            [builder.call(multiply_add, [splat, w, p]) for w, p in zip(weights, partial, strict=True)]
        )
        if vectors > 1:
            # Nothing, but loads don't cross it: done ahead, they would take the registers that sums are in.
            builder.asm(ir.FunctionType(ir.VoidType(), []), "", "~{memory}", [], True)
    following = builder.add(step, ir.Constant(whole, 1))
    step.add_incoming(ir.Constant(whole, 0), entry)
    step.add_incoming(following, loop)
    for partial, result in zip(sums, added, strict=True):
        for k in range(vectors):
            partial[k].add_incoming(begin[k], entry)
            partial[k].add_incoming(result[k], loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
    builder.position_at_end(done)
    for number, result in enumerate(added):
        place = row_of(out, out_stride, number)
        for k in range(vectors):
            value = result[k]
            if rectified:
                nought = ir.Constant(vector, [0.0] * _LANES)
                value = builder.select(builder.fcmp_ordered("<", value, nought), nought, value)
            builder.store(value, vector_at(place, k), align=4)
    builder.ret_void()
    return function


_hidden_tile = _tile(_ROWS, WIDE // _LANES, rectified=True)
_wide_tile = _tile(_ROWS, WIDE // _LANES, rectified=False)
_narrow_tile = _tile(_NARROW_ROWS, NARROW // _LANES, rectified=False)


@kernel
def list_bits(packed: Any, width: int, out: Any) -> Any:
    """Write the numbers of each state's bits that are 1, ascending; the rest of a row is left as it is.

    Parameters
    ----------
    packed : (B, Wb) uint8
        Most significant bit first.
    width : int
        Bits of a state; what is set behind them, as in a damaged store, is passed over.
    out : (B, most) uint32

    Returns
    -------
    int
        The most bits of any state; where that is more than `most`, the others aren't written.
    """
    most: Any = np.int64(0)
    for i in range(packed.shape[0]):
        found: Any = np.int64(0)
        for byte in range(packed.shape[1]):
            bits = np.int64(packed[i, byte])
            for k in range(8):
                if not bits:
                    break
                if (bits >> (7 - k)) & 1:
                    bits &= 127 >> k
                    if 8 * byte + k < width:
                        if found < out.shape[1]:
                            out[i, found] = 8 * byte + k
                        found += 1
        most = max(most, found)
    return most


@intrinsic
def _active_units(typing: Any, values: Any, at: Any, width: Any) -> Any:
    """Bits of 8 units that aren't 0 in all of `_ROWS` states, `width` apart; no value is negative."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        vector = ir.VectorType(data.type.pointee, _LANES)
        total, place = None, arguments[1]
        for _ in range(_ROWS):
            pointer = builder.bitcast(builder.gep(data, [place]), vector.as_pointer())
            own = builder.load(pointer, align=4)
            total = own if total is None else builder.fadd(total, own)
            place = builder.add(place, arguments[2])
        bits = builder.fcmp_unordered("!=", total, ir.Constant(vector, [0.0] * _LANES))
        return builder.zext(builder.bitcast(bits, ir.IntType(_LANES)), ir.IntType(64))

    return types.int64(values, types.int64, types.int64), generate


_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_NUMBER_OF_BITS = _BITS.sum(axis=1).astype(np.int64)
_PLACES = np.argsort(1 - _BITS, axis=1, kind="stable").astype(np.int64)
"""Of each byte the numbers of its bits that are 1, and then others."""


@inlined_kernel
def _list_active(values: Any, first: Any, width: Any, active: Any, at: Any) -> Any:
    """List the units that aren't 0 in all states of a tile: only these add anything. At least one is listed."""
    count: Any = np.int64(0)
    for k in range(0, width, _LANES):
        bits = _active_units(values, first + k, width)
        for j in range(_LANES):  # those that are too many are written over
            active[np.uint64(at + count + j)] = k + _PLACES[bits, j]
        count += _NUMBER_OF_BITS[bits]
    if count == 0:
        active[at] = 0
        count = 1
    return count


@inlined_kernel
def _exponentials(values: Any, whole: Any, bits: Any, powers: Any, count: Any) -> None:
    """Replace numbers that aren't positive by their exponentials, within 2 units in the last place.

    By 2^n * p(r) as in Cephes (Moshier): loops that compile to vectors, where libm takes numbers one by one.
    `whole` and `bits`, and `powers`, are scratch of `count`; `bits` and `whole` are one memory.
    """
    for k in range(count):
        values[k] = _LEAST if values[k] < _LEAST else values[k]
        whole[k] = values[k] * _LOG2E + _ROUNDING
    for k in range(count):
        n = whole[k] - _ROUNDING
        r = values[k] - n * _LN2_HIGH
        values[k] = r - n * _LN2_LOW
    for k in range(count):
        bits[k] = (bits[k] << 23) + np.int32(0x3F800000)
    for k in range(count):
        powers[k] = whole[k]
    for k in range(count):
        r = values[k]
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        values[k] = (p * r * r + r + np.float32(1.0)) * powers[k]


@kernel
def evaluate(
    count: int,
    first_row: int,
    rows: Any,
    positions: Any,
    states: Any,
    first: Any,
    first_bias: Any,
    second: Any,
    second_bias: Any,
    head: Any,
    head_bias: Any,
    hidden: int,
    legal: Any,
    out: Any,
) -> Any:
    """Write the probabilities of `count` states; returns how many have none, their logits being no numbers.

    Parameters
    ----------
    count, first_row : int
    rows : (count,) int64, or empty
        The row of `positions` of each state; empty: ``first_row`` and the following.
    positions : (n, most) uint32
        Where states are 1, and W for nothing; empty where components are more than bits.
    states : (count, W) float32
        Where `positions` is empty; W units are never 0 in all.
    first : float32
        With `positions`: (W + 1, width), a row for each component and one of zeros; else panels.
    second, head : (outputs / 16, inputs, 16) float32, flat
        Panels; those of a head of at most 8 actions (1, inputs, 8).
    first_bias, second_bias, head_bias : float32
        Filled up with zeros to whole panels.
    hidden : int
        Units of a layer.
    legal : (count, actions) bool, or empty
        Empty: all are.
    out : (count, actions) float32
        Illegal actions get 0; a state without any legal one nothing else. A state whose logits are no numbers
        gets NaN.

    Returns
    -------
    int
    """
    width = first_bias.size
    actions = out.shape[1]
    outputs = head_bias.size
    components = states.shape[1]
    one = np.zeros(_BLOCK * width, np.float32)
    two = np.zeros(_BLOCK * width, np.float32)
    logits = np.empty(_BLOCK * outputs, np.float32)
    scaled = np.empty(_BLOCK * outputs, np.float32)
    powers = np.empty(_BLOCK * outputs, np.float32)
    bits = scaled.view(np.int32)
    inputs = np.zeros(_BLOCK * components, np.float32)
    prefix = np.empty(width, np.float32)
    listed = width + _LANES
    active = np.empty(_BLOCK // _ROWS * listed, np.int64)
    counts = np.empty(_BLOCK // _ROWS, np.int64)
    every = np.arange(max(hidden, components))
    wrong: Any = np.int64(0)
    most = positions.shape[1] - 1
    before = np.uint64(0)
    for start in range(0, count, _BLOCK):
        some = min(_BLOCK, count - start)
        if positions.size:
            for i in range(some):
                row = np.uint64(rows[start + i] if rows.size else first_row + start + i)
                fresh = i == 0
                for k in range(most):
                    fresh |= positions[row, k] != positions[before, k]
                before = row
                if fresh:  # else it differs from the one before in the last row that is added
                    for j in range(width):
                        prefix[j] = first_bias[j]
                    for k in range(most):
                        a = np.uint64(positions[row, k])
                        for j in range(width):
                            prefix[j] += first[a, j]
                a = np.uint64(positions[row, most])
                at = i * width
                for j in range(width):
                    value = prefix[j] + first[a, j]
                    one[at + j] = np.float32(0.0) if value < np.float32(0.0) else value
        else:
            for i in range(some):
                for j in range(components):
                    inputs[i * components + j] = states[start + i, j]
            for panel in range(0, width, WIDE):
                for i in range(0, some, _ROWS):
                    _hidden_tile(
                        inputs, i * components, components, every, 0, components,
                        first.reshape(-1), panel * components, first_bias, panel, one, i * width + panel, width,
                    )  # fmt: skip
        for group in range(0, some, _ROWS):
            which = group // _ROWS
            counts[which] = _list_active(one, group * width, width, active, which * listed)
        for panel in range(0, width, WIDE):
            for group in range(0, some, _ROWS):
                which = group // _ROWS
                _hidden_tile(
                    one, group * width, width, active, which * listed, counts[which],
                    second, panel * hidden, second_bias, panel, two, group * width + panel, width,
                )  # fmt: skip
        if outputs == NARROW:
            for group in range(0, some, _NARROW_ROWS):
                _narrow_tile(
                    two, group * width, width, every, 0, hidden, head, 0, head_bias, 0,
                    logits, group * outputs, outputs,
                )  # fmt: skip
        else:
            for group in range(0, some, _ROWS):
                for panel in range(0, outputs, WIDE):
                    _wide_tile(
                        two, group * width, width, every, 0, hidden, head, panel * hidden, head_bias, panel,
                        logits, group * outputs + panel, outputs,
                    )  # fmt: skip
        if legal.size:
            for i in range(some):
                for k in range(actions):
                    if not legal[start + i, k]:
                        logits[i * outputs + k] = -np.inf
        for i in range(some):
            at = i * outputs
            highest = logits[at]
            for k in range(1, actions):
                highest = max(highest, logits[at + k])
            for k in range(actions):
                logits[at + k] -= highest
        _exponentials(logits, scaled, bits, powers, some * outputs)
        for i in range(some):
            at = i * outputs
            total = np.float32(0.0)
            for k in range(actions):
                if legal.size and not legal[start + i, k]:
                    logits[at + k] = np.float32(0.0)
                total += logits[at + k]
            wrong += np.int64(total != total)
            share = np.float32(1.0) / total if total != np.float32(0.0) else np.float32(0.0)
            for k in range(actions):
                out[start + i, k] = logits[at + k] * share
    return wrong
