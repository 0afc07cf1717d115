"""Product numbers in another order of components: sweeps are shortest where a side's component is the last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.rows.encoding import next_node_dtype

__all__ = ["check_places", "moved_last"]

_PIECE = 1 << 20


def moved_last(
    sizes: Sequence[int],
    which: int,
    num_nodes: int,
    product: NDArray[Any] | None,
    node_at: NDArray[Any] | None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Renumber nodes as if a component were the last, the others staying in their order.

    Parameters
    ----------
    sizes : sequence of int
        Of the components.
    which : int
        The component.
    num_nodes : int
    product, node_at : (N,), (products,) unsigned integers, or None
        Product number of each node, and back (N: none); None where they are equal.

    Returns
    -------
    product, node_at : (N,), (products,) unsigned integers
        In the new order. Memory: 8 bytes a node and product number, below 4 billion of these.
    """
    size, behind = sizes[which], math.prod(sizes[which + 1 :])
    count = math.prod(sizes)
    places = np.empty(num_nodes, next_node_dtype(count))
    nodes = np.full(count, num_nodes, next_node_dtype(num_nodes + 1))
    for first in range(0, num_nodes, _PIECE):
        stop = min(first + _PIECE, num_nodes)
        found = np.arange(first, stop) if product is None else product[first:stop].astype(np.int64)
        rest, low = np.divmod(found, behind)
        high, local = np.divmod(rest, size)
        moved = (high * behind + low) * size + local
        places[first:stop] = moved
        nodes[moved] = np.arange(first, stop)
    return as_input(places, places.dtype), as_input(nodes, nodes.dtype)


def check_places(product: NDArray[Any], node_at: NDArray[Any]) -> int:
    """Return the first node that isn't led back to by its product number, -1: all are.

    Nodes then have a product number each, and kernels that write what they find at one write all of them.
    """
    for first in range(0, len(product), _PIECE):
        numbers = product[first : first + _PIECE].astype(np.int64)
        wrong = (numbers < 0) | (numbers >= len(node_at))
        numbers[wrong] = 0
        wrong |= node_at[numbers] != np.arange(first, first + len(numbers))
        if wrong.any():
            return first + int(np.argmax(wrong))
    there = sum(
        int(np.count_nonzero(node_at[at : at + _PIECE] < len(product)))
        for at in range(0, len(node_at), _PIECE)
    )
    return len(product) if there != len(product) else -1
