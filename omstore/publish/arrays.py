"""A folder in which the arrays of a version are being written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from omstore.errors import UsageError
from omstore.format.cold import ColdWriter
from omstore.format.durable import FileDigest
from omstore.format.hot import HotWriter, create_hot, write_hot

__all__ = ["ArrayFolder"]


class ArrayFolder:
    """Begins, writes and deletes arrays by name, and keeps the digests of what was closed.

    Parameters
    ----------
    folder : Path

    Attributes
    ----------
    path : Path
        The folder; an array called ``rows/next_node`` lies there.
    files : dict of Path to FileDigest
        The files of closed arrays.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder)
        self.files: dict[Path, FileDigest] = {}
        self._writers: list[HotWriter | ColdWriter] = []
        self._mapped: list[Path] = []

    def hot(self, name: str, dtype: np.typing.DTypeLike, item_shape: tuple[int, ...] = ()) -> HotWriter:
        """Begin a hot array; `close` closes it if the caller didn't."""
        writer = HotWriter(self._array(name), dtype, item_shape)
        self._writers.append(writer)
        return writer

    def cold(
        self,
        name: str,
        dtype: np.typing.DTypeLike,
        item_shape: tuple[int, ...] = (),
        *,
        chunk_rows: int | None = None,
        shuffle: bool = False,
        level: int = 3,
    ) -> ColdWriter:
        """Begin a cold array; see :class:`~omstore.format.cold.ColdWriter`."""
        writer = ColdWriter(
            self._array(name), dtype, item_shape, chunk_rows=chunk_rows, shuffle=shuffle, level=level
        )
        self._writers.append(writer)
        return writer

    def write_hot(self, name: str, array: np.typing.ArrayLike) -> None:
        """Write an array in memory as a hot array."""
        self.files |= write_hot(self._array(name), array)

    def create_hot(
        self, name: str, dtype: np.typing.DTypeLike, shape: tuple[int, ...]
    ) -> np.ndarray[Any, np.dtype[Any]]:
        """Make a hot array of zeros, mapped and writable, to be filled in any order."""
        folder = self._array(name)
        array = create_hot(folder, dtype, shape)
        self._mapped.append(folder)
        return array

    def close(self) -> None:
        """Close every array that was begun."""
        for writer in self._writers:
            writer.close()
            self.files |= writer.files
        self._writers.clear()

    def abandon(self) -> None:
        """Stop writing; what isn't closed stays unfinished."""
        for writer in self._writers:
            writer.abandon()
        self._writers.clear()

    def discard(self, name: str) -> None:
        """Delete an array, or a folder of arrays, that was written and isn't wanted any more."""
        self._delete(self._array(name))

    def _delete(self, folder: Path) -> None:
        for writer in self._writers:
            if writer.folder.is_relative_to(folder):
                writer.abandon()
        self._writers = [writer for writer in self._writers if not writer.folder.is_relative_to(folder)]
        self._mapped = [path for path in self._mapped if not path.is_relative_to(folder)]
        self.files = {path: digest for path, digest in self.files.items() if not path.is_relative_to(folder)}
        shutil.rmtree(folder, ignore_errors=True)

    def _array(self, name: str) -> Path:
        parts = Path(name).parts
        if not parts or Path(name).is_absolute() or ".." in parts:
            raise UsageError(f"{name!r} isn't the name of an array")
        return self.path / name
