"""Stores made from a world through the writers alone, so that reading can be tested without conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omstore.format.manifest import Counts, Manifest
from omstore.format.states import StateCodec
from omstore.index import build_index
from omstore.publish.staging import Staging, stage
from omstore.rows import row_writer
from tools.worlds.random_graph import RandomGraph
from tools.worlds.world import Successors

LEGACY_STRIDE, LEGACY_FIRST = 7, -20
"""Legacy ids are spread, so that finding them needs a search."""


@dataclass(frozen=True)
class Made:
    """A store, and what it was made from: world node ``order[i]`` is node i of the store."""

    export: Path
    world: RandomGraph
    order: np.ndarray
    replay: dict[str, np.ndarray]

    @property
    def node_of(self) -> np.ndarray:
        return np.argsort(self.order)

    def truth(self, nodes: np.ndarray, joint_actions: np.ndarray) -> Successors:
        """The world's successors in the store's node numbers, edges as the store sorts them by next node."""
        found = self.world.successors(self.order[nodes], np.asarray(joint_actions))
        next_node = self.node_of[found.next_node]
        by_row = np.lexsort((next_node, found.row_of_edge))
        return Successors(
            found.offsets,
            next_node[by_row],
            found.probability[by_row],
            found.reward[by_row],
            found.done[by_row],
        )


def make_store(
    export: Path,
    world: RandomGraph,
    *,
    encoding: str = "csr",
    levels: dict[str, str] | None = None,
    kept: str | None = None,
    transitions: int = 0,
    chunk_rows: int | None = None,
    sources: bool = True,
    change: Callable[[Staging, dict[str, Any]], None] | None = None,
) -> Made:
    """Publish a store of a world; `levels` says at which level each attribute is stored, `change` may store
    them otherwise."""
    levels = {"probability": "outcome", "reward": "outcome", "done": "outcome"} | (levels or {})
    codec = StateCodec(world.width, 1)
    everyone = np.arange(world.num_nodes)
    packed = codec.pack(world.vectors(everyone))
    order = np.lexsort(packed.T[::-1])
    made = Made(export, world, order, {})
    with stage(export) as staging:
        _write_nodes(staging, packed[order], order, sources)
        rows, attributes, num_edges = _write_rows(staging, made, encoding, levels, kept)
        if change is not None:
            change(staging, attributes)
        if transitions:
            made.replay.update(_write_replay(staging, made, codec, transitions, chunk_rows))
        counts = Counts(
            world.num_nodes,
            world.num_joint_actions,
            world.num_nodes * world.num_joint_actions,
            num_edges,
            transitions,
        )
        replay = {"kept": ["weight"]} if transitions else {}
        manifest = Manifest(counts, world.agents, world.num_actions, codec, rows, attributes, replay)
        staging.publish(manifest)
    return made


def _write_nodes(staging: Staging, packed: np.ndarray, order: np.ndarray, sources: bool) -> None:
    staging.write_hot("nodes/state", packed)
    if sources:
        staging.write_hot("nodes/legacy_id", order * LEGACY_STRIDE + LEGACY_FIRST)
        staging.write_hot("nodes/node_of_legacy", np.argsort(order).astype(np.uint32))
    slots = staging.hot("index/slots", np.uint64)
    build_index(packed, slots)
    slots.close()


def _write_rows(
    staging: Staging, made: Made, encoding: str, levels: dict[str, str], kept: str | None
) -> tuple[dict[str, Any], dict[str, Any], int]:
    world = made.world
    rows = np.arange(world.num_nodes * world.num_joint_actions)
    truth = made.truth(rows // world.num_joint_actions, rows % world.num_joint_actions)
    values: dict[str, np.ndarray] = {
        "probability": truth.probability,
        "reward": truth.reward,
        "done": truth.done.astype(np.uint8),
    }
    if kept is not None:  # a kept field of odd shape and dtype
        index = _index_of_level(kept, truth, rows, world.num_joint_actions)
        values["colour"] = np.stack([index % 11, index % 7, index % 3, index % 2], axis=1).astype(np.int16)
        values["colour"] = values["colour"].reshape(-1, 2, 2)
        levels = levels | {"colour": kept}
    coded = [name for name, level in levels.items() if level == "outcome"]
    codes = np.zeros(len(truth.next_node), np.int64)
    if coded:
        table = np.concatenate(
            [values[name].reshape(len(codes), -1).astype(np.float64) for name in coded], axis=1
        )
        _, first, codes = np.unique(table, axis=0, return_index=True, return_inverse=True)
    edge_order = np.lexsort((codes, truth.next_node, truth.row_of_edge))
    assert np.array_equal(edge_order, np.arange(len(codes))), "only worlds without duplicate next nodes"
    num_outcomes = int(codes.max()) + 1
    writer = row_writer(encoding, staging, world.num_nodes, world.num_joint_actions, num_outcomes)
    writer.append(np.diff(truth.offsets), truth.next_node, codes if num_outcomes > 1 else None)
    description, size = writer.finish()
    attributes = {}
    for name, level in levels.items():
        if level == "outcome":
            stored = values[name][first]
        else:
            index = _index_of_level(level, truth, rows, world.num_joint_actions)
            length = {"graph": 1, "next_node": world.num_nodes, "node": world.num_nodes, "row": len(rows)}
            stored = np.zeros((length.get(level, len(index)), *values[name].shape[1:]), values[name].dtype)
            stored[index] = values[name]
            assert np.array_equal(stored[index], values[name]), f"{name} is no function of the {level}"
        folder = {
            "graph": "outcomes",
            "outcome": "outcomes",
            "row": "rows/attributes",
            "edge": "rows/attributes",
        }
        path = f"{folder.get(level, 'nodes/attributes')}/{name}"
        if encoding == "csr-compressed" and level in ("row", "edge"):
            staging.cold(path, stored.dtype, stored.shape[1:], chunk_rows=32).append(stored)
        else:
            staging.write_hot(path, stored)
        attributes[name] = {"level": level, "path": path}
    return description, attributes, size.num_edges


def _index_of_level(level: str, truth: Successors, rows: np.ndarray, num_joint_actions: int) -> np.ndarray:
    row = rows[truth.row_of_edge]
    return {
        "graph": np.zeros(len(row), np.int64),
        "next_node": truth.next_node,
        "node": row // num_joint_actions,
        "row": row,
        "outcome": np.zeros(len(row), np.int64),
        "edge": np.arange(len(row)),
    }[level]


def _write_replay(
    staging: Staging, made: Made, codec: StateCodec, count: int, chunk_rows: int | None
) -> dict[str, np.ndarray]:
    world = made.world
    rng = np.random.default_rng(5)
    agents = len(world.agents)
    known = {tuple(vector) for vector in world.vectors(np.arange(world.num_nodes)).tolist()}

    def draw() -> tuple[np.ndarray, np.ndarray]:
        nodes = rng.integers(0, world.num_nodes, count)
        states = world.vectors(made.order[nodes]).copy()
        for i in np.flatnonzero(rng.random(count) < 0.1):  # some states aren't in the graph
            stranger = rng.integers(0, 2, world.width, np.uint8)
            if tuple(stranger.tolist()) not in known:
                states[i], nodes[i] = stranger, -1
        return nodes, states

    node, state = draw()
    next_node, next_state = draw()
    columns = {
        "node": node,
        "next_node": next_node,
        "joint_action": rng.integers(0, world.num_joint_actions, count).astype(np.uint8),
        "state": state,
        "next_state": next_state,
        "reward": rng.normal(size=(count, agents)),
        "done": rng.integers(0, 2, count, np.uint8),
        f"observations/{world.agents[1]}": rng.normal(size=(count, 3)).astype(np.float32),
        f"next_observations/{world.agents[1]}": rng.normal(size=(count, 3)).astype(np.float32),
        "kept/weight": rng.normal(size=count),
    }
    for name, values in columns.items():
        stored = codec.pack(values) if name in ("state", "next_state") else values
        if name in ("node", "next_node", "joint_action"):
            staging.write_hot(f"replay/{name}", stored)
        else:
            staging.cold(f"replay/{name}", stored.dtype, stored.shape[1:], chunk_rows=chunk_rows).append(
                stored
            )
    return columns
