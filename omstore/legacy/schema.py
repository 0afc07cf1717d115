"""What the streaming reader hands over: tables of columns, and the small tree they hang in.

A pickle is read into

- *tables*: every large (or homogeneous) container becomes rows of columns, one column per scalar or vector
  found at the same place of every item ("leaf"). Rows are handed to a `Sink` in chunks as they are read;
- a *tree*: the object around them, with a `TableRef` where a table was, an `ArrayRef` where a numpy array is,
  and plain Python values for the rest. Instances of the pickle's classes are `Instance`: nothing is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "KEY",
    "KEY2",
    "VALUE",
    "ArrayRef",
    "Column",
    "Ignored",
    "Instance",
    "PickleTree",
    "Sink",
    "TableRef",
    "TableSchema",
]

KEY = "@key"
"""First step of the path of a column that comes from a dict's key (the outer key of an adjacency)."""
KEY2 = "@key2"
"""The same for the inner key of an adjacency ``{src: {action: [edge]}}``."""
VALUE = "@value"
"""The same for a dict's value."""

Step = str | int


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    path : tuple of str or int
        Where the value sits in a record: field names, dict keys, positions of a tuple. ``()`` when the item
        itself is the value (a list of vectors), ``("reward", "pursuer_0")``, ``(KEY,)``, ``(VALUE,
        "state")``.
    kind : str
        ``"int"``, ``"float"``, ``"bool"`` (scalars) or ``"vector"`` (tuples, lists, bytes and arrays of
        numbers, all of one shape).
    dtype : numpy.dtype
        Of the elements, native byte order: int64, float64, uint8 for bool; for vectors what the array had
        (int64 or float64 for tuples and lists of Python numbers, uint8 for bytes).
    shape : tuple of int
        Of one value: ``()`` for scalars.
    origin : str
        What the value was in the pickle, for `peek`: ``"int"``, ``"tuple"``, ``"list"``, ``"bytes"``,
        ``"ndarray"``, ``"tensor"``, ...
    """

    path: tuple[Step, ...]
    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] = ()
    origin: str = ""


@dataclass(frozen=True)
class Ignored:
    """A place of a record that makes no column, and why: ``"text"``, ``"shape varies"``, ..."""

    path: tuple[Step, ...]
    reason: str
    sample: str = ""


@dataclass
class TableSchema:
    """One table.

    Attributes
    ----------
    id : int
        Its number, in order of discovery.
    path : tuple of str or int
        Where its container sits in the pickle's root object: ``("edges",)``; ``()`` for the root itself.
    container : str
        ``"list"``, ``"tuple"``, ``"dict"``, ``"deque"``, ``"set"``; for the record table of an adjacency
        ``"adjacency"``.
    record : str
        What an item is: a class's full name, ``"dict"``, ``"tuple"``, ``"value"`` (a bare scalar or vector),
        ``"item"`` (a dict's key and value).
    columns, ignored
        The leaves. A column may be widened (int to float) while reading: chunks handed over before keep the
        narrower dtype.
    positional : bool
        Field names are unknown (NamedTuple, tuple, frozen slotted dataclass): the first step of every path is
        a position.
    num_rows : int
        Rows read so far; final once reading has ended.
    links_to : int or None
        For the outer dict of an adjacency: the record table's id. Its rows then end with two int columns with
        paths ``("@first",)`` and ``("@count",)``: rows first..first+count-1 of the record table hang under
        this key (or pair of keys).
    """

    id: int
    path: tuple[Step, ...]
    container: str
    record: str
    columns: list[Column] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    positional: bool = False
    num_rows: int = 0
    links_to: int | None = None


@dataclass(frozen=True)
class TableRef:
    """Stands in the tree where a table's container was."""

    id: int


@dataclass(frozen=True)
class ArrayRef:
    """A numpy array (or dense CPU tensor) left in the file.

    `offset` is the byte offset of its first element in the (decompressed) pickle, or -1 when the bytes were
    not stored raw (protocol 2 stores them as text) and `data` holds them.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int
    data: bytes | None = None


@dataclass(frozen=True)
class Instance:
    """An object of one of the pickle's own classes, never imported: its class's full name and its fields."""

    class_name: str
    fields: dict[Step, Any]


@dataclass
class PickleTree:
    """The root object and every table found on the way."""

    root: Any
    tables: list[TableSchema]
    protocol: int
    num_bytes: int
    notes: list[str] = field(default_factory=list)


class Sink(Protocol):
    """Takes rows as they are read."""

    def rows(self, table: TableSchema, first_row: int, columns: Sequence[NDArray[Any]]) -> None:
        """Take rows first_row.. of a table.

        `columns` are in the order of ``table.columns``, each of shape (rows, *column.shape). They are views
        of buffers that are overwritten after the call returns.
        """
        ...
