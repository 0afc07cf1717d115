"""Reading the fields of records chunk by chunk, wherever their columns lie: spooled tables, arrays, keys of
an adjacency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.convert.spool import Spool
from omstore.convert.spool_table import CHUNK_BYTES, SpoolTable
from omstore.errors import BadDataError
from omstore.legacy.fields import ArraySource, ColumnRange, ColumnRef, Field, Records
from omstore.legacy.schema import ArrayRef
from omstore.legacy.source import PickleSource

__all__ = ["ArrayFile", "RecordReader"]


class ArrayFile:
    """Reads slices of the arrays that the reader left in the (decompressed) pickle."""

    def __init__(self, source: PickleSource) -> None:
        self._source = source

    def read(self, array: ArrayRef, start: int, stop: int) -> NDArray[Any]:
        """Read rows ``start:stop`` of an array, as (rows, width) in native byte order; a copy."""
        width = int(np.prod(array.shape[1:], dtype=np.int64))
        if array.fortran_order and len(array.shape) > 1:
            return self._read_fortran(array, start, stop, width)
        values = self._elements(array, start * width, (stop - start) * width)
        return _native(values).reshape(stop - start, width)

    def _read_fortran(self, array: ArrayRef, start: int, stop: int, width: int) -> NDArray[Any]:
        # element (i, j, k) lies at i + rows * (j + columns * k): one run for each element of an item
        rows = array.shape[0]
        out = np.empty((stop - start, width), array.dtype)
        numbers = np.arange(width).reshape(array.shape[1:]).reshape(-1, order="F")
        for run, target in enumerate(numbers):
            out[:, target] = self._elements(array, run * rows + start, stop - start)
        return _native(out)

    def _elements(self, array: ArrayRef, first: int, count: int) -> NDArray[Any]:
        size = array.dtype.itemsize
        if array.data is not None:
            raw = array.data[first * size : (first + count) * size]
        else:
            begin = array.offset + first * size
            raw = self._source.data[begin : begin + count * size].tobytes()
            self._source.release(begin, begin + count * size)
        if len(raw) != count * size:
            raise BadDataError(f"{self._source.name} ends inside an array that begins at byte {array.offset}")
        return np.frombuffer(raw, array.dtype).copy()


def _native(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "b":
        return values.view(np.uint8)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


class _LinkCursor:
    """Repeats the keys of an adjacency's outer dict for the records below them; moves forward only."""

    def __init__(self, table: SpoolTable | None, wanted: Sequence[tuple[int, slice]], name: str) -> None:
        if table is None:
            raise BadDataError(f"{name}: the adjacency has no keys")
        self._table = table
        self._name = name
        self._columns = [column for column, _ in wanted]
        self._slices = [components for _, components in wanted]
        paths = [column.path for column in table.schema.columns]
        self._first, self._count = paths.index(("@first",)), paths.index(("@count",))
        self._starts = table.starts
        self._chunk = -1
        self._keys: list[NDArray[Any]] = []
        self._ends = np.zeros(0, np.int64)
        self._begin = 0  # first record below the current chunk's keys

    def fill(self, start: int, stop: int, outs: Sequence[NDArray[Any]]) -> None:
        """Write the keys of records ``start:stop``, one matrix for every wanted column."""
        at = start
        while at < stop:
            while self._chunk < 0 or at >= self._end:
                self._advance()
            rows = slice(
                int(np.searchsorted(self._ends, at, side="right")), int(np.searchsorted(self._ends, stop)) + 1
            )
            ends = np.minimum(self._ends[rows], stop)
            counts = np.diff(ends, prepend=at)
            upto = int(ends[-1])
            for keys, out in zip(self._keys, outs, strict=True):
                out[at - start : upto - start] = np.repeat(keys[rows], counts, axis=0)
            at = upto

    @property
    def _end(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else self._begin

    def _advance(self) -> None:
        begin = self._end
        self._chunk += 1
        if self._chunk + 1 >= len(self._starts):
            raise BadDataError(
                f"{self._name}: the adjacency's keys cover fewer records than there are: other lists of such records "
                "stand beside it in the pickle",
                "Export the adjacency without them.",
            )
        bounds = int(self._starts[self._chunk]), int(self._starts[self._chunk + 1])
        *keys, first, count = self._table.read(*bounds, [*self._columns, self._first, self._count])
        self._keys = [key[:, part] for key, part in zip(keys, self._slices, strict=True)]
        self._ends = begin + np.cumsum(count[:, 0])
        self._begin = begin
        if not np.array_equal(first[:, 0], self._ends - count[:, 0]):
            raise BadDataError("the adjacency's records aren't in the order of its keys")


class RecordReader:
    """Reads records front to back.

    Parameters
    ----------
    records : Records
    spool : Spool
        Holds the tables.
    arrays : ArrayFile or None
        Holds the arrays; needed where a column is one.
    """

    def __init__(self, records: Records, spool: Spool, arrays: ArrayFile | None) -> None:
        self.records = records
        self._spool = spool
        self._arrays = arrays
        self.num_rows = records.num_rows

    def range_of(self, ref: ColumnRef) -> ColumnRange | None:
        """Return what was seen of a spooled column."""
        return range_in(self._spool, self.records, ref)

    def known_same(self, one: Field, other: Field) -> bool:
        """Tell without reading whether two fields are equal throughout; False says nothing."""
        if len(one.columns) != len(other.columns):
            return False
        for a, b in zip(one.columns, other.columns, strict=True):
            if a.link or b.link or (a.start, a.stop) != (b.start, b.stop):
                return False
            sources = self.records.sources[a.column], self.records.sources[b.column]
            if isinstance(sources[0], ArraySource) or isinstance(sources[1], ArraySource):
                return False
            if sources[0][0] != sources[1][0]:
                return False
            if not self._spool.tables[sources[0][0]].always_same(sources[0][1], sources[1][1]):
                return False
        return True

    def limits(self, where: Field) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the smallest and largest value of every component of a field.

        Known from spooling for scalars and short vectors; else the field is read.
        """
        low, high = np.full(where.width, np.inf), np.full(where.width, -np.inf)
        j = 0
        for ref in where.columns:
            known = self._components(ref)
            if known is None:
                break
            for seen in known[ref.start : ref.stop]:
                low[j], high[j] = seen.minimum, seen.maximum
                j += 1
        else:
            return low, high
        for _, (values,) in self.chunks([where]):
            low = np.minimum(low, values.min(axis=0))
            high = np.maximum(high, values.max(axis=0))
        return low, high

    def extent(self, where: Field) -> ColumnRange:
        """Return the range of all numbers of a field, from spooling where it is known, else by reading it."""
        total = ColumnRange()
        for ref in where.columns:
            seen = self.range_of(ref)
            column = self.records.column(ref)
            if seen is None or ref.width != int(np.prod(column.shape, dtype=np.int64)):
                break
            total.finite &= seen.finite
            total.whole &= seen.whole
            total.minimum = min(total.minimum, seen.minimum)
            total.maximum = max(total.maximum, seen.maximum)
        else:
            return total
        total = ColumnRange()
        for _, (values,) in self.chunks([where]):
            total.add_floats(values)
        return total

    def _components(self, ref: ColumnRef) -> list[ColumnRange] | None:
        if ref.link:
            table = self._spool.tables.get(self.records.link.id) if self.records.link is not None else None
            column = ref.column
        else:
            source = self.records.sources[ref.column]
            if isinstance(source, ArraySource):
                return None
            table, column = self._spool.tables.get(source[0]), source[1]
        if table is None or column >= len(table.components) or len(table.components[column]) < ref.stop:
            return None
        return table.components[column]

    def chunks(
        self, fields: Sequence[Field], start: int = 0, stop: int | None = None
    ) -> Iterator[tuple[int, list[NDArray[Any]]]]:
        """Go through records ``start:stop`` in chunks of a few MiB at most.

        Yields
        ------
        first : int
            Number of the chunk's first record.
        values : list of (rows, width) arrays
            One a field, C-contiguous, of the field's dtype; new arrays.
        """
        stop = self.num_rows if stop is None else stop
        tables: dict[int, list[tuple[int, slice, int, int]]] = {}
        arrays: list[tuple[ArrayRef, slice, int, int]] = []
        links: list[tuple[int, slice, int, int]] = []
        for number, where in enumerate(fields):
            j = 0
            for ref in where.columns:
                part = slice(ref.start, ref.stop)
                source = None if ref.link else self.records.sources[ref.column]
                if source is None:
                    links.append((ref.column, part, number, j))
                elif isinstance(source, ArraySource):
                    arrays.append((source.array, part, number, j))
                else:
                    tables.setdefault(source[0], []).append((source[1], part, number, j))
                j += ref.width
        cursor = None
        if links:
            link = self.records.link
            table = self._spool.tables.get(link.id) if link is not None else None
            cursor = _LinkCursor(table, [(column, part) for column, part, _, _ in links], self.records.name)
        for first, last in self._ranges(fields, tables, start, stop):
            out = [np.empty((last - first, where.width), where.dtype) for where in fields]
            for table_id, wanted in tables.items():
                self._spool.tables[table_id].read_into(
                    first, last, [(column, part, out[number], j) for column, part, number, j in wanted]
                )
            for array, part, number, j in arrays:
                if self._arrays is None:
                    raise ValueError("the records are arrays, but no file was given to read them from")
                values = self._arrays.read(array, first, last)[:, part]
                out[number][:, j : j + values.shape[1]] = values
            if cursor is not None:
                keys = [out[number][:, j : j + (part.stop - part.start)] for _, part, number, j in links]
                cursor.fill(first, last, keys)
            yield first, out

    def _ranges(
        self,
        fields: Sequence[Field],
        tables: dict[int, list[tuple[int, slice, int, int]]],
        start: int,
        stop: int,
    ) -> Iterator[tuple[int, int]]:
        row_bytes = max(1, sum(where.width * where.dtype.itemsize for where in fields))
        step = max(1, CHUNK_BYTES // row_bytes)
        if tables:
            # a spooled chunk decodes straight to where it is wanted when it is taken whole
            most = max(tables, key=lambda table_id: len(tables[table_id]))
            starts = self._spool.tables[most].starts
            at = start
            while at < stop:
                ahead = int(starts[np.searchsorted(starts, at, side="right")])
                last = min(stop, ahead)
                yield at, last
                at = last
            return
        for at in range(start, stop, step):
            yield at, min(stop, at + step)


def range_in(spool: Spool, records: Records, ref: ColumnRef) -> ColumnRange | None:
    """Return what a spool saw of a column, or of one component of a short vector; None for arrays."""
    if ref.link:
        source: tuple[int, int] | ArraySource | None = (
            (records.link.id, ref.column) if records.link is not None else None
        )
    else:
        source = records.sources[ref.column]
    if source is None or isinstance(source, ArraySource) or source[0] not in spool.tables:
        return None
    table = spool.tables[source[0]]
    components = table.components[source[1]] if source[1] < len(table.components) else []
    if ref.width == 1 and len(components) > 1:
        return components[ref.start]
    return spool.range_of(*source)
