"""Reading records by templates: literals are compared, numbers picked up, no opcode is run.

Templates are made by ``legacy/templates.py`` of records that were read by their opcodes.
"""

# ruff: noqa: SIM109 - numba compiles chained comparisons and plain loops to less code than `in` and `all`

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy import opcodes as op
from omstore.legacy.machine.arrays import Marks, Memory, Memos, Row, Schema, Stacks, TemplateArrays, copy, u32
from omstore.legacy.machine.batches import full_or_misfit, settle
from omstore.legacy.machine.conversion import convert, number_bits, row_at
from omstore.legacy.machine.operands import number_at, same_bytes, span
from omstore.legacy.machine.plan import (
    ELEMENT_FIELDS,
    P_BYTES,
    P_ELEMENT,
    P_GET,
    P_LITERAL,
    P_NUMBER,
    P_PUT,
    P_SAMEGLOBAL,
    P_SAMETEXT,
    P_TEXT,
    T_CAP,
    T_FLUSHED,
    T_ROWS,
    T_TEMPLATE,
    T_TEMPLATES,
    TABLE_FIELDS,
    TEMPLATE_FIELDS,
    TP_FIRST,
    TP_LAST,
    TP_MEMOS,
)
from omstore.legacy.machine.registers import (
    AGAIN,
    EV_FLUSH,
    NEVER,
    R_BASE,
    R_CURSOR,
    R_HIGH,
    R_LIMIT,
    R_MARKS,
    R_MATCHED,
    R_MEMO,
    R_MEMO_SIZE,
    R_NODE,
    R_PC,
    R_SIZE,
    R_SP,
    R_TABLE,
    R_TOP,
)
from omstore.legacy.machine.stack import memo_slot
from omstore.legacy.machine.tags import DTYPE, GLOBAL, ROWS, TEXT

__all__ = ["read_rows"]


@inner_kernel
def _same_shared(
    data: Any, memory: Memory, memos: Memos, literals: Any, kind: Any, a: Any, b: Any, slot: Any
) -> Any:
    """Whether a memo entry is the text, global or dtype that every record refers to."""
    value = memos.value[slot]
    tag = memos.tag[slot]
    if kind == P_SAMETEXT:
        if tag != TEXT:
            return False
        start, length = span(data, value)
        return length == b and same_bytes(data, start, literals, a, length)
    if kind == P_SAMEGLOBAL:
        return tag == GLOBAL and value == a
    return tag == DTYPE and memory.value[value] == a


@inner_kernel
def _match(
    data: Any,
    pc: Any,
    template: Any,
    templates: TemplateArrays,
    memos: Memos,
    memory: Memory,
    schema: Schema,
    row: Row,
    memo_count: Any,
    registers: Any,
) -> Any:
    """Read one record by a template: the offset behind it, or -1 when the bytes differ anywhere."""
    elements, literals = templates.elements, templates.literals
    size = registers[R_SIZE]
    first = templates.templates[template * TEMPLATE_FIELDS + TP_FIRST]
    last = templates.templates[template * TEMPLATE_FIELDS + TP_LAST]
    for e in range(first * ELEMENT_FIELDS, last * ELEMENT_FIELDS, ELEMENT_FIELDS):
        kind = elements[e]
        a = elements[e + 1]
        b = elements[e + 2]
        if kind == P_LITERAL:
            if pc + b > size or not same_bytes(data, pc, literals, a, b):
                return np.int64(-1)
            pc += b
            continue
        if pc + 11 > size:
            return np.int64(-1)
        code = data[pc]
        if kind == P_NUMBER or kind == P_ELEMENT:
            tag, value, pc = number_at(data, pc)
            if tag == 0:
                return np.int64(-1)
            if a >= 0:
                fits, bits = number_bits(tag, value, b)
                if not fits:
                    return np.int64(-1)
                to = (row.vectors + a) >> 3 if kind == P_ELEMENT else row.scalars + a * row.stride
                schema.buffer[to] = bits
        elif kind == P_BYTES or kind == P_TEXT:
            text = code == op.SHORT_BINUNICODE or code == op.BINUNICODE or code == op.BINUNICODE8
            raw = (
                code == op.SHORT_BINBYTES
                or code == op.BINBYTES
                or code == op.BINBYTES8
                or code == op.BYTEARRAY8
            )
            if not (raw if kind == P_BYTES else text):
                return np.int64(-1)
            start, length = span(data, pc)
            if length < 0 or length > size - start:
                return np.int64(-1)
            if kind == P_BYTES:
                if length != b:
                    return np.int64(-1)
                copy(schema.buffer8, row.vectors + a, data, start, length)
            pc = start + length
        elif kind == P_PUT:
            if code == op.BINPUT:
                number = np.int64(data[pc + 1])
                pc += 2
            elif code == op.LONG_BINPUT:
                number = u32(data, pc + 1)
                pc += 5
            else:
                return np.int64(-1)
            if number != memo_count:
                return np.int64(-1)
            memo_count += 1
        else:
            if code == op.BINGET:
                number = np.int64(data[pc + 1])
                pc += 2
            elif code == op.LONG_BINGET:
                number = u32(data, pc + 1)
                pc += 5
            else:
                return np.int64(-1)
            if kind != P_GET and number == elements[e + 3]:
                continue
            slot = memo_slot(memos.number, registers[R_MEMO_SIZE], number)
            if slot < 0:
                return np.int64(-1)
            if kind != P_GET:
                if not _same_shared(data, memory, memos, literals, kind, a, b, slot):
                    return np.int64(-1)
                elements[e + 3] = number
            elif memos.tag[slot] == 0 or not convert(
                data, memory, schema, row, a, np.int64(memos.tag[slot]), memos.value[slot], registers
            ):
                return np.int64(-1)
    return pc


@inner_kernel
def read_rows(
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    memos: Memos,
    schema: Schema,
    templates: TemplateArrays,
    table: Any,
    in_list: Any,
) -> Any:
    """Read records that look like those before in one go, as many as follow each other.

    Returns AGAIN when something was done, 0 when the next opcode must be run by itself, or an event.
    """
    tables = schema.tables
    t = table * TABLE_FIELDS
    row = tables[t + T_ROWS]
    cap = tables[t + T_CAP]
    first = tables[t + T_TEMPLATE]
    pc = registers[R_PC]
    sp = registers[R_SP]
    base = registers[R_BASE]
    counter = registers[R_MEMO]
    limit = registers[R_LIMIT]
    fetched = np.int64(NEVER)
    if registers[R_CURSOR] < registers[R_MEMO_SIZE]:
        fetched = memos.number[registers[R_CURSOR]]
    pending = in_list and sp > base and stacks.tag[sp - 1] != ROWS
    matched = np.int64(0)
    while row + matched < cap and pc < limit:
        after = np.int64(-1)
        place = row_at(tables, t, row + matched)
        for template in range(first, first + tables[t + T_TEMPLATES]):
            memo_entries = templates.templates[template * TEMPLATE_FIELDS + TP_MEMOS]
            # A record is read as a whole only where nothing ever refers to what's inside it.
            if counter + memo_entries <= fetched:
                after = _match(
                    data, pc, template, templates, memos, memory, schema, place, counter, registers
                )
                if after >= 0:
                    counter += memo_entries
                    break
        if after < 0:
            break
        if pending:
            # Records read without a template come first: they become rows, then this one is read again.
            start = sp
            while start > base and stacks.tag[start - 1] != ROWS:
                start -= 1
            count = sp - start
            done = settle(data, stacks, start, count, base, memory, schema, table, registers)
            if done < count:
                return full_or_misfit(registers)
            mark = marks.heap[registers[R_MARKS] - 1]
            if mark > registers[R_HIGH]:
                registers[R_TOP] = mark
            return np.int64(AGAIN)
        matched += 1
        pc = after
        if not in_list:
            break
    if matched == 0:
        if row < cap:
            return np.int64(0)
        registers[R_TABLE] = table
        registers[R_NODE] = -1
        return np.int64(EV_FLUSH)
    if in_list and sp > base:
        stacks.count[sp - 1] += matched
    else:
        stacks.tag[sp] = ROWS
        stacks.value[sp] = tables[t + T_FLUSHED] + row
        stacks.count[sp] = matched
        registers[R_SP] = sp + 1
    tables[t + T_ROWS] = row + matched
    registers[R_MATCHED] += matched
    registers[R_MEMO] = counter
    registers[R_PC] = pc
    return np.int64(AGAIN)
