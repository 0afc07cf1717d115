"""`build`: from a transition model to a published version of an export's store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from omstore.build.attributes import node_attributes
from omstore.build.edges import EDGE_COLUMNS, SameNodes, edge_table, encode_edges
from omstore.build.factoring import model_factoring
from omstore.build.independent import encode_independent
from omstore.build.nodes import StagedNodes, stage_nodes
from omstore.build.options import PROOF_LIMIT, PROOF_ROWS, BuildOptions, BuildReport
from omstore.build.preflight import Preflight, find_problem, preflight
from omstore.build.replay import transition_table, write_transitions
from omstore.build.simulate import simulate
from omstore.build.tables import SpooledTable
from omstore.convert.nodes import NodeTable
from omstore.convert.replay import ReplayResult
from omstore.convert.resolve import IdNodes
from omstore.encode import EncodedRows, RowsToEncode, encode_rows, write_attributes
from omstore.format.manifest import Counts, Manifest
from omstore.memory import PeakMemory
from omstore.model.checks import Answers, checked_model
from omstore.model.exploring import explore
from omstore.model.model_rows import answer_rows
from omstore.model.protocol import TransitionModel
from omstore.model.rows import ProceduralRows
from omstore.progress import Progress, silent, timed
from omstore.publish.staging import Staging, stage, stage_dry
from omstore.read.attributes import Attribute

__all__ = ["build"]

_ASKED = 1 << 12


def build(
    model: TransitionModel,
    export: Path,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> BuildReport:
    """Build a model's transition graph into a new version of an export's store, and publish it.

    Nothing of the size of its rows or edges is ever in memory. A model of independent agents isn't even
    enumerated, but to prove what was written: every edge, or ten million random rows of a graph with more
    than 2e10 edges. Any other model is explored out of core from its initial states, or asked for all states
    of its product, and its edges are sorted and encoded as conversion's are. Interrupted anywhere, nothing is
    left behind.

    Parameters
    ----------
    model : TransitionModel
    export : Path
        The export's folder, such as ``exports/pursuit/3``; made where missing.
    options : BuildOptions, optional
    progress : Progress, optional

    Returns
    -------
    BuildReport

    Raises
    ------
    ModelError
        If the model answers what no model may; names the state and joint action.
    DiskFullError, MemoryBudgetError
        If it is predicted not to fit, with the numbers and what would; or the disk fills up.
    UsageError
        If the row encoding asked for is impossible.
    ProofError
        If what was written isn't what the model says.
    PublishError, WriterBusyError
        If the store can't be written.
    """
    options = options or BuildOptions()
    progress = progress or silent()
    export = Path(export)
    checked_model(model)
    predicted = preflight(model, export, options)
    problem = find_problem(predicted, options)
    if problem is not None and not options.dry_run:
        raise problem
    with PeakMemory() as peak, (stage_dry if options.dry_run else stage)(export) as staging:
        report = _Build(model, options, progress, staging, predicted, str(problem or "")).run()
    report.peak_anonymous = peak.anonymous
    return report


class _Build:
    def __init__(
        self,
        model: TransitionModel,
        options: BuildOptions,
        progress: Progress,
        staging: Staging,
        predicted: Preflight,
        problem: str,
    ) -> None:
        self.model = model
        self.options = options
        self.progress = progress
        self.staging = staging
        self.agents = tuple(str(agent) for agent in model.agents)
        self.num_actions = tuple(int(count) for count in model.num_actions)
        self.rows: dict[str, Any] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        self.budget = max(8 << 20, options.max_ram // 8)
        origin = model.origin
        self.report = BuildReport(
            model=origin.name if origin else type(model).__qualname__,
            parameters=dict(origin.parameters) if origin else {},
            num_joint_actions=model.num_joint_actions,
            agents=list(self.agents),
            num_actions=list(self.num_actions),
            num_nodes=predicted.num_nodes,
            num_edges=predicted.num_edges,
            edges_error=predicted.edges_error,
            node_bytes=predicted.node_bytes,
            free_bytes=predicted.free_bytes,
            forecasts=[forecast.to_dict() for forecast in predicted.forecasts],
            problem=problem,
            dry_run=options.dry_run,
        )

    def run(self) -> BuildReport:
        report, options = self.report, self.options
        if options.dry_run and not self._worth_staging():
            return report
        with timed(self.report.seconds, "nodes"):
            nodes, num_edges = self._nodes()
        report.num_nodes = nodes.num_nodes
        source = self._source(nodes, num_edges)
        with timed(self.report.seconds, "rows"):
            if source.kernels is not None:
                self._independent(source, nodes)
            else:
                self._asked(source, nodes)
        report.edges_error = 0.0
        replay = None
        if options.transitions and not options.dry_run:
            with timed(self.report.seconds, "replay"):
                replay = self._replay(source, nodes)
        report.attributes = {name: str(a["level"]) for name, a in self.attributes.items()}
        if options.dry_run:
            return report
        with timed(self.report.seconds, "publish"):
            report.files = self.staging.bytes_by_folder()
            report.store_bytes = sum(report.files.values())
            report.version = self.staging.publish(self._manifest(nodes, replay))
        return report

    def _worth_staging(self) -> bool:
        """Whether a dry run looks at a sample of real rows: where the nodes alone aren't already much."""
        report = self.report
        return not report.problem and report.node_bytes <= min(1 << 30, report.free_bytes // 2)

    # ---- nodes

    def _nodes(self) -> tuple[StagedNodes, int | None]:
        numbers, num_edges = None, None
        if self.model.initial_states() is not None:
            with self.progress.task("exploring", None, "states") as task:
                explored = explore(self.model, self.staging.scratch, self.options.max_ram // 2, task.update)
            numbers, num_edges = explored.numbers, explored.num_edges
            self._note(
                f"{len(numbers):,} of {self.model.space.count:,} states can be reached from the initial ones, "
                f"in up to {explored.depth:,} steps"
            )
        count = self.model.space.count if numbers is None else len(numbers)
        with self.progress.task("writing states", count, "states") as task:
            return stage_nodes(self.model, self.staging, self.budget, numbers, task.update), num_edges

    def _source(self, nodes: StagedNodes, num_edges: int | None) -> ProceduralRows:
        return ProceduralRows(self.model, nodes.numbering, num_edges=num_edges, count_now=False)

    # ---- rows

    def _independent(self, source: ProceduralRows, nodes: StagedNodes) -> None:
        report, options = self.report, self.options
        assert source.kernels is not None  # asked before
        found = node_attributes(source)
        report.num_absorbing, report.num_edges = len(found.absorbing), source.size.num_edges
        if options.rows == "procedural":
            self._procedural(source, found.attributes)
            return
        all_proven = source.size.num_edges <= PROOF_LIMIT
        proof_rows = None if all_proven else PROOF_ROWS
        encoding, reason = options.rows, "asked for"
        if encoding == "auto":
            encoding, reason = "factored", "agents move independently: the model has their kernels"
        coded = len(source.probabilities) > 0
        known = encoding == "factored" or (encoding == "dictionary" and all_proven and coded)
        if known and not options.dry_run:
            encoded = encode_independent(
                source,
                found,
                nodes,
                self.staging,
                encoding=encoding,
                reason=reason,
                budget=options.max_ram,
                proof_rows=proof_rows,
                progress=self.progress,
            )
        else:
            encoded = encode_rows(
                RowsToEncode(
                    source,
                    found.attributes,
                    nodes.packed,
                    nodes.codec,
                    self.num_actions,
                    factoring=model_factoring(source.kernels),
                    exceptional_nodes=found.absorbing,
                    hoist=False,
                ),
                self.staging,
                rows=options.rows,
                budget=options.max_ram,
                all_forecasts=options.dry_run,
                dry_run=options.dry_run,
                proof_rows=proof_rows,
                progress=self.progress,
            )
        self._take(encoded)
        if not all_proven and not options.dry_run:
            self._note(
                f"{source.size.num_edges:,} edges are too many to prove one by one: {encoded.proof['rows']:,} "
                f"random rows ({encoded.proof['edges']:,} edges) were compared with the model"
            )

    def _procedural(self, source: ProceduralRows, attributes: tuple[Attribute, ...]) -> None:
        reason = "asked for: the model answers, nothing is stored"
        self.report.encoding, self.report.encoding_reason = "procedural", reason
        if not self.options.dry_run:
            self.rows = source.write(self.staging) | {"reason": reason}
            self.attributes = write_attributes(self.staging, attributes)

    def _asked(self, source: ProceduralRows, nodes: StagedNodes) -> None:
        report, options = self.report, self.options
        assert source.asked is not None  # asked before
        report.num_absorbing = self._count_absorbing(nodes)
        if options.rows == "procedural":
            agents = len(self.agents)
            kinds = (
                ("probability", np.float64, ()),
                ("reward", np.float64, (agents,)),
                ("done", np.uint8, ()),
            )
            self._procedural(
                source,
                tuple(Attribute(name, "rows", np.empty((0, *shape), dtype)) for name, dtype, shape in kinds),
            )
            report.num_edges = source.asked.num_edges
            return
        table = edge_table(
            self.staging.scratch / "asked", len(self.agents), EDGE_COLUMNS, where=type(self.model).__name__
        )
        with contextlib.closing(table):
            self._sort_asked(table, nodes)

    def _sort_asked(self, table: SpooledTable, nodes: StagedNodes) -> None:
        """Ask for all rows, and encode them as a conversion would."""
        report, options = self.report, self.options
        with self.progress.task("asking for rows", nodes.num_nodes, "nodes") as task:
            self._spool_rows(table, nodes, task.update)
        ids = IdNodes(np.empty(0, np.int64), None)
        endpoints = SameNodes(nodes.num_nodes)
        written = encode_edges(
            table,
            NodeTable(nodes.num_nodes, nodes.codec, nodes.index, ids, endpoints, ()),
            self.agents,
            self.num_actions,
            nodes.packed,
            self.staging,
            rows=options.rows,
            max_ram=options.max_ram,
            progress=self.progress,
            dry_run=options.dry_run,
            take_scratch=table.close,
        )
        report.num_edges = written.num_edges
        self._take(written.encoded)

    def _spool_rows(self, table: SpooledTable, nodes: StagedNodes, tick: Callable[[int], object]) -> None:
        num_joint_actions = self.model.num_joint_actions
        answers = Answers(self.model)
        step = max(1, _ASKED // num_joint_actions)
        for first in range(0, nodes.num_nodes, step):
            last = min(first + step, nodes.num_nodes)
            for start in range(first * num_joint_actions, last * num_joint_actions, _ASKED):
                rows = np.arange(start, min(start + _ASKED, last * num_joint_actions))
                found = answer_rows(answers, nodes.numbering, rows)
                row = np.repeat(rows, np.diff(found.offsets))
                table.add(
                    row // num_joint_actions,
                    row % num_joint_actions,
                    found.next_node,
                    found.probability,
                    found.reward,
                    found.done,
                )
            tick(last - first)

    def _count_absorbing(self, nodes: StagedNodes) -> int:
        answers = Answers(self.model)
        parts = (np.arange(i, min(i + _ASKED, nodes.num_nodes)) for i in range(0, nodes.num_nodes, _ASKED))
        return sum(int(answers.absorbing(nodes.numbering.states(part)).sum()) for part in parts)

    def _take(self, encoded: EncodedRows) -> None:
        self.rows, self.attributes = encoded.rows, encoded.attributes
        self.report.encoding, self.report.encoding_reason = encoded.encoding, encoded.reason
        self.report.proof = dict(encoded.proof)
        if encoded.forecasts:
            self.report.forecasts = [forecast.to_dict() for forecast in encoded.forecasts]

    # ---- replay and manifest

    def _replay(self, source: ProceduralRows, nodes: StagedNodes) -> ReplayResult:
        options, codec = self.options, nodes.codec
        table = transition_table(
            self.staging.scratch / "transitions", codec.width, len(self.agents), where="the replay"
        )
        with contextlib.closing(table):
            replay = self._played(table, source, nodes)
        replay.replay["simulated"] = {"seed": options.seed, "horizon": options.horizon, "policy": "uniform"}
        self.report.num_transitions = replay.num_transitions
        return replay

    def _played(self, table: SpooledTable, source: ProceduralRows, nodes: StagedNodes) -> ReplayResult:
        options, codec = self.options, nodes.codec
        with self.progress.task("simulating", options.transitions, "transitions") as task:
            for steps in simulate(
                source, options.transitions, seed=options.seed, horizon=options.horizon, tick=task.update
            ):
                table.add(
                    codec.unpack(nodes.packed[steps.node]),
                    steps.joint_action,
                    codec.unpack(nodes.packed[steps.next_node]),
                    steps.reward,
                    steps.done,
                )
        with self.progress.task("writing the replay", options.transitions, "transitions") as task:
            return write_transitions(
                table, codec, nodes.index, self.agents, self.num_actions, self.staging, task.update
            )

    def _manifest(self, nodes: StagedNodes, replay: ReplayResult | None) -> Manifest:
        report = self.report
        num_rows = nodes.num_nodes * self.model.num_joint_actions
        counts = Counts(
            nodes.num_nodes, self.model.num_joint_actions, num_rows, report.num_edges, report.num_transitions
        )
        return Manifest(
            counts=counts,
            agents=self.agents,
            num_actions=self.num_actions,
            state=nodes.codec,
            rows=self.rows,
            attributes=self.attributes,
            replay=replay.replay if replay else {},
            options={"model": report.model, "parameters": report.parameters, **self.options.recorded()},
            notes=tuple(report.notes),
        )

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        self.progress.message(text)
