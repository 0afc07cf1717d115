"""Captures: equal to what Storm computed, to dense NumPy, and to chains solved by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.build import BuildOptions, build
from omstore.errors import UsageError
from omstore.model import load_model
from tests.trainer.exact_worlds import free_cells, sparse, stored
from tools.worlds.random_graph import RandomGraph
from trainer.exact import ExactModel, done_nodes, reach

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture(scope="module", autouse=True)
def no_fsync():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


def built(folder: Path, agents: int, slip: float, rows: str) -> omstore.Graph:
    build(load_model("pursuit", {"agents": agents, "slip": slip}), folder, BuildOptions(rows=rows))
    graph = omstore.open(folder).graph
    assert graph is not None
    return graph


def reference(name: str, graph: omstore.Graph, agents: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Storm's arrays in the order of nodes, and which nodes are captures."""
    cells = free_cells(graph, agents)
    number = np.zeros(graph.num_nodes, np.int64)
    for agent in range(agents):
        number = number * 44 + cells[:, agent]
    assert np.array_equal(np.sort(number), np.arange(44**agents))
    captured = (cells[:, :-1] == cells[:, -1:]).any(axis=1)
    with np.load(DATA / name) as arrays:
        return {key: arrays[key][number] for key in arrays.files}, captured


@pytest.fixture(scope="module", params=["factored", "dictionary"])
def pair(request, tmp_path_factory):
    graph = built(tmp_path_factory.mktemp("pair"), 2, 0.1, request.param)
    return ExactModel(graph, 1), *reference("storm_pursuit2_slip.npz", graph, 2)


@pytest.mark.parametrize(("choice", "name"), [("most", "pmax20"), ("least", "pmin20")])
def test_two_agents_within_20_steps_equal_storms(pair, choice, name):
    model, storm, captured = pair
    assert np.array_equal(done_nodes(model), captured)
    found = reach(model, choice=choice, horizon=20)
    assert np.abs(found.values - storm[name]).max() < 1e-12
    assert found.error == 0.0
    assert found.sweeps == 20


def test_two_agents_ever_equal_storms(pair):
    model, storm, captured = pair
    found = reach(model, choice="most")
    assert (found.lower <= found.upper).all()
    assert found.error <= 1e-6
    assert np.abs(found.values - storm["pmax_inf"]).max() <= 1e-6
    assert (found.lower <= storm["pmax_inf"]).all()
    assert (storm["pmax_inf"] <= found.upper).all()
    # one player who wants none stays where it is
    least = reach(model, choice="least")
    assert np.array_equal(least.values, captured.astype(float))
    assert least.error == 0.0


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    graph = built(tmp_path_factory.mktemp("three"), 3, 0.0, "factored")
    return ExactModel(graph, 2), *reference("storm_pursuit3_noslip.npz", graph, 3)


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_three_agents_without_slip_equal_storms(three, steps):
    model, storm, captured = three
    for choice, name in (("most", f"pmax{steps}"), ("least", f"pmin{steps}")):
        if name in storm:
            found = reach(model, choice=choice, goal=captured, horizon=steps)
            assert np.abs(found.values - storm[name]).max() < 1e-9


def test_three_agents_without_slip_ever_equal_storms(three):
    model, storm, captured = three
    found = reach(model, choice="most", goal=captured)
    assert found.error <= 1e-6
    assert np.abs(found.values - storm["pmax_inf"]).max() < 1e-6


SLIP = {1: 0.313646, 2: 0.622630, 3: 0.836471, 5: 0.968969, 20: 0.977789}
"""Means over all states of Pmax within so many steps, as Storm gave them for three agents with 0.1 slip."""


def test_three_agents_with_slip_equal_storms(tmp_path):
    graph = built(tmp_path, 3, 0.1, "factored")
    cells = free_cells(graph, 3)
    captured = (cells[:, :-1] == cells[:, -1:]).any(axis=1)
    model = ExactModel(graph, 2)
    pair = np.empty((44, 44), np.int64)
    first, second = np.triu_indices(44)
    pair[first, second] = pair[second, first] = np.arange(len(first))  # the pursuers are alike
    place = pair[cells[:, 0], cells[:, 1]], cells[:, 2]
    with np.load(DATA / "storm_pursuit3_slip.npz") as arrays:
        storm = {name: arrays[name][place] for name in arrays.files}
    for steps, mean in SLIP.items():
        found = reach(model, choice="most", goal=captured, horizon=steps)
        assert found.values.mean() == pytest.approx(mean, abs=5e-7)
        if f"pmax{steps}" in storm:
            assert np.abs(found.values - storm[f"pmax{steps}"]).max() < 1e-12
    found = reach(model, choice="most", goal=captured)
    assert found.error <= 1e-6
    assert np.abs(found.values - storm["pmax_inf"]).max() <= 1e-6


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    graph = stored(
        tmp_path_factory.mktemp("small"),
        RandomGraph(25, (2, 3), width=7, max_outdegree=2, illegal=0.3, seed=5),
    )
    return ExactModel(graph, 0)


def matrices(graph: omstore.Graph) -> np.ndarray:
    """(A, N, N) probabilities; all 0 where a joint action isn't legal."""
    dense = np.zeros((graph.num_joint_actions, graph.num_nodes, graph.num_nodes))
    for action in range(graph.num_joint_actions):
        for node in range(graph.num_nodes):
            found = graph.successors([node], [action])
            np.add.at(dense[action, node], found.next_node, found.probability)
    return dense


def chain(model: ExactModel, agent: np.ndarray, team: np.ndarray) -> np.ndarray:
    """(N, N) probabilities when both play by policies; agent 0 is the focal one of two."""
    dense = matrices(model.graph)
    legal = dense.sum(axis=2).T > 0.5
    weights = (agent[:, :, None] * team[:, None, :]).reshape(len(agent), -1) * legal
    none = weights.sum(axis=1) == 0
    weights[none] = legal[none]
    total = weights.sum(axis=1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return np.einsum("na,anm->nm", weights, dense)


def test_policies_within_and_ever_are_those_of_the_chain(small):
    rng = np.random.default_rng(1)
    agent, team = sparse(rng, 25, 2), sparse(rng, 25, 3)
    moves = chain(small, agent, team)
    goal = np.zeros(25, bool)
    goal[[3, 11]] = True
    expected = goal.astype(float)
    for _ in range(4):
        expected = np.where(goal, 1.0, moves @ expected)
    found = reach(small, agent=agent, team=team, goal=goal, horizon=4)
    assert np.allclose(found.values, expected, atol=1e-14)
    # ever: the linear equations, where the goal can be reached at all
    able = np.linalg.matrix_power(moves + np.eye(25), 25) @ goal > 0
    inside = np.flatnonzero(able & ~goal)
    exact = goal.astype(float)
    exact[inside] = np.linalg.solve(np.eye(len(inside)) - moves[np.ix_(inside, inside)], moves[inside] @ goal)
    found = reach(small, agent=agent, team=team, goal=goal, tolerance=1e-10)
    assert found.error <= 1e-10
    assert ((found.lower <= exact + 1e-13) & (exact <= found.upper + 1e-13)).all()


@pytest.mark.parametrize(("choice", "best"), [("most", np.max), ("least", np.min)])
def test_one_player_within_steps_is_dense_iteration(small, choice, best):
    dense = matrices(small.graph)
    legal = dense.sum(axis=2) > 0.5
    goal = done_nodes(small)
    assert 0 < goal.sum() < 25
    expected = goal.astype(float)
    for _ in range(3):
        rows = dense @ expected
        found = best(np.where(legal, rows, -1.0 if choice == "most" else 2.0), axis=0)
        expected = np.where(goal, 1.0, np.where(legal.any(axis=0), found, 0.0))
    assert np.allclose(reach(small, choice=choice, horizon=3).values, expected, atol=1e-14)


def test_nodes_entered_with_done_are_those_of_the_edges(small):
    graph = small.graph
    nodes, actions = np.divmod(np.arange(graph.num_rows), graph.num_joint_actions)
    found = graph.successors(nodes, actions)
    expected = np.zeros(25, bool)
    expected[found.next_node[found.done]] = True
    assert np.array_equal(done_nodes(small), expected)


def gamble(folder: Path) -> ExactModel:
    """Node 0 may stay, or gamble: 1/2 goal (1), 1/4 lost (2), 1/4 back. Node 3 may go to 0, or stay for ever."""
    edges = {(0, 0): [(0, 1.0)], (0, 1): [(0, 0.25), (1, 0.5), (2, 0.25)], (1, 0): [(1, 1.0)], (2, 0): [(2, 1.0)],
             (3, 0): [(3, 1.0)], (3, 1): [(0, 1.0)]}  # fmt: skip
    with omstore.create(folder, agents=["a", "b"], num_actions=[2, 1], state_width=2, rows="csr") as writer:
        writer.add_nodes(np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.uint8))
        for (node, action), row in edges.items():
            to, chance = (np.array(column) for column in zip(*row, strict=True))
            writer.add_rows(
                np.array([node]), np.array([action]), np.array([len(row)]), next_nodes=to, probability=chance,
                reward=np.zeros((len(row), 2)), done=to == 1,
            )  # fmt: skip
    graph = omstore.open(folder).graph
    assert graph is not None
    return ExactModel(graph, 0)


def test_a_gamble_by_hand(tmp_path):
    model = gamble(tmp_path)
    goal = np.array([False, True, False, False])
    most = reach(model, choice="most", goal=goal, tolerance=1e-9, max_sweeps=200)
    assert np.allclose(most.lower, [2 / 3, 1, 0, 2 / 3], atol=1e-9)
    # staying for ever is an end component: from above nothing comes down, but what is guessed holds
    assert (most.upper >= [2 / 3, 1, 0, 2 / 3]).all()
    assert most.error <= 1e-9
    # before the lower bound has risen far enough no guess does
    early = reach(model, choice="most", goal=goal, tolerance=1e-9, max_sweeps=12)
    assert (early.upper >= [2 / 3, 1, 0, 2 / 3]).all()
    assert early.error == pytest.approx(1 / 3, abs=1e-2)
    assert reach(model, choice="least", goal=goal).values.tolist() == [0, 1, 0, 0]
    always = np.tile([0.0, 1.0], (4, 1))
    found = reach(model, agent=always, team=np.ones((4, 1)), goal=goal, tolerance=1e-12)
    assert np.allclose(found.values, [2 / 3, 1, 0, 2 / 3], atol=1e-12)
    assert found.error <= 1e-12
    # surely: with any goal beside, 2/3 becomes 1
    sure = reach(model, choice="most", goal=goal | np.array([False, False, True, False]))
    assert sure.values.tolist() == [1, 1, 1, 1]
    assert sure.error == 0.0


@pytest.mark.parametrize(("leaves", "most_sweeps"), [(0.001, 10), (1e-6, 120)])
def test_what_is_decided_slowly(tmp_path, leaves, most_sweeps):
    """From 0 six times out of ten to the goal (1), else it is lost (2); from 3 to 0. A sweep decides next to nothing:
    iteration from both sides would take thousands, or millions, of them."""
    rows = [[(0, 1 - leaves), (1, 0.6 * leaves), (2, 0.4 * leaves)], [(1, 1.0)], [(2, 1.0)], [(0, 1.0)]]
    with omstore.create(tmp_path, agents=["a", "b"], num_actions=[1, 1], state_width=2, rows="csr") as writer:
        writer.add_nodes(np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.uint8))
        to = np.array([node for row in rows for node, _ in row])
        writer.add_rows(
            np.arange(4), np.zeros(4, np.int64), np.array([len(row) for row in rows]), next_nodes=to,
            probability=np.array([chance for row in rows for _, chance in row]), reward=np.zeros((len(to), 2)),
            done=to == 1,
        )  # fmt: skip
    graph = omstore.open(tmp_path).graph
    assert graph is not None
    one = np.ones((4, 1))
    found = reach(ExactModel(graph, 0), agent=one, team=one, tolerance=1e-9)
    assert np.allclose(found.values, [0.6, 1, 0, 0.6], atol=1e-9)
    assert found.error <= 1e-9
    assert found.sweeps <= most_sweeps
    early = reach(ExactModel(graph, 0), agent=one, team=one, tolerance=1e-9, max_sweeps=4)
    assert (early.lower <= [0.6 + 1e-12, 1, 0, 0.6 + 1e-12]).all()
    assert (early.upper >= [0.6 - 1e-12, 1, 0, 0.6 - 1e-12]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"horizon": -1, "choice": "most"}, "horizon of -1"),
        ({}, "takes the focal agent's and the team's"),
        ({"choice": "most", "goal": np.zeros(3, bool)}, "a goal is"),
        ({"choice": "most", "tolerance": 0.0}, "tolerance of 0.0"),
    ],
)
def test_what_makes_no_sense(small, arguments, message):
    with pytest.raises(UsageError, match=message):
        reach(small, **arguments)
