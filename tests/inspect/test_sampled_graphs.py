"""Graphs too large to be read whole: stats and verify look at a random part, and say so."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import omstore
from omstore.build import BuildOptions, build
from omstore.cli import main
from omstore.cli.row_facts import attribute_levels, row_facts
from omstore.inspect import node_ranges, stats, verify
from omstore.inspect.node_ranges import SAMPLED_EDGES, SWEPT_EDGES, NodeRanges, ranges_to_read
from omstore.model.loading import load_model
from omstore.model.rows import ProceduralRows
from tests.read.made_stores import make_store
from tools.worlds.random_graph import RandomGraph

NODES = 200


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    world = RandomGraph(NODES, (3, 2), width=13, max_outdegree=5, seed=3)
    export = tmp_path_factory.mktemp("large") / "export"
    make_store(export, world, transitions=50)
    return export


@pytest.fixture
def large(export, monkeypatch):
    """The same, taken for too large: some 40 nodes are read."""
    monkeypatch.setattr(node_ranges, "SWEPT_EDGES", 1000)
    monkeypatch.setattr(node_ranges, "SAMPLED_EDGES", 700)
    monkeypatch.setattr(node_ranges, "_MOST_RANGES", 9)
    return export


@given(nodes=st.integers(1, 1 << 45), mean=st.integers(1, 1 << 40))
def test_ranges_are_apart_and_inside(nodes: int, mean: int) -> None:
    graph = SimpleNamespace(num_nodes=nodes, num_edges=nodes * mean)
    found = ranges_to_read(graph)
    assert found == ranges_to_read(graph)
    ends = [0, *(end for pair in found.ranges for end in pair), nodes]
    assert all(a <= b for a, b in itertools.pairwise(ends))
    assert sum(stop - start for start, stop in found.ranges) == found.num_nodes >= 1
    assert found.whole == (nodes * mean <= SWEPT_EDGES)
    if not found.whole:
        assert found.num_nodes * mean <= max(SAMPLED_EDGES, mean)
        assert found.num_nodes * mean > min(nodes * mean, SAMPLED_EDGES) / 2 - mean or found.num_nodes == 1


def test_what_is_estimated_is_what_the_nodes_read_hold(large) -> None:
    report = stats(large)
    edges = report.edges
    with omstore.open(large) as store:
        graph = store.graph
        nodes = [n for start, stop in ranges_to_read(graph).ranges for n in range(start, stop)]
        rows = [(n, a, graph.successors([n], [a])) for n in nodes for a in range(6)]
    assert 9 <= len(nodes) == edges.nodes_read < NODES
    assert edges.estimated
    legal = [found for _, _, found in rows if len(found.next_node)]
    assert edges.edges_read == sum(len(found.next_node) for found in legal)
    assert edges.legal_rows == round(len(legal) * NODES / len(nodes))
    assert edges.mean_outdegree == pytest.approx(edges.edges_read / len(legal))
    rewards = np.concatenate([found.reward for found in legal])
    for agent, summary in enumerate(edges.rewards):
        assert summary.mean == pytest.approx(rewards[:, agent].mean())
        assert summary.minimum == rewards[:, agent].min()
    assert edges.done_share == pytest.approx(np.concatenate([found.done for found in legal]).mean())
    for entry in edges.actions:
        agent = graph.agents.index(entry.agent)
        among = [len(found.next_node) for _, a, found in rows if divmod(a, 2)[agent] == entry.action]
        assert entry.legal == pytest.approx(np.mean([count > 0 for count in among]))
    assert report.unreachable is None
    assert report.counts.num_nodes == NODES
    assert report.counts.num_edges == graph.num_edges
    assert report.coverage is not None


def test_a_node_is_absorbing_whether_or_not_its_neighbours_are_read(large, monkeypatch) -> None:
    whole = stats(large).edges
    with omstore.open(large) as store:
        graph = store.graph
        every = NodeRanges([(n, n + 1) for n in range(NODES)], NODES, False)
        monkeypatch.setattr("omstore.inspect.summary.ranges_to_read", lambda graph: every)
        one_by_one = stats(large).edges
        monkeypatch.setattr(
            "omstore.inspect.summary.ranges_to_read", lambda graph: NodeRanges([(0, NODES)], NODES, True)
        )
        exact = stats(large).edges
    assert one_by_one.estimated
    assert whole.estimated
    assert not exact.estimated
    assert (one_by_one.absorbing, one_by_one.dead_ends) == (exact.absorbing, exact.dead_ends)
    assert one_by_one.outdegree == exact.outdegree
    assert one_by_one.legal_rows == exact.legal_rows
    assert exact.edges_read == graph.num_edges


def test_the_command_says_so(large, capsys) -> None:
    assert main(["stats", str(large)]) == 0
    text = capsys.readouterr().out
    read = stats(large).edges
    assert (
        f"estimated from {read.nodes_read} of 200 nodes, at random ({read.edges_read:,} of "
        f"{stats(large).counts.num_edges:,} edges)" in text
    )
    assert "about " in next(line for line in text.splitlines() if line.startswith("  rows"))
    assert "unreachable" not in text
    assert main(["stats", str(large), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["edges"]["estimated"] is True
    assert document["edges"]["nodes_read"] == read.nodes_read


def test_a_small_graph_is_read_whole(export, capsys) -> None:
    assert main(["stats", str(export), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["edges"]["estimated"] is False
    assert document["edges"]["edges_read"] == document["counts"]["num_edges"]


def test_verify_adds_up_a_random_part(large) -> None:
    report = verify(large)
    assert report.ok
    numbers = next(check for check in report.checks if check.name == "numbers")
    assert " of 200 nodes (" in numbers.looked_at
    assert "in 9 random ranges" in numbers.looked_at


def test_what_the_manifest_knows_of_the_rows_is_said() -> None:
    rows = {
        "num_outcomes": 84,
        "num_patterns": 57213,
        "exceptions": {"nodes": 5720, "blocks": 1},
        "components": [
            {"agent": 1, "size": 44, "num_actions": 5, "num_classes": 3},
            {"agent": None, "size": 2, "num_actions": 1, "num_classes": 1},
        ],
        "proof": {"rows": 10, "edges": 20, "largest_difference_ulp": 1},
    }
    assert row_facts(rows, ("prey", "hunter")) == [
        (
            "components",
            "44 local states moved by hunter, 5 actions\n2 local states moved by nobody, 1 actions",
        ),
        ("exceptions", "1 blocks, 5,720 nodes"),
        ("made of", "84 outcomes, 57,213 patterns"),
        ("proof", "10 rows, 20 edges compared with the source, probabilities equal within 1 ulp"),
    ]
    levels = attribute_levels({"done": "next_node_unless_node", "reward": "rows", "x": "edge"}, {"done": 2})
    assert levels.split("\n") == [
        "done by next node, unless the node has its own, 2 values",
        "reward computed from the rows",
        "x by edge",
    ]


def test_rows_that_a_model_answers_are_verified_in_part(tmp_path, monkeypatch) -> None:
    export = tmp_path / "pursuit"
    build(load_model("pursuit", {"agents": 2, "slip": 0.1}), export, BuildOptions(rows="procedural"))
    monkeypatch.setattr(node_ranges, "SWEPT_EDGES", 1000)
    monkeypatch.setattr(node_ranges, "SAMPLED_EDGES", 20_000)
    swept = []
    sweep = ProceduralRows.sweep

    def counted(self, start_row: int, stop_row: int, chunk_rows: int):
        swept.append(stop_row - start_row)
        return sweep(self, start_row, stop_row, chunk_rows)

    monkeypatch.setattr(ProceduralRows, "sweep", counted)
    report = verify(export)
    assert report.ok
    rows = next(check for check in report.checks if check.name == "rows and index")
    assert rows.looked_at.startswith("rows of 67 of 1,936 nodes, at random; the index finds 1,936")
    assert sum(swept) == 2 * 67 * 25


def test_consecutive_rows_are_checked_from_where_they_begin(export) -> None:
    with omstore.open(export) as store:
        graph = store.graph
        encoding = graph.encoding
        before = graph.successors(np.arange(50).repeat(6), np.tile(np.arange(6), 50)).offsets[-1]
        edges = graph.successors(np.arange(50, 60).repeat(6), np.tile(np.arange(6), 10)).offsets[-1]
        assert encoding.verify_rows(300, 360, 7) == (360, before + edges)
        graph.verify([(50, 60), (70, 71)])
