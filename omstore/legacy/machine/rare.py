"""Every opcode that the loop doesn't run itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy import opcodes as op
from omstore.legacy.machine.arrays import Marks, Memory, Names, Schema, Stacks
from omstore.legacy.machine.filling import add_items, build, set_items
from omstore.legacy.machine.making import find_global, marked_container, new_instance, reduce, unusual_tuple
from omstore.legacy.machine.registers import (
    E_MARK,
    E_MEMO,
    E_OPCODE,
    E_TYPE,
    E_UNDERFLOW,
    EV_MARKS,
    EV_STOP,
    R_AFTER,
    R_BASE,
    R_MARKS,
    R_SP,
)
from omstore.legacy.machine.stack import close, fail
from omstore.legacy.machine.tags import ROWS

__all__ = ["run_rare"]


@inner_kernel
def _pop(code: Any, registers: Any, stacks: Stacks) -> Any:
    """POP, POP_MARK."""
    sp = registers[R_SP]
    if code == op.POP and sp > registers[R_BASE]:
        if stacks.tag[sp - 1] == ROWS:
            return fail(registers, np.int64(E_TYPE))
        registers[R_SP] = sp - 1
        return np.int64(0)
    if registers[R_MARKS] == 0:
        return fail(registers, np.int64(E_UNDERFLOW if code == op.POP else E_MARK))
    close(registers, registers[R_BASE])
    return np.int64(0)


@inner_kernel
def run_rare(
    code: Any,
    pc: Any,
    data: Any,
    operand: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    names: Names,
    schema: Schema,
) -> Any:
    """Run an opcode that isn't worth a place in the loop, or say why a common one can't be run; 0, or an event."""
    sp = registers[R_SP]
    registers[R_AFTER] = pc + 1
    if code == op.SETITEMS or code == op.SETITEM:
        return set_items(code, data, registers, stacks, marks, memory, schema)
    if code == op.BUILD:
        return build(data, registers, stacks, marks, memory)
    if code == op.NEWOBJ or code == op.NEWOBJ_EX:
        return new_instance(code, pc, registers, stacks, memory, names)
    if code == op.REDUCE:
        return reduce(pc, data, operand, registers, stacks, memory, names)
    if code == op.APPENDS or code == op.APPEND or code == op.ADDITEMS:
        return add_items(code, pc, data, registers, stacks, marks, memory, schema)
    if code == op.STACK_GLOBAL or code == op.GLOBAL:
        return find_global(code, pc, data, registers, stacks, names)
    if code == op.LIST or code == op.DICT or code == op.FROZENSET:
        return marked_container(code, pc, registers, stacks, memory)
    if code == op.POP or code == op.POP_MARK:
        return _pop(code, registers, stacks)
    if code == op.PROTO or code == op.FRAME or code == op.READONLY_BUFFER:
        registers[R_AFTER] = pc + 1 + np.int64(operand[code])
        return np.int64(0)
    if code == op.DUP:
        if sp <= registers[R_BASE] or stacks.tag[sp - 1] == ROWS:
            return fail(registers, np.int64(E_UNDERFLOW))
        stacks.tag[sp] = stacks.tag[sp - 1]
        stacks.value[sp] = stacks.value[sp - 1]
        registers[R_SP] = sp + 1
        return np.int64(0)
    if code == op.STOP:
        if sp != 1 or registers[R_MARKS] != 0:
            return fail(registers, np.int64(E_UNDERFLOW))
        return np.int64(EV_STOP)
    if code == op.MARK:
        return np.int64(EV_MARKS)
    if code == op.BINGET or code == op.LONG_BINGET:
        return fail(registers, np.int64(E_MEMO))
    if code == op.MEMOIZE or code == op.BINPUT or code == op.LONG_BINPUT:
        return fail(registers, np.int64(E_UNDERFLOW))
    if (
        code == op.EMPTY_TUPLE
        or code == op.TUPLE1
        or code == op.TUPLE2
        or code == op.TUPLE3
        or code == op.TUPLE
    ):
        return unusual_tuple(code, pc, data, registers, stacks, marks, memory, schema)
    return fail(registers, np.int64(E_OPCODE))
