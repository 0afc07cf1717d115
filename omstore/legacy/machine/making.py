"""Opcodes that put a new value on the stack, the rarer ones: tuples, containers, instances, globals, calls."""

# ruff: noqa: SIM109 - numba compiles chained comparisons and plain loops to less code than `in` and `all`

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy import opcodes as op
from omstore.legacy.machine.arrays import Marks, Memory, Names, Schema, Stacks
from omstore.legacy.machine.batches import settle_all
from omstore.legacy.machine.heap import add_chunk, need_heap, new_container, new_object
from omstore.legacy.machine.known_globals import call, container_tag
from omstore.legacy.machine.operands import line_end, same_bytes, span
from omstore.legacy.machine.registers import (
    E_MARK,
    E_NEWOBJ,
    E_TYPE,
    E_UNDERFLOW,
    EV_COLLECT,
    EV_GLOBAL,
    R_ADDRESS,
    R_AFTER,
    R_BASE,
    R_MARKS,
    R_NODE,
    R_NUM_GLOBALS,
    R_SP,
    R_TAG,
    R_TOP,
    R_VALUE,
    ROOM,
)
from omstore.legacy.machine.stack import close, fail, has_rows
from omstore.legacy.machine.tags import (
    BIGINT,
    C_COUNT,
    C_ROW,
    C_ROWS,
    C_TABLE,
    DICT,
    G_CLASS,
    G_NAMESPACE,
    GLOBAL,
    LIST,
    OBJ,
    SET,
    TEXT,
    TUPLE,
)

__all__ = ["find_global", "marked_container", "new_instance", "reduce", "unusual_tuple"]


@inner_kernel
def _long_tuple(
    pc: Any,
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """TUPLE of so many items that they have become rows: what's left of them becomes rows too."""
    base = registers[R_BASE]
    table = marks.over[registers[R_MARKS] - 1] - 1
    event = settle_all(data, stacks, base, memory, schema, table, registers, np.int64(E_TYPE))
    if event != 0:
        return event
    address = registers[R_TOP]
    registers[R_TOP] = new_container(memory, address, pc)
    memory.value[address + C_TABLE] = table + 1
    if registers[R_SP] > base:
        memory.value[address + C_ROW] = stacks.value[base]
        memory.value[address + C_ROWS] = stacks.count[base]
        memory.value[address + C_COUNT] = stacks.count[base]
    stacks.tag[base] = LIST
    stacks.value[base] = address
    close(registers, base + 1)
    return np.int64(0)


@inner_kernel
def unusual_tuple(
    code: Any,
    pc: Any,
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """A tuple that the loop couldn't make at once: it's huge, the heap is full, or something is wrong."""
    base = registers[R_BASE]
    count = code - (op.TUPLE1 - 1)
    if code == op.EMPTY_TUPLE:
        count = np.int64(0)
    elif code == op.TUPLE:
        if registers[R_MARKS] == 0:
            return fail(registers, np.int64(E_MARK))
        if marks.over[registers[R_MARKS] - 1] > 0:
            return _long_tuple(pc, data, registers, stacks, marks, memory, schema)
        count = registers[R_SP] - base
    if registers[R_SP] - count < base:
        return fail(registers, np.int64(E_UNDERFLOW))
    if need_heap(registers, count + ROOM):
        return np.int64(EV_COLLECT)
    return fail(registers, np.int64(E_TYPE))


@inner_kernel
def marked_container(code: Any, pc: Any, registers: Any, stacks: Stacks, memory: Memory) -> Any:
    """LIST, DICT, FROZENSET: made from the items above the mark."""
    if registers[R_MARKS] == 0:
        return fail(registers, np.int64(E_MARK))
    base = registers[R_BASE]
    sp = registers[R_SP]
    count = sp - base
    if code == op.DICT and count % 2 != 0:
        return fail(registers, np.int64(E_UNDERFLOW))
    if need_heap(registers, count + 2 * ROOM):
        return np.int64(EV_COLLECT)
    if has_rows(stacks, base, sp):
        return fail(registers, np.int64(E_TYPE))
    address = registers[R_TOP]
    registers[R_TOP] = new_container(memory, address, pc)
    if count > 0:
        add_chunk(memory, registers, address, stacks, base, count)
    memory.value[address + C_COUNT] = count // 2 if code == op.DICT else count
    stacks.tag[base] = LIST if code == op.LIST else (DICT if code == op.DICT else SET)
    stacks.value[base] = address
    close(registers, base + 1)
    return np.int64(0)


@inner_kernel
def new_instance(code: Any, pc: Any, registers: Any, stacks: Stacks, memory: Memory, names: Names) -> Any:
    """NEWOBJ, NEWOBJ_EX."""
    sp = registers[R_SP]
    start = sp - 2 if code == op.NEWOBJ else sp - 3
    if start < registers[R_BASE]:
        return fail(registers, np.int64(E_UNDERFLOW))
    if stacks.tag[start] != GLOBAL or stacks.tag[start + 1] != TUPLE:
        return fail(registers, np.int64(E_TYPE))
    name = stacks.value[start]
    kind = names.kind[name]
    tag = container_tag(kind)
    registers[R_VALUE] = name
    if code == op.NEWOBJ_EX and (
        stacks.tag[sp - 1] != DICT or memory.value[stacks.value[sp - 1] + C_COUNT] != 0
    ):
        return fail(registers, np.int64(E_NEWOBJ))
    if kind == G_CLASS or kind == G_NAMESPACE:
        stacks.tag[start] = OBJ
        stacks.value[start] = new_object(memory, registers, name, np.int64(TUPLE), stacks.value[start + 1])
    elif tag != 0 and tag != TUPLE:
        # A plain standard container made by its class's __new__: filled by the opcodes that follow.
        stacks.tag[start] = tag
        stacks.value[start] = registers[R_TOP]
        registers[R_TOP] = new_container(memory, registers[R_TOP], pc)
    else:
        return fail(registers, np.int64(E_NEWOBJ))
    registers[R_SP] = start + 1
    return np.int64(0)


@inner_kernel
def reduce(
    pc: Any, data: Any, operand: Any, registers: Any, stacks: Stacks, memory: Memory, names: Names
) -> Any:
    """REDUCE."""
    sp = registers[R_SP]
    if sp - 2 < registers[R_BASE]:
        return fail(registers, np.int64(E_UNDERFLOW))
    if stacks.tag[sp - 2] != GLOBAL or stacks.tag[sp - 1] != TUPLE:
        return fail(registers, np.int64(E_TYPE))
    name = stacks.value[sp - 2]
    error, tag, result = call(data, operand, memory, names, registers, name, stacks.value[sp - 1], pc)
    if error != 0:
        registers[R_VALUE] = name
        return fail(registers, error)
    stacks.tag[sp - 2] = tag
    stacks.value[sp - 2] = pc if tag == BIGINT else result
    registers[R_SP] = sp - 1
    return np.int64(0)


@inner_kernel
def find_global(code: Any, pc: Any, data: Any, registers: Any, stacks: Stacks, names: Names) -> Any:
    """STACK_GLOBAL, GLOBAL; R_AFTER is the offset behind."""
    sp = registers[R_SP]
    if code == op.STACK_GLOBAL:
        if sp - 2 < registers[R_BASE]:
            return fail(registers, np.int64(E_UNDERFLOW))
        if stacks.tag[sp - 2] != TEXT or stacks.tag[sp - 1] != TEXT:
            return fail(registers, np.int64(E_TYPE))
        module, module_length = span(data, stacks.value[sp - 2])
        name, name_length = span(data, stacks.value[sp - 1])
        sp -= 2
    else:
        module = pc + 1
        module_length = line_end(data, module) - module
        name = module + module_length + 1
        name_length = line_end(data, name) - name
        registers[R_AFTER] = name + name_length + 1
    for g in range(registers[R_NUM_GLOBALS]):
        s = g * 4
        if (
            names.span[s + 1] == module_length
            and names.span[s + 3] == name_length
            and same_bytes(data, module, names.text, names.span[s], module_length)
            and same_bytes(data, name, names.text, names.span[s + 2], name_length)
        ):
            stacks.tag[sp] = GLOBAL
            stacks.value[sp] = g
            registers[R_SP] = sp + 1
            return np.int64(0)
    registers[R_ADDRESS] = module
    registers[R_TAG] = module_length
    registers[R_NODE] = name
    registers[R_VALUE] = name_length
    return np.int64(EV_GLOBAL)
