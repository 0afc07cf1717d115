"""Waking dead units: what a policy is stays, what can't learn learns."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from trainer.buffer import OMBuffer
from trainer.improvement.dead_units import wake_dead_units
from trainer.models import OpponentMLP

WIDTH, HIDDEN, ACTIONS = 12, 10, 4
DEAD_FIRST, DEAD_SECOND = [1, 7], [0, 4, 9]


@pytest.fixture
def buffer() -> OMBuffer:
    made = OMBuffer(300, WIDTH, num_actions=ACTIONS)
    states = np.random.default_rng(0).integers(0, 2, (300, WIDTH))
    made.add(states, np.zeros(300, np.int64))
    return made


@pytest.fixture
def network() -> OpponentMLP:
    """All units alive on the buffer's states but those that are named."""
    made = OpponentMLP(WIDTH, ACTIONS, HIDDEN, seed=4)
    with torch.no_grad():
        made.first.bias += 2.0
        made.second.bias += 2.0
        made.first.bias[DEAD_FIRST] = -50.0
        made.second.bias[DEAD_SECOND] = -50.0
    return made


def activity(network: OpponentMLP, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        first = torch.relu(network.first(states))
        return first, torch.relu(network.second(first))


def test_logits_stay_and_units_wake(buffer: OMBuffer, network: OpponentMLP) -> None:
    states = buffer.states(np.arange(300)).float()
    before = copy.deepcopy(network)
    first, second = activity(network, states)
    assert torch.nonzero(~(first > 0).any(0))[:, 0].tolist() == DEAD_FIRST
    assert torch.nonzero(~(second > 0).any(0))[:, 0].tolist() == DEAD_SECOND
    assert wake_dead_units(network, buffer, seed=0, phase=2) == 5
    with torch.no_grad():
        assert torch.equal(network(states), before(states))
    first, second = activity(network, states)
    assert (first > 0).any(0).sum() >= HIDDEN - 1  # a drawn unit may be dead again
    assert (second > 0).any(0).sum() >= HIDDEN - 2
    assert not network.head.weight[:, DEAD_SECOND].any()
    alive = [unit for unit in range(HIDDEN) if unit not in DEAD_FIRST]
    assert torch.equal(network.first.weight[alive], before.first.weight[alive])
    assert torch.equal(network.first.bias[alive], before.first.bias[alive])
    bound = 1 / np.sqrt(WIDTH)
    drawn = network.first.weight[DEAD_FIRST].detach()
    assert (drawn.abs() <= bound).all()
    assert drawn.std() > bound / 4


def test_a_dead_layer_has_gradients_again(buffer: OMBuffer, network: OpponentMLP) -> None:
    with torch.no_grad():
        network.second.bias -= 1000.0
    states = buffer.states(np.arange(300)).float()

    def gradient() -> float:
        network.zero_grad()
        (network(states)[:, 0] * states[:, 0]).sum().backward()
        assert network.head.weight.grad is not None
        return float(network.head.weight.grad.abs().sum())

    assert gradient() == 0
    wake_dead_units(network, buffer, seed=0, phase=2)
    assert gradient() > 0


def test_drawn_by_seed_and_phase(buffer: OMBuffer, network: OpponentMLP) -> None:
    woken = []
    for seed, phase in ((0, 2), (0, 2), (1, 2), (0, 4)):
        each = copy.deepcopy(network)
        wake_dead_units(each, buffer, seed=seed, phase=phase)
        woken.append(each.first.weight[DEAD_FIRST].detach())
    assert torch.equal(woken[0], woken[1])
    assert not torch.equal(woken[0], woken[2])
    assert not torch.equal(woken[0], woken[3])


def test_nothing_dead_changes_nothing(buffer: OMBuffer, network: OpponentMLP) -> None:
    with torch.no_grad():
        network.first.bias.fill_(5.0)
        network.second.bias.fill_(50.0)
    before = copy.deepcopy(network.state_dict())
    assert wake_dead_units(network, buffer, seed=0, phase=2) == 0
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
