"""Policies by name: the networks' own probabilities, files, other trainings; and what isn't one."""

from __future__ import annotations

import numpy as np
import pytest

import omstore
from omstore import RolloutTables
from omstore.errors import MemoryBudgetError, UsageError
from tests.trainer.small_runs import Crash, CrashAfter, run
from trainer.adapter import GraphWorldModelAdapter
from trainer.artifact import load_stack
from trainer.exact import ExactModel, NamedPolicies, Networks
from trainer.tables import PolicyTabulator


@pytest.fixture(scope="module")
def model(trained):
    return ExactModel(omstore.open(trained).graph, load_stack(trained).document["focal_agent"])


@pytest.fixture
def policies(model, trained):
    return found(model, Networks.load(trained))


def found(model, networks, **limits):
    dyn = GraphWorldModelAdapter(model.graph, focal_agent=model.focal_agent)
    return NamedPolicies(model, PolicyTabulator(dyn, RolloutTables(model.graph)), networks, **limits)


def test_networks_by_name_are_those_of_the_artifact(policies, model, trained):
    stack = load_stack(trained)
    dyn = GraphWorldModelAdapter(model.graph, focal_agent=model.focal_agent)
    nodes = np.arange(model.graph.num_nodes)
    nodes = nodes[model.graph.legal(nodes).any(axis=1)]
    states = model.graph.states(nodes)
    expected = stack.agent_probabilities(states, legal=dyn.legal_focal(nodes)).numpy()
    assert np.allclose(policies.find("agent", "agent").probabilities[nodes], expected, atol=1e-6)
    for level in range(3):
        expected = stack.action_probabilities(states, level, legal=dyn.legal_team(nodes)).detach().numpy()
        for name in (f"level{level}", f"L{level}", f"{trained}:level{level}"):
            table = policies.find(name, "team").probabilities
            assert np.allclose(table[nodes], expected, atol=1e-6)
    assert policies.find("L2", "team").name == "level2"
    assert policies.find("level1", "team") is policies.find("level1", "team")


def test_uniform_takes_no_memory(policies, model):
    table = policies.find("uniform", "team").probabilities
    assert table.shape == (model.graph.num_nodes, model.num_actions("team"))
    assert (table == 1 / model.num_actions("team")).all()
    assert table.strides == (0, 0)


def test_a_checkpoint_is_a_policy(export, model):
    with pytest.raises(Crash):
        run(export, stop=CrashAfter(14), checkpoint_updates=1)
    newest = sorted((export / "om" / "checkpoints").glob("*.pt"))[-1]
    policies = found(model, None)
    agent = policies.find(f"{newest}:agent", "agent").probabilities
    assert agent.shape == (model.graph.num_nodes, model.num_actions("agent"))
    first = policies.find(f"{newest}:level0", "team").probabilities
    # level 0 doesn't change any more: the whole run's is the same
    run(export)
    assert np.array_equal(
        np.nan_to_num(first), np.nan_to_num(policies.find(f"{export}:L0", "team").probabilities)
    )
    assert not np.array_equal(agent, policies.find(f"{export}:agent", "agent").probabilities)


def test_files(policies, model, tmp_path):
    shape = (model.graph.num_nodes, model.num_actions("agent"))
    table = np.random.default_rng(0).random(shape)
    table /= table.sum(axis=1, keepdims=True)
    np.save(tmp_path / "mine.npy", table)
    read = policies.find(str(tmp_path / "mine.npy"), "agent").probabilities
    assert isinstance(read, np.memmap)
    assert np.array_equal(read, table)
    node = int(np.flatnonzero(model.graph.legal(np.arange(shape[0])).any(axis=1))[3])
    for wrong in (-0.1, 2.0, np.nan):
        bad = table.copy()
        bad[node, 0] = wrong
        np.save(tmp_path / f"bad{wrong}.npy", bad)
        with pytest.raises(UsageError, match=rf"bad{wrong}\.npy: row {node} isn't a distribution"):
            policies.find(str(tmp_path / f"bad{wrong}.npy"), "agent")
    np.save(tmp_path / "short.npy", table[1:])
    with pytest.raises(UsageError, match="the agent's policy is floats of"):
        policies.find(str(tmp_path / "short.npy"), "agent")


@pytest.mark.parametrize(
    ("name", "side", "message"),
    [
        ("levle1", "team", "there is no policy 'levle1'"),
        ("level3", "team", "levels are 0 to 2"),
        ("level1", "agent", "a policy of the team, not of the focal agent"),
        ("agent", "team", "a policy of the focal agent, not of the team"),
        ("nothing.npy", "team", "nothing.npy can't be read"),
    ],
)
def test_what_is_no_policy(policies, name, side, message):
    with pytest.raises(UsageError, match=message):
        policies.find(name, side)


def test_nothing_trained_and_too_little_memory(model, trained):
    with pytest.raises(UsageError, match="nothing was trained here"):
        found(model, None).find("agent", "agent")
    # 40 nodes of 12 team actions: 1,920 bytes, of half of the budget
    stack = Networks.load(trained)
    size = 4 * model.graph.num_nodes * model.num_actions("team")
    enough = found(model, stack, max_ram=2 * size)
    enough.find("level0", "team")
    with pytest.raises(MemoryBudgetError, match="--max-ram"):
        enough.find("level1", "team")


def test_a_file_that_is_no_checkpoint(tmp_path, policies):
    file = tmp_path / "checkpoint-0000000001-0123456789abcdef.pt"
    file.write_bytes(b"nothing")
    with pytest.raises(UsageError, match="can't be loaded"):
        policies.find(f"{file}:agent", "agent")
