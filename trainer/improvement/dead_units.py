"""Units of a network that are 0 everywhere: they learn nothing, so a warm start wakes them."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from omstore import stream_key, uniform
from trainer.improvement.roots import StatesSource
from trainer.models import OpponentMLP
from trainer.torch_threads import one_torch_thread

__all__ = ["wake_dead_units"]

# Words of keys, after those of trainer.improvement.roots.
_STATES, _WEIGHTS = 4, 5

_LOOKED_AT = 4096
"""States drawn to tell which units are dead: one that is above 0 in a thousandth of all is missed by 1.7%."""


@torch.no_grad()
def wake_dead_units(network: OpponentMLP, source: StatesSource, *, seed: int, phase: int) -> int:
    """Give hidden units that are 0 in all of some drawn states new weights; the policy stays what it was.

    A ReLU that is never above 0 has no gradient, ever. Training to a policy that is the same everywhere, as level 0
    does where the replay is uniformly random play, can leave a whole layer so, and a copy of it can't learn at all.
    A dead unit's incoming weights are drawn as a fresh network's are, its outgoing ones become 0 (Sokar et al., "The
    dormant neuron phenomenon in deep reinforcement learning", 2023, section 4, with units of score 0): logits stay
    as they were in the states where it was 0, and the outgoing weights have gradients.

    Parameters
    ----------
    network : OpponentMLP
        Changed in place.
    source : StatesSource
        4,096 of its states are drawn, by the counter of (seed, phase); memory: ``16,384 * (W + 2 hidden)`` bytes.
    seed, phase : int
        Words of the keys.

    Returns
    -------
    int
        Units that were dead.
    """
    if not len(source):
        return 0
    drawn = uniform(stream_key(seed, _STATES, phase), np.arange(_LOOKED_AT))
    states = source.states((drawn * len(source)).astype(np.int64)).to(network.head.weight.device)
    with one_torch_thread():
        first = torch.relu(network.first(states.float()))
        second = torch.relu(network.second(first))
    layers = ((network.first, network.second, first), (network.second, network.head, second))
    woken = 0
    for number, (layer, following, activity) in enumerate(layers):
        dead = torch.nonzero((activity <= 0).all(dim=0))[:, 0]
        _draw(layer, dead, stream_key(seed, _WEIGHTS, phase, number))
        following.weight[:, dead] = 0.0
        woken += len(dead)
    return woken


def _draw(layer: nn.Linear, units: Tensor, key: NDArray[np.uint64]) -> None:
    """Draw a layer's weights into some units: those of unit u are numbers u * (inputs + 1) and on of the stream."""
    inputs = layer.in_features
    position = units.cpu().numpy()[:, None] * (inputs + 1) + np.arange(inputs + 1)
    bound = 1 / np.sqrt(inputs)
    drawn = torch.from_numpy(((2 * uniform(key, position) - 1) * bound).astype(np.float32))
    layer.weight[units] = drawn[:, :-1].to(layer.weight.device)
    layer.bias[units] = drawn[:, -1].to(layer.bias.device)
