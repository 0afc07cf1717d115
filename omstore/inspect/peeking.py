"""`peek`: what a legacy pickle holds and what plays which part in it, without loading it."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import BadDataError, ExportNotFoundError, UsageError
from omstore.inspect.plain import plain
from omstore.legacy.fields import ArraySource, ColumnRange, ColumnRef, Field, Records, dotted
from omstore.legacy.mapping import MAP_FIELDS, GraphMapping, ReplayMapping, map_graph, map_replay
from omstore.legacy.names import REPLAY_NAME
from omstore.legacy.reader import read_pickle
from omstore.legacy.schema import ArrayRef, Instance, PickleTree, TableRef, TableSchema
from omstore.memory import DEFAULT_BUDGET
from omstore.progress import Progress, silent

__all__ = ["KINDS", "ColumnView", "PeekReport", "TableView", "peek"]

KINDS = ("graph", "replay")
"""What a pickle may be."""

_SAMPLES = 3
_FEW = 16
"""Components of a vector up to which the largest value of each is kept: those of joint actions."""
_BESIDE = 12
"""Entries of a dict, list or object that are shown one by one."""


@dataclass(frozen=True)
class ColumnView:
    """A field of the records.

    Attributes
    ----------
    name : str
        Dotted path in a record.
    kind : str
        What its values were in the pickle: ``int``, ``tuple``, ``ndarray``, ...
    dtype : str
    shape : tuple of int
        Of one value.
    minimum, maximum : float or None
        Over all records; None where there are none, or none is finite.
    samples : tuple
        Values of the first records.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    minimum: float | None
    maximum: float | None
    samples: tuple[Any, ...]


@dataclass(frozen=True)
class TableView:
    """Records of one shape.

    Attributes
    ----------
    name : str
        Dotted path of their container in the pickle.
    container, record : str
        ``list`` of a class's full name, ``dict`` of ``item``, ...
    num_rows : int
    columns : tuple of ColumnView
    ignored : mapping of str to str
        Fields that make no column, and why.
    """

    name: str
    container: str
    record: str
    num_rows: int
    columns: tuple[ColumnView, ...]
    ignored: Mapping[str, str]


@dataclass(frozen=True)
class PeekReport:
    """What a pickle holds.

    Attributes
    ----------
    path : Path
    size, pickle_bytes : int
        Of the file, and of the pickle in it (more where the file is compressed).
    protocol : int
    classes : tuple of str
        Full names of the classes in it; none is imported.
    tree : tuple of str
        The root object, one line for each part of it.
    tables : tuple of TableView
    kind : str
        What it was taken for: one of `KINDS`.
    mapping : tuple of str
        Which field plays which part; empty where that can't be decided.
    agents : tuple of str
        Names, where dict keys give them.
    num_actions : tuple of int
        Largest action seen + 1 of each agent (of class numbers: of all together), where it is known.
    focal : str
        The agent whose observation is the state; empty for a graph, or where observations aren't per agent.
    problem, hint : str
        Why the parts can't be decided, and the option that does; empty where they can.
    notes : tuple of str
    """

    path: Path
    size: int
    pickle_bytes: int
    protocol: int
    classes: tuple[str, ...]
    tree: tuple[str, ...]
    tables: tuple[TableView, ...]
    kind: str
    mapping: tuple[str, ...]
    agents: tuple[str, ...]
    num_actions: tuple[int, ...]
    focal: str
    problem: str
    hint: str
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        document: dict[str, Any] = plain(self)
        return document


class _Glance:
    """A sink that keeps the first records and the range of every column."""

    def __init__(self) -> None:
        self.samples: dict[tuple[int, int], list[Any]] = {}
        self.ranges: dict[tuple[int, int], ColumnRange] = {}
        self.highest: dict[tuple[int, int], NDArray[np.float64]] = {}

    def rows(self, table: TableSchema, first_row: int, columns: Sequence[NDArray[Any]]) -> None:
        for number, values in enumerate(columns):
            key = (table.id, number)
            kept = self.samples.setdefault(key, [])
            if first_row < _SAMPLES:
                kept += values[: _SAMPLES - first_row].tolist()
            seen = self.ranges.setdefault(key, ColumnRange())
            if not values.size:
                continue
            if values.ndim > 1 and values[0].size <= _FEW:
                highest = values.reshape(len(values), -1).max(axis=0).astype(np.float64)
                self.highest[key] = np.maximum(self.highest.get(key, highest), highest)
            if values.dtype.kind == "f":
                seen.add_floats(values)
            else:
                seen.add_integers(int(values.min()), int(values.max()))

    def highest_of(self, records: Records, ref: ColumnRef) -> list[float]:
        """Tell the largest value of each component; nothing where it isn't known."""
        if ref.width == 1:
            seen = self.range_of(records, ref)
            if seen is not None and records.column(ref).shape == ():
                return [seen.maximum]
        source = None if ref.link else records.sources[ref.column]
        if source is None or isinstance(source, ArraySource) or source not in self.highest:
            return []
        return [float(value) for value in self.highest[source][ref.start : ref.stop]]

    def range_of(self, records: Records, ref: ColumnRef) -> ColumnRange | None:
        """Tell what was seen of a column, for the mapping."""
        if ref.link:
            return self.ranges.get((records.link.id, ref.column)) if records.link is not None else None
        source = records.sources[ref.column]
        return None if isinstance(source, ArraySource) else self.ranges.get(source)


def peek(
    path: Path,
    *,
    kind: str | None = None,
    overrides: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    focal: str | None = None,
    max_ram: int = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> PeekReport:
    """Look a pickle through in bounded memory; nothing in it is executed or imported.

    Parameters
    ----------
    path : Path
        Plain, or compressed with gzip, zstd or xz (then decompressed into the system's folder for temporary
        files).
    kind : str, optional
        ``"graph"`` or ``"replay"``; by default the replay where it is called ``D.pkl``, else whichever fits.
    overrides, keep, focal
        As ``--map``, ``--keep`` and ``--focal`` of conversion.
    max_ram : int
        Bytes of anonymous memory.
    progress : Progress, optional

    Returns
    -------
    PeekReport
        With `problem` and `hint` where the mapping can't be decided.

    Raises
    ------
    ExportNotFoundError, LegacyError
        If there is no such file, or it is no pickle that can be read.
    UsageError
        If an option makes no sense.
    """
    path = Path(path)
    if kind is not None and kind not in KINDS:
        raise UsageError(f"a pickle isn't a {kind!r}", f"Choose one of: {', '.join(KINDS)}.")
    for name in overrides or {}:
        if name not in MAP_FIELDS:
            raise UsageError(f"--map knows no field {name!r}", f"Choose one of: {', '.join(MAP_FIELDS)}.")
    if not path.exists():
        beside = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        close = difflib.get_close_matches(path.name, beside, n=1, cutoff=0.6)
        raise ExportNotFoundError(
            f"there is no file {path}",
            f"Did you mean: omstore peek {path.parent / close[0]}" if close else "Check the path.",
        )
    glance = _Glance()
    with (
        tempfile.TemporaryDirectory(prefix="omstore-peek-") as scratch,
        (progress or silent()).task(f"reading {path.name}", None, "B") as task,
    ):
        tree = read_pickle(
            path,
            glance,
            scratch=Path(scratch),
            budget=max_ram // 2,
            progress=lambda walked, total: task.set(walked // 2, total // 2),  # two passes
        )
        task.set(tree.num_bytes, tree.num_bytes)
    attempts = _attempts(path, kind)
    view = _map(tree, glance, attempts[0], overrides, keep, focal)
    for other in attempts[1:]:
        if not view.problem:
            break
        second = _map(tree, glance, other, overrides, keep, focal)
        view = second if not second.problem else view
    return PeekReport(
        path=path,
        size=path.stat().st_size,
        pickle_bytes=tree.num_bytes,
        protocol=tree.protocol,
        classes=_classes(tree),
        tree=tuple(_lines(tree.root, "root", {table.id: table for table in tree.tables}, 0)),
        tables=tuple(_table(table, glance) for table in tree.tables),
        kind=view.kind,
        mapping=tuple(view.lines),
        agents=view.agents,
        num_actions=view.num_actions,
        focal=view.focal,
        problem=view.problem,
        hint=view.hint,
        notes=tuple(tree.notes),
    )


def _attempts(path: Path, kind: str | None) -> tuple[str, ...]:
    if kind is not None:
        return (kind,)
    replay = path.name.startswith(REPLAY_NAME) or "replay" in path.name.lower()
    return ("replay", "graph") if replay else ("graph", "replay")


@dataclass
class _View:
    """One attempt at a mapping."""

    kind: str
    lines: list[str] = field(default_factory=list)
    agents: tuple[str, ...] = ()
    num_actions: tuple[int, ...] = ()
    focal: str = ""
    problem: str = ""
    hint: str = ""


def _map(
    tree: PickleTree,
    glance: _Glance,
    kind: str,
    overrides: Mapping[str, str] | None,
    keep: Sequence[str],
    focal: str | None,
) -> _View:
    view = _View(kind)
    mapping: GraphMapping | ReplayMapping
    try:
        if kind == "graph":
            mapping = map_graph(tree, glance.range_of, overrides=overrides, keep=keep)
            records = mapping.edges
        else:
            mapping = map_replay(tree, glance.range_of, overrides=overrides, keep=keep, focal=focal)
            records = mapping.records
            view.focal = mapping.observations[mapping.focal][0]
    except (BadDataError, UsageError) as error:
        view.problem, view.hint = error.message, error.hint
        return view
    view.lines = mapping.describe()
    view.agents = mapping.agents or tuple(map(str, range(mapping.num_agents or 0)))
    view.num_actions = _num_actions(records, mapping.joint_action, glance)
    return view


def _num_actions(records: Records, where: Field, glance: _Glance) -> tuple[int, ...]:
    highest = []
    for ref in where.columns:
        known = glance.highest_of(records, ref)
        if len(known) != ref.width or not np.isfinite(known).all():
            return ()
        highest += [int(value) + 1 for value in known]
    return tuple(highest)


def _table(table: TableSchema, glance: _Glance) -> TableView:
    columns = []
    for number, column in enumerate(table.columns):
        seen = glance.ranges.get((table.id, number), ColumnRange())
        known = np.isfinite(seen.minimum)
        columns.append(
            ColumnView(
                dotted(column.path) or "(the item itself)",
                column.origin or column.kind,
                column.dtype.name,
                column.shape,
                float(seen.minimum) if known else None,
                float(seen.maximum) if known else None,
                tuple(glance.samples.get((table.id, number), [])),
            )
        )
    ignored = {dotted(entry.path) or "(the item itself)": entry.reason for entry in table.ignored}
    name = dotted(table.path) or "the root object"
    return TableView(name, table.container, table.record, table.num_rows, tuple(columns), ignored)


def _classes(tree: PickleTree) -> tuple[str, ...]:
    found = {table.record for table in tree.tables if "." in table.record}

    def visit(value: Any, depth: int) -> None:
        if isinstance(value, Instance):
            found.add(value.class_name)
            value = value.fields
        if depth < 6 and isinstance(value, dict):
            for entry in value.values():
                visit(entry, depth + 1)
        elif depth < 6 and isinstance(value, list | tuple):
            for entry in value[:1000]:
                visit(entry, depth + 1)

    visit(tree.root, 0)
    return tuple(sorted(found))


def _lines(value: Any, name: str, tables: Mapping[int, TableSchema], depth: int) -> list[str]:
    """Write a part of the tree, indented by its depth, and below it what it holds."""
    lead = f"{'  ' * depth}{name}: "
    if isinstance(value, TableRef):
        table = tables[value.id]
        return [f"{lead}{table.container} of {table.num_rows:,} {table.record}"]
    if isinstance(value, ArrayRef):
        return [f"{lead}array {value.dtype.name} {value.shape}"]
    if isinstance(value, Instance):
        below, lines = list(value.fields.items()), [f"{lead}{value.class_name}"]
    elif isinstance(value, dict) and not _small(value):
        below, lines = list(value.items()), [f"{lead}dict of {len(value):,}"]
    elif isinstance(value, list | tuple) and not _small(value):
        below, lines = list(enumerate(value)), [f"{lead}{type(value).__name__} of {len(value):,}"]
    else:
        return [lead + _short(value)]
    if depth >= 4:
        return lines
    for step, entry in below[:_BESIDE]:
        lines += _lines(entry, str(step), tables, depth + 1)
    if len(below) > _BESIDE:
        lines.append(f"{'  ' * (depth + 1)}... and {len(below) - _BESIDE:,} more")
    return lines


def _small(value: Any) -> bool:
    entries = value.values() if isinstance(value, dict) else value
    return len(value) <= _BESIDE and all(isinstance(e, int | float | str | bytes | None) for e in entries)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 70 else f"{text[:67]}..."
