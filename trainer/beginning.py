"""What a run begins with: the data, the identity of their store, the networks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import omstore
from omstore.progress import Progress
from trainer.artifact import store_identity
from trainer.config import TrainConfig
from trainer.models import ImaginedOpponent, OpponentMLP
from trainer.prepare import OMTrainingInputs, prepare_om_training_inputs

__all__ = ["Beginning", "begin"]

_AGENT_WEIGHTS = 0xA6E27
"""Word of the key from which the agent's first weights are seeded: they aren't those of the opponent model."""


@dataclass(frozen=True)
class Beginning:
    """What a run begins with, whether it is new or goes on.

    Attributes
    ----------
    inputs : OMTrainingInputs
    store : dict
        `store_identity` of the store.
    opponent : ImaginedOpponent
        With level 0 alone, untrained.
    agent : OpponentMLP
        The focal agent's network, untrained.
    """

    inputs: OMTrainingInputs
    store: dict[str, Any]
    opponent: ImaginedOpponent
    agent: OpponentMLP


def begin(
    export: Path, config: TrainConfig, device: torch.device, progress: Progress, version: str | None
) -> Beginning:
    """Load the data and make the networks.

    Parameters
    ----------
    export : Path
    config : TrainConfig
    device : torch.device
        Where the networks go.
    progress : Progress
        Shows how far loading is, and notes about the data.
    version : str or None
        Of the store; None: the live one.

    Raises
    ------
    UsageError, StoreNotFoundError, MemoryBudgetError
        See `prepare_om_training_inputs`.
    """
    with progress.task("loading the replay", config.capacity, "transitions") as task:
        inputs = prepare_om_training_inputs(
            export,
            focal_agent=_agent(config.focal_agent),
            capacity=config.capacity,
            strict=config.strict,
            representation=config.representation,
            legal_cache=config.legal_cache,
            max_ram=config.max_ram,
            version=version,
            allow_model_import=config.allow_model_import,
            tick=task.update,
        )
    for note in inputs.notes:
        progress.message(f"note: {note}")
    dyn = inputs.dyn
    opponent = ImaginedOpponent(dyn.state_width, dyn.actions.num_team, config.hidden, seed=config.seed)
    seed = int(omstore.stream_key(config.seed, _AGENT_WEIGHTS))
    agent = OpponentMLP(dyn.state_width, dyn.actions.num_focal, config.hidden, seed=seed)
    return Beginning(inputs, store_identity(inputs.store), opponent.to(device), agent.to(device))


def _agent(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text
