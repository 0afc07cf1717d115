"""The compiled part of exports."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel

__all__ = ["mark_done"]


@kernel
def mark_done(next_node: Any, done: Any, bits: Any) -> None:
    """Set the bits of the nodes that edges lead to with done; bit i is bit ``i & 7`` of byte ``i >> 3``.

    Next nodes are in range: the graph's sweep has checked them.
    """
    for edge in range(next_node.size):
        if done[edge]:
            node = next_node[edge]
            bits[node >> 3] |= np.uint8(1 << (node & 7))
