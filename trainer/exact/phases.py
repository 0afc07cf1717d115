"""What policies are worth after each phase of the staircase, exactly, as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainer.exact.evaluation import Horizon, Summary, evaluate_pair
from trainer.exact.model import ExactModel
from trainer.exact.named import NamedPolicies, NamedPolicy, Networks
from trainer.progress import Metrics, Phase
from trainer.tables import PolicyTabulator

if TYPE_CHECKING:
    from trainer.models import ImaginedOpponent, OpponentMLP
    from trainer.prepare import OMTrainingInputs

__all__ = ["EXACT_METRICS", "PhaseEvaluator"]

_VALUES: Mapping[str, str] = {
    "agent_return": "Expected discounted return of the focal agent over horizon steps, both sides playing their policies.",
    "team_return": "The same of the team: the mean of its members'.",
    "agent_best": "Return of the focal agent's best response to the team's policy.",
    "team_best": "Return of the team's best response to the focal agent's policy.",
    "agent_gain": "agent_best - agent_return: how exploitable the team's policy is by the focal agent.",
    "team_gain": "team_best - team_return: how exploitable the focal agent's policy is by the team.",
}

EXACT_METRICS: Mapping[str, str] = {
    "phase": "Number of the phase that just ended, from 1.",
    "phases": "Phases of the staircase.",
    "learner": "Who learned in it: agent (the focal agent) or team.",
    "level": "Level of the team whose policy plays: in team phases the one just trained.",
    "global": "Root states used over the whole staircase.",
    **{
        f"{name}_roots": f"{text} Mean over the replay's states in the graph."
        for name, text in _VALUES.items()
    },
    **{f"{name}_nodes": f"{text} Mean over all nodes." for name, text in _VALUES.items()},
}
"""What each metric of an exact evaluation means."""


class PhaseEvaluator:
    """Evaluates the focal agent against the level of a phase, at its end.

    Values depend on weights alone: not on threads, ranks or memory, so metrics stay the same.

    Parameters
    ----------
    inputs : OMTrainingInputs
        What training started from; root states are those of its buffer.
    tabulator : PolicyTabulator
    horizon : int
    discount : float
    threads : int
    max_ram : int
    """

    def __init__(
        self,
        inputs: OMTrainingInputs,
        tabulator: PolicyTabulator,
        horizon: int,
        discount: float,
        *,
        threads: int,
        max_ram: int,
    ) -> None:
        self._model = ExactModel(inputs.graph, inputs.focal_agent, threads=threads)
        self._summary = Summary(inputs.graph.num_nodes, inputs.buffer.graph_state_idx)
        self._tabulator = tabulator
        self._horizon = Horizon(horizon, discount)
        self._max_ram = max_ram

    def evaluate(self, phase: Phase, opponent: ImaginedOpponent, agent: OpponentMLP) -> Metrics:
        """Return the metrics of `EXACT_METRICS`, but for ``global``.

        Raises
        ------
        MemoryBudgetError
            If the policies' tables don't fit.
        """
        policies = NamedPolicies(
            self._model, self._tabulator, Networks.of(opponent, agent), max_ram=self._max_ram
        )
        mine = NamedPolicy("agent", policies.tabulated(agent, "agent"))
        theirs = NamedPolicy("team", policies.tabulated(opponent.level(phase.level), "team"))
        found = evaluate_pair(self._model, mine, theirs, self._horizon, self._summary)
        values: dict[str, Any] = {}
        for over in ("roots", "nodes"):
            values |= {f"{name}_{over}": getattr(getattr(found, name), over) for name in _VALUES}
        return {
            "phase": phase.number,
            "phases": phase.phases,
            "learner": phase.learner,
            "level": phase.level,
            **values,
        }
