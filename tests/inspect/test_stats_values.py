"""What stats reports, against counts known from the world and a walk in plain Python over the store."""

import itertools
import json
import math

import numpy as np
import pytest

import omstore
from omstore.inspect import stats
from omstore.inspect.bits import count_set, first_where, new_bits
from omstore.inspect.edges import _bins
from tests.read.made_stores import make_store
from tools.worlds.random_graph import RandomGraph


@pytest.fixture(scope="module", params=["csr", "csr-compressed"])
def store_of_random(request, tmp_path_factory):
    world = RandomGraph(40, (3, 2), width=13, max_outdegree=5, seed=3)
    export = tmp_path_factory.mktemp("stats") / "export"
    make_store(export, world, encoding=request.param, transitions=500, chunk_rows=64)
    return export


def walk(store):
    """Every row of a store, one at a time: (node, joint action, next nodes, probabilities, rewards, done)."""
    graph = store.graph
    for node in range(graph.num_nodes):
        for action in range(graph.num_joint_actions):
            found = graph.successors([node], [action])
            yield node, action, found.next_node, found.probability, found.reward, found.done


@pytest.mark.parametrize("max_ram", [1 << 29, 1 << 10])
def test_a_random_graph_as_counted_row_by_row(store_of_random, max_ram):
    report = stats(store_of_random, max_ram=max_ram)
    with omstore.open(store_of_random) as store:
        rows = list(walk(store))
        replay_nodes, replay_next = np.array(store.replay.nodes), np.array(store.replay.next_nodes)
        actions = np.array(store.replay.joint_actions)
        agents = store.graph.agents
    edges = report.edges
    degrees = [len(row[2]) for row in rows]
    legal = [row for row in rows if len(row[2])]
    assert edges.legal_rows == len(legal) < len(rows)
    assert edges.max_outdegree == max(degrees)
    assert {(b.low, b.high): b.rows for b in edges.outdegree} == {
        (d, d): degrees.count(d) for d in sorted(set(degrees))
    }
    p = np.concatenate([row[3] for row in rows])
    assert (edges.probability.minimum, edges.probability.maximum) == (p.min(), p.max())
    assert edges.probability.mean == pytest.approx(p.mean())
    assert edges.row_error == pytest.approx(max(abs(math.fsum(row[3]) - 1) for row in legal), abs=1e-12)
    rewards = np.concatenate([row[4] for row in rows])
    for i, summary in enumerate(edges.rewards):
        column = rewards[:, i]
        assert (summary.agent, summary.nonfinite) == (agents[i], 0)
        assert (summary.minimum, summary.maximum) == (column.min(), column.max())
        assert summary.mean == pytest.approx(column.mean())
        assert summary.expected == pytest.approx(np.mean([row[3] @ row[4][:, i] for row in legal]))
        assert summary.nonzero_share == pytest.approx(np.mean(column != 0))
    done = np.concatenate([row[5] for row in rows])
    assert edges.done_share == pytest.approx(done.mean())
    loops = sum(int((row[2] == row[0]).sum()) for row in rows)
    assert edges.self_share == pytest.approx(loops / len(p))
    num_actions = (3, 2)
    for entry in edges.actions:
        agent = agents.index(entry.agent)
        among = [row for row in rows if np.unravel_index(row[1], num_actions)[agent] == entry.action]
        assert entry.legal == pytest.approx(sum(len(row[2]) > 0 for row in among) / len(among))
    by_node = {n: list(g) for n, g in itertools.groupby(rows, key=lambda row: row[0])}
    assert edges.dead_ends == sum(all(len(r[2]) == 0 for r in g) for g in by_node.values())
    assert edges.absorbing == sum(
        any(len(r[2]) for r in g) and all((r[2] == n).all() for r in g) for n, g in by_node.items()
    )
    entered = {int(t) for row in rows for t in row[2] if t != row[0]}
    seen = (set(replay_nodes.tolist()) | set(replay_next.tolist())) - {-1}
    missing = sorted(set(by_node) - entered - seen)
    assert report.unreachable.count == len(missing)
    assert list(report.unreachable.first) == missing[:5]
    coverage = report.coverage
    assert coverage.nodes == len(seen)
    on_graph = replay_nodes >= 0
    taken = set(zip(replay_nodes[on_graph].tolist(), actions[on_graph].tolist(), strict=True))
    assert coverage.rows == len(taken)
    assert coverage.row_share == pytest.approx(len(taken) / len(legal))
    assert coverage.off_graph == int(((replay_nodes < 0) | (replay_next < 0)).sum()) > 0
    illegal = {(row[0], row[1]) for row in rows if not len(row[2])}
    pairs = list(zip(replay_nodes.tolist(), actions.tolist(), strict=True))
    assert coverage.illegal == sum(pair in illegal for pair in pairs) > 0


def test_absorbing_dead_and_unreachable_nodes_of_a_graph_made_by_hand(tmp_path):
    # 0 -> 1 -> 1 (absorbing); 2 has no legal row; 3 only reaches itself and nobody reaches it
    class Hand(RandomGraph):
        def successors(self, nodes, joint_actions):
            found = super().successors(np.zeros_like(nodes), np.zeros_like(joint_actions))
            targets = {0: [1], 1: [1], 2: [], 3: [3]}
            lists = [targets[int(n)] if a == 0 else [] for n, a in zip(nodes, joint_actions, strict=True)]
            offsets = np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int64)
            count = int(offsets[-1])
            return type(found)(
                offsets,
                np.array([t for x in lists for t in x], np.int64),
                np.ones(count),
                np.tile([[1.0, -2.0]], (count, 1)),
                np.zeros(count, bool),
            )

    world = Hand(4, (2, 1), width=6, seed=1)
    export = tmp_path / "hand"
    made = make_store(export, world)
    report = stats(export)
    assert (report.edges.absorbing, report.edges.dead_ends) == (2, 1)
    assert {int(made.order[node]) for node in report.unreachable.first} == {0, 2, 3}
    assert report.coverage is None
    assert [r.expected for r in report.edges.rewards] == [1.0, -2.0]
    assert [(a.agent, a.action, a.legal) for a in report.edges.actions] == [
        (world.agents[0], 0, 0.75),
        (world.agents[0], 1, 0.0),
        (world.agents[1], 0, 0.375),
    ]


def test_parts_add_up_to_the_store(made):
    report = stats(made)
    files = [path for path in report.path.rglob("*") if path.is_file()]
    assert report.store_bytes == sum(path.stat().st_size for path in files)
    for part in report.parts:
        inside = [p for p in (report.path / part.name).rglob("*") if p.is_file()]
        assert part.size == sum(p.stat().st_size for p in inside)
    names = {part.name for part in report.parts}
    assert {"rows/next_node", "nodes/state", "index/slots", "replay/state"} <= names
    assert report.source_bytes == sum(p.stat().st_size for p in (made / "wm").iterdir())
    assert report.compression == report.source_bytes / report.store_bytes


def test_the_report_is_json(made):
    document = json.loads(json.dumps(stats(made).to_dict(), allow_nan=False))
    assert (
        document["counts"]["num_edges"]
        == document["edges"]["legal_rows"] * document["edges"]["mean_outdegree"]
    )
    assert document["options"]["keep"] == ["visits"]


def test_wide_outdegrees_come_in_powers_of_two():
    counts = np.zeros(1024 + 64, np.int64)
    counts[0], counts[1], counts[3], counts[1000] = 5, 1, 2, 3
    counts[1024 + 10], counts[1024 + 12] = 4, 6  # 1024 to 2047, 4096 to 8191
    bins = [(b.low, b.high, b.rows) for b in _bins(counts, 5000)]
    assert bins == [(0, 0, 5), (1, 1, 1), (2, 3, 2), (512, 1023, 3), (1024, 2047, 4), (4096, 5000, 6)]
    assert sum(rows for _, _, rows in bins) == counts.sum()


@pytest.mark.parametrize("limit", [1 << 20, 0])
def test_bitmaps_in_memory_and_in_a_file_count_alike(limit, tmp_path):
    bits = new_bits(1003, limit, tmp_path)
    assert list(tmp_path.iterdir()) == []  # the file has no name
    for i in (0, 7, 8, 1002):
        bits[i >> 3] |= 1 << (i & 7)
    assert count_set(bits) == 4
    assert first_where(bits, 1003, value=1, most=3) == ([0, 7, 8], 4)
    assert first_where(bits, 1003, value=0, most=2) == ([1, 2], 999)
