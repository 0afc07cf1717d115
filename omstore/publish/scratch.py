"""Arrays written beside a version in the making: to be read, and then moved into it or dropped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from omstore.errors import UsageError
from omstore.format.cold import ColdWriter
from omstore.format.durable import FileDigest, disk_errors
from omstore.format.hot import HotWriter, create_hot, write_hot

__all__ = ["ScratchArrays"]


class ScratchArrays:
    """A folder of arrays, written as a version's are (see :class:`~omstore.publish.staging.Staging`).

    What is to be published moves into the version by ``Staging.adopt``, with the digests taken while it was
    written; the rest goes with :meth:`remove`, or with the staging folder.

    Parameters
    ----------
    folder : Path
        Made where missing; on the version's disk where arrays are to be moved.

    Attributes
    ----------
    path : Path
        The folder, with the arrays under the names that they would have in a version.
    files : dict of Path to FileDigest
        The files of closed arrays.
    """

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder)
        self.files: dict[Path, FileDigest] = {}
        self._writers: list[HotWriter | ColdWriter] = []
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def hot(self, name: str, dtype: Any, item_shape: tuple[int, ...] = ()) -> HotWriter:
        """Begin a hot array."""
        writer = HotWriter(self.path / name, dtype, item_shape)
        self._writers.append(writer)
        return writer

    def cold(
        self,
        name: str,
        dtype: Any,
        item_shape: tuple[int, ...] = (),
        *,
        chunk_rows: int | None = None,
        shuffle: bool = False,
        level: int = 3,
    ) -> ColdWriter:
        """Begin a cold array."""
        writer = ColdWriter(
            self.path / name, dtype, item_shape, chunk_rows=chunk_rows, shuffle=shuffle, level=level
        )
        self._writers.append(writer)
        return writer

    def write_hot(self, name: str, array: Any) -> None:
        """Write an array in memory as a hot array."""
        self.files |= write_hot(self.path / name, array)

    def create_hot(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Any:
        """Make a hot array of zeros, mapped and writable."""
        return create_hot(self.path / name, dtype, shape)

    def close(self) -> None:
        """Close every array that was begun."""
        for writer in self._writers:
            writer.close()
            self.files |= writer.files
        self._writers.clear()

    def remove(self, name: str = "") -> None:
        """Delete an array, a folder of them, or everything; what isn't there is fine."""
        folder = self.path / name
        if ".." in Path(name).parts:
            raise UsageError(f"{name!r} isn't the name of an array")
        for writer in self._writers:
            if writer.folder.is_relative_to(folder):
                writer.abandon()
        self._writers = [writer for writer in self._writers if not writer.folder.is_relative_to(folder)]
        shutil.rmtree(folder, ignore_errors=True)

    def nbytes(self, name: str = "") -> int:
        """Bytes of the files in a folder, or in all of it."""
        return sum(path.stat().st_size for path in (self.path / name).rglob("*") if path.is_file())
