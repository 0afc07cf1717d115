"""Arrays written beside a version in the making: to be read, and then moved into it or dropped."""

from __future__ import annotations

from pathlib import Path

from omstore.format.durable import disk_errors
from omstore.publish.arrays import ArrayFolder

__all__ = ["ScratchArrays"]


class ScratchArrays(ArrayFolder):
    """A folder of arrays, written as a version's are (see :class:`~omstore.publish.staging.Staging`).

    What is to be published moves into the version by ``Staging.adopt``, with the digests taken while it was
    written; the rest goes with :meth:`remove`, or with the staging folder.

    Parameters
    ----------
    folder : Path
        Made where missing; on the version's disk where arrays are to be moved. Arrays in it have the names that
        they would have in a version.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Delete everything."""
        self._delete(self.path)

    def nbytes(self, name: str) -> int:
        """Bytes of the files in a folder."""
        return sum(path.stat().st_size for path in (self.path / name).rglob("*") if path.is_file())
