"""An export's records in a store's terms, for comparing the two: `verify --against`.

The pickles are read again, and what they say is resolved through the store (its legacy ids, its states),
record by record in the export's order. Nothing of conversion's sorting, hoisting or writing takes part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.convert.options import ConvertOptions
from omstore.convert.pipeline import ExportMapping, map_export
from omstore.convert.replay import TransitionStream
from omstore.convert.resolve import EdgeStream, StateNodes, pack_states
from omstore.convert.sources import LegacyFile, find_pickles, read_files
from omstore.errors import BadDataError
from omstore.format.manifest import Manifest, Source
from omstore.legacy.fields import Field, snake_case
from omstore.memory import DEFAULT_BUDGET
from omstore.progress import Progress, silent
from omstore.read.graph import Graph

__all__ = ["ExportStreams", "NodeChunk", "open_export"]


@dataclass(frozen=True)
class NodeChunk:
    """Consecutive node records of an export.

    Attributes
    ----------
    first : int
    legacy_id : (n,) int64
        The position where the export gives no ids.
    packed : (n, Wb) uint8
    """

    first: int
    legacy_id: NDArray[np.int64]
    packed: NDArray[np.uint8]


class _StoreIds:
    """Finds nodes by legacy id through a store."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def resolve(self, values: NDArray[Any]) -> NDArray[np.int64]:
        return self._graph.nodes_of_legacy(np.ascontiguousarray(values[:, 0], np.int64))

    def describe(self, value: NDArray[Any]) -> str:
        return f"{value[0]}, which is no legacy id of the store"


class ExportStreams:
    """An export's pickles, read into scratch, and a store to resolve them through.

    Attributes
    ----------
    mapping : ExportMapping
    sources : tuple of Source
        The pickles' fingerprints, as in ``manifest.sources``.
    """

    def __init__(
        self, files: dict[str, LegacyFile], mapping: ExportMapping, manifest: Manifest, allow_nonfinite: bool
    ) -> None:
        self._files = files
        self._manifest = manifest
        self._allow_nonfinite = allow_nonfinite
        self.mapping = mapping
        self.sources: tuple[Source, ...] = tuple(files[part].source for part in sorted(files))

    def nodes(self) -> Iterator[NodeChunk]:
        """Go through the export's nodes; nothing where it has none of its own."""
        table = self.mapping.graph.nodes if self.mapping.graph else None
        if table is None:
            return
        by_value = table.id is None and table.state.width == 1
        fields: list[Field] = [table.state] + ([table.id] if table.id is not None else [])
        for first, values in self._files["graph"].reader(table.records).chunks(fields):
            packed, fits = pack_states(self._manifest.state, values[0])
            if not fits.all():
                raise BadDataError(
                    f"node record {first + int(np.argmin(fits))} doesn't fit the store's states"
                )
            if table.id is not None or by_value:
                ids = np.ascontiguousarray(values[-1][:, 0], np.int64)
            else:
                ids = np.arange(first, first + len(packed), dtype=np.int64)
            yield NodeChunk(first, ids, packed)

    def edges(self, graph: Graph) -> EdgeStream:
        """Make a stream of the export's edges, in the order of the records.

        Raises
        ------
        BadDataError
            If the export has no graph.
        """
        mapping = self.mapping.graph
        if mapping is None:
            raise BadDataError("the export has no transition graph")
        by_id = mapping.source.width == 1 and (mapping.nodes is not None or self._manifest.state.width == 1)
        nodes = _StoreIds(graph) if by_id else StateNodes(self._manifest.state, graph)
        file = self._files["graph"]
        return EdgeStream(
            file.reader(mapping.edges), mapping, nodes, self.mapping.actions, file.name, self._allow_nonfinite
        )

    def transitions(self, graph: Graph | None) -> TransitionStream:
        """Make a stream of the export's transitions, oldest first; without a graph, nodes are -1.

        Raises
        ------
        BadDataError
            If the export has no replay.
        """
        mapping = self.mapping.replay
        if mapping is None:
            raise BadDataError("the export has no replay")
        file = self._files["replay"]
        return TransitionStream(
            file.reader(mapping.records),
            mapping,
            self._manifest.state,
            StateNodes(self._manifest.state, graph) if graph is not None else None,
            self.mapping.actions,
            file.name,
            self._allow_nonfinite,
        )


@contextlib.contextmanager
def open_export(
    export: Path,
    manifest: Manifest,
    scratch: Path,
    budget: int = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> Iterator[ExportStreams]:
    """Read an export's pickles again, with the options that a store was converted with.

    Parameters
    ----------
    export : Path
    manifest : Manifest
        The store's.
    scratch : Path
        Folder for the spools, about a tenth of the pickles; emptied on leaving.
    budget : int
        Bytes of anonymous memory; the readers take a quarter of it.
    progress : Progress, optional

    Raises
    ------
    ExportNotFoundError, LegacyError
        As `omstore.convert.convert`.
    """
    recorded = dict(manifest.options)
    paths = find_pickles(export)
    # of one pickle alone, only the fields kept from that one
    stored = set(manifest.attributes) if "graph" in paths else set()
    stored |= set(manifest.replay.get("kept", ())) if "replay" in paths else set()
    options = ConvertOptions(
        map=recorded.get("map") or {},
        keep=tuple(name for name in recorded.get("keep") or () if snake_case(name.split(".")[-1]) in stored),
        focal=recorded.get("focal"),
        actions=manifest.num_actions,
        allow_nonfinite=bool(recorded.get("allow_nonfinite")),
    )
    files = read_files(paths, Path(export), scratch, budget // 4, progress or silent())
    with contextlib.ExitStack() as stack:
        for file in files.values():
            stack.callback(file.close)
        yield ExportStreams(files, map_export(files, options), manifest, options.allow_nonfinite)
