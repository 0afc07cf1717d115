"""Which state a node is: nodes are sorted by state vector, a model counts in mixed-radix numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError, UsageError
from omstore.format.hot import map_hot
from omstore.model.space import ProductSpace
from omstore.rows.encoding import next_node_dtype
from omstore.rows.write import Staging

__all__ = ["ListedNumbering", "Numbering", "ProductNumbering"]

_STEP = 1 << 16


class Numbering(ABC):
    """Nodes to the numbers of their states in a `ProductSpace`, and back.

    Attributes
    ----------
    space : ProductSpace
    num_nodes : int
    """

    space: ProductSpace
    num_nodes: int

    @abstractmethod
    def numbers(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of nodes that exist, (B,) -> (B,) int64."""

    @abstractmethod
    def nodes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nodes of numbers within the space, (B,) -> (B,) int64, -1 where there is none."""

    def states(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the states of nodes, (B,) -> (B, C) int64."""
        return self.space.states(self.numbers(nodes))


class ProductNumbering(Numbering):
    """Every state is a node, and sorting state vectors sorts the states by their components' *ranks*.

    Then a node is the mixed-radix number of its ranks, and nothing needs storing but the orders: a few
    numbers. One-hot vectors sort descending, for example: value 0 has the last rank.

    Parameters
    ----------
    space : ProductSpace
    orders : sequence of (size,) int64, one a component
        The value at each rank: a permutation.
    """

    def __init__(self, space: ProductSpace, orders: Sequence[NDArray[np.int64]]) -> None:
        self.space = space
        self.num_nodes = space.count
        self.orders = tuple(np.asarray(order, np.int64) for order in orders)
        for size, order in zip(space.sizes, self.orders, strict=True):
            if order.shape != (size,) or not np.array_equal(np.sort(order), np.arange(size)):
                raise UsageError(f"an order of {size} values must be a permutation of them")
        self.ranks = tuple(np.argsort(order) for order in self.orders)

    def numbers(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of nodes; see :class:`Numbering`."""
        return self.space.numbers(self.states(nodes))

    def nodes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nodes of numbers; see :class:`Numbering`."""
        states = self.space.states(numbers)
        for component, rank in enumerate(self.ranks):
            states[:, component] = rank[states[:, component]]
        return self.space.numbers(states)

    def states(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the states of nodes; see :class:`Numbering`."""
        states = self.space.states(nodes)  # here: ranks
        for component, order in enumerate(self.orders):
            states[:, component] = order[states[:, component]]
        return states


class ListedNumbering(Numbering):
    """The number of every node is stored: where not all states are nodes, or vectors sort in no simple way.

    Parameters
    ----------
    space : ProductSpace
    number : (N,) int64 or uint64
        By node; may be mapped.
    sorted_number, sorted_node : (N,) integers, or None
        The numbers ascending, and their nodes; None where `number` ascends itself.

    Raises
    ------
    CorruptStoreError
        From `numbers` and `nodes`, where a mapped array holds what is no number or node.
    """

    def __init__(
        self,
        space: ProductSpace,
        number: NDArray[Any],
        sorted_number: NDArray[Any] | None = None,
        sorted_node: NDArray[Any] | None = None,
    ) -> None:
        self.space = space
        self.num_nodes = len(number)
        self.number = number
        self._sorted_number, self._sorted_node = sorted_number, sorted_node
        self._sorted = number if sorted_number is None else sorted_number
        self._node = sorted_node

    def numbers(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of nodes; see :class:`Numbering`."""
        numbers = self.number[nodes].astype(np.int64)
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.space.count:
            raise CorruptStoreError(
                "rows/number names a state that isn't the model's", "Build the store again."
            )
        return numbers

    def nodes(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nodes of numbers; see :class:`Numbering`."""
        wanted = np.asarray(numbers).astype(self._sorted.dtype)
        at = np.minimum(np.searchsorted(self._sorted, wanted), self.num_nodes - 1)
        found = self._sorted[at] == wanted
        nodes = at if self._node is None else self._node[at].astype(np.int64)
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.num_nodes:
            raise CorruptStoreError(
                "rows/sorted_node names a node that doesn't exist", "Build the store again."
            )
        return np.where(found, nodes, -1)

    def write(self, staging: Staging) -> None:
        """Write the numbers of nodes as ``rows/number``, and with it the way back where it isn't ascending."""
        arrays = [("number", self.number, np.dtype(np.uint64))]
        if self._sorted_number is not None and self._sorted_node is not None:
            arrays += [("sorted_number", self._sorted_number, np.dtype(np.uint64))]
            arrays += [("sorted_node", self._sorted_node, next_node_dtype(self.num_nodes))]
        for name, values, dtype in arrays:
            writer = staging.hot(f"rows/{name}", dtype)
            for first in range(0, self.num_nodes, _STEP):
                writer.append(values[first : first + _STEP].astype(dtype))
            writer.close()

    @classmethod
    def open(cls, space: ProductSpace, folder: Path, num_nodes: int) -> ListedNumbering:
        """Map what `write` wrote.

        Raises
        ------
        CorruptStoreError
            Naming the file that is missing, truncated or foreign.
        """
        rows = folder / "rows"

        def mapped(name: str, dtype: Any) -> NDArray[Any]:
            return map_hot(rows / name, dtype=dtype, item_shape=(), rows=num_nodes)

        number = mapped("number", np.uint64)
        if not (rows / "sorted_number").is_dir():
            return cls(space, number)
        nodes = mapped("sorted_node", next_node_dtype(num_nodes))
        return cls(space, number, mapped("sorted_number", np.uint64), nodes)
