"""The small graph that speeds are measured on is a part of the large one; every encoding is measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from omstore.encode.speeds import _small_graph, measure_speeds
from omstore.rows import CsrRows, GraphSize, Probabilities
from tests.encode.test_forecasts import Grid


def test_the_small_graph_has_the_rows_of_the_large_one() -> None:
    rng = np.random.default_rng(0)
    outdegree = rng.integers(0, 4, 3000)
    offsets = np.concatenate([[0], np.cumsum(outdegree)]).astype(np.uint64)
    next_node = np.concatenate([np.sort(rng.integers(0, 1000, degree)) for degree in outdegree])
    codes = (next_node % 3).astype(np.uint8)
    source = CsrRows(GraphSize(1000, 3, len(next_node), 3), offsets, next_node.astype(np.uint32), codes)
    small = _small_graph(source)
    assert small is not None
    small.rows.verify()
    own = small.rows.gather(small.legal)
    theirs = source.gather(small.nodes[small.legal // 3] * 3 + small.legal % 3)
    assert own.offsets.tolist() == theirs.offsets.tolist()
    assert small.nodes[own.next_node].tolist() == theirs.next_node.tolist()
    assert own.outcome is not None
    assert theirs.outcome is not None
    assert own.outcome.tolist() == theirs.outcome.tolist()
    assert small.mean == len(own.next_node) / len(small.legal)


def test_every_encoding_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    grid = Grid(12, 5)
    chances = Probabilities("outcome", np.array([0.5, 1.0]))
    speeds = measure_speeds(grid.rows, chances, tmp_path / "speeds", factoring=grid.factoring())
    assert list(speeds) == ["csr", "csr-compressed", "dictionary", "factored"]
    assert all(speed.gather > 0 and speed.sample > 0 for speed in speeds.values())
    assert not (tmp_path / "speeds").exists()
    without = measure_speeds(grid.rows, chances, tmp_path / "speeds")
    assert list(without) == ["csr", "csr-compressed", "dictionary"]


def test_a_graph_without_edges_has_no_speeds(tmp_path: Path) -> None:
    empty = CsrRows(GraphSize(5, 2, 0), None, np.empty(0, np.uint32), None, 0)
    assert measure_speeds(empty, Probabilities("graph", np.ones(1)), tmp_path / "speeds") == {}
