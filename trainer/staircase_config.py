"""Settings of the staircase: its phases, and how each is trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from omstore.errors import UsageError
from trainer.improvement.config import SoftRolloutPIConfig
from trainer.progress import Phase

__all__ = ["StaircaseConfig"]


@dataclass(frozen=True)
class StaircaseConfig:
    """Which phases there are, and how each is trained.

    Attributes
    ----------
    levels : int
        Team levels to train above level 0; two phases each.
    agent_root_state_samples, team_root_state_samples : int
        Root states of each agent phase, and of each team phase.
    improvement : SoftRolloutPIConfig
        All other settings; its root_state_samples and action_values aren't used.
    agent_action_values, team_action_values : {"rollouts", "exact"}
        How values of actions are found in each agent phase, and in each team phase.
    """

    levels: int = 2
    agent_root_state_samples: int = 400_000
    team_root_state_samples: int = 2_304_000
    improvement: SoftRolloutPIConfig = field(default_factory=SoftRolloutPIConfig)
    agent_action_values: Literal["rollouts", "exact"] = "rollouts"
    team_action_values: Literal["rollouts", "exact"] = "exact"

    def __post_init__(self) -> None:
        if self.levels < 1 or self.agent_root_state_samples < 1 or self.team_root_state_samples < 1:
            raise UsageError(
                f"{self.levels} levels, {self.agent_root_state_samples} root states of agent phases and "
                f"{self.team_root_state_samples} of team phases: each is at least 1"
            )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases in their order: agent against L0, team L1, agent against L1, team L2, ..."""
        count = 2 * self.levels
        return tuple(
            Phase(k + 1, count, "agent", k // 2) if k % 2 == 0 else Phase(k + 1, count, "team", k // 2 + 1)
            for k in range(count)
        )

    def budget(self, phase: Phase) -> int:
        """Return the root states of a phase."""
        return self.agent_root_state_samples if phase.learner == "agent" else self.team_root_state_samples

    def of_phase(self, phase: Phase) -> SoftRolloutPIConfig:
        """Return all settings of a phase."""
        agent = phase.learner == "agent"
        return replace(
            self.improvement,
            root_state_samples=self.budget(phase),
            action_values=self.agent_action_values if agent else self.team_action_values,
        )

    @property
    def global_total(self) -> int:
        """Root states of all phases."""
        return sum(self.budget(phase) for phase in self.phases)
