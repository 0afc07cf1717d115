"""Policies by name: uniform, a level, the focal agent, a file of probabilities, another training's artifact."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omstore.errors import MemoryBudgetError, UsageError
from omstore.memory import DEFAULT_BUDGET, format_bytes
from trainer.artifact import Stack, load_stack
from trainer.checkpoint import from_bytes
from trainer.exact.model import ExactModel
from trainer.exact.problems import Policy
from trainer.models import ImaginedOpponent, OpponentMLP
from trainer.tables import PolicyTabulator, Side

__all__ = ["NamedPolicies", "NamedPolicy", "Networks"]

_SHARE = 2
"""Policies may take half of the memory budget; values and the sweep have the rest."""

_LEVEL = re.compile(r"(?:level|L)(\d+)", re.IGNORECASE)

_KNOWN = (
    "Policies are: uniform; agent; level0, level1, ...; FILE.npy; and FILE.pt:agent or FILE.pt:level1, where the file "
    "is an om/iop_stack.pt or a checkpoint."
)


@dataclass(frozen=True)
class NamedPolicy:
    """A policy, and what to call it."""

    name: str
    probabilities: Policy


@dataclass(frozen=True)
class Networks:
    """The networks of a training: every level of the team, and the focal agent's."""

    levels: tuple[OpponentMLP, ...]
    agent: OpponentMLP

    @classmethod
    def of(cls, opponent: ImaginedOpponent, agent: OpponentMLP) -> Networks:
        """Take those of an opponent model and an agent; shares their weights."""
        return cls(tuple(opponent.level(level) for level in range(opponent.num_levels)), agent)

    @classmethod
    def of_stack(cls, stack: Stack) -> Networks:
        """Take those of an artifact."""
        return cls.of(stack.opponent, stack.agent)

    @classmethod
    def load(cls, path: Path) -> Networks:
        """Load an artifact, an export's, or a checkpoint of the staircase.

        Raises
        ------
        StoreNotFoundError
            If there is none.
        UsageError
            If the file holds something else.
        """
        if path.is_dir() or not path.name.startswith("checkpoint-"):
            return cls.of_stack(load_stack(path))
        try:
            document = from_bytes(path.read_bytes())
            training = document["training"]
            if document["stage"] != "staircase":
                raise UsageError(
                    f"{path} is of level 0's training: there is no agent yet",
                    "Take a checkpoint of the staircase, or the artifact.",
                )
            return _of_checkpoint(training, int(document["config"]["hidden"]))
        except UsageError:
            raise
        except Exception as error:  # torch raises many kinds for a file that isn't its own
            raise UsageError(
                f"{path} can't be loaded: {' '.join(str(error).split())[:200]}",
                "Give a checkpoint of om/checkpoints, or an om/iop_stack.pt.",
            ) from error


def _of_checkpoint(training: dict[str, Any], hidden: int) -> Networks:
    weights = training["opponent"]
    width, team = weights["layers.0.first.weight"].shape[1], weights["layers.0.head.weight"].shape[0]
    opponent = ImaginedOpponent(width, team, hidden, seed=0)
    while opponent.num_levels < training["levels"]:
        opponent.add_level()
    opponent.load_state_dict(weights)
    agent = OpponentMLP(width, training["agent"]["head.weight"].shape[0], hidden, seed=0)
    agent.load_state_dict(training["agent"])
    return Networks.of(opponent.eval(), agent.eval())


class NamedPolicies:
    """Finds policies by name, as tables over all nodes; each is made once.

    Parameters
    ----------
    model : ExactModel
    tabulator : PolicyTabulator
        Of the same graph and focal agent.
    networks : Networks, optional
        What ``agent`` and ``level1`` mean; None: nothing was trained.
    max_ram : int
        Bytes of memory to stay under.
    """

    def __init__(
        self,
        model: ExactModel,
        tabulator: PolicyTabulator,
        networks: Networks | None = None,
        *,
        max_ram: int = DEFAULT_BUDGET,
    ) -> None:
        self.model = model
        self.networks = networks
        self._tabulator = tabulator
        self._left = max_ram // _SHARE
        self._max_ram = max_ram
        self._made: dict[tuple[str, Side], NamedPolicy] = {}

    def find(self, name: str, side: Side) -> NamedPolicy:
        """Return a side's policy by name.

        Parameters
        ----------
        name : str
            ``uniform``; ``agent``, the trained focal agent (for its side); ``level0`` or ``L0`` and on, a level of the
            team (for its side); ``FILE.npy``, an (N, actions) array of floats whose rows sum to 1, read as it is
            needed; ``PATH:agent`` or ``PATH:level1``, another training's artifact, export or checkpoint.
        side : {"agent", "team"}

        Raises
        ------
        UsageError
            If there is no such policy, or it is another side's.
        MemoryBudgetError
            If its table doesn't fit.
        """
        key = (name, side)
        if key not in self._made:
            self._made[key] = self._make(name, side)
        return self._made[key]

    def tabulated(self, network: OpponentMLP, side: Side) -> NDArray[np.float32]:
        """Return a network's policy, (N, actions) float32.

        Raises
        ------
        MemoryBudgetError
            If it doesn't fit.
        UsageError
            If the network is for other states or actions, or gives no numbers.
        """
        nodes = self.model.graph.num_nodes
        size = 4 * nodes * network.num_actions
        if size > self._left:
            raise MemoryBudgetError(
                f"a table of the {side}'s policy takes {format_bytes(size)} for {nodes:,} nodes and "
                f"{network.num_actions} actions; {format_bytes(self._left)} of {format_bytes(self._max_ram)} are left "
                "for policies",
                f"Allow more with --max-ram {format_bytes(self._max_ram + _SHARE * size)}, or ask for fewer policies.",
            )
        self._left -= size
        with torch.inference_mode():
            table: NDArray[np.float32] = self._tabulator.probabilities(network, side).numpy()
        self._check(table, f"the {side}'s network")
        return table

    def _make(self, name: str, side: Side) -> NamedPolicy:
        if name == "uniform":
            return NamedPolicy(name, self.model.uniform(side))
        if name.endswith(".npy"):
            return NamedPolicy(name, self._from_file(Path(name), side))
        path, _, which = name.rpartition(":")
        if path:
            networks: Networks | None = Networks.load(Path(path))
        else:
            networks, which = self.networks, name
        found = _LEVEL.fullmatch(which)
        if which != "agent" and found is None:
            raise UsageError(f"there is no policy {name!r}", _KNOWN)
        wanted: Side = "agent" if found is None else "team"
        if wanted != side:
            raise UsageError(
                f"{name!r} is a policy of the {'focal agent' if wanted == 'agent' else 'team'}, not of the "
                f"{'focal agent' if side == 'agent' else 'team'}",
                _KNOWN,
            )
        if networks is None:
            raise UsageError(
                f"{name!r}: nothing was trained here", "Train first (omtrain EXPORT), or ask for uniform."
            )
        if found is None:
            return NamedPolicy(name, self.tabulated(networks.agent, side))
        level = int(found[1])
        if level >= len(networks.levels):
            raise UsageError(f"{name!r}: the levels are 0 to {len(networks.levels) - 1}")
        return NamedPolicy(name if path else f"level{level}", self.tabulated(networks.levels[level], side))

    def _from_file(self, path: Path, side: Side) -> Policy:
        try:
            table: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} can't be read: {error}", "Write it with numpy.save: (nodes, actions) floats."
            ) from error
        shape = (self.model.graph.num_nodes, self.model.num_actions(side))
        if table.shape != shape or table.dtype.kind != "f":
            raise UsageError(
                f"{path} holds {table.dtype} of shape {table.shape}; the {side}'s policy is floats of {shape}",
                "A row a node, in the order of the store's nodes; a column an action (team actions for the team).",
            )
        self._check(table, str(path))
        return table

    def _check(self, table: NDArray[Any], what: str) -> None:
        """Check that rows are distributions, a piece at a time."""
        step = max(1, (1 << 20) // table.shape[1])
        for first in range(0, len(table), step):
            piece = np.asarray(table[first : first + step], np.float64)
            wrong = ~((piece >= 0).all(axis=1) & (np.abs(piece.sum(axis=1) - 1) <= 1e-3))
            if wrong.any():
                # where nothing is legal a network's policy has no numbers, and nothing is played
                wrong[wrong] = self.model.graph.legal(first + np.flatnonzero(wrong)).any(axis=1)
            if wrong.any():
                row = first + int(np.argmax(wrong))
                raise UsageError(
                    f"{what}: row {row} isn't a distribution: {np.array2string(np.asarray(table[row]), threshold=8)}",
                    "Probabilities are at least 0, and those of a node sum to 1.",
                )
