"""The joint action space: how many actions each agent has, and joint actions as mixed-radix integers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel
from omstore.convert.records import RecordReader
from omstore.errors import BadDataError, UsageError
from omstore.legacy.fields import Field

__all__ = ["ActionSpace", "ActionUse", "find_action_space"]


@kernel
def _encode(actions: NDArray[np.int64], radices: NDArray[np.int64], codes: NDArray[np.int64]) -> int:
    """Encode rows of actions, agent 0 most significant; return the first row with an action out of range,
    or -1."""
    for i in range(actions.shape[0]):
        code = 0
        for j in range(radices.shape[0]):
            action = actions[i, j]
            if action < 0 or action >= radices[j]:
                return i
            code = code * radices[j] + action
        codes[i] = code
    return -1


@dataclass(frozen=True)
class ActionSpace:
    """The joint actions of a graph.

    Attributes
    ----------
    num_actions : tuple of int
        Of each agent, agent 0 first.
    """

    num_actions: tuple[int, ...]

    @property
    def num_joint_actions(self) -> int:
        """A, their product."""
        return math.prod(self.num_actions)

    def encode(self, actions: NDArray[Any], where: str, first: int) -> NDArray[np.int64]:
        """Encode joint actions, (n, agents) or (n, 1) class numbers, as (n,) mixed-radix integers.

        Parameters
        ----------
        where, first
            What to call record 0 of the batch in an error: "edges", its number.

        Raises
        ------
        BadDataError
            Naming the first record with a joint action out of range.
        """
        whole = as_integers(actions, where, first, "joint action")
        radices = np.array(
            self.num_actions if whole.shape[1] == len(self.num_actions) else [self.num_joint_actions],
            np.int64,
        )
        codes = np.empty(len(whole), np.int64)
        bad = int(_encode(whole, radices, codes))
        if bad >= 0:
            shown = ", ".join(str(int(a)) for a in whole[bad])
            raise BadDataError(
                f"{where}, record {first + bad}: joint action ({shown}), where actions from 0 to below "
                f"{', '.join(map(str, radices.tolist()))} were expected",
                "Say how many actions each agent has with --actions 5,5,5.",
            )
        return codes


def as_integers(values: NDArray[Any], where: str, first: int, what: str) -> NDArray[np.int64]:
    """Convert whole numbers of any type to int64, refusing fractions."""
    if values.dtype.kind != "f":
        return np.ascontiguousarray(values, np.int64)
    whole = np.isfinite(values) & (np.trunc(values) == values) & (np.abs(values) < 2**62)
    if not whole.all():
        bad = int(np.argmin(whole.all(axis=1)))
        raise BadDataError(
            f"{where}, record {first + bad}: {what} {values[bad].tolist()} isn't made of whole numbers"
        )
    return values.astype(np.int64)


@dataclass(frozen=True)
class ActionUse:
    """Where joint actions occur: a file's records and the field."""

    where: str
    reader: RecordReader
    field: Field


def find_action_space(
    uses: Sequence[ActionUse], num_agents: int | None, given: Sequence[int] | None
) -> tuple[ActionSpace, list[str]]:
    """Find out how many actions each agent has: the largest seen anywhere + 1, unless given.

    Parameters
    ----------
    uses : sequence of ActionUse
        The edges, the transitions.
    num_agents : int or None
        None when nothing tells.
    given : sequence of int or None
        ``--actions``.

    Returns
    -------
    space : ActionSpace
    notes : list of str
        What was concluded rather than read.

    Raises
    ------
    BadDataError
        When an action is negative, or joint actions are class numbers that can't be taken apart.
    UsageError
        When ``--actions`` doesn't fit the data.
    """
    highest = {use.where: _highest(use) for use in uses}
    several = [high for high in highest.values() if len(high) > 1]
    classes = max((int(high[0]) for high in highest.values() if len(high) == 1), default=-1)
    if len({len(high) for high in several}) > 1:
        counted = ", ".join(f"{where}: {len(high)}" for where, high in highest.items())
        raise BadDataError(f"joint actions are of different numbers of agents ({counted})")
    if given is not None:
        space = ActionSpace(tuple(int(count) for count in given))
        if several and len(several[0]) != len(space.num_actions):
            raise UsageError(
                f"--actions names {len(space.num_actions)} agents, the joint actions have {len(several[0])}"
            )
        if num_agents is not None and len(space.num_actions) != num_agents:
            raise UsageError(f"--actions names {len(space.num_actions)} agents, where there are {num_agents}")
        return space, []
    if several:
        space = ActionSpace(tuple(int(high) + 1 for high in np.max(several, axis=0)))
        if classes >= space.num_joint_actions:
            raise BadDataError(
                f"joint action number {classes} occurs, but the agents' actions make only "
                f"{space.num_joint_actions}",
                "Say how many actions each agent has with --actions 5,5,5.",
            )
        return space, []
    if num_agents is None or num_agents == 1:
        return ActionSpace((classes + 1,)), []
    each = round((classes + 1) ** (1 / num_agents))
    if each**num_agents != classes + 1:
        raise BadDataError(
            f"joint actions are class numbers up to {classes}, which don't say how many actions each of "
            f"{num_agents} agents has",
            "Say it with --actions 5,5,5.",
        )
    note = (
        f"joint actions are class numbers up to {classes}: taken as {each} actions for each of "
        f"{num_agents} agents, "
        "agent 0 most significant (--actions says otherwise)"
    )
    return ActionSpace((each,) * num_agents), [note]


def _highest(use: ActionUse) -> NDArray[np.int64]:
    low, high = use.reader.limits(use.field)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise BadDataError(f"{use.where}: there are no finite joint actions in field {use.field.name}")
    if (low < 0).any():
        for first, (values,) in use.reader.chunks([use.field]):
            rows = np.flatnonzero((values < 0).any(axis=1))
            if len(rows):
                shown = ", ".join(f"{value:g}" for value in values[rows[0]])
                raise BadDataError(
                    f"{use.where}, record {first + int(rows[0])}: joint action ({shown}) in field "
                    f"{use.field.name}; "
                    "actions are numbered from 0"
                )
    return high.astype(np.int64)
