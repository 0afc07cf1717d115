"""One table in scratch: written chunk by chunk as encoded blocks, read back by ranges of rows.

A block that equals an earlier one of its chunk costs nothing. What is read back is bit for bit what was
written.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.convert.blocks import (
    Block,
    decode_bytes,
    decode_words,
    encode_bytes,
    encode_words,
    equal_words,
)
from omstore.convert.words import SPLIT, from_words, is_bytewise, num_blocks, to_words
from omstore.errors import BadDataError
from omstore.legacy.fields import ColumnRange
from omstore.legacy.schema import TableSchema

__all__ = ["CHUNK_BYTES", "SpoolTable"]

CHUNK_BYTES = 2 << 20
"""Raw bytes of one chunk: decoding one costs this much memory."""
_WRITE_BEHIND = 8 << 20
"""Start writing back after this many bytes: a limit that counts page cache stalls on dirty pages, not on
clean ones."""
_KEEP_CACHED = 128 << 20
"""Tables larger than this are dropped from the page cache behind the reader: they would push out everything
else."""

_BLOCK = np.dtype(
    [
        ("encoding", "i1"),
        ("table", "i2"),
        ("same_as", "i2"),
        ("base", "i8"),
        ("position", "i8"),
        ("size", "i8"),
        ("count", "i8"),
    ]
)


class SpoolTable:
    """One table in scratch.

    Attributes
    ----------
    schema : TableSchema
        As the reader left it.
    ranges : list of ColumnRange
        What was seen of every column while writing.
    components : list of list of ColumnRange
        The same for every component of a short vector; longer ones have one entry.
    """

    def __init__(self, schema: TableSchema, path: Path) -> None:
        self.schema = schema
        self.path = path
        self.ranges: list[ColumnRange] = []
        self.components: list[list[ColumnRange]] = []
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._starts = array("q", [0])
        self._offsets = array("q")
        self._blocks: list[NDArray[Any]] = []
        self._layouts: list[tuple[tuple[np.dtype[Any], int], ...]] = []
        self._size = 0
        self._behind = 0
        self._cached: tuple[int, dict[int, NDArray[Any]]] = (-1, {})
        self._closed = False

    @property
    def num_rows(self) -> int:
        """Rows written so far."""
        return self._starts[-1]

    @property
    def num_bytes(self) -> int:
        """Bytes in scratch."""
        return self._size

    @property
    def starts(self) -> NDArray[np.int64]:
        """First row of every chunk, and the number of rows at the end."""
        return np.array(self._starts, np.int64)

    # ---- writing

    def append(self, columns: Sequence[NDArray[Any]]) -> None:
        """Write rows; the arrays may be reused after the call."""
        if not columns or not len(columns[0]):
            return
        rows = len(columns[0])
        row_bytes = sum(max(1, c.itemsize * math.prod(c.shape[1:])) for c in columns)
        step = max(1, CHUNK_BYTES // row_bytes)
        for first in range(0, rows, step):
            self._append_chunk([column[first : first + step] for column in columns])

    def _append_chunk(self, columns: Sequence[NDArray[Any]]) -> None:
        rows = len(columns[0])
        layout = tuple((c.dtype, math.prod(c.shape[1:])) for c in columns)
        while len(self.ranges) < len(columns):
            self.ranges.append(ColumnRange())
            self.components.append([])
        seen: dict[tuple[Any, ...], list[tuple[int, NDArray[Any], int]]] = {}
        blocks = np.zeros(sum(num_blocks(dtype, width) for dtype, width in layout), _BLOCK)
        limits: list[tuple[int, int]] = []
        made: list[Block] = []
        parts: list[NDArray[Any]] = []
        number = position = 0
        for index, (column, (dtype, width)) in enumerate(zip(columns, layout, strict=True)):
            if width == 0:
                continue
            flat = np.ascontiguousarray(column)
            bytewise = is_bytewise(dtype)
            if bytewise:
                matrix: NDArray[Any] = flat.view(np.uint8).reshape(-1, 1)
            else:
                words = to_words(flat)
                matrix = words.reshape(rows, width) if width <= SPLIT else words.reshape(-1, 1)
            if not matrix.flags.writeable:
                matrix = matrix.copy()  # numba compiles another variant for read-only arrays
            for j in range(matrix.shape[1]):
                entry = blocks[number]
                entry["count"] = len(matrix)
                same = _find_same(seen, matrix, j, number)
                entry["same_as"] = same
                if same >= 0:
                    block = Block(0, 0, None, None)
                    made.append(made[same])
                    limits.append(limits[same])
                elif bytewise:
                    block, low, high = encode_bytes(matrix[:, 0])
                    limits.append((low, high))
                else:
                    block, low, high = encode_words(matrix, j, floats=dtype.kind == "f")
                    limits.append((low, high))
                if same < 0:
                    made.append(block)
                entry["encoding"], entry["base"], entry["position"] = block.encoding, block.base, position
                for part in (block.table, block.payload):
                    if part is not None:
                        raw = part.view(np.uint8)
                        parts.append(raw)
                        entry["size"] += len(raw)
                if block.table is not None:
                    entry["table"] = len(block.table)
                padding = (
                    -int(entry["size"]) % 8
                )  # so that codes can be viewed as wider integers when read back
                if padding:
                    parts.append(np.zeros(padding, np.uint8))
                position += int(entry["size"]) + padding
                components = self.components[index]
                if len(components) == j:
                    components.append(ColumnRange())
                for seen_range in (self.ranges[index], components[j]):
                    if dtype.kind == "f":
                        seen_range.add_floats(_values_of(made[number], matrix, j, dtype))
                    elif dtype == np.uint64:
                        seen_range.add_floats(matrix[:, j].view(np.uint64))
                    else:
                        seen_range.add_integers(*limits[number])
                number += 1
        self._write(parts, position)
        self._blocks.append(blocks)
        if self._layouts and self._layouts[-1] == layout:
            layout = self._layouts[-1]  # one tuple for all chunks alike
        self._layouts.append(layout)
        self._starts.append(self._starts[-1] + rows)

    def _write(self, parts: list[NDArray[Any]], size: int) -> None:
        self._offsets.append(self._size)
        buffer = np.concatenate([*parts, np.empty(0, np.uint8)]).data
        at = self._size
        while len(buffer):
            written = os.pwrite(self._file, buffer, at)
            buffer, at = buffer[written:], at + written
        self._size += size
        if self._size - self._behind >= _WRITE_BEHIND:
            # DONTNEED on dirty pages starts writing them back and keeps them cached until they are clean
            os.posix_fadvise(self._file, self._behind, self._size - self._behind, os.POSIX_FADV_DONTNEED)
            self._behind = self._size

    # ---- reading

    def always_same(self, column: int, other: int) -> bool:
        """Tell from the encoding whether two columns are equal throughout; False says nothing."""
        for blocks, layout in zip(self._blocks, self._layouts, strict=True):
            if max(column, other) >= len(layout) or layout[column] != layout[other]:
                return False
            a, b = self._first_block(layout, column), self._first_block(layout, other)
            for k in range(num_blocks(*layout[column])):
                sources = []
                for number in (a + k, b + k):
                    same = int(blocks[number]["same_as"])
                    sources.append(same if same >= 0 else number)
                if sources[0] != sources[1]:
                    return False
        return True

    def read(self, start: int, stop: int, columns: Sequence[int]) -> list[NDArray[Any]]:
        """Read rows ``start:stop`` of some columns, each of shape (rows, width), in the column's final dtype.

        Cheap when the rows are in one chunk, or move forward: the last chunk decoded is kept.
        """
        out = [
            np.empty((stop - start, math.prod(self.schema.columns[c].shape)), self.schema.columns[c].dtype)
            for c in columns
        ]
        self.read_into(
            start, stop, [(c, slice(None), target, 0) for c, target in zip(columns, out, strict=True)]
        )
        return out

    def read_into(
        self, start: int, stop: int, wanted: Sequence[tuple[int, slice, NDArray[Any], int]]
    ) -> None:
        """Read rows ``start:stop`` into matrices.

        Parameters
        ----------
        wanted : sequence of (column, components, out, j)
            ``components`` of ``column`` go to ``out[:, j:...]``; ``out`` is C-contiguous, of any dtype that
            holds the values.
        """
        chunk = int(np.searchsorted(np.frombuffer(self._starts, np.int64), start, side="right")) - 1
        at = start
        while at < stop:
            first, end = self._starts[chunk], self._starts[chunk + 1]
            take = slice(at - first, min(stop, end) - first)
            rows = slice(at - start, at - start + take.stop - take.start)
            self._read_chunk(chunk, take, wanted, rows)
            at, chunk = min(stop, end), chunk + 1

    def _read_chunk(
        self, chunk: int, take: slice, wanted: Sequence[tuple[int, slice, NDArray[Any], int]], rows: slice
    ) -> None:
        layout = self._layouts[chunk]
        whole = take.stop - take.start == self._starts[chunk + 1] - self._starts[chunk]
        if not whole and self._cached[0] != chunk:
            self._cached = (chunk, {})
        blocks = self._blocks[chunk]
        needed = sorted({c for c, _, _, _ in wanted if whole or c not in self._cached[1]})
        if needed and needed[-1] >= len(layout):
            raise self._late_column(needed[-1], chunk)
        payload = self._payload(chunk, needed, layout)
        for column, components, out, j in wanted:
            dtype, width = layout[column]
            first = self._first_block(layout, column)
            if (
                whole
                and not is_bytewise(dtype)
                and width <= SPLIT
                and dtype == out.dtype
                and dtype.itemsize == 8
            ):  # the hot path: straight to where it is wanted
                words = out.view(np.int64)
                for k, component in enumerate(range(*components.indices(width))):
                    self._decode(blocks, first + component, payload, words, rows.start, j + k)
                continue
            if whole or column not in self._cached[1]:
                values = self._decode_column(blocks, first, payload, dtype, width)
                if not whole:
                    self._cached[1][column] = values
            else:
                values = self._cached[1][column]
            part = values[take, components]
            out[rows, j : j + part.shape[1]] = part

    def _late_column(self, column: int, chunk: int) -> BadDataError:
        path = ".".join(map(str, self.schema.columns[column].path))
        return BadDataError(
            f"field {path!r} is missing in records before number {self._starts[chunk + 1]}",
            "Records must all have the same fields.",
        )

    def _decode_column(
        self, blocks: NDArray[Any], first: int, payload: NDArray[np.uint8], dtype: np.dtype[Any], width: int
    ) -> NDArray[Any]:
        if width == 0:
            return np.empty((0, 0), dtype)
        count = int(blocks[first]["count"])
        if is_bytewise(dtype):
            data = np.empty(count, np.uint8)
            entry = self._source(blocks, first)
            codes = payload[entry["position"] : entry["position"] + entry["size"]]
            decode_bytes(int(entry["encoding"]), int(entry["base"]), codes, data)
            return data.view(dtype).reshape(-1, width)
        split = width <= SPLIT
        words = np.empty((count, width if split else 1), np.int64)
        for k in range(words.shape[1]):
            self._decode(blocks, first + k, payload, words, 0, k)
        return from_words(words, dtype).reshape(-1, width)

    @staticmethod
    def _source(blocks: NDArray[Any], number: int) -> Any:
        same = int(blocks[number]["same_as"])
        return blocks[same if same >= 0 else number]

    def _decode(
        self,
        blocks: NDArray[Any],
        number: int,
        payload: NDArray[np.uint8],
        out: NDArray[np.int64],
        row: int,
        j: int,
    ) -> None:
        entry = self._source(blocks, number)
        begin, end = int(entry["position"]), int(entry["position"] + entry["size"])
        table_end = begin + 8 * int(entry["table"])
        table = payload[begin:table_end].view(np.int64) if table_end > begin else None
        decode_words(
            int(entry["encoding"]),
            int(entry["base"]),
            table,
            payload[table_end:end],
            int(entry["count"]),
            out,
            row,
            j,
        )

    @staticmethod
    def _first_block(layout: tuple[tuple[np.dtype[Any], int], ...], column: int) -> int:
        return sum(num_blocks(dtype, width) for dtype, width in layout[:column])

    def _payload(
        self, chunk: int, columns: Sequence[int], layout: tuple[tuple[np.dtype[Any], int], ...]
    ) -> NDArray[np.uint8]:
        """Read what the columns need of a chunk, addressed by its positions in the chunk."""
        blocks = self._blocks[chunk]
        begin, end = 1 << 62, 0
        for column in columns:
            first = self._first_block(layout, column)
            for number in range(first, first + num_blocks(*layout[column])):
                entry = self._source(blocks, number)
                if entry["size"]:
                    begin = min(begin, int(entry["position"]))
                    end = max(end, int(entry["position"] + entry["size"]))
        payload = np.empty(end, np.uint8)
        if begin < end:
            offset = self._offsets[chunk] + begin
            view = payload.data[begin:end]
            while len(view):
                got = os.preadv(self._file, [view], offset)
                if not got:
                    raise OSError(f"{self.path} is shorter than what was written to it")
                view, offset = view[got:], offset + got
            if self._size > _KEEP_CACHED:
                os.posix_fadvise(
                    self._file, self._offsets[chunk] + begin, end - begin, os.POSIX_FADV_DONTNEED
                )
        return payload

    def close(self) -> None:
        """Delete the table from scratch."""
        if not self._closed:
            self._closed = True
            os.close(self._file)
            self.path.unlink(missing_ok=True)
            self._cached = (-1, {})


def _find_same(
    seen: dict[tuple[Any, ...], list[tuple[int, NDArray[Any], int]]],
    matrix: NDArray[Any],
    j: int,
    number: int,
) -> int:
    """Return the number of an earlier block with the same content, or -1; remember this one."""
    n = len(matrix)
    key = (matrix.dtype.itemsize, n, int(matrix[0, j]), int(matrix[n // 2, j]), int(matrix[-1, j]))
    others = seen.setdefault(key, [])
    for other, values, column in others:
        if matrix.dtype.itemsize == 8:
            if equal_words(matrix, j, values, column):
                return other
        elif np.array_equal(matrix[:4096], values[:4096]) and np.array_equal(matrix, values):
            return other
    others.append((number, matrix, j))
    return -1


def _values_of(block: Block, matrix: NDArray[np.int64], j: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the distinct values of a block of floats where the encoding knows them, else all of them."""
    if block.table is not None:
        return from_words(block.table, dtype)
    if block.payload is None:
        return from_words(matrix[:1, j].copy(), dtype)
    return from_words(matrix[:, j].copy(), dtype)
