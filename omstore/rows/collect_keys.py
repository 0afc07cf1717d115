"""Keys by which rows that may be the same pattern are found, and the cache of patterns seen lately.

Hashes and keys are kept in int64: numba turns a sum of int64 and uint64 into a float.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel

__all__ = ["WAYS", "brief_key", "cached", "finish", "look_key", "mix", "offset", "remember"]

WAYS = 4
"""Patterns of the cache that share a place: half a cache line."""


@inner_kernel
def mix(key: Any, value: Any) -> Any:
    """One step of a multiplicative hash of int64 values, after Fowler, Noll and Vo; `finish` spreads it."""
    return (key ^ value) * np.int64(-7046029254386353131)  # 0x9E3779B97F4A7C15, of splitmix64


@inner_kernel
def finish(key: Any) -> Any:
    """Spread a hash over its low bits; never negative."""
    key = (key ^ ((key >> 31) & np.int64(0x1FFFFFFFF))) * np.int64(-4658895280553007687)
    return (key ^ ((key >> 32) & np.int64(0xFFFFFFFF))) & np.int64(0x7FFFFFFFFFFFFFFF)


@inner_kernel
def offset(next_node: Any, edge: Any, position: Any, placed: Any, base: Any) -> Any:
    """Position of an edge's next node - position of its node."""
    node = np.int64(next_node[edge])
    if placed:
        node = np.int64(position[node])
    return node - base


@inner_kernel
def brief_key(
    next_node: Any, outcome: Any, coded: Any, start: Any, count: Any, position: Any, placed: Any, base: Any
) -> Any:
    """A key of a few edges of a row: first, middle and last difference, and six codes."""
    key = mix(np.int64(count), np.int64(count))
    if count:
        last = start + count - 1
        middle = start + count // 2
        key = mix(key, offset(next_node, start, position, placed, base))
        if count > 1:
            key = mix(key, offset(next_node, last, position, placed, base))
            key = mix(key, offset(next_node, middle, position, placed, base))
        if coded:
            codes = np.int64(outcome[start])
            codes = (codes << 12) ^ np.int64(outcome[last])
            codes = (codes << 12) ^ np.int64(outcome[middle])
            codes = (codes << 12) ^ np.int64(outcome[start + count // 4])
            key = mix(key, codes)
            codes = np.int64(outcome[start + (3 * count) // 4])
            codes = (codes << 12) ^ np.int64(outcome[start + count // 8])
            key = mix(key, codes)
    return finish(key)


@inner_kernel
def look_key(
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
        key = mix(
            key, brief_key(next_node, outcome, coded, start, sums[i + 1] - start, position, placed, base)
        )
    return finish(key)


@inner_kernel
def cached(cache: Any, key: Any, way: Any) -> Any:
    """The pattern seen lately with a key, the `way`-th of those that have it; -1 where there is none."""
    begin = key & np.int64(cache.size - WAYS)
    for k in range(begin, begin + WAYS):
        entry = cache[k]
        if entry and entry >> 32 == key >> 32:
            if way == 0:
                return (entry & np.int64(0xFFFFFFFF)) - 1
            way -= 1
    return np.int64(-1)


@inner_kernel
def remember(cache: Any, key: Any, pattern: Any) -> None:
    """Put a pattern in front of those with places in the cache like its own; the last is forgotten."""
    begin = key & np.int64(cache.size - WAYS)
    for k in range(begin + WAYS - 1, begin, -1):
        cache[k] = cache[k - 1]
    cache[begin] = ((key >> 32) << 32) | (pattern + 1)
