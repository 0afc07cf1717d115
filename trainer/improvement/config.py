"""Settings of soft rollout policy improvement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from omstore.errors import UsageError
from trainer.setting import setting

__all__ = ["EXACT_TEMPERATURE", "ROLLOUT_TEMPERATURE", "SoftRolloutPIConfig"]

ROLLOUT_TEMPERATURE = 0.015
"""As large as the errors of rollouts, about: docs/decisions/0016-training-defaults.md."""
EXACT_TEMPERATURE = 0.03
"""Of steps: docs/decisions/0017-team-phases.md."""


@dataclass(frozen=True)
class SoftRolloutPIConfig:
    """How one policy is improved against a fixed other side.

    Each field's metadata hold its ``"unit"`` and a sentence, ``"help"``.

    Attributes
    ----------
    root_state_samples : int
        Root states to draw altogether, those that aren't in the graph included.
    batch : int
        Root states of an update; the last update takes what is left. There are
        ``ceil(root_state_samples / batch)``.
    action_values : {"rollouts", "exact"}
        How values of actions are found: estimated by rollouts, or computed by sweeps over all rows of the graph.
    n_rollouts : int
        Rollouts of each candidate of a root.
    sweep_updates : int
        Updates that exact action values serve, before they are computed anew for the learner's policy.
    horizon : int
        Steps of a rollout at most, and what exact action values look ahead.
    discount : float
        Factor by which a reward counts less for each step that it comes later, 0 to 1.
    temperature : float or None
        Units of return by which action values differ where the soft target is e times as likely; above 0. Where action
        values are exact, e times as likely as in the current policy (`soft_target`). None: 0.015 for rollouts, 0.03 for
        exact action values.
    entropy_coef : float
        Nats of cross-entropy that a nat of the policy's entropy is worth; at least 0.
    lr : float
        Step size of Adam at first.
    lr_decay : float
        Fraction of the updates, 0 to 1, the last of which `lr` falls over, linearly to 0; 0: it stays.
    candidate_actions : int or None
        Actions evaluated at a root at most, drawn without replacement from the legal ones; None: all legal.
    print_every : int
        Root states between two refreshes of the progress bar at least (a tenth of `root_state_samples`, where that
        is more); 0 turns the bar off.
    seed : int
        Of all random numbers; at least 0.
    """

    root_state_samples: int = setting(
        100_000, "root states", "Root states to draw altogether, those that aren't in the graph included."
    )
    # n_rollouts to lr are chosen by what they learn: docs/decisions/0016-training-defaults.md
    batch: int = setting(512, "root states", "Root states of an update; the last update takes what is left.")
    action_values: Literal["rollouts", "exact"] = setting(
        "rollouts", "word", "How values of actions are found: by rollouts, or exact, by sweeps over all rows."
    )
    n_rollouts: int = setting(192, "rollouts", "Rollouts of each candidate of a root.")
    sweep_updates: int = setting(
        32, "updates", "Updates that exact action values serve, before they are computed anew."
    )
    horizon: int = setting(10, "steps", "Steps of a rollout at most.")
    discount: float = setting(
        0.95, "factor a step", "Factor by which a reward counts less for each step that it comes later."
    )
    temperature: float | None = setting(
        None,
        "return",
        "Difference of action values at which the soft target is e times as likely for the better one, or, where they are "
        "exact, e times as likely as now; none: 0.015 by rollouts, 0.03 where exact.",
    )
    entropy_coef: float = setting(
        0.005, "nats a nat", "Cross-entropy that a nat of the policy's entropy is worth."
    )
    lr: float = setting(1e-2, "weight a step", "Step size of Adam at first.")
    lr_decay: float = setting(
        0.5, "fraction", "Fraction of a phase, at its end, over which lr falls linearly to 0; 0: it stays."
    )
    candidate_actions: int | None = setting(
        None, "actions", "Actions evaluated at a root at most, drawn from the legal ones; none: all legal."
    )
    print_every: int = setting(
        1,
        "root states",
        "Root states between two refreshes of the bar at least, a tenth of all where that is more; 0: no bar.",
    )
    seed: int = setting(0, "number", "Seed of all random numbers.")

    def __post_init__(self) -> None:
        counts = ("root_state_samples", "batch", "n_rollouts", "horizon", "sweep_updates")
        for name in counts:
            self._check(name, getattr(self, name) >= 1, "at least 1")
        self._check("discount", 0 <= self.discount <= 1, "from 0 to 1")
        self._check("temperature", 0 < self.softness < float("inf"), "above 0, or None")
        self._check("action_values", self.action_values in ("rollouts", "exact"), "rollouts or exact")
        self._check("entropy_coef", 0 <= self.entropy_coef < float("inf"), "at least 0")
        self._check("lr", 0 < self.lr < float("inf"), "above 0")
        self._check("lr_decay", 0 <= self.lr_decay <= 1, "from 0 to 1")
        cap = self.candidate_actions
        self._check("candidate_actions", cap is None or cap >= 1, "at least 1, or None for all legal actions")
        self._check("print_every", self.print_every >= 0, "at least 0")
        self._check("seed", 0 <= self.seed < 1 << 64, "from 0 to 2^64 - 1")

    @property
    def num_updates(self) -> int:
        """Updates that `root_state_samples` make, ``ceil(root_state_samples / batch)``."""
        return -(-self.root_state_samples // self.batch)

    @property
    def softness(self) -> float:
        """The temperature of soft targets, also where `temperature` is None."""
        if self.temperature is not None:
            return self.temperature
        return EXACT_TEMPERATURE if self.action_values == "exact" else ROLLOUT_TEMPERATURE

    def lr_at(self, update: int) -> float:
        """Return the step size of an update, from 0; above 0 for each."""
        if not self.lr_decay:
            return self.lr
        return self.lr * min(1.0, (1 - update / self.num_updates) / self.lr_decay)

    def _check(self, name: str, good: bool, what: str) -> None:
        if not good:
            raise UsageError(f"{name} is {what}, not {getattr(self, name)}")
