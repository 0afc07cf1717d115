"""`verify`: whether a version is whole, makes sense, and holds what its pickles hold."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omstore.compiled import as_input, kernel
from omstore.errors import ExportNotFoundError, OmstoreError, StoreError, UsageError
from omstore.format.hot import drop_pages
from omstore.format.manifest import Manifest, read_manifest
from omstore.format.verify import find_damage
from omstore.inspect.against import compare_export
from omstore.inspect.checks import Check, Problems
from omstore.inspect.edges import chunk_rows
from omstore.inspect.exports import WM_NAME, require_export
from omstore.inspect.node_ranges import ranges_to_read
from omstore.inspect.plain import plain
from omstore.legacy.names import GRAPH_NAME, REPLAY_NAME
from omstore.memory import DEFAULT_BUDGET
from omstore.progress import Progress, silent
from omstore.publish.versions import resolve
from omstore.read import Graph, Replay, Store, open_store
from omstore.read.arrays import VersionArrays

__all__ = ["Check", "VerifyReport", "verify"]

_STEP = 1 << 16
_TOLERANCE = 1e-6
"""How far a row's probabilities may sum to something else than 1, as conversion has it."""


@kernel
def _first_disorder(packed: Any) -> int:
    """Return the first row of (n, Wb) bytes that isn't greater than the one before it, or -1."""
    for i in range(1, packed.shape[0]):
        greater = False
        for j in range(packed.shape[1]):
            if packed[i, j] != packed[i - 1, j]:
                greater = packed[i, j] > packed[i - 1, j]
                break
        if not greater:
            return i
    return -1


@kernel
def _wrong_row(offsets: Any, probability: Any, done: Any, tolerance: float, start: int) -> tuple[int, int]:
    """Find the first row, from `start` on, with a wrong number, and what is wrong with it: 1 a probability,
    2 the sum of them, 3 a done flag; -1 where there is none."""
    for row in range(start, offsets.size - 1):
        total = 0.0
        for edge in range(offsets[row], offsets[row + 1]):
            if not 0.0 <= probability[edge] <= 1.0:
                return row, 1
            if done[edge] > 1:
                return row, 3
            total += probability[edge]
        if offsets[row + 1] > offsets[row] and not abs(total - 1.0) <= tolerance:
            return row, 2
    return -1, 0


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found.

    Attributes
    ----------
    path : Path
        The version's folder.
    version : str
    checks : tuple of Check
        In the order they were made.
    against : Path or None
        The export it was compared with.
    notes : tuple of str
        What isn't wrong but worth knowing.
    seconds : float
    """

    path: Path
    version: str
    checks: tuple[Check, ...]
    against: Path | None
    notes: tuple[str, ...]
    seconds: float

    @property
    def num_problems(self) -> int:
        """Everything that is wrong."""
        return sum(check.num_problems for check in self.checks)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.num_problems == 0

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        document: dict[str, Any] = plain(self)
        return {"ok": self.ok, **document}


def verify(
    path: Path,
    version: str | int | None = None,
    *,
    against: Path | None = None,
    allow_model_import: bool = False,
    max_ram: int = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a version of a store, and compare it with the pickles it came from.

    Every file is compared with its published digest; then the contents are read and must make sense: rows,
    states, index, the order both ways, the replay. What is found wrong is reported, not raised. Of a graph with
    more than 2e9 edges, rows are checked by the structure of their encoding, and the numbers of a random part.

    Parameters
    ----------
    path : Path
        An export's folder, its store's or a version's.
    version : str or int, optional
        By default the live version.
    against : Path, optional
        An export, or one of its pickles: its records are streamed again, and every edge and transition
        compared.
    allow_model_import : bool
        See :func:`omstore.open`.
    max_ram : int
        Bytes of anonymous memory.
    progress : Progress, optional

    Raises
    ------
    StoreNotFoundError
        If there is no store, or no such version.
    ExportNotFoundError, LegacyError
        If the pickles of `against` can't be read.
    """
    begin = time.perf_counter()
    run = _Verification(resolve(Path(path), version).absolute(), max_ram, progress or silent())
    if against is not None:
        require_against(against)
    run.files()
    store = run.opened(allow_model_import)
    if store is not None:
        with store:
            if store.graph is not None:
                run.graph(store, store.graph)
            if store.replay is not None:
                run.replay(store.graph, store.replay)
            if against is not None:
                run.against(store, against)
    return VerifyReport(
        run.folder,
        run.folder.name,
        tuple(run.checks),
        against,
        tuple(run.notes),
        time.perf_counter() - begin,
    )


def require_against(path: Path) -> None:
    """Check that a path is an export, or one of an export's pickles.

    Raises
    ------
    ExportNotFoundError, UsageError
    """
    if not path.is_file():
        require_export(path, "verify --against", needs="pickles")
    elif not path.name.startswith((GRAPH_NAME, REPLAY_NAME)):
        raise UsageError(
            f"{path} is called neither {GRAPH_NAME} nor {REPLAY_NAME}, so it isn't known which of them it is",
            "Give the export's folder, or a link to the file that is named so.",
        )


class _Verification:
    """The checks of one version, collected."""

    def __init__(self, folder: Path, max_ram: int, progress: Progress) -> None:
        self.folder = folder
        self.max_ram = max_ram
        self.progress = progress
        self.checks: list[Check] = []
        self.notes: list[str] = []
        self._manifest: Manifest | None = None

    def _check(self, name: str, body: Callable[[Problems], str]) -> None:
        """Make a check: `body` adds problems, and says what it looked at."""
        begin = time.perf_counter()
        problems = Problems()
        looked_at = ""
        try:
            looked_at = body(problems)
        except (StoreError, UsageError) as error:  # a damaged file shows wherever it is read
            problems.add(error.message)
        except OmstoreError:  # nothing that is wrong with the version
            raise
        except OSError as error:
            problems.add(f"{error.filename or self.folder}: {error.strerror or error}")
        self.checks.append(problems.check(name, looked_at, time.perf_counter() - begin))

    def files(self) -> None:
        """Sizes and digests of every file."""

        def body(problems: Problems) -> str:
            manifest = self._manifest = read_manifest(self.folder)
            total = sum(digest.size for digest in manifest.files.values())
            with self.progress.task("reading files", total, "B") as task:
                for path, problem in find_damage(self.folder, manifest, task.update):
                    problems.add(f"{path} {problem}")
            return f"{len(manifest.files):,} files against their published sizes and digests"

        self._check("files", body)

    def opened(self, allow_model_import: bool) -> Store | None:
        """Open the store: the arrays are what the manifest says."""
        found: list[Store] = []

        def body(problems: Problems) -> str:
            found.append(open_store(self.folder, allow_model_import=allow_model_import))
            return f"{len(found[0].manifest.attributes)} attributes and all arrays against the manifest"

        self._check("arrays", body)
        return found[0] if found else None

    def graph(self, store: Store, graph: Graph) -> None:
        """Rows, states, index, order."""
        arrays = VersionArrays(store.path, store.manifest)

        def structure(problems: Problems) -> str:
            nodes = ranges_to_read(graph)
            # What a model answers isn't stored, and there is no structure of it to check instead of all rows.
            some = not nodes.whole and graph.encoding.name == "procedural"
            with self.progress.task("checking rows and index", graph.num_edges, "edges") as task:
                graph.verify(nodes.ranges if some else None)
                task.update(graph.num_edges)
            rows = f"{graph.num_rows:,} rows, {graph.num_edges:,} edges"
            if some:
                rows = f"rows of {nodes.num_nodes:,} of {graph.num_nodes:,} nodes, at random"
            return f"{rows}; the index finds {graph.num_nodes:,} nodes"

        def numbers(problems: Problems) -> str:
            nodes = ranges_to_read(graph)
            expected = graph.num_edges * nodes.num_nodes // max(1, graph.num_nodes)
            edges = 0
            with self.progress.task("adding up rows", expected, "edges") as task:
                for chunk in nodes.sweep(graph, chunk_rows(graph, self.max_ram)):
                    self._numbers(graph, chunk, problems)
                    task.update(len(chunk.successors.next_node))
                    edges += len(chunk.successors.next_node)
            if nodes.whole:
                return f"probabilities of {graph.num_rows:,} rows sum to 1, done is 0 or 1"
            return f"probabilities sum to 1, done is 0 or 1: {nodes.describe(graph, edges)}"

        def states(problems: Problems) -> str:
            packed = arrays.hot("nodes/state", rows=graph.num_nodes)
            for start in range(0, graph.num_nodes, _STEP):
                part = packed[max(0, start - 1) : start + _STEP]
                bad = _first_disorder(as_input(part, np.uint8))
                if bad >= 0:
                    problems.add(
                        f"node {max(0, start - 1) + bad}: its state doesn't come after the one before it"
                    )
                drop_pages(part)
            return f"{graph.num_nodes:,} states are distinct and sorted"

        def order(problems: Problems) -> str:
            legacy = arrays.hot("nodes/legacy_id", rows=graph.num_nodes, dtype=np.int64)
            nodes = arrays.hot("nodes/node_of_legacy", rows=graph.num_nodes)
            last = np.iinfo(np.int64).min
            for start in range(0, graph.num_nodes, _STEP):
                part = nodes[start : start + _STEP].astype(np.int64)
                outside = np.flatnonzero((part < 0) | (part >= graph.num_nodes))
                if len(outside):
                    problems.add(f"nodes/node_of_legacy[{start + outside[0]}] names no node")
                    break
                # strictly rising ids, one for every node: so each node and each id occurs once
                ids = np.concatenate([[last], legacy[part]])
                falls = np.flatnonzero(ids[1:] <= ids[:-1])
                if len(falls) and (start or falls[0]):
                    problems.add(
                        f"nodes/node_of_legacy[{start + falls[0]}]: legacy id {ids[falls[0] + 1]} "
                        f"comes after {ids[falls[0]]}"
                    )
                    break
                last = ids[-1]
            return f"{graph.num_nodes:,} legacy ids, both ways"

        self._check("rows and index", structure)
        self._check("numbers", numbers)
        self._check("states", states)
        if "nodes/legacy_id" in arrays:
            self._check("legacy ids", order)

    def _numbers(self, graph: Graph, chunk: Any, problems: Problems) -> None:
        found = chunk.successors
        offsets = as_input(found.offsets, np.int64)
        probability = as_input(found.probability, np.float64)
        done = as_input(found.done.view(np.uint8), np.uint8)
        row = -1
        while problems.listing:
            row, reason = _wrong_row(offsets, probability, done, _TOLERANCE, row + 1)
            if row < 0:
                return
            node, action = divmod(chunk.first_row + row, graph.num_joint_actions)
            values = probability[offsets[row] : offsets[row + 1]]
            what = {
                1: "a probability isn't within 0 to 1",
                2: f"probabilities sum to {values.sum():.9g}",
                3: "a done flag is neither 0 nor 1",
            }
            problems.add(f"node {node}, joint action {action}: {what[reason]}")

    def replay(self, graph: Graph | None, replay: Replay) -> None:
        """Nodes of the replay are those of its states."""

        def body(problems: Problems) -> str:
            off_graph = 0
            with self.progress.task("checking the replay", len(replay), "transitions") as task:
                for start in range(0, len(replay), _STEP):
                    part = slice(start, min(start + _STEP, len(replay)))
                    node, next_node = replay.nodes[part], replay.next_nodes[part]
                    actions = np.asarray(replay.joint_actions[part])
                    off_graph += int(np.count_nonzero((node < 0) | (next_node < 0)))
                    packed, next_packed = replay.packed_states(part), replay.packed_next_states(part)
                    _check_nodes(graph, start, "state", node, packed, problems)
                    _check_nodes(graph, start, "next state", next_node, next_packed, problems)
                    replay.rewards(part)
                    replay.done(part)
                    if graph is not None:
                        for i in np.flatnonzero(actions >= graph.num_joint_actions)[:10]:
                            problems.add(f"transition {start + i}: there is no joint action {actions[i]}")
                    task.update(len(node))
            if off_graph != replay.off_graph and graph is not None:
                problems.add(
                    f"{off_graph:,} transitions are off the graph, the manifest says {replay.off_graph:,}"
                )
            where = "each at the nodes of its states" if graph is not None else "without a graph"
            return f"{len(replay):,} transitions, {where}"

        self._check("replay", body)

    def against(self, store: Store, path: Path) -> None:
        """Every edge and transition of the export."""
        with _scratch(store.path.parent.parent) as scratch:
            export = path if not path.is_file() else _export_of(path, scratch)
            checks, notes = compare_export(store, export, scratch, self.max_ram, self.progress)
        self.checks += checks
        self.notes += notes


def _check_nodes(
    graph: Graph | None, start: int, what: str, nodes: Any, packed: Any, problems: Problems
) -> None:
    if graph is None:
        expected = np.full(len(nodes), -1)
    else:
        expected = graph.lookup_packed(packed)
        inside = np.flatnonzero((nodes >= 0) & (nodes < graph.num_nodes))
        same = (graph.packed_states(nodes[inside]) == packed[inside]).all(axis=1)
        expected[inside[same]] = nodes[inside[same]]  # a broken index is the finding of another check
    for i in np.flatnonzero(nodes != expected)[:10]:
        problems.add(f"transition {start + i}: its {what} is that of node {expected[i]}, not {nodes[i]}")


@contextlib.contextmanager
def _scratch(export: Path) -> Iterator[Path]:
    """Make a folder for the spools: beside the store, which is where there was room for them before."""
    parent = export if os.access(export, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=".omstore-verify-", dir=parent) as folder:
        yield Path(folder)


def _export_of(pickle: Path, scratch: Path) -> Path:
    """Make an export of one pickle: links cost nothing, and the other one isn't compared then."""
    if not pickle.is_file():
        raise ExportNotFoundError(f"there is no file {pickle}")
    folder = scratch / "export" / WM_NAME
    folder.mkdir(parents=True)
    (folder / pickle.name).symlink_to(pickle.absolute())
    return folder.parent
