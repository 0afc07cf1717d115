"""Soft rollout policy improvement in the graph world model."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.improvement.action_values import ActionValues, Estimates, RolloutModel
    from trainer.improvement.calls import run_improver, soft_rollout_policy_improvement
    from trainer.improvement.config import SoftRolloutPIConfig
    from trainer.improvement.improver import SoftRolloutImprover
    from trainer.improvement.ranks import Ranks, SingleProcess
    from trainer.improvement.roots import Roots, StatesSource, draw_roots

_WHERE = {
    "ActionValues": "action_values",
    "Estimates": "action_values",
    "Ranks": "ranks",
    "RolloutModel": "action_values",
    "Roots": "roots",
    "SingleProcess": "ranks",
    "SoftRolloutImprover": "improver",
    "SoftRolloutPIConfig": "config",
    "StatesSource": "roots",
    "draw_roots": "roots",
    "run_improver": "calls",
    "soft_rollout_policy_improvement": "calls",
}

__all__ = [
    "ActionValues",
    "Estimates",
    "Ranks",
    "RolloutModel",
    "Roots",
    "SingleProcess",
    "SoftRolloutImprover",
    "SoftRolloutPIConfig",
    "StatesSource",
    "draw_roots",
    "run_improver",
    "soft_rollout_policy_improvement",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the settings are wanted where nothing trains, such as in `omtrain --help`, and torch takes
    # a second or more.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"trainer.improvement.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
