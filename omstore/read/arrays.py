"""The arrays of one version, checked against its manifest before they are mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError
from omstore.format.cold import ColdArray
from omstore.format.hot import map_hot
from omstore.format.manifest import Manifest
from omstore.format.metadata import read_array_metadata

__all__ = ["AnyArray", "VersionArrays"]

AnyArray = NDArray[Any] | ColdArray
"""An array of the store: mapped, or compressed."""

_HINT = "Publish again, or `omstore rollback` to an earlier version."


class VersionArrays:
    """Opens arrays by their name in a version, such as ``nodes/state``.

    Before anything is mapped, the files are compared with the manifest (one `stat` each): one that is
    missing, of another size, or not of this version is an error by name, instead of a crash or zeros later.

    Parameters
    ----------
    folder : Path
        The version's folder.
    manifest : Manifest
        Its manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self._files = manifest.files

    def names(self, parent: str) -> list[str]:
        """Names of the arrays in a folder of the version, sorted."""
        start, end = f"{parent}/", "/zarr.json"
        inside = (
            path[len(start) : -len(end)]
            for path in self._files
            if path.startswith(start) and path.endswith(end)
        )
        return sorted(name for name in inside if name)

    def __contains__(self, name: str) -> bool:
        return f"{name}/zarr.json" in self._files

    def check(self, name: str) -> None:
        """Check the files of an array, or of all arrays in a folder.

        Raises
        ------
        CorruptStoreError
            Naming the file that is missing or of another size than published.
        """
        expected = [(path, digest) for path, digest in self._files.items() if path.startswith(f"{name}/")]
        if not expected:
            raise CorruptStoreError(f"{self.folder / name}: the manifest lists no such array", _HINT)
        for path, digest in expected:
            try:
                size = (self.folder / path).stat().st_size
            except (FileNotFoundError, NotADirectoryError) as error:
                raise CorruptStoreError(f"{self.folder / path} is missing", _HINT) from error
            if size != digest.size:
                raise CorruptStoreError(
                    f"{self.folder / path} has {size} bytes instead of {digest.size}", _HINT
                )

    def hot(
        self, name: str, *, rows: int | None, dtype: Any = None, item_shape: tuple[int, ...] | None = None
    ) -> NDArray[Any]:
        """Map a hot array; see :func:`omstore.format.hot.map_hot`."""
        self.check(name)
        return map_hot(self.folder / name, dtype=dtype, item_shape=item_shape, rows=rows)

    def cold(
        self, name: str, *, rows: int | None, dtype: Any = None, item_shape: tuple[int, ...] | None = None
    ) -> ColdArray:
        """Open a cold array; see :class:`omstore.format.cold.ColdArray`."""
        self.check(name)
        return ColdArray(self.folder / name, dtype=dtype, item_shape=item_shape, rows=rows)

    def any(
        self, name: str, *, rows: int | None, dtype: Any = None, item_shape: tuple[int, ...] | None = None
    ) -> AnyArray:
        """Open an array that may be hot or cold, as its metadata says."""
        self.check(name)
        codecs = [codec.name for codec in read_array_metadata(self.folder / name).codecs]
        if codecs == ["bytes"]:
            return self.hot(name, rows=rows, dtype=dtype, item_shape=item_shape)
        return self.cold(name, rows=rows, dtype=dtype, item_shape=item_shape)


def take(values: AnyArray, at: NDArray[Any] | slice) -> NDArray[Any]:
    """Read items at checked indices (a new array), or a slice of step 1 (of a mapped array: a view)."""
    if isinstance(values, ColdArray):
        return values[at]
    if isinstance(at, slice):
        return values[at]
    return np.take(values, at, axis=0)
