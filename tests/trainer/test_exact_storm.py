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
    (formula,) = stormpy.parse_properties(formula)
    return np.array(stormpy.model_checking(model, formula, only_initial_states=False).get_value_vector())


@pytest.mark.parametrize(
    ("choice", "horizon", "formula", "within"),
    [
        ("most", 20, 'Pmax=? [F<=20 "done"]', 1e-9),
        ("least", 20, 'Pmin=? [F<=20 "done"]', 1e-9),
        ("most", 3, 'Pmax=? [F<=3 "done"]', 1e-9),
        ("least", None, 'Pmin=? [F "done"]', 1e-6),
        ("most", None, 'Pmax=? [F "done"]', 1e-5),  # Storm stops at a relative 1e-6
    ],
)
def test_one_player(stormpy, pair, choice, horizon, formula, within):
    model, storm = pair
    found = reach(model, choice=choice, horizon=horizon)
    assert np.abs(found.values - storms(stormpy, storm, formula)).max() < within


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
    ("horizon", "formula", "within"), [(20, 'Pmax=? [F<=20 "done"]', 1e-9), (None, 'Pmax=? [F "done"]', 1e-5)]
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
