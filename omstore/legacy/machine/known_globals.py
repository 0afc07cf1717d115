"""What calling a known global gives. Nothing is called: numpy's, torch's and the standard library's are known."""

# ruff: noqa: SIM109 - numba compiles chained comparisons and plain loops to less code than `in` and `all`

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy.machine.arrays import Memory, Names
from omstore.legacy.machine.dtypes import dtype_code, item_size, scalar_value
from omstore.legacy.machine.heap import new_container, new_object
from omstore.legacy.machine.operands import scalar_bits, span
from omstore.legacy.machine.registers import E_CALL, E_DTYPE, E_TENSOR, E_TYPE, R_TOP
from omstore.legacy.machine.tags import (
    ARRAY,
    BYTES,
    DEQUE,
    DICT,
    DTYPE,
    ENCODED,
    G_BYTES,
    G_CLASS,
    G_DEQUE,
    G_DICT,
    G_DTYPE,
    G_ENCODE,
    G_FROMBUFFER,
    G_LIST,
    G_NAMESPACE,
    G_OPAQUE,
    G_PARAMETER,
    G_RECONSTRUCT,
    G_RECONSTRUCTOR,
    G_SCALAR,
    G_SET,
    G_STORAGE,
    G_TENSOR,
    G_TUPLE,
    GLOBAL,
    LIST,
    NONE,
    OBJ,
    OPAQUE,
    RAW,
    SET,
    STORAGE,
    TEXT,
    TUPLE,
)
from omstore.legacy.machine.tensors import tensor

__all__ = ["call", "container_tag"]


@inner_kernel
def _numpy_array(data: Any, memory: Memory, registers: Any, first: Any, count: Any, filled: Any) -> Any:
    """Make an empty array, or one of (data, dtype, shape, order); whether the arguments are such."""
    heap_tag, heap = memory
    top = registers[R_TOP]
    for i in range(4):
        heap_tag[top + i] = RAW
        heap[top + i] = 0
    heap_tag[top + 3] = NONE
    if filled:
        if (
            count < 4
            or heap_tag[first] != BYTES
            or heap_tag[first + 1] != DTYPE
            or heap_tag[first + 2] != TUPLE
            or heap_tag[first + 3] != TEXT
        ):
            return False
        heap[top] = heap[heap[first + 1]]
        heap_tag[top + 1] = TUPLE
        heap[top + 1] = heap[first + 2]
        start, length = span(data, heap[first + 3])
        heap[top + 2] = 1 if length == 1 and data[start] == 70 else 0  # F
        heap_tag[top + 3] = BYTES
        heap[top + 3] = heap[first]
    registers[R_TOP] = top + 4
    return True


@inner_kernel
def container_tag(kind: Any) -> Any:
    """The tag of what a standard container's class makes; 0 for other globals."""
    if kind == G_DICT:
        return np.int64(DICT)
    if kind == G_LIST:
        return np.int64(LIST)
    if kind == G_SET:
        return np.int64(SET)
    if kind == G_DEQUE:
        return np.int64(DEQUE)
    if kind == G_TUPLE:
        return np.int64(TUPLE)
    return np.int64(0)


@inner_kernel
def _call_container(memory: Memory, registers: Any, tag: Any, first: Any, count: Any, pc: Any) -> Any:
    """Address of what calling a standard container's class makes; -1 when it isn't understood."""
    heap_tag, heap = memory
    given = np.int64(heap_tag[first]) if count >= 1 else np.int64(NONE)
    if tag == DICT:
        if given != NONE and given != GLOBAL:  # defaultdict's factory
            return np.int64(-1)
    elif given == tag and given == TUPLE:
        return heap[first]
    elif given == LIST and tag != TUPLE:
        return heap[first]  # set([..]), deque([..]): the list's own storage serves
    elif given == LIST or (given == TUPLE and heap[heap[first]] > 0):
        return np.int64(-1)
    top = registers[R_TOP]
    registers[R_TOP] = new_container(memory, top, pc)
    if tag == TUPLE:
        registers[R_TOP] = top + 1
    return top


@inner_kernel
def call(
    data: Any, operand: Any, memory: Memory, names: Names, registers: Any, name: Any, arguments: Any, pc: Any
) -> Any:
    """What calling a known global gives: (error, tag, payload). Nothing is called."""
    heap_tag, heap = memory
    kind = names.kind[name]
    count = heap[arguments]
    first = arguments + 1
    given = np.int64(heap_tag[first]) if count >= 1 else np.int64(RAW)
    value = heap[first] if count >= 1 else np.int64(0)
    error = np.int64(0)
    tag = np.int64(NONE)
    result = np.int64(0)
    if kind == G_RECONSTRUCT or kind == G_FROMBUFFER:
        tag = np.int64(ARRAY)
        result = registers[R_TOP]
        if not _numpy_array(data, memory, registers, first, count, kind == G_FROMBUFFER):
            error = np.int64(E_TYPE)
    elif kind == G_SCALAR:
        code = np.int64(0)
        if count == 2 and given == DTYPE:
            code = heap[value]
            fits, bits = scalar_bits(
                data, np.int64(heap_tag[first + 1]), heap[first + 1], item_size(code), code & 1
            )
            if code != 0 and fits:
                tag, result = scalar_value(code, bits)
            else:
                error = np.int64(E_DTYPE)
        else:
            error = np.int64(E_TYPE)
    elif kind == G_DTYPE:
        code = np.int64(0)
        if given == TEXT:
            start, length = span(data, value)
            code = dtype_code(data, start, length)
        tag = np.int64(DTYPE)
        result = registers[R_TOP]
        heap_tag[result] = RAW
        heap[result] = code
        registers[R_TOP] = result + 1
    elif kind == G_ENCODE or kind == G_BYTES:
        result = value
        if given == TEXT:
            tag = np.int64(ENCODED)
        elif kind == G_BYTES and (given == BYTES or given == ENCODED):
            tag = given
        elif kind == G_ENCODE or count > 0:
            error = np.int64(E_TYPE)
    elif kind == G_RECONSTRUCTOR:
        if given == GLOBAL and names.kind[value] == G_CLASS:
            tag = np.int64(OBJ)
            result = new_object(memory, registers, value, np.int64(NONE), np.int64(0))
        else:
            error = np.int64(E_CALL)
    elif kind == G_NAMESPACE:
        tag = np.int64(OBJ)
        result = new_object(memory, registers, name, np.int64(TUPLE), arguments)
    elif kind == G_OPAQUE:
        tag = np.int64(OPAQUE)
        result = pc
    elif kind == G_STORAGE:
        tag = np.int64(STORAGE)
        result = value
        if given != BYTES:
            error = np.int64(E_TENSOR)
    elif kind == G_TENSOR:
        tag = np.int64(ARRAY)
        result = registers[R_TOP]
        if count < 4 or not tensor(data, operand, memory, registers, first):
            error = np.int64(E_TENSOR)
    elif kind == G_PARAMETER:
        tag = np.int64(ARRAY)
        result = value
        if given != ARRAY:
            error = np.int64(E_TENSOR)
    else:
        tag = container_tag(kind)
        if tag != 0:
            result = _call_container(memory, registers, tag, first, count, pc)
        if tag == 0 or result < 0:
            error = np.int64(E_CALL)
    return error, tag, result
