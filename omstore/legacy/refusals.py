"""Why a pickle is refused: the machine's error codes and misfits as errors that say what, where and what to
do."""

from __future__ import annotations

from typing import Final

from omstore.errors import (
    BadDataError,
    LegacyError,
    TruncatedPickleError,
    UnsafePickleError,
    UnsupportedPickleError,
)
from omstore.legacy.globals import global_kind
from omstore.legacy.machine import plan, registers, tags
from omstore.legacy.schema import TableSchema
from omstore.legacy.shapes import Shape, shape_of
from omstore.legacy.state import State
from omstore.legacy.values import dtype_of

__all__ = ["link_error", "machine_error", "misfit_error"]

_REASONS: Final = {
    registers.E_UNDERFLOW: "an opcode finds too few values",
    registers.E_MARK: "an opcode finds no mark",
    registers.E_MEMO: "a memo entry is fetched that was never stored",
    registers.E_TYPE: "an opcode finds values of the wrong kind",
    registers.E_OPCODE: "an opcode isn't supported",
}


def machine_error(state: State) -> LegacyError:
    """The error for what the machine found wrong with the opcode it's at."""
    code = state.register(registers.R_ERROR)
    what = f"{state.name}: byte {state.offset:,}"
    if code in (registers.E_CALL, registers.E_NEWOBJ):
        return _call_error(state, what, code)
    if code == registers.E_LINK:
        return link_error(state)
    if code == registers.E_TENSOR:
        return UnsupportedPickleError(
            f"{what}: a torch tensor that isn't a contiguous, dense CPU tensor of a plain number type",
            "Export numpy arrays, or tensor.contiguous().cpu().",
        )
    if code == registers.E_DTYPE:
        return UnsupportedPickleError(
            f"{what}: a numpy value of a dtype that isn't bool, integer or float up to 64 bits",
            "Export such arrays with a plain number dtype.",
        )
    return TruncatedPickleError(
        f"{what}: {_REASONS.get(code, 'the pickle makes no sense')}; the file is damaged or not an export",
        "Copy or export the file again.",
    )


def _call_error(state: State, what: str, code: int) -> UnsafePickleError:
    module, name = state.classes[state.register(registers.R_VALUE)]
    if global_kind(module, name) == tags.G_CLASS and code == registers.E_CALL:
        return UnsafePickleError(
            f"{what}: unpickling would call {module}.{name}, which omstore doesn't execute",
            "If it's a class of yours (an enum, attrs, or one with __reduce__), export its plain fields "
            "instead.",
        )
    return UnsafePickleError(
        f"{what}: unpickling would call {module}.{name}; omstore executes nothing from a pickle",
        "Don't unpickle this file anywhere unless you trust where it comes from; export plain data.",
    )


def link_error(state: State) -> BadDataError:
    """The error for a list of an adjacency that isn't one of edges."""
    return BadDataError(
        f"{state.name}: near byte {state.offset:,} a list of the adjacency holds something other than "
        "records of one shape",
        "Every list of edges must hold edges of the same shape only.",
    )


def misfit_error(state: State) -> BadDataError:
    """The error for a value (R_TAG, R_VALUE) that doesn't fit its schema node (R_NODE)."""
    node = state.register(registers.R_NODE)
    tag, value = state.register(registers.R_TAG), state.register(registers.R_VALUE)
    info = state.tables.infos[node]
    found = state.heap.value(tag, value)
    text = repr(found) if tag < tags.FIRST_POINTER else _describe(shape_of(found))
    where = "".join(f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in info.path)
    record = f"record {state.tables.num_rows(info.table):,} of {_place(state.tables.schemas[info.table])}"
    return BadDataError(
        f"{state.name}: {record} has another shape than those before: "
        f"{where.lstrip('.') or 'the record itself'} is {text[:120]}, expected {_expected(state, node)} "
        f"(near byte {state.offset:,})",
        "All records must have the same fields, of the same kinds and lengths.",
    )


def _expected(state: State, node: int) -> str:
    fields = state.tables.nodes[node]
    kind, size = int(fields[plan.N_KIND]), int(fields[plan.N_SIZE])
    code, children = int(fields[plan.N_CODE]), int(fields[plan.N_CHILDREN])
    if kind == plan.K_ARRAY:
        dims = fields[plan.N_DIM0 : plan.N_DIM0 + int(fields[plan.N_NDIM])].tolist()
        return f"an array of shape {tuple(dims)} and dtype {dtype_of(code)}"
    if kind == plan.K_OBJ:
        return f"{state.class_name(code)} with the same {children} fields"
    return {
        plan.K_NONE: "None",
        plan.K_INT: "an integer",
        plan.K_FLOAT: "a number",
        plan.K_BOOL: "a bool",
        plan.K_INTS: f"{size} integers",
        plan.K_FLOATS: f"{size} numbers",
        plan.K_BYTES: f"{size} bytes",
        plan.K_SEQ: f"{children} values",
        plan.K_DICT: f"a dict with the same {children} keys",
    }.get(kind, "something else")


def _place(schema: TableSchema) -> str:
    return ".".join(str(step) for step in schema.path) or f"the {schema.container}"


def _describe(shape: Shape) -> str:
    if shape.kind in (plan.K_INTS, plan.K_FLOATS):
        return f"a {shape.origin} of {shape.size} numbers"
    if shape.kind == plan.K_ARRAY:
        return f"an array of shape {shape.dims} and dtype {dtype_of(shape.code)}"
    if shape.kind == plan.K_BYTES:
        return f"{shape.size} bytes"
    if shape.children:
        return f"a {shape.origin} with {', '.join(str(step) for step, _ in shape.children)}"
    return shape.reason or f"a {shape.origin}"
