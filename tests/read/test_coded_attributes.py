"""Attributes of schema 2: coded by node, and the next node's value unless the node has its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omstore
from omstore.errors import CorruptStoreError
from omstore.publish.staging import Staging
from tests.read.made_stores import Made, make_store
from tools.worlds.random_graph import RandomGraph

NODES = 25
WORLD = RandomGraph(NODES, (2, 3), reward_level="next_node", done_level="next_node", seed=8)
VALUES = np.array([[-0.0, 1.0], [0.5, np.inf], [3.0, -4.0]])


def store_with(
    tmp_path: Path, dtype: str, level: str, *, bad: str = ""
) -> tuple[Made, np.ndarray, np.ndarray]:
    """A store whose reward is coded; gives each node's code, and its own code + 1 (0: none)."""
    rng = np.random.default_rng(3)
    codes, own = rng.integers(0, 3, NODES), rng.integers(0, 4, NODES) * rng.integers(0, 2, NODES)

    def change(staging: Staging, attributes: dict[str, Any]) -> None:
        stored, stored_own = codes.astype(dtype), own.astype(dtype)
        if bad == "codes":
            stored[:] = 3
        if bad == "own":
            stored_own[:] = 4
        staging.write_hot("outcomes/coded", VALUES)
        staging.write_hot("nodes/attributes/coded", stored)
        described = {"level": level, "path": "outcomes/coded", "codes": "nodes/attributes/coded"}
        if level == "next_node_unless_node":
            staging.write_hot("nodes/attributes/coded_own", stored_own)
            described["own"] = "nodes/attributes/coded_own"
        if bad == "no own":
            described.pop("own")
        attributes["reward"] = described
        attributes["coded"] = described

    made = make_store(
        tmp_path / "export", WORLD, levels={"reward": "next_node", "done": "next_node"}, change=change
    )
    return made, codes, own


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("level", ["next_node", "node", "next_node_unless_node"])
def test_coded_values_are_those_of_the_nodes(tmp_path: Path, dtype: str, level: str) -> None:
    made, codes, own = store_with(tmp_path, dtype, level)
    graph = omstore.open(made.export).graph
    assert graph is not None
    rows = np.arange(graph.num_rows)
    nodes, actions = rows // 6, rows % 6
    found = graph.successors(nodes, actions, keep=["coded"])
    expected = []
    for row in rows.tolist():
        node = row // 6
        for next_node in made.truth(nodes[[row]], actions[[row]]).next_node.tolist():
            code = codes[node] if level == "node" else codes[next_node]
            if level == "next_node_unless_node" and own[node]:
                code = own[node] - 1
            expected.append(VALUES[code].tolist())
    assert found.reward.tolist() == expected
    assert found.reward.tobytes() == np.array(expected).tobytes()
    assert found.kept["coded"].tolist() == expected
    swept = [chunk.successors.reward for chunk in graph.sweep(7)]
    assert np.concatenate(swept).tolist() == expected
    legal = np.flatnonzero(found.outdegree)
    drawn = graph.sample(nodes[legal], actions[legal], np.random.default_rng(0))
    for i, row in enumerate(legal.tolist()):
        edges = slice(found.offsets[row], found.offsets[row + 1])
        at = found.offsets[row] + int(np.flatnonzero(found.next_node[edges] == drawn.next_node[i])[0])
        assert drawn.reward[i].tolist() == expected[at]


def read_three(export: Path) -> omstore.Successors:
    graph = omstore.open(export).graph
    assert graph is not None
    return graph.successors([0, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("bad", ["codes", "own", "no own"])
def test_a_code_of_no_value_is_a_named_error(tmp_path: Path, bad: str) -> None:
    made, _, _ = store_with(tmp_path, "uint8", "next_node_unless_node", bad=bad)
    with pytest.raises(CorruptStoreError, match="coded" if bad == "no own" else "reward"):
        read_three(made.export)


def test_a_level_that_the_rows_do_not_hold(tmp_path: Path) -> None:
    def change(staging: Staging, attributes: dict[str, Any]) -> None:
        attributes["reward"] = {"level": "rows"}

    made = make_store(tmp_path / "export", WORLD, levels={"done": "next_node"}, change=change)
    graph = omstore.open(made.export).graph
    assert graph is not None
    with pytest.raises(CorruptStoreError, match="'reward'"):
        graph.successors([0], [0])
