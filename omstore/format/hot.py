"""Hot arrays: a zarr v3 array whose one uncompressed chunk *is* the array, and is memory-mapped."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from omstore.errors import CorruptStoreError, UsageError
from omstore.format import durable
from omstore.format.durable import FileDigest, digest_file, disk_errors, fsync_path
from omstore.format.metadata import (
    ArrayMetadata,
    Codec,
    chunk_file,
    read_array_metadata,
    stored_dtype,
    write_array_metadata,
)
from omstore.format.writer import RowWriter

__all__ = ["HotWriter", "create_hot", "drop_pages", "finish_hot", "map_hot", "write_hot"]

LITTLE_ENDIAN = Codec("bytes", {"endian": "little"})


def hot_metadata(shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayMetadata:
    """Metadata of a hot array: one chunk that covers it all, the little-endian bytes as they are."""
    return ArrayMetadata(shape, dtype, tuple(max(1, length) for length in shape), (LITTLE_ENDIAN,))


class HotWriter(RowWriter):
    """Write a hot array front to back, of a length not known before.

    ``zarr.json`` comes last, in :meth:`close`: an array that wasn't closed doesn't look like one. Memory:
    none beyond the rows given. Used as a context manager, it closes, or after an exception abandons, the
    array.

    Parameters
    ----------
    folder : Path
        The array's folder.
    dtype : dtype
        What is stored; rows appended must be of it, or safely castable to it.
    item_shape : tuple of int
        Shape of one row.

    Attributes
    ----------
    rows : int
        Rows appended so far.
    files : dict of Path to FileDigest
        After :meth:`close`: every file written.
    """

    def _append(self, block: np.ndarray) -> None:
        self._opened().write(block.data)

    def close(self) -> None:
        """Flush, fsync and write ``zarr.json``; does nothing when closed already."""
        if self.closed:
            return
        self.closed = True
        if self._file is not None:
            self.files[self.path] = self._file.finish()
        self.files |= write_array_metadata(
            self.folder, hot_metadata((self.rows, *self.item_shape), self.dtype)
        )


def write_hot(folder: Path, array: np.typing.ArrayLike) -> dict[Path, FileDigest]:
    """Write an array in memory as a hot array; gives every file written."""
    values = np.asarray(array)
    if values.ndim == 0:
        raise UsageError(f"{folder}: arrays are at least one-dimensional")
    with HotWriter(folder, values.dtype, values.shape[1:]) as writer:
        writer.append(values)
    return writer.files


def create_hot(folder: Path, dtype: np.typing.DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
    """Make a hot array of zeros to be filled in any order; call :func:`finish_hot` afterwards.

    Its disk space is reserved at once: through a map, a disk that fills up would be a SIGBUS, not an error.

    Parameters
    ----------
    folder : Path
        The array's folder.
    dtype : dtype
        What is stored.
    shape : tuple of int
        At least one-dimensional.

    Returns
    -------
    numpy.ndarray
        Writable and mapped from the file (in memory where there are no elements).

    Raises
    ------
    UsageError
        If the array exists.
    DiskFullError
        If the disk hasn't the room.
    """
    folder = Path(folder)
    if not shape:
        raise UsageError(f"{folder}: arrays are at least one-dimensional")
    metadata = hot_metadata(tuple(int(length) for length in shape), stored_dtype(dtype))
    array: np.ndarray
    if metadata.size == 0:
        array = np.empty(metadata.shape, metadata.dtype)
    else:
        path = chunk_file(folder, len(shape))
        with disk_errors(path, metadata.nbytes):
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                descriptor = os.open(path, flags, 0o666)
            except FileExistsError as error:
                raise UsageError(f"{path} exists already; a version's files are written once") from error
            try:
                durable._fallocate(descriptor, 0, metadata.nbytes)
                mapped = mmap.mmap(descriptor, metadata.nbytes)
            finally:
                os.close(descriptor)
        array = np.frombuffer(mapped, metadata.dtype).reshape(metadata.shape)
    write_array_metadata(folder, metadata)
    return array


def finish_hot(folder: Path) -> dict[Path, FileDigest]:
    """Flush an array of :func:`create_hot` to the disk, read it once to hash it, and give its files."""
    folder = Path(folder)
    metadata = read_array_metadata(folder)
    paths = [folder / "zarr.json"]
    if metadata.size:
        path = chunk_file(folder, len(metadata.shape))
        fsync_path(path)  # Linux writes dirty pages of shared maps as well
        paths.append(path)
    return {path: digest_file(path) for path in paths}


def map_hot(
    folder: Path,
    *,
    dtype: np.typing.DTypeLike | None = None,
    item_shape: tuple[int, ...] | None = None,
    rows: int | None = None,
) -> np.ndarray:
    """Map a hot array, having checked its metadata, its file's size, and whatever the caller expects of it.

    Parameters
    ----------
    folder : Path
        The array's folder.
    dtype, item_shape, rows : optional
        What the array must be; None accepts any.

    Returns
    -------
    numpy.ndarray
        Read-only, mapped from the file; it stays valid when the file is deleted. Memory: the pages touched,
        file-backed.

    Raises
    ------
    CorruptStoreError
        Naming the file, where anything is missing, truncated or unexpected.
    """
    folder = Path(folder)
    metadata = read_array_metadata(folder)
    check_expected(folder, metadata, dtype, item_shape, rows)
    _check_hot(folder, metadata)
    if metadata.size == 0:
        empty: np.ndarray = np.empty(metadata.shape, metadata.dtype)
        empty.setflags(write=False)
        return empty
    path = chunk_file(folder, len(metadata.shape))
    descriptor = open_data(path)
    try:
        size = os.fstat(descriptor).st_size
        if size != metadata.nbytes:
            raise CorruptStoreError(
                f"{path} has {size} bytes instead of {metadata.nbytes}: it is truncated or foreign",
                "Publish again, or `omstore rollback` to an earlier version.",
            )
        mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return np.frombuffer(mapped, metadata.dtype).reshape(metadata.shape)


def open_data(path: Path) -> int:
    """Open a data file for reading, and give its descriptor; raises `CorruptStoreError` where there is
    none.
    """
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CorruptStoreError(
            f"{path} is missing", "Publish again, or `omstore rollback` to an earlier version."
        ) from error


def check_expected(
    folder: Path,
    metadata: ArrayMetadata,
    dtype: np.typing.DTypeLike | None,
    item_shape: tuple[int, ...] | None,
    rows: int | None,
) -> None:
    """Compare an array's metadata with what the caller expects; raises `CorruptStoreError`."""
    path = folder / "zarr.json"
    if dtype is not None and metadata.dtype != np.dtype(dtype):
        raise CorruptStoreError(f"{path}: the array is of {metadata.dtype}, not of {np.dtype(dtype)}")
    if item_shape is not None and metadata.shape[1:] != tuple(item_shape):
        raise CorruptStoreError(
            f"{path}: the array's items have shape {metadata.shape[1:]}, not {item_shape}"
        )
    if rows is not None and metadata.shape[0] != rows:
        raise CorruptStoreError(f"{path}: the array has {metadata.shape[0]} rows, not {rows}")


def _check_hot(folder: Path, metadata: ArrayMetadata) -> None:
    path = folder / "zarr.json"
    if [codec.name for codec in metadata.codecs] != ["bytes"]:
        raise CorruptStoreError(f"{path}: not a hot array, its codecs are more than bytes")
    # Of one-byte elements zarr leaves the byte order out.
    little = metadata.codecs[0].configuration.get("endian", "little") == "little"
    if not little and metadata.dtype.itemsize > 1:
        raise CorruptStoreError(f"{path}: not a hot array, it is big endian")
    if "endian" not in metadata.codecs[0].configuration and metadata.dtype.itemsize > 1:
        raise CorruptStoreError(f"{path}: not a hot array, its byte order isn't given")
    if metadata.chunk_shape != tuple(max(1, length) for length in metadata.shape):
        raise CorruptStoreError(f"{path}: not a hot array, it has more than one chunk")


def drop_pages(array: np.ndarray) -> None:
    """Tell the kernel that the pages of a mapped array, or of a slice of one, aren't needed soon.

    After a sequential pass this gives file-backed memory back; the next access reads them again. Does nothing
    for arrays in memory.
    """
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or array.size == 0:
        return
    origin = np.frombuffer(base, np.uint8).ctypes.data
    start, end = 0, len(base)
    if array.flags.c_contiguous:
        start = (array.ctypes.data - origin) // mmap.PAGESIZE * mmap.PAGESIZE
        end = array.ctypes.data - origin + array.nbytes
    base.madvise(mmap.MADV_DONTNEED, start, end - start)
