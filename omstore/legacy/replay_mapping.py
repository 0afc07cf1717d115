"""Finding the transitions of a replay in a legacy pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omstore.errors import BadDataError, UsageError
from omstore.legacy import names
from omstore.legacy.candidates import choose_roles
from omstore.legacy.fields import (
    ColumnRef,
    Field,
    Group,
    RangeOf,
    Records,
    field_of,
    snake_case,
    walk,
)
from omstore.legacy.kinds import infer_roles
from omstore.legacy.mapped import ReplayMapping
from omstore.legacy.roles import Roles, agent_order, count_agents, per_agent_field, unknown_range
from omstore.legacy.schema import PickleTree

__all__ = ["map_replay"]


def map_replay(
    tree: PickleTree,
    range_of: RangeOf = unknown_range,
    *,
    overrides: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    focal: str | None = None,
    agents: Sequence[str] = (),
) -> ReplayMapping:
    """Find the transitions of a replay in a pickle's tree.

    Parameters
    ----------
    focal : str, optional
        Name or number of the agent whose observation is the state; agent 0 by default.
    agents : sequence of str, optional
        The graph's agents: where the replay names the same ones, they are taken in this order.

    Others as in `map_graph`, and so are the errors.
    """
    overrides = overrides or {}
    roles, _ = choose_roles(
        tree,
        "transitions",
        names.REPLAY_TABLES,
        overrides,
        lambda records: _replay_roles(records, overrides, range_of),
    )
    return _replay(roles, tree, overrides, keep, focal, agents, range_of)


def _replay_roles(records: Records, overrides: Mapping[str, str], range_of: RangeOf) -> Roles:
    roles = Roles(records, overrides)
    roles.by_override(["next_observation", "observation"])
    roles.by_override(["joint_action", "reward", "done"], prefix="replay_")
    if records.unnamed:
        renamed = {"observation": "source", "next_observation": "next_node"}
        known = {renamed.get(role, role): group for role, group in roles.taken.items()}
        inferred = infer_roles(records, roles.top_level(), range_of, known)
        probability = inferred.pop("probability", None)
        if probability is not None:  # a replay has none: it is a reward within 0..1
            inferred.setdefault("reward", probability)
        back = {"source": "observation", "next_node": "next_observation"}
        roles.taken = {back.get(role, role): group for role, group in inferred.items()}
    else:
        roles.by_name(names.REPLAY_ROLES)
    roles.require(("observation", "next_observation", "joint_action"))
    return roles


def _replay(
    roles: Roles,
    tree: PickleTree,
    overrides: Mapping[str, str],
    keep: Sequence[str],
    focal: str | None,
    given: Sequence[str],
    range_of: RangeOf,
) -> ReplayMapping:
    records = roles.records
    plain = roles.fields(("joint_action", "reward", "done"))
    observations = _observations(roles, "observation")
    next_observations = _observations(roles, "next_observation")
    agents, count = count_agents([plain.get("joint_action"), plain.get("reward")])
    if agents and sorted(agents) == sorted(given):
        agents = tuple(given)
    if len(observations) > 1:
        seen = [name for name, _ in observations]
        if not agents:
            agents, count = tuple(given if sorted(given) == sorted(seen) else seen), len(seen)
        if sorted(name for name, _ in next_observations) != sorted(seen):
            raise BadDataError(
                f"{records.name}: observations are of {', '.join(seen)}, next observations of "
                + (", ".join(name for name, _ in next_observations) or "one for all")
            )
        order = [a for a in agents if a in seen] + [a for a in seen if a not in agents]
        observations = [(a, dict(observations)[a]) for a in order]
        next_observations = [(a, dict(next_observations)[a]) for a in order]
    chosen = _focal(focal, [name for name, _ in observations], agents)
    kept, dropped = roles.left_over(keep, range_of)
    first, rows = _ring(records, tree, overrides)
    return ReplayMapping(
        records=records,
        observations=tuple(observations),
        next_observations=tuple(next_observations),
        focal=chosen,
        joint_action=per_agent_field(roles, "joint_action", agents) or plain["joint_action"],
        reward=per_agent_field(roles, "reward", agents),
        done=plain.get("done"),
        kept=tuple(kept),
        agents=agents,
        num_agents=count,
        first=first,
        count=rows,
        dropped=tuple(dropped),
    )


def _observations(roles: Roles, role: str) -> list[tuple[str, Field]]:
    """Split observations per agent; one named ``""`` when they aren't."""
    group = roles.taken[role]
    depth = len(group.path)
    below: dict[str | int, list[ColumnRef]] = {}
    for ref in group.columns:
        rest = roles.records.column(ref).path[depth:]
        if not rest:
            return [("", field_of(roles.records, group))]
        below.setdefault(rest[0], []).append(ref)
    steps = list(below)
    order = agent_order(steps)
    return [
        (
            str(steps[i]),
            field_of(roles.records, Group((*group.path, steps[i]), tuple(below[steps[i]]), (), frozenset())),
        )
        for i in order
    ]


def _focal(focal: str | None, observed: Sequence[str], agents: Sequence[str]) -> int:
    if focal is None or observed == [""]:
        return 0
    if focal in observed:
        return list(observed).index(focal)
    if focal.isdecimal() and int(focal) < len(observed):
        return int(focal)
    raise UsageError(
        f"there is no agent {focal!r} (--focal)", f"The observations are of: {', '.join(observed)}."
    )


def _ring(records: Records, tree: PickleTree, overrides: Mapping[str, str]) -> tuple[int, int]:
    """Find where the oldest record is, and how many there are, from the integers beside the records."""
    beside: dict[str, int] = {}
    for path, value in walk(tree.root):
        around = path[:-1] in (records.path, records.path[:-1]) and path != records.path
        if path and around and isinstance(path[-1], str) and isinstance(value, int):
            beside[str(path[-1])] = int(value)

    def look_up(field_name: str, aliases: Sequence[str]) -> int | None:
        if field_name in overrides:
            if overrides[field_name] not in beside:
                raise UsageError(
                    f"there is no integer {overrides[field_name]!r} beside {records.name} (--map "
                    f"{field_name})",
                    f"There are: {', '.join(beside) or 'none'}.",
                )
            return beside[overrides[field_name]]
        by_name = {snake_case(name): value for name, value in beside.items() if not isinstance(value, bool)}
        return next((by_name[alias] for alias in aliases if alias in by_name), None)

    rows = records.num_rows
    position = look_up("ring_position", names.RING_POSITIONS)
    size = look_up("ring_size", names.RING_SIZES)
    full = next((beside[name] for name in beside if snake_case(name) in ("full", "is_full")), None)
    if records.schema.container == "columns":  # preallocated: the end may be unused
        if full is not None and not full and position is not None and position <= rows:
            return 0, position
        if size is not None and size < rows:
            return 0, max(size, 0)
    if position is not None and 0 < position < rows:
        return position, rows
    return 0, rows
