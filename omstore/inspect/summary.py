"""`stats`: what a version of a store holds, in one sequential pass and bounded memory."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.format.durable import FileDigest
from omstore.format.manifest import MANIFEST_NAME, Counts, Manifest, Source
from omstore.inspect.bits import first_where
from omstore.inspect.coverage import Coverage, sweep_replay
from omstore.inspect.edges import EdgeSummary, sweep_edges
from omstore.inspect.node_ranges import ranges_to_read
from omstore.inspect.plain import plain
from omstore.memory import DEFAULT_BUDGET
from omstore.progress import Progress
from omstore.read import Graph, Store, open_store

__all__ = ["Part", "StatsReport", "Unreachable", "parts_of", "stats"]


@dataclass(frozen=True)
class Part:
    """An array of the store, its metadata included.

    Attributes
    ----------
    name : str
        Such as ``rows/next_node``.
    size : int
        Bytes on disk.
    per_edge : float or None
        Bytes for each edge of the graph; None for the replay's arrays, and without edges.
    """

    name: str
    size: int
    per_edge: float | None


@dataclass(frozen=True)
class Unreachable:
    """Nodes that no edge from another node leads to, and that occur in no transition of the replay.

    Attributes
    ----------
    count : int
    share : float
        Of all nodes, 0 to 1.
    first : tuple of int
        The first few.
    """

    count: int
    share: float
    first: tuple[int, ...]


@dataclass(frozen=True)
class StatsReport:
    """What `stats` found.

    Attributes
    ----------
    path : Path
        The version's folder.
    version : str
    published : datetime.datetime
        UTC.
    counts : Counts
    agents : tuple of str
    num_actions : tuple of int
    state_width, state_bits : int
        Components of a state, and bits each is stored in.
    encoding, encoding_reason : str
        Row encoding, and why it was chosen; empty without a graph.
    rows : mapping
        What the manifest says of the rows: patterns, components, what was proven.
    attributes : mapping of str to str
        Level of each attribute.
    attribute_values : mapping of str to int
        Distinct values, of attributes that nodes hold as codes.
    parts : tuple of Part
        Arrays, largest first.
    store_bytes, source_bytes : int
        Of the version, and of the pickles it came from (0: from none).
    edges : EdgeSummary or None
        None without a graph.
    coverage : Coverage or None
        None without a graph or a replay.
    unreachable : Unreachable or None
        None without a graph, and where not all of its rows were read.
    sources : tuple of Source
    options : mapping
        That it was converted with.
    notes : tuple of str
        What conversion dropped or assumed.
    tool_version : str
    schema_version : int
    seconds : float
        That `stats` took.
    """

    path: Path
    version: str
    published: datetime.datetime
    counts: Counts
    agents: tuple[str, ...]
    num_actions: tuple[int, ...]
    state_width: int
    state_bits: int
    encoding: str
    encoding_reason: str
    rows: Mapping[str, Any]
    attributes: Mapping[str, str]
    attribute_values: Mapping[str, int]
    parts: tuple[Part, ...]
    store_bytes: int
    source_bytes: int
    edges: EdgeSummary | None
    coverage: Coverage | None
    unreachable: Unreachable | None
    sources: tuple[Source, ...]
    options: Mapping[str, Any]
    notes: tuple[str, ...]
    tool_version: str
    schema_version: int
    seconds: float

    @property
    def compression(self) -> float | None:
        """How many times smaller the version is than its pickles; None where it came from none."""
        return self.source_bytes / self.store_bytes if self.source_bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        document: dict[str, Any] = plain(self)
        return {**document, "compression": self.compression}


def parts_of(files: Mapping[str, FileDigest], num_edges: int) -> tuple[Part, ...]:
    """Add up a version's files by array, largest first."""
    sizes: dict[str, int] = {}
    for path, digest in files.items():
        name, chunk, _ = path.partition("/c/")
        if chunk:
            sizes[name] = sizes.get(name, files[f"{name}/zarr.json"].size) + digest.size
    return tuple(
        Part(name, size, size / num_edges if num_edges and not name.startswith("replay/") else None)
        for name, size in sorted(sizes.items(), key=lambda entry: (-entry[1], entry[0]))
    )


def stats(
    path: Path,
    version: str | int | None = None,
    *,
    allow_model_import: bool = False,
    max_ram: int = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> StatsReport:
    """Look a version of a store through.

    Of a graph with more than 2e9 edges a random part is read (`omstore.inspect.node_ranges`), and what is
    said of its edges is estimated from that; `counts` are always exact.

    Parameters
    ----------
    path : Path
        An export's folder, its store's or a version's.
    version : str or int, optional
        By default the live version.
    allow_model_import : bool
        See :func:`omstore.open`.
    max_ram : int
        Bytes of anonymous memory; what is found doesn't depend on it.
    progress : Progress, optional

    Raises
    ------
    StoreNotFoundError
        If there is no store, or no such version.
    CorruptStoreError
        If a file is missing, truncated or damaged where it was read.
    """
    begin = time.perf_counter()
    with open_store(path, version, allow_model_import=allow_model_import) as store:
        manifest, graph, replay = store.manifest, store.graph, store.replay
        edges = coverage = unreachable = None
        if graph is not None:
            edges, entered = sweep_edges(graph, ranges_to_read(graph), max_ram=max_ram, progress=progress)
            if replay is not None:
                coverage, seen = sweep_replay(
                    graph, replay, edges.legal_rows, max_ram=max_ram, progress=progress
                )
                if entered is not None:
                    np.bitwise_or(entered, seen, out=entered)
            if entered is not None:
                unreachable = _unreachable(graph, entered)
        return _report(store, manifest, edges, coverage, unreachable, begin)


def _unreachable(graph: Graph, reached: NDArray[np.uint8]) -> Unreachable:
    first, count = first_where(reached, graph.num_nodes, value=0, most=5)
    return Unreachable(count, count / graph.num_nodes, tuple(first))


def _distinct_values(graph: Graph | None) -> dict[str, int]:
    attributes = {} if graph is None else graph.attributes
    return {name: len(found.values) for name, found in attributes.items() if found.codes is not None}


def _report(
    store: Store,
    manifest: Manifest,
    edges: EdgeSummary | None,
    coverage: Coverage | None,
    unreachable: Unreachable | None,
    begin: float,
) -> StatsReport:
    written = (store.path / MANIFEST_NAME).stat()
    return StatsReport(
        path=store.path,
        version=store.version,
        published=datetime.datetime.fromtimestamp(written.st_mtime, datetime.UTC),
        counts=manifest.counts,
        agents=manifest.agents,
        num_actions=manifest.num_actions,
        state_width=manifest.state.width,
        state_bits=manifest.state.component_bits,
        encoding=str(manifest.rows.get("encoding", "")),
        encoding_reason=str(manifest.rows.get("reason", "")),
        rows={name: value for name, value in manifest.rows.items() if name not in ("encoding", "reason")},
        attributes={name: str(entry.get("level", "")) for name, entry in manifest.attributes.items()},
        attribute_values=_distinct_values(store.graph),
        parts=parts_of(manifest.files, manifest.counts.num_edges),
        store_bytes=written.st_size + sum(digest.size for digest in manifest.files.values()),
        source_bytes=sum(source.size for source in manifest.sources),
        edges=edges,
        coverage=coverage,
        unreachable=unreachable,
        sources=manifest.sources,
        options=manifest.options,
        notes=manifest.notes,
        tool_version=manifest.tool_version,
        schema_version=manifest.schema_version,
        seconds=time.perf_counter() - begin,
    )
