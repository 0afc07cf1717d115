"""Who learns where nobody says so: an agent whose team has something to learn as well."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import omstore
from trainer.joint_actions import find_agent

__all__ = ["FocalAgent", "choose_focal_agent"]

_SAME = 1e-9
"""Team rewards that differ by less than this, of the largest reward, are one: the members' sums round."""


@dataclass(frozen=True)
class FocalAgent:
    """A choice of the agent that learns against the others.

    Attributes
    ----------
    number : int
    note : str
        A remark for people; empty where there is nothing to say.
    """

    number: int
    note: str = ""


def choose_focal_agent(
    store: omstore.Store, given: int | str | None = None, *, chunk: int = 1 << 15
) -> FocalAgent:
    """Choose the agent that learns, and say so where its team can't.

    The team's reward is the mean of its members'. Where these cancel out, as a pursuer's and the evader's do, nothing
    that the team does makes a difference. So by default the focal agent is the first one whose team's reward isn't the
    same in all transitions of the replay; only agents come into question whose observations are the replay's states.
    Where there is none, it is the one whose observations conversion took for the states, else agent 0.

    Parameters
    ----------
    store : Store
        Without a replay, or with one without rewards, nothing is known of teams.
    given : int or str, optional
        Number or name of the agent to take whatever its team's reward is; None: choose.
    chunk : int
        Transitions read at a time. Reading ends when the choice is clear: in most worlds after the first. Memory: a
        few decoded chunks of the rewards as they are stored, 1 MiB each.

    Returns
    -------
    FocalAgent

    Raises
    ------
    UsageError
        If the agent given isn't there.
    """
    agents = store.manifest.agents
    recorded = store.manifest.replay.get("focal")
    first = agents.index(recorded) if recorded in agents else 0
    if given is not None:
        first = find_agent(agents, given)
    observers = () if store.replay is None else store.replay.observers
    others = [k for k, name in enumerate(agents) if k != first and name not in observers]
    teams = _Teams(store, chunk)
    if not teams.known or teams.varies(first):
        return FocalAgent(first)
    better = next((k for k in others if teams.varies(k)), None)
    if better is None:
        return FocalAgent(first)
    why = f"with {agents[first]} the team's rewards cancel out: their mean is the same in every transition"
    if given is None:
        return FocalAgent(better, f"{agents[better]} is the focal agent; {why} (--focal-agent sets another)")
    return FocalAgent(
        first,
        f"{why}, so team phases may have nothing to learn; --focal-agent {agents[better]} is one that has",
    )


class _Teams:
    """Which focal agents leave a team whose mean reward varies over the replay; read as far as was asked."""

    def __init__(self, store: omstore.Store, chunk: int) -> None:
        count = len(store.manifest.agents)
        self._replay = store.replay
        self._chunk = max(1, chunk)
        self._read = 0
        self._low = np.full(count, np.inf)
        self._high = np.full(count, -np.inf)
        self._largest = 0.0
        self.known = self._replay is not None and count > 1

    def varies(self, focal_agent: int) -> bool:
        """Return whether the team's reward differs anywhere, without this agent."""
        assert self._replay is not None
        while not self._differs()[focal_agent] and self._read < len(self._replay):
            self._take(self._replay.rewards(slice(self._read, self._read + self._chunk)))
            self._read += self._chunk
        return bool(self._differs()[focal_agent])

    def _differs(self) -> NDArray[np.bool_]:
        return np.asarray(self._high - self._low > _SAME * self._largest)

    def _take(self, rewards: NDArray[np.float64]) -> None:
        """Add (n, agents) rewards to what is known."""
        teams = (rewards.sum(axis=1, keepdims=True) - rewards) / (rewards.shape[1] - 1)
        self._low = np.minimum(self._low, teams.min(axis=0))
        self._high = np.maximum(self._high, teams.max(axis=0))
        self._largest = max(self._largest, float(np.abs(rewards).max()))
