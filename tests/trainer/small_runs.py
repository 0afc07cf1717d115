"""Runs of a few dozen updates on a random graph, and ways to break them off."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig
from trainer.run import TrainReport, train
from trainer.stopping import Stop

SETTINGS = {
    "hidden": 16, "level0_epochs": 2, "level0_batch": 100, "level0_held_out": 0.1, "agent_root_state_samples": 70,
    "team_root_state_samples": 50, "batch": 16, "n_rollouts": 2, "horizon": 3, "temperature": 0.1, "seed": 3,
}  # fmt: skip
"""500 samples: 450 to train on in 2 x 5 updates; phases of 5 and 4 updates."""

UPDATES = 10 + 5 + 4 + 5 + 4


def run(export: Path, *, fresh: bool = False, stop: Stop | None = None, **changes: Any) -> TrainReport:
    return train(export, small(**changes), fresh=fresh, stop=stop)


def small(**changes: Any) -> TrainConfig:
    return TrainConfig(**{**SETTINGS, "strict": False, **changes})


def results(export: Path) -> dict[str, bytes]:
    """All that must be the same however a run was broken off."""
    return {name: (export / "om" / name).read_bytes() for name in ("iop_stack.pt", "metrics.jsonl")}


class StopAfter(Stop):
    """Asks to stop when it was looked at often enough: after that many updates."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.left = updates

    @property
    def number(self) -> int | None:
        self.left -= 1
        return signal.SIGTERM if self.left <= 0 else None

    @number.setter
    def number(self, value: int | None) -> None:
        pass


class Crash(BaseException):
    """As a kill would: nothing is caught, nothing is written any more."""


class CrashAfter(StopAfter):
    """Crashes after some updates, before what they need a checkpoint for is written."""

    @property
    def number(self) -> int | None:
        self.left -= 1
        if self.left <= 0:
            raise Crash
        return None

    @number.setter
    def number(self, value: int | None) -> None:
        pass
