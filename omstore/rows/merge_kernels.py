"""The compiled part of merging what threads collected, and of writing it in another order.

As in `omstore.rows.collect_kernels`, hashes only find candidates, which are then compared in full.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from omstore.compiled import intrinsic, kernel

__all__ = ["copy_lists", "merge_lists", "merge_patterns", "refill", "renumber"]

# The statuses and counts of omstore.rows.collect_kernels, literally: see `omstore.compiled.kernel`.
DONE = 0
GROW_PATTERNS = 1
GROW_DELTAS = 2
GROW_LISTS = 3
GROW_CODES = 4
NUM_PATTERNS = 0
NUM_DELTAS = 1
NUM_LISTS = 2
NUM_CODES = 3

_NO_PATTERN = 0xFFFFFFFF
_U8 = ir.IntType(8)


# The twin of the one in omstore.rows.collect_kernels: a kernel may call only what lies in its own file.
@intrinsic
def _same(typing: Any, mine: Any, at: Any, other: Any, begin: Any, count: Any) -> Any:
    """Whether ``mine[at : at + count]`` are the bytes of ``other[begin : begin + count]``, of the same dtype.

    By the C library's memcmp: rows are short, and compiled loops spend their time on beginning and ending.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        pointers = []
        for place in (0, 2):
            data = context.make_array(signature.args[place])(context, builder, arguments[place]).data
            pointers.append(builder.bitcast(builder.gep(data, [arguments[place + 1]]), _U8.as_pointer()))
        compare = builder.module.globals.get("memcmp")
        if compare is None:
            kind = ir.FunctionType(i32, [_U8.as_pointer(), _U8.as_pointer(), i64])
            compare = ir.Function(builder.module, kind, "memcmp")
        nbytes = builder.mul(arguments[4], ir.Constant(i64, signature.args[0].dtype.bitwidth // 8))
        found = builder.call(compare, [*pointers, nbytes])
        return builder.icmp_signed("==", found, ir.Constant(i32, 0))

    if mine.dtype != other.dtype:
        return None
    return types.boolean(mine, types.int64, other, types.int64, types.int64), generate


@kernel
def refill(hashes: Any, slots: Any) -> None:
    """Put everything stored so far, known by its hash, into a larger table of empty slots."""
    mask = np.int64(slots.size - 1)
    for number in range(hashes.size):
        at = hashes[number] & mask
        while slots[at]:
            at = (at + 1) & mask
        slots[at] = number + 1


@kernel
def merge_lists(
    other_offsets: Any,
    other_code: Any,
    other_hash: Any,
    other_first: Any,
    resume: int,
    counts: Any,
    list_offsets: Any,
    list_code: Any,
    list_hash: Any,
    list_first: Any,
    list_slots: Any,
    out: Any,
) -> tuple[int, int]:
    """Find or store another collector's lists; `out` says which list here each of them is."""
    mask = np.int64(list_slots.size - 1)
    for number in range(resume, out.size):
        start = other_offsets[number]
        count = other_offsets[number + 1] - start
        key = other_hash[number]
        at = key & mask
        found = np.int64(-1)
        while list_slots[at]:
            own = np.int64(list_slots[at]) - 1
            begin = list_offsets[own]
            if (
                list_hash[own] == key
                and list_offsets[own + 1] - begin == count
                and _same(other_code, start, list_code, begin, count)
            ):
                found = own
                break
            at = (at + 1) & mask
        if found < 0:
            found = counts[NUM_LISTS]
            if found + 2 > list_offsets.size:
                return GROW_LISTS, number
            begin = counts[NUM_CODES]
            if begin + count > list_code.size:
                return GROW_CODES, number
            for k in range(count):
                list_code[begin + k] = other_code[start + k]
            list_offsets[found + 1] = begin + count
            list_hash[found] = key
            list_first[found] = other_first[number]
            list_slots[at] = found + 1
            counts[NUM_LISTS] = found + 1
            counts[NUM_CODES] = begin + count
        list_first[found] = min(list_first[found], other_first[number])
        out[number] = found
    return DONE, -1


@kernel
def merge_patterns(
    other_offsets: Any,
    other_delta: Any,
    other_list: Any,
    other_hash: Any,
    other_first: Any,
    list_map: Any,
    coded: bool,
    resume: int,
    counts: Any,
    pattern_offsets: Any,
    delta: Any,
    pattern_list: Any,
    pattern_hash: Any,
    pattern_first: Any,
    pattern_slots: Any,
    out: Any,
) -> tuple[int, int]:
    """Find or store another collector's patterns, its lists being merged; `out` says which each is here."""
    mask = np.int64(pattern_slots.size - 1)
    for pattern in range(resume, out.size):
        start = other_offsets[pattern]
        count = other_offsets[pattern + 1] - start
        key = other_hash[pattern]
        number = np.int64(list_map[other_list[pattern]]) if coded else np.int64(0)
        at = key & mask
        found = np.int64(-1)
        while pattern_slots[at]:
            own = np.int64(pattern_slots[at]) - 1
            begin = pattern_offsets[own]
            if (
                pattern_hash[own] == key
                and pattern_offsets[own + 1] - begin == count
                and (not coded or pattern_list[own] == number)
                and _same(other_delta, start, delta, begin, count)
            ):
                found = own
                break
            at = (at + 1) & mask
        if found < 0:
            found = counts[NUM_PATTERNS]
            if found + 2 > pattern_offsets.size:
                return GROW_PATTERNS, pattern
            begin = counts[NUM_DELTAS]
            if begin + count > delta.size:
                return GROW_DELTAS, pattern
            for k in range(count):
                delta[begin + k] = other_delta[start + k]
            pattern_offsets[found + 1] = begin + count
            pattern_list[found] = number
            pattern_hash[found] = key
            pattern_first[found] = other_first[pattern]
            pattern_slots[at] = found + 1
            counts[NUM_PATTERNS] = found + 1
            counts[NUM_DELTAS] = begin + count
        pattern_first[found] = min(pattern_first[found], other_first[pattern])
        out[pattern] = found
    return DONE, -1


@kernel
def copy_lists(offsets: Any, values: Any, order: Any, out: Any) -> None:
    """Copy ragged items in another order, one behind the other."""
    at = 0
    for i in range(order.size):
        for k in range(offsets[order[i]], offsets[order[i] + 1]):
            out[at] = values[k]
            at += 1


@kernel
def renumber(numbers: Any, new: Any, nothing: int, shift: int, out: Any) -> None:
    """Replace numbers by ``new[number] + shift``; and `_NO_PATTERN`, which is none, by `nothing`."""
    for i in range(numbers.size):
        number = np.int64(numbers[i])
        out[i] = nothing if number == _NO_PATTERN else np.int64(new[number]) + shift
