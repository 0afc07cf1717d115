"""The compiled part of collecting patterns: every row is compared in full with a pattern already stored, or
stored as a new one.

A row is looked up twice: by a key of a few of its edges in a cache of patterns seen lately, which may hold
anything, and where that fails by a hash of the whole row. Hashes only find candidates: what makes two rows
the same pattern is that all of their edges are equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel, kernel, prefetch
from omstore.rows.collect_keys import WAYS, brief_key, cached, finish, look_key, mix, offset, remember
from omstore.rows.patterns import NO_PATTERN
from omstore.rows.stretches import same_row

__all__ = [
    "BAD_NODE",
    "DONE",
    "GROW_BLOCKS",
    "GROW_CODES",
    "GROW_DELTAS",
    "GROW_LISTS",
    "GROW_PATTERNS",
    "NUM_BLOCKS",
    "NUM_CODES",
    "NUM_COUNTS",
    "NUM_DELTAS",
    "NUM_FINISHED",
    "NUM_KEPT",
    "NUM_LISTS",
    "NUM_PATTERNS",
    "collect_rows",
    "merge_blocks",
]

DONE = 0
GROW_PATTERNS = 1
GROW_DELTAS = 2
GROW_LISTS = 3
GROW_CODES = 4
GROW_BLOCKS = 5
BAD_NODE = 6

NUM_PATTERNS = 0
NUM_DELTAS = 1
NUM_LISTS = 2
NUM_CODES = 3
NUM_BLOCKS = 4
NUM_FINISHED = 5
"""Nodes finished in this call."""
NUM_KEPT = 6
"""Rows of the node at hand that were kept."""
NUM_MISSED = 7
NUM_COUNTS = 8

_NODES = 8  # nodes that so many rows can lie in, where a node has at least half as many
_ROWS = 32  # rows whose likely patterns are on their way
_AHEAD = 128  # edges of a pattern asked for ahead; the processor sees by itself where it goes on
_NO_BLOCK = 0xFFFFFFFF


@kernel
def collect_rows(
    first_row: int,
    resume: int,
    num_joint_actions: int,
    num_nodes: int,
    sums: Any,
    next_node: Any,
    outcome: Any,
    coded: bool,
    keep: Any,
    position: Any,
    placed: bool,
    counts: Any,
    current: Any,
    cache: Any,
    block_cache: Any,
    pattern_offsets: Any,
    delta: Any,
    pattern_list: Any,
    pattern_hash: Any,
    pattern_first: Any,
    pattern_slots: Any,
    list_offsets: Any,
    list_code: Any,
    list_hash: Any,
    list_first: Any,
    list_slots: Any,
    block_pattern: Any,
    block_hash: Any,
    block_first: Any,
    block_slots: Any,
    out_block: Any,
) -> tuple[int, int]:
    """Find or store the pattern of every row of a chunk from row `resume` of it on, and the blocks of nodes.

    Returns a status and the row of the chunk where it stopped: with `GROW_...`, an array is full; grow it and
    call again from there. `current` holds the patterns of the node at hand, across chunks; `keep` says
    which rows count (all, where it is empty); `counts` are the numbers of everything stored.
    """
    if resume == 0 and sums.size > 1:
        # Once, in one go: what follows may use next nodes as places.
        highest = next_node.dtype.type(0)
        for edge in range(np.uint64(sums[0]), np.uint64(sums[sums.size - 1])):
            highest = max(highest, next_node[edge])
        if np.uint64(highest) >= np.uint64(num_nodes) and sums[sums.size - 1] > sums[0]:
            for i in range(sums.size - 1):
                for edge in range(sums[i], sums[i + 1]):
                    if np.uint64(next_node[edge]) >= np.uint64(num_nodes):
                        return BAD_NODE, i
    cache_mask = np.int64(cache.size - WAYS)
    slots_mask = np.int64(pattern_slots.size - 1)
    bases = np.empty(_ROWS, np.int64)
    keys = np.empty(_ROWS, np.int64)
    likely = np.empty(_ROWS, np.int64)
    num_rows = sums.size - 1
    node = np.int64((first_row + resume) // num_joint_actions)
    action = np.int64(first_row + resume - node * num_joint_actions)
    ahead = np.int64(_ROWS)
    looks = np.full(_NODES, -1, np.int64)
    guessing = num_joint_actions >= _ROWS // 2
    guessed = np.int64(-1)
    guess = np.int64(-1)
    for i in range(resume, sums.size - 1):
        row = first_row + i
        if ahead == _ROWS:
            ahead = np.int64(0)
            # Of the next few rows, find what they are likely to be, and ask for it before it is compared.
            some = min(_ROWS, sums.size - 1 - i)
            other = node
            other_action = action
            for j in range(some):
                base = np.int64(position[other]) if placed else other
                if guessing and guessed != other:
                    # Nodes of one block look alike in a few rows: guess the block, and with it every row.
                    guessed = other
                    guess = np.int64(-1)
                    look = np.int64(-1)
                    begin = other * num_joint_actions - first_row
                    if begin >= 0 and begin + num_joint_actions <= num_rows:
                        look = look_key(
                            next_node, outcome, coded, sums, begin, num_joint_actions, position, placed, base
                        )
                        entry = block_cache[look & np.int64(block_cache.size - 1)]
                        if entry and entry >> 32 == look >> 32:
                            guess = (entry & np.int64(0xFFFFFFFF)) - 1
                    looks[other & (_NODES - 1)] = look
                bases[j] = base
                keys[j] = -1
                likely[j] = -1
                if keep.size == 0 or keep[i + j]:
                    if guess >= 0:
                        pattern = block_pattern[guess, other_action]
                        likely[j] = -1 if pattern == NO_PATTERN else np.int64(pattern)
                    else:
                        start = sums[i + j]
                        count = sums[i + j + 1] - start
                        keys[j] = brief_key(next_node, outcome, coded, start, count, position, placed, base)
                        prefetch(cache, keys[j] & cache_mask)
                other_action += 1
                if other_action == num_joint_actions:
                    other_action = np.int64(0)
                    other += 1
            for j in range(some):
                if keys[j] >= 0:
                    likely[j] = cached(cache, keys[j], 0)
                if likely[j] >= 0:
                    prefetch(pattern_offsets, likely[j])
                    if coded:
                        prefetch(pattern_list, likely[j])
            for j in range(some):
                if likely[j] >= 0:
                    begin = pattern_offsets[likely[j]]
                    for k in range(begin, min(pattern_offsets[likely[j] + 1], begin + _AHEAD), 16):
                        prefetch(delta, k)
                    if coded:
                        prefetch(list_offsets, np.int64(pattern_list[likely[j]]))
            if coded:
                for j in range(some):
                    if likely[j] >= 0:
                        begin = list_offsets[pattern_list[likely[j]]]
                        for k in range(begin, min(begin + sums[i + j + 1] - sums[i + j], begin + _AHEAD), 64):
                            prefetch(list_code, k)
        if action == 0:
            counts[NUM_KEPT] = 0
        start = sums[i]
        count = sums[i + 1] - start
        if keep.size and keep[i] == 0:
            current[action] = NO_PATTERN
        else:
            base = bases[ahead]
            found = likely[ahead]
            key = keys[ahead]
            way = 0
            if found < 0 and key < 0:
                key = brief_key(next_node, outcome, coded, start, count, position, placed, base)
                found = cached(cache, key, 0)
            while found >= 0:
                begin = pattern_offsets[found]
                same = pattern_offsets[found + 1] - begin == count
                if same and coded:
                    same = same_row(
                        outcome, start, None, False, list_code, list_offsets[pattern_list[found]], count, 0
                    )
                if same:
                    same = same_row(next_node, start, position, placed, delta, begin, count, base)
                if same:
                    break
                if key < 0:  # it was the guess that was wrong
                    key = brief_key(next_node, outcome, coded, start, count, position, placed, base)
                else:
                    way += 1
                found = cached(cache, key, way)
            brief = key
            if found < 0:
                counts[NUM_MISSED] += 1
                number = np.int64(0)
                key = np.int64(0)
                if coded:
                    key = mix(np.int64(1), np.int64(count))
                    for k in range(count):
                        key = mix(key, np.int64(outcome[start + k]))
                    key = finish(key)
                    at = key & np.int64(list_slots.size - 1)
                    number = np.int64(-1)
                    while list_slots[at]:
                        other = np.int64(list_slots[at]) - 1
                        begin = list_offsets[other]
                        if (
                            list_hash[other] == key
                            and list_offsets[other + 1] - begin == count
                            and same_row(outcome, start, None, False, list_code, begin, count, 0)
                        ):
                            number = other
                            break
                        at = (at + 1) & np.int64(list_slots.size - 1)
                    if number < 0:
                        number = counts[NUM_LISTS]
                        if number + 2 > list_offsets.size:
                            return GROW_LISTS, i
                        begin = counts[NUM_CODES]
                        if begin + count > list_code.size:
                            return GROW_CODES, i
                        for k in range(count):
                            list_code[begin + k] = outcome[start + k]
                        list_offsets[number + 1] = begin + count
                        list_hash[number] = key
                        list_first[number] = row
                        list_slots[at] = number + 1
                        counts[NUM_LISTS] = number + 1
                        counts[NUM_CODES] = begin + count
                key = mix(key, np.int64(count))
                for k in range(count):
                    key = mix(key, offset(next_node, start + k, position, placed, base))
                key = finish(key)
                at = key & slots_mask
                while pattern_slots[at]:
                    other = np.int64(pattern_slots[at]) - 1
                    begin = pattern_offsets[other]
                    if (
                        pattern_hash[other] == key
                        and pattern_offsets[other + 1] - begin == count
                        and (not coded or pattern_list[other] == number)
                        and same_row(next_node, start, position, placed, delta, begin, count, base)
                    ):
                        found = other
                        break
                    at = (at + 1) & slots_mask
                if found < 0:
                    found = counts[NUM_PATTERNS]
                    if found + 2 > pattern_offsets.size:
                        return GROW_PATTERNS, i
                    begin = counts[NUM_DELTAS]
                    if begin + count > delta.size:
                        return GROW_DELTAS, i
                    for k in range(count):
                        delta[begin + k] = offset(next_node, start + k, position, placed, base)
                    pattern_offsets[found + 1] = begin + count
                    pattern_list[found] = number
                    pattern_hash[found] = key
                    pattern_first[found] = row
                    pattern_slots[at] = found + 1
                    counts[NUM_PATTERNS] = found + 1
                    counts[NUM_DELTAS] = begin + count
                remember(cache, brief, found)
            current[action] = found
            counts[NUM_KEPT] += 1
        if action == num_joint_actions - 1:
            if counts[NUM_KEPT] == 0:
                out_block[counts[NUM_FINISHED]] = _NO_BLOCK
            else:
                block = _find_block(
                    current, node, counts, block_pattern, block_hash, block_first, block_slots
                )
                if block < 0:
                    if not (keep.size and keep[i] == 0):
                        counts[NUM_KEPT] -= 1  # this row comes again
                    return GROW_BLOCKS, i
                out_block[counts[NUM_FINISHED]] = block
                look = looks[node & (_NODES - 1)]
                if look >= 0:
                    entry = ((look >> 32) << 32) | (block + 1)
                    block_cache[look & np.int64(block_cache.size - 1)] = entry
            counts[NUM_FINISHED] += 1
            action = np.int64(-1)
            node += 1
        action += 1
        ahead += 1
    return DONE, -1


@inner_kernel
def _find_block(
    current: Any,
    node: Any,
    counts: Any,
    block_pattern: Any,
    block_hash: Any,
    block_first: Any,
    block_slots: Any,
) -> Any:
    """Find or store a block of patterns; -1 where there is no room."""
    key = np.int64(2)
    for a in range(current.size):
        key = mix(key, np.int64(current[a]))
    key = finish(key)
    mask = np.int64(block_slots.size - 1)
    at = key & mask
    while block_slots[at]:
        other = np.int64(block_slots[at]) - 1
        if block_hash[other] == key:
            same = True
            for a in range(current.size):
                same &= block_pattern[other, a] == current[a]
            if same:
                block_first[other] = min(block_first[other], node)
                return other
        at = (at + 1) & mask
    number = counts[NUM_BLOCKS]
    if number >= len(block_pattern):
        return np.int64(-1)
    for a in range(current.size):
        block_pattern[number, a] = current[a]
    block_hash[number] = key
    block_first[number] = node
    block_slots[at] = number + 1
    counts[NUM_BLOCKS] = number + 1
    return number


@kernel
def merge_blocks(
    other_pattern: Any,
    other_first: Any,
    pattern_map: Any,
    resume: int,
    counts: Any,
    current: Any,
    block_pattern: Any,
    block_hash: Any,
    block_first: Any,
    block_slots: Any,
    out: Any,
) -> tuple[int, int]:
    """Find or store another collector's blocks, its patterns being merged; `out` says which each is here."""
    for number in range(resume, out.size):
        for a in range(current.size):
            pattern = other_pattern[number, a]
            current[a] = NO_PATTERN if pattern == NO_PATTERN else pattern_map[pattern]
        found = _find_block(
            current, other_first[number], counts, block_pattern, block_hash, block_first, block_slots
        )
        if found < 0:
            return GROW_BLOCKS, number
        out[number] = found
    return DONE, -1
