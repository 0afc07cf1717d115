"""The first layer of a network on packed states: the sum of the rows of its weights that the set bits name."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel

__all__ = ["add_rows"]


@kernel
def add_rows(packed: Any, weight: Any, bias: Any, out: Any) -> None:
    """Write relu(bias + sum of the rows of `weight` where a state's bit is 1), added in the order of the bits.

    States are nearly one-hot, a bit an agent: a few rows instead of a product with all of them. Each state is
    summed by itself, so the numbers don't depend on its neighbours.

    Parameters
    ----------
    packed : (B, Wb) uint8
        Most significant bit first; bits beyond W are 0.
    weight : (W, hidden) float32
        Transposed: a row for each bit.
    bias : (hidden,) float32
    out : (B, hidden) float32
    """
    hidden = bias.size
    for i in range(packed.shape[0]):
        for j in range(hidden):
            out[i, j] = bias[j]
        for byte in range(packed.shape[1]):
            bits = np.int64(packed[i, byte])
            if bits:
                for k in range(8):
                    if (bits >> (7 - k)) & 1:
                        row = np.uint64(8 * byte + k)
                        for j in range(hidden):
                            out[i, j] += weight[row, j]
        for j in range(hidden):
            out[i, j] = max(out[i, j], np.float32(0.0))
