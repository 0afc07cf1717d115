"""Rollouts against exact horizon-limited action values, closed forms and counts of steps."""

import numpy as np
import pytest

from omstore.read import Attribute
from omstore.rollout import PolicyTable, RolloutTables, rollout, stream_key
from tests.rollout.reference import Sides, exact_action_values
from tests.rollout.test_rollouts import random_policy


def policies(graph, learner, seed=5):
    sides = Sides(graph.num_actions, learner)
    own = random_policy(seed, graph.num_nodes, len(sides.learner))
    return own, random_policy(seed + 1, graph.num_nodes, len(sides.others))


def estimate(graph, learner, roots, own, theirs, n_rollouts, horizon, discount, weights, candidates=None):
    if candidates is None:
        candidates = np.tile(np.arange(own.shape[1]), (len(roots), 1))
    return rollout(
        graph,
        roots,
        candidates,
        stream_key(3, np.arange(len(roots))),
        learner=learner,
        learner_table=PolicyTable(own),
        other_table=PolicyTable(theirs),
        n_rollouts=n_rollouts,
        horizon=horizon,
        discount=discount,
        reward_weights=weights,
    )


def check_errors(means, squares, exact, n_rollouts):
    """Every estimate within 4.5 standard errors, and their squares as large as they should be."""
    deviation = np.sqrt(np.maximum(squares - means**2, 0.0) / n_rollouts)
    z = (means - exact) / np.maximum(deviation, 1e-8)
    z = z[deviation > 1e-8]  # others are certain, but for rounding
    assert np.abs(means - exact)[deviation <= 1e-8].max(initial=0.0) < 1e-8
    assert len(z) >= 20
    assert np.abs(z).max() < 4.5
    assert abs((z**2).sum() - len(z)) < 4.5 * np.sqrt(2 * len(z))  # neither too far off nor too near


@pytest.mark.parametrize("learner", [(0,), (1,)])
def test_a_million_rollouts_of_two_slipping_agents(pursuit_pair, learner):
    own, theirs = policies(pursuit_pair, learner)
    weights = [0.3, 1.0] if learner == (1,) else [1.0, 0.0]
    exact = exact_action_values(
        pursuit_pair, learner, own, theirs, horizon=10, discount=0.95, reward_weights=weights
    )
    roots = np.random.default_rng(0).integers(0, pursuit_pair.num_nodes, 20)
    means, squares = estimate(pursuit_pair, learner, roots, own, theirs, 10_000, 10, 0.95, weights)
    check_errors(means, squares, exact[roots], 10_000)  # 20 x 5 x 10,000 rollouts


@pytest.mark.parametrize("learner", [(2,), (0, 1)])
def test_three_agents_and_a_team(pursuit, learner):
    graph = pursuit("factored")
    own, theirs = policies(graph, learner)
    weights = [0.0, 0.0, 1.0] if learner == (2,) else [0.5, 0.5, 0.0]
    exact = exact_action_values(graph, learner, own, theirs, horizon=6, discount=0.9, reward_weights=weights)
    roots = np.random.default_rng(1).integers(0, graph.num_nodes, 12)
    means, squares = estimate(graph, learner, roots, own, theirs, 4000, 6, 0.9, weights)
    check_errors(means, squares, exact[roots], 4000)


@pytest.mark.parametrize("learner", [(0,), (1,)])
def test_the_joint_distribution_restricted_to_legal_actions(partly_legal, learner):
    graph = partly_legal("factored")
    own, theirs = policies(graph, learner)
    exact = exact_action_values(
        graph, learner, own, theirs, horizon=5, discount=0.8, reward_weights=[1.0, -0.5]
    )
    roots = np.flatnonzero(np.isfinite(exact).any(axis=1))[:30]
    candidates = np.where(np.isfinite(exact[roots]), np.arange(own.shape[1]), -1)
    means, squares = estimate(graph, learner, roots, own, theirs, 5000, 5, 0.8, [1.0, -0.5], candidates)
    some = candidates >= 0
    assert not some.all()
    check_errors(means[some], squares[some], exact[roots][some], 5000)


def with_constant(graph, reward, done):
    """Tables of a graph whose every edge has the same reward and done."""
    graph.attributes = graph.attributes | {
        "reward": Attribute("reward", "graph", np.array([reward])),
        "done": Attribute("done", "graph", np.array([done], np.uint8)),
    }
    return RolloutTables(graph)


@pytest.fixture
def changeable(pursuit):
    graph = pursuit("factored")
    kept = graph.attributes
    yield graph
    graph.attributes = kept


@pytest.mark.parametrize("horizon", [1, 2, 3, 10])
def test_a_reward_every_step_adds_up_to_the_horizon(changeable, horizon):
    tables = with_constant(changeable, [1.0, 10.0, 100.0], 0)
    own, theirs = policies(changeable, (2,))
    means, squares = estimate(tables, (2,), np.arange(5), own, theirs, 2, horizon, 0.5, [0.0, 1.0, 0.25])
    expected = 35.0 * (2.0 - 2.0 ** (1 - horizon))  # 35 (1 + 1/2 + ... ), horizon terms; exact in binary
    assert np.array_equal(means, np.full((5, 5), expected))
    assert np.array_equal(squares, np.full((5, 5), expected**2))


def test_an_episode_that_is_done_counts_its_last_reward_and_ends(changeable):
    tables = with_constant(changeable, [1.0, 0.0, 0.0], 1)
    own, theirs = policies(changeable, (2,))
    means, _ = estimate(tables, (2,), np.arange(5), own, theirs, 3, 10, 0.5, [1.0, 0.0, 0.0])
    assert np.array_equal(means, np.ones((5, 5)))


def test_a_horizon_of_one_is_the_expected_reward_of_the_candidate(pursuit):
    graph = pursuit("factored")
    own, theirs = policies(graph, (2,))
    roots = np.arange(30, 40)
    nodes, first, o = np.meshgrid(roots, np.arange(5), np.arange(25), indexing="ij")
    found = graph.successors(nodes.ravel(), o.ravel() * 5 + first.ravel())
    gains = np.add.reduceat(found.probability * found.reward[:, 2], found.offsets[:-1])
    expected = (gains.reshape(nodes.shape) * theirs[roots][:, None]).sum(axis=2)
    exact = exact_action_values(graph, (2,), own, theirs, horizon=1, discount=0.9, reward_weights=[0, 0, 1])
    assert np.allclose(exact[roots], expected, atol=1e-12)
    means, squares = estimate(graph, (2,), roots, own, theirs, 20_000, 1, 0.9, [0.0, 0.0, 1.0])
    check_errors(means, squares, expected, 20_000)


def test_the_learner_plays_the_candidate_first_and_its_table_after(pursuit):
    # A learner certain of an action: with it as the candidate all values are those of the policy; the exact
    # values of another candidate differ.
    graph = pursuit("csr")
    _, theirs = policies(graph, (0,))
    own = np.zeros((graph.num_nodes, 5), np.float32)
    own[:, 3] = 1.0
    exact = exact_action_values(graph, (0,), own, theirs, horizon=3, discount=1.0, reward_weights=[1, 0, 0])
    roots = np.arange(60, 70)
    assert np.abs(exact[roots] - exact[roots][:, 3:4]).max() > 0.01
    means, squares = estimate(graph, (0,), roots, own, theirs, 5000, 3, 1.0, [1.0, 0.0, 0.0])
    check_errors(means, squares, exact[roots], 5000)
