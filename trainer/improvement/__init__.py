"""Soft rollout policy improvement in the graph world model."""

from __future__ import annotations

from trainer.improvement.action_values import ActionValues, Estimates, RolloutModel
from trainer.improvement.calls import run_improver, soft_rollout_policy_improvement
from trainer.improvement.config import SoftRolloutPIConfig
from trainer.improvement.improver import SoftRolloutImprover
from trainer.improvement.ranks import Ranks, SingleProcess
from trainer.improvement.roots import Roots, StatesSource, draw_roots

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
