"""The staircase: the focal agent and the team improve in turn, each against the other's last policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TextIO

from omstore.errors import UsageError
from trainer.improvement import (
    Ranks,
    RolloutModel,
    SoftRolloutImprover,
    StatesSource,
    run_improver,
)
from trainer.improvement.dead_units import wake_dead_units
from trainer.models import ImaginedOpponent, OpponentMLP
from trainer.progress import Metrics, Phase
from trainer.staircase_config import StaircaseConfig
from trainer.tables import PolicyTabulator

__all__ = ["Staircase", "StaircaseConfig"]


class Staircase:
    """Trains the focal agent and the levels of the opponent model, phase by phase, an update at a time.

    An agent phase improves the focal agent's policy, from where its last phase left it, against the team of the
    level below. A team phase adds a level to the opponent model, a copy of the one below whose dead units are woken
    (`wake_dead_units`), and improves it against the focal agent's policy. Each phase has an optimizer of its own.

    Parameters
    ----------
    opponent : ImaginedOpponent
        With level 0, and no other; gets a level in each team phase.
    agent : OpponentMLP
        The focal agent's network, trained in place.
    states_source : StatesSource
    model : RolloutModel
    config : StaircaseConfig
    ranks : Ranks, optional

    Attributes
    ----------
    improver : SoftRolloutImprover
        Of the phase that it is in.

    Raises
    ------
    UsageError
        If the opponent model has more than level 0.
    """

    def __init__(
        self,
        opponent: ImaginedOpponent,
        agent: OpponentMLP,
        states_source: StatesSource,
        model: RolloutModel,
        config: StaircaseConfig,
        *,
        ranks: Ranks | None = None,
    ) -> None:
        if opponent.num_levels != 1:
            raise UsageError(
                f"a staircase starts from level 0; this opponent model has {opponent.num_levels} levels"
            )
        self.opponent = opponent
        self.agent = agent
        self.config = config
        self._source = states_source
        self._model = model
        self._ranks = ranks
        self._phases = config.phases
        self.improver = self._begin(0)

    @property
    def tabulator(self) -> PolicyTabulator:
        """What tabulates policies over the graph."""
        return self._model.tabulator

    @property
    def phase(self) -> Phase:
        """The phase that it is in; the last one when finished."""
        return self.improver.phase

    @property
    def finished(self) -> bool:
        """Whether all phases are done."""
        return self.phase.number == len(self._phases) and self.improver.finished

    def step(self) -> Metrics | None:
        """Do one update; returns the metrics if a refresh is due after it.

        Raises
        ------
        UsageError
            If all phases are done, or training diverges.
        """
        self._go_on()
        return self.improver.metrics() if self.improver.step() else None

    def run(
        self,
        *,
        stream: TextIO | None = None,
        on_update: Callable[[], object] | None = None,
        on_refresh: Callable[[Metrics], object] | None = None,
    ) -> None:
        """Go on until all phases are done, with one bar a phase; see `run_improver`."""
        show = self._ranks is None or self._ranks.rank == 0
        while not self.finished:
            self._go_on()
            run_improver(self.improver, stream=stream, show=show, on_update=on_update, on_refresh=on_refresh)

    def state_dict(self) -> dict[str, Any]:
        """Return all that going on later needs: tensors, numbers and words in plain dicts, without copies."""
        return {
            "config": asdict(self.config),
            "phase": self.phase.number,
            "levels": self.opponent.num_levels,
            "opponent": self.opponent.state_dict(),
            "agent": self.agent.state_dict(),
            "improver": self.improver.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken; tensors are copied. Only before the first update.

        Raises
        ------
        UsageError
            If that was with another config, or this one has begun.
        """
        if self.phase.number != 1 or self.improver.roots:
            raise UsageError("this staircase has begun", "Load a state into a new one.")
        own = asdict(self.config)
        if state["config"] != own:
            raise UsageError(
                f"the staircase can't go on: its config was {state['config']}, and is {own} now",
                "Go on with the same settings, or start over.",
            )
        while self.opponent.num_levels < state["levels"]:
            self.opponent.add_level()
        self.opponent.load_state_dict(state["opponent"])
        self.agent.load_state_dict(state["agent"])
        self.improver = self._begin(int(state["phase"]) - 1)
        self.improver.load_state_dict(state["improver"])

    def _go_on(self) -> None:
        if self.improver.finished and not self.finished:
            self.improver = self._begin(self.phase.number)

    def _begin(self, index: int) -> SoftRolloutImprover:
        phase = self._phases[index]
        learner, other = self.agent, self.opponent.level(phase.level if phase.learner == "agent" else 0)
        if phase.learner == "team":
            if self.opponent.num_levels == phase.level:
                added = self.opponent.add_level()
                seed = self.config.improvement.seed
                wake_dead_units(added, self._source, seed=seed, phase=phase.number)
            learner, other = self.opponent.level(phase.level), self.agent
        return SoftRolloutImprover(
            learner,
            other,
            self._source,
            self._model,
            self.config.of_phase(phase),
            phase=phase,
            global_before=sum(self.config.budget(earlier) for earlier in self._phases[:index]),
            global_total=self.config.global_total,
            ranks=self._ranks,
        )
