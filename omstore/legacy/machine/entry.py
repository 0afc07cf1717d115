"""`run`, the machine's only entry, so that every kernel is compiled once."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel
from omstore.legacy.machine.arrays import Marks, Memory, Memos, Names, Schema, Stacks, TemplateArrays, pointer
from omstore.legacy.machine.batches import convert_items, convert_links
from omstore.legacy.machine.heap import collect
from omstore.legacy.machine.loop import run_opcodes
from omstore.legacy.machine.registers import (
    DO_COLLECT,
    DO_ITEMS,
    DO_LINKS,
    R_COMMAND,
    R_COUNT,
    R_HEAP_SIZE,
    R_MARK_SIZE,
    R_MEMO_SIZE,
    R_NUM_GLOBALS,
    R_SIZE,
    R_STACK_SIZE,
    R_START,
    R_STEP,
    R_TABLE,
)

__all__ = ["run"]


@kernel
def run(
    data: Any,
    operand: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    spare: Memory,
    memos: Memos,
    names: Names,
    schema: Schema,
    templates: TemplateArrays,
) -> Any:
    """Do what registers[R_COMMAND] says; of DO_RUN, the event that stopped it.

    All arrays are contiguous, uint8 where they hold tags or bytes, else int64.
    """
    r = pointer(registers)
    r[R_SIZE] = data.size
    r[R_HEAP_SIZE] = memory.tag.size
    r[R_STACK_SIZE] = stacks.tag.size
    r[R_MARK_SIZE] = marks.at.size
    r[R_MEMO_SIZE] = memos.number.size
    r[R_NUM_GLOBALS] = names.kind.size
    bytes_ = pointer(data)
    stack = Stacks(pointer(stacks.tag), pointer(stacks.value), pointer(stacks.count))
    heap = Memory(pointer(memory.tag), pointer(memory.value))
    memo = Memos(pointer(memos.number), pointer(memos.last), pointer(memos.tag), pointer(memos.value))
    plan = Schema(
        pointer(schema.tables),
        pointer(schema.nodes),
        pointer(schema.key_pool),
        pointer(schema.buffer),
        pointer(schema.buffer8),
        pointer(schema.work),
    )
    if r[R_COMMAND] == DO_ITEMS:
        r[R_COUNT] = convert_items(
            bytes_, heap.tag, heap.value, r[R_START], r[R_COUNT], r[R_STEP], heap, plan, r[R_TABLE], r
        )
        return np.int64(0)
    if r[R_COMMAND] == DO_LINKS:
        r[R_COUNT] = convert_links(
            bytes_, heap.tag, heap.value, r[R_START], r[R_COUNT], heap, plan, r[R_TABLE], r
        )
        return np.int64(0)
    if r[R_COMMAND] == DO_COLLECT:
        collect(r, stack, memo, heap, Memory(pointer(spare.tag), pointer(spare.value)))
        return np.int64(0)
    return run_opcodes(
        bytes_,
        pointer(operand),
        r,
        stack,
        Marks(
            pointer(marks.height),
            pointer(marks.heap),
            pointer(marks.table),
            pointer(marks.over),
            pointer(marks.at),
        ),
        heap,
        memo,
        Names(pointer(names.kind), pointer(names.text), pointer(names.span)),
        plan,
        TemplateArrays(
            pointer(templates.templates),
            pointer(templates.elements),
            pointer(templates.literals),
            pointer(templates.first_byte),
        ),
    )
