"""Cold arrays: compressed chunks in one shard, streamed out and read back chunk by chunk."""

from __future__ import annotations

import array as arrays
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from omstore.errors import CorruptStoreError, UsageError
from omstore.format.hot import check_expected, open_data
from omstore.format.metadata import chunk_file, read_array_metadata, write_array_metadata
from omstore.format.sharding import ChunkCoder, cold_metadata, decode_index, encode_index, index_bytes
from omstore.format.writer import RowWriter

__all__ = ["CHUNK_BYTES", "ColdArray", "ColdWriter", "default_chunk_rows"]

CHUNK_BYTES = 1 << 20
"""Raw bytes of an inner chunk, about: large enough to compress well, small enough to read a slice."""


def default_chunk_rows(dtype: np.typing.DTypeLike, item_shape: tuple[int, ...] = ()) -> int:
    """Rows of an inner chunk of about 1 MiB, at least 1."""
    row_bytes = np.dtype(dtype).itemsize * int(np.prod(item_shape, dtype=np.int64))
    return max(1, CHUNK_BYTES // max(1, row_bytes))


class ColdWriter(RowWriter):
    """Write a cold array front to back, of a length not known before.

    Memory: one raw and one compressed inner chunk, and 16 bytes a chunk for the index. The bytes written
    depend on the rows, never on how they were batched. Used as a context manager, it closes, or after an
    exception abandons, the array.

    Parameters
    ----------
    folder : Path
        The array's folder.
    dtype : dtype
        What is stored; rows appended must be of it, or safely castable to it.
    item_shape : tuple of int
        Shape of one row.
    chunk_rows : int, optional
        Rows of an inner chunk; by default about 1 MiB of them.
    shuffle : bool
        Group the bytes of the elements by significance before compressing (through blosc): for codes and
        floats.
    level : int
        zstd level.

    Attributes
    ----------
    rows : int
        Rows appended so far.
    files : dict of Path to FileDigest
        After :meth:`close`: every file written.
    """

    def __init__(
        self,
        folder: Path,
        dtype: np.typing.DTypeLike,
        item_shape: tuple[int, ...] = (),
        *,
        chunk_rows: int | None = None,
        shuffle: bool = False,
        level: int = 3,
    ) -> None:
        super().__init__(folder, dtype, item_shape)
        self.chunk_rows = (
            default_chunk_rows(dtype, self.item_shape) if chunk_rows is None else int(chunk_rows)
        )
        if self.chunk_rows < 1:
            raise UsageError(f"{folder}: a chunk has at least one row, not {self.chunk_rows}")
        self._options = (self.chunk_rows, shuffle, level)
        metadata = cold_metadata(0, self.item_shape, self.dtype, *self._options)
        self._coder = ChunkCoder.from_metadata(metadata, self.folder)
        self._pending: np.ndarray = np.zeros((self.chunk_rows, *self.item_shape), self.dtype)
        self._filled = 0
        self._index = arrays.array("Q")

    def _append(self, block: np.ndarray) -> None:
        start = 0
        while start < len(block):
            if self._filled == 0 and len(block) - start >= self.chunk_rows:
                self._write_chunk(block[start : start + self.chunk_rows])
                start += self.chunk_rows
                continue
            count = min(self.chunk_rows - self._filled, len(block) - start)
            self._pending[self._filled : self._filled + count] = block[start : start + count]
            self._filled += count
            start += count
            if self._filled == self.chunk_rows:
                self._filled = 0
                self._write_chunk(self._pending)

    def _write_chunk(self, chunk: np.ndarray) -> None:
        file = self._opened()
        data = self._coder.encode(chunk)
        self._index.extend((file.size, len(data)))
        file.write(data)

    def close(self) -> None:
        """Write the last chunk and the index, fsync, and write ``zarr.json``; does nothing when closed
        already.
        """
        if self.closed:
            return
        self.closed = True
        if self._filled:
            self._pending[self._filled :] = 0  # zarr wants edge chunks whole; zeros keep them deterministic
            self._write_chunk(self._pending)
        if self._file is not None:
            self._file.write(encode_index(np.array(self._index, np.uint64).reshape(-1, 2)))
            self.files[self.path] = self._file.finish()
        metadata = cold_metadata(self.rows, self.item_shape, self.dtype, *self._options)
        self.files |= write_array_metadata(self.folder, metadata)


class ColdArray:
    """Read a cold array, lazily.

    Reads through its own file descriptor by position, so it may be shared by threads, used after a fork, and
    goes on working when the file is deleted. It pickles as its folder. Memory: the shard's index (16 bytes a
    chunk) and the chunk decoded last.

    Parameters
    ----------
    folder : Path
        The array's folder.
    dtype, item_shape, rows : optional
        What the array must be; None accepts any.

    Raises
    ------
    CorruptStoreError
        Naming the file, where it is missing, truncated, changed or foreign. Damage inside a chunk shows when
        it is read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dtype: np.typing.DTypeLike | None = None,
        item_shape: tuple[int, ...] | None = None,
        rows: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        metadata = read_array_metadata(self.folder)
        check_expected(self.folder, metadata, dtype, item_shape, rows)
        self.shape = metadata.shape
        self.dtype = metadata.dtype
        self._coder = ChunkCoder.from_metadata(metadata, self.folder / "zarr.json")
        self.chunk_rows = self._coder.chunk_shape[0]
        self.path = chunk_file(self.folder, len(self.shape))
        self._last: tuple[int, np.ndarray] | None = None
        self._descriptor = -1
        if metadata.size:
            self._descriptor = open_data(self.path)
            self._finalizer = weakref.finalize(self, os.close, self._descriptor)
            self._index = self._read_index(metadata.chunk_shape[0] // self.chunk_rows)

    @property
    def nbytes_stored(self) -> int:
        """Bytes of the shard's file; 0 where there are no elements."""
        return 0 if self._descriptor < 0 else os.fstat(self._descriptor).st_size

    @property
    def num_chunks(self) -> int:
        """Inner chunks that hold rows."""
        return -(-len(self) // self.chunk_rows)

    def __len__(self) -> int:
        return self.shape[0]

    def __reduce__(self) -> tuple[type[ColdArray], tuple[Path]]:
        return type(self), (self.folder,)

    def _read_index(self, chunks: int) -> np.ndarray:
        size = os.fstat(self._descriptor).st_size
        limit = size - index_bytes(chunks)
        if limit < 0:
            raise CorruptStoreError(f"{self.path} has {size} bytes, too few for its index: it is truncated")
        return decode_index(self._pread(index_bytes(chunks), limit), self.num_chunks, limit, self.path)

    def _pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length:
            return data
        pieces = [data]
        remaining = length - len(data)
        while remaining:
            piece = os.pread(self._descriptor, remaining, offset + length - remaining)
            if not piece:
                raise CorruptStoreError(
                    f"{self.path} ends at byte {offset + length - remaining}: it is truncated"
                )
            pieces.append(piece)
            remaining -= len(piece)
        return b"".join(pieces)

    def _decode(self, chunk: int, out: np.ndarray) -> None:
        offset, length = (int(value) for value in self._index[chunk])
        try:
            self._coder.decode_into(self._pread(length, offset), out)
        except ValueError as error:
            raise CorruptStoreError(f"{self.path}: inner chunk {chunk} at byte {offset}: {error}") from error

    def _chunk(self, chunk: int) -> np.ndarray:
        last = self._last  # one read of the attribute: another thread may replace it
        if last is not None and last[0] == chunk:
            return last[1]
        decoded: np.ndarray = np.empty(self._coder.chunk_shape, self.dtype)
        self._decode(chunk, decoded)
        decoded.setflags(write=False)
        self._last = (chunk, decoded)
        return decoded

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read rows `start` to `stop`, a new array; every chunk touched is decoded once.

        Raises
        ------
        UsageError
            Unless 0 <= start <= stop <= len.
        CorruptStoreError
            If a chunk is damaged.
        """
        if not 0 <= start <= stop <= len(self):
            raise UsageError(f"Rows {start} to {stop} of {self.folder}, which has {len(self)}")
        rows: np.ndarray = np.empty((stop - start, *self.shape[1:]), self.dtype)
        if rows.size == 0:
            return rows
        for chunk in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
            base = chunk * self.chunk_rows
            first, end = max(start, base), min(stop, base + self.chunk_rows)
            if end - first == self.chunk_rows:
                self._decode(chunk, rows[first - start : end - start])
            else:
                rows[first - start : end - start] = self._chunk(chunk)[first - base : end - base]
        return rows

    def take(self, indices: np.typing.ArrayLike) -> np.ndarray:
        """Read rows in any order, shape ``(len(indices), ...)``; every chunk needed is decoded once.

        Raises
        ------
        UsageError
            If an index is negative or beyond the end, or they aren't one-dimensional integers.
        CorruptStoreError
            If a chunk is damaged.
        """
        wanted = np.asarray(indices)
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise UsageError(f"{self.folder}: indices are one-dimensional integers")
        rows: np.ndarray = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        if wanted.size == 0:
            return rows
        if wanted.min() < 0 or wanted.max() >= len(self):
            raise UsageError(
                f"{self.folder} has {len(self)} rows; asked for {wanted.min()} to {wanted.max()}"
            )
        if rows.size == 0:
            return rows
        wanted = wanted.astype(np.int64)
        chunks = wanted // self.chunk_rows
        order = np.argsort(chunks, kind="stable")
        ordered = chunks[order]
        starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        for start, stop in zip(starts, np.r_[starts[1:], len(order)], strict=True):
            where = order[start:stop]
            chunk = int(ordered[start])
            rows[where] = self._chunk(chunk)[wanted[where] - chunk * self.chunk_rows]
        return rows

    def chunks(self) -> Iterator[tuple[int, np.ndarray]]:
        """Go through the array front to back; gives (first row, rows of one inner chunk), a new array
        each.
        """
        for start in range(0, len(self), self.chunk_rows):
            yield start, self.read(start, min(start + self.chunk_rows, len(self)))

    def __getitem__(self, key: int | slice | np.ndarray) -> np.ndarray:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self.read(start, max(start, stop))
            return self.take(np.arange(start, stop, step, dtype=np.int64))
        if isinstance(key, int | np.integer):
            row = int(key) + len(self) if key < 0 else int(key)
            if not 0 <= row < len(self):
                # The builtin one: it is how Python ends a loop over a sequence.
                raise IndexError(f"row {key} of {self.folder}, which has {len(self)}")
            result: Any = self.read(row, row + 1)[0]
            return result  # type: ignore[no-any-return]
        wanted = np.asarray(key)
        return self.take(np.where(wanted < 0, wanted + len(self), wanted))

    def __array__(self, dtype: np.typing.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return self.read(0, len(self)).astype(dtype or self.dtype, copy=False)

    def close(self) -> None:
        """Close the file; further reads fail."""
        if self._descriptor >= 0:
            self._finalizer()
