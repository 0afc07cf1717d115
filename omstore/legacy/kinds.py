"""Which field of a record without field names plays which role: judged by kinds, shapes, ranges and order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from omstore.errors import BadDataError
from omstore.legacy.fields import Group, RangeOf, Records

__all__ = ["infer_roles"]


class _Judge:
    def __init__(self, records: Records, range_of: RangeOf) -> None:
        self.records = records
        self.range_of = range_of

    def width(self, group: Group) -> int:
        return sum(ref.width for ref in group.columns)

    def signature(self, group: Group) -> tuple[object, ...]:
        depth = len(group.path)
        columns = [self.records.column(ref) for ref in group.columns]
        return tuple(
            (
                c.path[depth:],
                c.shape if ref.width > 1 else (),
                "b" if c.kind == "bool" else c.dtype.kind.replace("u", "i"),
            )
            for c, ref in zip(columns, group.columns, strict=True)
        )

    def is_bool(self, group: Group) -> bool:
        return group.kinds == {"bool"}

    def is_integer(self, group: Group) -> bool:
        """Only whole numbers, no bools: by type, and in a bare tuple of floats by what was seen."""
        if self.is_bool(group):
            return False
        if all(self.records.column(ref).dtype.kind in "iu" for ref in group.columns):
            return True
        seen = [self.range_of(self.records, ref) for ref in group.columns]
        return self.records.schema.record == "value" and all(r is not None and r.whole for r in seen)

    def low(self, group: Group) -> float:
        found = [self.range_of(self.records, ref) for ref in group.columns]
        return min((r.minimum for r in found if r is not None), default=math.inf)

    def high(self, group: Group) -> float:
        found = [self.range_of(self.records, ref) for ref in group.columns]
        return max((r.maximum for r in found if r is not None), default=-math.inf)


def infer_roles(
    records: Records, groups: Sequence[Group], range_of: RangeOf, known: Mapping[str, Group]
) -> dict[str, Group]:
    """Assign ``source``, ``next_node``, ``joint_action``, ``probability``, ``reward`` and ``done`` to unnamed
    fields.

    Parameters
    ----------
    groups : sequence of Group
        The record's fields, in order.
    range_of : callable
        What was seen of a column.
    known : mapping of str to Group
        Roles that are settled: by an override, or by the keys of an adjacency.

    Raises
    ------
    BadDataError
        When source, next node or joint action can't be told.
    """
    judge = _Judge(records, range_of)
    roles = dict(known)
    left = [group for group in groups if not _overlaps(group, roles)]
    with_action = "joint_action" not in roles
    if "source" not in roles and "next_node" not in roles:
        roles["source"], roles["next_node"] = _endpoints(judge, left, with_action=with_action)
    elif "next_node" not in roles:
        roles["next_node"] = _other_end(judge, left, roles["source"], "next_node", with_action=with_action)
    elif "source" not in roles:
        roles["source"] = _other_end(judge, left, roles["next_node"], "source", with_action=with_action)
    left = [group for group in left if not _overlaps(group, roles)]
    if with_action:
        action = _joint_action(judge, left)
        if action is None:
            raise _undecided(records, groups, "which field is the joint action", "joint_action")
        roles["joint_action"] = action
        left.remove(action)
    _outcome(judge, left, roles)
    return roles


def _overlaps(group: Group, roles: Mapping[str, Group]) -> bool:
    used = {ref for role in roles.values() for ref in role.columns}
    return bool(used & set(group.columns))


def _endpoints(judge: _Judge, groups: list[Group], *, with_action: bool) -> tuple[Group, Group]:
    alike: dict[tuple[object, ...], list[Group]] = {}
    for group in groups:
        if not judge.is_bool(group):
            alike.setdefault(judge.signature(group), []).append(group)
    scalars = [g for g in groups if judge.is_integer(g) and judge.width(g) == 1 and len(g.columns) == 1]
    vectors = sorted(
        (members for members in alike.values() if len(members) > 1 and judge.width(members[0]) > 1),
        key=lambda members: -judge.width(members[0]),
    )
    if len(scalars) == 2 and (with_action or not vectors):
        return scalars[0], scalars[1]
    if vectors:
        members = vectors[0]
        if len(members) == 3 and with_action:  # states that look like joint actions
            return _without_action(judge, members, groups)
        if len(members) == 2:
            return members[0], members[1]
    if len(scalars) == 2:
        return scalars[0], scalars[1]
    if len(scalars) == 3 and with_action:
        return _without_action(judge, scalars, groups)
    raise _undecided(
        judge.records, groups, "which fields are the source and the next node", "source", "next_node"
    )


def _without_action(judge: _Judge, three: list[Group], groups: list[Group]) -> tuple[Group, Group]:
    """Of three alike, tell the two endpoints: the joint action is the one with clearly smaller numbers."""
    first, second, third = three
    high = {group: judge.high(group) for group in three}
    if high[second] <= min(high[first], high[third]):
        return first, third  # (s, a, s'), the usual order; also when nothing tells them apart
    if high[third] < min(high[first], high[second]):
        return first, second
    if high[first] < min(high[second], high[third]):
        return second, third
    raise _undecided(
        judge.records, groups, "which fields are the source and the next node", "source", "next_node"
    )


def _other_end(judge: _Judge, groups: list[Group], end: Group, role: str, *, with_action: bool) -> Group:
    """Find the other endpoint, where one is known, most often by an adjacency's keys.

    Records may repeat what the keys say, so of several that could be nodes none is guessed.
    """
    width = judge.width(end)
    candidates = [g for g in groups if judge.is_integer(g) and judge.width(g) == width]
    if width > 1 and not candidates:
        candidates = [g for g in groups if not judge.is_bool(g) and judge.width(g) == width]
    if len(candidates) == 1:
        return candidates[0]
    if len(candidates) == 2 and with_action and not _joint_actions(judge, _without(groups, candidates)):
        # the joint action is the one with smaller numbers
        small, large = sorted(candidates, key=judge.high)
        if judge.high(small) < judge.high(large):
            return large
    if not with_action:
        # Rewards, flags and counters are whole numbers as well, but rarely in the range of the nodes.
        nodes = [g for g in candidates if judge.low(g) >= 0 and not judge.high(g) <= 1 < judge.high(end)]
        if len(nodes) == 1:
            return nodes[0]
    raise _undecided(judge.records, groups, f"which field is the {role.replace('_', ' ')}", role)


def _without(groups: list[Group], others: list[Group]) -> list[Group]:
    return [group for group in groups if group not in others]


def _joint_action(judge: _Judge, groups: list[Group]) -> Group | None:
    return next(iter(_joint_actions(judge, groups)), None)


def _joint_actions(judge: _Judge, groups: list[Group]) -> list[Group]:
    whole = [g for g in groups if judge.is_integer(g) and not judge.low(g) < 0]
    return [g for g in whole if judge.width(g) > 1] or whole


def _outcome(judge: _Judge, left: list[Group], roles: dict[str, Group]) -> None:
    """Find probability, reward and done among what is left; each may be absent."""
    for group in left:
        if judge.is_bool(group) and judge.width(group) == 1 and "done" not in roles:
            roles["done"] = group
    scalars = [g for g in left if g not in roles.values() and judge.width(g) == 1 and not judge.is_bool(g)]
    several = [g for g in left if g not in roles.values() and judge.width(g) > 1]
    if several:
        roles["reward"] = several[0]
    for group in scalars:
        fraction = not judge.is_integer(group) and judge.low(group) >= 0 and judge.high(group) <= 1
        if "probability" not in roles and fraction:
            roles["probability"] = group
        elif (
            "done" not in roles
            and judge.is_integer(group)
            and (judge.low(group), judge.high(group)) == (0, 1)
        ):
            roles["done"] = group
        elif "reward" not in roles:
            roles["reward"] = group


def _undecided(records: Records, groups: Sequence[Group], what: str, *fields: str) -> BadDataError:
    shown = []
    for i, group in enumerate(groups):
        kinds = "/".join(sorted(group.kinds))
        shown.append(f"{i}: {kinds} x {sum(ref.width for ref in group.columns)}")
    options = " ".join(f"--map {name}=POSITION" for name in fields)
    return BadDataError(
        f"records of {records.name} have no field names, and it can't be told {what}; fields by position: "
        + ", ".join(shown),
        f"Say it with {options}.",
    )
