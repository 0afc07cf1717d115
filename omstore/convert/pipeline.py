"""`convert`: from an export's pickles to a published version of its store."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omstore.convert.actions import ActionSpace, ActionUse, find_action_space
from omstore.convert.edges import EdgeResult, build_edges
from omstore.convert.nodes import NodeTable, build_nodes, choose_codec
from omstore.convert.options import ConvertOptions, ConvertReport
from omstore.convert.records import RecordReader
from omstore.convert.replay import (
    ReplayResult,
    TransitionStream,
    per_agent_observations,
    state_resolver,
    write_replay,
)
from omstore.convert.resolve import EdgeStream
from omstore.convert.sources import LegacyFile, find_pickles, read_files
from omstore.encode import RowsToEncode, encode_rows
from omstore.errors import BadDataError, UsageError
from omstore.format.hot import map_hot
from omstore.format.manifest import Counts, Manifest
from omstore.format.states import StateCodec
from omstore.legacy.fields import Field, snake_case
from omstore.legacy.mapping import GraphMapping, ReplayMapping, map_graph, map_replay
from omstore.memory import PeakMemory
from omstore.progress import Progress, silent, timed
from omstore.publish.staging import Staging, stage, stage_dry

__all__ = ["ExportMapping", "convert", "map_export"]

"""Row encodings that the sorted rows are written in as they come, when they are asked for."""


class ExportMapping:
    """The roles in both files of an export, checked against each other.

    Attributes
    ----------
    graph : GraphMapping or None
    replay : ReplayMapping or None
    actions : ActionSpace
    agents : tuple of str
    codec : StateCodec
    notes : list of str
    """

    def __init__(
        self,
        graph: GraphMapping | None,
        replay: ReplayMapping | None,
        actions: ActionSpace,
        agents: tuple[str, ...],
        codec: StateCodec,
        notes: list[str],
    ) -> None:
        self.graph = graph
        self.replay = replay
        self.actions = actions
        self.agents = agents
        self.codec = codec
        self.notes = notes


def map_export(files: Mapping[str, LegacyFile], options: ConvertOptions) -> ExportMapping:
    """Decide on every role, the joint action space and how states are packed.

    Raises
    ------
    BadDataError
        When something can't be decided, or the two files disagree.
    UsageError
        When an option names what isn't there.
    """
    notes: list[str] = []
    graph = replay = None
    if "graph" in files:
        file = files["graph"]
        graph = map_graph(file.tree, file.range_of, overrides=options.map, keep=options.keep)
        notes += [f"{file.name}: {drop.name} isn't stored: {drop.reason}" for drop in graph.dropped]
    if "replay" in files:
        file = files["replay"]
        replay = map_replay(
            file.tree,
            file.range_of,
            overrides=options.map,
            keep=options.keep,
            focal=options.focal,
            agents=graph.agents if graph is not None else (),
        )
        notes += [f"{file.name}: {drop.name} isn't stored: {drop.reason}" for drop in replay.dropped]
    for name, file in files.items():
        notes += [f"{files[name].name}: {note}" for note in file.tree.notes]
    stored = {name for part in (graph, replay) if part is not None for name, _ in part.kept}
    for name in options.keep:
        if snake_case(name.split(".")[-1]) not in stored:
            raise UsageError(
                f"there is no field {name!r} to keep", "`omstore peek FILE` lists the fields of the records."
            )
    agents, count = _agree_on_agents(graph, replay)
    uses = []
    if graph is not None:
        uses.append(ActionUse(files["graph"].name, files["graph"].reader(graph.edges), graph.joint_action))
    if replay is not None:
        uses.append(
            ActionUse(files["replay"].name, files["replay"].reader(replay.records), replay.joint_action)
        )
    for use in uses:
        if not use.reader.num_rows:
            raise BadDataError(f"{use.where}: {use.reader.records.name} is empty")
    actions, more = find_action_space(uses, count, options.actions)
    notes += more
    if not agents or len(agents) != len(actions.num_actions):
        agents = tuple(str(agent) for agent in range(len(actions.num_actions)))
    width, states = _states(files, graph, replay)
    if replay is not None:
        replay = per_agent_observations(replay, width if graph is not None else None)
        focal = [replay.observations[replay.focal][1], replay.next_observations[replay.focal][1]]
        states += [(files["replay"].name, files["replay"].reader(replay.records), where) for where in focal]
    return ExportMapping(graph, replay, actions, agents, choose_codec(width, states), notes)


def _agree_on_agents(
    graph: GraphMapping | None, replay: ReplayMapping | None
) -> tuple[tuple[str, ...], int | None]:
    if graph is None or replay is None:
        one = graph or replay
        return (one.agents, one.num_agents) if one is not None else ((), None)
    if graph.agents and replay.agents and sorted(graph.agents) != sorted(replay.agents):
        raise BadDataError(
            f"the graph's agents are {', '.join(graph.agents)}, the replay's {', '.join(replay.agents)}",
            "Are the two files of one export?",
        )
    if graph.num_agents and replay.num_agents and graph.num_agents != replay.num_agents:
        raise BadDataError(
            f"the graph has {graph.num_agents} agents, the replay {replay.num_agents}",
            "Are the two files of one export?",
        )
    return graph.agents or replay.agents, graph.num_agents or replay.num_agents


def _states(
    files: Mapping[str, LegacyFile], graph: GraphMapping | None, replay: ReplayMapping | None
) -> tuple[int, list[tuple[str, RecordReader, Field]]]:
    """Return W, and every field of the graph that holds states."""
    uses: list[tuple[str, RecordReader, Field]] = []
    if graph is not None:
        name = files["graph"].name
        if graph.nodes is not None:
            uses.append((name, files["graph"].reader(graph.nodes.records), graph.nodes.state))
            return graph.nodes.state.width, uses
        reader = files["graph"].reader(graph.edges)
        uses += [(name, reader, graph.source), (name, reader, graph.next_node)]
        return graph.source.width, uses
    if replay is None:
        raise BadDataError("there is neither a graph nor a replay")
    return replay.observations[replay.focal][1].width, uses


def convert(
    export: Path, options: ConvertOptions | None = None, progress: Progress | None = None
) -> ConvertReport:
    """Convert an export's pickles into a new version of its store, and publish it.

    Nothing in a pickle is executed or imported. Anonymous memory stays within ``options.max_ram`` whatever
    the size of the files; scratch files beside the store take about a tenth of theirs. Interrupted
    anywhere, nothing is left behind.

    Parameters
    ----------
    export : Path
        Folder with ``wm/env_transition_graph.pkl`` and ``wm/D.pkl`` (either may be missing, or compressed).
    options : ConvertOptions, optional
    progress : Progress, optional

    Returns
    -------
    ConvertReport

    Raises
    ------
    ExportNotFoundError
        If there are no pickles.
    LegacyError
        If a pickle can't be read or its contents don't make a graph or a replay; says which record, which
        field, what was expected.
    PublishError, DiskFullError, WriterBusyError
        If the store can't be written.
    """
    options = options or ConvertOptions()
    progress = progress or silent()
    export = Path(export)
    files = find_pickles(export)
    stage_for = stage_dry if options.dry_run else stage
    with PeakMemory() as peak, stage_for(export) as staging:
        report = _Conversion(export, options, progress, staging).run(files)
        report.peak_anonymous = peak.anonymous
    report.peak_anonymous = peak.anonymous
    return report


class _Conversion:
    def __init__(self, export: Path, options: ConvertOptions, progress: Progress, staging: Staging) -> None:
        self.export = export
        self.options = options
        self.progress = progress
        self.staging = staging
        self.report = ConvertReport(dry_run=options.dry_run)
        self.rows: dict[str, Any] = {}
        self.attributes: dict[str, dict[str, Any]] = {}
        # what is left beside Python, numpy and the compiled kernels, with room for what overlaps
        self.budget = max(8 << 20, options.max_ram // 8)

    def run(self, paths: Mapping[str, Path]) -> ConvertReport:
        report = self.report
        report.source_bytes = sum(path.stat().st_size for path in paths.values())
        for part, name in (("graph", "transition graph"), ("replay", "replay")):
            if part not in paths:
                self._note(f"there is no {name}: only the other file is converted")
        with contextlib.ExitStack() as stack:
            with timed(self.report.seconds, "read"):
                files = read_files(
                    paths, self.export, self.staging.scratch, self.options.max_ram // 4, self.progress
                )
            for file in files.values():
                stack.callback(file.close)
            report.scratch_bytes = sum(file.spool.num_bytes for file in files.values())
            with timed(self.report.seconds, "map"):
                mapping = map_export(files, self.options)
            if mapping.graph is not None:
                report.mapping += mapping.graph.describe()
            if mapping.replay is not None:
                report.mapping += mapping.replay.describe()
            for note in mapping.notes:
                self._note(note)
            nodes, edges = self._graph(files, mapping)
            replay = self._replay(files, mapping, nodes)
        manifest = self._manifest(files, mapping, nodes, edges, replay)
        with timed(self.report.seconds, "publish"):
            report.files = self.staging.bytes_by_folder()
            report.store_bytes = sum(report.files.values())
            if not self.options.dry_run:
                report.version = self.staging.publish(manifest)
        return report

    def _graph(
        self, files: Mapping[str, LegacyFile], mapping: ExportMapping
    ) -> tuple[NodeTable | None, EdgeResult | None]:
        if mapping.graph is None:
            return None, None
        file = files["graph"]
        edge_reader = file.reader(mapping.graph.edges)
        node_reader = file.reader(mapping.graph.nodes.records) if mapping.graph.nodes else None
        with timed(self.report.seconds, "nodes"):
            nodes = build_nodes(
                mapping.graph, node_reader, edge_reader, mapping.codec, self.staging, self.budget, file.name
            )
        for note in nodes.notes:
            self._note(f"{file.name}: {note}")
        stream = EdgeStream(
            edge_reader,
            mapping.graph,
            nodes.endpoints,
            mapping.actions,
            file.name,
            self.options.allow_nonfinite,
        )
        with (
            timed(self.report.seconds, "edges"),
            self.progress.task("sorting edges", 3 * stream.num_edges, "edges") as task,
        ):
            edges = build_edges(stream, nodes, self.staging, self.budget, task.update)
        for note in edges.notes:
            self._note(f"{file.name}: {note}")
        file.close()
        self.report.num_nodes, self.report.num_edges = nodes.num_nodes, edges.size.num_edges
        self.report.num_legal_rows = edges.num_legal_rows
        with timed(self.report.seconds, "rows"):
            self._encode(nodes, edges, mapping)
        self.report.encoding = str(self.rows["encoding"])
        self.report.encoding_reason = str(self.rows["reason"])
        self.report.attributes = {name: str(a["level"]) for name, a in self.attributes.items()}
        return nodes, edges

    def _encode(self, nodes: NodeTable, edges: EdgeResult, mapping: ExportMapping) -> None:
        """Encode the sorted rows."""
        encoded = encode_rows(
            RowsToEncode(
                edges.staged_rows(),
                edges.attributes,
                map_hot(self.staging.path / "nodes/state"),
                nodes.codec,
                mapping.actions.num_actions,
                staged=edges.scratch,
            ),
            self.staging,
            rows=self.options.rows,
            budget=self.options.max_ram,
            all_forecasts=self.options.dry_run,
            progress=self.progress,
        )
        self.rows, self.attributes = encoded.rows, encoded.attributes
        self.report.forecasts = [forecast.to_dict() for forecast in encoded.forecasts]
        self.report.proof = dict(encoded.proof)
        edges.scratch.remove()

    def _replay(
        self, files: Mapping[str, LegacyFile], mapping: ExportMapping, nodes: NodeTable | None
    ) -> ReplayResult | None:
        if mapping.replay is None:
            return None
        file = files["replay"]
        stream = TransitionStream(
            file.reader(mapping.replay.records),
            mapping.replay,
            mapping.codec,
            state_resolver(nodes) if nodes else None,
            mapping.actions,
            file.name,
            self.options.allow_nonfinite,
        )
        with (
            timed(self.report.seconds, "replay"),
            self.progress.task("writing the replay", stream.num_transitions, "transitions") as task,
        ):
            replay = write_replay(stream, nodes, self.staging, task.update)
        self.report.num_transitions, self.report.off_graph = replay.num_transitions, replay.off_graph
        if nodes is not None and replay.off_graph:
            self._note(
                f"{file.name}: {replay.off_graph:,} of {replay.num_transitions:,} transitions have a "
                f"state that isn't in "
                "the graph (node -1)"
            )
        for note in replay.notes:
            self._note(f"{file.name}: {note}")
        return replay

    def _manifest(
        self,
        files: Mapping[str, LegacyFile],
        mapping: ExportMapping,
        nodes: NodeTable | None,
        edges: EdgeResult | None,
        replay: ReplayResult | None,
    ) -> Manifest:
        report, num_joint_actions = self.report, mapping.actions.num_joint_actions
        report.num_joint_actions = num_joint_actions
        report.agents, report.num_actions = list(mapping.agents), list(mapping.actions.num_actions)
        num_nodes = nodes.num_nodes if nodes else 0
        counts = Counts(
            num_nodes=num_nodes,
            num_joint_actions=num_joint_actions,
            num_rows=num_nodes * num_joint_actions,
            num_edges=edges.size.num_edges if edges else 0,
            num_transitions=replay.num_transitions if replay else 0,
        )
        return Manifest(
            counts=counts,
            agents=mapping.agents,
            num_actions=mapping.actions.num_actions,
            state=mapping.codec,
            rows=self.rows,
            attributes=self.attributes,
            replay=replay.replay if replay else {},
            sources=tuple(files[part].source for part in sorted(files)),
            options=self.options.recorded(),
            notes=tuple(report.notes),
        )

    def _note(self, text: str) -> None:
        self.report.notes.append(text)
        self.progress.message(text)
