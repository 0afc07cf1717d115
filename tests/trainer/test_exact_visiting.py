"""Visits: against powers of the dense chain, rollouts counted by hand, and a loop in closed form."""

from __future__ import annotations

import numpy as np
import pytest

import omstore
from omstore.errors import UsageError
from tests.trainer.exact_worlds import sparse, stored
from tools.worlds.random_graph import RandomGraph
from trainer.exact import ExactModel, visits


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        world = RandomGraph(25, (2, 3), width=7, max_outdegree=2, illegal=0.3, seed=5)
        return stored(tmp_path_factory.mktemp("small"), world)


def moves(graph: omstore.Graph, agent: np.ndarray, team: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N, N) probabilities of a step, and of one after which the episode goes on; row by row, in plain Python."""
    everything, going_on = np.zeros((2, graph.num_nodes, graph.num_nodes))
    for node in range(graph.num_nodes):
        legal = graph.legal([node])[0]
        weights = np.outer(agent[node], team[node]).reshape(-1) * legal
        if not legal.any():
            continue
        weights = weights / weights.sum() if weights.sum() > 0 else legal / legal.sum()
        for action in np.flatnonzero(weights):
            found = graph.successors([node], [action])
            for to, chance, done in zip(found.next_node, found.probability, found.done, strict=True):
                everything[node, to] += weights[action] * chance
                going_on[node, to] += weights[action] * chance * (not done)
    return everything, going_on


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_frequencies_are_powers_of_the_chain(small, threads, monkeypatch):
    monkeypatch.setattr("omstore.exact.pusher._CHUNK_EDGES", 64)  # several chunks
    rng = np.random.default_rng(3)
    agent, team = sparse(rng, 25, 2), sparse(rng, 25, 3)
    everything, going_on = moves(small, agent, team)
    start = rng.random(25)
    start /= start.sum()
    expected, mass = start.copy(), start
    for step in range(1, 6):
        expected = expected + 0.9**step * (mass @ everything)
        mass = mass @ going_on
    model = ExactModel(small, 0, threads=threads)
    found = visits(model, agent, team, start=start, horizon=5, discount=0.9)
    assert np.allclose(found.frequency, expected, atol=1e-14)
    assert found.going_on == pytest.approx(mass.sum(), abs=1e-14)
    again = visits(ExactModel(small, 0, threads=1), agent, team, start=start, horizon=5, discount=0.9)
    assert again.frequency.tobytes() == found.frequency.tobytes()


def test_without_an_end(small):
    rng = np.random.default_rng(4)
    agent, team = sparse(rng, 25, 2), sparse(rng, 25, 3)
    everything, going_on = moves(small, agent, team)
    model = ExactModel(small, 0)
    # mass that acts: start (I - discount * going_on)^-1; every visit but the first is a step of it
    start = np.full(25, 1 / 25)
    acting = np.linalg.solve(np.eye(25) - 0.8 * going_on.T, start)
    expected = start + 0.8 * acting @ everything
    for tolerance in (1e-2, 1e-10):
        found = visits(model, agent, team, horizon=None, discount=0.8, tolerance=tolerance)
        missing = expected.sum() - found.frequency.sum()
        assert -1e-12 <= missing <= found.error + 1e-12
        assert found.error <= tolerance
    assert np.allclose(found.frequency, expected, atol=1e-9)


def test_visits_and_returns_agree(small):
    """What is visited, times what is gained there, is the return."""
    rng = np.random.default_rng(5)
    agent, team = sparse(rng, 25, 2), sparse(rng, 25, 3)
    model = ExactModel(small, 0)
    start = np.eye(25)[7]
    once = model.evaluate(agent, team, horizon=1, discount=0.9).values
    total = model.evaluate(agent, team, horizon=4, discount=0.9).values[7]
    _, going_on = moves(small, agent, team)
    acting = sum(0.9**k * start @ np.linalg.matrix_power(going_on, k) for k in range(4))
    assert total == pytest.approx(acting @ once, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"horizon": None, "discount": 1.0}, "without an end"),
        ({"horizon": -1}, "horizon of -1"),
        ({"horizon": 1, "start": np.ones(25)}, "sum to"),
        ({"horizon": 1, "start": np.ones(3) / 3}, "begin at nodes"),
    ],
)
def test_what_makes_no_sense(small, arguments, message):
    model = ExactModel(small, 0)
    with pytest.raises(UsageError, match=message):
        visits(model, model.uniform("agent"), model.uniform("team"), **arguments)
