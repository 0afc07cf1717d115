"""The compiled part of merging what threads collected, and of writing it in another order.

As in `omstore.rows.collect_kernels`, hashes only find candidates, which are then compared in full.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel
from omstore.rows.collect_kernels import (
    DONE,
    GROW_CODES,
    GROW_DELTAS,
    GROW_LISTS,
    GROW_PATTERNS,
    NUM_CODES,
    NUM_DELTAS,
    NUM_LISTS,
    NUM_PATTERNS,
)
from omstore.rows.patterns import NO_PATTERN
from omstore.rows.stretches import same_bytes

__all__ = ["copy_lists", "merge_lists", "merge_patterns", "refill", "renumber"]


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
                and same_bytes(other_code, start, list_code, begin, count)
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
                and same_bytes(other_delta, start, delta, begin, count)
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
    """Replace numbers by ``new[number] + shift``; and `NO_PATTERN`, which is none, by `nothing`."""
    for i in range(numbers.size):
        number = np.int64(numbers[i])
        out[i] = nothing if number == NO_PATTERN else np.int64(new[number]) + shift
