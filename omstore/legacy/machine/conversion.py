"""One value into one row: along the schema nodes of its table, without recursion."""

# ruff: noqa: SIM102, SIM109, SIM110 - numba compiles chained comparisons and plain loops to less code than `in` and `all`

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy.machine.arrays import Memory, Row, Schema
from omstore.legacy.machine.operands import copy_data, same_bytes, span
from omstore.legacy.machine.plan import (
    K_ARRAY,
    K_BOOL,
    K_BYTES,
    K_DICT,
    K_FLOAT,
    K_FLOATS,
    K_INT,
    K_INTS,
    K_NONE,
    K_OBJ,
    K_SEQ,
    K_SKIP,
    M_ARGS,
    M_SEQ,
    M_SLOTS,
    N_CHILD,
    N_CHILDREN,
    N_CODE,
    N_COLUMN,
    N_DIM0,
    N_KEY,
    N_KEYKIND,
    N_KEYLEN,
    N_KEYPOS,
    N_KIND,
    N_MODE,
    N_NDIM,
    N_SIZE,
    NODE_FIELDS,
    T_CAP,
    T_ROWBYTES,
    T_SCALARS,
    T_VECTORS,
)
from omstore.legacy.machine.registers import R_NODE, R_TAG, R_VALUE
from omstore.legacy.machine.tags import (
    ARRAY,
    BOOL,
    C_COUNT,
    C_FIRST,
    C_ROWS,
    DICT,
    FLOAT,
    INT,
    LIST,
    NONE,
    OBJ,
    TEXT,
    TUPLE,
)

__all__ = ["convert", "number_bits", "row_at"]


@inner_kernel
def number_bits(tag: Any, value: Any, kind: Any) -> Any:
    """(fits, bits) of a number for a column of the kind; bool < int < float widen."""
    if kind == K_FLOAT:
        if tag == FLOAT:
            return True, value
        if tag == INT or tag == BOOL:
            # Exact up to 2^53; beyond, the value isn't what the pickle held.
            return -(1 << 53) <= value <= (1 << 53), np.float64(value).view(np.int64)
        return False, value
    if kind == K_INT:
        return tag == INT or tag == BOOL, value
    return tag == BOOL, value


@inner_kernel
def row_at(tables: Any, t: Any, row: Any) -> Any:
    """Where a row of a table's buffer lies."""
    return Row(
        tables[t + T_SCALARS] + row, tables[t + T_CAP], tables[t + T_VECTORS] + row * tables[t + T_ROWBYTES]
    )


@inner_kernel
def _find_key(data: Any, memory: Memory, schema: Schema, dictionary: Any, position: Any, n: Any) -> Any:
    """Heap slot of the value under a schema node's key, tried at `position` first; -1 when absent."""
    heap_tag, heap = memory
    nodes = schema.nodes
    chunk = heap[dictionary + C_FIRST]
    key = nodes[n + N_KEY]
    is_text = nodes[n + N_KEYKIND] == 0
    tag = TEXT if is_text else INT
    seen = nodes[n + N_KEYPOS] if is_text else key
    if chunk >= 0 and position * 2 < heap[chunk]:
        slot = chunk + 2 + position * 2
        if heap[slot] == seen and heap_tag[slot] == tag:
            return slot + 1
    while chunk >= 0:
        for slot in range(chunk + 2, chunk + 2 + heap[chunk], 2):
            if heap_tag[slot] == tag:
                if is_text:
                    start, length = span(data, heap[slot])
                    if length == nodes[n + N_KEYLEN] and same_bytes(
                        data, start, schema.key_pool, key, length
                    ):
                        nodes[n + N_KEYPOS] = heap[slot]
                        return slot + 1
                elif heap[slot] == key:
                    return slot + 1
        chunk = heap[chunk + 1]
    return np.int64(-1)


@inner_kernel
def _offer(memory: Memory, schema: Schema, row: Row, node: Any, slot: Any, depth: Any) -> Any:
    """Take the value in a heap slot to a schema node: a number is written at once, the rest waits on the work
    stack."""
    nodes, work = schema.nodes, schema.work
    n = node * NODE_FIELDS
    kind = nodes[n + N_KIND]
    tag = np.int64(memory.tag[slot])
    value = memory.value[slot]
    if kind == K_INT or kind == K_FLOAT or kind == K_BOOL:
        fits, bits = number_bits(tag, value, kind)
        if fits:
            schema.buffer[row.scalars + nodes[n + N_COLUMN] * row.stride] = bits
            return depth
    work[3 * depth] = node
    work[3 * depth + 1] = tag
    work[3 * depth + 2] = value
    return depth + 1


@inner_kernel
def _offer_items(memory: Memory, schema: Schema, row: Row, n: Any, tag: Any, value: Any, depth: Any) -> Any:
    """Take a tuple's or list's items to a node's children; the new depth, -1 when it isn't a sequence of that
    length."""
    heap = memory.value
    child = schema.nodes[n + N_CHILD]
    count = schema.nodes[n + N_CHILDREN]
    if tag == TUPLE and heap[value] == count:
        for slot in range(value + 1, value + 1 + count):
            depth = _offer(memory, schema, row, child, slot, depth)
            child += 1
        return depth
    if tag == LIST and heap[value + C_COUNT] == count and heap[value + C_ROWS] == 0:
        chunk = heap[value + C_FIRST]
        while chunk >= 0:
            for slot in range(chunk + 2, chunk + 2 + heap[chunk]):
                depth = _offer(memory, schema, row, child, slot, depth)
                child += 1
            chunk = heap[chunk + 1]
        return depth
    return np.int64(-1)


@inner_kernel
def _offer_fields(
    data: Any, memory: Memory, schema: Schema, row: Row, n: Any, one: Any, two: Any, depth: Any
) -> Any:
    """Take the values of a dict (or of two, -1: none) to a node's children; the new depth, -1 when the keys
    differ."""
    heap = memory.value
    first = schema.nodes[n + N_CHILD]
    count = schema.nodes[n + N_CHILDREN]
    have = heap[one + C_COUNT]
    if two >= 0:
        have += heap[two + C_COUNT]
    if have != count:
        return np.int64(-1)
    for i in range(count):
        m = (first + i) * NODE_FIELDS
        slot = _find_key(data, memory, schema, one, i, m)
        if slot < 0 and two >= 0:
            slot = _find_key(data, memory, schema, two, i, m)
        if slot < 0:
            return np.int64(-1)
        depth = _offer(memory, schema, row, first + i, slot, depth)
    return depth


@inner_kernel
def _offer_state(data: Any, memory: Memory, schema: Schema, row: Row, n: Any, value: Any, depth: Any) -> Any:
    """Take an instance's fields to a node's children; the new depth, -1 when it's made another way."""
    heap_tag, heap = memory
    mode = schema.nodes[n + N_MODE]
    tag = np.int64(heap_tag[value + 2])
    state = heap[value + 2]
    if mode == M_ARGS:
        return _offer_items(memory, schema, row, n, np.int64(heap_tag[value + 1]), heap[value + 1], depth)
    if mode == M_SEQ:
        return _offer_items(memory, schema, row, n, tag, state, depth)
    two = np.int64(-1)
    if mode == M_SLOTS:
        if tag != TUPLE or heap[state] != 2:
            return np.int64(-1)
        if heap_tag[state + 1] == DICT:
            two = heap[state + 1]
        tag = np.int64(heap_tag[state + 2])
        state = heap[state + 2]
    if tag != DICT:
        return np.int64(-1)
    return _offer_fields(data, memory, schema, row, n, state, two, depth)


@inner_kernel
def _numbers(memory: Memory, start: Any, count: Any, kind: Any, buffer: Any, to: Any) -> Any:
    """Write the numbers in heap slots as a vector's elements; how many fit."""
    for i in range(count):
        fits, bits = number_bits(np.int64(memory.tag[start + i]), memory.value[start + i], kind)
        if not fits:
            return np.int64(i)
        buffer[to + i] = bits
    return count


@inner_kernel
def _vector(memory: Memory, tag: Any, value: Any, size: Any, kind: Any, buffer: Any, to: Any) -> Any:
    """Write a tuple's or list's numbers; -1 when done, else the tag of what doesn't fit (its own for a wrong
    length)."""
    heap_tag, heap = memory
    if tag == TUPLE and heap[value] == size:
        done = _numbers(memory, value + 1, size, kind, buffer, to)
        return np.int64(-1) if done == size else np.int64(heap_tag[value + 1 + done])
    if tag == LIST and heap[value + C_COUNT] == size and heap[value + C_ROWS] == 0:
        chunk = heap[value + C_FIRST]
        while chunk >= 0:
            done = _numbers(memory, chunk + 2, heap[chunk], kind, buffer, to)
            if done < heap[chunk]:
                return np.int64(heap_tag[chunk + 2 + done])
            to += done
            chunk = heap[chunk + 1]
        return np.int64(-1)
    return tag


@inner_kernel
def _same_array(memory: Memory, nodes: Any, n: Any, value: Any) -> Any:
    """Whether an array has a schema node's dtype and shape, in C order."""
    heap_tag, heap = memory
    if heap[value] != nodes[n + N_CODE] or heap_tag[value + 1] != TUPLE:
        return False
    shape = heap[value + 1]
    ndim = heap[shape]
    if ndim != nodes[n + N_NDIM] or (ndim > 1 and heap[value + 2] != 0):
        return False
    for i in range(ndim):
        if heap_tag[shape + 1 + i] != INT or heap[shape + 1 + i] != nodes[n + N_DIM0 + i]:
            return False
    return True


@inner_kernel
def convert(
    data: Any, memory: Memory, schema: Schema, row: Row, node: Any, tag: Any, value: Any, registers: Any
) -> Any:
    """Write one value into a row as its schema node says; False (and R_NODE, R_TAG, R_VALUE) when it doesn't
    fit."""
    heap_tag, heap = memory
    nodes, work, buffer8 = schema.nodes, schema.work, schema.buffer8
    work[0] = node
    work[1] = tag
    work[2] = value
    depth = np.int64(1)
    while depth > 0:
        depth -= 1
        node = work[3 * depth]
        tag = work[3 * depth + 1]
        value = work[3 * depth + 2]
        n = node * NODE_FIELDS
        kind = nodes[n + N_KIND]
        to = row.vectors + nodes[n + N_COLUMN]
        size = nodes[n + N_SIZE]
        fits = False
        below = np.int64(-1)
        if kind == K_SKIP:
            fits = True
        elif kind == K_NONE:
            fits = tag == NONE
        elif kind == K_INT or kind == K_FLOAT or kind == K_BOOL:
            fits, bits = number_bits(tag, value, kind)
            if fits:
                schema.buffer[row.scalars + nodes[n + N_COLUMN] * row.stride] = bits
        elif kind == K_ARRAY:
            if tag == ARRAY and _same_array(memory, nodes, n, value):
                fits = copy_data(data, np.int64(heap_tag[value + 3]), heap[value + 3], size, buffer8, to)
        elif kind == K_BYTES:
            fits = copy_data(data, tag, value, size, buffer8, to)
        elif kind == K_INTS or kind == K_FLOATS:
            inner = np.int64(K_INT if kind == K_INTS else K_FLOAT)
            wrong = _vector(memory, tag, value, size, inner, schema.buffer, to // 8)
            fits = wrong < 0
            tag = tag if fits else wrong
        elif kind == K_SEQ:
            below = _offer_items(memory, schema, row, n, tag, value, depth)
        elif kind == K_DICT:
            if tag == DICT:
                below = _offer_fields(data, memory, schema, row, n, value, np.int64(-1), depth)
        elif kind == K_OBJ:
            if tag == OBJ and heap[value] == nodes[n + N_CODE]:
                below = _offer_state(data, memory, schema, row, n, value, depth)
        if below >= 0:
            depth = below
        elif not fits:
            registers[R_NODE] = node
            registers[R_TAG] = tag
            registers[R_VALUE] = value
            return False
    return True
