"""What a checkpoint holds of a run, and whether a run may go on from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from omstore.errors import UsageError
from trainer.config import TrainConfig
from trainer.progress import Metrics

__all__ = ["SCHEMA", "Position", "check_settings", "check_store", "saved_run"]

SCHEMA = 1
"""Of the checkpoints: which keys they have, and what those mean."""


@dataclass
class Position:
    """How far a run is, and what it came to so far: what a checkpoint holds beside weights.

    Attributes
    ----------
    stage : {"level0", "staircase"}
        What is being trained.
    level0 : dict
        What level 0 came to, see `Level0Report`; empty before.
    phases : list of dict
        The metrics at the end of each phase that ended.
    """

    stage: Literal["level0", "staircase"] = "level0"
    level0: dict[str, Any] = field(default_factory=dict)
    phases: list[Metrics] = field(default_factory=list)

    @classmethod
    def of(cls, saved: dict[str, Any]) -> Position:
        """Return the position in a checkpoint."""
        return cls(saved["stage"], saved["level0"], saved["phases"])


def saved_run(
    config: TrainConfig,
    store: dict[str, Any],
    device: str,
    position: Position,
    *,
    metrics_bytes: int,
    training: dict[str, Any],
) -> dict[str, Any]:
    """Return what a checkpoint holds.

    Parameters
    ----------
    config : TrainConfig
    store : dict
        `store_identity` of the store.
    device : str
        Kind of the device that the networks are on.
    position : Position
    metrics_bytes : int
        Bytes of ``om/metrics.jsonl`` so far, what is to be kept of it when the run goes on.
    training : dict
        The state of the stage: weights, optimizer, counters.

    Returns
    -------
    dict
        Of plain numbers, words, lists, dicts and tensors.
    """
    return {
        "schema": SCHEMA,
        "config": config.to_dict(),
        "store": store,
        "device": device,
        "metrics_bytes": metrics_bytes,
        **asdict(position),
        "training": training,
    }


def check_settings(saved: dict[str, Any], config: TrainConfig, checkpoints: Path) -> None:
    """Check that a run with these settings may go on from a checkpoint.

    Raises
    ------
    UsageError
        If the checkpoint is of another schema, or was written with other settings.
    """
    if saved["schema"] != SCHEMA:
        raise UsageError(
            f"the checkpoints in {checkpoints} are of schema {saved['schema']}, not {SCHEMA}",
            "Go on with the version that wrote them, or start over with --fresh.",
        )
    differences = config.differences(saved["config"])
    if differences:
        raise UsageError(
            f"{checkpoints.parent} holds a run with other settings: {'; '.join(differences)}",
            "Give the same settings to go on, or start over with --fresh.",
        )


def check_store(saved: dict[str, Any], store: dict[str, Any], path: Path, om: Path) -> None:
    """Check that a checkpoint is of a run on this store.

    Parameters
    ----------
    saved : dict
        The checkpoint.
    store : dict
        `store_identity` of the store.
    path, om : Path
        Of the store's version, and of the run's files; for the message.

    Raises
    ------
    UsageError
        If it was another store.
    """
    if saved["store"]["digest"] != store["digest"]:
        raise UsageError(
            f"{om} holds a run on another store: its {saved['store']['version']} had the digest "
            f"{saved['store']['digest'][:16]}, {path} has {store['digest'][:16]}",
            "Put the earlier store back, or start over with --fresh.",
        )
