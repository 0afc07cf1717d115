"""The fields of records, whatever they come from: a table of the pickle, or arrays (or lists) side by side.

Pure: nothing here reads data. `omstore.legacy.mapping` decides which field plays which role.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.legacy.schema import (
    KEY,
    KEY2,
    VALUE,
    ArrayRef,
    Column,
    Ignored,
    Instance,
    PickleTree,
    TableRef,
    TableSchema,
)

__all__ = [
    "ArraySource",
    "ColumnRange",
    "ColumnRef",
    "Field",
    "Group",
    "RangeOf",
    "Records",
    "dotted",
    "find_records",
    "groups_of",
    "snake_case",
    "walk",
]

Path = tuple[str | int, ...]


@dataclass
class ColumnRange:
    """What was seen of a column: smallest and largest value, and whether all were finite and whole."""

    minimum: float = math.inf
    maximum: float = -math.inf
    finite: bool = True
    whole: bool = True

    def add_integers(self, low: int, high: int) -> None:
        """Widen by integers between `low` and `high`."""
        self.minimum = min(self.minimum, low)
        self.maximum = max(self.maximum, high)

    def add_floats(self, values: NDArray[Any]) -> None:
        """Widen by numbers of any type."""
        finite = np.isfinite(values)
        if not finite.all():
            self.finite = self.whole = False
            values = values[finite]
        if len(values):
            self.minimum = min(self.minimum, float(values.min()))
            self.maximum = max(self.maximum, float(values.max()))
            if self.whole and values.dtype.kind == "f":
                self.whole = bool((np.trunc(values) == values).all())


RangeOf = Callable[["Records", "ColumnRef"], ColumnRange | None]
"""Tells what was seen of a column, where that is known."""


@dataclass(frozen=True)
class ArraySource:
    """A column of records that is an array of the pickle: row i belongs to record i."""

    array: ArrayRef


@dataclass(frozen=True)
class ColumnRef:
    """Components ``start:stop`` of a (flattened) column of `Records`; ``link``: of the outer dict of an
    adjacency."""

    column: int
    start: int
    stop: int
    link: bool = False

    @property
    def width(self) -> int:
        """Numbers it contributes to a record."""
        return self.stop - self.start


@dataclass(frozen=True)
class Field:
    """A field of a record: a few columns side by side.

    Attributes
    ----------
    name : str
        Dotted path in the record, for messages.
    columns : tuple of ColumnRef
    keys : tuple of str or int
        When the field is a dict (per agent), its keys, one a column; else empty.
    dtype : numpy.dtype
        uint8 when all columns are bytes or bools, int64 when all are integers, else float64.
    """

    name: str
    columns: tuple[ColumnRef, ...]
    keys: tuple[str | int, ...]
    dtype: np.dtype[Any]

    @property
    def width(self) -> int:
        """Numbers per record."""
        return sum(column.width for column in self.columns)


@dataclass(frozen=True)
class Records:
    """Records of one shape: a table, or columns that lie side by side in arrays and lists.

    Attributes
    ----------
    path : tuple
        Where they sit in the pickle's root object.
    schema : TableSchema
        The columns. For arrays side by side, made up from them.
    sources : tuple of (int, int) or ArraySource
        For every column: (table id, column number in it) or the array.
    num_rows : int
    link : TableSchema or None
        The outer dict of an adjacency.
    """

    path: Path
    schema: TableSchema
    sources: tuple[tuple[int, int] | ArraySource, ...]
    num_rows: int
    link: TableSchema | None = None

    @property
    def name(self) -> str:
        """Dotted path, for messages."""
        return dotted(self.path) or "the root object"

    @property
    def unnamed(self) -> bool:
        """Whether the records' fields have positions instead of names."""
        return self.schema.positional or self.schema.record in ("value", "tuple")

    def column(self, ref: ColumnRef) -> Column:
        """Return the column a reference points to."""
        if ref.link:
            if self.link is None:
                raise ValueError("no link table")
            return self.link.columns[ref.column]
        return self.schema.columns[ref.column]


@dataclass(frozen=True)
class Group:
    """All columns below one place of a record: ``reward`` for ``reward.pursuer_0`` and ``reward.evader``."""

    path: Path
    columns: tuple[ColumnRef, ...]
    keys: tuple[str | int, ...]
    kinds: frozenset[str] = field(default_factory=frozenset)

    @property
    def name(self) -> str:
        """Dotted path."""
        return dotted(self.path)


def dotted(path: Sequence[str | int]) -> str:
    """Write a path for people: ``agents.0.reward``."""
    words = {KEY: "(key)", KEY2: "(inner key)", VALUE: "(value)"}
    return ".".join(words.get(str(step), str(step)) for step in path)


def snake_case(name: str) -> str:
    """Reduce a name to lower case with underscores: ``_nextState`` and ``next-state`` are ``next_state``."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"[^a-z0-9]+", "_", parted.lower()).strip("_")


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Go through the tree, parents first: paths and values."""
    yield path, value
    if isinstance(value, Instance):
        children: Any = value.fields.items()
    elif isinstance(value, dict):
        children = value.items()
    elif isinstance(value, (list, tuple)):
        children = enumerate(value)
    else:
        return
    for step, child in children:
        yield from walk(child, (*path, step))


def find_records(tree: PickleTree) -> list[Records]:
    """List everything in a pickle that could be records, tables first, the longest first."""
    tables = {table.id: table for table in tree.tables}
    links = {table.links_to: table for table in tree.tables if table.links_to is not None}
    found = [
        Records(
            table.path,
            table,
            tuple((table.id, i) for i in range(len(table.columns))),
            table.num_rows,
            links.get(table.id),
        )
        for table in tree.tables
        if table.links_to is None
    ]
    for path, value in walk(tree.root):
        if isinstance(value, ArrayRef) and len(value.shape) >= 1:
            found.append(_side_by_side(path, value, tables))
        elif isinstance(value, (dict, Instance)):
            together = _side_by_side(path, value, tables)
            if len(together.schema.columns) > 1:
                found.append(together)
    return sorted(found, key=lambda records: (-records.num_rows, len(records.path)))


def _side_by_side(path: Path, value: Any, tables: dict[int, TableSchema]) -> Records:
    """Take arrays (and lists of bare values) of one length below a place of the tree as columns of
    records."""
    leaves: list[tuple[Path, Column, tuple[int, int] | ArraySource, int]] = []
    for below, leaf in walk(value):
        if isinstance(leaf, ArrayRef) and leaf.shape:
            shape = leaf.shape[1:]
            kind = "vector" if shape else {"f": "float", "b": "bool"}.get(leaf.dtype.kind, "int")
            dtype = np.dtype(np.uint8) if leaf.dtype.kind == "b" else leaf.dtype
            leaves.append(
                (below, Column(below, kind, dtype, shape, "ndarray"), ArraySource(leaf), leaf.shape[0])
            )
        elif isinstance(leaf, TableRef) and leaf.id in tables and tables[leaf.id].record == "value":
            table = tables[leaf.id]
            for i, column in enumerate(table.columns):
                renamed = Column(
                    (*below, *column.path), column.kind, column.dtype, column.shape, column.origin
                )
                leaves.append((below, renamed, (table.id, i), table.num_rows))
    lengths: dict[int, int] = {}
    for _, _, _, rows in leaves:
        lengths[rows] = lengths.get(rows, 0) + 1
    num_rows = max(lengths, key=lambda rows: (lengths[rows], rows), default=0)
    kept = [leaf for leaf in leaves if leaf[3] == num_rows]
    ignored = [
        Ignored(b, f"{rows} entries where {num_rows} were expected")
        for b, _, _, rows in leaves
        if rows != num_rows
    ]
    schema = TableSchema(
        id=-1,
        path=path,
        container="columns",
        record="columns",
        columns=[column for _, column, _, _ in kept],
        ignored=ignored,
        num_rows=num_rows,
    )
    return Records(path, schema, tuple(source for _, _, source, _ in kept), num_rows)


def groups_of(records: Records) -> list[Group]:
    """List the places of a record, outer before inner: ``reward`` before ``reward.evader``; then an
    adjacency's keys.

    A tuple of numbers that is the whole record (a table of bare values) counts as one group per number.
    """
    columns = records.schema.columns
    if (
        records.schema.record in ("value", "tuple")
        and len(columns) == 1
        and columns[0].path == ()
        and columns[0].shape
    ):
        width = math.prod(columns[0].shape)
        whole = Group((), (ColumnRef(0, 0, width),), (), frozenset({columns[0].kind}))
        kind = "float" if columns[0].dtype.kind == "f" else "int"
        return [whole] + [Group((i,), (ColumnRef(0, i, i + 1),), (), frozenset({kind})) for i in range(width)]
    prefixes: dict[Path, list[int]] = {}
    for i, column in enumerate(columns):
        for depth in range(0 if column.path == () else 1, len(column.path) + 1):
            prefixes.setdefault(column.path[:depth], []).append(i)
    groups = []
    for path in sorted(prefixes, key=len):
        members = prefixes[path]
        refs = tuple(ColumnRef(i, 0, math.prod(columns[i].shape)) for i in members)
        depth = len(path)
        deep = [columns[i].path[depth:] for i in members]
        keys = tuple(rest[0] for rest in deep) if all(len(rest) == 1 for rest in deep) else ()
        groups.append(Group(path, refs, keys, frozenset(columns[i].kind for i in members)))
    if records.link is not None:
        for i, column in enumerate(records.link.columns):
            if column.path and column.path[0] in (KEY, KEY2):
                ref = ColumnRef(i, 0, math.prod(column.shape), link=True)
                groups.append(Group(column.path, (ref,), (), frozenset({column.kind})))
    return groups


def field_of(records: Records, group: Group, order: Sequence[int] | None = None) -> Field:
    """Make a field of a group, its columns in another order where one is given."""
    columns, keys = group.columns, group.keys
    if order is not None:
        columns = tuple(columns[i] for i in order)
        keys = tuple(keys[i] for i in order)
    kinds = [records.column(ref).dtype for ref in columns]
    if all(dtype.itemsize == 1 and dtype.kind in "ub" for dtype in kinds):
        dtype: np.dtype[Any] = np.dtype(np.uint8)
    elif all(dtype.kind in "iub" for dtype in kinds):
        dtype = np.dtype(np.int64)
    else:
        dtype = np.dtype(np.float64)
    return Field(
        group.name or "(the item itself)", columns, keys if len(keys) == len(columns) > 0 else (), dtype
    )
