"""The artifact of training, ``om/iop_stack.pt``: the opponent model's levels and the focal agent's policy."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor

import omstore
from omstore.errors import StoreNotFoundError, UsageError
from trainer.checkpoint import to_bytes
from trainer.files import write_atomically
from trainer.models import ImaginedOpponent, OpponentMLP, masked_log_probabilities
from trainer.torch_threads import one_torch_thread

__all__ = ["ARTIFACT", "SCHEMA", "Stack", "artifact_path", "load_stack", "save_stack", "store_identity"]

ARTIFACT = "iop_stack.pt"
FORMAT = "opponent-model stack"
SCHEMA = 1


@dataclass(frozen=True)
class Stack:
    """A trained opponent model and the focal agent's policy, on the CPU unless moved.

    Attributes
    ----------
    opponent : ImaginedOpponent
        The team: `opponent.layers` has a network a level.
    agent : OpponentMLP
        The focal agent's policy.
    document : dict
        What the file holds beside them: ``agents``, ``num_actions``, ``focal_agent``, ``state_width``, ``config``,
        ``store``, ``level0``, ``training``.
    """

    opponent: ImaginedOpponent
    agent: OpponentMLP
    document: dict[str, Any]

    def action_probabilities(
        self,
        states: Tensor | ArrayLike,
        level: int | None = None,
        *,
        legal: Tensor | ArrayLike | None = None,
    ) -> Tensor:
        """Return how likely each team action is; see `ImaginedOpponent.action_probabilities`.

        Parameters
        ----------
        states : (B, W)
        level : int, optional
            None: the highest.
        legal : (B, team actions) bool, optional

        Returns
        -------
        (B, team actions) float32
            Team actions are mixed-radix integers of the members' actions, in agent order.
        """
        return self.opponent.action_probabilities(states, level, legal=legal)

    @torch.no_grad()
    def agent_probabilities(
        self, states: Tensor | ArrayLike, *, legal: Tensor | ArrayLike | None = None
    ) -> Tensor:
        """Return how likely each action of the focal agent is, (B, W) -> (B, actions) float32.

        Raises
        ------
        UsageError
            If the states have another shape.
        """
        given = torch.as_tensor(states)
        if given.ndim != 2 or given.shape[1] != self.agent.state_width:
            raise UsageError(
                f"states must be (batch, {self.agent.state_width}), not {tuple(given.shape)}",
                "Pass a single state as a batch of one: state[None].",
            )
        device = self.agent.head.weight.device
        mask = None if legal is None else torch.as_tensor(legal).to(device)
        with one_torch_thread():
            return masked_log_probabilities(self.agent(given.to(device, torch.float32)), mask).exp()


def artifact_path(path: str | Path) -> Path:
    """Return the artifact's file, given that or the export's folder.

    Raises
    ------
    StoreNotFoundError
        If there is none; says how to make it.
    """
    given = Path(path)
    file = given / "om" / ARTIFACT if given.is_dir() else given
    if not file.is_file():
        hint = (
            f"Train first: omtrain {given}"
            if given.is_dir()
            else "Give an export's folder or its om/iop_stack.pt."
        )
        raise StoreNotFoundError(f"{file} isn't there", hint)
    return file


def load_stack(path: str | Path) -> Stack:
    """Load what training made.

    Parameters
    ----------
    path : path
        The export's folder, or the file.

    Returns
    -------
    Stack

    Raises
    ------
    StoreNotFoundError
        If there is none.
    UsageError
        If the file is damaged, something else, or of a newer schema.
    """
    file = artifact_path(path)
    try:
        document = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that isn't its own
        raise UsageError(
            f"{file} can't be loaded: {' '.join(str(error).split())[:200]}",
            "It is damaged or another file; `omtrain EXPORT` writes it anew from the last checkpoint.",
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{file} holds no {FORMAT}", "`omtrain EXPORT` makes one as om/iop_stack.pt.")
    if document["schema"] > SCHEMA:
        raise UsageError(
            f"{file} has schema {document['schema']}; this version knows up to {SCHEMA}",
            "Use a newer version.",
        )
    width, hidden = document["state_width"], document["config"]["hidden"]
    team = document["num_team_actions"]
    opponent = ImaginedOpponent(width, team, hidden, seed=0)
    while opponent.num_levels < len(document["layers"]):
        opponent.add_level()
    for level, weights in enumerate(document["layers"]):
        opponent.level(level).load_state_dict(weights)
    agent = OpponentMLP(width, document["num_actions"][document["focal_agent"]], hidden, seed=0)
    agent.load_state_dict(document["agent"])
    rest = {name: value for name, value in document.items() if name not in ("layers", "agent")}
    return Stack(opponent.eval(), agent.eval(), rest)


def save_stack(
    path: Path,
    opponent: ImaginedOpponent,
    agent: OpponentMLP,
    *,
    store: omstore.Store,
    focal_agent: int,
    config: dict[str, Any],
    level0: dict[str, Any],
    training: dict[str, Any],
) -> None:
    """Write the artifact, whole or not at all; equal trainings make equal bytes.

    Parameters
    ----------
    path : Path
    opponent, agent
    store : Store
        Trained on.
    focal_agent : int
    config : dict
        `TrainConfig.deciding`.
    level0, training : dict
        What training came to: numbers by name.
    """
    described = {
        "format": FORMAT,
        "schema": SCHEMA,
        "agents": store.manifest.agents,
        "num_actions": store.manifest.num_actions,
        "focal_agent": focal_agent,
        "team": [name for i, name in enumerate(store.manifest.agents) if i != focal_agent],
        "num_team_actions": opponent.num_actions,
        "state_width": opponent.state_width,
        "levels": opponent.num_levels,
        "config": config,
        "store": store_identity(store),
        "level0": level0,
        "training": training,
    }
    document = {
        # Pickles tell equal strings from the same one, which depends on whether the run was resumed: all are made anew.
        **json.loads(json.dumps(described, allow_nan=False)),
        "layers": [_on_cpu(opponent.level(level)) for level in range(opponent.num_levels)],
        "agent": _on_cpu(agent),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_bytes(document))


def store_identity(store: omstore.Store) -> dict[str, Any]:
    """Return what says which store it is: version, digest of its manifest (which has those of all files), nodes."""
    manifest = (store.path / "manifest.json").read_bytes()
    return {
        "version": store.version,
        "digest": hashlib.sha256(manifest).hexdigest(),
        "num_nodes": store.manifest.counts.num_nodes,
        "num_transitions": store.manifest.counts.num_transitions,
    }


def _on_cpu(model: OpponentMLP) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
