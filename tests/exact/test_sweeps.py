"""Backups of every encoding against plain NumPy."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.errors import UsageError
from omstore.exact import Backup, Sweeper
from omstore.exact.factored import FactoredSource
from omstore.rollout import Sides
from tests.exact.dense import dense_rows, joint_table, mean_under, random_policy
from tests.rollout.conftest import partly_legal  # noqa: F401 - a fixture
from tools.worlds.random_graph import LEVELS, RandomGraph

ENCODINGS = ["csr", "csr-compressed", "dictionary", "factored", "procedural"]


def check(graph: omstore.Graph, nodes: np.ndarray, rng: np.random.Generator, discount: float = 0.9) -> None:
    """Compare everything that a sweep can do, at some nodes."""
    count = graph.num_nodes
    values = rng.normal(size=count)
    weights = rng.normal(size=len(graph.agents)).round(2).tolist()
    expected = dense_rows(graph, values, weights, discount, nodes.tolist())
    one, two = Sweeper(graph, threads=1), Sweeper(graph, threads=2)
    rows = one.rows(values, weights, discount)
    assert np.allclose(rows[nodes], expected, rtol=0, atol=1e-12, equal_nan=True)
    assert two.rows(values, weights, discount).tobytes() == rows.tobytes()
    best, least, acts = np.empty(count), np.empty(count), np.empty(count, np.int64)
    silent = np.empty(count)
    backups = [
        Backup(values, weights, best, discount, actions=acts),
        Backup(values, weights, silent, discount),
        Backup(values, weights, least, discount, minimise=True),
    ]
    two.sweep(backups)
    legal = ~np.isnan(expected)
    some = legal.any(axis=1)
    assert np.allclose(best[nodes][some], np.nanmax(expected[some], axis=1), rtol=0, atol=1e-12)
    assert np.allclose(least[nodes][some], np.nanmin(expected[some], axis=1), rtol=0, atol=1e-12)
    assert (best[nodes][~some] == 0).all()
    assert (acts[nodes][~some] == -1).all()
    assert silent.tobytes() == best.tobytes()
    chosen = expected[some, acts[nodes][some]]
    assert np.allclose(chosen, best[nodes][some], rtol=0, atol=1e-12)
    for side in ([0], [len(graph.agents) - 1], list(range(1, len(graph.agents)))):
        check_sides(graph, nodes, rng, side, values, weights, discount, expected)


def check_sides(graph, nodes, rng, side, values, weights, discount, expected) -> None:
    joint = joint_table(graph.num_actions, side)
    own, other = (random_policy(rng, graph.num_nodes, n) for n in joint.shape)
    played, best, per_action = (np.empty(graph.num_nodes) for _ in range(3))
    per_action = np.empty((graph.num_nodes, len(joint)))
    acts = np.empty(graph.num_nodes, np.int64)
    asked = {"own_side": side, "other": other}
    Sweeper(graph).sweep(
        [
            Backup(values, weights, played, discount, own=own, **asked),
            Backup(values, weights, best, discount, actions=acts, **asked),
            Backup(values, weights, per_action, discount, **asked),
        ]
    )
    for i, node in enumerate(nodes):
        rows = expected[i][joint]
        assert played[node] == pytest.approx(mean_under(rows, np.outer(own[node], other[node])), abs=1e-12)
        certain = []
        for action in range(len(joint)):
            alone = mean_under(rows[action], other[node])
            legal = not np.isnan(rows[action]).all()
            assert per_action[node, action] == pytest.approx(
                alone if legal else np.nan, abs=1e-12, nan_ok=True
            )
            as_policy = mean_under(rows, np.outer(np.eye(len(joint))[action], other[node]))
            certain.append(as_policy if legal else -np.inf)
        if max(certain) == -np.inf:
            assert (best[node], acts[node]) == (0.0, -1)
            continue
        assert best[node] == pytest.approx(max(certain), abs=1e-12)
        assert certain[acts[node]] == pytest.approx(max(certain), abs=1e-12)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_two_agents_on_the_whole_grid(pursuit, rng, encoding):
    graph = pursuit(encoding, 2, False)
    nodes = rng.choice(graph.num_nodes, 60, replace=False)
    check(graph, np.concatenate((nodes, np.arange(44) * 45)), rng)  # 44 c + c: both on one cell


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_some_nodes_of_three_agents(pursuit, rng, encoding):
    graph = pursuit(encoding)
    check(graph, rng.choice(graph.num_nodes, 40, replace=False), rng)


@pytest.mark.parametrize("encoding", ["csr", "csr-compressed", "dictionary", "factored"])
def test_illegal_rows_and_rows_that_dont_factor(partly_legal, rng, encoding):  # noqa: F811
    graph = partly_legal(encoding)
    check(graph, np.arange(graph.num_nodes), rng)


def stored(folder: Path, world: RandomGraph, rows: str) -> omstore.Graph:
    everything = np.arange(world.num_nodes * world.num_joint_actions)
    nodes, actions = np.divmod(everything, world.num_joint_actions)
    found = world.successors(nodes, actions)
    with omstore.create(
        folder, agents=world.agents, num_actions=world.num_actions, state_width=world.width, rows=rows
    ) as writer:
        numbers = writer.add_nodes(world.vectors(np.arange(world.num_nodes)))
        writer.add_rows(
            numbers[nodes],
            actions,
            offsets=found.offsets,
            next_nodes=numbers[found.next_node],
            probability=found.probability,
            reward=found.reward,
            done=found.done,
        )
    graph = omstore.open(folder).graph
    assert graph is not None
    return graph


@pytest.mark.parametrize(("reward", "done"), list(itertools.product(LEVELS, ("graph", "next_node", "edge"))))
def test_random_graphs_whatever_rewards_depend_on(tmp_path, rng, reward, done):
    rows = ("csr", "csr-compressed", "dictionary")[(LEVELS.index(reward) + len(done)) % 3]
    world = RandomGraph(40, (3, 2, 2), illegal=0.5, reward_level=reward, done_level=done, seed=4)
    check(stored(tmp_path, world, rows), np.arange(40), rng)


def test_the_shortest_way_is_taken(pursuit, partly_legal):  # noqa: F811
    """Else the tests above would compare one way with itself."""
    out = np.empty(512)
    rewarded = Backup(np.zeros(512), [0, 0, 1], out)
    for encoding in ENCODINGS:
        expected = encoding if encoding in ("factored", "dictionary") else "edges"
        assert Sweeper(pursuit(encoding)).method(rewarded) == expected
    graph = pursuit("factored")
    source = Sweeper(graph)._source_of(rewarded)
    assert isinstance(source, FactoredSource)
    assert source.finds_best
    splits = [source.splits(Sides.of(graph.num_actions, side)) for side in ([2], [0, 1], [0], [1, 2])]
    assert splits == [True, False, None, None]
    turned = source.turned(0)
    assert turned is not None
    splits = [turned.splits(Sides.of(graph.num_actions, side)) for side in ([2], [0], [1, 2], [1])]
    assert splits == [None, True, False, None]
    some = partly_legal("factored")
    illegal = Sweeper(some)._source_of(Backup(np.zeros(some.num_nodes), [0, 1], np.empty(some.num_nodes)))
    assert isinstance(illegal, FactoredSource)
    assert illegal.splits(Sides.of(some.num_actions, [0])) is None


@pytest.mark.parametrize("ends", [False, True])
def test_what_follows_done_and_no_rewards(pursuit, rng, ends):
    values = rng.random(512)
    found = [Sweeper(pursuit(encoding)).rows(values, [], 0.8, ends=ends) for encoding in ENCODINGS]
    graph = pursuit("csr")
    for node in rng.choice(512, 30):
        edges = graph.successors(np.full(125, node), np.arange(125))
        follows = np.where(ends & edges.done, 0.0, values[edges.next_node])
        expected = np.add.reduceat(edges.probability * follows * 0.8, edges.offsets[:-1])
        for rows in found:
            assert np.allclose(rows[node], expected, rtol=0, atol=1e-12)


def test_what_makes_no_sense(pursuit):
    graph = pursuit("factored")
    values, out = np.zeros(512), np.zeros(512)
    other = np.full((512, 25), 0.04)
    sweeper = Sweeper(graph)
    for backup, message in [
        (Backup(values[1:], [0, 0, 1], out), "values are float64"),
        (Backup(values, [0, 1], out), "3 agents' rewards"),
        (Backup(values, [0, 0, 1], out[1:]), "out is float64"),
        (Backup(values, [0, 0, 1], values), "out can't be where they are"),
        (Backup(values, [0, 0, 1], out, own_side=[2]), "other side's policy is needed"),
        (Backup(values, [0, 0, 1], out, own_side=[2], other=other[1:]), "takes floats of"),
        (Backup(values, [0, 0, 1], out, own_side=[2, 1], other=other), "ascending"),
    ]:
        with pytest.raises(UsageError, match=message):
            sweeper.sweep([backup])
    with pytest.raises(UsageError, match="0 threads"):
        Sweeper(graph, threads=0)
