"""The compiled part of the state-hash index: hashing, probing, and the steps of the build.

A key is a packed state: Wb bytes, read as little-endian 64-bit words, the last one padded with zeros.
Keys are read with single unaligned loads, and states of 0/1 components are packed eight components per
multiplication on the way, so a lookup never materialises packed keys. Lookups work on blocks of keys:
hash the block and prefetch the slots, find each key's candidate and prefetch its full key, then confirm;
so cache misses overlap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from omstore.compiled import intrinsic, kernel, prefetch

__all__ = [
    "CORRUPT",
    "FINGERPRINT_BITS",
    "NODE_BITS",
    "count_groups",
    "find_bits",
    "find_packed",
    "hash_keys",
    "place_entries",
    "scatter_group_entries",
    "sort_groups",
]

NODE_BITS = 40
"""Low bits of a slot: node + 1, so that 0 is an empty slot."""
FINGERPRINT_BITS = 64 - NODE_BITS
"""High bits of a slot: the low bits of the key's hash (the high ones already decide where the slot lies)."""
CORRUPT = -2
"""Returned in place of a key's position when a slot names a node that doesn't exist, or no probe can end."""

_BLOCK = 128  # keys in flight: enough to hide memory latency, and the scratch stays in the first cache
_NODE_MASK = np.uint64((1 << NODE_BITS) - 1)
_FINGERPRINT_SHIFT = np.uint64(NODE_BITS)
_FINGERPRINT_MASK = np.uint64((1 << FINGERPRINT_BITS) - 1)
_ONE = np.uint64(1)
_ZERO = np.uint64(0)

# Odd 64-bit constants: the golden ratio, and the multipliers of David Stafford's "Mix13" finaliser
# (the one of splitmix64), whose avalanche is within 0.1 % of ideal.
_SEED = np.uint64(0x9E3779B97F4A7C15)
_MIX_WORD = np.uint64(0xFF51AFD7ED558CCD)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)

# (x * _GATHER_BITS) >> 56 moves the lowest bit of byte k of x to bit 7 - k: component 0 becomes the most
# significant bit, as numpy.packbits has it. The 64 partial products fall on distinct bits, so nothing
# carries.
_GATHER_BITS = np.uint64(0x8040201008040201)
_NOT_BITS = np.uint64(0xFEFEFEFEFEFEFEFE)
_TOP_BYTE = np.uint64(56)


_U64 = ir.IntType(64)
_U128 = ir.IntType(128)


@intrinsic
def _load_word(typing: Any, array: Any, position: Any) -> Any:
    """Eight bytes of a uint8 array from any position, as one little-endian word. The caller checks bounds."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        data = context.make_array(array_type)(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), _U64.as_pointer())
        word = builder.load(pointer)
        word.align = 1
        return word

    return types.uint64(array, types.int64), generate


@intrinsic
def _multiply_high(typing: Any, a: Any, b: Any) -> Any:
    """Return the high 64 bits of a 64 x 64 bit product."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = builder.mul(builder.zext(arguments[0], _U128), builder.zext(arguments[1], _U128))
        return builder.trunc(builder.lshr(wide, ir.Constant(_U128, 64)), _U64)

    return types.uint64(types.uint64, types.uint64), generate


@kernel
def _mix(state: Any, word: Any) -> Any:
    mixed = (state ^ word) * _MIX_WORD
    return mixed ^ (mixed >> np.uint64(32))


@kernel
def _finish(state: Any) -> Any:
    state = (state ^ (state >> np.uint64(30))) * _MIX_A
    state = (state ^ (state >> np.uint64(27))) * _MIX_B
    return state ^ (state >> np.uint64(31))


@kernel
def _start(key_bytes: int) -> Any:
    return _SEED * np.uint64(2 * key_bytes + 1)


@kernel
def _load_part(array: Any, position: int, count: int) -> Any:
    """Load `count` < 8 bytes as a word padded with zeros, without touching bytes behind the array."""
    if position + 8 <= array.size:
        return _load_word(array, position) & ((_ONE << np.uint64(8 * count)) - _ONE)
    word = _ZERO
    for k in range(count):
        word |= np.uint64(array[position + k]) << np.uint64(8 * k)
    return word


@kernel
def _hash_key(keys: Any, position: int, key_bytes: int) -> Any:
    state = _start(key_bytes)
    full = key_bytes // 8
    for j in range(full):
        state = _mix(state, _load_word(keys, position + 8 * j))
    if key_bytes % 8:
        state = _mix(state, _load_part(keys, position + 8 * full, key_bytes % 8))
    return _finish(state)


@kernel
def _home(hashed: Any, capacity: int) -> Any:
    return np.int64(_multiply_high(hashed, np.uint64(capacity)))


@kernel
def _probe(slots: Any, hashed: Any, position: int) -> int:
    """Return the next position with this fingerprint; -1 at an empty slot, CORRUPT behind the table."""
    fingerprint = hashed & _FINGERPRINT_MASK
    while position < slots.size:
        slot = slots[position]
        if slot == _ZERO:
            return -1
        if slot >> _FINGERPRINT_SHIFT == fingerprint:
            return position
        position += 1
    return CORRUPT


@kernel
def _node_at(slots: Any, position: int) -> Any:
    return np.int64(slots[position] & _NODE_MASK) - 1


@kernel
def _equal(packed: Any, position: int, words: Any, first_word: int, key_bytes: int) -> Any:
    full = key_bytes // 8
    for j in range(full):
        if _load_word(packed, position + 8 * j) != words[first_word + j]:
            return False
    rest = key_bytes % 8
    if rest:
        return _load_part(packed, position + 8 * full, rest) == words[first_word + full]
    return True


@kernel
def _confirm_block(
    slots: Any,
    packed: Any,
    key_bytes: int,
    count: int,
    words: Any,
    hashes: Any,
    places: Any,
    out: Any,
    first: int,
) -> int:
    """Finish a block whose words, hashes and homes (in `places`) are known; returns -1, or CORRUPT."""
    num_words = (key_bytes + 7) // 8
    num_nodes = packed.size // key_bytes
    for i in range(count):
        place = _probe(slots, hashes[i], places[i])
        places[i] = place
        if place == CORRUPT:
            return CORRUPT
        if place >= 0:
            node = _node_at(slots, place)
            if node < 0 or node >= num_nodes:
                return CORRUPT
            prefetch(packed, node * key_bytes)
    for i in range(count):
        place = places[i]
        node = -1
        while place >= 0:
            node = _node_at(slots, place)
            if node < 0 or node >= num_nodes:
                return CORRUPT
            if _equal(packed, node * key_bytes, words, i * num_words, key_bytes):
                break
            node = -1
            place = _probe(slots, hashes[i], place + 1)
        if place == CORRUPT:
            return CORRUPT
        out[first + i] = node
    return -1


@kernel
def find_packed(slots: Any, capacity: int, packed: Any, key_bytes: int, keys: Any, out: Any) -> int:
    """Look up packed keys (flat); `out` gets nodes, -1 where absent. Returns -1, or CORRUPT."""
    num_words = (key_bytes + 7) // 8
    full = key_bytes // 8
    rest = key_bytes % 8
    words = np.empty(_BLOCK * num_words, np.uint64)
    hashes = np.empty(_BLOCK, np.uint64)
    places = np.empty(_BLOCK, np.int64)
    for first in range(0, out.size, _BLOCK):
        count = min(_BLOCK, out.size - first)
        for i in range(count):
            position = (first + i) * key_bytes
            state = _start(key_bytes)
            for j in range(full):
                word = _load_word(keys, position + 8 * j)
                words[i * num_words + j] = word
                state = _mix(state, word)
            if rest:
                word = _load_part(keys, position + 8 * full, rest)
                words[i * num_words + full] = word
                state = _mix(state, word)
            state = _finish(state)
            hashes[i] = state
            places[i] = _home(state, capacity)
            prefetch(slots, places[i])
        if _confirm_block(slots, packed, key_bytes, count, words, hashes, places, out, first) == CORRUPT:
            return CORRUPT
    return -1


@kernel
def _pack_word(states: Any, position: int, count: int, word_index: int, first_word: int, words: Any) -> Any:
    """Pack up to 64 components into a word; returns the OR of what was read, to check afterwards."""
    seen = _ZERO
    word = _ZERO
    whole = count // 8
    for j in range(whole):
        eight = _load_word(states, position + 8 * j)
        seen |= eight
        word |= ((eight * _GATHER_BITS) >> _TOP_BYTE) << np.uint64(8 * j)
    rest = count % 8
    if rest:
        eight = _load_part(states, position + 8 * whole, rest)
        seen |= eight
        word |= ((eight * _GATHER_BITS) >> _TOP_BYTE) << np.uint64(8 * whole)
    words[first_word + word_index] = word
    return seen


@kernel
def find_bits(slots: Any, capacity: int, packed: Any, states: Any, width: int, out: Any) -> int:
    """Look up states of `width` components 0 or 1, one byte each (flat).

    Returns -1, CORRUPT, or the position in the batch of the first state with another component.
    """
    key_bytes = (width + 7) // 8
    num_words = (key_bytes + 7) // 8
    full = width // 64
    rest = width % 64
    words = np.empty(_BLOCK * num_words, np.uint64)
    hashes = np.empty(_BLOCK, np.uint64)
    places = np.empty(_BLOCK, np.int64)
    for first in range(0, out.size, _BLOCK):
        count = min(_BLOCK, out.size - first)
        for i in range(count):
            position = (first + i) * width
            state = _start(key_bytes)
            seen = _ZERO
            for j in range(full):
                seen |= _pack_word(states, position + 64 * j, 64, j, i * num_words, words)
                state = _mix(state, words[i * num_words + j])
            if rest:
                seen |= _pack_word(states, position + 64 * full, rest, full, i * num_words, words)
                state = _mix(state, words[i * num_words + full])
            if seen & _NOT_BITS:
                return first + i
            state = _finish(state)
            hashes[i] = state
            places[i] = _home(state, capacity)
            prefetch(slots, places[i])
        if _confirm_block(slots, packed, key_bytes, count, words, hashes, places, out, first) == CORRUPT:
            return CORRUPT
    return -1


@kernel
def hash_keys(keys: Any, key_bytes: int, out: Any) -> None:
    """Hash packed keys (flat) into `out`."""
    for i in range(out.size):
        out[i] = _hash_key(keys, i * key_bytes, key_bytes)


@kernel
def count_groups(keys: Any, key_bytes: int, shift: int, counts: Any) -> None:
    """Add the keys of each group (the hash's bits from `shift` up) to `counts`."""
    for i in range(keys.size // key_bytes):
        counts[np.int64(_hash_key(keys, i * key_bytes, key_bytes) >> np.uint64(shift))] += 1


@kernel
def scatter_group_entries(
    keys: Any,
    key_bytes: int,
    first_node: int,
    shift: int,
    first_group: int,
    ends: Any,
    hashes: Any,
    nodes: Any,
) -> int:
    """Append (hash, node) of every key in a range of groups behind its group's entries.

    ``ends[g]`` is where group ``first_group + g`` goes on, and moves. Returns -1, or CORRUPT where the
    keys aren't those that were counted (the file changed underneath).
    """
    for i in range(keys.size // key_bytes):
        hashed = _hash_key(keys, i * key_bytes, key_bytes)
        group = np.int64(hashed >> np.uint64(shift)) - first_group
        if 0 <= group < ends.size:
            place = ends[group]
            if place >= hashes.size:
                return CORRUPT
            hashes[place] = hashed
            nodes[place] = first_node + i
            ends[group] = place + 1
    return -1


@kernel
def _sort_run(hashes: Any, nodes: Any, first: Any, last: Any) -> None:
    """Sort entries first..last by hash, then node: Shell's sort, which no input makes quadratic."""
    gap = 1
    while gap < (last - first) // 9:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(first + gap, last):
            hashed = hashes[i]
            node = nodes[i]
            j = i
            while j >= first + gap and (
                hashes[j - gap] > hashed or (hashes[j - gap] == hashed and nodes[j - gap] > node)
            ):
                hashes[j] = hashes[j - gap]
                nodes[j] = nodes[j - gap]
                j -= gap
            hashes[j] = hashed
            nodes[j] = node
        gap //= 3


@kernel
def sort_groups(ends: Any, shift: int, hashes: Any, nodes: Any) -> None:
    """Sort every group's entries by hash, then node, in place; ``ends`` are the groups' ends.

    A group's entries are dealt into buckets of about eight by the bits below `shift`, and each bucket is
    sorted. Memory: a copy of the largest group, which is meant to stay in the second cache.
    """
    largest: Any = np.int64(0)
    first: Any = np.int64(0)
    for group in range(ends.size):
        largest = max(largest, ends[group] - first)
        first = ends[group]
    bits = np.int64(0)
    while bits < shift and bits < 24 and (largest >> bits) > 8:
        bits += 1
    starts = np.empty((1 << bits) + 1, np.int64)
    mask = (_ONE << np.uint64(bits)) - _ONE
    down = np.uint64(shift - bits)
    dealt_hashes = np.empty(largest, np.uint64)
    dealt_nodes = np.empty(largest, np.int64)
    first = np.int64(0)
    for group in range(ends.size):
        last = ends[group]
        starts[:] = 0
        for i in range(first, last):
            starts[np.int64((hashes[i] >> down) & mask) + 1] += 1
        for bucket in range(1 << bits):
            starts[bucket + 1] += starts[bucket]
        for i in range(first, last):
            home = np.int64((hashes[i] >> down) & mask)
            dealt_hashes[starts[home]] = hashes[i]
            dealt_nodes[starts[home]] = nodes[i]
            starts[home] += 1
        begin: Any = np.int64(0)
        for bucket in range(1 << bits):  # dealing moved the starts to the ends
            _sort_run(dealt_hashes, dealt_nodes, begin, starts[bucket])
            begin = starts[bucket]
        for i in range(last - first):
            hashes[first + i] = dealt_hashes[i]
            nodes[first + i] = dealt_nodes[i]
        first = last


@kernel
def place_entries(
    hashes: Any, nodes: Any, start: int, capacity: int, previous: int, base: int, window: Any
) -> tuple[int, int]:
    """Put sorted entries from `start` on into slots base..base+len(window)-1, as far as they fall there.

    Returns the first entry not placed and the position of the last slot filled (`previous` before that).
    """
    i = start
    while i < hashes.size:
        place = max(previous + 1, _home(hashes[i], capacity))
        if place >= base + window.size:
            break
        window[place - base] = ((hashes[i] & _FINGERPRINT_MASK) << _FINGERPRINT_SHIFT) | np.uint64(
            nodes[i] + 1
        )
        previous = place
        i += 1
    return i, previous
