"""Attributes of outcomes that are functions of nodes, found by streaming over the rows.

What varies only with the nodes an edge joins needn't be in the table of outcomes: without it rows are alike
that weren't, and compress. An attribute may be exactly

- a function of the next node, as a done flag is;
- a function of the node;
- the next node's value, unless the node has its own: absorbing states, whose edges carry 0 where entering
  them carries a reward.

Three passes at most, each reading the rows once; memory is 8 bytes for each node and attribute, and a chunk
of rows. Probabilities stay where they are: they are what tells one outcome from another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input, kernel
from omstore.encode.distinct import sort_words, words_of
from omstore.errors import CorruptStoreError, UsageError
from omstore.read.attributes import Attribute
from omstore.rows import RowEncoding

__all__ = ["Hoisted", "code_dtype", "hoist"]

Ticker = Callable[[int], object]

_UNSET = -1
"""No edge tells the value of this node."""
_VARIES = -2
"""The edges of this node carry several values."""

_OK, _CONFLICT, _BAD_NODE, _BAD_CODE = 0, 1, 2, 3

_CHUNK_EDGES = 1 << 18


@kernel
def _survey(
    first_node: int,
    num_joint_actions: int,
    offsets: Any,
    next_node: Any,
    codes: Any,
    value_of: Any,
    by_node: Any,
    by_next: Any,
    leaves: Any,
    constant: bool,
) -> int:
    """First pass, over whole nodes: the value of each node's edges, that of each next node as long as it is one
    (`by_next` is empty once it isn't), and which nodes have an edge that leaves them.

    With `constant`, the last part is skipped.
    """
    status = _OK
    node = first_node
    # Of a node's rows only where they end matters: chunks hold whole nodes.
    for first in range(0, offsets.size - 1, num_joint_actions):
        begin = offsets[first]
        end = offsets[first + num_joint_actions]
        known = by_node[node]
        for edge in range(begin, end):
            target = next_node[edge]
            if target < 0 or target >= by_node.size:
                return _BAD_NODE
            code = np.int64(codes[edge])
            if code >= value_of.size:
                return _BAD_CODE
            value = value_of[code]
            if known == _UNSET:
                known = value
            elif known != value:
                known = np.int32(_VARIES)
            if by_next.size:
                before = by_next[target]
                if before == _UNSET:
                    by_next[target] = value
                elif before != value:
                    status = _CONFLICT
            if not constant and target != node:
                leaves[node] = 1
        by_node[node] = known
        node += 1
    return status


@kernel
def _fill(
    first_node: int,
    num_joint_actions: int,
    offsets: Any,
    next_node: Any,
    codes: Any,
    value_of: Any,
    by_node: Any,
    by_next: Any,
) -> int:
    """Second pass: next nodes' values, as the edges of nodes with several values tell them."""
    node = first_node - 1
    for first in range(0, offsets.size - 1, num_joint_actions):
        node += 1
        if by_node[node] != _VARIES:
            continue
        for edge in range(offsets[first], offsets[first + num_joint_actions]):
            target = next_node[edge]
            if target < 0 or target >= by_next.size:
                return _BAD_NODE
            code = np.int64(codes[edge])
            if code >= value_of.size:
                return _BAD_CODE
            value = value_of[code]
            before = by_next[target]
            if before == _UNSET:
                by_next[target] = value
            elif before != value:
                return _CONFLICT
    return _OK


@kernel
def _settle(
    first_node: int,
    num_joint_actions: int,
    offsets: Any,
    next_node: Any,
    by_node: Any,
    by_next: Any,
    leaves: Any,
    own: Any,
) -> int:
    """Third pass, in the order of nodes: a node with one value needs its own only where a next node has
    another."""
    node = first_node - 1
    for first in range(0, offsets.size - 1, num_joint_actions):
        node += 1
        value = by_node[node]
        if value < 0 or leaves[node] == 0:
            continue
        begin = offsets[first]
        end = offsets[first + num_joint_actions]
        agrees = True
        for edge in range(begin, end):
            target = next_node[edge]
            if target < 0 or target >= by_next.size:
                return _BAD_NODE
            known = by_next[target]
            if known != _UNSET and known != value:
                agrees = False
                break
        if not agrees:
            own[node] = value + 1
            continue
        for edge in range(begin, end):
            by_next[next_node[edge]] = value
    return _OK


@kernel
def _settle_loops(by_node: Any, by_next: Any, leaves: Any, own: Any) -> None:
    """Nodes whose only next node is themselves, last: what others say of entering them stands."""
    for node in range(by_node.size):
        value = by_node[node]
        if value < 0 or leaves[node] != 0:
            continue
        if by_next[node] == _UNSET:
            by_next[node] = value
        elif by_next[node] != value:
            own[node] = value + 1


@dataclass(frozen=True)
class Hoisted:
    """What is left of the table of outcomes, and where the rest went.

    Attributes
    ----------
    attributes : tuple of Attribute
        All of them, in the order given; those still at level ``outcome`` have a value for each of the
        `num_outcomes` combinations that are left, sorted.
    code_map : (K,) int64
        Old outcome code -> new one.
    num_outcomes : int
    """

    attributes: tuple[Attribute, ...]
    code_map: NDArray[np.int64]
    num_outcomes: int

    @property
    def changed(self) -> bool:
        """Whether codes aren't what they were."""
        return not np.array_equal(self.code_map, np.arange(self.num_outcomes))


def code_dtype(num_values: int) -> np.dtype[Any]:
    """Return what codes of this many values are stored as: uint8 or uint16."""
    return np.dtype(np.uint8 if num_values <= 1 << 8 else np.uint16)


def hoist(source: RowEncoding, attributes: Sequence[Attribute], tick: Ticker = lambda n: None) -> Hoisted:
    """Find the attributes of outcomes that are functions of nodes, and take them out of the table.

    Edges keep their order: equal next nodes of a row have equal values of what is taken out.

    Parameters
    ----------
    source : RowEncoding
        Rows with outcome codes. Read three times at most; once where everything is a function of the next
        node or of the node, never where only probabilities are at level ``outcome``.
    attributes : sequence of Attribute
        Of the edges. Those at level ``outcome`` have a value for each code, sorted as one table; which of
        them its first columns are is found out.
    tick : callable
        Called with numbers of edges read.

    Notes
    -----
    Memory: 8 bytes for each node and attribute at level ``outcome``, a byte a node, a chunk of rows.

    Raises
    ------
    CorruptStoreError
        If the source names a node or a code that doesn't exist.
    """
    num_outcomes = source.size.num_outcomes
    coded = [attribute for attribute in attributes if attribute.level == "outcome"]
    if any(len(attribute.values) != num_outcomes for attribute in coded):
        raise UsageError(f"the table of outcomes has other entries than the rows' {num_outcomes:,}")
    coded = _precedence(coded)
    moved: dict[str, Attribute] = {}
    columns = {a.name: _Column(a, source.size.num_nodes) for a in coded if a.name != "probability"}
    for name, column in list(columns.items()):
        if column.num_values == 1:
            moved[name] = column.constant()
            del columns[name]
    if columns and source.size.num_edges:
        moved |= _find(source, columns, tick)
    left = [attribute for attribute in coded if attribute.name not in moved]
    first, code_map = np.zeros(1, np.int64), np.zeros(num_outcomes, np.int64)
    if left:
        first, code_map = _sorted_table(left)
    table = {a.name: replace(a, values=np.asarray(a.values)[first]) for a in left}
    kept = tuple(moved.get(a.name, table.get(a.name, a)) for a in attributes)
    return Hoisted(kept, code_map, len(first))


def _precedence(attributes: Sequence[Attribute]) -> list[Attribute]:
    """Put attributes at level ``outcome`` in the order of the columns that their table is sorted by.

    Where a column rises within the groups of those before it, taking it next is never wrong: whatever order of
    the others the table was sorted by still holds inside the smaller groups.
    """
    left, ordered = list(attributes), []
    if not left:
        return []
    begins = np.zeros(len(left[0].values), np.bool_)
    begins[:1] = True
    while left:
        for attribute in left:
            codes = _sorted_table([attribute])[1]
            falls = np.diff(codes) < 0
            if not (falls & ~begins[1:]).any():
                break
        else:
            break
        begins[1:] |= np.diff(codes) != 0
        ordered.append(attribute)
        left = [other for other in left if other.name != attribute.name]
    if left or not begins.all():
        raise UsageError("the table of outcomes isn't sorted, or has an entry twice")
    return ordered


def _sorted_table(attributes: Sequence[Attribute]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort the combinations of attributes at level ``outcome``; see `sort_words`."""
    words = [words_of(np.asarray(attribute.values)) for attribute in attributes]
    floats = [np.full(w.shape[1], a.dtype.kind == "f") for a, w in zip(attributes, words, strict=True)]
    return sort_words(np.concatenate(words, axis=1), np.concatenate(floats))


class _Column:
    """An attribute of outcomes as value numbers, and what the passes found of it."""

    def __init__(self, attribute: Attribute, num_nodes: int) -> None:
        self.attribute = attribute
        values = np.asarray(attribute.values)
        words = words_of(values)
        first, value_of = sort_words(words, np.full(words.shape[1], values.dtype.kind == "f"))
        self.values = values[first]
        self.value_of = value_of.astype(np.int32)
        self.num_values = len(first)
        self.num_nodes = num_nodes
        self.by_next_works = True
        self.settled = False

    def allocate(self) -> None:
        """Make room for a value of each node."""
        self.by_node = np.full(self.num_nodes, _UNSET, np.int32)
        self.by_next = np.full(self.num_nodes, _UNSET, np.int32)

    def begin_settling(self) -> None:
        self.by_next = np.full(self.num_nodes, _UNSET, np.int32)
        self.own = np.zeros(self.num_nodes, np.int32)

    def constant(self) -> Attribute:
        return replace(self.attribute, level="graph", values=self.values[:1])

    def at_nodes(self, level: str, by: NDArray[np.int32], own: NDArray[np.int32] | None = None) -> Attribute:
        """Write the attribute at a level of nodes, coded."""
        dtype = code_dtype(self.num_values if own is None else self.num_values + 1)
        codes = np.maximum(by, 0).astype(dtype)
        stored = None if own is None else own.astype(dtype)
        return replace(self.attribute, level=level, values=self.values, codes=codes, own=stored)


def _find(source: RowEncoding, columns: dict[str, _Column], tick: Ticker) -> dict[str, Attribute]:
    """Make the passes; return the attributes that are functions of nodes, as they are then."""
    num_actions = source.size.num_joint_actions
    leaves = np.zeros(source.size.num_nodes, np.uint8)
    nothing = np.empty(0, np.int32)
    for column in columns.values():
        column.allocate()
    for first, offsets, next_node, codes in _whole_nodes(source, tick):
        for number, column in enumerate(columns.values()):
            by_next = column.by_next if column.by_next_works else nothing
            status = _survey(
                first, num_actions, offsets, next_node, codes, column.value_of,
                column.by_node, by_next, leaves, number > 0,
            )  # fmt: skip
            if status == _CONFLICT:
                column.by_next_works = False
                column.by_next = nothing
            else:
                _check(status, first)
    found: dict[str, Attribute] = {}
    alive: dict[str, _Column] = {}
    for name, column in columns.items():
        if column.by_next_works:
            found[name] = column.at_nodes("next_node", column.by_next)
        elif not (column.by_node == _VARIES).any():
            found[name] = column.at_nodes("node", column.by_node)
        else:
            column.begin_settling()
            alive[name] = column
    if alive:
        for first, offsets, next_node, codes in _whole_nodes(source, tick):
            for name, column in list(alive.items()):
                status = _fill(
                    first, num_actions, offsets, next_node, codes, column.value_of,
                    column.by_node, column.by_next,
                )  # fmt: skip
                if status == _CONFLICT:
                    del alive[name]
                else:
                    _check(status, first)
            if not alive:
                break
    if alive:
        for first, offsets, next_node, _ in _whole_nodes(source, tick):
            for column in alive.values():
                status = _settle(
                    first, num_actions, offsets, next_node, column.by_node, column.by_next, leaves, column.own
                )
                _check(status, first)
    for name, column in alive.items():
        _settle_loops(column.by_node, column.by_next, leaves, column.own)
        found[name] = column.at_nodes("next_node_unless_node", column.by_next, column.own)
    return found


def _whole_nodes(
    source: RowEncoding, tick: Ticker
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64], NDArray[np.uint16]]]:
    """Sweep in chunks of whole nodes; gives the first node, offsets, next nodes and codes."""
    size = source.size
    per_node = max(1.0, size.num_edges / size.num_nodes)
    nodes = max(1, min(int(_CHUNK_EDGES / per_node), _CHUNK_EDGES // size.num_joint_actions))
    for chunk in source.sweep(0, size.num_rows, nodes * size.num_joint_actions):
        codes = chunk.outcome
        if codes is None:
            codes = np.zeros(len(chunk.next_node), np.uint16)
        yield (
            chunk.first_row // size.num_joint_actions,
            as_input(chunk.offsets, np.int64),
            as_input(chunk.next_node, np.int64),
            as_input(np.minimum(codes, 0xFFFF) if codes.dtype.itemsize > 2 else codes, np.uint16),
        )
        tick(len(chunk.next_node))


def _check(status: int, first_node: int) -> None:
    if status in (_BAD_NODE, _BAD_CODE):
        what = "next node" if status == _BAD_NODE else "outcome code"
        raise CorruptStoreError(
            f"rows: an edge of node {first_node} or one soon after it has a {what} that doesn't exist",
            "Convert or build the store again.",
        )
