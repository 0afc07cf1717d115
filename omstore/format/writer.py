"""What writers of hot and cold arrays share: rows are checked, appended, and the file closed or abandoned."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from omstore.errors import UsageError
from omstore.format.durable import DigestFile, FileDigest
from omstore.format.metadata import chunk_file, stored_dtype

__all__ = ["RowWriter", "as_rows"]


def as_rows(rows: np.typing.ArrayLike, dtype: np.dtype[Any], item_shape: tuple[int, ...]) -> np.ndarray:
    """Check rows to append, and give them contiguous in the stored dtype (a copy only where needed).

    Raises
    ------
    UsageError
        If the shape isn't ``(n, *item_shape)``, or the values might not survive the stored dtype.
    """
    given = np.asarray(rows)
    if given.ndim == 0 or given.shape[1:] != item_shape:
        raise UsageError(f"Rows of shape {given.shape} appended to an array of items {item_shape}")
    if not np.can_cast(given.dtype, dtype, "safe"):
        raise UsageError(
            f"Rows of {given.dtype} can't be stored as {dtype} without loss", "Convert them first."
        )
    return np.ascontiguousarray(given, dtype)


class RowWriter(ABC):
    """An array written front to back into one file; see the two kinds for parameters and attributes."""

    def __init__(self, folder: Path, dtype: np.typing.DTypeLike, item_shape: tuple[int, ...] = ()) -> None:
        self.folder = Path(folder)
        self.dtype = stored_dtype(dtype)
        self.item_shape = tuple(int(length) for length in item_shape)
        self.rows = 0
        self.files: dict[Path, FileDigest] = {}
        self.closed = False
        self._file: DigestFile | None = None

    @property
    def path(self) -> Path:
        """The file that holds the array's data."""
        return chunk_file(self.folder, 1 + len(self.item_shape))

    def append(self, rows: np.typing.ArrayLike) -> None:
        """Append rows, shape ``(n, *item_shape)``.

        Raises
        ------
        UsageError
            If shape or dtype don't fit, or the array is closed.
        DiskFullError
            If the disk is full.
        """
        if self.closed:
            raise UsageError(f"{self.folder} is closed already")
        block = as_rows(rows, self.dtype, self.item_shape)
        self.rows += len(block)
        if block.size:
            self._append(block)

    @abstractmethod
    def _append(self, block: np.ndarray) -> None:
        """Take rows that are checked, and at least one element."""

    def _opened(self) -> DigestFile:
        """The data file, made with the first data: an array without elements has none."""
        if self._file is None:
            self._file = DigestFile(self.path)
        return self._file

    @abstractmethod
    def close(self) -> None:
        """Finish the array; does nothing when closed already."""

    def abandon(self) -> None:
        """Close without finishing; what was written isn't an array."""
        self.closed = True
        if self._file is not None:
            self._file.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()
