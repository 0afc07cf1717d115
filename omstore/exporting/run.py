"""`export`: a store's graph in another format."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omstore.errors import UsageError
from omstore.exporting.columns import Source
from omstore.exporting.destination import destination
from omstore.exporting.npz import write_npz, write_scipy
from omstore.exporting.parquet import FILES, require_pyarrow, write_parquet
from omstore.exporting.umb import write_umb
from omstore.memory import DEFAULT_BUDGET
from omstore.progress import Progress, silent
from omstore.read import open_store

__all__ = ["FORMATS", "ExportReport", "export_graph"]


@dataclass(frozen=True)
class ExportReport:
    """What `export_graph` wrote.

    Attributes
    ----------
    path : Path
        The file or folder.
    format : str
    version : str
        Of the store.
    num_nodes, num_rows, num_edges : int
        Of the graph.
    size : int
        Bytes on disk.
    notes : tuple of str
        What isn't in it as it is in the graph.
    seconds : float
    """

    path: Path
    format: str
    version: str
    num_nodes: int
    num_rows: int
    num_edges: int
    size: int
    notes: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {**vars(self), "path": str(self.path), "notes": list(self.notes)}


_WRITERS: dict[str, Callable[[Source, Path], tuple[str, ...] | None]] = {
    "npz": write_npz,
    "scipy": write_scipy,
    "parquet": write_parquet,
    "umb": write_umb,
}

FORMATS = tuple(_WRITERS)
"""What a graph can be exported to."""


def export_graph(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    to: str,
    *,
    version: str | int | None = None,
    rewards: bool = True,
    force: bool = False,
    allow_model_import: bool = False,
    max_ram: int = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> ExportReport:
    """Write a store's graph, with its states and rewards, in a format that other tools read.

    Rows are swept front to back whatever their encoding, so a graph of any size is written in bounded
    memory. The file, or the folder of a Parquet export, appears as a whole or not at all. The same store
    gives the same bytes.

    Parameters
    ----------
    path : path-like
        An export's folder, its store's or a version's.
    out : path-like
        The file to write; for Parquet, the folder.
    to : str
        One of `FORMATS`: ``"npz"`` (``numpy.load``), ``"scipy"`` (``scipy.sparse.load_npz``), ``"parquet"``,
        ``"umb"`` (Storm, PRISM, Modest).
    version : str or int, optional
        By default the live version.
    rewards : bool
        Write the agents' rewards, 8 bytes an edge for each agent: more than everything else in most formats.
    force : bool
        Replace what is there.
    allow_model_import : bool
        See :func:`omstore.open`.
    max_ram : int
        Bytes of anonymous memory.
    progress : Progress, optional

    Raises
    ------
    UsageError
        If there is no such format, `out` exists or can't be written, or pyarrow is missing.
    DiskFullError
        If the disk has no room for it; where the size is known beforehand, before anything is written.
    StoreNotFoundError, CorruptStoreError
        If the store isn't there or is damaged where it was read.
    """
    if to not in _WRITERS:
        raise UsageError(f"there is no export format {to!r}", f"Choose one of: {', '.join(FORMATS)}.")
    begin = time.perf_counter()
    out = Path(out)
    folder = FILES if to == "parquet" else ()
    if folder:
        require_pyarrow()
    with open_store(path, version, allow_model_import=allow_model_import) as store:
        if store.graph is None:
            raise UsageError(f"{store.path} holds a replay only; there is no graph to export")
        source = Source(store.graph, store.manifest, max_ram, progress or silent(), rewards)
        with destination(out, folder=folder, force=force) as part:
            notes = _WRITERS[to](source, part) or ()
        if not rewards:
            notes += ("rewards were left out",)
        counts = store.manifest.counts
        size = sum((out / name).stat().st_size for name in folder) if folder else out.stat().st_size
        return ExportReport(
            out,
            to,
            store.version,
            counts.num_nodes,
            counts.num_rows,
            counts.num_edges,
            size,
            notes,
            time.perf_counter() - begin,
        )
