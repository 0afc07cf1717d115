"""The true values of an export, beside it: what a conversion is checked against."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.exports.spec import ExportSpec, make_world
from tools.worlds.walk import behaviour_table, walk
from tools.worlds.world import Floats, Ints, World

__all__ = ["GraphTruth", "ReplayTruth", "Truth", "graph_truth", "load_truth", "replay_truth"]

CHUNK_ROWS = 1 << 18
"""Rows asked of the world at a time: some 50 MB."""


@dataclass(frozen=True)
class GraphTruth:
    """Nodes by ascending legacy id, and edges in the order of the records.

    Attributes
    ----------
    node_id : (N,) int64
        Legacy ids, ascending.
    states : (N, W) uint8
    src, joint_action, dst : (E,) int64
        Legacy ids of source and next node, and the joint action's number.
    probability : (E,) float64
    reward : (E, agents) float64
        As the file holds it: (E, 1) agent 0's for a scalar, (E, 0) for none.
    done : (E,) bool
        False throughout where the file has no done flag.
    visits : (E,) int64
        The extra field that varies (zeros where the file has none).
    """

    node_id: Ints
    states: NDArray[np.uint8]
    src: Ints
    joint_action: Ints
    dst: Ints
    probability: Floats
    reward: Floats
    done: NDArray[np.bool_]
    visits: Ints


@dataclass(frozen=True)
class ReplayTruth:
    """Transitions in the order of the records.

    Attributes
    ----------
    node, next_node : (T,) int64
        Legacy ids; -1 where the state is in no graph.
    state, next_state : (T, W) uint8
        What agent 0 observes.
    joint_action : (T,) int64
    reward : (T, agents) float64
        As the file holds it, as in `GraphTruth`.
    done : (T,) bool
    behaviour : (agents, places, actions) float64
        Probabilities the actions were drawn from (see `tools.worlds.walk`).
    oldest : () int64
        Position of the oldest transition: 0 except in a ring.
    """

    node: Ints
    next_node: Ints
    state: NDArray[np.uint8]
    next_state: NDArray[np.uint8]
    joint_action: Ints
    reward: Floats
    done: NDArray[np.bool_]
    behaviour: Floats
    oldest: NDArray[np.int64]


@dataclass(frozen=True)
class Truth:
    """An export's truth; a part that wasn't written is None."""

    spec: ExportSpec
    agents: tuple[str, ...]
    num_actions: tuple[int, ...]
    graph: GraphTruth | None
    replay: ReplayTruth | None


def load_truth(out: Path) -> Truth:
    """Read the truth that `write_export` left in ``out/truth``."""
    spec = ExportSpec.from_json((out / "truth" / "spec.json").read_text())
    world = make_world(spec)
    parts: dict[str, Any] = {"graph": None, "replay": None}
    kinds: dict[str, type[GraphTruth] | type[ReplayTruth]] = {"graph": GraphTruth, "replay": ReplayTruth}
    for part, kind in kinds.items():
        path = out / "truth" / f"{part}.npz"
        if path.exists():
            with np.load(path) as columns:
                parts[part] = kind(**{f.name: columns[f.name] for f in fields(kind)})
    return Truth(spec, world.agents, world.num_actions, parts["graph"], parts["replay"])


def legacy_ids(spec: ExportSpec, world: World) -> Ints:
    """(N,) the world's node -> legacy id."""
    nodes = np.arange(world.num_nodes, dtype=np.int64)
    if spec.ids == "contiguous":
        return nodes
    order = np.random.default_rng([spec.seed, 2]).permutation(nodes)
    return order if spec.ids == "shuffled" else 3 * order + 10


def graph_truth(spec: ExportSpec, world: World) -> GraphTruth:
    """Enumerate the world; about 90 bytes an edge with three agents."""
    legacy = legacy_ids(spec, world)
    chunks: list[list[NDArray[Any]]] = [[] for _ in range(6)]
    nodes_at_once = max(1, CHUNK_ROWS // world.num_joint_actions)
    for first in range(0, world.num_nodes, nodes_at_once):
        nodes = np.arange(first, min(first + nodes_at_once, world.num_nodes))
        source = np.repeat(nodes, world.num_joint_actions)
        joint = np.tile(np.arange(world.num_joint_actions), nodes.size)
        rows = world.successors(source, joint)
        row = rows.row_of_edge
        probability = rows.probability if spec.prob else np.ones(row.size)
        done = rows.done if spec.done else np.zeros(row.size, np.bool_)
        reward = _reward_held(rows.reward, spec.reward)
        values = (legacy[source[row]], joint[row], legacy[rows.next_node], probability, reward, done)
        for chunk, value in zip(chunks, values, strict=True):
            chunk.append(value)
    columns: list[NDArray[Any]] = [np.concatenate(chunk) for chunk in chunks]
    num_edges = columns[0].size
    rng = np.random.default_rng([spec.seed, 3])
    columns.append(rng.integers(0, 1000, num_edges) if spec.kept else np.zeros(num_edges, np.int64))
    order = _record_order(spec, columns[0], columns[1], rng)
    if order is not None:
        columns = [column[order] for column in columns]
    by_id = np.argsort(legacy)
    if spec.nodes == "absent":  # then only the endpoints are known
        by_id = by_id[np.isin(legacy[by_id], np.concatenate((columns[0], columns[2])))]
    return GraphTruth(legacy[by_id], world.vectors(by_id), *columns)


def _record_order(spec: ExportSpec, src: Ints, joint_action: Ints, rng: np.random.Generator) -> Ints | None:
    """Order in which the edges stand in the file; None as they are."""
    order = rng.permutation(src.size) if spec.shuffle else None
    if not spec.graph.startswith("adjacency"):
        return order
    order = np.arange(src.size) if order is None else order
    keys = [_first_seen(src[order])]
    if spec.graph == "adjacency2":
        code = src * (joint_action.max(initial=0) + 1) + joint_action
        keys.insert(0, _first_seen(code[order]))
    return np.asarray(order[np.lexsort(keys)])


def _first_seen(values: Ints) -> Ints:
    """(B,) -> (B,) position where each value occurs first."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return np.asarray(first[inverse], np.int64)


def _reward_held(reward: Floats, shape: str) -> Floats:
    return reward[:, : {"scalar": 1, "none": 0}.get(shape, reward.shape[1])]


def replay_truth(spec: ExportSpec, world: World) -> ReplayTruth:
    """Walk in the world; about ``2 W + 60`` bytes a transition."""
    table = behaviour_table(world, spec.behaviour, spec.seed)
    rng = np.random.default_rng([spec.seed, 4])
    length = max(1, round(spec.transitions * spec.fraction))
    steps = walk(world, length, table, rng)
    legacy = legacy_ids(spec, world)
    state, next_state = world.vectors(steps.node), world.vectors(steps.next_node)
    node, next_node = legacy[steps.node], legacy[steps.next_node]
    if spec.off_graph:
        if world.num_nodes >= 2**world.width:
            raise ValueError("every state is in the graph: no transition can be off it")
        strange = rng.choice(length, min(spec.off_graph, length), replace=False)
        node[strange] = next_node[strange] = -1
        known = {row.tobytes() for row in world.vectors(np.arange(world.num_nodes))}
        for t in strange.tolist():
            state[t], next_state[t] = _off_graph(known, world.width, rng), _off_graph(known, world.width, rng)
    oldest = length // 3 if spec.replay == "ring" else 0
    reward = _reward_held(steps.reward, spec.in_replay("reward"))
    columns = (node, next_node, state, next_state, steps.joint_action, reward, steps.done)
    turned: list[NDArray[Any]] = [np.roll(column, oldest, axis=0) for column in columns]
    turned += [table, np.asarray(oldest, np.int64)]
    return ReplayTruth(*turned)


def _off_graph(known: set[bytes], width: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    while True:
        vector = rng.integers(0, 2, width, np.uint8)
        if vector.tobytes() not in known:
            return vector
