"""Dtype codes, (kind << 8 | item size) << 1 | (1 if big-endian), 0 for what is no plain number; and their numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy.machine.tags import BIGINT, BOOL, FLOAT, INT

__all__ = [
    "BOOLS",
    "FLOATS",
    "INTEGERS",
    "UNSIGNED",
    "dtype_code",
    "item_size",
    "scalar_value",
    "storage_code",
]

# Kinds, as numpy writes them.
BOOLS: Final = 98  # b
FLOATS: Final = 102  # f
INTEGERS: Final = 105  # i
UNSIGNED: Final = 117  # u


@inner_kernel
def item_size(code: Any) -> Any:
    """Bytes of one number."""
    return (code >> 1) & 0xFF


@inner_kernel
def dtype_code(data: Any, at: Any, length: Any) -> Any:
    """Code of a dtype's text such as f8; 0 when it isn't one of a plain number."""
    if length != 2:
        return np.int64(0)
    kind = np.int64(data[at])
    size = np.int64(data[at + 1]) - 48
    good = size == 1 or size == 2 or size == 4 or size == 8
    if kind == BOOLS:
        good = size == 1
    elif kind == FLOATS:
        good = good and size > 1
    elif kind != INTEGERS and kind != UNSIGNED:
        good = False
    return (kind << 8 | size) << 1 if good else np.int64(0)


@inner_kernel
def _half(bits: Any) -> Any:
    """The float64 value of an IEEE half."""
    sign = -1.0 if bits & 0x8000 else 1.0
    exponent = (bits >> 10) & 0x1F
    fraction = np.float64(bits & 0x3FF)
    if exponent == 31:
        return sign * np.inf if fraction == 0 else np.nan
    if exponent > 0:
        fraction += 1024.0
        exponent -= 1
    return sign * fraction * 2.0**-24 * np.float64(np.int64(1) << exponent)


@inner_kernel
def scalar_value(code: Any, bits: Any) -> Any:
    """(tag, payload) of a numpy scalar's bits; tag BIGINT when it doesn't fit 64 bits."""
    size = item_size(code)
    kind = (code >> 9) & 0xFF
    if kind == BOOLS:
        return np.int64(BOOL), np.int64(bits != 0)
    if kind == FLOATS:
        if size == 4:
            bits = np.float64(np.int32(bits).view(np.float32)).view(np.int64)
        elif size == 2:
            bits = np.float64(_half(bits)).view(np.int64)
        return np.int64(FLOAT), bits
    if kind == INTEGERS:
        shift = 64 - 8 * size
        return np.int64(INT), (bits << shift) >> shift
    return np.int64(BIGINT) if bits < 0 else np.int64(INT), bits


@inner_kernel
def storage_code(one: Any, two: Any) -> Any:
    """Dtype code of a torch storage class by its name's first two letters; 0 when it isn't of a plain
    number."""
    letters = np.int64(one) << 8 | np.int64(two)
    if letters == 0x466C:  # Float
        return np.int64((FLOATS << 8 | 4) << 1)
    if letters == 0x446F:  # Double
        return np.int64((FLOATS << 8 | 8) << 1)
    if letters == 0x4861:  # Half
        return np.int64((FLOATS << 8 | 2) << 1)
    if letters == 0x4C6F:  # Long
        return np.int64((INTEGERS << 8 | 8) << 1)
    if letters == 0x496E:  # Int
        return np.int64((INTEGERS << 8 | 4) << 1)
    if letters == 0x5368:  # Short
        return np.int64((INTEGERS << 8 | 2) << 1)
    if letters == 0x4368:  # Char
        return np.int64((INTEGERS << 8 | 1) << 1)
    if letters == 0x4279:  # Byte
        return np.int64((UNSIGNED << 8 | 1) << 1)
    if letters == 0x426F:  # Bool
        return np.int64((BOOLS << 8 | 1) << 1)
    return np.int64(0)
