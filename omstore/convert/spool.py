"""Tables of a pickle, written compactly to scratch while it is read, and read back in order.

The reader hands over chunks of columns; the graph's tens of millions of values can't stay in memory and a
job's limit may count page cache too, so every byte matters: a chunk's columns become blocks (see
`omstore.convert.blocks`), a block that equals an earlier one of its chunk costs nothing. What is read back
is bit for bit what was handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from omstore.convert.spool_table import SpoolTable
from omstore.legacy.fields import ColumnRange
from omstore.legacy.schema import TableSchema

__all__ = ["Spool"]


class Spool:
    """A `Sink` that spools every table into a folder.

    Use as a context manager: leaving it deletes what was spooled.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.tables: dict[int, SpoolTable] = {}

    def rows(self, table: TableSchema, first_row: int, columns: Sequence[NDArray[Any]]) -> None:
        """Take rows, as `omstore.legacy.schema.Sink` says."""
        spooled = self.tables.get(table.id)
        if spooled is None:
            spooled = self.tables[table.id] = SpoolTable(table, self.folder / f"table-{table.id}")
        if first_row != spooled.num_rows:
            raise ValueError(f"table {table.id}: rows {first_row}.. after {spooled.num_rows} rows")
        spooled.append(columns)

    def range_of(self, table: int, column: int) -> ColumnRange | None:
        """Return what was seen of a column."""
        spooled = self.tables.get(table)
        if spooled is None or column >= len(spooled.ranges):
            return None
        return spooled.ranges[column]

    @property
    def num_bytes(self) -> int:
        """Bytes in scratch."""
        return sum(table.num_bytes for table in self.tables.values())

    def close(self) -> None:
        """Delete everything that was spooled."""
        for table in self.tables.values():
            table.close()

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
