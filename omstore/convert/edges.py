"""The edges: surveyed, distributed over ranges of nodes, sorted range by range, written as rows.

Three passes. The first looks at every edge (`AttributeSurvey`) and counts them by node; the second deals
compact records to scratch, one region for every range of nodes that fits the budget; the third sorts a
range at a time and hands it to the row writer. What is written depends on the edges only: not on their
order, nor on the budget.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.convert import attributes
from omstore.convert.attribute_files import (
    AttributeColumn,
    absent_attributes,
    attribute_specs,
    node_attributes,
    positions,
    row_or_edge_appender,
)
from omstore.convert.attributes import AttributeSpec, AttributeSurvey, sorted_words
from omstore.convert.edge_plan import EdgePlan, NodeCounts
from omstore.convert.nodes import NodeTable
from omstore.convert.resolve import EdgeStream
from omstore.convert.rowsort import SortedEdges, row_sums_off, rows_agree, sort_rows, whole_rows
from omstore.convert.scatter import Scatter
from omstore.encode.distinct import DistinctWords
from omstore.errors import BadDataError, DiskFullError
from omstore.format.hot import map_hot
from omstore.memory import format_bytes
from omstore.publish.scratch import ScratchArrays
from omstore.publish.staging import Staging
from omstore.read.attributes import Attribute
from omstore.rows import CsrRows, GraphSize, row_writer
from omstore.rows.encoding import next_node_dtype

__all__ = ["EdgeResult", "build_edges"]

Ticker = Callable[[int], object]

_SORT_BYTES = 64
"""Bytes of anonymous memory an edge costs while a range is sorted: its record, unpacked columns, sorted
columns."""


@dataclass
class EdgeResult:
    """What `build_edges` wrote.

    Attributes
    ----------
    rows : dict
        What describes the rows: ``manifest.rows`` of csr.
    size : GraphSize
    attributes : list of Attribute
        What the edges carry, to be written.
    scratch : ScratchArrays
        With the rows, and the attributes at the level of rows and edges.
    num_legal_rows : int
    notes : list of str
    """

    rows: dict[str, Any]
    size: GraphSize
    attributes: list[Attribute]
    scratch: ScratchArrays
    num_legal_rows: int = 0
    notes: list[str] = field(default_factory=list)

    def staged_rows(self) -> CsrRows:
        """Open the rows in scratch."""
        return CsrRows.open(self.scratch.path, self.rows, self.size)


def build_edges(
    stream: EdgeStream,
    nodes: NodeTable,
    staging: Staging,
    budget: int,
    tick: Ticker = lambda n: None,
) -> EdgeResult:
    """Sort the edges into rows, as csr in scratch.

    Parameters
    ----------
    stream : EdgeStream
    nodes : NodeTable
    staging : Staging
    budget : int
        Bytes of anonymous memory to use.
    tick : callable
        Called with numbers of edges done; in total three times the number of edges.

    Raises
    ------
    BadDataError
        For an edge that isn't right (see `EdgeStream`), a row whose probabilities don't sum to 1, or no
        edges at all.
    """
    if not stream.num_edges:
        raise BadDataError(f"{stream.mapping.edges.name}: the graph is empty, there are no edges")
    return _EdgeBuild(stream, nodes, staging, budget, tick).run()


class _EdgeBuild:
    def __init__(
        self, stream: EdgeStream, nodes: NodeTable, staging: Staging, budget: int, tick: Ticker
    ) -> None:
        self.stream = stream
        self.nodes = nodes
        self.staging = staging
        self.budget = budget
        self.tick = tick
        self.num_joint_actions = stream.actions.num_joint_actions
        self.num_rows = nodes.num_nodes * self.num_joint_actions
        self.specs = {spec.name: spec for spec in attribute_specs(stream)}
        self.levels: dict[str, str] = {}
        self.counted = NodeCounts(nodes.num_nodes)
        self.scratch = ScratchArrays(staging.scratch / "rows")

    def run(self) -> EdgeResult:
        self._check_disk()
        surveys = self._survey()
        row_tried = self._levels(surveys)
        demotable = sorted(
            (name for name in self.specs if self.levels[name] == "outcome"),
            key=lambda name: (-surveys[name].distinct.count, name),
        )
        while True:
            coded = [spec for name, spec in self.specs.items() if self.levels[name] == "outcome"]
            raw = [spec for name, spec in self.specs.items() if self.levels[name] == "edge"]
            dealt = self._deal(coded, raw)
            if dealt is not None:
                break
            self.levels[demotable.pop(0)] = (
                "edge"  # too many combinations: the most varied one goes edge by edge
            )
        scatter, plan, combinations = dealt
        try:
            return self._write(surveys, scatter, plan, combinations, coded, raw, row_tried)
        finally:
            scatter.close()

    def _check_disk(self) -> None:
        """Refuse at once what can't fit: a few agents too many make more rows than any disk has bytes."""
        needed = self._csr_bytes()
        free = shutil.disk_usage(self.staging.scratch).free
        if needed > free:
            raise DiskFullError(
                f"the rows need {format_bytes(needed)} ({self.nodes.num_nodes:,} nodes x "
                f"{self.num_joint_actions:,} joint actions, {self.stream.num_edges:,} edges), "
                f"and {self.staging.store} has {format_bytes(free)} left",
                "Free some disk space; if the number of joint actions is wrong, say it with --actions 5,5,5.",
            )

    # ---- first pass

    def _survey(self) -> dict[str, AttributeSurvey]:
        in_memory = self.budget // 8 // max(1, 2 * len(self.specs))
        surveys = {
            name: AttributeSurvey(spec, self.nodes.num_nodes, self.staging.scratch, in_memory)
            for name, spec in self.specs.items()
        }
        for chunk in self.stream.chunks():
            self.counted.add(chunk.node)
            rows = chunk.node * self.num_joint_actions + chunk.joint_action
            for name, survey in surveys.items():
                survey.update(chunk, rows, self.specs[name].words(chunk))
            self.tick(len(chunk.node))
        return surveys

    def _levels(self, surveys: Mapping[str, AttributeSurvey]) -> list[str]:
        """Set the levels known so far; return the attributes that may yet turn out functions of the row."""
        num_edges = self.stream.num_edges
        tried = []
        for name, survey in surveys.items():
            level = self.levels[name] = survey.level
            # by row costs a value for every row, legal or not; by outcome an eighth to a quarter of a value
            # for every edge
            by_row = self.num_rows * self.specs[name].item_bytes
            by_edge = num_edges * (
                self.specs[name].item_bytes if level == "edge" else 1 if survey.distinct.count <= 256 else 2
            )
            if level in ("outcome", "edge") and survey.row_possible and by_row < by_edge:
                tried.append(name)
        return tried

    # ---- second pass

    def _deal(
        self, coded: list[AttributeSpec], raw: list[AttributeSpec]
    ) -> tuple[Scatter, EdgePlan, DistinctWords] | None:
        """Deal the edges to regions; None when there are more than `MAX_OUTCOMES` combinations of coded
        attributes."""
        raw_width = sum(spec.width for spec in raw)
        combinations = DistinctWords(sum(spec.width for spec in coded), attributes.MAX_OUTCOMES)
        edge_bytes = _SORT_BYTES + 24 * raw_width
        plan = EdgePlan(self.counted, self.num_joint_actions, edge_bytes, self.budget)
        node_type = np.dtype(np.uint32 if self.nodes.num_nodes <= 2**32 - 1 else np.uint64)
        parts: list[Any] = [("row", plan.row_dtype), ("next", node_type)]
        if coded:
            parts.append(("code", np.uint16))
        if raw_width:
            parts.append(("raw", np.int64, (raw_width,)))
        dtype = np.dtype(parts)
        buffer_bytes = min(max(1 << 20, self.budget // 8), plan.num_regions << 18)
        scatter = Scatter(self.staging.scratch / "edges", dtype, plan.num_regions, buffer_bytes)
        try:
            for chunk in self.stream.chunks():
                regions, rows = plan.deal(chunk)
                records = np.empty(len(rows), dtype)
                records["row"] = rows
                records["next"] = chunk.next_node
                if coded:
                    words = [spec.words(chunk) for spec in coded]
                    records["code"] = combinations.number(
                        words[0] if len(words) == 1 else np.concatenate(words, axis=1)
                    )
                    if combinations.overflowed:
                        scatter.close()
                        return None
                if raw_width:
                    records["raw"] = np.concatenate([spec.words(chunk) for spec in raw], axis=1)
                scatter.append(records, regions)
                self.tick(len(rows))
            scatter.finish()
        except BaseException:
            scatter.close()
            raise
        return scatter, plan, combinations

    # ---- third pass

    def _write(
        self,
        surveys: Mapping[str, AttributeSurvey],
        scatter: Scatter,
        plan: EdgePlan,
        combinations: DistinctWords,
        coded: list[AttributeSpec],
        raw: list[AttributeSpec],
        row_tried: list[str],
    ) -> EdgeResult:
        columns = {name: AttributeColumn(spec, "code", at) for spec, at, name in positions(coded)}
        columns |= {name: AttributeColumn(spec, "raw", at) for spec, at, name in positions(raw)}
        words = combinations.words.copy()
        for name in self._functions_of_row(scatter, plan, words, columns, row_tried):
            self.levels[name] = "row"
        kept = [spec for spec in coded if self.levels[spec.name] == "outcome"]
        picked = [words[:, columns[s.name].at : columns[s.name].at + s.width] for s in kept]
        table, code_of = sorted_words(
            kept, np.concatenate(picked, axis=1) if picked else np.empty((max(1, len(words)), 0), np.int64)
        )
        num_outcomes = max(1, len(table)) if kept else 1
        num_legal_rows = 0
        writer = row_writer("csr", self.scratch, self.nodes.num_nodes, self.num_joint_actions, num_outcomes)
        stored = self._attribute_writers(columns)
        probability = self._probability_source(surveys, columns, table, kept)
        for region in range(plan.num_regions):
            records = scatter.read(region, drop=True)
            provisional = records["code"].astype(np.int64) if coded else np.zeros(len(records), np.int64)
            # the row's own attributes are told by the provisional code, which the sort must not lose
            extra = self._row_words(records, provisional, words, columns)
            edges = sort_rows(
                records["row"],
                records["next"],
                code_of[provisional].astype(np.int32),
                extra,
                plan.num_rows(region),
            )
            del records, provisional, extra
            self._check_sums(edges, plan, region, probability)
            num_legal_rows += int(np.count_nonzero(np.diff(edges.offsets)))
            for part in whole_rows(edges):
                writer.append(np.diff(part.offsets), part.next_node, part.code if num_outcomes > 1 else None)
                for name, append in stored.items():
                    append(part, self._extra_slice(name, columns))
                self.tick(len(part.next_node))
        rows, size = writer.finish()
        if size.num_edges != self.stream.num_edges:
            raise RuntimeError(f"{size.num_edges:,} edges were written of {self.stream.num_edges:,}")
        self.scratch.close()
        found = node_attributes(self.specs.values(), self.levels, surveys, kept, table, self._open_written)
        absent, notes = absent_attributes(self.stream)
        return EdgeResult(rows, size, found + absent, self.scratch, num_legal_rows, notes)

    def _open_written(self, name: str) -> NDArray[Any]:
        """Open an attribute at the level of rows or edges."""
        return map_hot(self.scratch.path / "rows" / "attributes" / name)

    def _csr_bytes(self) -> int:
        """Bytes of the rows as csr, at least: with one outcome."""
        edges = self.stream.num_edges
        offsets = 0 if edges % self.num_rows == 0 else 8 * (self.num_rows + 1)
        return offsets + edges * next_node_dtype(self.nodes.num_nodes).itemsize

    def _functions_of_row(
        self,
        scatter: Scatter,
        plan: EdgePlan,
        words: NDArray[np.int64],
        columns: Mapping[str, AttributeColumn],
        tried: list[str],
    ) -> list[str]:
        """Sort once to see which attributes are functions of the row; only when the survey left the
        question open."""
        alive = [name for name in tried if name in columns]
        for region in range(plan.num_regions):
            if not alive:
                break
            records = scatter.read(region)
            wanted = [columns[name] for name in alive]
            extra = np.concatenate([column.of(records, words) for column in wanted], axis=1)
            edges = sort_rows(
                records["row"],
                records["next"],
                np.zeros(len(records), np.int32),
                extra,
                plan.num_rows(region),
            )
            at = 0
            for name in list(alive):
                width = self.specs[name].width
                if not rows_agree(edges.offsets, np.ascontiguousarray(edges.raw[:, at : at + width])):
                    alive.remove(name)
                at += width
        return alive

    def _stored(self, columns: Mapping[str, AttributeColumn]) -> list[str]:
        return [name for name in columns if self.levels[name] in ("row", "edge")]

    def _row_words(
        self,
        records: NDArray[Any],
        provisional: NDArray[np.int64],
        words: NDArray[np.int64],
        columns: Mapping[str, AttributeColumn],
    ) -> NDArray[np.int64]:
        names = self._stored(columns)
        if not names:
            return np.empty((len(records), 0), np.int64)
        return np.concatenate([columns[name].of(records, words) for name in names], axis=1)

    def _extra_slice(self, name: str, columns: Mapping[str, AttributeColumn]) -> slice:
        at = 0
        for other in self._stored(columns):
            if other == name:
                break
            at += self.specs[other].width
        return slice(at, at + self.specs[name].width)

    def _attribute_writers(
        self, columns: Mapping[str, AttributeColumn]
    ) -> dict[str, Callable[[SortedEdges, slice], None]]:
        writers = {}
        for name in self._stored(columns):
            spec = self.specs[name]
            writer = self.scratch.hot(f"rows/attributes/{name}", spec.dtype, spec.item_shape)
            writers[name] = row_or_edge_appender(writer, spec, by_row=self.levels[name] == "row")
        return writers

    # ---- probabilities

    def _probability_source(
        self,
        surveys: Mapping[str, AttributeSurvey],
        columns: Mapping[str, AttributeColumn],
        table: NDArray[np.int64],
        kept: list[AttributeSpec],
    ) -> Callable[[SortedEdges], NDArray[np.float64]]:
        if "probability" not in self.specs:
            return lambda edges: np.ones(len(edges.next_node))
        level = self.levels["probability"]
        if level == "graph":
            constant = float(surveys["probability"].constant().view(np.float64)[0, 0])
            return lambda edges: np.full(len(edges.next_node), constant)
        if level == "edge":
            part = self._extra_slice("probability", columns)
            return lambda edges: np.ascontiguousarray(edges.raw[:, part]).view(np.float64).reshape(-1)
        at = next(at for spec, at, _ in positions(kept) if spec.name == "probability")
        values = np.ascontiguousarray(table[:, at]).view(np.float64)
        return lambda edges: values[edges.code]

    def _check_sums(
        self,
        edges: SortedEdges,
        plan: EdgePlan,
        region: int,
        probability: Callable[[SortedEdges], NDArray[np.float64]],
    ) -> None:
        for number, part in enumerate(whole_rows(edges)):
            row, total = row_sums_off(part.offsets, probability(part))
            if row >= 0:
                before = sum(
                    len(p.offsets) - 1 for _, p in zip(range(number), whole_rows(edges), strict=False)
                )
                self._refuse_row(int(plan.first_node[region]) * self.num_joint_actions + before + row, total)

    def _refuse_row(self, row: int, total: float) -> None:
        node, joint_action = divmod(row, self.num_joint_actions)
        for chunk in self.stream.chunks(attributes=False):
            found = np.flatnonzero((chunk.node == node) & (chunk.joint_action == joint_action))
            if len(found):
                record = chunk.first + int(found[0])
                break
        actions = ", ".join(map(str, np.unravel_index(joint_action, self.stream.actions.num_actions)))
        name = self.stream.mapping.edges.name
        known = self.stream.mapping.probability
        raise BadDataError(
            f"{name}: the probabilities of the edges with the source and joint action ({actions}) of "
            f"record {record} "
            f"sum to {total:.9g}, where 1 (within 1e-6) was expected",
            "If another field is the probability, say which with --map probability=NAME."
            if known
            else "No field was taken as the probability; say which is with --map probability=NAME.",
        )
