"""The artifact: plain, loadable without executing anything, and giving the networks' probabilities."""

import numpy as np
import pytest
import torch

import omstore
import trainer
from omstore.errors import StoreNotFoundError, UsageError
from trainer.artifact import load_stack, store_identity


def logits(weights, states):
    """A network of a state dict, written out."""
    hidden = np.maximum(states @ weights["first.weight"].numpy().T + weights["first.bias"].numpy(), 0)
    hidden = np.maximum(hidden @ weights["second.weight"].numpy().T + weights["second.bias"].numpy(), 0)
    return hidden @ weights["head.weight"].numpy().T + weights["head.bias"].numpy()


def softmax(values):
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def plain(trained):
    return torch.load(trained / "om" / "iop_stack.pt", weights_only=True)


@pytest.fixture(scope="module")
def states(trained):
    return omstore.open(trained).graph.states(np.arange(20)).astype(np.float32)


class TestContents:
    def test_who_and_what(self, plain, trained):
        assert plain["agents"] == list(omstore.open(trained).manifest.agents)
        assert plain["num_actions"] == [2, 3, 4]
        assert (plain["focal_agent"], plain["num_team_actions"]) == (0, 12)
        assert plain["team"] == plain["agents"][1:]
        assert (plain["state_width"], plain["levels"], len(plain["layers"])) == (13, 3, 3)

    def test_settings_that_decide_only(self, plain):
        assert plain["config"]["temperature"] == 0.1
        assert "threads" not in plain["config"]

    def test_the_store(self, plain, trained):
        store = omstore.open(trained)
        assert plain["store"] == store_identity(store)
        assert plain["store"]["num_nodes"] == store.graph.num_nodes == 40
        assert len(plain["store"]["digest"]) == 64

    def test_shapes(self, plain):
        assert plain["layers"][2]["head.weight"].shape == (12, 16)
        assert plain["agent"]["head.weight"].shape == (2, 16)


class TestStack:
    @pytest.mark.parametrize("level", [0, 1, 2])
    def test_team_probabilities_of_every_level(self, plain, trained, states, level):
        expected = softmax(logits(plain["layers"][level], states))
        found = trainer.load_stack(trained).action_probabilities(states, level)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)

    def test_the_highest_level_by_default(self, trained, states):
        stack = load_stack(trained / "om" / "iop_stack.pt")
        assert torch.equal(stack.action_probabilities(states), stack.action_probabilities(states, 2))

    def test_the_agent(self, plain, trained, states):
        expected = softmax(logits(plain["agent"], states))
        found = load_stack(trained).agent_probabilities(states)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)

    def test_illegal_actions_have_none(self, trained, states):
        legal = np.arange(40).reshape(20, 2) % 3 != 0
        found = load_stack(trained).agent_probabilities(states, legal=legal).numpy()
        assert (found[~legal] == 0).all()
        np.testing.assert_allclose(found.sum(axis=1), legal.any(axis=1), rtol=1e-6)

    def test_a_single_state_is_told_how(self, trained, states):
        with pytest.raises(UsageError) as error:
            load_stack(trained).agent_probabilities(states[0])
        assert "state[None]" in error.value.hint


class TestErrors:
    def test_nothing_trained_yet(self, stored):
        with pytest.raises(StoreNotFoundError) as error:
            load_stack(stored)
        assert f"omtrain {stored}" in error.value.hint

    @pytest.mark.parametrize("data", [b"", b"not a zip", b"PK\x03\x04" + bytes(100)])
    def test_damaged(self, tmp_path, data):
        (tmp_path / "iop_stack.pt").write_bytes(data)
        with pytest.raises(UsageError, match="can't be loaded"):
            load_stack(tmp_path / "iop_stack.pt")

    def test_something_else(self, tmp_path):
        torch.save({"a": 1}, tmp_path / "x.pt")
        with pytest.raises(UsageError, match="holds no opponent-model stack"):
            load_stack(tmp_path / "x.pt")

    def test_a_newer_one(self, tmp_path, plain):
        torch.save({**plain, "schema": 2}, tmp_path / "x.pt")
        with pytest.raises(UsageError, match="schema 2"):
            load_stack(tmp_path / "x.pt")
