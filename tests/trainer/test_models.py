"""The networks, against NumPy; levels, warm starts and masks."""

from __future__ import annotations

import numpy as np
import pytest

from omstore.errors import UsageError

torch = pytest.importorskip("torch")

from trainer.config import TrainConfig  # noqa: E402
from trainer.models import ImaginedOpponent, OpponentMLP, masked_log_probabilities  # noqa: E402


def by_numpy(model: OpponentMLP, states: np.ndarray) -> np.ndarray:
    hidden = states.astype(np.float64)
    for layer in (model.first, model.second):
        hidden = np.maximum(hidden @ layer.weight.detach().numpy().T + layer.bias.detach().numpy(), 0)
    return hidden @ model.head.weight.detach().numpy().T + model.head.bias.detach().numpy()


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def bits(count: int, width: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, (count, width), np.uint8)


def test_two_hidden_relu_layers_and_a_linear_head() -> None:
    model = OpponentMLP(13, 5, 32, seed=3)
    states = bits(20, 13)
    logits = model(torch.from_numpy(states).float())
    assert np.allclose(logits.detach().numpy(), by_numpy(model, states), atol=1e-5)
    assert sum(p.numel() for p in model.parameters()) == 13 * 32 + 32 + 32 * 32 + 32 + 32 * 5 + 5
    assert OpponentMLP(2, 3).hidden == TrainConfig.hidden


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    one, same, other = (OpponentMLP(13, 5, 32, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before), "torch's own generator isn't moved"
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.first.weight, other.first.weight)
    assert float(one.second.weight.detach().abs().max()) <= 32**-0.5
    assert float(one.second.weight.detach().std()) == pytest.approx(32**-0.5 / 3**0.5, rel=0.05)
    free, again = OpponentMLP(13, 5, 32), OpponentMLP(13, 5, 32)
    assert not torch.equal(free.first.weight, again.first.weight)


def test_a_level_starts_as_a_copy_of_the_one_below() -> None:
    model = ImaginedOpponent(13, 5, 16, seed=0)
    assert model.num_levels == 1
    with torch.no_grad():
        model.level(0).head.bias += 1
    added = model.add_level()
    assert model.num_levels == len(model.layers) == 2
    assert added is model.level(1) is model.layers[1]
    states = torch.from_numpy(bits(4, 13)).float()
    assert torch.equal(model(states, 1), model(states, 0))
    before = model(states, 0)
    with torch.no_grad():
        for parameter in added.parameters():
            parameter += 0.5
    assert torch.equal(model(states, 0), before), "a copy, not the same weights"
    third = model.add_level()
    assert torch.equal(third.head.bias, added.head.bias), "from the level below, not from level 0"
    assert torch.equal(model(states), model(states, 2)), "the highest by default"
    for level in (3, -1):
        with pytest.raises(UsageError, match="levels 0 to 2"):
            model(states, level)


def test_action_probabilities() -> None:
    model = ImaginedOpponent(13, 5, 16, seed=0)
    states = bits(23, 13)
    expected = softmax(by_numpy(model.level(0), states))
    for given in (states, states.astype(bool), torch.from_numpy(states), states.astype(np.float64)):
        found = model.action_probabilities(given)
        assert found.dtype == torch.float32
        assert np.allclose(found.numpy(), expected, atol=1e-6)
    assert np.allclose(model.action_probabilities(states, 0, block=4).numpy(), expected, atol=1e-6)
    assert model.action_probabilities(states[:0]).shape == (0, 5)
    with pytest.raises(UsageError, match="batch of one"):
        model.action_probabilities(states[0])


def test_illegal_actions_have_probability_zero() -> None:
    model = ImaginedOpponent(13, 5, 16, seed=0)
    states = bits(40, 13)
    legal = np.random.default_rng(2).random((40, 5)) < 0.6
    legal[:, 2] = True
    legal[7] = False
    weights = np.exp(by_numpy(model.level(0), states)) * legal
    expected = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    found = model.action_probabilities(states, legal=legal, block=16).numpy()
    assert (found[~legal] == 0).all()
    assert np.allclose(found, expected, atol=1e-6)
    assert (found[7] == 0).all()
    for wrong in (legal[:39], legal.astype(np.uint8)):
        with pytest.raises(UsageError, match="legal mask"):
            model.action_probabilities(states, legal=wrong)


def test_masked_log_probabilities_can_be_differentiated() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], requires_grad=True)
    legal = torch.tensor([[True, False, True], [False, False, False]])
    log_p = masked_log_probabilities(logits, legal)
    assert log_p[0].tolist() == pytest.approx([-np.log1p(np.e**2), -np.inf, -np.log1p(np.e**-2)])
    assert torch.isneginf(log_p[1]).all()
    log_p[legal].sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert float(logits.grad[0, 1]) == 0
    assert torch.equal(masked_log_probabilities(logits), torch.log_softmax(logits, 1))
