"""An export's truth against its store, through everything the reading API offers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import omstore
from tools.exports.truth import GraphTruth, Truth


def digests(export: Path) -> dict[str, str]:
    """Digest of every file of the live version, the manifest too."""
    live = export / "store" / (export / "store" / "CURRENT").read_text().strip()
    return {
        str(path.relative_to(live)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(live.rglob("*"))
        if path.is_file()
    }


def same_bits(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert found.shape == expected.shape
    assert found.astype(np.float64).tobytes() == expected.astype(np.float64).tobytes()


def every_agents(reward: NDArray[np.float64], num_agents: int) -> NDArray[np.float64]:
    """One reward is every agent's; none is 0."""
    held = reward if reward.shape[1] else np.zeros((len(reward), 1))
    return np.repeat(held, num_agents, axis=1) if held.shape[1] == 1 else held


class Expected:
    """A truth in the store's terms: nodes by rank of their state, edges sorted as rows are.

    Attributes
    ----------
    order : (N,) int64
        Node -> its place in the truth.
    node_of : dict of int to int
        Legacy id -> node.
    offsets : (N * A + 1,) int64
    next_node, probability, reward, done, visits : arrays over edges
        Within a row by next node, then by value.
    """

    def __init__(self, graph: GraphTruth, num_joint_actions: int, num_agents: int) -> None:
        vectors = graph.states.tolist()
        self.order = np.array(sorted(range(len(vectors)), key=lambda i: vectors[i]))
        self.states = graph.states[self.order]
        self.legacy_ids = graph.node_id[self.order]
        self.node_of = {legacy: node for node, legacy in enumerate(self.legacy_ids.tolist())}
        rank = np.empty(len(vectors), np.int64)
        rank[self.order] = np.arange(len(vectors))
        source, target = (rank[np.searchsorted(graph.node_id, ids)] for ids in (graph.src, graph.dst))
        reward = every_agents(graph.reward, num_agents)
        row = source * num_joint_actions + graph.joint_action
        columns = {
            "next_node": target,
            "probability": graph.probability,
            "reward": reward,
            "done": graph.done,
            "visits": graph.visits,
        }
        at = sort_edges(row, columns)
        self.row = row[at]
        self.offsets = np.searchsorted(self.row, np.arange(len(vectors) * num_joint_actions + 1))
        self.columns = {name: column[at] for name, column in columns.items()}


def sort_edges(row: NDArray[np.int64], columns: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Order of edges by row, then next node, then all their values."""
    keys = [row, columns["next_node"], columns["probability"], *columns["reward"].T, columns["done"]]
    keys += [columns["visits"]] if "visits" in columns else []
    return np.lexsort(keys[::-1])


def check_states(graph: omstore.Graph, expected: Expected, rng: np.random.Generator, *, ids: bool) -> None:
    """Lookups both ways, and of states that aren't there."""
    nodes = np.arange(graph.num_nodes)
    assert np.array_equal(graph.states(nodes), expected.states)
    some = rng.integers(0, graph.num_nodes, 50)
    for dtype in (np.uint8, np.bool_, np.int64, np.float32):
        assert np.array_equal(graph.lookup(expected.states[some].astype(dtype)), some)
    known = {state.tobytes(): node for node, state in enumerate(expected.states)}
    strange = expected.states[some] ^ (rng.random((50, graph.state_width)) < 0.3)
    assert graph.lookup(strange).tolist() == [known.get(state.tobytes(), -1) for state in strange]
    if ids:
        assert np.array_equal(graph.legacy_ids(nodes), expected.legacy_ids)
        asked = np.arange(expected.legacy_ids.min() - 2, expected.legacy_ids.max() + 3)
        assert graph.nodes_of_legacy(asked).tolist() == [expected.node_of.get(i, -1) for i in asked.tolist()]


def check_rows(graph: omstore.Graph, expected: Expected, rng: np.random.Generator, *, kept: bool) -> None:
    """Every edge by sweep; random rows, repeated and in any order, by batch; their support by sampling."""
    keep = ["visits"] if kept else []
    actions = graph.num_joint_actions
    outdegree = np.diff(expected.offsets)
    assert (graph.num_rows, graph.num_edges) == (len(outdegree), int(expected.offsets[-1]))
    legal = (outdegree > 0).reshape(graph.num_nodes, actions)
    assert np.array_equal(graph.legal(np.arange(graph.num_nodes)), legal)
    first_row = 0
    parts = []
    for chunk in graph.sweep(int(rng.integers(1, 100_000)), keep=keep):
        assert chunk.first_row == first_row
        assert np.array_equal(chunk.successors.outdegree, outdegree[first_row : first_row + len(chunk.rows)])
        first_row += len(chunk.rows)
        parts.append(chunk.successors)
    assert first_row == graph.num_rows
    check_edges(parts, expected.row, expected, np.arange(len(expected.row)), kept=kept)
    rows = rng.integers(0, graph.num_rows, 200)
    edges = np.concatenate([np.arange(*expected.offsets[row : row + 2]) for row in rows])
    found = graph.successors(*np.divmod(rows, actions), keep=keep)
    assert np.array_equal(found.outdegree, outdegree[rows])
    check_edges([found], np.repeat(np.arange(len(rows)), outdegree[rows]), expected, edges, kept=kept)
    rows = rows[outdegree[rows] > 0]
    drawn = graph.sample(*np.divmod(rows, actions), rng, keep=keep)
    for i, row in enumerate(rows.tolist()):
        support = slice(*expected.offsets[row : row + 2])
        fits = expected.columns["next_node"][support] == drawn.next_node[i]
        fits &= expected.columns["probability"][support] == drawn.probability[i]
        fits &= (expected.columns["reward"][support] == drawn.reward[i]).all(axis=1)
        fits &= expected.columns["done"][support] == drawn.done[i]
        if kept:
            fits &= expected.columns["visits"][support] == drawn.kept["visits"][i]
        assert fits.any()
        assert drawn.probability[i] > 0


def check_edges(
    found: list[omstore.Successors],
    row: NDArray[np.int64],
    expected: Expected,
    edges: NDArray[np.int64],
    *,
    kept: bool,
) -> None:
    """Compare edges that were read with those numbered `edges`, as sets within each row of `row`."""
    names = ("next_node", "probability", "reward", "done")
    columns = {name: np.concatenate([getattr(part, name) for part in found]) for name in names}
    if kept:
        columns["visits"] = np.concatenate([part.kept["visits"] for part in found])
    rising = np.diff(columns["next_node"]) >= 0
    assert (rising | (np.diff(row) > 0)).all()
    at = sort_edges(row, columns)
    right = {name: expected.columns[name][edges] for name in columns}
    again = sort_edges(row, right)  # repeated rows stand apart
    for name, column in columns.items():
        same_bits(column[at], right[name][again])


def check_replay(replay: omstore.Replay, truth: Truth, node_of: dict[int, int] | None) -> None:
    """All columns, oldest first; nodes are -1 where the state isn't in the graph, or there is none."""
    spec, t = truth.spec, truth.replay
    assert t is not None
    turn = np.roll(np.arange(len(t.node)), -int(t.oldest))
    for found, ids in ((replay.nodes, t.node), (replay.next_nodes, t.next_node)):
        assert found.tolist() == [(node_of or {}).get(i, -1) for i in ids[turn].tolist()]
    assert np.array_equal(replay.joint_actions, t.joint_action[turn])
    same_bits(replay.rewards(), every_agents(t.reward, len(truth.agents))[turn])
    assert np.array_equal(replay.done(), t.done[turn])
    shift = t.state.shape[1] // len(truth.agents)
    for position, agent in enumerate(replay.agents):
        turned = position * shift if spec.egocentric and spec.observations == "dict" else 0
        state, next_state = (np.roll(s[turn], -turned, axis=1) for s in (t.state, t.next_state))
        assert np.array_equal(replay.observations(agent), state)
        assert np.array_equal(replay.next_observations(agent), next_state)
    assert np.array_equal(replay.states(), t.state[turn])
    assert np.array_equal(replay.next_states(np.arange(len(turn))[::-1]), t.next_state[turn][::-1])
    batches = list(replay.batches(7))
    assert np.array_equal(np.concatenate([batch.states for batch in batches]), t.state[turn])


def check_store(export: Path, truth: Truth, *, ids: bool = True, kept: bool = False) -> None:
    """Compare everything in an export's store with its truth.

    Parameters
    ----------
    ids : bool
        Whether the pickle numbers its nodes.
    kept : bool
        Whether ``visits`` was kept.
    """
    rng = np.random.default_rng(0)
    with omstore.open(export) as store:
        node_of = None
        assert (store.graph is None) == (truth.graph is None)
        assert (store.replay is None) == (truth.replay is None)
        if truth.graph is not None:
            graph = store.graph
            assert graph.num_actions == truth.num_actions
            expected = Expected(truth.graph, graph.num_joint_actions, len(truth.agents))
            node_of = expected.node_of
            assert graph.num_nodes == len(expected.states)
            check_states(graph, expected, rng, ids=ids)
            check_rows(graph, expected, rng, kept=kept)
        if truth.replay is not None:
            check_replay(store.replay, truth, node_of)
