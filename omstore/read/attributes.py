"""What edges carry: probability, reward, done, kept fields, each at the lowest level it is a function of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.format.cold import ColdArray
from omstore.format.hot import drop_pages
from omstore.read.arrays import AnyArray, VersionArrays, take
from omstore.read.kernels import edge_codes, take_items
from omstore.rows import GraphSize

__all__ = ["LEVELS", "Attribute", "EdgeSet", "open_attribute"]

LEVELS = ("graph", "next_node", "node", "next_node_unless_node", "row", "outcome", "edge", "rows")
"""What an attribute may be a function of, from the lowest to the highest; at ``rows`` the row encoding itself
answers."""

_CODED = ("next_node", "node", "next_node_unless_node")

_NO_OFFSETS = as_input(np.empty(0, np.int64), np.int64)


@dataclass(frozen=True)
class EdgeSet:
    """Edges to resolve attributes for, and where each attribute level finds them.

    Attributes
    ----------
    offsets : (B + 1,) int64, or None
        Row b owns edges ``offsets[b]:offsets[b + 1]``; None where each row has one edge (drawn).
    rows : (B,) int64, or slice
        Row numbers; a slice where they are consecutive.
    num_joint_actions : int
    next_node : (E',) integers
    outcome : (E',) integers, or None
        Codes, where there are several outcomes.
    edge : (E',) int64, slice or None
        Edge numbers, where an attribute at level ``edge`` is to be resolved.
    attributes : mapping of str to (E', ...) array
        What the row encoding itself answers.
    """

    offsets: NDArray[np.int64] | None
    rows: NDArray[np.int64] | slice
    num_joint_actions: int
    next_node: NDArray[Any]
    outcome: NDArray[Any] | None
    edge: NDArray[np.int64] | slice | None
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> NDArray[np.int64]:
        """(B,) the rows' nodes."""
        rows = np.arange(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows
        return rows // self.num_joint_actions

    def per_edge(self, per_row: NDArray[Any]) -> NDArray[Any]:
        """Repeat what rows have for each of their edges."""
        return per_row if self.offsets is None else np.repeat(per_row, np.diff(self.offsets), axis=0)


@dataclass(frozen=True)
class Attribute:
    """One attribute of the edges.

    Attributes
    ----------
    name : str
    level : str
        What it is a function of, one of `LEVELS`.
    values : array
        As stored, one item per whatever the level counts: mapped, or a compressed array that is read by
        slices. With `codes`, the distinct values. Empty at level ``rows``.
    codes : (N,) uint8 or uint16, or None
        At the levels of nodes: the position in `values` of every node's value.
    own : (N,) uint8 or uint16, or None
        At level ``next_node_unless_node``: the position of the node's own value + 1, 0 where it has none.
    """

    name: str
    level: str
    values: AnyArray
    codes: NDArray[Any] | None = None
    own: NDArray[Any] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        return np.dtype(self.values.dtype)

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Of one edge's value."""
        return tuple(self.values.shape[1:])

    def of(self, edges: EdgeSet) -> NDArray[Any]:
        """Resolve the attribute for edges: (E', ...), a new array (at level ``rows`` the encoding's own).

        Raises
        ------
        CorruptStoreError
            If a node's value isn't among the distinct values, or the row encoding doesn't answer.
        """
        if self.level == "rows":
            if self.name not in edges.attributes:
                raise CorruptStoreError(f"rows: the row encoding doesn't hold the attribute {self.name!r}")
            return edges.attributes[self.name]
        if self.codes is not None:
            if self.level == "node":
                return edges.per_edge(self._take(self._edge_codes(edges, edges.nodes)))
            return self._take(self._edge_codes(edges, edges.next_node))
        if self.level == "next_node":
            return self._take(edges.next_node)
        if self.level == "node":
            return edges.per_edge(self._take(edges.nodes))
        if self.level == "row":
            return edges.per_edge(self._take(edges.rows))
        if self.level == "edge":
            assert edges.edge is not None  # whoever makes the EdgeSet asks `needs_edges`
            return self._take(edges.edge)
        if self.level == "outcome" and edges.outcome is not None:
            return self._take(edges.outcome)
        return np.repeat(take(self.values, slice(0, 1)), len(edges.next_node), axis=0)

    def give_back(self, edges: EdgeSet) -> None:
        """Give back the pages of a mapping that a sweep has passed: those of consecutive rows or edges."""
        passed = {"row": edges.rows, "edge": edges.edge}.get(self.level)
        if isinstance(passed, slice) and not isinstance(self.values, ColdArray):
            drop_pages(self.values[passed])

    @property
    def needs_edges(self) -> bool:
        """Whether resolving needs the numbers of the edges."""
        return self.level == "edge"

    def _edge_codes(self, edges: EdgeSet, at: NDArray[Any]) -> NDArray[np.uint16]:
        """Positions in `values`, of the nodes `at` (or of the edges' own nodes)."""
        assert self.codes is not None  # `of` asks only then
        out = np.empty(len(at), np.uint16)
        own = self.codes[:0] if self.own is None else self.own
        bad = edge_codes(
            as_input(self.codes, self.codes.dtype),
            as_input(own, self.codes.dtype),
            as_input(at, np.int64),
            as_input(_NO_OFFSETS if self.own is None else edges.nodes, np.int64),
            as_input(_NO_OFFSETS if edges.offsets is None else edges.offsets, np.int64),
            len(self.values),
            out,
        )
        if bad >= 0:
            raise CorruptStoreError(
                f"nodes/attributes/{self.name}: a node has a code that isn't within 0 to {len(self.values) - 1}",
                "Publish again, or `omstore rollback` to an earlier version.",
            )
        return out

    def _take(self, at: NDArray[Any] | slice) -> NDArray[Any]:
        values = self.values
        fast = self.dtype in (np.float64, np.uint8) and len(self.item_shape) <= 1
        if isinstance(at, slice) or isinstance(values, ColdArray) or not fast:
            found = take(values, at)
            return found if found.flags.writeable else found.copy()
        table = as_input(values, self.dtype)
        out = np.empty((len(at), *self.item_shape), self.dtype)
        width = self.item_shape[0] if self.item_shape else 1
        take_items(table.reshape(len(table), width), as_input(at, at.dtype), out.reshape(len(out), width))
        return out


def open_attribute(
    arrays: VersionArrays,
    name: str,
    description: Mapping[str, Any],
    size: GraphSize,
    dtype: Any = None,
    item_shape: tuple[int, ...] | None = None,
) -> Attribute:
    """Open an attribute from its entry in ``manifest.attributes``, checked against the counts.

    Raises
    ------
    CorruptStoreError
        If the entry or its array isn't what it should be.
    """
    where = f"{arrays.folder / 'manifest.json'}: attribute {name!r}"
    level, path = description.get("level"), description.get("path")
    if level == "rows":
        return Attribute(name, level, np.empty((0, *(item_shape or ())), dtype or np.float64))
    lengths = {
        "graph": 1,
        "next_node": size.num_nodes,
        "node": size.num_nodes,
        "next_node_unless_node": size.num_nodes,
        "row": size.num_rows,
        "outcome": size.num_outcomes,
        "edge": size.num_edges,
    }
    if level not in lengths or not isinstance(path, str):
        raise CorruptStoreError(f"{where} has level {level!r} and path {path!r}")
    if "codes" not in description:
        if level == "next_node_unless_node":
            raise CorruptStoreError(f"{where} has no codes")
        values = arrays.any(path, rows=lengths[level], dtype=dtype, item_shape=item_shape)
        return Attribute(name, level, values)
    if level not in _CODED:
        raise CorruptStoreError(f"{where} has codes at level {level!r}")
    values = arrays.hot(path, rows=None, dtype=dtype, item_shape=item_shape)
    codes = _node_codes(arrays, where, description["codes"], size.num_nodes)
    own = None
    if level == "next_node_unless_node":
        own = _node_codes(arrays, where, description.get("own"), size.num_nodes)
    if len(values) > 1 << 16 or (own is not None and own.dtype != codes.dtype):
        raise CorruptStoreError(f"{where}: {len(values):,} values, {codes.dtype} codes")
    return Attribute(name, level, values, codes, own)


def _node_codes(arrays: VersionArrays, where: str, path: Any, num_nodes: int) -> NDArray[Any]:
    if not isinstance(path, str):
        raise CorruptStoreError(f"{where} has codes at {path!r}")
    codes = arrays.hot(path, rows=num_nodes, item_shape=())
    if codes.dtype not in (np.uint8, np.uint16):
        raise CorruptStoreError(f"{where}: codes of {codes.dtype}")
    return codes
