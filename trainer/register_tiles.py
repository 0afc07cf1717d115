"""Generators of the machine code that matrix products are made of: tiles whose sums stay in registers.

As in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008; numba's own loops
keep their sums in memory.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils as untyped_cgutils
from numba.core import types

from omstore.compiled import intrinsic

__all__ = ["LANES", "ROWS", "active_units", "tile"]

LANES = 8
"""Numbers of a vector of float32."""

ROWS = 6
"""States of a tile of two vectors: 12 sums, 2 vectors of weights and an input fit into 16 registers."""

cgutils: Any = untyped_cgutils


def tile(rows: int, vectors: int, rectified: bool) -> Any:
    """Make what computes a layer's outputs for some states, with all sums in registers.

    Parameters
    ----------
    rows, vectors : int
        States, and vectors of outputs: of rows * vectors + vectors + 1 numbers a processor has registers.
    rectified : bool
        Whether outputs below 0 are written as 0; what is no number is kept.

    Returns
    -------
    intrinsic
        Called with flat arrays, of float32 but `active`: the states' inputs, where the first state's begin and
        how far apart they are; the inputs (int64) that are looked at, where their list begins and how many they
        are, at least 1; weights, and where their panel (inputs, vectors * 8) begins; biases, and where the panel's
        begin; the output, where it begins for the first state and how far apart states' are. Each output is its
        bias and then the products in the order of the list, whatever the other states are. Nothing is checked.
    """

    @intrinsic
    def product(
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

    return product


def _tile_function(module: Any, rows: int, vectors: int, rectified: bool) -> Any:
    """Find or write the function of a tile: one of its own, so that all registers are for its loop."""
    single, whole = ir.FloatType(), ir.IntType(64)
    singles, wholes = single.as_pointer(), whole.as_pointer()
    vector = ir.VectorType(single, LANES)
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
        module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32"
    )
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    nothing = ir.Constant(vector, ir.Undefined)

    def vector_at(pointer: Any, number: int) -> Any:
        place = builder.gep(pointer, [ir.Constant(whole, number * LANES)])
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
    own = builder.gep(panel, [builder.mul(unit, ir.Constant(whole, vectors * LANES))])
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
                nought = ir.Constant(vector, [0.0] * LANES)
                value = builder.select(builder.fcmp_ordered("<", value, nought), nought, value)
            builder.store(value, vector_at(place, k), align=4)
    builder.ret_void()
    return function


@intrinsic
def active_units(typing: Any, values: Any, at: Any, width: Any) -> Any:
    """Bits of 8 units that aren't 0 in all of `ROWS` states, `width` apart; no value is negative."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        vector = ir.VectorType(data.type.pointee, LANES)
        total, place = None, arguments[1]
        for _ in range(ROWS):
            pointer = builder.bitcast(builder.gep(data, [place]), vector.as_pointer())
            own = builder.load(pointer, align=4)
            total = own if total is None else builder.fadd(total, own)
            place = builder.add(place, arguments[2])
        bits = builder.fcmp_unordered("!=", total, ir.Constant(vector, [0.0] * LANES))
        return builder.zext(builder.bitcast(bits, ir.IntType(LANES)), ir.IntType(64))

    return types.int64(values, types.int64, types.int64), generate
