"""Opcodes that give a value on the stack what belongs to it: items to a container, state to an instance."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy import opcodes as op
from omstore.legacy.machine.arrays import Marks, Memory, Schema, Stacks
from omstore.legacy.machine.batches import convert_items, convert_links, full_or_misfit, is_record, settle_all
from omstore.legacy.machine.heap import add_chunk, keep_all, need_heap
from omstore.legacy.machine.operands import span
from omstore.legacy.machine.plan import T_GENERAL, T_LEARN, T_LINK, TABLE_FIELDS
from omstore.legacy.machine.registers import (
    BATCH,
    E_DTYPE,
    E_LINK,
    E_MARK,
    E_TYPE,
    E_UNDERFLOW,
    EV_BIG,
    EV_COLLECT,
    EV_LEARN,
    LEARN,
    R_ADDRESS,
    R_BASE,
    R_LOOSE,
    R_MARKS,
    R_NODE,
    R_PROGRESS,
    R_SP,
    R_TABLE,
    R_TAG,
    R_VALUE,
    ROOM,
)
from omstore.legacy.machine.stack import close, fail, has_rows, owner, rewind
from omstore.legacy.machine.tags import (
    ARRAY,
    BYTES,
    C_COUNT,
    C_MADE,
    C_ROW,
    C_ROWS,
    C_TABLE,
    DEQUE,
    DICT,
    DTYPE,
    ENCODED,
    LIST,
    OBJ,
    OPAQUE,
    ROWS,
    SET,
    TEXT,
    TUPLE,
)

__all__ = ["add_items", "build", "set_items"]


@inner_kernel
def _ask_for_template(registers: Any, tables: Any, table: Any, start: Any, stop: Any) -> Any:
    """The event that lets Python learn from the records between two offsets, when enough were read without;
    else 0."""
    t = table * TABLE_FIELDS
    if tables[t + T_LEARN] == 0 or tables[t + T_GENERAL] < LEARN:
        return np.int64(0)
    registers[R_TABLE] = table
    registers[R_ADDRESS] = start
    registers[R_VALUE] = stop
    return np.int64(EV_LEARN)


@inner_kernel
def _holder(single: Any, registers: Any, marks: Marks) -> Any:
    """Stack position of the container that takes the topmost `single` values, or (0) those above the innermost
    mark; -1 when there is none, -2 when there is no mark."""
    if single > 0:
        holder = registers[R_SP] - 1 - single
        return holder if holder >= registers[R_BASE] else np.int64(-1)
    return owner(registers, marks) if registers[R_MARKS] > 0 else np.int64(-2)


@inner_kernel
def _add_values(registers: Any, stacks: Stacks, memory: Memory, address: Any, tag: Any, start: Any) -> Any:
    """Add the stack's values from a height on to a container that is no table: 0, or an event."""
    heap = memory.value
    count = registers[R_SP] - start
    if heap[address + C_COUNT] >= BATCH and heap[address + C_TABLE] == 0:
        registers[R_ADDRESS] = address
        registers[R_TAG] = tag
        return np.int64(EV_BIG)
    if need_heap(registers, count + ROOM):
        return np.int64(EV_COLLECT)
    if count > 0:
        if tag != DICT and has_rows(stacks, start, registers[R_SP]):
            return fail(registers, np.int64(E_LINK))
        add_chunk(memory, registers, address, stacks, start, count)
        heap[address + C_COUNT] += count // 2 if tag == DICT else count
    return np.int64(0)


@inner_kernel
def _drop(single: Any, registers: Any, start: Any) -> Any:
    """Take the values that a container has got off the stack, and the mark below them if there is one."""
    if single > 0:
        registers[R_SP] = start
    else:
        close(registers, start)


@inner_kernel
def _table_of(
    registers: Any, stacks: Stacks, memory: Memory, tables: Any, address: Any, tag: Any, start: Any
) -> Any:
    """Table that a container's new items go to, its own or that of an adjacency's records; below 0: none."""
    table = memory.value[address + C_TABLE] - 1
    loose = registers[R_LOOSE] - 1
    if table >= 0 or loose < 0 or tag != LIST or registers[R_SP] == start:
        return table
    for i in range(start, registers[R_SP]):
        if stacks.tag[i] != ROWS and not is_record(
            memory, tables, loose * TABLE_FIELDS, np.int64(stacks.tag[i]), stacks.value[i]
        ):
            return np.int64(-1)
    return loose


@inner_kernel
def add_items(
    code: Any,
    pc: Any,
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """APPENDS, ADDITEMS, APPEND."""
    heap = memory.value
    tables = schema.tables
    single = np.int64(code == op.APPEND)
    holder = _holder(single, registers, marks)
    if holder < 0:
        return fail(registers, np.int64(E_MARK if holder == -2 else E_UNDERFLOW))
    tag = np.int64(stacks.tag[holder])
    if tag != LIST and tag != DEQUE and tag != SET:
        return fail(registers, np.int64(E_TYPE))
    address = stacks.value[holder]
    start = holder + 1
    table = _table_of(registers, stacks, memory, tables, address, tag, start)
    if table < 0:
        event = _add_values(registers, stacks, memory, address, tag, start)
        if event == 0:
            _drop(single, registers, start)
            keep_all(registers, marks, address)
        return event
    event = settle_all(data, stacks, start, memory, schema, table, registers, np.int64(E_LINK))
    if event != 0:
        return event
    if registers[R_SP] > start:
        if heap[address + C_ROWS] == 0:
            heap[address + C_ROW] = stacks.value[start]
        elif (
            table == registers[R_LOOSE] - 1
            and heap[address + C_ROW] + heap[address + C_ROWS] != stacks.value[start]
        ):
            return fail(registers, np.int64(E_LINK))  # a list that grew before and after other lists
        heap[address + C_ROWS] += stacks.count[start]
        heap[address + C_COUNT] += stacks.count[start]
    if single == 0:
        event = _ask_for_template(registers, tables, table, marks.at[registers[R_MARKS] - 1] + 1, pc)
        if event == 0 and registers[R_SP] > start and stacks.count[start] >= LEARN:
            tables[table * TABLE_FIELDS + T_GENERAL] = 0  # templates have read most of the batch
        rewind(registers, marks)
    elif heap[address + C_COUNT] == 1:
        event = _ask_for_template(registers, tables, table, heap[address + C_MADE] + 1, pc)
    _drop(single, registers, start)
    return event


@inner_kernel
def set_items(
    code: Any,
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """SETITEMS, SETITEM."""
    heap = memory.value
    sp = registers[R_SP]
    single = np.int64(2 if code == op.SETITEM else 0)
    holder = _holder(single, registers, marks)
    start = holder + 1
    if holder < 0 or (sp - start) % 2 != 0:
        return fail(registers, np.int64(E_MARK if holder == -2 else E_UNDERFLOW))
    if stacks.tag[holder] != DICT:
        return fail(registers, np.int64(E_TYPE))
    address = stacks.value[holder]
    table = heap[address + C_TABLE] - 1
    if table < 0:
        event = _add_values(registers, stacks, memory, address, np.int64(DICT), start)
        if event == 0:
            _drop(single, registers, start)
            keep_all(registers, marks, address)
        return event
    i = start + registers[R_PROGRESS]
    if schema.tables[table * TABLE_FIELDS + T_LINK] > 0:
        done = convert_links(data, stacks.tag, stacks.value, i, sp - i, memory, schema, table, registers)
    else:
        done = convert_items(
            data, stacks.tag, stacks.value, i, sp - i, np.int64(2), memory, schema, table, registers
        )
    heap[address + C_COUNT] += done // 2
    heap[address + C_ROWS] += done // 2
    if i + done < sp:
        registers[R_PROGRESS] = i + done - start
        return fail(registers, np.int64(E_LINK)) if registers[R_NODE] == -2 else full_or_misfit(registers)
    registers[R_PROGRESS] = 0
    if single == 0:
        rewind(registers, marks)
    _drop(single, registers, start)
    return np.int64(0)


@inner_kernel
def build(data: Any, registers: Any, stacks: Stacks, marks: Marks, memory: Memory) -> Any:
    """BUILD."""
    heap_tag, heap = memory
    sp = registers[R_SP]
    if sp - 2 < registers[R_BASE]:
        return fail(registers, np.int64(E_UNDERFLOW))
    tag = stacks.tag[sp - 2]
    address = stacks.value[sp - 2]
    state_tag = stacks.tag[sp - 1]
    state = stacks.value[sp - 1]
    if tag == OBJ and state_tag != ROWS:
        heap_tag[address + 2] = state_tag
        heap[address + 2] = state
        keep_all(registers, marks, address)
    elif tag == ARRAY:
        if (
            state_tag != TUPLE
            or heap[state] != 5
            or heap_tag[state + 2] != TUPLE
            or heap_tag[state + 3] != DTYPE
        ):
            return fail(registers, np.int64(E_TYPE))
        if heap_tag[state + 5] != BYTES and heap_tag[state + 5] != ENCODED:
            return fail(registers, np.int64(E_DTYPE))
        heap[address] = heap[heap[state + 3]]
        heap_tag[address + 1] = TUPLE
        heap[address + 1] = heap[state + 2]
        heap[address + 2] = heap[state + 4]
        heap_tag[address + 3] = heap_tag[state + 5]
        heap[address + 3] = heap[state + 5]
        keep_all(registers, marks, address)
    elif tag == DTYPE:
        if state_tag == TUPLE and heap[state] >= 2 and heap_tag[state + 2] == TEXT:
            start, length = span(data, heap[state + 2])
            if length == 1 and data[start] == 62 and heap[address] != 0:  # >
                heap[address] |= 1
    elif tag != OPAQUE and tag != DICT and tag != LIST and tag != DEQUE and tag != SET:
        return fail(registers, np.int64(E_TYPE))
    # Of the others, these are attributes of a subclass or of something that nobody needs.
    registers[R_SP] = sp - 1
    return np.int64(0)
