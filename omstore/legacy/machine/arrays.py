"""What the machine works on: arrays where Python calls `run`, pointers to their elements inside.

numba would count references to an array at every call, and look for negative indices at every access, which takes
half of the time and most of the compilation. The caller's arguments keep the arrays alive, and an index is checked
where its value comes from the pickle.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils

from omstore.compiled import intrinsic

__all__ = [
    "Marks",
    "Memory",
    "Memos",
    "Names",
    "Row",
    "Schema",
    "Stacks",
    "TemplateArrays",
    "copy",
    "float_bits",
    "pointer",
    "u16",
    "u32",
    "u64",
]


class Stacks(NamedTuple):
    """The value stack: tags, payloads, and how many rows a ROWS value stands for."""

    tag: Any
    value: Any
    count: Any


class Marks(NamedTuple):
    """The open marks.

    Stack height, heap top, the table whose records may follow, the table a huge tuple's items go to, file
    offset.
    """

    height: Any
    heap: Any
    table: Any
    over: Any
    at: Any


class Memory(NamedTuple):
    """The heap."""

    tag: Any
    value: Any


class Memos(NamedTuple):
    """The memo entries that are ever fetched: numbers (ascending), offset of the last fetch, what they hold
    now."""

    number: Any
    last: Any
    tag: Any
    value: Any


class Names(NamedTuple):
    """The globals seen: ``G_`` codes, and modules and names as spans (offset, length, offset, length) of a
    text."""

    kind: Any
    text: Any
    span: Any


class Schema(NamedTuple):
    """Tables, schema nodes, the texts of keys, the row buffers (one memory, as int64 and as bytes), a work
    stack."""

    tables: Any
    nodes: Any
    key_pool: Any
    buffer: Any
    buffer8: Any
    work: Any


class TemplateArrays(NamedTuple):
    """Templates, their elements, literal bytes, and by table the bytes a template may begin with."""

    templates: Any
    elements: Any
    literals: Any
    first_byte: Any


class Row(NamedTuple):
    """Where one row of a table lies: its first scalar, the distance to the next column, its first vector
    byte."""

    scalars: Any
    stride: Any
    vectors: Any


def _make_pointer(typing_context: Any, array: Any) -> Any:
    """Where an array's elements begin."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    element_pointer: Any = cast(Any, types.CPointer)(array.dtype)
    return element_pointer(array), generate


pointer: Any = intrinsic(_make_pointer)


def _loader(bits: int, *, swapped: bool = False) -> Any:
    """Make the kernel that loads a little-endian (`swapped`: big-endian) number from any byte offset,
    zero-extended."""

    def load(typing_context: Any, pointer: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = builder.gep(arguments[0], [arguments[1]])
            number = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
            number = builder.bswap(number) if swapped else number
            return builder.zext(number, ir.IntType(64)) if bits < 64 else number

        return types.int64(pointer, types.int64), generate

    return intrinsic(load)


u16: Any = _loader(16)
u32: Any = _loader(32)
u64: Any = _loader(64)
float_bits: Any = _loader(64, swapped=True)


def _make_copy(typing_context: Any, target: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
    """Copy elements from one memory to another (memmove: loops would be compiled to several vectorised
    versions)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, to, data, start, count = arguments
        size = context.get_abi_sizeof(context.get_value_type(signature.args[0].dtype))
        memmove: Any = cgutils.raw_memmove
        memmove(builder, builder.gep(out, [to]), builder.gep(data, [start]), count, size)
        return context.get_dummy_value()

    return types.none(target, types.int64, source, types.int64, types.int64), generate


copy: Any = intrinsic(_make_copy)
