"""Live beside Storm: captures most, least and under fixed policies, on a stored graph handed over as UMB."""

from __future__ import annotations

import numpy as np
import pytest

import omstore
from omstore.build import BuildOptions, build
from omstore.exporting import export_graph
from omstore.model import load_model
from tests.trainer.exact_worlds import sparse
from tools.storm_values import Model
from trainer.exact import ExactModel, done_nodes, reach


@pytest.fixture(scope="module")
def stormpy():
    return pytest.importorskip("stormpy", reason="the extra 'check' isn't installed")


def built(folder, agents, slip):
    """Exact values of agents on the whole grid."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        build(load_model("pursuit", {"agents": agents, "slip": slip}), folder, BuildOptions(rows="factored"))
    graph = omstore.open(folder).graph
    assert graph is not None
    return ExactModel(graph, agents - 1)


def handed_over(stormpy, folder):
    export_graph(folder, folder / "graph.umb", "umb", rewards=False)
    return stormpy.build_model_from_umb(str(folder / "graph.umb"))


@pytest.fixture(scope="module", params=[0.0, 0.1], ids=["no slip", "slip"])
def pair(stormpy, tmp_path_factory, request):
    """Two agents: ours, and Storm's model of the store."""
    folder = tmp_path_factory.mktemp("pair")
    return built(folder, 2, request.param), handed_over(stormpy, folder)


def storms(stormpy, model, formula):
    """Values by a sound method, which says that it is within 1e-9, rounding left aside: Storm's own default is a
    relative 1e-6, by which even sound values may differ more than that from ours."""
    (formula,) = stormpy.parse_properties(formula)
    sound = stormpy.environments.sound()
    sound.solver().min_max().precision = sound.solver().native().precision = stormpy.Rational("1/1000000000")
    found = stormpy.model_checking(model, formula, only_initial_states=False, environment=sound)
    return np.array(found.get_value_vector())


ONE_PLAYER = pytest.mark.parametrize(
    ("choice", "horizon", "formula", "within"),
    [
        ("most", 20, 'Pmax=? [F<=20 "done"]', 1e-9),
        ("least", 20, 'Pmin=? [F<=20 "done"]', 1e-9),
        ("most", 3, 'Pmax=? [F<=3 "done"]', 1e-9),
        ("least", None, 'Pmin=? [F "done"]', 1e-6),
        ("most", None, 'Pmax=? [F "done"]', 1e-6),
    ],
)


@ONE_PLAYER
def test_one_player(stormpy, pair, choice, horizon, formula, within):
    equal_to_storms(stormpy, *pair, choice, horizon, formula, within)


def test_a_reward_at_one_instant_is_the_chance_to_have_got_there(stormpy, tmp_path):
    ours = built(tmp_path, 2, 0.1)
    export_graph(tmp_path, tmp_path / "graph.umb", "umb", rewards=False)
    storm = Model(tmp_path / "graph.umb", done_nodes(ours))
    assert storm.num_edges == ours.graph.num_edges
    for choice in ("most", "least"):
        found, _ = storm.reached(choice, 7)
        assert np.abs(found - reach(ours, choice=choice, horizon=7).values).max() < 1e-12


@pytest.fixture(scope="module")
def trio(stormpy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trio")
    return built(folder, 3, 0.0), handed_over(stormpy, folder)


@pytest.mark.slow
@ONE_PLAYER
def test_one_player_of_three_agents(stormpy, trio, choice, horizon, formula, within):
    equal_to_storms(stormpy, *trio, choice, horizon, formula, within)


def equal_to_storms(stormpy, model, storm, choice, horizon, formula, within):
    found = reach(model, choice=choice, horizon=horizon)
    assert np.abs(found.values - storms(stormpy, storm, formula)).max() < within


@pytest.fixture(scope="module")
def risky(stormpy, tmp_path_factory):
    """Chances strictly between 0 and 1, and end components: at some of 300 nodes one may stay for ever."""
    rng = np.random.default_rng(3)
    kind = rng.choice(["goal", "lost", "other"], 300, p=[0.15, 0.15, 0.7])
    stays = rng.random(300) < 0.05
    rows = []
    for node in range(300):
        for action in range(3):
            near = (node + rng.integers(-6, 7, 4)) % 300
            moves = kind[node] == "other" and (action > 0 or not stays[node])
            to = np.unique(near) if moves else np.array([node])
            rows.append((node, action, to, rng.dirichlet(np.ones(len(to)))))
    folder = tmp_path_factory.mktemp("risky")
    target = np.concatenate([to for *_, to, _ in rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        with omstore.create(
            folder, agents=["a", "b"], num_actions=[3, 1], state_width=9, rows="csr"
        ) as writer:
            numbers = writer.add_nodes((np.arange(300)[:, None] >> np.arange(9) & 1).astype(np.uint8))
            writer.add_rows(
                numbers[[node for node, *_ in rows]],
                np.array([action for _, action, *_ in rows]),
                np.array([len(to) for *_, to, _ in rows]),
                next_nodes=numbers[target],
                probability=np.concatenate([chance for *_, chance in rows]),
                reward=np.zeros((len(target), 2)),
                done=kind[target] == "goal",
            )
        export_graph(folder, folder / "risky.umb", "umb")
    graph = omstore.open(folder).graph
    assert graph is not None
    return ExactModel(graph, 0), stormpy.build_model_from_umb(str(folder / "risky.umb"))


@pytest.mark.parametrize(
    ("choice", "formula"), [("most", 'Pmax=? [F "done"]'), ("least", 'Pmin=? [F "done"]')]
)
def test_chances_between_0_and_1(stormpy, risky, choice, formula):
    model, storm = risky
    found = reach(model, choice=choice, tolerance=1e-7)
    expected = storms(stormpy, storm, formula)
    assert found.error <= 1e-7
    assert np.abs(found.values - expected).max() <= 1e-6
    assert (found.lower <= expected + 2e-9).all()
    assert (expected <= found.upper + 2e-9).all()
    inside = (expected > 0.01) & (expected < 0.99)
    assert inside.sum() > 30
    assert found.sweeps < 1000  # where one may stay nothing comes down from above alone


def chain(stormpy, model, agent, team, folder):
    """Storm's model of two policies: a graph of one agent and one action, its rows from the store's edges."""
    graph = model.graph
    count = graph.num_nodes
    target, chance, outdegree = [], [], []
    for nodes in np.array_split(np.arange(count), -(-count // 4096)):
        # the evader, the last agent, is the focal agent: the least significant digit of a joint action
        weights = (team[nodes, :, None] * agent[nodes, None, :]).reshape(len(nodes), -1)
        node, action = np.nonzero(weights)
        found = graph.successors(nodes[node], action)
        edge = np.repeat(node * count, found.outdegree) + found.next_node
        weight = np.repeat(weights[node, action], found.outdegree) * found.probability
        edge, which = np.unique(edge, return_inverse=True)
        target.append(edge % count)
        chance.append(np.minimum(np.bincount(which, weight), 1.0))  # sums round
        outdegree.append(np.bincount(edge // count, minlength=len(nodes)))
    to = np.concatenate(target)
    with omstore.create(
        folder, agents=["both"], num_actions=[1], state_width=graph.state_width, rows="csr"
    ) as writer:
        numbers = writer.add_nodes(graph.states(np.arange(count)))
        writer.add_rows(
            numbers,
            np.zeros(count, np.int64),
            np.concatenate(outdegree),
            next_nodes=numbers[to],
            probability=np.concatenate(chance),
            reward=np.zeros((len(to), 1)),
            done=done_nodes(model)[to],
        )
    made = omstore.open(folder).graph
    assert made is not None
    export_graph(folder, folder / "chain.umb", "umb")
    return stormpy.build_model_from_umb(str(folder / "chain.umb")), made.lookup(
        graph.states(np.arange(count))
    )


UNDER_POLICIES = pytest.mark.parametrize(
    ("horizon", "formula", "within"), [(20, 'Pmax=? [F<=20 "done"]', 1e-9), (None, 'Pmax=? [F "done"]', 1e-6)]
)


def policies(nodes, team_actions, plays):
    """Some actions, each as often: of chances as small as you like neither tool would ever be through."""
    rng = np.random.default_rng(0)
    both = sparse(rng, nodes, 5, plays), sparse(rng, nodes, team_actions, plays)
    return tuple((some > 0) / (some > 0).sum(axis=1, keepdims=True) for some in both)


@UNDER_POLICIES
def test_fixed_policies(stormpy, pair, horizon, formula, within, tmp_path):
    model, _ = pair
    both = policies(model.graph.num_nodes, 5, 0.6)
    equal_under_policies(stormpy, model, both, horizon, formula, within, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("slip", [0.0, 0.1])
@UNDER_POLICIES
def test_fixed_policies_of_three_agents(stormpy, slip, horizon, formula, within, tmp_path):
    model = built(tmp_path / "store", 3, slip)
    both = policies(model.graph.num_nodes, 25, 0.1)
    equal_under_policies(stormpy, model, both, horizon, formula, within, tmp_path / "chain")


def equal_under_policies(stormpy, model, both, horizon, formula, within, folder):
    agent, team = both
    found = reach(model, agent=agent, team=team, horizon=horizon, tolerance=1e-9)
    storm, order = chain(stormpy, model, agent, team, folder)
    expected = storms(stormpy, storm, formula)[order]
    assert np.abs(found.values - expected).max() < within
    assert 0.01 < expected.mean() < 0.999
