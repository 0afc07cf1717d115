"""The compiled part of policy tables: making cumulative probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel
from omstore.rows.factored_draws import SHORT

__all__ = ["LANES", "cumulate"]

LANES = SHORT
"""Rows of a table are padded to a multiple of it: so many numbers are compared at once."""


@kernel
def cumulate(probabilities: Any, stride: int, out: Any) -> int:
    """Write the running sums of each row, added in float64; returns the first row that is no distribution, or -1.

    `out` is flat, `stride` numbers a row: 2 from the last positive probability on, which takes what rounding
    leaves, and in the padding.
    """
    actions = probabilities.shape[1]
    for row in range(probabilities.shape[0]):
        at = row * stride
        total = 0.0
        last: Any = np.int64(-1)
        good: Any = True
        for k in range(actions):
            probability = np.float64(probabilities[row, k])
            good &= probability >= 0.0  # not so where it is no number
            if probability > 0.0:
                total += probability
                last = k
            out[at + k] = np.float32(total)
        # All zeros is for a node without any legal action, which draws nothing.
        if not good or not (abs(total - 1.0) < 1e-3 or last < 0):
            return row
        for k in range(max(last, np.int64(0)), stride):
            out[at + k] = np.float32(2.0)
    return -1
