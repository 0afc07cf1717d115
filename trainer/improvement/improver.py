"""Soft rollout policy improvement, an update at a time, so that it can stop anywhere and go on."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from omstore.errors import UsageError
from trainer.adam import Adam
from trainer.improvement.action_values import ActionValues, Estimates, RolloutModel
from trainer.improvement.config import SoftRolloutPIConfig
from trainer.improvement.exact_action_values import ExactActionValues
from trainer.improvement.objective import objective, soft_target
from trainer.improvement.ranks import Ranks
from trainer.improvement.roots import Roots, StatesSource, draw_roots
from trainer.models import OpponentMLP
from trainer.progress import Metrics, Phase, is_due
from trainer.torch_threads import one_torch_thread

__all__ = ["SoftRolloutImprover"]

_LAST = ("policy_ce", "entropy", "objective", "target_entropy", "q_mean", "q_best", "q_policy", "q_error")


class SoftRolloutImprover:
    """Improves one policy against a fixed other side, until its budget of root states is used.

    An update draws ``b = min(batch, remaining)`` root states, leaves out those that aren't in the graph, estimates
    the values of the learner's legal actions at the others by rollouts in the graph, and makes one step of Adam towards
    softmax(Q / temperature). With ``action_values="exact"`` it computes them, and the soft target is a step from the
    current policy, policy * exp(Q / temperature) (`soft_target`). The counter goes down by b
    whatever was left; a batch with no valid root makes no update. See `draw_roots`, `ActionValues`,
    `ExactActionValues` and `objective`.

    Everything random depends on (seed, phase, update, root, ...) alone, and one torch thread does the sums over a
    batch: weights and metrics are the same, to the bit on one type of machine, for any number of threads and
    ranks, any memory budget, and after a resume; of rollouts for any row encoding too. Exact action values are sums in
    another order in another encoding, rounded so that this is hardly ever seen.

    Parameters
    ----------
    learner : OpponentMLP
        Trained in place.
    other : OpponentMLP
        Of the other side; must not change meanwhile.
    states_source : StatesSource
        What roots are drawn from: an `OMBuffer`, whose `graph_state_idx` says which nodes its states are.
    model : RolloutModel
    config : SoftRolloutPIConfig
    phase : Phase
        Who learns; its number is part of the keys of random numbers.
    global_before, global_total : int
        Root states of the staircase that were used before this phase, and all; default: this phase is all.
    ranks : Ranks, optional

    Attributes
    ----------
    roots : int
        Root states used.
    updates : int
        Successful updates.
    """

    def __init__(
        self,
        learner: OpponentMLP,
        other: OpponentMLP,
        states_source: StatesSource,
        model: RolloutModel,
        config: SoftRolloutPIConfig,
        *,
        phase: Phase | None = None,
        global_before: int = 0,
        global_total: int | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.learner = learner
        self.config = config
        self.phase = Phase() if phase is None else phase
        self.roots = 0
        self.updates = 0
        self.optimizer = Adam(learner.parameters(), lr=config.lr)
        self._source = states_source
        self._model = model
        self._masks = model.tabulator.masks[self.phase.learner]
        self._values: ActionValues | ExactActionValues
        if config.action_values == "exact":
            self._values = ExactActionValues(model, self.phase.learner, other, config)
        else:
            self._values = ActionValues(model, self.phase.learner, other, config, ranks=ranks)
        self._global_before = global_before
        self._global_total = config.root_state_samples if global_total is None else global_total
        self._valid, self._requested = 0, 0
        self._evaluated = 0
        self._last: dict[str, float | None] = dict.fromkeys(_LAST)

    @property
    def finished(self) -> bool:
        """Whether all root states are used."""
        return self.roots >= self.config.root_state_samples

    def draw(self) -> Roots:
        """Return the root states of the next update; drawing them changes nothing."""
        return draw_roots(
            self._source,
            self._model.dyn,
            self._masks,
            requested=min(self.config.batch, self.config.root_state_samples - self.roots),
            seed=self.config.seed,
            phase=self.phase.number,
            update=self.roots // self.config.batch,
            candidate_actions=self.config.candidate_actions,
        )

    def step(self) -> bool:
        """Do one update; returns whether a refresh is due after it (`trainer.progress.is_due`).

        Raises
        ------
        UsageError
            If all root states are used, or the objective is no number any more.
        """
        if self.finished:
            raise UsageError(f"all {self.config.root_state_samples:,} root states are used")
        roots = self.draw()
        if len(roots.node):
            self._update(roots)
        before = self.roots
        self.roots += roots.requested
        self._valid, self._requested = len(roots.node), roots.requested
        return is_due(before, self.roots, self.config.print_every, self.config.root_state_samples)

    @property
    def _rollouts(self) -> int:
        """Rollouts of each candidate: none where values are exact."""
        return 0 if self.config.action_values == "exact" else self.config.n_rollouts

    def metrics(self) -> Metrics:
        """Return where it stands; `trainer.progress.METRICS` defines each."""
        return {
            "phase": self.phase.number,
            "phases": self.phase.phases,
            "learner": self.phase.learner,
            "level": self.phase.level,
            "local": self.updates,
            "local_total": self.config.num_updates,
            "global": self._global_before + self.roots,
            "global_total": self._global_total,
            "roots": self.roots,
            "roots_total": self.config.root_state_samples,
            "valid": self._valid,
            "requested": self._requested,
            **self._last,
            "imagined_steps": self._evaluated * self._rollouts * self.config.horizon,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return all that going on later needs: tensors, numbers and words in plain dicts.

        Tensors are those of the network and the optimizer, not copies. The other side's network isn't in it.
        """
        return {
            "config": asdict(self.config),
            "phase": asdict(self.phase),
            "buffered": len(self._source),
            "roots": self.roots,
            "updates": self.updates,
            "valid": self._valid,
            "requested": self._requested,
            "evaluated": self._evaluated,
            "last": dict(self._last),
            "model": self.learner.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "exact": self._values.state_dict() if isinstance(self._values, ExactActionValues) else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken; tensors are copied.

        Raises
        ------
        UsageError
            If that was with another config, phase, or number of states to draw from.
        """
        own_settings = {
            "config": asdict(self.config),
            "phase": asdict(self.phase),
            "buffered": len(self._source),
        }
        for name, own in own_settings.items():
            if state[name] != own:
                raise UsageError(
                    f"policy improvement can't go on: its {name} was {state[name]}, and is {own} now",
                    "Go on with the same settings and store, or start over.",
                )
        self.learner.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.roots, self.updates = int(state["roots"]), int(state["updates"])
        self._valid, self._requested = int(state["valid"]), int(state["requested"])
        self._evaluated = int(state["evaluated"])
        self._last = dict(state["last"])
        if isinstance(self._values, ExactActionValues):
            self._values.load_state_dict(state["exact"], self.learner)

    def _update(self, roots: Roots) -> None:
        if isinstance(self._values, ExactActionValues):
            found = self._values.estimate(self.learner, roots, self.roots // self.config.batch)
        else:
            found = self._values.estimate(self.learner, roots)
        values, evaluated = by_action(roots, found.mean)
        with one_torch_thread():
            device = self.learner.head.weight.device
            mask, legal = evaluated.to(device), torch.from_numpy(roots.legal).to(device)
            logits = self.learner(self._states(roots.node).to(device))
            steps_from = logits.detach().cpu() if self.config.action_values == "exact" else None
            target = soft_target(values, evaluated, self.config.softness, steps_from)
            loss = objective(logits, target.to(device), legal, mask, self.config.entropy_coef)
            self.optimizer.zero_grad()
            loss.value.backward()  # type: ignore[no-untyped-call]
            self._record(roots, found, values, evaluated, target, logits.detach().cpu())
            self._last["policy_ce"] = float(loss.policy_ce.detach())
            self._last["entropy"] = float(loss.entropy.detach())
            value = self._last["objective"] = float(loss.value.detach())
            if not math.isfinite(value):
                raise UsageError(
                    f"{self.phase.label}: the objective is {value} after {self.updates} updates",
                    "Its training diverged: lower lr, or raise temperature.",
                )
            # by batches drawn, not successful updates: it has fallen when the budget is used
            self.optimizer.lr = self.config.lr_at(self.roots // self.config.batch)
            self.optimizer.step()
        self.updates += 1
        self._evaluated += int((roots.candidates >= 0).sum())

    def _states(self, nodes: NDArray[np.int64]) -> Tensor:
        # Memory of torch's own is aligned; the last bit of a matrix product may depend on that.
        states = torch.empty((len(nodes), self._model.dyn.state_width), dtype=torch.float32)
        states.numpy()[:] = self._model.dyn.states(nodes)
        return states

    def _record(
        self,
        roots: Roots,
        found: Estimates,
        values: Tensor,
        evaluated: Tensor,
        target: Tensor,
        logits: Tensor,
    ) -> None:
        """Keep what an update tells about action values."""
        rollouts = self._rollouts
        known = roots.candidates >= 0
        policy = torch.softmax(logits.double().masked_fill(~evaluated, -torch.inf), dim=1)
        log_target = torch.where(target > 0, target, 1.0).log()
        self._last["target_entropy"] = float(-(target * log_target).sum(dim=1).mean())
        self._last["q_mean"] = float(found.mean[known].mean())
        self._last["q_best"] = float(values.masked_fill(~evaluated, -torch.inf).amax(dim=1).mean())
        self._last["q_policy"] = float((policy * values).sum(dim=1).mean())
        self._last["q_error"] = None if rollouts else 0.0
        if rollouts > 1:
            variance = np.maximum(found.square[known] - found.mean[known] ** 2, 0.0) / (rollouts - 1)
            self._last["q_error"] = float(np.sqrt(variance.mean()))


def by_action(roots: Roots, values: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Spread candidates' values, (v, C), over actions: (v, actions) float64, and which are evaluated."""
    spread = np.zeros(roots.legal.shape)
    evaluated = np.zeros(roots.legal.shape, np.bool_)
    root, candidate = np.nonzero(roots.candidates >= 0)
    action = roots.candidates[root, candidate]
    spread[root, action] = values[root, candidate]
    evaluated[root, action] = True
    return torch.from_numpy(spread), torch.from_numpy(evaluated)
