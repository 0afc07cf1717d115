"""What is asked of an exact model, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore import PolicyTable
from omstore.errors import UsageError
from trainer.tables import Side

__all__ = ["Policy", "Problem", "Solution"]

Policy = NDArray[Any] | PolicyTable
"""(N, actions) probabilities of a side at every node, of any floating type, or a table over all nodes. Illegal
actions may have some: they are never played (see `ExactModel`)."""


@dataclass(frozen=True)
class Problem:
    """Two policies to evaluate, or one to find a best response to.

    Attributes
    ----------
    agent, team : Policy or None
        Of the focal agent and the team, whose actions are team actions. None: a best response to the other.
    reward : {"agent", "team"} or int
        Whose reward counts, where both policies are given; a number is that of an agent. The side that responds
        best counts its own. The team's is the mean of its members'.
    """

    agent: Policy | None
    team: Policy | None
    reward: Side | int = "agent"

    def __post_init__(self) -> None:
        if self.agent is None and self.team is None:
            raise UsageError("a best response is one to a policy: give the focal agent's or the team's")

    @property
    def responds(self) -> Side | None:
        """The side that responds best; None where both policies are given."""
        return "agent" if self.agent is None else "team" if self.team is None else None

    @property
    def counted(self) -> Side | int:
        """The side, or the agent, whose reward counts."""
        return self.responds or self.reward


@dataclass(frozen=True)
class Solution:
    """The values of a problem.

    Attributes
    ----------
    values : (N,) float64
        Expected discounted return from each node; 0 where no joint action is legal.
    actions : (N,) int64 or None
        First action of a best response, the lowest of those that are as good; -1 where none is legal. None where
        nobody responds. With a finite horizon later actions may be others.
    sweeps : int
        Over all rows.
    error : float
        Most that a value may be from that of an endless horizon, where that was asked for; else 0.
    """

    values: NDArray[np.float64]
    actions: NDArray[np.int64] | None
    sweeps: int
    error: float = 0.0
