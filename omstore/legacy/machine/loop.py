"""The loop over opcodes: the common ones are run in it, on local variables."""

# ruff: noqa: SIM109 - numba compiles chained comparisons and plain loops to less code than `in` and `all`

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy import opcodes as op
from omstore.legacy.machine.arrays import (
    Marks,
    Memory,
    Memos,
    Names,
    Schema,
    Stacks,
    TemplateArrays,
    float_bits,
    u16,
    u32,
    u64,
)
from omstore.legacy.machine.batches import overflow
from omstore.legacy.machine.heap import new_container
from omstore.legacy.machine.matching import read_rows
from omstore.legacy.machine.operands import long, signed
from omstore.legacy.machine.plan import T_ANYWHERE, T_TAG, TABLE_FIELDS
from omstore.legacy.machine.rare import run_rare
from omstore.legacy.machine.registers import (
    EV_COLLECT,
    EV_LEARN,
    EV_LIMIT,
    EV_STACK,
    NEVER,
    OVERFLOW,
    R_ADDRESS,
    R_AFTER,
    R_BASE,
    R_CURSOR,
    R_FREE_MARK,
    R_HEAP_SIZE,
    R_HIGH,
    R_LIMIT,
    R_LOOSE,
    R_MARK_SIZE,
    R_MARKS,
    R_MEMO,
    R_MEMO_SIZE,
    R_PC,
    R_SP,
    R_STACK_SIZE,
    R_TOP,
    ROOM,
)
from omstore.legacy.machine.stack import memo_slot
from omstore.legacy.machine.tags import (
    BIGINT,
    BOOL,
    BYTES,
    C_TABLE,
    DEQUE,
    DICT,
    FIRST_POINTER,
    FLOAT,
    INT,
    LIST,
    NONE,
    RAW,
    ROWS,
    SET,
    TEXT,
    TUPLE,
)

__all__ = ["run_opcodes"]


@inner_kernel
def run_opcodes(
    data: Any,
    operand: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    memos: Memos,
    names: Names,
    schema: Schema,
    templates: TemplateArrays,
) -> Any:
    """Run opcodes until one of the events; the registers say where and why.

    What the common opcodes change is in local variables; for everything else they are written to the
    registers, and read again. That is why they are all in one function.
    """
    stack_tag, stack, _counts = stacks
    heap_tag, heap = memory
    tables = schema.tables
    limit = registers[R_LIMIT]
    heap_room = registers[R_HEAP_SIZE] - ROOM
    stack_room = registers[R_STACK_SIZE] - 4
    mark_room = registers[R_MARK_SIZE]
    memo_size = registers[R_MEMO_SIZE]
    loose = registers[R_LOOSE] - 1
    anywhere = loose >= 0 and tables[loose * TABLE_FIELDS + T_ANYWHERE] != 0
    pc = sp = top = counter = cursor = high = marked = base = over = np.int64(0)
    begins = np.int64(-1)  # the table whose records may follow the innermost mark
    frame = np.int64(-1)  # number of marks that `base`, `over` and `begins` are for
    untried = np.int64(-1)  # where the templates were found not to match
    stale = True
    while True:
        if stale:
            stale = False
            pc = registers[R_PC]
            sp = registers[R_SP]
            top = registers[R_TOP]
            counter = registers[R_MEMO]
            cursor = registers[R_CURSOR]
            high = registers[R_HIGH]
            marked = registers[R_MARKS]
            frame = np.int64(-1)
        if marked != frame:
            frame = marked
            if registers[R_FREE_MARK] > marked:
                registers[R_FREE_MARK] = marked
            base = np.int64(0)
            begins = np.int64(-1)
            over = np.int64(NEVER)
            if marked > 0:
                base = marks.height[marked - 1]
                begins = marks.table[marked - 1] - 1
                if marked > registers[R_FREE_MARK]:
                    over = base + OVERFLOW
        after = pc
        code = np.int64(-1)
        context = np.int64(-1)
        if pc < limit and top <= heap_room and sp <= stack_room:
            code = np.int64(data[pc])
            # Templates are tried where an item of a table can begin: behind the mark, rows, or what looks
            # like a record.
            if begins >= 0:
                if (
                    sp == base
                    or stack_tag[sp - 1] == ROWS
                    or stack_tag[sp - 1] == tables[begins * TABLE_FIELDS + T_TAG]
                ):
                    context = begins
            elif anywhere and sp > base and stack_tag[sp - 1] == LIST:
                context = loose
            if context >= 0 and (templates.first_byte[context * 256 + code] == 0 or pc == untried):
                context = np.int64(-1)
        if code >= 0 and context < 0 and sp < over:
            if code == op.MEMOIZE or code == op.BINPUT or code == op.LONG_BINPUT:
                if sp > base:
                    after = pc + 1
                    if code != op.MEMOIZE:
                        counter = np.int64(data[pc + 1]) if code == op.BINPUT else u32(data, pc + 1)
                        after = pc + 2 if code == op.BINPUT else pc + 5
                        while cursor < memo_size and memos.number[cursor] < counter:
                            cursor += 1
                    if cursor < memo_size and memos.number[cursor] == counter:
                        tag = np.int64(stack_tag[sp - 1])
                        if memos.last[cursor] > pc and tag != ROWS:
                            memos.tag[cursor] = tag
                            memos.value[cursor] = stack[sp - 1]
                            if tag >= FIRST_POINTER and stack[sp - 1] > high:
                                high = stack[sp - 1]
                        cursor += 1
                    counter += 1
            elif code == op.BINGET or code == op.LONG_BINGET:
                number = np.int64(data[pc + 1]) if code == op.BINGET else u32(data, pc + 1)
                slot = memo_slot(memos.number, memo_size, number)
                if slot >= 0 and memos.tag[slot] != 0:
                    stack_tag[sp] = memos.tag[slot]
                    stack[sp] = memos.value[slot]
                    sp += 1
                    if memos.last[slot] <= pc:
                        memos.tag[slot] = 0
                    after = pc + 2 if code == op.BINGET else pc + 5
            elif code == op.BININT1:
                stack_tag[sp] = INT
                stack[sp] = data[pc + 1]
                sp += 1
                after = pc + 2
            elif code == op.BINFLOAT:
                stack_tag[sp] = FLOAT
                stack[sp] = float_bits(data, pc + 1)
                sp += 1
                after = pc + 9
            elif code == op.MARK:
                if marked < mark_room:
                    table = np.int64(0)
                    if sp > base:
                        tag = np.int64(stack_tag[sp - 1])
                        if tag == LIST or tag == DEQUE or tag == SET:
                            table = heap[stack[sp - 1] + C_TABLE]
                            if table <= 0:
                                table = loose + 1 if tag == LIST else np.int64(0)
                    marks.height[marked] = sp
                    marks.heap[marked] = top
                    marks.table[marked] = table
                    marks.over[marked] = 0
                    marks.at[marked] = pc
                    marked += 1
                    after = pc + 1
            elif code == op.SHORT_BINUNICODE or code == op.SHORT_BINBYTES:
                stack_tag[sp] = TEXT if code == op.SHORT_BINUNICODE else BYTES
                stack[sp] = pc
                sp += 1
                after = pc + 2 + np.int64(data[pc + 1])
            elif code == op.BINUNICODE or code == op.BINBYTES:
                stack_tag[sp] = TEXT if code == op.BINUNICODE else BYTES
                stack[sp] = pc
                sp += 1
                after = pc + 5 + u32(data, pc + 1)
            elif code == op.BINUNICODE8 or code == op.BINBYTES8 or code == op.BYTEARRAY8:
                stack_tag[sp] = TEXT if code == op.BINUNICODE8 else BYTES
                stack[sp] = pc
                sp += 1
                after = pc + 9 + u64(data, pc + 1)
            elif code == op.BININT2:
                stack_tag[sp] = INT
                stack[sp] = u16(data, pc + 1)
                sp += 1
                after = pc + 3
            elif code == op.BININT:
                stack_tag[sp] = INT
                stack[sp] = signed(u32(data, pc + 1))
                sp += 1
                after = pc + 5
            elif code == op.NEWTRUE or code == op.NEWFALSE:
                stack_tag[sp] = BOOL
                stack[sp] = op.NEWFALSE - code
                sp += 1
                after = pc + 1
            elif code == op.NONE:
                stack_tag[sp] = NONE
                stack[sp] = 0
                sp += 1
                after = pc + 1
            elif code == op.LONG1 or code == op.LONG4:
                start = pc + 2 if code == op.LONG1 else pc + 5
                count = np.int64(data[pc + 1]) if code == op.LONG1 else u32(data, pc + 1)
                stack_tag[sp] = BIGINT if count > 8 else INT
                stack[sp] = pc if count > 8 else long(data, start, count)
                sp += 1
                after = start + count
            elif code == op.EMPTY_LIST or code == op.EMPTY_DICT or code == op.EMPTY_SET:
                stack_tag[sp] = LIST if code == op.EMPTY_LIST else (DICT if code == op.EMPTY_DICT else SET)
                stack[sp] = top
                top = new_container(memory, top, pc)
                sp += 1
                after = pc + 1
            elif (
                code == op.EMPTY_TUPLE
                or code == op.TUPLE1
                or code == op.TUPLE2
                or code == op.TUPLE3
                or (code == op.TUPLE and marked > 0 and marks.over[marked - 1] == 0)
            ):
                count = np.int64(0) if code == op.EMPTY_TUPLE else code - (op.TUPLE1 - 1)
                if code == op.TUPLE:
                    count = sp - base
                start = sp - count
                good = start >= base and top + count <= heap_room
                if good:
                    heap_tag[top] = RAW
                    heap[top] = count
                    for i in range(count):
                        tag = np.int64(stack_tag[start + i])
                        good = good and tag != ROWS
                        heap_tag[top + 1 + i] = tag
                        heap[top + 1 + i] = stack[start + i]
                if good:
                    stack_tag[start] = TUPLE
                    stack[start] = top
                    top += 1 + count
                    sp = start + 1
                    after = pc + 1
                    if code == op.TUPLE:
                        marked -= 1
            if after > pc:
                pc = after
                continue

        # Whatever is rarer works on the registers.
        registers[R_PC] = pc
        registers[R_SP] = sp
        registers[R_TOP] = top
        registers[R_MEMO] = counter
        registers[R_CURSOR] = cursor
        registers[R_HIGH] = high
        registers[R_MARKS] = marked
        registers[R_BASE] = base
        stale = True
        if pc >= limit:
            return np.int64(EV_LIMIT)
        if top > heap_room:
            registers[R_ADDRESS] = ROOM
            return np.int64(EV_COLLECT)
        if sp > stack_room:
            return np.int64(EV_STACK)
        if context >= 0:
            event = read_rows(
                data,
                registers,
                stacks,
                marks,
                memory,
                memos,
                schema,
                templates,
                context,
                begins >= 0,
            )
            if event == 0:
                untried = pc
        elif sp >= over:
            event = overflow(data, registers, stacks, marks, memory, schema)
        else:
            event = run_rare(code, pc, data, operand, registers, stacks, marks, memory, names, schema)
            if event == 0 or event == EV_LEARN:
                registers[R_PC] = registers[R_AFTER]
        if event > 0:
            return event
