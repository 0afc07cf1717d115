"""Many values into rows of a table: items of a container, pairs of an adjacency, what lies on the stack."""

# ruff: noqa: SIM109 - numba compiles chained comparisons and plain loops to less code than `in` and `all`

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy.machine.arrays import Marks, Memory, Schema, Stacks, copy
from omstore.legacy.machine.conversion import convert, row_at
from omstore.legacy.machine.plan import (
    K_SEQ,
    N_CHILD,
    N_KIND,
    NODE_FIELDS,
    T_CAP,
    T_CLASS,
    T_FIRSTCOL,
    T_FLUSHED,
    T_GENERAL,
    T_LINK,
    T_ROOT,
    T_ROWS,
    T_TAG,
    TABLE_FIELDS,
)
from omstore.legacy.machine.registers import (
    AGAIN,
    EV_FLUSH,
    EV_MISFIT,
    EV_OVERFLOW,
    OVERFLOW,
    R_BASE,
    R_FREE_MARK,
    R_LINKED,
    R_MARKS,
    R_NODE,
    R_SP,
    R_TABLE,
)
from omstore.legacy.machine.stack import fail, has_rows
from omstore.legacy.machine.tags import C_COUNT, C_FIRST, C_ROW, C_ROWS, DICT, LIST, NONE, OBJ, ROWS, TUPLE

__all__ = [
    "convert_items",
    "convert_links",
    "full_or_misfit",
    "is_record",
    "overflow",
    "settle",
    "settle_all",
]


@inner_kernel
def is_record(memory: Memory, tables: Any, t: Any, tag: Any, value: Any) -> Any:
    """Whether a value looks like a record of a table: same tag, and same class or length."""
    if tag != tables[t + T_TAG]:
        return False
    if tag == OBJ or tag == TUPLE:
        return memory.value[value] == tables[t + T_CLASS]
    if tag == DICT:
        return memory.value[value + C_COUNT] == tables[t + T_CLASS]
    return True


@inner_kernel
def convert_items(
    data: Any,
    tags: Any,
    values: Any,
    start: Any,
    count: Any,
    step: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    registers: Any,
) -> Any:
    """Convert items start.. (pairs of key and value when `step` is 2) to rows; how many items were done.

    Fewer than `count` means: the buffer is full (R_NODE = -1), or the next item doesn't fit (R_NODE).
    """
    tables, nodes = schema.tables, schema.nodes
    t = table * TABLE_FIELDS
    row = tables[t + T_ROWS]
    cap = tables[t + T_CAP]
    root = tables[t + T_ROOT]
    # An empty slot of a ring that isn't full yet is no record.
    gaps = step == 1 and nodes[root * NODE_FIELDS + N_KIND] >= K_SEQ
    node = root if step == 1 else nodes[root * NODE_FIELDS + N_CHILD]
    registers[R_NODE] = -1
    registers[R_TABLE] = table
    done = np.int64(0)
    while done < count and row < cap:
        if not (gaps and tags[start + done] == NONE):
            place = row_at(tables, t, row)
            for i in range(step):
                at = start + done + i
                if not convert(
                    data, memory, schema, place, node + i, np.int64(tags[at]), values[at], registers
                ):
                    break
            if registers[R_NODE] >= 0:
                break
            row += 1
        done += step
    tables[t + T_GENERAL] += row - tables[t + T_ROWS]
    tables[t + T_ROWS] = row
    return done


@inner_kernel
def convert_links(
    data: Any,
    tags: Any,
    values: Any,
    start: Any,
    count: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    registers: Any,
) -> Any:
    """Convert pairs (key, list of rows) or (key, {key2: list of rows}) of an adjacency to link rows.

    Returns the number of items done; R_LINKED counts the inner entries done of the pair it stopped in. R_NODE
    is -2 when there is something other than rows.
    """
    heap_tag, heap = memory
    tables, buffer = schema.tables, schema.buffer
    t = table * TABLE_FIELDS
    two_levels = tables[t + T_LINK] == 2
    first = schema.nodes[tables[t + T_ROOT] * NODE_FIELDS + N_CHILD]
    registers[R_TABLE] = table
    registers[R_NODE] = -1
    done = np.int64(0)
    while done < count:
        at = start + done
        chunk = np.int64(-1)
        entries = np.int64(1)
        if two_levels:
            if tags[at + 1] != DICT:
                registers[R_NODE] = -2
                return done
            chunk = heap[values[at + 1] + C_FIRST]
            entries = heap[values[at + 1] + C_COUNT]
        seen = np.int64(0)
        inside = np.int64(0)
        while seen < entries:
            tag = np.int64(tags[at + 1])
            value = values[at + 1]
            slot = np.int64(0)
            if two_levels:
                while chunk >= 0 and inside >= heap[chunk]:
                    chunk = heap[chunk + 1]
                    inside = np.int64(0)
                if chunk < 0:  # the inner dict's items have become rows of their own
                    registers[R_NODE] = -2
                    return done
                slot = chunk + 2 + inside
                tag = np.int64(heap_tag[slot + 1])
                value = heap[slot + 1]
            if seen >= registers[R_LINKED]:
                row = tables[t + T_ROWS]
                if row >= tables[t + T_CAP]:
                    return done
                if tag == ROWS:
                    head = value
                    rows = np.int64(1)
                elif tag == LIST and heap[value + C_ROWS] == heap[value + C_COUNT]:
                    head = heap[value + C_ROW]
                    rows = heap[value + C_ROWS]
                else:
                    registers[R_NODE] = -2
                    return done
                place = row_at(tables, t, row)
                for level in range(2 if two_levels else 1):
                    key = heap[slot] if level == 1 else values[at]
                    key_tag = np.int64(heap_tag[slot]) if level == 1 else np.int64(tags[at])
                    if not convert(data, memory, schema, place, first + level, key_tag, key, registers):
                        return done
                column = place.scalars + tables[t + T_FIRSTCOL] * place.stride
                buffer[column] = head
                buffer[column + place.stride] = rows
                tables[t + T_ROWS] = row + 1
                registers[R_LINKED] += 1
            seen += 1
            inside += 2
        registers[R_LINKED] = 0
        done += 2
    return done


@inner_kernel
def settle(
    data: Any,
    stacks: Stacks,
    start: Any,
    count: Any,
    base: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    registers: Any,
) -> Any:
    """Turn values on the stack into rows where they lie: they join the ROWS below them (above `base`), or
    become one.

    Returns how many values were taken; the stack is that much lower. Fewer than `count`: see
    `convert_items`.
    """
    tags, values, counts = stacks
    t = table * TABLE_FIELDS
    before = schema.tables[t + T_ROWS]
    done = convert_items(data, tags, values, start, count, np.int64(1), memory, schema, table, registers)
    rows = schema.tables[t + T_ROWS] - before
    keep = start
    if rows > 0:
        if start > base and tags[start - 1] == ROWS:
            counts[start - 1] += rows
        else:
            tags[start] = ROWS
            values[start] = schema.tables[t + T_FLUSHED] + before
            counts[start] = rows
            keep = start + 1
    left = registers[R_SP] - start - done
    copy(tags, keep, tags, start + done, left)
    copy(values, keep, values, start + done, left)
    copy(counts, keep, counts, start + done, left)
    registers[R_SP] = keep + left
    return done


@inner_kernel
def full_or_misfit(registers: Any) -> Any:
    """The event for a conversion that stopped early."""
    return np.int64(EV_FLUSH) if registers[R_NODE] < 0 else np.int64(EV_MISFIT)


@inner_kernel
def settle_all(
    data: Any,
    stacks: Stacks,
    base: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    registers: Any,
    error: Any,
) -> Any:
    """Turn all values on the stack from a height on into rows, behind those that templates have read: 0, or an
    event (`error` where there are other rows among them)."""
    sp = registers[R_SP]
    first = base + 1 if sp > base and stacks.tag[base] == ROWS else base
    if has_rows(stacks, first, sp):
        return fail(registers, error)
    if settle(data, stacks, first, sp - first, base, memory, schema, table, registers) < sp - first:
        return full_or_misfit(registers)
    return np.int64(0)


@inner_kernel
def overflow(
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """Thousands of values lie above a mark: turn them into rows, all but the last few, if Python has said of
    which table."""
    mark = registers[R_MARKS] - 1
    table = marks.over[mark] - 1
    if table < 0:
        return np.int64(EV_OVERFLOW)
    base = registers[R_BASE]
    sp = registers[R_SP]
    start = base + 1 if stacks.tag[base] == ROWS else base
    count = np.int64(0)
    while start + count < sp - 256 and is_record(
        memory,
        schema.tables,
        table * TABLE_FIELDS,
        np.int64(stacks.tag[start + count]),
        stacks.value[start + count],
    ):
        count += 1
    done = settle(data, stacks, start, count, base, memory, schema, table, registers)
    if done < count:
        return full_or_misfit(registers)
    if registers[R_SP] >= base + OVERFLOW:
        registers[R_FREE_MARK] = mark + 1
    return np.int64(AGAIN)
