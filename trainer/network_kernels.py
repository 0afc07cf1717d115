"""The compiled forward pass of an `OpponentMLP`: states in, probabilities out, a small block of states at a time.

Between the layers nothing leaves a core's cache. Every state's numbers are sums in one order, whatever its
neighbours are, so they don't depend on what is evaluated beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inlined_kernel, kernel
from trainer.register_tiles import LANES, ROWS, active_units, tile

__all__ = ["NARROW", "WIDE", "evaluate", "list_bits"]

WIDE = 16
"""Outputs of a tile, two vectors: weights are laid out in panels of so many outputs."""
NARROW = 8
"""The same of a layer with no more outputs than this."""

_NARROW_ROWS = 8
_BLOCK = 48  # states at a time, a multiple of both: their hidden units take 24 KiB a layer

_LOG2E = np.float32(1.44269504)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_ROUNDING = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to a whole number, kept in the lowest bits
_LEAST = np.float32(-87.0)  # exp of it is the smallest that isn't denormal

_hidden_tile = tile(ROWS, WIDE // LANES, rectified=True)
_wide_tile = tile(ROWS, WIDE // LANES, rectified=False)
_narrow_tile = tile(_NARROW_ROWS, NARROW // LANES, rectified=False)


@kernel
def list_bits(packed: Any, width: int, out: Any) -> Any:
    """Write the numbers of each state's bits that are 1, ascending; the rest of a row is left as it is.

    Parameters
    ----------
    packed : (B, Wb) uint8
        Most significant bit first.
    width : int
        Bits of a state; what is set behind them, as in a damaged store, is passed over.
    out : (B, most) uint32

    Returns
    -------
    int
        The most bits of any state; where that is more than `most`, the others aren't written.
    """
    most: Any = np.int64(0)
    for i in range(packed.shape[0]):
        found: Any = np.int64(0)
        for byte in range(packed.shape[1]):
            bits = np.int64(packed[i, byte])
            for k in range(8):
                if not bits:
                    break
                if (bits >> (7 - k)) & 1:
                    bits &= 127 >> k
                    if 8 * byte + k < width:
                        if found < out.shape[1]:
                            out[i, found] = 8 * byte + k
                        found += 1
        most = max(most, found)
    return most


_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_NUMBER_OF_BITS = _BITS.sum(axis=1).astype(np.int64)
_PLACES = np.argsort(1 - _BITS, axis=1, kind="stable").astype(np.int64)
"""Of each byte the numbers of its bits that are 1, and then others."""


@inlined_kernel
def _list_active(values: Any, first: Any, width: Any, active: Any, at: Any) -> Any:
    """List the units that aren't 0 in all states of a tile: only these add anything. At least one is listed."""
    count: Any = np.int64(0)
    for k in range(0, width, LANES):
        bits = active_units(values, first + k, width)
        for j in range(LANES):  # those that are too many are written over
            active[np.uint64(at + count + j)] = k + _PLACES[bits, j]
        count += _NUMBER_OF_BITS[bits]
    if count == 0:
        active[at] = 0
        count = 1
    return count


@inlined_kernel
def _exponentials(values: Any, whole: Any, bits: Any, powers: Any, count: Any) -> None:
    """Replace numbers that aren't positive by their exponentials, within 2 units in the last place.

    By 2^n * p(r) as in Cephes (Moshier): loops that compile to vectors, where libm takes numbers one by one.
    `whole` and `bits`, and `powers`, are scratch of `count`; `bits` and `whole` are one memory.
    """
    for k in range(count):
        values[k] = _LEAST if values[k] < _LEAST else values[k]
        whole[k] = values[k] * _LOG2E + _ROUNDING
    for k in range(count):
        n = whole[k] - _ROUNDING
        r = values[k] - n * _LN2_HIGH
        values[k] = r - n * _LN2_LOW
    for k in range(count):
        bits[k] = (bits[k] << 23) + np.int32(0x3F800000)
    for k in range(count):
        powers[k] = whole[k]
    for k in range(count):
        r = values[k]
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        values[k] = (p * r * r + r + np.float32(1.0)) * powers[k]


@kernel
def evaluate(
    count: int,
    first_row: int,
    rows: Any,
    positions: Any,
    states: Any,
    first: Any,
    first_bias: Any,
    second: Any,
    second_bias: Any,
    head: Any,
    head_bias: Any,
    hidden: int,
    legal: Any,
    out: Any,
) -> Any:
    """Write the probabilities of `count` states; returns how many have none, their logits being no numbers.

    Parameters
    ----------
    count, first_row : int
    rows : (count,) int64, or empty
        The row of `positions` of each state; empty: ``first_row`` and the following.
    positions : (n, most) uint32
        Where states are 1, and W for nothing; empty where components are more than bits.
    states : (count, W) float32
        Where `positions` is empty; W units are never 0 in all.
    first : float32
        With `positions`: (W + 1, width), a row for each component and one of zeros; else panels.
    second, head : (outputs / 16, inputs, 16) float32, flat
        Panels; those of a head of at most 8 actions (1, inputs, 8).
    first_bias, second_bias, head_bias : float32
        Filled up with zeros to whole panels.
    hidden : int
        Units of a layer.
    legal : (count, actions) bool, or empty
        Empty: all are.
    out : (count, actions) float32
        Illegal actions get 0; a state without any legal one nothing else. A state whose logits are no numbers
        gets NaN.

    Returns
    -------
    int
    """
    width = first_bias.size
    actions = out.shape[1]
    outputs = head_bias.size
    components = states.shape[1]
    one = np.zeros(_BLOCK * width, np.float32)
    two = np.zeros(_BLOCK * width, np.float32)
    logits = np.empty(_BLOCK * outputs, np.float32)
    scaled = np.empty(_BLOCK * outputs, np.float32)
    powers = np.empty(_BLOCK * outputs, np.float32)
    bits = scaled.view(np.int32)
    inputs = np.zeros(_BLOCK * components, np.float32)
    prefix = np.empty(width, np.float32)
    listed = width + LANES
    active = np.empty(_BLOCK // ROWS * listed, np.int64)
    counts = np.empty(_BLOCK // ROWS, np.int64)
    every = np.arange(max(hidden, components))
    wrong: Any = np.int64(0)
    most = positions.shape[1] - 1
    before = np.uint64(0)
    for start in range(0, count, _BLOCK):
        some = min(_BLOCK, count - start)
        if positions.size:
            for i in range(some):
                row = np.uint64(rows[start + i] if rows.size else first_row + start + i)
                fresh = i == 0
                for k in range(most):
                    fresh |= positions[row, k] != positions[before, k]
                before = row
                if fresh:  # else it differs from the one before in the last row that is added
                    for j in range(width):
                        prefix[j] = first_bias[j]
                    for k in range(most):
                        a = np.uint64(positions[row, k])
                        for j in range(width):
                            prefix[j] += first[a, j]
                a = np.uint64(positions[row, most])
                at = i * width
                for j in range(width):
                    value = prefix[j] + first[a, j]
                    one[at + j] = np.float32(0.0) if value < np.float32(0.0) else value
        else:
            for i in range(some):
                for j in range(components):
                    inputs[i * components + j] = states[start + i, j]
            for panel in range(0, width, WIDE):
                for i in range(0, some, ROWS):
                    _hidden_tile(
                        inputs, i * components, components, every, 0, components,
                        first.reshape(-1), panel * components, first_bias, panel, one, i * width + panel, width,
                    )  # fmt: skip
        for group in range(0, some, ROWS):
            which = group // ROWS
            counts[which] = _list_active(one, group * width, width, active, which * listed)
        for panel in range(0, width, WIDE):
            for group in range(0, some, ROWS):
                which = group // ROWS
                _hidden_tile(
                    one, group * width, width, active, which * listed, counts[which],
                    second, panel * hidden, second_bias, panel, two, group * width + panel, width,
                )  # fmt: skip
        if outputs == NARROW:
            for group in range(0, some, _NARROW_ROWS):
                _narrow_tile(
                    two, group * width, width, every, 0, hidden, head, 0, head_bias, 0,
                    logits, group * outputs, outputs,
                )  # fmt: skip
        else:
            for group in range(0, some, ROWS):
                for panel in range(0, outputs, WIDE):
                    _wide_tile(
                        two, group * width, width, every, 0, hidden, head, panel * hidden, head_bias, panel,
                        logits, group * outputs + panel, outputs,
                    )  # fmt: skip
        if legal.size:
            for i in range(some):
                for k in range(actions):
                    if not legal[start + i, k]:
                        logits[i * outputs + k] = -np.inf
        for i in range(some):
            at = i * outputs
            highest = logits[at]
            for k in range(1, actions):
                highest = max(highest, logits[at + k])
            for k in range(actions):
                logits[at + k] -= highest
        _exponentials(logits, scaled, bits, powers, some * outputs)
        for i in range(some):
            at = i * outputs
            total = np.float32(0.0)
            for k in range(actions):
                if legal.size and not legal[start + i, k]:
                    logits[at + k] = np.float32(0.0)
                total += logits[at + k]
            wrong += np.int64(total != total)
            share = np.float32(1.0) / total if total != np.float32(0.0) else np.float32(0.0)
            for k in range(actions):
                out[start + i, k] = logits[at + k] * share
    return wrong
