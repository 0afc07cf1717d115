"""Live beside Storm: captures most, least and under fixed policies, on a stored graph handed over as UMB."""

from __future__ import annotations

import numpy as np
import pytest

import omstore
from omstore.build import BuildOptions, build
from omstore.exporting import export_graph
from omstore.model import load_model
from tests.trainer.exact_worlds import sparse
from trainer.exact import ExactModel, done_nodes, reach


@pytest.fixture(scope="module")
def stormpy():
    return pytest.importorskip("stormpy", reason="the extra 'check' isn't installed")


@pytest.fixture(scope="module")
def pair(stormpy, tmp_path_factory):
    """Two slipping agents on the whole grid: ours, and Storm's model of the store."""
    folder = tmp_path_factory.mktemp("pair")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        build(load_model("pursuit", {"agents": 2, "slip": 0.1}), folder, BuildOptions(rows="factored"))
        export_graph(folder, folder / "pair.umb", "umb")
    graph = omstore.open(folder).graph
    assert graph is not None
    return ExactModel(graph, 1), stormpy.build_model_from_umb(str(folder / "pair.umb"))


def storms(stormpy, model, formula):
    """Values by a sound method, which says that it is within 1e-9, rounding left aside: Storm's own default is a
    relative 1e-6, by which even sound values may differ more than that from ours."""
    (formula,) = stormpy.parse_properties(formula)
    sound = stormpy.environments.sound()
    sound.solver().min_max().precision = sound.solver().native().precision = stormpy.Rational("1/1000000000")
    found = stormpy.model_checking(model, formula, only_initial_states=False, environment=sound)
    return np.array(found.get_value_vector())


@pytest.mark.parametrize(
    ("choice", "horizon", "formula", "within"),
    [
        ("most", 20, 'Pmax=? [F<=20 "done"]', 1e-9),
        ("least", 20, 'Pmin=? [F<=20 "done"]', 1e-9),
        ("most", 3, 'Pmax=? [F<=3 "done"]', 1e-9),
        ("least", None, 'Pmin=? [F "done"]', 1e-6),
        ("most", None, 'Pmax=? [F "done"]', 1e-6),
    ],
)
def test_one_player(stormpy, pair, choice, horizon, formula, within):
    model, storm = pair
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
    nodes, actions = np.arange(graph.num_nodes), np.arange(graph.num_joint_actions)
    target, chance, outdegree = [], [], []
    for node in nodes:
        # the evader, agent 1, is the focal agent; joint actions have agent 0 first
        weights = np.outer(team[node], agent[node]).reshape(-1)
        found = graph.successors(np.full(len(actions), node), actions)
        row = np.bincount(
            found.next_node, np.repeat(weights, found.outdegree) * found.probability, minlength=len(nodes)
        )
        target.append(np.flatnonzero(row))
        chance.append(np.minimum(row[target[-1]], 1.0))  # sums round
        outdegree.append(len(target[-1]))
    to = np.concatenate(target)
    with omstore.create(
        folder, agents=["both"], num_actions=[1], state_width=graph.state_width, rows="csr"
    ) as writer:
        numbers = writer.add_nodes(graph.states(nodes))
        writer.add_rows(
            numbers,
            np.zeros(len(nodes), np.int64),
            np.array(outdegree),
            next_nodes=numbers[to],
            probability=np.concatenate(chance),
            reward=np.zeros((len(to), 1)),
            done=done_nodes(model)[to],
        )
    made = omstore.open(folder).graph
    assert made is not None
    export_graph(folder, folder / "chain.umb", "umb")
    return stormpy.build_model_from_umb(str(folder / "chain.umb")), made.lookup(graph.states(nodes))


@pytest.mark.parametrize(
    ("horizon", "formula", "within"), [(20, 'Pmax=? [F<=20 "done"]', 1e-9), (None, 'Pmax=? [F "done"]', 1e-6)]
)
def test_fixed_policies(stormpy, pair, horizon, formula, within, tmp_path):
    model, _ = pair
    rng = np.random.default_rng(0)
    agent, team = sparse(rng, model.graph.num_nodes, 5), sparse(rng, model.graph.num_nodes, 5)
    found = reach(model, agent=agent, team=team, horizon=horizon, tolerance=1e-9)
    storm, order = chain(stormpy, model, agent, team, tmp_path)
    expected = storms(stormpy, storm, formula)[order]
    assert np.abs(found.values - expected).max() < within
    assert 0.01 < expected.mean() < 0.999
