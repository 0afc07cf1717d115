"""The edges: surveyed, distributed over ranges of nodes, sorted range by range, written as rows.

Three passes. The first looks at every edge (`AttributeSurvey`) and counts them by node; the second deals
compact records to scratch, one region for every range of nodes that fits the budget; the third sorts a
range at a time and hands it to the row writer. What is written depends on the edges only: not on their
order, nor on the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel
from omstore.convert.attributes import AttributeSpec, AttributeSurvey, DistinctWords, sorted_words
from omstore.convert.nodes import NodeTable
from omstore.convert.resolve import EdgeChunk, EdgeStream
from omstore.convert.rowsort import SortedEdges, row_sums_off, rows_agree, sort_rows
from omstore.convert.scatter import Scatter
from omstore.errors import BadDataError
from omstore.publish.staging import Staging
from omstore.rows import row_writer

__all__ = ["EdgeResult", "RawSizes", "attribute_specs", "build_edges"]

Ticker = Callable[[int], object]

_BUCKETS = 1 << 16
_SLICE = 1 << 18
"""Edges (or rows) handed to the row writer at a time."""
_SORT_BYTES = 64
"""Bytes of anonymous memory an edge costs while a range is sorted: its record, unpacked columns, sorted
columns."""


@kernel
def _count_by_bucket(nodes: NDArray[np.int64], shift: int, counts: NDArray[np.int64]) -> None:
    for i in range(nodes.shape[0]):
        counts[nodes[i] >> shift] += 1


@dataclass(frozen=True)
class RawSizes:
    """What the choice of a row encoding goes by.

    Attributes
    ----------
    num_rows, num_edges, num_outcomes : int
    csr_bytes : int
        Of offsets, next nodes and outcome codes, uncompressed.
    """

    num_rows: int
    num_edges: int
    num_outcomes: int
    csr_bytes: int


@dataclass
class EdgeResult:
    """What `build_edges` wrote.

    Attributes
    ----------
    rows : dict
        ``manifest.rows``.
    attributes : dict
        ``manifest.attributes``.
    num_edges, num_outcomes, num_legal_rows : int
    notes : list of str
    """

    rows: dict[str, Any]
    attributes: dict[str, dict[str, Any]]
    num_edges: int
    num_outcomes: int
    num_legal_rows: int = 0
    notes: list[str] = field(default_factory=list)


def attribute_specs(stream: EdgeStream) -> list[AttributeSpec]:
    """List the attributes that the export's edges have, in the order that outcomes are sorted by."""
    mapping = stream.mapping
    specs = []
    if mapping.probability is not None:
        specs.append(AttributeSpec("probability", np.dtype(np.float64), 1, scalar=True, hoist=False))
    if mapping.reward is not None:
        num_agents = len(stream.actions.num_actions)
        specs.append(AttributeSpec("reward", np.dtype(np.float64), num_agents, scalar=False, hoist=True))
    if mapping.done is not None:
        specs.append(AttributeSpec("done", np.dtype(np.uint8), 1, scalar=True, hoist=True))
    for name, where in mapping.kept:
        specs.append(AttributeSpec(name, where.dtype, where.width, scalar=where.width == 1, hoist=True))
    return specs


def build_edges(
    stream: EdgeStream,
    nodes: NodeTable,
    staging: Staging,
    choose_encoding: Callable[[RawSizes], tuple[str, str]],
    budget: int,
    tick: Ticker = lambda n: None,
) -> EdgeResult:
    """Write ``rows/``, ``outcomes/`` and the attributes into staging.

    Parameters
    ----------
    stream : EdgeStream
    nodes : NodeTable
    staging : Staging
    choose_encoding : callable
        Says which row encoding to write, and why.
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
    return _EdgeBuild(stream, nodes, staging, budget, tick).run(choose_encoding)


class _Plan:
    """How edges are dealt to ranges of nodes, and what a record holds."""

    def __init__(
        self,
        counts: NDArray[np.int64],
        shift: int,
        num_nodes: int,
        num_joint_actions: int,
        edge_bytes: int,
        budget: int,
    ) -> None:
        width = 1 << shift
        firsts, region_of_bucket = [0], np.zeros(len(counts), np.int32)
        cost = 0
        for bucket, count in enumerate(counts.tolist()):
            here = min(width, num_nodes - bucket * width)
            added = count * edge_bytes + here * num_joint_actions * 8
            if cost and cost + added > budget:
                firsts.append(bucket * width)
                cost = 0
            cost += added
            region_of_bucket[bucket] = len(firsts) - 1
        self.shift = shift
        self.first_node = np.array([*firsts, num_nodes], np.int64)
        self.region_of_bucket = region_of_bucket
        self.num_joint_actions = num_joint_actions
        largest = int(np.max(np.diff(self.first_node))) * num_joint_actions
        self.row_dtype = np.dtype(np.uint32 if largest < 1 << 32 else np.uint64)

    @property
    def num_regions(self) -> int:
        return len(self.first_node) - 1

    def deal(self, chunk: EdgeChunk) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the region and the row within the region of every edge."""
        regions = self.region_of_bucket[chunk.node >> self.shift]
        rows = (chunk.node - self.first_node[regions]) * self.num_joint_actions + chunk.joint_action
        return regions, rows

    def num_rows(self, region: int) -> int:
        return int(self.first_node[region + 1] - self.first_node[region]) * self.num_joint_actions


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
        self.shift = max(0, nodes.num_nodes.bit_length() - _BUCKETS.bit_length() + 1)
        self.counts = np.zeros((nodes.num_nodes >> self.shift) + 1, np.int64)

    def run(self, choose_encoding: Callable[[RawSizes], tuple[str, str]]) -> EdgeResult:
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
            return self._write(choose_encoding, surveys, scatter, plan, combinations, coded, raw, row_tried)
        finally:
            scatter.close()

    # ---- first pass

    def _survey(self) -> dict[str, AttributeSurvey]:
        in_memory = self.budget // 8 // max(1, 2 * len(self.specs))
        surveys = {
            name: AttributeSurvey(spec, self.nodes.num_nodes, self.staging.scratch, in_memory)
            for name, spec in self.specs.items()
        }
        for chunk in self.stream.chunks():
            _count_by_bucket(chunk.node, self.shift, self.counts)
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
    ) -> tuple[Scatter, _Plan, DistinctWords] | None:
        """Deal the edges to regions; None when there are more than `MAX_OUTCOMES` combinations of coded
        attributes."""
        raw_width = sum(spec.width for spec in raw)
        combinations = DistinctWords(sum(spec.width for spec in coded))
        edge_bytes = _SORT_BYTES + 24 * raw_width
        plan = _Plan(
            self.counts, self.shift, self.nodes.num_nodes, self.num_joint_actions, edge_bytes, self.budget
        )
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
        choose_encoding: Callable[[RawSizes], tuple[str, str]],
        surveys: Mapping[str, AttributeSurvey],
        scatter: Scatter,
        plan: _Plan,
        combinations: DistinctWords,
        coded: list[AttributeSpec],
        raw: list[AttributeSpec],
        row_tried: list[str],
    ) -> EdgeResult:
        columns = {name: _Column(spec, "code", at) for spec, at, name in _positions(coded)}
        columns |= {name: _Column(spec, "raw", at) for spec, at, name in _positions(raw)}
        words = combinations.words.copy()
        for name in self._functions_of_row(scatter, plan, words, columns, row_tried):
            self.levels[name] = "row"
        kept = [spec for spec in coded if self.levels[spec.name] == "outcome"]
        picked = [words[:, columns[s.name].at : columns[s.name].at + s.width] for s in kept]
        table, code_of = sorted_words(
            kept, np.concatenate(picked, axis=1) if picked else np.empty((max(1, len(words)), 0), np.int64)
        )
        num_outcomes = max(1, len(table)) if kept else 1
        result = EdgeResult({}, {}, self.stream.num_edges, num_outcomes)
        encoding, why = choose_encoding(self._sizes(num_outcomes))
        writer = row_writer(
            encoding, self.staging, self.nodes.num_nodes, self.num_joint_actions, num_outcomes
        )
        stored = self._attribute_writers(encoding, columns)
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
            result.num_legal_rows += int(np.count_nonzero(np.diff(edges.offsets)))
            for part in _slices(edges):
                writer.append(np.diff(part.offsets), part.next_node, part.code if num_outcomes > 1 else None)
                for name, append in stored.items():
                    append(part, self._extra_slice(name, columns))
                self.tick(len(part.next_node))
        result.rows, size = writer.finish()
        result.rows |= {"num_outcomes": num_outcomes, "reason": why}
        if size.num_edges != self.stream.num_edges:
            raise RuntimeError(f"{size.num_edges:,} edges were written of {self.stream.num_edges:,}")
        self._write_attributes(result, surveys, kept, table)
        return result

    def _sizes(self, num_outcomes: int) -> RawSizes:
        code_bytes = (
            0 if num_outcomes == 1 else 1 if num_outcomes <= 256 else 2 if num_outcomes <= 65536 else 4
        )
        node_bytes = 4 if self.nodes.num_nodes <= 2**32 - 1 else 8
        edges = self.stream.num_edges
        offsets = 0 if edges % self.num_rows == 0 else 8 * (self.num_rows + 1)
        return RawSizes(self.num_rows, edges, num_outcomes, offsets + edges * (node_bytes + code_bytes))

    def _functions_of_row(
        self,
        scatter: Scatter,
        plan: _Plan,
        words: NDArray[np.int64],
        columns: Mapping[str, _Column],
        tried: list[str],
    ) -> list[str]:
        """Sort once to see which attributes are functions of the row; only when the survey left the
        question open."""
        alive = [name for name in tried if name in columns]
        for region in range(plan.num_regions if alive else 0):
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

    def _stored(self, columns: Mapping[str, _Column]) -> list[str]:
        return [name for name in columns if self.levels[name] in ("row", "edge")]

    def _row_words(
        self,
        records: NDArray[Any],
        provisional: NDArray[np.int64],
        words: NDArray[np.int64],
        columns: Mapping[str, _Column],
    ) -> NDArray[np.int64]:
        names = self._stored(columns)
        if not names:
            return np.empty((len(records), 0), np.int64)
        return np.concatenate([columns[name].of(records, words) for name in names], axis=1)

    def _extra_slice(self, name: str, columns: Mapping[str, _Column]) -> slice:
        at = 0
        for other in self._stored(columns):
            if other == name:
                break
            at += self.specs[other].width
        return slice(at, at + self.specs[name].width)

    def _attribute_writers(
        self, encoding: str, columns: Mapping[str, _Column]
    ) -> dict[str, Callable[[SortedEdges, slice], None]]:
        writers = {}
        for name in self._stored(columns):
            spec = self.specs[name]
            make = self.staging.hot if encoding == "csr" else self.staging.cold
            writer = make(f"rows/attributes/{name}", spec.dtype, spec.item_shape)
            writers[name] = _appender(writer, spec, by_row=self.levels[name] == "row")
        return writers

    # ---- probabilities

    def _probability_source(
        self,
        surveys: Mapping[str, AttributeSurvey],
        columns: Mapping[str, _Column],
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
        at = next(at for spec, at, _ in _positions(kept) if spec.name == "probability")
        values = np.ascontiguousarray(table[:, at]).view(np.float64)
        return lambda edges: values[edges.code]

    def _check_sums(
        self,
        edges: SortedEdges,
        plan: _Plan,
        region: int,
        probability: Callable[[SortedEdges], NDArray[np.float64]],
    ) -> None:
        for number, part in enumerate(_slices(edges)):
            row, total = row_sums_off(part.offsets, probability(part))
            if row >= 0:
                before = sum(len(p.offsets) - 1 for _, p in zip(range(number), _slices(edges), strict=False))
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

    # ---- attributes

    def _write_attributes(
        self,
        result: EdgeResult,
        surveys: Mapping[str, AttributeSurvey],
        kept: list[AttributeSpec],
        table: NDArray[np.int64],
    ) -> None:
        positions = {name: at for _, at, name in _positions(kept)}
        for name, spec in self.specs.items():
            level = self.levels[name]
            if level == "graph":
                path = f"outcomes/{name}"
                self.staging.write_hot(path, spec.values(surveys[name].constant()))
            elif level in ("next_node", "node"):
                path = f"nodes/attributes/{name}"
                words = surveys[name].node_words()
                writer = self.staging.hot(path, spec.dtype, spec.item_shape)
                for first in range(0, len(words), _SLICE):
                    writer.append(spec.values(words[first : first + _SLICE]))
                writer.close()
            elif level == "outcome":
                path = f"outcomes/{name}"
                at = positions[name]
                self.staging.write_hot(path, spec.values(table[:, at : at + spec.width]))
            else:
                path = f"rows/attributes/{name}"
            result.attributes[name] = _description(spec, level, path)
        self._write_absent(result)

    def _write_absent(self, result: EdgeResult) -> None:
        """An export without probabilities, rewards or done flags means 1, 0 and false."""
        num_agents = len(self.stream.actions.num_actions)
        for spec, value in (
            (AttributeSpec("probability", np.dtype(np.float64), 1, scalar=True, hoist=False), 1),
            (AttributeSpec("reward", np.dtype(np.float64), num_agents, scalar=False, hoist=True), 0),
            (AttributeSpec("done", np.dtype(np.uint8), 1, scalar=True, hoist=True), 0),
        ):
            if spec.name not in self.specs:
                path = f"outcomes/{spec.name}"
                self.staging.write_hot(path, np.full((1, *spec.item_shape), value, spec.dtype))
                result.attributes[spec.name] = _description(spec, "graph", path)
                result.notes.append(f"the edges have no {spec.name}: taken as {value}")
        reward = self.stream.mapping.reward
        if reward is not None and reward.width < num_agents:
            result.notes.append("the reward is one number: it is stored as every agent's")


def _description(spec: AttributeSpec, level: str, path: str) -> dict[str, Any]:
    return {"level": level, "path": path, "dtype": spec.dtype.name, "shape": list(spec.item_shape)}


@dataclass(frozen=True)
class _Column:
    """Where an attribute's words are while edges are sorted: in the combination that the code tells, or in
    the record."""

    spec: AttributeSpec
    kind: str
    at: int

    def of(self, records: NDArray[Any], words: NDArray[np.int64]) -> NDArray[np.int64]:
        part = slice(self.at, self.at + self.spec.width)
        found: NDArray[np.int64] = (
            words[:, part][records["code"]] if self.kind == "code" else records["raw"][:, part]
        )
        return found


def _positions(specs: list[AttributeSpec]) -> Iterator[tuple[AttributeSpec, int, str]]:
    at = 0
    for spec in specs:
        yield spec, at, spec.name
        at += spec.width


def _slices(edges: SortedEdges) -> Iterator[SortedEdges]:
    """Cut into whole rows of about `_SLICE` edges or rows."""
    offsets = edges.offsets
    row, num_rows = 0, len(offsets) - 1
    while row < num_rows:
        last = int(np.searchsorted(offsets, offsets[row] + _SLICE, side="right")) - 1
        last = min(max(last, row + 1), row + _SLICE, num_rows)
        part = slice(int(offsets[row]), int(offsets[last]))
        yield SortedEdges(
            offsets[row : last + 1] - offsets[row], edges.next_node[part], edges.code[part], edges.raw[part]
        )
        row = last


def _appender(writer: Any, spec: AttributeSpec, *, by_row: bool) -> Callable[[SortedEdges, slice], None]:
    def append(edges: SortedEdges, part: slice) -> None:
        words = np.ascontiguousarray(edges.raw[:, part])
        if not by_row:
            writer.append(spec.values(words))
            return
        legal = np.flatnonzero(np.diff(edges.offsets))
        rows = np.zeros((len(edges.offsets) - 1, spec.width), np.int64)
        rows[legal] = words[edges.offsets[:-1][legal]]
        writer.append(spec.values(rows))

    return append
