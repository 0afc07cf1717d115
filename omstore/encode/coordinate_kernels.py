"""The compiled part of finding coordinates: sums over the components of all states, digits of a state.

Packed states come as they are mapped, (n, Wb) uint8 (see `omstore.format.states`); `component_bits` says how
to read them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel, kernel

__all__ = ["component_sums", "digits_of", "mix", "positions_of"]


@inner_kernel
def mix(number: Any) -> Any:
    """Scatter 64 bits (the finalizer of splitmix64, Steele, Lea and Flood, OOPSLA 2014)."""
    z = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@inner_kernel
def _component(packed: Any, i: int, j: int, component_bits: int) -> Any:
    if component_bits == 1:
        return np.int64((packed[i, j >> 3] >> (7 - (j & 7))) & 1)
    value = np.int64(0)
    size = component_bits >> 3
    for k in range(j * size, (j + 1) * size):
        value = (value << 8) | np.int64(packed[i, k])
    return value


@inner_kernel
def _digit(packed: Any, i: int, component_bits: int, first: int, last: int, low: int) -> Any:
    """Digit of state `i` over components first..last, -1 where it has none."""
    if first == last:
        return _component(packed, i, first, component_bits) - low
    found: Any = np.int64(-1)
    if component_bits == 1:
        for k in range(first >> 3, (last >> 3) + 1):
            byte = np.int64(packed[i, k])
            if k == first >> 3:
                byte &= 0xFF >> (first & 7)
            if k == last >> 3:
                byte &= 0xFF00 >> ((last & 7) + 1)
            if byte == 0:
                continue
            if found >= 0 or byte & (byte - 1):
                return -1
            leading = 0
            while byte < 128:
                byte <<= 1
                leading += 1
            found = k * 8 + leading
    else:
        for j in range(first, last + 1):
            value = _component(packed, i, j, component_bits)
            if value == 0:
                continue
            if found >= 0 or value != 1:
                return -1
            found = j
    return last - found if found >= 0 else np.int64(-1)


@kernel
def component_sums(
    packed: Any,
    component_bits: int,
    width: int,
    first_node: int,
    sums: Any,
    low: Any,
    high: Any,
) -> Any:
    """Add up every component over states, each state weighted by a hash of its node; modulo 2^64.

    `sums` (W,) uint64 is added to; `low` and `high` (W,) int64 are lowered and raised. Returns the sum of the
    weights.
    """
    total = np.uint64(0)
    ones = np.zeros(width, np.int64)  # only the bits that are set are visited: most aren't
    for i in range(packed.shape[0]):
        weight = mix(first_node + i)
        total += weight
        if component_bits == 1:
            for k in range(packed.shape[1]):
                byte = np.int64(packed[i, k])
                j = k * 8
                while byte and j < width:
                    if byte & 128:
                        sums[j] += weight
                        ones[j] += 1
                    byte = (byte << 1) & 255
                    j += 1
        else:
            for j in range(width):
                value = _component(packed, i, j, component_bits)
                sums[j] += weight * np.uint64(value)
                low[j] = min(low[j], value)
                high[j] = max(high[j], value)
    if component_bits == 1:
        for j in range(width):
            if ones[j] < packed.shape[0]:
                low[j] = 0
            if ones[j] > 0:
                high[j] = 1
    return total


@kernel
def digits_of(
    packed: Any, component_bits: int, first: Any, last: Any, low: Any, radices: Any, out: Any
) -> int:
    """Write the digits of states, (n, C); returns the first state that has none, or -1."""
    for i in range(packed.shape[0]):
        for c in range(first.size):
            digit = _digit(packed, i, component_bits, first[c], last[c], low[c])
            if digit < 0 or digit >= radices[c]:
                return i
            out[i, c] = digit
    return -1


@kernel
def positions_of(
    packed: Any, component_bits: int, first: Any, last: Any, low: Any, radices: Any, strides: Any, out: Any
) -> int:
    """Write the sum of every state's digits times their strides, (n,) uint64; returns as `digits_of`."""
    for i in range(packed.shape[0]):
        position = np.uint64(0)
        for c in range(first.size):
            digit = _digit(packed, i, component_bits, first[c], last[c], low[c])
            if digit < 0 or digit >= radices[c]:
                return i
            position += np.uint64(digit) * strides[c]
        out[i] = position
    return -1
