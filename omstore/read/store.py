"""Opening a store."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from omstore.errors import UsageError
from omstore.format.manifest import Manifest, read_manifest
from omstore.publish.versions import resolve
from omstore.read.arrays import VersionArrays
from omstore.read.graph import Graph
from omstore.read.replay import Replay

__all__ = ["Store", "open_store"]


class Store:
    """One version of a store, open for reading.

    Made by :func:`omstore.open`; a context manager. Opening maps the arrays and reads nothing of them:
    milliseconds and a few MiB whatever the size. A version is immutable, and what is mapped stays readable
    even when the version is deleted. Pickles as its path and version, and may be used after a fork.

    Attributes
    ----------
    path : Path
        The version's folder.
    version : str
        Its name, such as ``v000001``.
    manifest : Manifest
        Everything that is known about it.
    """

    def __init__(self, folder: Path, *, allow_model_import: bool = False) -> None:
        self.path = folder
        self.version = folder.name
        self.manifest: Manifest = read_manifest(folder)
        arrays = VersionArrays(folder, self.manifest)
        counts = self.manifest.counts
        origin = (str(folder.parent), self.version, allow_model_import)
        self._allow_model_import = allow_model_import
        self._closed = False
        self._graph = None
        if counts.num_nodes:
            self._graph = Graph(arrays, self.manifest, origin, allow_model_import=allow_model_import)
        has_replay = bool(counts.num_transitions or self.manifest.replay)
        self._replay = Replay(arrays, self.manifest, origin) if has_replay else None

    @property
    def graph(self) -> Graph | None:
        """The transition graph; None where the store has a replay only."""
        self._check_open()
        return self._graph

    @property
    def replay(self) -> Replay | None:
        """The replay; None where the store has a graph only."""
        self._check_open()
        return self._replay

    def close(self) -> None:
        """Let go of the files. Graphs, replays and arrays that are still held elsewhere keep theirs."""
        self._closed = True
        self._graph = None
        self._replay = None

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the store {self.path} is closed", "Open it again.")

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (str(self.path.parent), self.version, self._allow_model_import)

    def __repr__(self) -> str:
        return f"<Store {self.path}: {self._graph}, {self._replay}>"


def open_store(
    path: str | os.PathLike[str], version: str | int | None = None, *, allow_model_import: bool = False
) -> Store:
    """Open a version of an export's store.

    Parameters
    ----------
    path : path-like
        The export's folder, such as ``exports/pursuit/3``; or its store's, or a version's.
    version : str or int, optional
        Such as ``"v000001"`` or 1; by default the live version.
    allow_model_import : bool
        Whether a store with procedural rows may import, and so execute, the model that it names. Stores with
        other rows, and those of built-in models, never import anything.

    Raises
    ------
    StoreNotFoundError
        If there is no store, or no such version.
    CorruptStoreError
        Naming a file that is missing, truncated or foreign.
    SchemaVersionError
        If it was written by an omstore with another schema.
    ModelImportError, ModelError
        If its rows are answered by a model that must be imported and may not be, or can't be loaded.
    """
    return Store(resolve(Path(path), version).absolute(), allow_model_import=allow_model_import)


def _reopen(path: str, version: str, allow_model_import: bool) -> Store:
    """Open a store that was pickled."""
    return open_store(path, version, allow_model_import=allow_model_import)
