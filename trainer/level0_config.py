"""Settings of training level 0."""

from __future__ import annotations

from dataclasses import dataclass

from omstore.errors import UsageError

__all__ = ["Level0Config"]


@dataclass(frozen=True)
class Level0Config:
    """How level 0 is trained.

    Attributes
    ----------
    epochs : int
        Times that every training sample is used.
    batch : int
        Samples of an update; the last update of an epoch takes what is left.
    lr : float
        Step size of Adam in the first update. It falls linearly to 0 after the last, which averages out the noise
        of the mini-batches.
    held_out : float
        Fraction of the samples, in [0, 1), that is never trained on, for `Level0Trainer.evaluate`.
    seed : int
        Decides which samples are held out, and their order in every epoch.
    """

    # measured on a million transitions of pursuit/3: more epochs learn single samples by heart, a smaller lr leaves
    # the model short of what it can tell after as many
    epochs: int = 3
    batch: int = 1024
    lr: float = 1e-2
    held_out: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise UsageError(f"{self.epochs} epochs of batches of {self.batch}: both are at least 1")
        if not self.lr > 0 or not 0 <= self.held_out < 1 or self.seed < 0:
            raise UsageError(
                f"lr {self.lr} (above 0), held_out {self.held_out} (in [0, 1)) or seed {self.seed} (at least 0)"
            )
