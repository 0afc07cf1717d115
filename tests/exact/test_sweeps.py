"""Backups of every encoding against plain NumPy."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.errors import UsageError
from omstore.exact import Backup, Pusher, Sweeper
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


def everything(graph: omstore.Graph, rng: np.random.Generator) -> list[bytes]:
    """Backups and pushes, to the bit."""
    count = graph.num_nodes
    values, mass, out = rng.random(count), rng.random(count), np.empty((5, count))
    joint = joint_table(graph.num_actions, [1])
    own, other = (random_policy(rng, count, n) for n in joint.shape)
    acts = np.empty((2, count), np.int64)
    weights = rng.random(len(graph.agents)).tolist()
    sweeper = Sweeper(graph)
    sweeper.sweep(
        [
            Backup(values, weights, out[0]),
            Backup(values, weights, out[1], minimise=True, actions=acts[0]),
            Backup(values, weights, out[2], own_side=[1], other=other, actions=acts[1]),
            Backup(values, weights, out[3], own_side=[1], own=own[:1].repeat(count, 0), other=other),
            Backup(values, [], out[4], own_side=[1], own=np.broadcast_to(own[1], own.shape), other=other),
        ]
    )
    rows = sweeper.rows(values, weights)
    pushed = Pusher(graph, [1]).push(mass, own, other)
    return [array.tobytes() for array in (out, acts, rows, *pushed)]


@pytest.mark.parametrize("world", ["ring", "partly"])
def test_how_blocks_are_cut_has_no_influence(pursuit, partly_legal, world):  # noqa: F811
    graph = pursuit("dictionary") if world == "ring" else partly_legal("dictionary")
    expected = everything(graph, np.random.default_rng(3))
    for nodes, lanes, rows in ((1, 4, 1), (7, 32, 1 << 17), (100, 8, 300)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("omstore.exact.dictionary._NODES", nodes)
            patch.setattr("omstore.exact.dictionary._LANES", lanes)
            patch.setattr("omstore.exact.dictionary._ROWS", rows)
            patch.setattr("omstore.exact.dictionary._ENTRIES", rows)
            assert everything(graph, np.random.default_rng(3)) == expected


@pytest.mark.parametrize("world", ["ring", "partly"])
def test_blocks_come_to_what_edges_come_to(pursuit, partly_legal, world):  # noqa: F811
    """To the bit, but for mass, which comes to nodes in another order."""
    made = pursuit if world == "ring" else partly_legal
    found = [everything(made(encoding), np.random.default_rng(3)) for encoding in ("dictionary", "csr")]
    assert found[0][:3] == found[1][:3]


def test_blocks_that_are_too_long_go_along_edges(pursuit, rng):
    graph = pursuit("dictionary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.exact.dictionary._MOST_ENTRIES", 50)
        assert Sweeper(graph).method(Backup(np.zeros(512), [0, 0, 1], np.empty(512))) == "edges"
        assert Pusher(graph, [0]).method == "edges"


def test_where_policies_play_nothing_that_is_legal(partly_legal, rng):  # noqa: F811
    """Each legal joint action is as likely then; the row means of plain NumPy say what that is."""
    graph = partly_legal("dictionary")
    count = graph.num_nodes
    joint = joint_table(graph.num_actions, [0])
    nothing = np.zeros((count, joint.shape[1]))
    values, out = rng.normal(size=count), np.empty((2, count))
    rows = dense_rows(graph, values, [0.0] * len(graph.agents), 1.0, range(count))
    Sweeper(graph).sweep(
        [
            Backup(values, [], out[0], own_side=[0], other=nothing),
            Backup(values, [], out[1], own_side=[0], own=np.zeros((count, len(joint))), other=nothing),
        ]
    )
    for found in out:
        expected = [np.nanmean(row) if not np.isnan(row).all() else 0.0 for row in rows]
        assert np.allclose(found, expected, rtol=0, atol=1e-12)


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
