"""The opponent model: one small network for each level of reasoning."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import skip_init

from omstore.errors import UsageError
from trainer.buffer import OMBuffer
from trainer.config import TrainConfig
from trainer.level0_config import Level0Config
from trainer.level0_training import Level0Report, Level0Trainer
from trainer.torch_threads import one_torch_thread

__all__ = ["ImaginedOpponent", "OpponentMLP", "masked_log_probabilities"]

_WEIGHTS_STREAM = 0x7E16175
"""Second half of the generator's key for weights: other draws of the same seed have others."""


class OpponentMLP(nn.Module):
    """A policy: two hidden ReLU layers and a linear head that gives a logit for each action.

    Parameters
    ----------
    state_width : int
        Components of a state, W.
    num_actions : int
    hidden : int
        Units in each hidden layer.
    seed : int or None
        Weights are drawn from a generator of this seed, uniformly within ``1 / sqrt(inputs)`` as in
        `torch.nn.Linear`; None takes torch's own generator.

    Attributes
    ----------
    first, second, head : nn.Linear
        W -> hidden -> hidden -> num_actions.
    """

    def __init__(
        self, state_width: int, num_actions: int, hidden: int = TrainConfig.hidden, *, seed: int | None = None
    ):
        super().__init__()
        if state_width < 1 or num_actions < 1 or hidden < 1 or (seed is not None and seed < 0):
            raise UsageError(
                f"a network of {state_width} inputs, {hidden} hidden units, {num_actions} actions, seed {seed}"
            )
        self.state_width = int(state_width)
        self.num_actions = int(num_actions)
        self.hidden = int(hidden)
        self.first = _undrawn_linear(self.state_width, self.hidden)
        self.second = _undrawn_linear(self.hidden, self.hidden)
        self.head = _undrawn_linear(self.hidden, self.num_actions)
        self._draw_weights(seed)

    def forward(self, states: Tensor) -> Tensor:
        """Return logits, (B, W) float32 -> (B, num_actions)."""
        hidden = functional.relu(self.first(states))
        hidden = functional.relu(self.second(hidden))
        logits: Tensor = self.head(hidden)
        return logits

    @torch.no_grad()
    def _draw_weights(self, seed: int | None) -> None:
        layers = (self.first, self.second, self.head)
        if seed is None:
            for layer in layers:
                layer.reset_parameters()
            return
        rng = np.random.Generator(np.random.Philox(key=np.array([seed, _WEIGHTS_STREAM], np.uint64)))
        for layer in layers:
            bound = 1 / np.sqrt(layer.in_features)
            for parameter in (layer.weight, layer.bias):
                drawn = rng.uniform(-bound, bound, tuple(parameter.shape)).astype(np.float32)
                parameter.copy_(torch.from_numpy(drawn))


def _undrawn_linear(inputs: int, outputs: int) -> nn.Linear:
    # A layer draws its weights when it is made, which would move torch's generator for whatever else uses it.
    layer = skip_init(nn.Linear, inputs, outputs)  # type: ignore[no-untyped-call]
    assert isinstance(layer, nn.Linear)
    return layer


def masked_log_probabilities(logits: Tensor, legal: Tensor | None = None) -> Tensor:
    """Return log-probabilities of a policy that takes legal actions only.

    Parameters
    ----------
    logits : (..., A) float
    legal : (..., A) bool, optional
        None: every action is legal.

    Returns
    -------
    (..., A) float
        -inf for illegal actions, and for all of a state without legal actions. Differentiable.
    """
    if legal is None:
        return functional.log_softmax(logits, dim=-1)
    masked = functional.log_softmax(logits.masked_fill(~legal, -torch.inf), dim=-1)
    return masked.masked_fill(~legal, -torch.inf)  # NaN so far where nothing is legal


class ImaginedOpponent(nn.Module):
    """A model of the team: level 0 imitates the data, each higher level is improved from the one below.

    Parameters
    ----------
    state_width : int
        Components of a state, W.
    num_actions : int
        Team actions.
    hidden : int
        Units in each hidden layer.
    seed : int or None
        Of level 0's first weights; None takes torch's own generator.

    Attributes
    ----------
    layers : nn.ModuleList of OpponentMLP
        One a level; level 0 is there from the start.
    """

    layers: nn.ModuleList

    def __init__(
        self, state_width: int, num_actions: int, hidden: int = TrainConfig.hidden, *, seed: int | None = None
    ):
        super().__init__()
        self.state_width = int(state_width)
        self.num_actions = int(num_actions)
        self.hidden = int(hidden)
        self.layers = nn.ModuleList([OpponentMLP(state_width, num_actions, hidden, seed=seed)])

    @property
    def num_levels(self) -> int:
        """Levels there are; the highest is ``num_levels - 1``."""
        return len(self.layers)

    def level(self, number: int) -> OpponentMLP:
        """Return the network of a level, 0 and on.

        Raises
        ------
        UsageError
            If there is no such level.
        """
        if not 0 <= number < len(self.layers):
            raise UsageError(f"there is no level {number}: the model has levels 0 to {len(self.layers) - 1}")
        layer = self.layers[number]
        assert isinstance(layer, OpponentMLP)
        return layer

    def add_level(self) -> OpponentMLP:
        """Add a level, warm-started: a deep copy of the one below; returns its network."""
        layer = copy.deepcopy(self.level(self.num_levels - 1))
        layer.zero_grad(set_to_none=True)
        self.layers.append(layer)
        return layer

    def forward(self, states: Tensor, level: int | None = None) -> Tensor:
        """Return a level's logits, (B, W) float32 -> (B, num_actions); None: the highest level."""
        logits: Tensor = self.level(self.num_levels - 1 if level is None else level)(states)
        return logits

    @torch.no_grad()
    def action_probabilities(
        self,
        states: Tensor | ArrayLike,
        level: int | None = None,
        *,
        legal: Tensor | ArrayLike | None = None,
        block: int = 4096,
    ) -> Tensor:
        """Return how likely each team action is in some states.

        Parameters
        ----------
        states : (B, W)
            Of any numeric type.
        level : int, optional
            None: the highest.
        legal : (B, num_actions) bool, optional
            Legal team actions (`GraphWorldModelAdapter.legal_team`); None: all.
        block : int
            States evaluated at a time: memory is ``4 * (W + 2 hidden + num_actions)`` bytes for each.

        Returns
        -------
        (B, num_actions) float32
            0 for illegal actions; rows sum to 1, but to 0 for a state without legal actions.

        Raises
        ------
        UsageError
            If there is no such level, or a shape is wrong.
        """
        layer = self.level(self.num_levels - 1 if level is None else level)
        given = torch.as_tensor(states)
        mask = None if legal is None else torch.as_tensor(legal)
        if given.ndim != 2 or given.shape[1] != self.state_width:
            raise UsageError(
                f"states must be (batch, {self.state_width}), not {tuple(given.shape)}",
                "Pass a single state as a batch of one: state[None].",
            )
        if mask is not None and (mask.shape != (len(given), self.num_actions) or mask.dtype != torch.bool):
            raise UsageError(
                f"a legal mask must be bool of ({len(given)}, {self.num_actions}), not {mask.dtype} of "
                f"{tuple(mask.shape)}"
            )
        device = layer.head.weight.device
        result = torch.empty((len(given), self.num_actions), dtype=torch.float32, device=device)
        with one_torch_thread():
            for first in range(0, len(given), block):
                part = slice(first, first + block)
                some = None if mask is None else mask[part].to(device)
                logits = layer(given[part].to(device, torch.float32))
                result[part] = masked_log_probabilities(logits, some).exp()
        return result

    def fit_level0(
        self,
        buffer: OMBuffer,
        config: Level0Config | None = None,
        *,
        on_update: Callable[[Level0Trainer], object] | None = None,
    ) -> Level0Report:
        """Train level 0 on a buffer by maximum likelihood: cross-entropy of the team actions.

        Equal weights, samples and config give equal weights, to the bit on one machine type. Use a
        `Level0Trainer` to stop and go on.

        Parameters
        ----------
        buffer : OMBuffer
        config : Level0Config, optional
        on_update : callable, optional
            Called with the trainer after every update.

        Returns
        -------
        Level0Report
        """
        trainer = Level0Trainer(self.level(0), buffer, config or Level0Config())
        while not trainer.finished:
            trainer.step()
            if on_update is not None:
                on_update(trainer)
        return trainer.report()
