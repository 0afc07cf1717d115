"""Assigning the fields of records to roles: by override, by name; candidates, agents, what is left over."""

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
from omstore.legacy.schema import KEY, KEY2, PickleTree

__all__ = [
    "Refusal",
    "Roles",
    "agent_order",
    "choose_records",
    "count_agents",
    "is_called",
    "is_guesswork",
    "nothing_fits",
    "per_agent_field",
    "refuse_rivals",
    "unknown_range",
]

_STORED = ("probability", "reward", "done")

Refusal = tuple[Records, BadDataError]
"""Records that were tried, and why they are not it."""


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
        """List the record's own fields if they have positions instead of names."""
        schema = self.records.schema
        return self.top_level() if schema.positional or schema.record in ("value", "tuple") else []

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


def choose_records(
    found: Sequence[Records], wanted: Sequence[str], override: str | None, what: str
) -> list[Records]:
    """Order candidates: the one asked for, else those with a telling name, else the longest."""
    if override is not None:
        exact = [r for r in found if r.name == override or (r.path and str(r.path[-1]) == override)]
        if not exact:
            listed = ", ".join(f"{r.name} ({r.num_rows:,} records)" for r in found) or "nothing like records"
            raise UsageError(f"nothing called {override!r} to take as {what}", f"The pickle holds: {listed}.")
        return exact

    return sorted(found, key=lambda r: (_telling(r, wanted), len(r.path), -r.num_rows))


def _telling(records: Records, wanted: Sequence[str]) -> int:
    """Rank of the innermost name around the records among those wanted; the root has the last but one."""
    if records.path == ():
        return len(wanted) - 1
    steps = [snake_case(step) for step in records.path if isinstance(step, str)]
    return min((wanted.index(step) for step in steps[-1:] if step in wanted), default=len(wanted))


def refuse_rivals(records: Records, found: Sequence[Records], wanted: Sequence[str], option: str) -> None:
    """Refuse to take one of several containers with records alike, none of which has a better name.

    They may be episodes, or the edges of one node each: taking the longest would drop the others in silence.

    Raises
    ------
    BadDataError
        Naming them, and the option that says which.
    """
    alike = [
        other
        for other in found
        if _telling(other, wanted) <= _telling(records, wanted) and _signature(other) == _signature(records)
    ]
    if len(alike) > 1:
        shown = ", ".join(
            f"{other.name} ({other.num_rows:,})" for other in sorted(alike, key=lambda r: r.schema.id)[:5]
        )
        more = f" and {len(alike) - 5:,} more" if len(alike) > 5 else ""
        raise BadDataError(
            f"{len(alike):,} containers hold records alike, and it can't be told which are the {option}: {shown}{more}",
            f"Export them as one list, or say which to take, and leave the others out, with --map {option}=NAME.",
        )


def _signature(records: Records) -> list[tuple[object, ...]]:
    return [(column.path, column.kind, column.shape) for column in records.schema.columns]


def is_called(records: Records, names: Sequence[str]) -> bool:
    """Whether the container of the records has one of these names."""
    return any(isinstance(step, str) and snake_case(step) in names for step in records.path[-1:])


def is_guesswork(records: Records, refused: Sequence[Refusal], names: Sequence[str]) -> bool:
    """Whether taking records without field names would be a wild guess: others have a telling name, and were
    refused because something about them has to be said.
    """
    unnamed = records.schema.positional or records.schema.record in ("value", "tuple")
    return unnamed and any(is_called(other, names) for other, _ in refused)


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


def nothing_fits(what: str, reasons: Sequence[Refusal], tree: PickleTree) -> BadDataError:
    """Make the error for a pickle in which nothing plays the part, from why the candidates don't."""
    if not reasons:
        return BadDataError(
            f"the pickle holds nothing like {what}: its root is a {type(tree.root).__name__} without records",
            "Is it the right file? `omstore peek FILE` shows what is in it.",
        )
    likely = reasons[0][1]
    if len(reasons) == 1:
        return likely
    listed = ", ".join(f"{records.name} ({records.num_rows:,})" for records, _ in reasons)
    option = "edges" if what == "edges" else "transitions"
    return BadDataError(
        f"{likely.message}; the pickle holds: {listed}",
        f"{likely.hint} Which records to take: --map {option}=NAME.",
    )
