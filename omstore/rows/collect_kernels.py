"""The compiled part of collecting patterns: every row is compared in full with a pattern already stored, or
stored as a new one.

A row is looked up twice: by a key of a few of its edges in a cache of patterns seen lately, which may hold
anything, and where that fails by a hash of the whole row. Hashes only find candidates: what makes two rows
the same pattern is that all of their edges are equal.

Hashes and keys are kept in int64: numba turns a sum of int64 and uint64 into a float.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from omstore.compiled import inner_kernel, intrinsic, kernel, prefetch

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

_WAYS = 4  # patterns of the cache that share a place: half a cache line
_NODES = 8  # nodes that so many rows can lie in, where a node has at least half as many
_ROWS = 32  # rows whose likely patterns are on their way
_AHEAD = 128  # edges of a pattern asked for ahead; the processor sees by itself where it goes on
_LANES = 8  # elements of the vectors in which rows are compared
_NO_PATTERN = 0xFFFFFFFF
_NO_BLOCK = 0xFFFFFFFF


@inner_kernel
def _mix(key: Any, value: Any) -> Any:
    """One step of a multiplicative hash of int64 values, after Fowler, Noll and Vo; `_finish` spreads it."""
    return (key ^ value) * np.int64(-7046029254386353131)  # 0x9E3779B97F4A7C15, of splitmix64


@inner_kernel
def _finish(key: Any) -> Any:
    """Spread a hash over its low bits; never negative."""
    key = (key ^ ((key >> 31) & np.int64(0x1FFFFFFFF))) * np.int64(-4658895280553007687)
    return (key ^ ((key >> 32) & np.int64(0xFFFFFFFF))) & np.int64(0x7FFFFFFFFFFFFFFF)


@intrinsic
def _same_row(
    typing: Any,
    mine: Any,
    at: Any,
    place: Any,
    placed: Any,
    other: Any,
    begin: Any,
    count: Any,
    base: Any,
) -> Any:
    """Whether the places of ``mine[at : at + count]``, minus `base`, are ``other[begin : begin + count]``.

    A place is ``place[element]`` where `placed`, else the element itself; elements are unsigned, and places
    exist. Vectors are compared, the last of which ends with the row and overlaps the one before: nothing outside
    the rows is read. Where `other` has 32 bits differences wrap around, which makes none equal that aren't:
    places are less than 2^31 apart then (codes, which are as wide as `other`, have base 0).

    Not a kernel, since one called in a loop may count references to its arrays: atomically, by all threads.
    """

    plain = isinstance(place, types.NoneType)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        wide = ir.IntType(signature.args[4].dtype.bitwidth)
        _, first, _, is_placed, _, start, length, moved = arguments
        arrays = {
            number: context.make_array(signature.args[number])(context, builder, arguments[number]).data
            for number in ((0, 4) if plain else (0, 2, 4))
        }
        moved = builder.trunc(moved, wide) if wide.width < 64 else moved

        def splat(value: Any) -> Any:
            nothing = ir.Constant(ir.VectorType(value.type, _LANES), ir.Undefined)
            zeros = ir.Constant(ir.VectorType(i32, _LANES), None)
            return builder.shuffle_vector(
                builder.insert_element(nothing, value, ir.Constant(i32, 0)), nothing, zeros
            )

        def load(number: int, position: Any, lanes: int) -> Any:
            """Elements as wide as those of `other`."""
            pointer = builder.gep(arrays[number], [position])
            kind, bits = pointer.type.pointee, pointer.type.pointee.width
            goal: Any = wide
            if lanes > 1:
                pointer = builder.bitcast(pointer, ir.VectorType(kind, lanes).as_pointer())
                goal = ir.VectorType(wide, lanes)
            value = builder.load(pointer, align=bits // 8)
            if bits == wide.width:
                return value
            return builder.zext(value, goal) if bits < wide.width else builder.trunc(value, goal)

        def placed_at(position: Any, lanes: int) -> Any:
            values = []
            for lane in range(lanes):
                element = builder.load(
                    builder.gep(arrays[0], [builder.add(position, ir.Constant(i64, lane))])
                )
                element = builder.zext(element, i64) if element.type.width < 64 else element
                values.append(load(2, element, 1))
            if lanes == 1:
                return values[0]
            vector = ir.Constant(ir.VectorType(wide, lanes), ir.Undefined)
            for lane, value in enumerate(values):
                vector = builder.insert_element(vector, value, ir.Constant(i32, lane))
            return vector

        def compare(offset: Any, lanes: int, by_place: bool, found: Any) -> None:
            position = builder.add(first, offset)
            own = placed_at(position, lanes) if by_place else load(0, position, lanes)
            apart = builder.sub(own, splat(moved) if lanes > 1 else moved)
            apart = builder.xor(apart, load(4, builder.add(start, offset), lanes))
            builder.store(builder.or_(builder.load(found), apart), found)

        zero = ir.Constant(ir.VectorType(wide, _LANES), None)
        reserve: Any = cgutils.alloca_once
        vectors, single = reserve(builder, zero.type), reserve(builder, wide)
        builder.store(zero, vectors)
        builder.store(ir.Constant(wide, 0), single)
        lanes = ir.Constant(i64, _LANES)
        one = ir.Constant(i64, 1)

        def compare_all(by_place: bool) -> None:
            with builder.if_else(builder.icmp_signed(">=", length, lanes)) as (long, short):
                with long:
                    whole = builder.udiv(builder.sub(length, one), lanes)
                    with cgutils.for_range(builder, whole, intp=i64) as loop:
                        compare(builder.mul(loop.index, lanes), _LANES, by_place, vectors)
                    compare(builder.sub(length, lanes), _LANES, by_place, vectors)
                with short, cgutils.for_range(builder, length, intp=i64) as loop:
                    compare(loop.index, 1, by_place, single)

        if plain:
            compare_all(False)
        else:
            with builder.if_else(is_placed) as (yes, no):
                with yes:
                    compare_all(True)
                with no:
                    compare_all(False)
        unequal = builder.icmp_unsigned("!=", builder.load(vectors), zero)
        bits = builder.bitcast(unequal, ir.IntType(_LANES))
        return builder.and_(
            builder.icmp_unsigned("==", bits, ir.Constant(bits.type, 0)),
            builder.icmp_unsigned("==", builder.load(single), ir.Constant(wide, 0)),
        )

    i64 = types.int64
    return types.boolean(mine, i64, place, types.boolean, other, i64, i64, i64), generate


@inner_kernel
def _offset(next_node: Any, edge: Any, position: Any, placed: Any, base: Any) -> Any:
    """Position of an edge's next node - position of its node."""
    node = np.int64(next_node[edge])
    if placed:
        node = np.int64(position[node])
    return node - base


@inner_kernel
def _brief(
    next_node: Any, outcome: Any, coded: Any, start: Any, count: Any, position: Any, placed: Any, base: Any
) -> Any:
    """A key of a few edges of a row: first, middle and last difference, and six codes."""
    key = _mix(np.int64(count), np.int64(count))
    if count:
        last = start + count - 1
        middle = start + count // 2
        key = _mix(key, _offset(next_node, start, position, placed, base))
        if count > 1:
            key = _mix(key, _offset(next_node, last, position, placed, base))
            key = _mix(key, _offset(next_node, middle, position, placed, base))
        if coded:
            codes = np.int64(outcome[start])
            codes = (codes << 12) ^ np.int64(outcome[last])
            codes = (codes << 12) ^ np.int64(outcome[middle])
            codes = (codes << 12) ^ np.int64(outcome[start + count // 4])
            key = _mix(key, codes)
            codes = np.int64(outcome[start + (3 * count) // 4])
            codes = (codes << 12) ^ np.int64(outcome[start + count // 8])
            key = _mix(key, codes)
    return _finish(key)


@inner_kernel
def _look(
    next_node: Any,
    outcome: Any,
    coded: Any,
    sums: Any,
    begin: Any,
    num_joint_actions: Any,
    position: Any,
    placed: Any,
    base: Any,
) -> Any:
    """A key of three rows of a node, the first of which is row `begin` of the chunk."""
    key = np.int64(3)
    for part in range(1, 4):
        i = begin + (num_joint_actions * part) // 3 - 1
        start = sums[i]
        key = _mix(key, _brief(next_node, outcome, coded, start, sums[i + 1] - start, position, placed, base))
    return _finish(key)


@inner_kernel
def _cached(cache: Any, key: Any, way: Any) -> Any:
    """The pattern seen lately with a key, the `way`-th of those that have it; -1 where there is none."""
    begin = key & np.int64(cache.size - _WAYS)
    for k in range(begin, begin + _WAYS):
        entry = cache[k]
        if entry and entry >> 32 == key >> 32:
            if way == 0:
                return (entry & np.int64(0xFFFFFFFF)) - 1
            way -= 1
    return np.int64(-1)


@inner_kernel
def _remember(cache: Any, key: Any, pattern: Any) -> None:
    """Put a pattern in front of those with places in the cache like its own; the last is forgotten."""
    begin = key & np.int64(cache.size - _WAYS)
    for k in range(begin + _WAYS - 1, begin, -1):
        cache[k] = cache[k - 1]
    cache[begin] = ((key >> 32) << 32) | (pattern + 1)


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
    cache_mask = np.int64(cache.size - _WAYS)
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
                        look = _look(
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
                        likely[j] = -1 if pattern == _NO_PATTERN else np.int64(pattern)
                    else:
                        start = sums[i + j]
                        count = sums[i + j + 1] - start
                        keys[j] = _brief(next_node, outcome, coded, start, count, position, placed, base)
                        prefetch(cache, keys[j] & cache_mask)
                other_action += 1
                if other_action == num_joint_actions:
                    other_action = np.int64(0)
                    other += 1
            for j in range(some):
                if keys[j] >= 0:
                    likely[j] = _cached(cache, keys[j], 0)
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
            current[action] = _NO_PATTERN
        else:
            base = bases[ahead]
            found = likely[ahead]
            key = keys[ahead]
            way = 0
            if found < 0 and key < 0:
                key = _brief(next_node, outcome, coded, start, count, position, placed, base)
                found = _cached(cache, key, 0)
            while found >= 0:
                begin = pattern_offsets[found]
                same = pattern_offsets[found + 1] - begin == count
                if same and coded:
                    same = _same_row(
                        outcome, start, None, False, list_code, list_offsets[pattern_list[found]], count, 0
                    )
                if same:
                    same = _same_row(next_node, start, position, placed, delta, begin, count, base)
                if same:
                    break
                if key < 0:  # it was the guess that was wrong
                    key = _brief(next_node, outcome, coded, start, count, position, placed, base)
                else:
                    way += 1
                found = _cached(cache, key, way)
            brief = key
            if found < 0:
                counts[NUM_MISSED] += 1
                number = np.int64(0)
                key = np.int64(0)
                if coded:
                    key = _mix(np.int64(1), np.int64(count))
                    for k in range(count):
                        key = _mix(key, np.int64(outcome[start + k]))
                    key = _finish(key)
                    at = key & np.int64(list_slots.size - 1)
                    number = np.int64(-1)
                    while list_slots[at]:
                        other = np.int64(list_slots[at]) - 1
                        begin = list_offsets[other]
                        if (
                            list_hash[other] == key
                            and list_offsets[other + 1] - begin == count
                            and _same_row(outcome, start, None, False, list_code, begin, count, 0)
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
                key = _mix(key, np.int64(count))
                for k in range(count):
                    key = _mix(key, _offset(next_node, start + k, position, placed, base))
                key = _finish(key)
                at = key & slots_mask
                while pattern_slots[at]:
                    other = np.int64(pattern_slots[at]) - 1
                    begin = pattern_offsets[other]
                    if (
                        pattern_hash[other] == key
                        and pattern_offsets[other + 1] - begin == count
                        and (not coded or pattern_list[other] == number)
                        and _same_row(next_node, start, position, placed, delta, begin, count, base)
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
                        delta[begin + k] = _offset(next_node, start + k, position, placed, base)
                    pattern_offsets[found + 1] = begin + count
                    pattern_list[found] = number
                    pattern_hash[found] = key
                    pattern_first[found] = row
                    pattern_slots[at] = found + 1
                    counts[NUM_PATTERNS] = found + 1
                    counts[NUM_DELTAS] = begin + count
                _remember(cache, brief, found)
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
        key = _mix(key, np.int64(current[a]))
    key = _finish(key)
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
            current[a] = _NO_PATTERN if pattern == _NO_PATTERN else pattern_map[pattern]
        found = _find_block(
            current, other_first[number], counts, block_pattern, block_hash, block_first, block_slots
        )
        if found < 0:
            return GROW_BLOCKS, number
        out[number] = found
    return DONE, -1
