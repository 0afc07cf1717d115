"""Action values of root states, exactly: by sweeps over all rows, once for many updates."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from omstore.errors import MemoryBudgetError
from omstore.memory import format_bytes
from trainer.exact.steps import OTHER, Step, Steps
from trainer.improvement.action_values import Estimates, RolloutModel
from trainer.improvement.config import SoftRolloutPIConfig
from trainer.improvement.roots import Roots
from trainer.models import OpponentMLP
from trainer.tables import Side

__all__ = ["ExactActionValues", "exact_bytes"]

_FINER = 8
"""Action values are rounded to the temperature over 2 ** 8 or a bit less: a target feels no less, and the last bits, in
which row encodings and numbers of sums differ, all but never get into weights."""


def exact_bytes(nodes: int, learner_actions: int, other_actions: int) -> int:
    """Return the memory that exact action values take: two policies, values of all actions of all nodes."""
    return nodes * (4 * learner_actions + 4 * other_actions + 8 * learner_actions + 24)


class ExactActionValues:
    """Computes what rollouts estimate: the expected discounted return of each action, over the horizon.

    The learner plays the action first and its policy after, the other side its policy throughout. That takes
    ``horizon`` sweeps over the rows, for all nodes at once. They are made anew every `sweep_updates` updates, from the
    learner's network as it is then; the updates between them use the values of a policy that is a few updates old, as
    those of a target network are (Mnih et al., "Human-level control through deep reinforcement learning", 2015).

    Every rank computes all of them. Memory: `exact_bytes`, and what a sweep takes.

    Parameters
    ----------
    model : RolloutModel
    learner : {"agent", "team"}
    other : OpponentMLP
        The other side's network. It must not change while this is used.
    config : SoftRolloutPIConfig

    Raises
    ------
    MemoryBudgetError
        If the tables would take more than half of the model's memory budget.
    """

    def __init__(
        self, model: RolloutModel, learner: Side, other: OpponentMLP, config: SoftRolloutPIConfig
    ) -> None:
        self._model = model
        self._learner: Side = learner
        self._other = other
        self._config = config
        masks = model.tabulator.masks
        needed = exact_bytes(
            model.dyn.num_nodes, masks[learner].num_actions, masks[OTHER[learner]].num_actions
        )
        if needed > model.max_ram // 2:
            raise MemoryBudgetError(
                f"exact action values of the {learner} take {format_bytes(needed)} for {model.dyn.num_nodes:,} nodes and "
                f"{masks[learner].num_actions} actions; half of {format_bytes(model.max_ram)} is "
                f"{format_bytes(model.max_ram // 2)}",
                f"Allow more with --max-ram {format_bytes(2 * needed)}, or train by rollouts: "
                f"--{learner}-action-values rollouts.",
            )
        self._grid = 2.0 ** (math.floor(math.log2(config.softness)) - _FINER)
        self._steps: Steps | None = None
        self._theirs: NDArray[np.float32] | None = None
        self._interval = -1  # of `sweep_updates` updates, that the values are of
        self._network: OpponentMLP | None = None  # the learner's, as it was then
        self._values: NDArray[np.float64] | None = None

    def estimate(self, network: OpponentMLP, roots: Roots, update: int) -> Estimates:
        """Return the values of the candidates of roots, without errors.

        Parameters
        ----------
        network : OpponentMLP
            The learner's, as it is now.
        roots : Roots
        update : int
            Number of the update, from 0; batches without a valid root count.
        """
        interval = update // self._config.sweep_updates
        if interval != self._interval:
            self._interval, self._network, self._values = interval, copy.deepcopy(network), None
        if self._values is None:
            assert self._network is not None
            self._values = self._sweep(self._network)
        known = roots.candidates >= 0
        found = self._values[roots.node[:, None], np.where(known, roots.candidates, 0)]
        mean = np.where(known, found, 0.0)
        return Estimates(mean, mean**2)

    def state_dict(self) -> dict[str, Any]:
        """Return what going on later needs: which network the values are of."""
        weights = None if self._network is None else self._network.state_dict()
        return {"interval": self._interval, "network": weights}

    def load_state_dict(self, state: dict[str, Any], network: OpponentMLP) -> None:
        """Go on from `state_dict`; `network` is any of the learner's shape. Values are computed when asked for."""
        self._interval, self._network, self._values = int(state["interval"]), None, None
        if state["network"] is not None:
            self._network = copy.deepcopy(network)
            self._network.load_state_dict(state["network"])

    def _sweep(self, network: OpponentMLP) -> NDArray[np.float64]:
        """(N, actions) values of a network's policy; nothing of use where an action isn't legal."""
        model, config = self._model, self._config
        if self._steps is None:
            self._steps = Steps(model.dyn.graph, model.dyn.focal_agent, model.threads)
            with torch.inference_mode():
                self._theirs = model.tabulator.probabilities(self._other, OTHER[self._learner]).numpy()
        with torch.inference_mode():
            own = model.tabulator.probabilities(network, self._learner).numpy()
        agent, team = (own, self._theirs) if self._learner == "agent" else (self._theirs, own)
        weights = model.reward_weights(self._learner)
        before, after = np.zeros((2, 1, model.dyn.num_nodes))
        for _ in range(config.horizon - 1):
            self._steps.back_up([Step("policies", agent, team, weights, config.discount)], before, after)
            before, after = after, before
        first = Step(
            self._learner,
            None if self._learner == "agent" else agent,
            None if self._learner == "team" else team,
            weights,
            config.discount,
        )
        values = self._steps.action_values(first, before[0])
        np.divide(values, self._grid, out=values)
        np.rint(values, out=values)
        return np.multiply(values, self._grid, out=values)
