"""A store compared with the pickles it came from, edge by edge and transition by transition.

The records are resolved by `omstore.convert.resolve`, which shares nothing with the sorting, hoisting and
writing that made the store. Every record must find a stored edge of its own, equal in everything: a bit for
each stored edge says that it is taken, and counts must agree. So the two are equal as multisets, row by row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input, kernel
from omstore.convert.against import ExportStreams, open_export
from omstore.convert.resolve import EdgeChunk
from omstore.errors import BadDataError, StoreError
from omstore.inspect.bits import first_where, new_bits
from omstore.inspect.checks import Check, Problems
from omstore.progress import Progress
from omstore.read import Graph, Replay, Store
from omstore.read.attributes import EdgeSet

__all__ = ["compare_export"]

_GATHERED = 1 << 18
"""Stored edges that are looked at at a time."""


@kernel
def _match(
    group: Any,
    next_node: Any,
    words: Any,
    offsets: Any,
    stored_next: Any,
    stored: Any,
    edge: Any,
    taken: Any,
    found: Any,
) -> int:
    """Find for every record an untaken stored edge of its row that is equal, and take it.

    `group` says which of the gathered rows a record belongs to; their edges are sorted by next node.
    ``found[i]`` becomes 1 or 0; returns how many records found none.
    """
    missing = 0
    for i in range(group.size):
        low = offsets[group[i]]
        end = offsets[group[i] + 1]
        high = end
        target = next_node[i]
        while low < high:
            middle = (low + high) >> 1
            if stored_next[middle] < target:
                low = middle + 1
            else:
                high = middle
        found[i] = 0
        while low < end and stored_next[low] == target:
            at = edge[low]
            bit = np.uint8(1 << (at & 7))
            if taken[at >> 3] & bit == 0:
                same = True
                for j in range(words.shape[1]):
                    if words[i, j] != stored[low, j]:
                        same = False
                        break
                if same:
                    taken[at >> 3] |= bit
                    found[i] = 1
                    break
            low += 1
        missing += 1 - found[i]
    return missing


def compare_export(
    store: Store, export: Path, scratch: Path, max_ram: int, progress: Progress
) -> tuple[list[Check], list[str]]:
    """Compare a store with an export.

    Parameters
    ----------
    store : Store
    export : Path
        With one pickle or both.
    scratch : Path
        Folder for the spools, about a tenth of the pickles.
    max_ram : int
        Bytes of anonymous memory; a bit for each edge of it (in a file where it doesn't fit).
    progress : Progress

    Returns
    -------
    checks : list of Check
    notes : list of str
        Of what wasn't compared, and of pickles that have changed.

    Raises
    ------
    ExportNotFoundError, LegacyError
        If the pickles can't be read.
    """
    checks: list[Check] = []
    with open_export(export, store.manifest, scratch, max_ram, progress) as streams:
        notes = _changed(store, streams)

        def check(name: str, body: Callable[[Problems], str]) -> None:
            begin = time.perf_counter()
            problems, looked_at = Problems(), ""
            try:
                looked_at = body(problems)
            except (BadDataError, StoreError) as error:  # such as a record whose node the store hasn't
                problems.add(error.message)
            checks.append(problems.check(name, looked_at, time.perf_counter() - begin))

        graph, replay = store.graph, store.replay
        if streams.mapping.graph is None or graph is None:
            notes.append(
                "there is no transition graph to compare with" if graph else "the store has no graph"
            )
        else:
            comparison = _EdgeComparison(graph, streams, scratch, max_ram, progress)
            check("nodes as in the pickle", comparison.nodes)
            check("edges as in the pickle", comparison.edges)
        if streams.mapping.replay is None or replay is None:
            notes.append("there is no replay to compare with" if replay else "the store has no replay")
        else:
            check(
                "transitions as in the pickle",
                lambda problems: _compare_transitions(graph, replay, streams, problems, progress),
            )
    return checks, notes


def _changed(store: Store, streams: ExportStreams) -> list[str]:
    """Say which pickles aren't those the store came from, to the byte."""
    recorded = {Path(source.name).name: source for source in store.manifest.sources}
    notes = []
    for source in streams.sources:
        known = recorded.get(Path(source.name).name)
        if known is None:
            notes.append(f"the store names no source {Path(source.name).name}")
        elif known.sha256 != source.sha256:
            notes.append(f"{source.name} isn't the file that was converted: its bytes differ")
    return notes


def _words(columns: Sequence[NDArray[Any]], count: int) -> NDArray[np.int64]:
    """Lay columns, (n,) or (n, ...), side by side as (n, k) int64, equal where the values are, to the bit."""
    parts = []
    for values in columns:
        flat = values.reshape(count, -1)
        if flat.dtype.kind == "f":
            parts.append(np.ascontiguousarray(flat, np.float64).view(np.int64))
        elif flat.dtype == np.uint64:
            parts.append(np.ascontiguousarray(flat).view(np.int64))
        else:
            parts.append(flat.astype(np.int64))
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


class _EdgeComparison:
    def __init__(
        self, graph: Graph, streams: ExportStreams, scratch: Path, max_ram: int, progress: Progress
    ) -> None:
        self._graph = graph
        self._streams = streams
        self._progress = progress
        self._limit = max_ram // 8
        self._taken = new_bits(graph.num_edges, self._limit, scratch)
        needed = ("probability", "reward", "done")
        kept = [name for name, _ in streams.mapping.graph.kept] if streams.mapping.graph else []
        self._names = [*needed, *kept]

    def nodes(self, problems: Problems) -> str:
        """Every node of the export is in the store with its id, and the store has no others."""
        graph = self._graph
        seen = new_bits(graph.num_nodes, self._limit)
        table = False
        for chunk in self._streams.nodes():
            table = True
            nodes = graph.lookup_packed(chunk.packed)
            good = nodes >= 0
            good[good] = graph.legacy_ids(nodes[good]) == chunk.legacy_id[good]
            for i in np.flatnonzero(~good)[:10]:
                stored = f"node {nodes[i]}, legacy id {graph.legacy_ids(nodes[i : i + 1])[0]}"
                problems.add(
                    f"node record {chunk.first + i}, id {chunk.legacy_id[i]}: its state is "
                    + (stored if nodes[i] >= 0 else "not in the store")
                )
            _set(seen, nodes[good])
        if not table:  # the nodes are the endpoints of the edges
            for edges in self._streams.edges(graph).chunks(attributes=False):
                _set(seen, edges.node)
                _set(seen, edges.next_node)
        extra, count = first_where(seen, graph.num_nodes, value=0, most=3)
        if count:
            listed = ", ".join(map(str, extra))
            problems.add(f"{count:,} nodes of the store aren't in the pickle, such as {listed}")
        return f"{graph.num_nodes:,} nodes" + ("" if table else ", by the edges' endpoints")

    def edges(self, problems: Problems) -> str:
        """Every record has a stored edge of its own, and none is left over."""
        graph = self._graph
        stream = self._streams.edges(graph)
        with self._progress.task("comparing edges", stream.num_edges, "edges") as task:
            for chunk in stream.chunks():
                self._compare(chunk, problems)
                task.update(len(chunk.node))
        if stream.num_edges != graph.num_edges:
            problems.add(f"the pickle has {stream.num_edges:,} edges, the store {graph.num_edges:,}")
        left, count = first_where(self._taken, graph.num_edges, value=0, most=3)
        if count:
            problems.add(f"{count:,} stored edges are in no record, such as {self._where(left)}")
        return f"{stream.num_edges:,} edges: next node, {', '.join(self._names)}"

    def _compare(self, chunk: EdgeChunk, problems: Problems) -> None:
        rows = chunk.node * self._graph.num_joint_actions + chunk.joint_action
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        ends = np.append(begins[1:], len(rows))
        sizes = np.cumsum(self._graph.encoding.outdegree(ordered[begins]))
        first = 0
        while first < len(begins):  # rows in the store may be longer than those of the chunk
            done = int(sizes[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(sizes, done + _GATHERED, side="right")))
            at = order[begins[first] : ends[last - 1]]
            group = np.repeat(np.arange(last - first), (ends - begins)[first:last])
            self._compare_rows(chunk, at, group, ordered[begins[first:last]], problems)
            first = last

    def _compare_rows(
        self,
        chunk: EdgeChunk,
        at: NDArray[np.int64],
        group: NDArray[np.int64],
        rows: NDArray[np.int64],
        problems: Problems,
    ) -> None:
        graph, count = self._graph, len(at)
        stored = graph.encoding.gather(rows, edges=True)
        edges = EdgeSet(
            stored.offsets,
            rows,
            graph.num_joint_actions,
            stored.next_node,
            stored.outcome,
            stored.edge,
            stored.attributes,
        )
        values = [graph.attribute(name).of(edges) for name in self._names]
        agents = len(graph.agents)
        given: list[NDArray[Any]] = [
            np.ones(count) if chunk.probability is None else chunk.probability[at],
            np.zeros((count, agents)) if chunk.reward is None else chunk.reward[at],
            np.zeros(count) if chunk.done is None else chunk.done[at].astype(np.float64),
            *(chunk.kept[name][at] for name in self._names[3:]),
        ]
        values[2] = values[2].astype(np.float64)
        found = np.empty(count, np.int64)
        missing = _match(
            as_input(group, np.int64),
            as_input(chunk.next_node[at], np.int64),
            as_input(_words(given, count), np.int64),
            as_input(stored.offsets, np.int64),
            as_input(stored.next_node, np.int64),
            as_input(_words(values, len(stored.next_node)), np.int64),
            as_input(stored.edge if stored.edge is not None else np.empty(0, np.int64), np.int64),
            self._taken,
            found,
        )
        if missing:
            lost = np.flatnonzero(found == 0)
            for i in lost[:10]:
                problems.add(self._describe(chunk, int(at[i]), rows[group[i]]))
            problems.count(len(lost) - min(10, len(lost)))

    def _describe(self, chunk: EdgeChunk, i: int, row: int) -> str:
        """Write a record that has no stored edge, and what is stored instead."""
        graph = self._graph
        node, action = divmod(int(row), graph.num_joint_actions)
        held = graph.successors([node], [action])
        same = np.flatnonzero(held.next_node == chunk.next_node[i])
        if len(same):
            e = int(same[0])
            stored = (
                f"stored: probability {held.probability[e]}, reward {held.reward[e].tolist()}, "
                f"done {held.done[e]}"
            )
        else:
            stored = f"stored are {len(held.next_node)} other successors"
        values = [
            "" if chunk.probability is None else f", probability {chunk.probability[i]}",
            "" if chunk.reward is None else f", reward {chunk.reward[i].tolist()}",
            "" if chunk.done is None else f", done {bool(chunk.done[i])}",
        ]
        ids = graph.legacy_ids([chunk.node[i], chunk.next_node[i]]).tolist()
        actions = ", ".join(map(str, graph.decode_joint([action])[0].tolist()))
        return (
            f"record {chunk.first + i}: from {ids[0]} by ({actions}) to {ids[1]}{''.join(values)}; {stored}"
        )

    def _where(self, numbers: list[int]) -> str:
        """Write which rows the first few stored edges belong to."""
        graph, listed, wanted = self._graph, [], list(numbers)
        for chunk in graph.encoding.sweep(0, graph.num_rows, 1 << 14):
            while wanted and wanted[0] < chunk.first_edge + len(chunk.next_node):
                inside = wanted.pop(0) - chunk.first_edge
                row = chunk.first_row + int(np.searchsorted(chunk.offsets, inside, side="right")) - 1
                node, action = divmod(row, graph.num_joint_actions)
                ids = graph.legacy_ids([node, int(chunk.next_node[inside])]).tolist()
                listed.append(f"from {ids[0]} by joint action {action} to {ids[1]}")
            if not wanted:
                break
        return "; ".join(listed)


@kernel
def _set_bits(bits: Any, at: Any) -> None:
    for i in range(at.size):
        bits[at[i] >> 3] |= np.uint8(1 << (at[i] & 7))


def _set(bits: NDArray[np.uint8], at: NDArray[np.int64]) -> None:
    _set_bits(bits, as_input(at, np.int64))


def _compare_transitions(
    graph: Graph | None, replay: Replay, streams: ExportStreams, problems: Problems, progress: Progress
) -> str:
    stream = streams.transitions(graph)
    mapping = stream.mapping
    known = set(replay.agents)
    others = tuple(
        agent for i, (agent, _) in enumerate(mapping.observations) if i != mapping.focal and agent in known
    )
    compared = 0
    with progress.task("comparing transitions", stream.num_transitions, "transitions") as task:
        for chunk in stream.chunks(others, others):
            part = slice(chunk.first, min(chunk.first + len(chunk.node), len(replay)))
            pairs: list[tuple[str, Any, Any]] = [
                ("node", chunk.node, replay.nodes[part]),
                ("next node", chunk.next_node, replay.next_nodes[part]),
                ("joint action", chunk.joint_action, replay.joint_actions[part]),
                ("state", chunk.state, replay.packed_states(part)),
                ("next state", chunk.next_state, replay.packed_next_states(part)),
                ("reward", chunk.reward, replay.rewards(part)),
                ("done", chunk.done, replay.done(part)),
            ]
            pairs += [
                (f"observation of {a}", chunk.observations[a], replay.observations(a, part)) for a in others
            ]
            pairs += [
                (f"next observation of {a}", chunk.next_observations[a], replay.next_observations(a, part))
                for a in others
            ]
            pairs += [
                (f"kept {name}", values, replay.kept(name, part)) for name, values in chunk.kept.items()
            ]
            _compare_columns(chunk.first, pairs, problems)
            compared += len(chunk.node)
            task.update(len(chunk.node))
    if stream.num_transitions != len(replay):
        problems.add(f"the pickle has {stream.num_transitions:,} transitions, the store {len(replay):,}")
    return f"{compared:,} transitions: nodes, joint action, states, reward, done, observations"


def _compare_columns(first: int, pairs: Iterable[tuple[str, Any, Any]], problems: Problems) -> None:
    for name, given, stored in pairs:
        count = min(len(given), len(stored))
        if not count:
            continue
        # By value: what is stored may be narrower than what the pickle had, as uint8 for 0.0 and 1.0 (hence
        # 0.0 is added: no zero is negative then).
        given_words, stored_words = (
            _words([np.asarray(side[:count]).reshape(count, -1).astype(np.float64) + 0.0], count)
            for side in (given, stored)
        )
        if given_words.shape != stored_words.shape:
            problems.add(
                f"{name}: {given_words.shape[1]} numbers a transition, {stored_words.shape[1]} stored"
            )
            continue
        wrong = np.flatnonzero((given_words != stored_words).any(axis=1))
        for i in wrong[:10]:
            problems.add(
                f"transition {first + i}: {name} is {_short(given[i])} in the pickle, "
                f"{_short(stored[i])} in the store"
            )
        problems.count(len(wrong) - min(10, len(wrong)))


def _short(value: Any) -> str:
    text = " ".join(str(np.asarray(value).tolist()).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
