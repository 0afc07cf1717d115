"""Assigning the fields of records to roles: by override, by name; agents, and what is left over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from omstore.errors import BadDataError, UsageError
from omstore.legacy.fields import (
    ColumnRange,
    ColumnRef,
    Field,
    Group,
    RangeOf,
    Records,
    dotted,
    field_of,
    groups_of,
    snake_case,
)
from omstore.legacy.mapped import Dropped
from omstore.legacy.schema import KEY, KEY2

__all__ = ["Roles", "agent_order", "count_agents", "per_agent_field", "unknown_range"]

_STORED = ("probability", "reward", "done")


def unknown_range(records: Records, ref: ColumnRef) -> ColumnRange | None:
    """Know nothing of any column: for a pickle whose data nobody has looked at."""
    return None


@dataclass
class Roles:
    """Assigns fields of one kind of record, keeping track of what is taken.

    Attributes
    ----------
    records : Records
    map : mapping
        ``--map``.
    groups : list of Group
        Every place of a record that could play a role.
    taken : dict
        Role -> the place that plays it.
    """

    records: Records
    map: Mapping[str, str]
    groups: list[Group] = field(default_factory=list)
    taken: dict[str, Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = groups_of(self.records)

    def top_level(self) -> list[Group]:
        """List the record's own fields, without what is inside them."""
        depth = 1
        if self.records.schema.record == "item":
            depth = 2  # below VALUE
        fields = [g for g in self.groups if len(g.path) == depth and not any(ref.link for ref in g.columns)]
        return [g for g in fields if g.path[0] not in (KEY, KEY2)]

    def find(self, name: str, what: str) -> Group:
        """Find a group by dotted path, last name or position."""
        for group in self.groups:
            if group.name == name:
                return group
        ends = [g for g in self.groups if g.path and str(g.path[-1]) == name]
        if len(ends) == 1:
            return ends[0]
        top = self.top_level()
        if name.isdecimal() and int(name) < len(top):
            return top[int(name)]
        found = ", ".join(g.name for g in self.groups if g.name) or "one value a record"
        raise UsageError(
            f"{self.records.name} has no field {name!r} ({what})"
            if not ends
            else f"several fields are called {name!r}",
            f"It has: {found}.",
        )

    def by_override(self, roles: Sequence[str], prefix: str = "") -> None:
        """Take the fields that ``--map`` names, a name with the prefix before one without.

        One without may be meant for the other file: a position that isn't here is passed over then.
        """
        for role in roles:
            name = self.map.get(prefix + role)
            if name is None and prefix:
                name = self.map.get(role)
                if name is not None and name.isdecimal() and int(name) >= len(self.unnamed()):
                    continue
            if name is not None:
                self.taken[role] = self.find(name, f"--map {role}={name}")

    def unnamed(self) -> list[Group]:
        """List the record's own fields if they have no names."""
        return self.top_level() if self.records.unnamed else []

    def by_name(self, roles: Mapping[str, Sequence[str]]) -> None:
        """Take fields by their names, the most telling name first, the outermost field first."""
        for role, aliases in roles.items():
            if role in self.taken:
                continue
            used = {ref for group in self.taken.values() for ref in group.columns}
            best: tuple[int, int, Group] | None = None
            for group in self.groups:
                if not group.path or not isinstance(group.path[-1], str) or used & set(group.columns):
                    continue
                name = snake_case(group.path[-1])
                if name in aliases:
                    rank = (aliases.index(name), len(group.path))
                    if best is None or rank < best[:2]:
                        best = (*rank, group)
            if best is not None:
                self.taken[role] = best[2]

    def require(self, roles: Sequence[str]) -> None:
        """Raise `BadDataError`, with what was found, unless every one of the roles is taken."""
        missing = [role for role in roles if role not in self.taken]
        if missing:
            found = ", ".join(g.name for g in self.groups if g.name) or "one bare value a record"
            raise BadDataError(
                f"{self.records.name}: no field of its records is recognised as {', '.join(missing)}; found: {found}",
                "Say which with " + " ".join(f"--map {role}=NAME" for role in missing) + ".",
            )

    def fields(self, roles: Sequence[str]) -> dict[str, Field]:
        """Make the fields of those of the roles that are taken."""
        return {role: field_of(self.records, self.taken[role]) for role in roles if role in self.taken}

    def key(self, step: str) -> Group | None:
        """Return the outer or inner key of an adjacency."""
        return next((g for g in self.groups if g.path == (step,) and any(r.link for r in g.columns)), None)

    def endpoint(self, role: str) -> Field:
        """Make a field of a node; of a nested object with an id and a state, the state counts."""
        group = self.taken[role]
        vectors = [i for i, ref in enumerate(group.columns) if self.records.column(ref).kind == "vector"]
        if len(vectors) == 1 and len(group.columns) > 1:
            ref = group.columns[vectors[0]]
            group = Group(self.records.column(ref).path, (ref,), (), frozenset({"vector"}))
        return field_of(self.records, group)

    def left_over(
        self, keep: Sequence[str], range_of: RangeOf
    ) -> tuple[list[tuple[str, Field]], list[Dropped]]:
        """Sort out the fields no role took: those to keep, and why the others are dropped."""
        kept: list[tuple[str, Field]] = []
        dropped: list[Dropped] = []
        used = {ref for group in self.taken.values() for ref in group.columns}
        columns_used = {(ref.column, ref.link) for ref in used}
        for name in keep:
            try:
                group = self.find(name, f"--keep {name}")
            except UsageError:
                continue
            short = snake_case(name.split(".")[-1]) or "kept"
            if short in _STORED or short in dict(kept):
                raise UsageError(
                    f"--keep {name} would be stored as {short!r}, which is taken",
                    "A field that plays a role is stored anyway; rename one of two fields of the same name.",
                )
            kept.append((short, field_of(self.records, group)))
            columns_used |= {(ref.column, ref.link) for ref in group.columns}
        for i, column in enumerate(self.records.schema.columns):
            if (i, False) in columns_used or column.path[:1] in ((KEY,), (KEY2,)):
                continue
            seen = range_of(self.records, ColumnRef(i, 0, 1))
            if seen is not None and seen.minimum == seen.maximum and seen.finite:
                reason = f"always {seen.minimum:g}"
            else:
                reason = f"not asked for (--keep {dotted(column.path)} stores it)"
            dropped.append(Dropped(dotted(column.path), reason))
        for ignored in self.records.schema.ignored:
            dropped.append(Dropped(dotted(ignored.path) or self.records.name, ignored.reason))
        return kept, dropped


def count_agents(fields: Sequence[Field | None]) -> tuple[tuple[str, ...], int | None]:
    """Name the agents by the keys of the first dict per agent; else count them by the first vector."""
    for where in fields:
        if where is not None and len(where.keys) > 1:
            return tuple(str(where.keys[i]) for i in agent_order(where.keys)), len(where.keys)
    for where in fields:
        if where is not None and where.width > 1:
            return (), where.width
    return (), None


def agent_order(keys: Sequence[str | int]) -> list[int]:
    """Order agents: integers ascending, names as the record has them."""
    if all(isinstance(key, int) for key in keys):
        return sorted(range(len(keys)), key=lambda i: int(keys[i]))
    return list(range(len(keys)))


def per_agent_field(roles: Roles, role: str, agents: Sequence[str]) -> Field | None:
    """Make a field with one column an agent, in the agents' order."""
    group = roles.taken.get(role)
    if group is None:
        return None
    if len(group.keys) > 1 and agents:
        keys = [str(key) for key in group.keys]
        if sorted(keys) != sorted(agents):
            raise BadDataError(
                f"{roles.records.name}: {group.name} is given for {', '.join(keys)}, where the agents "
                f"are {', '.join(agents)}"
            )
        return field_of(roles.records, group, [keys.index(agent) for agent in agents])
    return field_of(roles.records, group)
