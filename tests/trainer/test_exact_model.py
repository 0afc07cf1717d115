"""Exact values: against brute force on small graphs, hand calculations, closed forms and rollouts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import omstore
from omstore import PolicyTable, stream_key
from omstore.build import BuildOptions, build
from omstore.errors import UsageError
from omstore.model import load_model
from omstore.rollout import rollout
from tests.rollout.reference import Sides, exact_action_values, joint_policy
from tests.trainer.exact_worlds import sparse, stored
from tools.worlds.random_graph import RandomGraph
from trainer.exact import ExactModel, Problem


@pytest.fixture(scope="module", autouse=True)
def no_fsync():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


class Tree:
    """What may happen from a node on, one event after the other, without any table of values."""

    def __init__(self, graph: omstore.Graph, focal: int, weights: list[float], discount: float) -> None:
        self.sides = Sides(graph.num_actions, [focal])
        self.graph, self.weights, self.discount = graph, weights, discount
        self.legal = graph.legal(np.arange(graph.num_nodes))[:, self.sides.joint]

    def row(self, node: int, joint: int, left: int, follow) -> float:
        found = self.graph.successors([node], [joint])
        total = 0.0
        for edge, chance in enumerate(found.probability.tolist()):
            gain = float(np.dot(self.weights, found.reward[edge]))
            if not found.done[edge] and left > 1:
                gain += self.discount * follow(int(found.next_node[edge]), left - 1)
            total += chance * gain
        return total

    def evaluate(self, node: int, left: int, agent: np.ndarray, team: np.ndarray) -> float:
        chances = joint_policy(self.legal[node], agent[node], team[node])
        if chances is None:
            return 0.0
        return sum(
            chances[pair]
            * self.row(node, self.sides.joint[pair], left, lambda n, k: self.evaluate(n, k, agent, team))
            for pair in np.ndindex(chances.shape)
            if chances[pair]
        )

    def best(self, node: int, left: int, side: str, other: np.ndarray) -> float:
        """The best of all deterministic choices at this node, each played as a policy."""
        if not self.legal[node].any():
            return 0.0
        count = self.legal.shape[1 if side == "agent" else 2]
        values = []
        for action in range(count):
            mine = np.eye(count)[action]
            agent, team = (mine, other[node]) if side == "agent" else (other[node], mine)
            if not self.legal[node][action if side == "agent" else (slice(None), action)].any():
                continue
            chances = joint_policy(self.legal[node], agent, team)
            assert chances is not None
            values.append(
                sum(
                    chances[pair]
                    * self.row(node, self.sides.joint[pair], left, lambda n, k: self.best(n, k, side, other))
                    for pair in np.ndindex(chances.shape)
                    if chances[pair]
                )
            )
        return max(values)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    world = RandomGraph(6, (2, 3), width=5, max_outdegree=2, illegal=0.35, seed=3)
    return stored(tmp_path_factory.mktemp("small"), world)


@pytest.mark.parametrize("focal", [0, 1])
@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_evaluation_is_the_sum_over_everything_that_may_happen(small, focal, horizon):
    rng = np.random.default_rng(horizon)
    model = ExactModel(small, focal)
    agent, team = sparse(rng, 6, small.num_actions[focal]), sparse(rng, 6, small.num_actions[1 - focal])
    for reward in ("agent", "team"):
        weights = [0.0, 0.0]
        weights[focal if reward == "agent" else 1 - focal] = 1.0
        tree = Tree(small, focal, weights, 0.8)
        found = model.evaluate(agent, team, horizon=horizon, discount=0.8, reward=reward)
        assert found.sweeps == horizon
        assert found.actions is None
        expected = [tree.evaluate(node, horizon, agent, team) for node in range(6)]
        assert np.allclose(found.values, expected, atol=1e-12)


@pytest.mark.parametrize("side", ["agent", "team"])
@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_best_responses_are_the_best_of_all_choices(small, side, horizon):
    rng = np.random.default_rng(10 + horizon)
    model = ExactModel(small, 0)
    weights = [1.0, 0.0] if side == "agent" else [0.0, 1.0]
    other = sparse(rng, 6, 3 if side == "agent" else 2)
    tree = Tree(small, 0, weights, 0.9)
    found = model.best_response(other, side=side, horizon=horizon, discount=0.9)
    expected = [tree.best(node, horizon, side, other) for node in range(6)]
    assert np.allclose(found.values, expected, atol=1e-12)


@pytest.mark.parametrize("learner", [(2,), (0,), (1, 2)])
@pytest.mark.parametrize("illegal", [0.02, 0.8])
def test_action_values_and_values_of_three_agents(tmp_path, learner, illegal):
    graph = stored(tmp_path, RandomGraph(30, (2, 3, 2), width=6, illegal=illegal, seed=8))
    side = "team" if len(learner) == 2 else "agent"
    focal = 0 if side == "team" else learner[0]
    model = ExactModel(graph, focal)
    rng = np.random.default_rng(0)
    agent, team = (sparse(rng, 30, model.num_actions(which)) for which in ("agent", "team"))
    own, other = (agent, team) if side == "agent" else (team, agent)
    weights = [0.0] * 3
    for member in learner:
        weights[member] = 1 / len(learner)
    expected = exact_action_values(
        graph, learner, own, other, horizon=4, discount=0.7, reward_weights=weights
    )
    found = model.action_values(agent, team, side=side, horizon=4, discount=0.7)
    assert np.isnan(expected).any() == (illegal > 0.5)
    assert np.allclose(found, expected, atol=1e-12, equal_nan=True)
    everywhere = graph.legal(np.arange(30)).all(axis=1)
    assert everywhere.any() == (illegal < 0.5)  # there the value of a policy is its mean of action values
    values = model.evaluate(agent, team, horizon=4, discount=0.7, reward=side).values
    assert np.allclose(values[everywhere], (own * found).sum(axis=1)[everywhere], atol=1e-12)


@pytest.fixture(scope="module")
def ring(tmp_path_factory):
    """Three slipping agents on a ring of eight cells, in three encodings."""
    graphs = []
    for rows in ("csr-compressed", "dictionary", "factored"):
        export = tmp_path_factory.mktemp(rows)
        model = load_model("pursuit", {"agents": 3, "slip": 0.1, "grid": ["...", ".#.", "..."]})
        build(model, export, BuildOptions(rows=rows))
        graphs.append(omstore.open(export).graph)
    return graphs


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two slipping agents on the same ring."""
    export = tmp_path_factory.mktemp("pair")
    model = load_model("pursuit", {"agents": 2, "slip": 0.1, "grid": ["...", ".#.", "..."]})
    build(model, export, BuildOptions(rows="factored"))
    return omstore.open(export).graph


def test_encodings_threads_and_company_have_no_influence(ring, monkeypatch):
    rng = np.random.default_rng(1)
    nodes = ring[0].num_nodes
    agent, team = sparse(rng, nodes, 5), sparse(rng, nodes, 25)
    problems = [Problem(agent, team), Problem(None, team), Problem(agent, None), Problem(agent, team, "team")]
    first = ExactModel(ring[0], 2, threads=1).solve(problems, horizon=5, discount=0.9)
    monkeypatch.setattr("omstore.exact.row_source.RowSource.chunk_edges", 1 << 13)
    monkeypatch.setattr("omstore.exact.factored._CHUNK_ROWS", 1 << 13)
    for graph, threads in itertools.product(ring, (1, 2, 3)):
        found = ExactModel(graph, "evader", threads=threads).solve(problems, horizon=5, discount=0.9)
        for some, others in zip(first, found, strict=True):
            if graph is not ring[2]:  # factored rows are decoded to the same probabilities, within rounding
                assert some.values.tobytes() == others.values.tobytes()
            assert np.allclose(some.values, others.values, atol=1e-13)
    alone = ExactModel(ring[0], 2).best_response(team, horizon=5, discount=0.9)
    assert alone.values.tobytes() == first[1].values.tobytes()
    assert np.array_equal(alone.actions, first[1].actions)


def test_bounds_and_what_best_responses_reach(pair):
    graph = pair
    model = ExactModel(graph, 1)
    rng = np.random.default_rng(2)
    team = sparse(rng, graph.num_nodes, 5)
    uniform, best = model.solve(
        [Problem(model.uniform("agent"), team), Problem(None, team)], horizon=None, discount=0.9
    )
    assert (best.values >= uniform.values - 1e-9).all()
    assert (best.values > uniform.values + 0.01).any()
    # without an end the best response plays the same at every step: its policy reaches these values
    greedy = np.eye(5)[best.actions]
    assert np.allclose(
        model.evaluate(greedy, team, horizon=None, discount=0.9).values, best.values, atol=3e-9
    )
    # no other policy is better
    for _ in range(3):
        other = sparse(rng, graph.num_nodes, 5)
        assert (model.evaluate(other, team, horizon=None, discount=0.9).values <= best.values + 3e-9).all()


def test_convergence_is_within_its_bound(pair):
    model = ExactModel(pair, 1)
    team = model.uniform("team")
    exact = model.best_response(team, horizon=None, discount=0.8, tolerance=1e-13)
    for tolerance in (1e-2, 1e-6):
        found = model.best_response(team, horizon=None, discount=0.8, tolerance=tolerance)
        off = np.abs(found.values - exact.values).max()
        assert off <= found.error <= tolerance
        # never more sweeps than discount^k tells: rewards are at most 1
        assert found.sweeps <= np.ceil(np.log(tolerance * (1 - 0.8)) / np.log(0.8))
        as_far = model.best_response(team, horizon=found.sweeps, discount=0.8)
        assert np.array_equal(as_far.values, found.values)
        assert as_far.error == 0.0
        before = model.best_response(team, horizon=found.sweeps - 1, discount=0.8)
        assert np.abs(as_far.values - before.values).max() * 4 == pytest.approx(found.error)  # 0.8 / 0.2


def test_a_loop_by_hand(tmp_path):
    """One node, two agents of two actions; joint action 3 isn't legal. Reward of agent 0: the joint action."""
    with omstore.create(tmp_path, agents=["a", "b"], num_actions=[2, 2], state_width=1, rows="csr") as writer:
        writer.add_nodes(np.zeros((1, 1), np.uint8))
        actions = np.arange(3)
        writer.add_rows(
            np.zeros(3, np.int64), actions, np.ones(3, np.int64), next_nodes=np.zeros(3, np.int64),
            probability=np.ones(3), reward=np.stack((actions, -actions), axis=1).astype(float),
            done=np.array([False, False, True]),
        )  # fmt: skip
    graph = omstore.open(tmp_path).graph
    assert graph is not None
    model = ExactModel(graph, 0)
    half = model.uniform("agent")
    # 0, 1 and 2 alike: a mean reward of 1, and 2/3 go on
    found = model.evaluate(half, half, horizon=3, discount=0.5)
    assert found.values[0] == pytest.approx(1 + (1 / 3) * (1 + (1 / 3) * 1))
    endless = model.evaluate(half, half, horizon=None, discount=0.5)
    assert endless.values[0] == pytest.approx(1 / (1 - 1 / 3))
    # action 1 meets only the team's action 0: 2, and done; action 0 gives 1/2 a step
    assert model.best_response(half, horizon=2, discount=0.5).values[0] == pytest.approx(
        0.5 + 0.5 * 2.0 + 1.0 - 0.5
    )
    # the team always plays 1: action 1 meets nothing that it plays, so any legal joint action is as likely
    one = np.array([[0.0, 1.0]])
    found = model.best_response(one, horizon=1, discount=0.5)
    assert found.values[0] == 1.0  # action 0 gives 1, action 1 a mean of 1
    assert found.actions is not None
    assert found.actions[0] == 0
    # as a first action that is certain, 1 meets the one legal action
    assert model.action_values(half, one, horizon=1, discount=0.5).tolist() == [[1.0, 2.0]]
    assert model.action_values(half, one, horizon=2, discount=0.5).tolist() == [[1.5, 2.0]]


def test_rollouts_agree(ring):
    graph = ring[2]
    model = ExactModel(graph, 2)
    rng = np.random.default_rng(4)
    tables = PolicyTable(sparse(rng, graph.num_nodes, 5)), PolicyTable(sparse(rng, graph.num_nodes, 25))
    exact = model.action_values(*tables, horizon=5, discount=0.9)
    roots = rng.integers(0, graph.num_nodes, 12)
    count = 4000
    means, squares = rollout(
        graph, roots, np.tile(np.arange(5), (12, 1)), stream_key(1, np.arange(12)), learner=(2,),
        learner_table=tables[0], other_table=tables[1], n_rollouts=count, horizon=5, discount=0.9,
        reward_weights=[0.0, 0.0, 1.0],
    )  # fmt: skip
    deviation = np.sqrt(np.maximum(squares - means**2, 0.0) / count)
    uncertain = deviation > 1e-8
    assert uncertain.sum() > 20
    assert (np.abs(means - exact[roots])[uncertain] < 4.5 * deviation[uncertain]).all()
    assert np.allclose(means[~uncertain], exact[roots][~uncertain], atol=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: m.evaluate(m.uniform("team"), m.uniform("team"), horizon=1, discount=0.5),
            "the agent's policy",
        ),
        (
            lambda m: m.evaluate(m.uniform("agent"), m.uniform("team"), horizon=0, discount=0.5),
            "horizon of 0",
        ),
        (lambda m: m.best_response(m.uniform("team"), horizon=None, discount=1.0), "without an end"),
        (
            lambda m: m.best_response(PolicyTable(np.ones((3, 1))), horizon=1, discount=1.0),
            "3 rows of 1 actions",
        ),
        (lambda m: Problem(None, None), "best response is one to a policy"),
        (lambda m: ExactModel(m.graph, 0, threads=0), "0 threads"),
    ],
)
def test_what_makes_no_sense(ring, call, message):
    with pytest.raises(UsageError, match=message):
        call(ExactModel(ring[2], 2))
