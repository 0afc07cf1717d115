"""The graph as it is read, against the world that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omstore
from omstore.errors import UsageError
from omstore.read.attributes import LEVELS
from tests.read.made_stores import LEGACY_FIRST, LEGACY_STRIDE, Made, make_store
from tools.worlds.pursuit import Pursuit
from tools.worlds.random_graph import RandomGraph


def graph_of(made: Made) -> omstore.Graph:
    graph = omstore.open(made.export).graph
    assert graph is not None
    return graph


def all_rows(made: Made) -> tuple[np.ndarray, np.ndarray]:
    rows = np.arange(made.world.num_nodes * made.world.num_joint_actions)
    return rows // made.world.num_joint_actions, rows % made.world.num_joint_actions


def assert_same(found: omstore.Successors, truth: Any) -> None:
    assert np.array_equal(found.offsets, truth.offsets)
    assert np.array_equal(found.next_node, truth.next_node)
    assert np.array_equal(found.probability, truth.probability)
    assert np.array_equal(found.reward, truth.reward)
    assert np.array_equal(found.done, truth.done)
    assert found.done.dtype == np.bool_
    assert found.reward.dtype == found.probability.dtype == np.float64


def test_counts_and_names(tiny_store: Made) -> None:
    graph, world = graph_of(tiny_store), tiny_store.world
    assert (graph.num_nodes, graph.num_edges) == (world.num_nodes, world.num_edges)
    assert (graph.num_joint_actions, graph.num_actions) == (6, (3, 2))
    assert (graph.agents, graph.state_width) == (world.agents, world.width)
    assert "40 nodes" in repr(graph)


def test_states_and_lookup_are_inverse(tiny_store: Made) -> None:
    graph, world = graph_of(tiny_store), tiny_store.world
    nodes = np.random.default_rng(0).integers(0, 40, 100)
    states = graph.states(nodes)
    assert np.array_equal(states, world.vectors(tiny_store.order[nodes]))
    for given in (
        states,
        states.astype(bool),
        states.astype(np.int64),
        states.astype(np.float32),
        states.tolist(),
    ):
        assert np.array_equal(graph.lookup(given), nodes)
    assert np.array_equal(graph.lookup_packed(graph.packed_states(nodes)), nodes)
    assert graph.lookup(np.empty((0, 13), np.uint8)).shape == (0,)


def test_every_state_that_is_not_in_the_graph_is_absent(tiny_store: Made) -> None:
    graph, world = graph_of(tiny_store), tiny_store.world
    everything = (np.arange(1 << 13)[:, None] >> np.arange(13) & 1).astype(np.uint8)
    known = {vector.tobytes(): i for i, vector in enumerate(world.vectors(tiny_store.order))}
    expected = [known.get(vector.tobytes(), -1) for vector in everything]
    assert graph.lookup(everything).tolist() == expected
    assert expected.count(-1) == (1 << 13) - 40


def test_wrong_states_are_refused(tiny_store: Made) -> None:
    graph = graph_of(tiny_store)
    states = graph.states(np.arange(5))
    for wrong in (states[0], states[:, :-1], states[None]):
        with pytest.raises(UsageError, match=r"states must be \(batch, 13\)"):
            graph.lookup(wrong)
    states[3, 4] = 2
    with pytest.raises(UsageError, match="state 3"):
        graph.lookup(states)
    with pytest.raises(UsageError):
        graph.lookup(states.astype(np.float64) / 2)


def test_legal_rows_are_those_with_successors(tiny_store: Made) -> None:
    graph, world = graph_of(tiny_store), tiny_store.world
    nodes = np.array([5, 0, 39, 5])
    assert np.array_equal(graph.legal(nodes), world.legal(tiny_store.order[nodes]))
    assert not graph.legal(np.arange(40)).all(), "the world was meant to have illegal rows"
    assert np.array_equal(
        graph.outdegree(*all_rows(tiny_store)), np.diff(tiny_store.truth(*all_rows(tiny_store)).offsets)
    )


def test_successors_are_the_world_s(tiny_store: Made) -> None:
    graph = graph_of(tiny_store)
    rng = np.random.default_rng(1)
    nodes, actions = rng.integers(0, 40, 200), rng.integers(0, 6, 200)
    assert_same(graph.successors(nodes, actions), tiny_store.truth(nodes, actions))
    assert_same(graph.successors([], []), tiny_store.truth(nodes[:0], actions[:0]))


@pytest.mark.parametrize("chunk_rows", [1, 50, 10_000])
def test_sweep_meets_every_row_in_order(tiny_store: Made, chunk_rows: int) -> None:
    graph = graph_of(tiny_store)
    rows = 0
    for chunk in graph.sweep(chunk_rows):
        assert chunk.rows.tolist() == list(range(rows, rows + len(chunk.rows)))
        assert_same(chunk.successors, tiny_store.truth(chunk.rows // 6, chunk.rows % 6))
        rows += len(chunk.rows)
    assert rows == 240
    assert sum(len(chunk.rows) for chunk in graph.sweep(chunk_rows, start_node=3, stop_node=9)) == 36
    assert next(graph.sweep(5, start_node=3)).first_row == 18


@pytest.mark.parametrize("encoding", ["csr", "csr-compressed"])
@pytest.mark.parametrize("probability", ["outcome", "edge"])
@pytest.mark.parametrize(
    "level", [level for level in LEVELS if level not in ("next_node_unless_node", "rows")]
)
def test_attributes_at_every_level(tmp_path: Path, encoding: str, probability: str, level: str) -> None:
    function_of = "edge" if level == "outcome" else level
    world = RandomGraph(25, (2, 3), reward_level=function_of, done_level=function_of, seed=8)
    levels = {"probability": probability, "reward": level, "done": level}
    made = make_store(tmp_path / "export", world, encoding=encoding, levels=levels, kept=level)
    graph = graph_of(made)
    assert [graph.attribute(name).level for name in ("probability", "reward", "done")] == list(
        levels.values()
    )
    nodes, actions = all_rows(made)
    truth = made.truth(nodes, actions)
    found = graph.successors(nodes, actions, keep=["colour"])
    assert_same(found, truth)
    position = {
        "graph": np.zeros_like(truth.next_node),
        "next_node": truth.next_node,
        "node": np.repeat(nodes, np.diff(truth.offsets)),
        "row": truth.row_of_edge,
        "outcome": np.zeros_like(truth.next_node),
        "edge": np.arange(len(truth.next_node)),
    }[level]
    assert found.kept["colour"].tolist() == [[[i % 11, i % 7], [i % 3, i % 2]] for i in position.tolist()]

    legal = np.flatnonzero(np.diff(truth.offsets))
    shuffled = np.random.default_rng(0).permutation(np.repeat(legal, 5))
    rng = np.random.default_rng(1)
    sample = graph.sample(nodes[shuffled], actions[shuffled], rng, keep=["colour"])
    uniforms = np.random.default_rng(1).random(len(shuffled))
    for i, row in enumerate(shuffled):
        first, last = truth.offsets[row], truth.offsets[row + 1]
        reached = np.cumsum(truth.probability[first:last])
        edge = first + min(int(np.searchsorted(reached, uniforms[i], side="right")), last - first - 1)
        assert sample.next_node[i] == truth.next_node[edge]
        assert sample.probability[i] == truth.probability[edge]
        assert sample.reward[i].tolist() == truth.reward[edge].tolist()
        assert sample.done[i] == truth.done[edge]
        assert sample.kept["colour"][i].tolist() == found.kept["colour"][edge].tolist()

    swept = [chunk.successors for chunk in graph.sweep(13, keep=["colour"])]
    for name in ("next_node", "probability", "reward", "done"):
        assert np.array_equal(np.concatenate([getattr(part, name) for part in swept]), getattr(found, name))
    assert np.array_equal(np.concatenate([part.kept["colour"] for part in swept]), found.kept["colour"])


def test_draws_follow_the_probabilities(tiny_store: Made) -> None:
    graph = graph_of(tiny_store)
    node = int(np.argmax(graph.outdegree(np.arange(40), np.zeros(40, np.int64))))
    found = graph.successors([node], [0])
    count = 40_000
    sample = graph.sample(np.full(count, node), np.zeros(count, np.int64), np.random.default_rng(2))
    share = np.array([(sample.next_node == next_node).mean() for next_node in found.next_node])
    assert np.abs(share - found.probability).max() < 5 * np.sqrt(0.25 / count)


def test_bad_rows_are_named(tiny_store: Made) -> None:
    graph, rng = graph_of(tiny_store), np.random.default_rng(0)
    legal = graph.legal(np.arange(40))
    calls = (graph.successors, graph.outdegree, lambda nodes, actions: graph.sample(nodes, actions, rng))
    for call in calls:
        for node in (-1, 40, 1 << 62):
            with pytest.raises(UsageError, match=f"node {node} at position 1 .* 0 to 39"):
                call([0, node, -5], [int(np.argmax(legal[0])), 0, 0])
        with pytest.raises(UsageError, match=r"joint action 6 at position 2"):
            call([0, 0, 0], [0, 0, 6])
        with pytest.raises(UsageError, match="2 nodes were given with 1"):
            call([0, 1], [0])
        with pytest.raises(UsageError, match="one-dimensional"):
            call(0, 0)
        with pytest.raises(UsageError, match="float"):
            call([0.5], [0])
    node, action = (int(value) for value in np.argwhere(~legal)[0])
    with pytest.raises(UsageError, match=rf"node {node}, joint action {action}\) at position 0"):
        graph.sample([node], [action], rng)
    for call in (graph.states, graph.legal, graph.legacy_ids):
        with pytest.raises(UsageError, match="node 40 at position 1"):
            call([3, 40])
    with pytest.raises(UsageError, match="no attribute 'colour'"):
        graph.successors([0], [0], keep=["colour"])


def test_joint_actions_are_mixed_radix_agent_0_first(tiny_store: Made) -> None:
    graph = graph_of(tiny_store)
    pairs = [[a, b] for a in range(3) for b in range(2)]
    assert graph.encode_joint(pairs).tolist() == list(range(6))
    assert graph.decode_joint(np.arange(6)).tolist() == pairs
    with pytest.raises(UsageError, match="action 2 of agent 1 at position 1"):
        graph.encode_joint([[0, 0], [1, 2]])
    with pytest.raises(UsageError, match="joint action 6"):
        graph.decode_joint([6])
    with pytest.raises(UsageError, match=r"\(batch, 2\)"):
        graph.encode_joint([0, 1])


def test_legacy_ids_both_ways(tiny_store: Made, tmp_path: Path) -> None:
    graph = graph_of(tiny_store)
    ids = tiny_store.order * LEGACY_STRIDE + LEGACY_FIRST
    assert graph.legacy_ids(np.arange(40)).tolist() == ids.tolist()
    wanted = np.arange(LEGACY_FIRST - 5, LEGACY_FIRST + 40 * LEGACY_STRIDE + 5)
    node_of = {int(legacy): node for node, legacy in enumerate(ids)}
    assert graph.nodes_of_legacy(wanted).tolist() == [node_of.get(int(legacy), -1) for legacy in wanted]
    without = make_store(tmp_path / "export", RandomGraph(5), sources=False)
    with pytest.raises(UsageError, match="no legacy ids"):
        graph_of(without).legacy_ids([0])


def test_a_deterministic_world_without_offsets_and_codes(tmp_path: Path) -> None:
    world: Any = Pursuit(2)
    made = make_store(tmp_path / "export", world)
    graph = graph_of(made)
    assert graph.num_edges == 48_400
    assert not (made.export / "store/v000001/rows/offsets").exists()
    assert_same(graph.successors(*all_rows(made)), made.truth(*all_rows(made)))
    graph.verify()


def test_verify_passes(tiny_store: Made) -> None:
    graph_of(tiny_store).verify()
