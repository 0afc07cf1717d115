"""Maximum likelihood on real data, an update at a time, so that it can stop anywhere and go on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from omstore.errors import UsageError
from trainer.adam import Adam
from trainer.buffer import OMBuffer
from trainer.level0_config import Level0Config
from trainer.torch_threads import one_torch_thread

__all__ = ["Level0Config", "Level0Report", "Level0Trainer"]

_ORDER_STREAM = 0x0D0E12
"""Second half of the generator's key for orders of samples: other draws of the same seed have others."""

_HELD_OUT, _EPOCH = 0, 1

_BLOCK = 8192
"""Samples evaluated at a time: 5 MB of floats for 147 components. Fixed, since it decides how sums round."""


@dataclass(frozen=True)
class Level0Report:
    """What training level 0 came to.

    Attributes
    ----------
    updates : int
        Optimizer updates.
    samples, held_out_samples : int
        Samples trained on, and held out.
    loss : float
        Mean cross-entropy over the last epoch, in nats, each batch before its update.
    held_out_loss : float or None
        Cross-entropy on the samples held out, in nats; None if there are none.
    """

    updates: int
    samples: int
    held_out_samples: int
    loss: float
    held_out_loss: float | None


class Level0Trainer:
    """Trains a network to imitate the team actions in a buffer, by cross-entropy.

    Which samples an update takes depends on the seed, the epoch and its place in it alone: so training is the same
    after a resume, to the bit. One torch thread does the sums over a batch. Memory: 8 bytes a sample (its place in
    two orders), and what a batch and the network take.

    Parameters
    ----------
    model : nn.Module
        (B, W) float32 -> (B, actions) logits; trained in place, on the device where it is.
    buffer : OMBuffer
    config : Level0Config

    Attributes
    ----------
    updates, num_updates : int
        Done, and altogether: ``epochs * ceil(samples / batch)``.
    held_out : (k,) uint32
        Indices of the samples held out, ascending.
    """

    def __init__(self, model: nn.Module, buffer: OMBuffer, config: Level0Config) -> None:
        if not 1 <= len(buffer) <= 1 << 32:
            raise UsageError(f"level 0 learns from 1 to 2^32 samples, not {len(buffer):,}")
        self.model = model
        self.buffer = buffer
        self.config = config
        order = self._shuffled(np.arange(len(buffer), dtype=np.uint32), _HELD_OUT, 0)
        kept_back = min(round(len(buffer) * config.held_out), len(buffer) - 1)
        self.held_out: NDArray[np.uint32] = np.sort(order[:kept_back])
        self._training: NDArray[np.uint32] = np.sort(order[kept_back:])
        self._batches = -(-len(self._training) // config.batch)
        self.num_updates = config.epochs * self._batches
        self.updates = 0
        self._loss_sum = 0.0
        self._loss_samples = 0
        self._order: NDArray[np.uint32] = np.empty(0, np.uint32)
        self._order_of = -1
        self.optimizer = Adam(model.parameters(), lr=config.lr)

    @property
    def samples(self) -> int:
        """Number of samples trained on."""
        return len(self._training)

    @property
    def finished(self) -> bool:
        """Whether all updates are done."""
        return self.updates >= self.num_updates

    @property
    def epoch(self) -> int:
        """The epoch of the last update, from 0."""
        return max(0, self.updates - 1) // self._batches

    @property
    def loss(self) -> float:
        """Mean cross-entropy over the epoch of the last update so far, in nats; NaN before the first update."""
        return self._loss_sum / self._loss_samples if self._loss_samples else float("nan")

    def batch_indices(self, update: int) -> NDArray[np.uint32]:
        """Return which samples an update takes, (b,) uint32."""
        if not 0 <= update < self.num_updates:
            raise UsageError(f"update {update} isn't within 0 to {self.num_updates - 1}")
        epoch, place = divmod(update, self._batches)
        if self._order_of != epoch:
            self._order = self._shuffled(self._training, _EPOCH, epoch)
            self._order_of = epoch
        return self._order[place * self.config.batch : (place + 1) * self.config.batch]

    def step(self) -> float:
        """Do one update; returns the batch's cross-entropy before it, in nats.

        Raises
        ------
        UsageError
            If all updates are done.
        """
        indices = self.batch_indices(self.updates)
        if self.updates % self._batches == 0:
            self._loss_sum, self._loss_samples = 0.0, 0
        device = next(self.model.parameters()).device
        batch = self.buffer.sample(indices)
        self.optimizer.lr = self.config.lr * (1 - self.updates / self.num_updates)
        with one_torch_thread():
            loss = functional.cross_entropy(self.model(batch.state.to(device)), batch.action.to(device))
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        value = float(loss.detach())
        self._loss_sum += value * len(indices)
        self._loss_samples += len(indices)
        self.updates += 1
        return value

    @torch.no_grad()
    def evaluate(self, indices: NDArray[Any] | None = None) -> float:
        """Return the mean cross-entropy on some samples, in nats: by default those held out.

        Summed in float64, a fixed number of samples at a time. NaN without samples.
        """
        chosen = self.held_out if indices is None else np.asarray(indices)
        device = next(self.model.parameters()).device
        total = 0.0
        with one_torch_thread():
            for first in range(0, len(chosen), _BLOCK):
                batch = self.buffer.sample(chosen[first : first + _BLOCK])
                logits = self.model(batch.state.to(device)).double()
                total += float(functional.cross_entropy(logits, batch.action.to(device), reduction="sum"))
        return total / len(chosen) if len(chosen) else float("nan")

    def report(self) -> Level0Report:
        """Return where training stands; evaluates the samples held out."""
        return Level0Report(
            self.updates,
            self.samples,
            len(self.held_out),
            self.loss,
            self.evaluate() if len(self.held_out) else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that going on later needs: tensors, numbers and words in plain dicts.

        Tensors are those of the model and the optimizer, not copies.
        """
        return {
            "config": asdict(self.config),
            "buffered": len(self.buffer),
            "updates": self.updates,
            "loss_sum": self._loss_sum,
            "loss_samples": self._loss_samples,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken.

        Raises
        ------
        UsageError
            If that was with another config, or another number of samples.
        """
        for name, own in (("config", asdict(self.config)), ("buffered", len(self.buffer))):
            if state[name] != own:
                raise UsageError(
                    f"level 0 can't go on: its {name} was {state[name]}, and is {own} now",
                    "Go on with the same settings and store, or start over.",
                )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = int(state["updates"])
        self._loss_sum = float(state["loss_sum"])
        self._loss_samples = int(state["loss_samples"])

    def _shuffled(self, values: NDArray[np.uint32], purpose: int, number: int) -> NDArray[np.uint32]:
        # Counter-based: an order is looked up by its purpose and number, not walked to.
        key = np.array([self.config.seed, _ORDER_STREAM], np.uint64)
        counter = np.array([0, 0, purpose, number], np.uint64)
        shuffled = values.copy()
        np.random.Generator(np.random.Philox(key=key, counter=counter)).shuffle(shuffled)
        return shuffled
