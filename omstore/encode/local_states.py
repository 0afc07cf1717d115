"""Local states: what a component of the state can be, numbered; and nodes as numbers of a product space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.encode import factoring_kernels as kernels
from omstore.encode.coordinates import Coordinates

__all__ = ["MAX_LOCAL_STATES", "MAX_SPARSITY", "ProductNumbers", "number_products"]

MAX_LOCAL_STATES = 1 << 20
"""Local states of a component: its kernel is to be small beside the rows."""
MAX_SPARSITY = 8
"""Product numbers a node may take up on average: `rows/node_at` holds every one of them."""

_CHUNK = 1 << 16


@dataclass(frozen=True)
class ProductNumbers:
    """Every node as the mixed-radix number of its local states, the first component most significant.

    Attributes
    ----------
    sizes : (C,) int64
        Local states of each component.
    product : (N,) int64
        Empty where the number is the node itself.
    num_nodes : int
        N.
    """

    sizes: NDArray[np.int64]
    product: NDArray[np.int64]
    num_nodes: int

    @property
    def strides(self) -> NDArray[np.int64]:
        """(C,) what a local state counts in the number."""
        sizes = self.sizes.tolist()
        return np.array([math.prod(sizes[c + 1 :]) for c in range(len(sizes))], np.int64)

    def of(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of nodes."""
        return self.product[nodes] if len(self.product) else nodes

    def local(self, nodes: NDArray[np.int64], component: int) -> NDArray[np.int64]:
        """Return the local states of nodes in a component."""
        return np.asarray(self.of(nodes) // self.strides[component] % self.sizes[component])

    def find(self, number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nodes with given numbers, -1 where there is none; memory: 16 bytes a node at worst."""
        if not len(self.product):
            return number
        order = None
        ordered = self.product
        if (ordered[1:] <= ordered[:-1]).any():
            order = np.argsort(self.product, kind="stable")
            ordered = self.product[order]
        at = np.minimum(np.searchsorted(ordered, number), self.num_nodes - 1)
        found = ordered[at] == number
        return np.where(found, at if order is None else order[at], -1)


def number_products(coordinates: Coordinates, groups: Sequence[Sequence[int]]) -> ProductNumbers | str:
    """Number the local states of groups of digits, and all nodes by them.

    A local state is a distinct tuple of a group's digits. They are numbered in the order of the state vectors,
    so that with groups that follow each other in the vector, numbers ascend with the nodes.

    Parameters
    ----------
    coordinates : Coordinates
    groups : sequence of sequences of int
        Digits of each component, the most significant first; together all digits.

    Returns
    -------
    ProductNumbers, or str
        Else a sentence that says why there are too many. Memory: 12 bytes a node.
    """
    packed = coordinates.packed
    nodes = len(packed)
    limit = min(nodes, MAX_LOCAL_STATES)
    product = np.zeros(nodes, np.int64)
    labels = np.empty(nodes, np.uint32)
    sizes: list[int] = []
    for group in groups:
        byte, mask = _mask_of(coordinates, group)
        owners = np.empty(limit, np.int64)
        table = np.full(1 << (2 * limit).bit_length(), -1, np.int32)
        count = kernels.label_states(as_input(packed, np.uint8), byte, mask, 0, table, owners, 0, labels)
        if count < 0:
            return (
                f"a component of the state ({coordinates.describe(group[0])} and others) has more than "
                f"{limit:,} local states"
            )
        owned = packed[owners[:count]][:, byte] & mask
        order = np.lexsort(owned.T[::-1]) if len(byte) else np.zeros(1, np.int64)
        rank = np.empty(count, np.int64)
        rank[order] = np.arange(count)
        sizes.append(count)
        if math.prod(sizes) > MAX_SPARSITY * nodes:
            shown = " x ".join(f"{size:,}" for size in sizes)
            return f"{shown} local states are more than {MAX_SPARSITY} times the {nodes:,} nodes"
        for start in range(0, nodes, _CHUNK):
            part = product[start : start + _CHUNK]
            part *= count
            part += rank[labels[start : start + _CHUNK]]
    same = all(
        (product[start : start + _CHUNK] == np.arange(start, min(start + _CHUNK, nodes))).all()
        for start in range(0, nodes, _CHUNK)
    )
    if same and math.prod(sizes) == nodes:
        product = np.empty(0, np.int64)
    return ProductNumbers(np.array(sizes, np.int64), as_input(product, np.int64), nodes)


def _mask_of(coordinates: Coordinates, digits: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Which bytes of a packed state the digits are in, and which of their bits."""
    codec = coordinates.codec
    bits = np.zeros(codec.packed_bytes * 8, np.uint8)
    for digit in digits:
        first, last = int(coordinates.first[digit]), int(coordinates.last[digit])
        bits[first * codec.component_bits : (last + 1) * codec.component_bits] = 1
    mask = np.packbits(bits)
    byte = np.flatnonzero(mask)
    return as_input(byte, np.int64), as_input(mask[byte], np.uint8)
