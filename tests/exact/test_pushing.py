"""Mass pushed by contraction, against edges one by one, and against backups: what comes is what would be expected."""

from __future__ import annotations

import numpy as np
import pytest

from omstore.errors import UsageError
from omstore.exact import Backup, Pusher, Sweeper
from tests.exact.dense import joint_table, random_policy
from tests.rollout.conftest import partly_legal  # noqa: F401 - a fixture


def by_hand(graph, side, own, other, mass):
    """Row by row, edge by edge."""
    visited, going_on = np.zeros((2, graph.num_nodes))
    joint = joint_table(graph.num_actions, side).reshape(-1)
    for node in np.flatnonzero(mass):
        chances = np.empty(graph.num_joint_actions)
        chances[joint] = np.outer(own[node], other[node]).reshape(-1)
        legal = graph.legal([node])[0]
        chances = np.where(legal, chances, 0.0)
        if not legal.any():
            continue
        chances = chances / chances.sum() if chances.sum() > 0 else legal / legal.sum()
        found = graph.successors(np.full(len(chances), node), np.arange(len(chances)))
        moved = mass[node] * np.repeat(chances, found.outdegree) * found.probability
        np.add.at(visited, found.next_node, moved)
        np.add.at(going_on, found.next_node, moved * ~found.done)
    return visited, going_on


@pytest.mark.parametrize("side", [[0], [1], [2], [0, 2], [0, 1]])
def test_three_agents(pursuit, rng, side):
    """By contraction whichever agent is alone; by blocks of patterns and along edges in other encodings."""
    graph = pursuit("csr")
    sizes = joint_table(graph.num_actions, side).shape
    own, other = (random_policy(rng, 512, count).astype(np.float32) for count in sizes)
    mass = rng.random(512) * (rng.random(512) < 0.7)
    expected = by_hand(graph, side, own.astype(float), other.astype(float), mass)
    for encoding in ("factored", "csr", "csr-compressed", "dictionary"):
        graph = pursuit(encoding)
        pushers = [Pusher(graph, side, threads=threads) for threads in (1, 3)]
        assert pushers[0].method == (encoding if encoding in ("factored", "dictionary") else "edges")
        found = [pusher.push(mass, own, other) for pusher in pushers]
        for visited, going_on in found:
            assert np.allclose(visited, expected[0], rtol=0, atol=1e-14)
            assert np.allclose(going_on, expected[1], rtol=0, atol=1e-14)
        assert found[0][0].tobytes() == found[1][0].tobytes()
        assert visited.sum() == pytest.approx(mass.sum())


@pytest.mark.parametrize("encoding", ["factored", "csr", "dictionary"])
def test_illegal_rows(partly_legal, rng, encoding):  # noqa: F811
    graph = partly_legal(encoding)
    sizes = joint_table(graph.num_actions, [1]).shape
    own, other = (random_policy(rng, graph.num_nodes, count) for count in sizes)
    mass = rng.random(graph.num_nodes)
    pusher = Pusher(graph, [1])
    assert pusher.method == ("dictionary" if encoding == "dictionary" else "edges")
    expected = by_hand(graph, [1], own, other, mass)
    assert np.allclose(pusher.push(mass, own, other), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("agents", [2, 3, 4])
def test_pushing_and_backing_up_are_transposed(pursuit, rng, agents):
    """<mass, expected values> is <what comes, values>: two independent kernels, chunks cut within heads."""
    graph = pursuit("factored", agents, agents > 2)
    count = graph.num_nodes
    own, other = random_policy(rng, count, 5), random_policy(rng, count, 5 ** (agents - 1))
    mass, values, out = rng.random(count), rng.random(count), np.empty(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.exact.factored._RESPOND_NODES", 37)
        for ends in (0, 1):
            Sweeper(graph).sweep([Backup(values, [], out, 1.0, ends > 0, [0], own, other)])
            comes = Pusher(graph, [0]).push(mass, own, other)[ends]
            assert comes @ values == pytest.approx(mass @ out, rel=1e-12)


def test_what_makes_no_sense(pursuit):
    graph = pursuit("factored")
    own, other = np.full((512, 5), 0.2), np.full((512, 25), 0.04)
    with pytest.raises(UsageError, match="0 threads"):
        Pusher(graph, [0], threads=0)
    with pytest.raises(UsageError, match="ascending"):
        Pusher(graph, [2, 1])
    with pytest.raises(UsageError, match="takes floats of"):
        Pusher(graph, [0]).push(np.ones(512), other, own)
    with pytest.raises(UsageError, match="values are float64"):
        Pusher(graph, [0]).push(np.ones(5), own, other)
