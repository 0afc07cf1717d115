"""Joint actions, seen from the focal agent: its own action, and the team's as one integer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.errors import UsageError

__all__ = ["JointActions", "find_agent"]


def find_agent(agents: Sequence[str], agent: int | str) -> int:
    """Return an agent's number, given that or its name.

    Raises
    ------
    UsageError
        If there is no such agent; the message lists them.
    """
    if isinstance(agent, str) and agent in agents:
        return agents.index(agent)
    if not isinstance(agent, str) and 0 <= agent < len(agents):
        return int(agent)
    raise UsageError(
        f"there is no agent {agent!r}",
        f"The agents are: {', '.join(f'{i} ({name})' for i, name in enumerate(agents))}.",
    )


class JointActions:
    """Takes joint actions apart into the focal agent's action and the team action, and puts them together.

    A joint action is a mixed-radix integer of all agents' actions, agent 0 most significant; the team action is
    that of the others, in agent order.

    Parameters
    ----------
    num_actions : sequence of int
        Actions of each agent.
    focal_agent : int

    Attributes
    ----------
    num_joint, num_focal, num_team : int
        Joint actions, A; actions of the focal agent; team actions. ``num_joint == num_focal * num_team``.
    """

    def __init__(self, num_actions: Sequence[int], focal_agent: int) -> None:
        self.num_actions = tuple(int(count) for count in num_actions)
        if not 0 <= focal_agent < len(self.num_actions) or min(self.num_actions) < 1:
            raise UsageError(f"focal agent {focal_agent} of agents with {self.num_actions} actions")
        if len(self.num_actions) < 2:
            raise UsageError("there is one agent only: it has no opponents to model")
        self.focal_agent = int(focal_agent)
        self.num_joint = math.prod(self.num_actions)
        self.num_focal = self.num_actions[self.focal_agent]
        self.num_team = self.num_joint // self.num_focal
        self._before = math.prod(self.num_actions[: self.focal_agent])
        self._behind = math.prod(self.num_actions[self.focal_agent + 1 :])

    def split(self, joint_actions: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the focal agent's actions and the team actions, (B,) -> (B,), (B,) int64.

        Raises
        ------
        UsageError
            Naming the first joint action that isn't one.
        """
        joint = self._checked(joint_actions, self.num_joint, "joint action")
        rest, low = np.divmod(joint, self._behind)
        high, focal = np.divmod(rest, self.num_focal)
        return focal, high * self._behind + low

    def join(self, focal_actions: ArrayLike, team_actions: ArrayLike) -> NDArray[np.int64]:
        """Return the joint actions, (B,), (B,) -> (B,) int64; shapes broadcast. The inverse of `split`."""
        focal = self._checked(focal_actions, self.num_focal, "focal agent's action")
        team = self._checked(team_actions, self.num_team, "team action")
        high, low = np.divmod(team, self._behind)
        return np.asarray((high * self.num_focal + focal) * self._behind + low)

    def by_agent(self, legal_joint: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """View a joint mask as (B, focal actions, team actions): (B, A) bool, in the order of `split`.

        Memory: a copy of the mask, unless the focal agent is agent 0.
        """
        parts = legal_joint.reshape(len(legal_joint), self._before, self.num_focal, self._behind)
        return parts.transpose(0, 2, 1, 3).reshape(len(legal_joint), self.num_focal, self.num_team)

    @staticmethod
    def _checked(values: ArrayLike, limit: int, name: str) -> NDArray[np.int64]:
        given = np.asarray(values)
        if given.size and given.dtype.kind not in "iu":
            raise UsageError(f"{name}s are integers, not {given.dtype}")
        wide = given.astype(np.int64)
        if wide.size and not 0 <= wide.min() <= wide.max() < limit:
            position = int(np.argmax(((wide < 0) | (wide >= limit)).reshape(-1)))
            raise UsageError(
                f"{name} {wide.reshape(-1)[position]} at position {position} of the batch "
                f"isn't within 0 to {limit - 1}"
            )
        return wide
