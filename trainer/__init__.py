"""Opponent-model training that streams from a store.

``trainer.train("exports/pursuit/3")`` trains, ``trainer.load_stack("exports/pursuit/3")`` loads what came of it,
``trainer.evaluate("exports/pursuit/3")`` says exactly how good that is. See ``docs/training.md`` and ``docs/evaluation.md``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.adapter import GraphWorldModelAdapter
    from trainer.artifact import Stack, load_stack
    from trainer.buffer import OMBuffer
    from trainer.config import TrainConfig
    from trainer.evaluating import EvaluateOptions, EvaluateReport, evaluate
    from trainer.exact import ExactModel, open_values
    from trainer.improvement import SoftRolloutPIConfig, soft_rollout_policy_improvement
    from trainer.level0 import extract_level0_dataset
    from trainer.models import ImaginedOpponent, OpponentMLP
    from trainer.prepare import OMTrainingInputs, prepare_om_training_inputs
    from trainer.run import TrainReport, train
    from trainer.staircase import Staircase, StaircaseConfig

_WHERE = {
    "EvaluateOptions": "evaluating",
    "EvaluateReport": "evaluating",
    "ExactModel": "exact",
    "GraphWorldModelAdapter": "adapter",
    "ImaginedOpponent": "models",
    "OMBuffer": "buffer",
    "OMTrainingInputs": "prepare",
    "OpponentMLP": "models",
    "SoftRolloutPIConfig": "improvement",
    "Stack": "artifact",
    "Staircase": "staircase",
    "StaircaseConfig": "staircase",
    "TrainConfig": "config",
    "TrainReport": "run",
    "evaluate": "evaluating",
    "extract_level0_dataset": "level0",
    "load_stack": "artifact",
    "open_values": "exact",
    "prepare_om_training_inputs": "prepare",
    "soft_rollout_policy_improvement": "improvement",
    "train": "run",
}

__all__ = [
    "EvaluateOptions",
    "EvaluateReport",
    "ExactModel",
    "GraphWorldModelAdapter",
    "ImaginedOpponent",
    "OMBuffer",
    "OMTrainingInputs",
    "OpponentMLP",
    "SoftRolloutPIConfig",
    "Stack",
    "Staircase",
    "StaircaseConfig",
    "TrainConfig",
    "TrainReport",
    "evaluate",
    "extract_level0_dataset",
    "load_stack",
    "open_values",
    "prepare_om_training_inputs",
    "soft_rollout_policy_improvement",
    "train",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use: torch takes a second or more, which `omtrain --help` shouldn't wait for.
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"trainer.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
