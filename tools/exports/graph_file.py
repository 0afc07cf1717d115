"""The object that ``env_transition_graph.pkl`` holds, in each of its legacy shapes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tools.exports.records import LegacyClasses, edge_roles
from tools.exports.spec import ExportSpec
from tools.exports.truth import GraphTruth
from tools.exports.values import ValueMaker
from tools.worlds.world import World

__all__ = ["graph_object"]

CHUNK = 1 << 16
"""Records whose columns become Python values at a time; the records all stay in memory, as the group's
did."""


def graph_object(spec: ExportSpec, world: World, truth: GraphTruth, classes: LegacyClasses) -> Any:
    """Build the object that the graph's file holds."""
    values = ValueMaker(spec, world)
    nodes = _nodes(spec, truth, values)
    records = _edge_records(spec, truth, values, classes)
    edges: Any = list(records)
    if spec.graph == "adjacency":
        edges = _grouped(_keys(spec, truth, values), edges)
    elif spec.graph == "adjacency2":
        edges = _grouped(_keys(spec, truth, values), edges, _action_keys(spec, truth, values))
    if spec.graph == "edge-list" or (spec.nodes == "absent" and spec.graph.startswith("adjacency")):
        return edges
    names = spec.field_names
    parts = {} if spec.nodes == "absent" else {names["nodes"]: _node_container(spec, truth, nodes)}
    parts |= {names["edges"]: edges, "agents": list(world.agents), "num_actions": list(world.num_actions)}
    return parts if spec.graph == "dict" else classes.graph(**parts)


def _nodes(spec: ExportSpec, truth: GraphTruth, values: ValueMaker) -> list[Any]:
    """Node objects by ascending legacy id."""
    if spec.nodes in ("array", "absent"):
        return []
    shapes = {"list-tuple": "tuple", "list-bytes": "bytes", "list-array": "array", "dict-id-state": "array"}
    hashable = "bytes" if spec.endpoints == "bytes" else "tuple"  # states as the keys of a dict must be
    return list(values.states(shapes.get(spec.nodes, hashable), truth.states))


def _node_container(spec: ExportSpec, truth: GraphTruth, nodes: list[Any]) -> Any:
    if spec.nodes == "array":
        return truth.states.astype(spec.state_dtype)
    if not spec.nodes.startswith("dict"):
        return nodes
    ids = truth.node_id.tolist()
    return (
        dict(zip(nodes, ids, strict=True))
        if spec.nodes == "dict-state-id"
        else dict(zip(ids, nodes, strict=True))
    )


def _endpoints(spec: ExportSpec, truth: GraphTruth, values: ValueMaker, column: Any) -> Iterable[Any]:
    """Source or next node of a chunk of edges."""
    if spec.endpoints == "id":
        return values.scalars(column)
    return values.states(spec.endpoints, truth.states[np.searchsorted(truth.node_id, column)])


def _edge_records(
    spec: ExportSpec, truth: GraphTruth, values: ValueMaker, classes: LegacyClasses
) -> Iterator[Any]:
    roles = edge_roles(spec)
    for first in range(0, truth.src.size, CHUNK):
        part = slice(first, first + CHUNK)
        count = truth.src[part].size
        made: dict[str, Iterable[Any]] = {
            "src": _endpoints(spec, truth, values, truth.src[part]),
            "action": values.joint_actions(spec.joint_action, truth.joint_action[part]),
            "dst": _endpoints(spec, truth, values, truth.dst[part]),
            "prob": values.scalars(truth.probability[part]),
            "reward": () if spec.reward == "none" else values.rewards(spec.reward, truth.reward[part]),
            "done": values.scalars(truth.done[part]),
            "info": [None] * count,
            "kind": ["model"] * count,
            "visits": values.scalars(truth.visits[part]),
        }
        yield from map(classes.edge, *(made[role] for role in roles))


def _keys(spec: ExportSpec, truth: GraphTruth, values: ValueMaker) -> Iterator[Any]:
    """Outer keys of an adjacency, one an edge: hashable, so an array becomes bytes."""
    shape = "bytes" if spec.endpoints == "array" else spec.endpoints
    for first in range(0, truth.src.size, CHUNK):
        src = truth.src[first : first + CHUNK]
        if shape == "id":
            yield from src.tolist()
        else:
            yield from values.states(shape, truth.states[np.searchsorted(truth.node_id, src)])


def _action_keys(spec: ExportSpec, truth: GraphTruth, values: ValueMaker) -> Iterator[Any]:
    """Inner keys: the class number, or a tuple."""
    shape = "class" if spec.joint_action == "class" else "tuple"
    for first in range(0, truth.src.size, CHUNK):
        yield from values.joint_actions(shape, truth.joint_action[first : first + CHUNK])


def _grouped(keys: Iterator[Any], records: list[Any], inner: Iterator[Any] | None = None) -> dict[Any, Any]:
    groups: dict[Any, Any] = {}
    if inner is None:
        for key, record in zip(keys, records, strict=True):
            groups.setdefault(key, []).append(record)
    else:
        for key, action, record in zip(keys, inner, records, strict=True):
            groups.setdefault(key, {}).setdefault(action, []).append(record)
    return groups
