"""Streamed records, spooled to scratch in the form in which conversion reads a pickle's.

So sorting, hoisting and encoding are conversion's own, whatever order the records came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.convert.records import RecordReader
from omstore.convert.spool import Spool
from omstore.legacy.fields import ColumnRef, Field, Records
from omstore.legacy.schema import Column, TableSchema

__all__ = ["SpooledTable"]

_PENDING = 1 << 22
"""Bytes gathered before they are spooled: a chunk of the spool for every record would be large and slow."""


class SpooledTable:
    """A table that grows by batches and is then read as often as wanted.

    Parameters
    ----------
    name : str
        For messages.
    folder : Path
        Scratch.
    columns : sequence of (name, dtype, width or None)
        None: a scalar. A column of uint8 widens to int64 once a batch doesn't fit it.
    """

    def __init__(self, name: str, folder: Path, columns: Sequence[tuple[str, Any, int | None]]) -> None:
        self.name = name
        self._spool = Spool(folder)
        self._schema = TableSchema(0, (name,), "writer", "record", [])
        for column, dtype, width in columns:
            kind = "vector" if width is not None else "float" if np.dtype(dtype).kind == "f" else "int"
            shape = () if width is None else (width,)
            self._schema.columns.append(Column((column,), kind, np.dtype(dtype), shape))
        self._pending: list[list[NDArray[Any]]] = []
        self._pending_bytes = 0
        self.num_rows = 0

    @property
    def names(self) -> list[str]:
        """Of the columns."""
        return [str(column.path[0]) for column in self._schema.columns]

    @property
    def num_bytes(self) -> int:
        """Bytes in scratch."""
        return self._spool.num_bytes

    def add(self, *columns: NDArray[Any]) -> None:
        """Add records: one array for each column, copied."""
        if not len(columns[0]):
            return
        fitted = []
        for i, values in enumerate(columns):
            column = self._schema.columns[i]
            dtype = column.dtype
            if dtype == np.uint8 and values.dtype not in (np.uint8, np.bool_):
                dtype = np.dtype(np.int64)
                self._flush()
                self._schema.columns[i] = Column(column.path, column.kind, dtype, column.shape)
            fitted.append(np.array(values, dtype, order="C"))
        self._pending.append(fitted)
        self._pending_bytes += sum(values.nbytes for values in fitted)
        self.num_rows += len(columns[0])
        if self._pending_bytes > _PENDING:
            self._flush()

    def _flush(self) -> None:
        if self._pending:
            whole = [np.concatenate(parts) for parts in zip(*self._pending, strict=True)]
            self._spool.rows(self._schema, self._schema.num_rows, whole)
            self._schema.num_rows += len(whole[0])
        self._pending, self._pending_bytes = [], 0

    def records(self) -> Records:
        """Describe what was added so far."""
        self._flush()
        sources = tuple((0, i) for i in range(len(self._schema.columns)))
        return Records((self.name,), self._schema, sources, self.num_rows)

    def reader(self) -> RecordReader:
        """Read what was added so far."""
        return RecordReader(self.records(), self._spool, None)

    def field(self, name: str) -> Field:
        """Return a column as conversion names it."""
        number = self.names.index(name)
        column = self._schema.columns[number]
        width = column.shape[0] if column.shape else 1
        return Field(name, (ColumnRef(number, 0, width),), (), column.dtype)

    def close(self) -> None:
        """Delete what was spooled."""
        self._spool.close()
