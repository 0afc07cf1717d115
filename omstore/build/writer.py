"""The writer API: an exporter streams nodes, rows and transitions in, instead of pickling them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.build.edges import EDGE_COLUMNS, EncodedEdges, edge_table, encode_edges
from omstore.build.given import given_column, given_integers, given_joint_actions, given_states
from omstore.build.options import BuildReport
from omstore.build.replay import transition_table, write_transitions
from omstore.build.tables import SpooledTable
from omstore.convert.actions import ActionSpace
from omstore.convert.nodes import NodeTable, build_nodes, choose_codec
from omstore.convert.replay import ReplayResult
from omstore.encode import check_encoding
from omstore.errors import BadDataError, UsageError
from omstore.format.hot import map_hot
from omstore.format.manifest import Counts, Manifest
from omstore.format.states import StateCodec
from omstore.legacy.mapped import NodesMapping
from omstore.legacy.mapping import GraphMapping
from omstore.memory import DEFAULT_BUDGET, PeakMemory, parse_bytes
from omstore.progress import Progress, silent
from omstore.publish.staging import Staging, stage

__all__ = ["GraphWriter", "create"]

_HINT = "Look at what was given to the writer; nothing was published."


def create(
    export: str | os.PathLike[str],
    *,
    agents: Sequence[str],
    num_actions: Sequence[int],
    state_width: int,
    rows: str = "auto",
    max_ram: int | str = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> GraphWriter:
    """Begin a new version of an export's store, to be streamed in.

    Use as a context manager: leaving it publishes, and an exception publishes nothing.

    Parameters
    ----------
    export : path-like
        The export's folder, such as ``exports/pursuit/3``; made where missing.
    agents : sequence of str
        Names, agent 0 first.
    num_actions : sequence of int
        Actions of each agent.
    state_width : int
        W, components of a state vector.
    rows : str
        Row encoding: ``auto``, ``csr``, ``csr-compressed``, ``dictionary`` or ``factored``.
    max_ram : int or str
        Bytes of anonymous memory, or such as ``"2G"``; what is written doesn't depend on it.
    progress : Progress, optional

    Examples
    --------
    >>> with omstore.create("exports/my/1", agents=["a"], num_actions=[2], state_width=3) as writer:
    ...     nodes = writer.add_nodes(vectors)
    ...     writer.add_rows(nodes, np.zeros(len(nodes), int), next_nodes=nodes)
    """
    return GraphWriter(
        Path(export),
        tuple(str(agent) for agent in agents),
        tuple(int(count) for count in num_actions),
        int(state_width),
        rows,
        parse_bytes(max_ram),
        progress or silent(),
    )


class GraphWriter:
    """Takes the nodes, rows and transitions of a graph in any order; made by :func:`create`.

    What is added is spooled to scratch beside the store; when the context ends it is sorted, encoded and
    published as a conversion would. Memory stays within `max_ram`.

    Attributes
    ----------
    report : BuildReport or None
        Once it is published.
    """

    def __init__(
        self,
        export: Path,
        agents: tuple[str, ...],
        num_actions: tuple[int, ...],
        state_width: int,
        rows: str,
        max_ram: int,
        progress: Progress,
    ) -> None:
        check_encoding(rows)
        if not agents or len(agents) != len(num_actions) or min(num_actions) < 1:
            raise UsageError(
                f"agents {agents} have actions of {num_actions}",
                "Give a name and a number of actions, at least 1, for each agent.",
            )
        if state_width < 1:
            raise UsageError(f"a state has at least one component, not {state_width}")
        self._export = export
        self._agents = agents
        self._num_actions = num_actions
        self._width = state_width
        self._rows = rows
        self._max_ram = max_ram
        self._progress = progress
        self._actions = ActionSpace(num_actions)
        self._open = contextlib.ExitStack()
        self._staging: Staging | None = None
        self._nodes: SpooledTable | None = None
        self._edges: SpooledTable | None = None
        self._transitions: SpooledTable | None = None
        self.report: BuildReport | None = None

    def __enter__(self) -> Self:
        self._staging = self._open.enter_context(stage(self._export))
        folder = self._staging.scratch
        self._nodes = SpooledTable(
            "nodes", folder / "nodes", [("state", np.uint8, self._width), ("number", np.int64, None)]
        )
        self._transitions = transition_table(
            folder / "transitions", self._width, len(self._agents), where="transitions"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open, contextlib.ExitStack() as tables:
            for table in (self._nodes, self._edges, self._transitions):
                if table is not None:
                    tables.callback(table.close)
            if kind is None:
                try:
                    self._publish()
                except BadDataError as bad:  # conversion's hints name options that a writer hasn't
                    raise BadDataError(bad.message, _HINT) from bad
        self._staging = None

    # ---- adding

    def add_nodes(self, states: ArrayLike) -> NDArray[np.int64]:
        """Add nodes.

        Parameters
        ----------
        states : (B, W) array_like
            State vectors: whole numbers from 0 on, another one for every node.

        Returns
        -------
        (B,) int64
            Their numbers, counting all that were added; rows name nodes by them. In the store nodes are
            sorted by state; `Graph.nodes_of_legacy` finds them by these numbers.
        """
        table = self._table(self._nodes)
        vectors = given_states(states, "states", self._width)
        first = table.num_rows
        numbers = np.arange(first, first + len(vectors))
        table.add(vectors, numbers)
        return numbers

    def add_rows(
        self,
        nodes: ArrayLike,
        joint_actions: ArrayLike,
        outdegree: ArrayLike | None = None,
        *,
        offsets: ArrayLike | None = None,
        next_nodes: ArrayLike,
        probability: ArrayLike | None = None,
        reward: ArrayLike | None = None,
        done: ArrayLike | None = None,
    ) -> None:
        """Add rows; a row's successors may come in several calls, nodes may be added later.

        Parameters
        ----------
        nodes : (B,) integers
            As `add_nodes` numbered them.
        joint_actions : (B,) or (B, agents) integers
        outdegree : (B,) integers, optional
            Successors of each row; or `offsets`, (B + 1,), their running sum from 0. By default one each.
        next_nodes : (E,) integers
        probability : (E,) floats, optional
            By default 1. Each row's must sum to 1 within 1e-6 in the end.
        reward : (E, agents) or (E,) floats, optional
            By default 0. One number is every agent's.
        done : (E,) bool, optional
            By default false.

        Raises
        ------
        UsageError
            If shapes don't fit, a joint action is out of range, or other optional columns were given before.
        """
        given_nodes = given_integers(nodes, "nodes")
        actions = given_joint_actions(joint_actions, self._actions, len(given_nodes))
        if offsets is not None:
            bounds = given_integers(offsets, "offsets")
            if outdegree is not None or bounds.shape != (len(given_nodes) + 1,) or bounds[0] != 0:
                raise UsageError(
                    f"offsets of {bounds.shape} for {len(given_nodes)} rows; one more than rows, from 0 on, and "
                    "no outdegree besides, were expected"
                )
            degree = np.diff(bounds)
        elif outdegree is not None:
            degree = given_integers(outdegree, "outdegrees")
        else:
            degree = np.ones(len(given_nodes), np.int64)
        following = given_integers(next_nodes, "next nodes")
        if degree.shape != given_nodes.shape or (degree < 0).any() or int(degree.sum()) != len(following):
            raise UsageError(
                f"{len(given_nodes)} rows of {int(degree.sum())} successors were given with {len(following)} "
                "next nodes"
            )
        count = len(following)
        optional: dict[str, NDArray[Any]] = {}
        for name, values, dtype in (
            ("probability", probability, np.float64),
            ("reward", reward, np.float64),
            ("done", done, np.uint8),
        ):
            if values is not None:
                optional[name] = given_column(name, values, dtype, count, len(self._agents))
        table = self._edge_table(tuple(name for name in EDGE_COLUMNS if name in optional))
        table.add(np.repeat(given_nodes, degree), np.repeat(actions, degree), following, *optional.values())

    def add_transitions(
        self,
        states: ArrayLike,
        joint_actions: ArrayLike,
        next_states: ArrayLike,
        reward: ArrayLike | None = None,
        done: ArrayLike | None = None,
    ) -> None:
        """Add transitions to the replay, oldest first.

        Parameters
        ----------
        states, next_states : (B, W) array_like
            State vectors; they need be no nodes of the graph.
        joint_actions : (B,) or (B, agents) integers
        reward : (B, agents) or (B,) floats, optional
            By default 0.
        done : (B,) bool, optional
            By default false.
        """
        before, after = (
            given_states(states, "states", self._width),
            given_states(next_states, "next states", self._width),
        )
        count = len(before)
        if len(after) != count:
            raise UsageError(f"{count} states were given with {len(after)} next states")
        self._table(self._transitions).add(
            before,
            given_joint_actions(joint_actions, self._actions, count),
            after,
            given_column("reward", 0.0 if reward is None else reward, np.float64, count, len(self._agents)),
            given_column("done", False if done is None else done, np.uint8, count, len(self._agents)),
        )

    def _table(self, table: SpooledTable | None) -> SpooledTable:
        if table is None or self._staging is None:
            raise UsageError(
                "the writer isn't open",
                "Use it as a context manager: with omstore.create(...) as writer: ...",
            )
        return table

    def _edge_table(self, optional: tuple[str, ...]) -> SpooledTable:
        self._table(self._nodes)
        columns = (*EDGE_COLUMNS[:3], *optional)
        if self._edges is None:
            assert self._staging is not None  # `_table` looked
            self._edges = edge_table(
                self._staging.scratch / "added", len(self._agents), columns, where="rows added"
            )
        if self._edges.names != list(columns):
            raise UsageError(
                f"rows were added with {', '.join(self._edges.names[3:]) or 'next nodes only'} before, and now "
                f"with {', '.join(optional) or 'next nodes only'}",
                "Give the same columns in every call.",
            )
        return self._edges

    # ---- publishing

    def _publish(self) -> None:
        staging, progress = self._staging, self._progress
        nodes, transitions, edges = self._nodes, self._transitions, self._edges
        assert staging is not None
        assert nodes is not None
        assert transitions is not None
        if not nodes.num_rows and not transitions.num_rows:
            raise UsageError("nothing was added to the writer", "Add nodes and rows, or transitions.")
        if nodes.num_rows and edges is None:
            raise UsageError("nodes were added, but no rows", "Add rows with add_rows.")
        if edges is not None and not nodes.num_rows:
            raise UsageError("rows were added, but no nodes", "Add nodes with add_nodes.")
        report = self.report = BuildReport(
            model="",
            agents=list(self._agents),
            num_actions=list(self._num_actions),
            num_joint_actions=self._actions.num_joint_actions,
        )
        begin = time.perf_counter()
        uses = []
        for table, names in ((nodes, ["state"]), (transitions, ["state", "next_state"])):
            uses += [(table.name, table.reader(), table.field(name)) for name in names]
        codec = choose_codec(self._width, uses)
        with PeakMemory() as peak:
            built = written = replay = None
            if edges is not None:
                built = self._build_nodes(nodes, edges, codec, staging)
                written = self._encode(edges, built, staging)
                report.num_nodes, report.num_edges = built.num_nodes, written.num_edges
            if transitions.num_rows:
                with progress.task("writing the replay", transitions.num_rows, "transitions") as task:
                    replay = write_transitions(
                        transitions,
                        codec,
                        built.index if built else None,
                        self._agents,
                        self._num_actions,
                        staging,
                        task.update,
                    )
                report.num_transitions = replay.num_transitions
        report.peak_anonymous = peak.anonymous
        report.files = staging.bytes_by_folder()
        report.store_bytes = sum(report.files.values())
        report.version = staging.publish(self._manifest(codec, written, replay))
        report.seconds["publish"] = time.perf_counter() - begin

    def _build_nodes(
        self, nodes: SpooledTable, edges: SpooledTable, codec: StateCodec, staging: Staging
    ) -> NodeTable:
        # Numbers are positions, but a state of one component would be taken for its node's name.
        number = nodes.field("number") if codec.width == 1 else None
        mapping = GraphMapping(
            edges=edges.records(),
            nodes=NodesMapping(nodes.records(), nodes.field("state"), number),
            source=edges.field("node"),
            next_node=edges.field("next_node"),
            joint_action=edges.field("joint_action"),
            probability=None,
            reward=None,
            done=None,
            kept=(),
            agents=self._agents,
            num_agents=len(self._agents),
        )
        budget = max(8 << 20, self._max_ram // 8)
        return build_nodes(mapping, nodes.reader(), edges.reader(), codec, staging, budget, "the writer")

    def _encode(self, edges: SpooledTable, built: NodeTable, staging: Staging) -> EncodedEdges:
        assert self.report is not None
        written = encode_edges(
            edges,
            built,
            self._agents,
            self._num_actions,
            map_hot(staging.path / "nodes/state"),
            staging,
            rows=self._rows,
            max_ram=self._max_ram,
            progress=self._progress,
            take_scratch=edges.close,
        )
        self.report.notes += written.notes
        encoded = written.encoded
        self.report.attributes = dict(encoded.levels)
        self.report.encoding, self.report.encoding_reason = encoded.encoding, encoded.reason
        self.report.proof = dict(encoded.proof)
        self.report.forecasts = [forecast.to_dict() for forecast in encoded.forecasts]
        return written

    def _manifest(
        self, codec: StateCodec, written: EncodedEdges | None, replay: ReplayResult | None
    ) -> Manifest:
        assert self.report is not None
        report, num_joint_actions = self.report, self._actions.num_joint_actions
        counts = Counts(
            report.num_nodes,
            num_joint_actions,
            report.num_nodes * num_joint_actions,
            report.num_edges,
            report.num_transitions,
        )
        return Manifest(
            counts=counts,
            agents=self._agents,
            num_actions=self._num_actions,
            state=codec,
            rows=written.encoded.rows if written else {},
            attributes=written.encoded.attributes if written else {},
            replay=replay.replay if replay else {},
            options={"writer": True, "rows": self._rows},
            notes=tuple(report.notes),
        )
