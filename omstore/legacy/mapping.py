"""Which table and field of a legacy pickle plays which role; shown by ``omstore peek``, overridden with
``--map``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from omstore.errors import BadDataError, UsageError
from omstore.legacy import names
from omstore.legacy.fields import (
    ColumnRange,
    ColumnRef,
    Field,
    Group,
    RangeOf,
    Records,
    dotted,
    field_of,
    find_records,
    groups_of,
    snake_case,
    walk,
)
from omstore.legacy.kinds import infer_roles
from omstore.legacy.schema import KEY, KEY2, VALUE, PickleTree

__all__ = [
    "MAP_FIELDS",
    "Dropped",
    "GraphMapping",
    "NodesMapping",
    "ReplayMapping",
    "map_graph",
    "map_replay",
]

MAP_FIELDS = (
    *(
        "nodes",
        "edges",
        "node_state",
        "node_id",
        "source",
        "next_node",
        "joint_action",
        "probability",
        "reward",
    ),
    *("done", "transitions", "observation", "next_observation", "replay_joint_action", "replay_reward"),
    *("replay_done", "ring_position", "ring_size"),
)
"""What ``--map FIELD=NAME`` knows as FIELD. A ``replay_`` name goes before the one for both files."""


@dataclass(frozen=True)
class Dropped:
    """A field that isn't stored, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class NodesMapping:
    """Where the nodes' states are, and their legacy ids; ``id`` None: the position."""

    records: Records
    state: Field
    id: Field | None

    def describe(self) -> list[str]:
        """Write it for people, one role a line."""
        ids = self.id.name if self.id else "position"
        return [
            f"nodes: {self.records.name}, {self.records.num_rows:,} records",
            f"  state <- {_shown(self.state)}",
            f"  id <- {ids}",
        ]


@dataclass(frozen=True)
class GraphMapping:
    """The roles in a transition graph.

    Attributes
    ----------
    edges : Records
    nodes : NodesMapping or None
        None: the nodes are the endpoints of the edges.
    source, next_node, joint_action : Field
        Endpoints of one integer are legacy ids (of nodes by position or id), wider ones are states.
    probability, reward, done : Field or None
    kept : tuple of (str, Field)
    agents : tuple of str
        Names, where dict keys give them; else empty.
    num_agents : int or None
        None when nothing tells.
    dropped : tuple of Dropped
    """

    edges: Records
    nodes: NodesMapping | None
    source: Field
    next_node: Field
    joint_action: Field
    probability: Field | None
    reward: Field | None
    done: Field | None
    kept: tuple[tuple[str, Field], ...]
    agents: tuple[str, ...]
    num_agents: int | None
    dropped: tuple[Dropped, ...] = ()

    def describe(self) -> list[str]:
        """Write it for people, one role a line."""
        lines = self.nodes.describe() if self.nodes else ["nodes: none, taken from the edges' endpoints"]
        lines.append(
            f"edges: {self.edges.name}, {self.edges.num_rows:,} records of {self.edges.schema.record}"
        )
        for role in ("source", "next_node", "joint_action", "probability", "reward", "done"):
            lines.append(f"  {role} <- {_shown(getattr(self, role), _ABSENT.get(role, ''))}")
        lines += [f"  kept {name} <- {_shown(kept)}" for name, kept in self.kept]
        lines += [f"  dropped {drop.name}: {drop.reason}" for drop in self.dropped]
        return lines


@dataclass(frozen=True)
class ReplayMapping:
    """The roles in a replay.

    Attributes
    ----------
    records : Records
    observations, next_observations : tuple of (str, Field)
        Per agent; a single one named ``""`` when observations aren't per agent.
    focal : int
        Which of them is the state.
    joint_action : Field
    reward, done : Field or None
    kept : tuple of (str, Field)
    agents, num_agents
        As in `GraphMapping`.
    first, count : int
        A ring's records, oldest first: ``(first + i) % count``.
    """

    records: Records
    observations: tuple[tuple[str, Field], ...]
    next_observations: tuple[tuple[str, Field], ...]
    focal: int
    joint_action: Field
    reward: Field | None
    done: Field | None
    kept: tuple[tuple[str, Field], ...]
    agents: tuple[str, ...]
    num_agents: int | None
    first: int = 0
    count: int = 0
    dropped: tuple[Dropped, ...] = ()

    def describe(self) -> list[str]:
        """Write it for people, one role a line."""
        ring = f", a ring whose oldest record is number {self.first:,}" if self.first else ""
        lines = [
            f"replay: {self.records.name}, {self.count:,} transitions of {self.records.schema.record}{ring}"
        ]
        for title, fields in (
            ("observation", self.observations),
            ("next_observation", self.next_observations),
        ):
            for i, (agent, where) in enumerate(fields):
                note = " (focal: the state)" if i == self.focal else ""
                lines.append(f"  {title} {agent} <- {_shown(where)}{note}".replace("  <-", " <-"))
        for role in ("joint_action", "reward", "done"):
            lines.append(f"  {role} <- {_shown(getattr(self, role), _ABSENT.get(role, ''))}")
        lines += [f"  kept {name} <- {_shown(kept)}" for name, kept in self.kept]
        lines += [f"  dropped {drop.name}: {drop.reason}" for drop in self.dropped]
        return lines


_ABSENT = {"probability": "absent: 1", "reward": "absent: none stored", "done": "absent: false"}


def _shown(where: Field | None, absent: str = "absent") -> str:
    if where is None:
        return f"({absent})"
    return (
        f"{where.name} ({where.width} x {where.dtype})"
        if where.width > 1
        else f"{where.name} ({where.dtype})"
    )


def _unknown(records: Records, ref: ColumnRef) -> ColumnRange | None:
    return None


@dataclass
class _Roles:
    """Assigns fields of one kind of record, keeping track of what is taken."""

    records: Records
    map: Mapping[str, str]
    groups: list[Group] = field(default_factory=list)
    taken: dict[str, Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.groups = groups_of(self.records)

    def top_level(self) -> list[Group]:
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
        for role in roles:
            name = self.map.get(prefix + role, self.map.get(role)) if prefix else self.map.get(role)
            if name is not None:
                self.taken[role] = self.find(name, f"--map {role}={name}")

    def by_name(self, roles: Mapping[str, Sequence[str]]) -> None:
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
        kept, dropped = [], []
        used = {ref for group in self.taken.values() for ref in group.columns}
        columns_used = {(ref.column, ref.link) for ref in used}
        for name in keep:
            try:
                group = self.find(name, f"--keep {name}")
            except UsageError:
                continue
            kept.append((snake_case(name.split(".")[-1]) or "kept", field_of(self.records, group)))
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


def _choose(
    found: Sequence[Records], wanted: Sequence[str], override: str | None, what: str
) -> list[Records]:
    """Order candidates: the one asked for, else those with a telling name, else the longest."""
    if override is not None:
        exact = [r for r in found if r.name == override or (r.path and str(r.path[-1]) == override)]
        if not exact:
            listed = ", ".join(f"{r.name} ({r.num_rows:,} records)" for r in found) or "nothing like records"
            raise UsageError(f"nothing called {override!r} to take as {what}", f"The pickle holds: {listed}.")
        return exact

    def rank(records: Records) -> tuple[int, int, int]:
        steps = [snake_case(step) for step in records.path if isinstance(step, str)]
        if records.path == ():
            return (len(wanted) - 1, 0, -records.num_rows)
        telling = min((wanted.index(step) for step in steps[-1:] if step in wanted), default=len(wanted))
        return (telling, len(records.path), -records.num_rows)

    return sorted(found, key=rank)


def _agents(fields: Sequence[Field | None]) -> tuple[tuple[str, ...], int | None]:
    """Name the agents by the keys of the first dict per agent; else count them by the first vector."""
    for where in fields:
        if where is not None and len(where.keys) > 1:
            return tuple(str(where.keys[i]) for i in _agent_order(where.keys)), len(where.keys)
    for where in fields:
        if where is not None and where.width > 1:
            return (), where.width
    return (), None


def _agent_order(keys: Sequence[str | int]) -> list[int]:
    if all(isinstance(key, int) for key in keys):
        return sorted(range(len(keys)), key=lambda i: int(keys[i]))
    return list(range(len(keys)))


def _per_agent(roles: _Roles, role: str, agents: Sequence[str]) -> Field | None:
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


def map_graph(
    tree: PickleTree,
    range_of: RangeOf = _unknown,
    *,
    overrides: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
) -> GraphMapping:
    """Find nodes and edges in a pickle's tree.

    Parameters
    ----------
    range_of : callable, optional
        What was seen of a column; needed for records without field names only.
    overrides : mapping, optional
        ``--map``: field (one of `MAP_FIELDS`) to legacy name.
    keep : sequence of str
        ``--keep``: extra fields to store.

    Raises
    ------
    BadDataError
        When a role can't be decided; lists what was found and the option to use.
    UsageError
        When an override names what isn't there.
    """
    overrides = overrides or {}
    found = find_records(tree)
    reasons: list[OmissionReason] = []
    for records in _choose(found, names.EDGE_TABLES, overrides.get("edges"), "the edges"):
        try:
            roles = _edge_roles(records, overrides, range_of)
        except BadDataError as error:
            reasons.append((records, error))
            continue
        return _graph(roles, found, overrides, keep, range_of)
    raise _nothing_fits("edges", reasons, tree)


OmissionReason = tuple[Records, BadDataError]


def _edge_roles(records: Records, overrides: Mapping[str, str], range_of: RangeOf) -> _Roles:
    roles = _Roles(records, overrides)
    roles.by_override(list(names.EDGE_ROLES))
    positional = records.schema.positional or records.schema.record in ("value", "tuple")
    if not positional:
        roles.by_name(names.EDGE_ROLES)
    key, key2 = roles.key(KEY), roles.key(KEY2)
    if positional:
        known = dict(roles.taken)
        known |= {"source": key} if key is not None and "source" not in known else {}
        known |= {"joint_action": key2} if key2 is not None and "joint_action" not in known else {}
        roles.taken = infer_roles(records, roles.top_level(), range_of, known)
    if key is not None:
        roles.taken.setdefault("source", key)
    if key2 is not None:
        roles.taken.setdefault("joint_action", key2)
    missing = [role for role in ("source", "next_node", "joint_action") if role not in roles.taken]
    if missing:
        found = ", ".join(g.name for g in roles.groups if g.name) or "one bare value a record"
        raise BadDataError(
            f"{records.name}: no field of its records is recognised as {', '.join(missing)}; found: {found}",
            "Say which with " + " ".join(f"--map {role}=NAME" for role in missing) + ".",
        )
    return roles


def _graph(
    roles: _Roles,
    found: Sequence[Records],
    overrides: Mapping[str, str],
    keep: Sequence[str],
    range_of: RangeOf,
) -> GraphMapping:
    records = roles.records
    plain = {
        role: field_of(records, roles.taken[role])
        for role in ("joint_action", "reward")
        if role in roles.taken
    }
    agents, count = _agents([plain.get("joint_action"), plain.get("reward")])
    source, next_node = roles.endpoint("source"), roles.endpoint("next_node")
    if source.width != next_node.width:
        raise BadDataError(
            f"{records.name}: source {source.name} has {source.width} components, next node "
            f"{next_node.name} has {next_node.width}",
            "Say which fields they are with --map source=NAME --map next_node=NAME.",
        )
    kept, dropped = roles.left_over(keep, range_of)
    scalar = {
        role: field_of(records, roles.taken[role]) for role in ("probability", "done") if role in roles.taken
    }
    for role, where in scalar.items():
        if where.width != 1:
            raise BadDataError(
                f"{records.name}: {role} {where.name} has {where.width} numbers a record, where one was "
                f"expected",
                f"Say which field it is with --map {role}=NAME.",
            )
    others = [r for r in found if r.schema is not records.schema and r.schema is not records.link]
    return GraphMapping(
        edges=records,
        nodes=_map_nodes(others, overrides, source.width),
        source=source,
        next_node=next_node,
        joint_action=_per_agent(roles, "joint_action", agents) or plain["joint_action"],
        probability=scalar.get("probability"),
        reward=_per_agent(roles, "reward", agents),
        done=scalar.get("done"),
        kept=tuple(kept),
        agents=agents,
        num_agents=count,
        dropped=tuple(dropped),
    )


def _map_nodes(
    found: Sequence[Records], overrides: Mapping[str, str], endpoint_width: int
) -> NodesMapping | None:
    override = overrides.get("nodes")
    for records in _choose(found, names.NODE_TABLES, override, "the nodes"):
        telling = any(snake_case(s) in names.NODE_TABLES for s in records.path[-1:] if isinstance(s, str))
        roles = _Roles(records, overrides)
        state, node_id = _node_fields(roles)
        fits = state is not None and (
            endpoint_width == 1 or state.width == endpoint_width or node_id is not None
        )
        vector = state is not None and state.width > 1
        if state is not None and (override is not None or (fits and (telling or vector))):
            return NodesMapping(records, state, node_id)
        if override is not None:
            raise BadDataError(f"{records.name} holds no states", "Say which with --map node_state=NAME.")
    return None


def _node_fields(roles: _Roles) -> tuple[Field | None, Field | None]:
    records = roles.records
    roles.by_override(["node_state", "node_id"])
    columns = records.schema.columns
    refs = [group for group in roles.groups if len(group.columns) == 1]
    if "node_state" not in roles.taken:
        vectors = [g for g in refs if g.kinds == {"vector"} and _full(g, columns)]
        named = [g for g in roles.groups if g.path and snake_case(str(g.path[-1])) in names.STATE_NAMES]
        scalars = [
            i
            for i, c in enumerate(columns)
            if c.kind == "int" and not (c.path and snake_case(str(c.path[-1])) in names.ID_NAMES)
        ]
        if len(vectors) == 1:
            roles.taken["node_state"] = vectors[0]
        elif named:
            roles.taken["node_state"] = named[0]
        elif len(columns) == 1 and columns[0].kind == "int":
            roles.taken["node_state"] = refs[0]
        elif len(vectors) == 0 and len(scalars) > 1 and records.schema.container != "columns":
            below = [i for i in scalars if columns[i].path[:1] == (VALUE,)] or scalars
            roles.taken["node_state"] = Group(
                (), tuple(ColumnRef(i, 0, 1) for i in below), (), frozenset({"int"})
            )
        else:
            return None, None
    state = roles.taken["node_state"]
    if "node_id" not in roles.taken:
        used = {ref.column for ref in state.columns}
        single = [
            g for g in refs if g.kinds == {"int"} and g.columns[0].column not in used and _full(g, columns)
        ]
        named = [g for g in single if snake_case(str(g.path[-1])) in names.ID_NAMES]
        keyed = [g for g in single if g.path in ((KEY,), (VALUE,))]
        for choice in (named, keyed, single if len(single) == 1 and records.schema.positional else []):
            if choice:
                roles.taken["node_id"] = choice[0]
                break
    node_id = roles.taken.get("node_id")
    return field_of(records, state), field_of(records, node_id) if node_id else None


def _full(group: Group, columns: Sequence[object]) -> bool:
    return not group.columns[0].link and group.columns[0].column < len(columns)


def map_replay(
    tree: PickleTree,
    range_of: RangeOf = _unknown,
    *,
    overrides: Mapping[str, str] | None = None,
    keep: Sequence[str] = (),
    focal: str | None = None,
) -> ReplayMapping:
    """Find the transitions of a replay in a pickle's tree.

    Parameters
    ----------
    focal : str, optional
        Name or number of the agent whose observation is the state; agent 0 by default.

    Others as in `map_graph`, and so are the errors.
    """
    overrides = overrides or {}
    reasons: list[OmissionReason] = []
    for records in _choose(
        find_records(tree), names.REPLAY_TABLES, overrides.get("transitions"), "the transitions"
    ):
        try:
            roles = _replay_roles(records, overrides, range_of)
        except BadDataError as error:
            reasons.append((records, error))
            continue
        return _replay(roles, tree, overrides, keep, focal, range_of)
    raise _nothing_fits("transitions", reasons, tree)


def _replay_roles(records: Records, overrides: Mapping[str, str], range_of: RangeOf) -> _Roles:
    roles = _Roles(records, overrides)
    roles.by_override(["next_observation", "observation"])
    roles.by_override(["joint_action", "reward", "done"], prefix="replay_")
    if records.schema.positional or records.schema.record in ("value", "tuple"):
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
    missing = [
        role for role in ("observation", "next_observation", "joint_action") if role not in roles.taken
    ]
    if missing:
        found = ", ".join(g.name for g in roles.groups if g.name) or "one bare value a record"
        raise BadDataError(
            f"{records.name}: no field of its records is recognised as {', '.join(missing)}; found: {found}",
            "Say which with " + " ".join(f"--map {role}=NAME" for role in missing) + ".",
        )
    return roles


def _replay(
    roles: _Roles,
    tree: PickleTree,
    overrides: Mapping[str, str],
    keep: Sequence[str],
    focal: str | None,
    range_of: RangeOf,
) -> ReplayMapping:
    records = roles.records
    plain = {
        role: field_of(records, roles.taken[role])
        for role in ("joint_action", "reward")
        if role in roles.taken
    }
    observations = _observations(roles, "observation")
    next_observations = _observations(roles, "next_observation")
    agents, count = _agents([plain.get("joint_action"), plain.get("reward")])
    if len(observations) > 1:
        seen = [name for name, _ in observations]
        if not agents:
            agents, count = tuple(seen), len(seen)
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
    done = field_of(records, roles.taken["done"]) if "done" in roles.taken else None
    first, rows = _ring(records, tree, overrides)
    return ReplayMapping(
        records=records,
        observations=tuple(observations),
        next_observations=tuple(next_observations),
        focal=chosen,
        joint_action=_per_agent(roles, "joint_action", agents) or plain["joint_action"],
        reward=_per_agent(roles, "reward", agents),
        done=done,
        kept=tuple(kept),
        agents=agents,
        num_agents=count,
        first=first,
        count=rows,
        dropped=tuple(dropped),
    )


def _observations(roles: _Roles, role: str) -> list[tuple[str, Field]]:
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
    order = _agent_order(steps)
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


def _nothing_fits(what: str, reasons: Sequence[OmissionReason], tree: PickleTree) -> BadDataError:
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
