"""Making and changing objects of the heap, and its copying collection."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy.machine.arrays import Marks, Memory, Memos, Stacks, copy
from omstore.legacy.machine.registers import (
    R_ADDRESS,
    R_HEAP_SIZE,
    R_HIGH,
    R_MARKS,
    R_MEMO_SIZE,
    R_PC,
    R_SP,
    R_TOP,
)
from omstore.legacy.machine.tags import (
    ARRAY,
    C_FIRST,
    C_LAST,
    C_MADE,
    CHUNK,
    CONTAINER_SLOTS,
    DTYPE,
    FIRST_POINTER,
    FORWARD,
    NONE,
    OBJ,
    RAW,
    TUPLE,
)

__all__ = ["add_chunk", "collect", "keep_all", "need_heap", "new_container", "new_object"]


@inner_kernel
def need_heap(registers: Any, slots: Any) -> Any:
    """Whether the heap is too full for so many slots more; R_ADDRESS says how many."""
    registers[R_ADDRESS] = slots
    return registers[R_TOP] + slots > registers[R_HEAP_SIZE]


@inner_kernel
def new_container(memory: Memory, top: Any, made: Any) -> Any:
    """Make an empty container at the heap's top; the new top."""
    for i in range(CONTAINER_SLOTS):
        memory.tag[top + i] = RAW
        memory.value[top + i] = 0
    memory.value[top + C_FIRST] = -1
    memory.value[top + C_LAST] = -1
    memory.value[top + C_MADE] = made
    return top + CONTAINER_SLOTS


@inner_kernel
def new_object(memory: Memory, registers: Any, name: Any, arguments_tag: Any, arguments: Any) -> Any:
    """Make an instance without state; its address."""
    top = registers[R_TOP]
    memory.tag[top] = RAW
    memory.value[top] = name
    memory.tag[top + 1] = arguments_tag
    memory.value[top + 1] = arguments
    memory.tag[top + 2] = NONE
    memory.value[top + 2] = 0
    registers[R_TOP] = top + 3
    return top


@inner_kernel
def add_chunk(memory: Memory, registers: Any, container: Any, stacks: Stacks, start: Any, count: Any) -> Any:
    """Append `count` values of the stack to a container as a new chunk."""
    heap_tag, heap = memory
    top = registers[R_TOP]
    heap_tag[top] = RAW
    heap[top] = count
    heap_tag[top + 1] = RAW
    heap[top + 1] = -1
    copy(heap_tag, top + 2, stacks.tag, start, count)
    copy(heap, top + 2, stacks.value, start, count)
    last = heap[container + C_LAST]
    at = container + C_FIRST if last < 0 else last + 1
    heap_tag[at] = CHUNK
    heap[at] = top
    heap_tag[container + C_LAST] = CHUNK
    heap[container + C_LAST] = top
    registers[R_TOP] = top + 2 + count


@inner_kernel
def keep_all(registers: Any, marks: Marks, address: Any) -> Any:
    """Note that an object has changed that may be older than an open mark: what it holds now mustn't be
    rewound."""
    mark = registers[R_MARKS] - 1
    if mark >= 0 and address < marks.heap[mark]:
        registers[R_HIGH] = registers[R_TOP]


@inner_kernel
def _evacuate(old: Memory, new: Memory, top: Any, tag: Any, address: Any) -> Any:
    """Copy one object to the new heap unless it's there already; (its new address, the new top)."""
    if old.tag[address] == FORWARD:
        return old.value[address], top
    if tag == TUPLE:
        size = 1 + old.value[address]
    elif tag == CHUNK:
        size = 2 + old.value[address]
    elif tag == OBJ:
        size = np.int64(3)
    elif tag == ARRAY:
        size = np.int64(4)
    elif tag == DTYPE:
        size = np.int64(1)
    else:
        size = np.int64(CONTAINER_SLOTS)
    copy(new.tag, top, old.tag, address, size)
    copy(new.value, top, old.value, address, size)
    old.tag[address] = FORWARD
    old.value[address] = top
    return top, top + size


@inner_kernel
def collect(registers: Any, stacks: Stacks, memos: Memos, old: Memory, new: Memory) -> Any:
    """Copy what the stack and the memo reach to a new heap (Cheney 1970)."""
    top = np.int64(0)
    for i in range(registers[R_SP]):
        tag = np.int64(stacks.tag[i])
        if tag >= FIRST_POINTER:
            stacks.value[i], top = _evacuate(old, new, top, tag, stacks.value[i])
    for i in range(registers[R_MEMO_SIZE]):
        tag = np.int64(memos.tag[i])
        if tag >= FIRST_POINTER:
            if memos.last[i] < registers[R_PC]:  # a template has read past the last fetch
                memos.tag[i] = 0
            else:
                memos.value[i], top = _evacuate(old, new, top, tag, memos.value[i])
    at = np.int64(0)
    while at < top:
        tag = np.int64(new.tag[at])
        if tag >= FIRST_POINTER:
            new.value[at], top = _evacuate(old, new, top, tag, new.value[at])
        at += 1
    registers[R_TOP] = top
    registers[R_HIGH] = top
