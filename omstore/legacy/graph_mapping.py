"""Finding nodes and edges in a legacy pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omstore.errors import BadDataError
from omstore.legacy import names
from omstore.legacy.candidates import choose_records, choose_roles
from omstore.legacy.fields import (
    ColumnRef,
    Field,
    Group,
    RangeOf,
    Records,
    field_of,
    snake_case,
)
from omstore.legacy.kinds import infer_roles
from omstore.legacy.mapped import GraphMapping, NodesMapping
from omstore.legacy.roles import Roles, count_agents, per_agent_field, unknown_range
from omstore.legacy.schema import KEY, KEY2, VALUE, PickleTree

__all__ = ["map_graph"]


def map_graph(
    tree: PickleTree,
    range_of: RangeOf = unknown_range,
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
    roles, found = choose_roles(
        tree, "edges", names.EDGE_TABLES, overrides, lambda records: _edge_roles(records, overrides, range_of)
    )
    return _graph(roles, found, overrides, keep, range_of)


def _edge_roles(records: Records, overrides: Mapping[str, str], range_of: RangeOf) -> Roles:
    roles = Roles(records, overrides)
    roles.by_override(list(names.EDGE_ROLES))
    if not records.unnamed:
        roles.by_name(names.EDGE_ROLES)
    key, key2 = roles.key(KEY), roles.key(KEY2)
    if records.unnamed:
        known = dict(roles.taken)
        known |= {"source": key} if key is not None and "source" not in known else {}
        known |= {"joint_action": key2} if key2 is not None and "joint_action" not in known else {}
        roles.taken = infer_roles(records, roles.top_level(), range_of, known)
    if key is not None:
        roles.taken.setdefault("source", key)
    if key2 is not None:
        roles.taken.setdefault("joint_action", key2)
    roles.require(("source", "next_node", "joint_action"))
    return roles


def _graph(
    roles: Roles,
    found: Sequence[Records],
    overrides: Mapping[str, str],
    keep: Sequence[str],
    range_of: RangeOf,
) -> GraphMapping:
    records = roles.records
    plain = roles.fields(("joint_action", "reward"))
    agents, count = count_agents([plain.get("joint_action"), plain.get("reward")])
    source, next_node = roles.endpoint("source"), roles.endpoint("next_node")
    if source.width != next_node.width:
        raise BadDataError(
            f"{records.name}: source {source.name} has {source.width} components, next node "
            f"{next_node.name} has {next_node.width}",
            "Say which fields they are with --map source=NAME --map next_node=NAME.",
        )
    kept, dropped = roles.left_over(keep, range_of)
    scalar = roles.fields(("probability", "done"))
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
        joint_action=per_agent_field(roles, "joint_action", agents) or plain["joint_action"],
        probability=scalar.get("probability"),
        reward=per_agent_field(roles, "reward", agents),
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
    for records in choose_records(found, names.NODE_TABLES, override, "the nodes"):
        telling = any(snake_case(s) in names.NODE_TABLES for s in records.path[-1:] if isinstance(s, str))
        roles = Roles(records, overrides)
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


def _node_fields(roles: Roles) -> tuple[Field | None, Field | None]:
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
