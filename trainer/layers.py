"""The parts of a network that are compiled: its first layer on packed states, and the softmax of few logits.

Each state is evaluated by itself, so its numbers don't depend on its neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel

__all__ = ["add_rows", "softmax_rows"]


@kernel
def add_rows(packed: Any, weight: Any, bias: Any, out: Any) -> None:
    """Write relu(bias + sum of the rows of `weight` where a state's bit is 1), added in the order of the bits.

    States are nearly one-hot, a bit an agent: a few rows instead of a product with all of them.

    Parameters
    ----------
    packed : (B, Wb) uint8
        Most significant bit first; bits beyond W are 0.
    weight : (W + 1, hidden) float32
        Transposed: a row for each bit, and one of zeros.
    bias : (hidden,) float32
    out : (B, hidden) float32
    """
    hidden = bias.size
    zeros = np.uint64(weight.shape[0] - 1)
    nothing = np.float32(0.0)
    for i in range(packed.shape[0]):
        # four rows in one pass over the units: what is summed stays in registers
        a, b, c, d = zeros, zeros, zeros, zeros
        found = 0
        began = False
        for byte in range(packed.shape[1]):
            bits = np.int64(packed[i, byte])
            for k in range(8):
                if not bits:
                    break
                if not (bits >> (7 - k)) & 1:
                    continue
                bits &= 127 >> k
                if found == 4:
                    if began:
                        for j in range(hidden):
                            out[i, j] = out[i, j] + weight[a, j] + weight[b, j] + weight[c, j] + weight[d, j]
                    else:
                        for j in range(hidden):
                            out[i, j] = bias[j] + weight[a, j] + weight[b, j] + weight[c, j] + weight[d, j]
                    began = True
                    a, b, c, d = zeros, zeros, zeros, zeros
                    found = 0
                row = np.uint64(8 * byte + k)
                if found == 0:
                    a = row
                elif found == 1:
                    b = row
                elif found == 2:
                    c = row
                else:
                    d = row
                found += 1
        if began:
            for j in range(hidden):
                total = out[i, j] + weight[a, j] + weight[b, j] + weight[c, j] + weight[d, j]
                out[i, j] = max(total, nothing)
        else:
            for j in range(hidden):
                total = bias[j] + weight[a, j] + weight[b, j] + weight[c, j] + weight[d, j]
                out[i, j] = max(total, nothing)


@kernel
def softmax_rows(logits: Any, out: Any) -> None:
    """Write the softmax of each row, (B, actions) float32: torch's takes five times as long for five actions.

    A row with a logit that is no number, or of -inf alone, becomes NaN.
    """
    actions = logits.shape[1]
    for i in range(logits.shape[0]):
        highest = logits[i, 0]
        for k in range(1, actions):
            highest = max(highest, logits[i, k])
        total = np.float32(0.0)
        for k in range(actions):
            exponential = np.exp(logits[i, k] - highest)
            out[i, k] = exponential
            total += exponential
        for k in range(actions):
            out[i, k] /= total
