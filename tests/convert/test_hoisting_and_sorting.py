"""Levels of attributes against a slow reference; the same bytes whatever the order of the edges and the
budget."""

import hashlib
import itertools
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omstore
from omstore.convert import ConvertOptions, convert
from omstore.convert import attributes as attributes_module
from omstore.convert import edges as edges_module
from omstore.convert.keysort import key_of_integers, sort_by_key
from omstore.convert.rowsort import sort_rows
from omstore.encode import choose


def write_graph(folder, states, edges):
    """A dict graph with edges as dicts: (s, a, s', p, reward, done, extra)."""
    names = ("src", "action", "dst", "prob", "reward", "done", "extra")
    root = {"nodes": [list(s) for s in states], "edges": [dict(zip(names, e, strict=True)) for e in edges]}
    (folder / "wm").mkdir(parents=True, exist_ok=True)
    (folder / "wm" / "env_transition_graph.pkl").write_bytes(pickle.dumps(root))


def digest(folder):
    """Of every file of the live version but the manifest's source fingerprints."""
    live = folder / "store" / (folder / "store" / "CURRENT").read_text().strip()
    return {
        str(p.relative_to(live)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(live.rglob("*"))
        if p.is_file() and p.name != "manifest.json"
    }


def states(count):
    return [(i, count - i) for i in range(count)]


def bit_pattern(x):
    return np.float64(x).tobytes()


def level_of(edges, position, rows, count_outcomes):
    """The lowest level at which a field is exactly a function, the obvious way."""

    def is_function(key):
        seen = {}
        values = [(key(e), bit_pattern(e[position])) for e in edges]
        return all(seen.setdefault(at, value) == value for at, value in values)

    if is_function(lambda e: 0):
        return "graph"
    if is_function(lambda e: e[2]):
        return "next_node"
    if is_function(lambda e: e[0]):
        return "node"
    if is_function(lambda e: (e[0], e[1])) and rows * 8 < len(edges) * count_outcomes:
        return "row"
    return "outcome"


def random_edges(rng, num_nodes, fan, reward_by):
    edges = []
    for s in range(num_nodes):
        for a in range(2):
            targets = rng.integers(0, num_nodes, fan)
            for t in targets.tolist():
                by = {"graph": 0, "next_node": t, "node": s, "row": 2 * s + a, "edge": int(rng.integers(50))}
                key = by[reward_by]
                value = [0.0, -0.0, 1.5, -2.25, 7.0][key % 5] if reward_by != "graph" else -0.0
                edges.append((s, a, t, 1 / fan, value, False, key))
    return edges


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    reward_by=st.sampled_from(["graph", "next_node", "node", "row", "edge"]),
    fan=st.sampled_from([1, 2, 40]),
)
def test_levels_are_the_lowest(tmp_path_factory, seed, reward_by, fan):
    folder = tmp_path_factory.mktemp("levels")
    rng = np.random.default_rng(seed)
    edges = random_edges(rng, 6, fan, reward_by)
    write_graph(folder, states(6), edges)
    report = convert(folder)
    assert report.attributes["reward"] == level_of(edges, 4, 12, 1)
    with omstore.open(folder) as store:
        found = store.graph.successors(np.repeat(np.arange(6), 2), np.tile([0, 1], 6))
        rows = np.repeat(np.arange(12), np.diff(found.offsets))
    got = sorted(
        (int(r), int(n), math.copysign(1, w[0]), float(w[0]))
        for r, n, w in zip(rows, found.next_node, found.reward, strict=True)
    )
    assert got == sorted((2 * s + a, t, math.copysign(1, w), w) for s, a, t, _, w, _, _ in edges)


def test_zeros_of_either_sign_are_different_values(tmp_path):
    edges = [(0, 0, 0, 1.0, 0.0, False, 0), (0, 1, 0, 1.0, -0.0, False, 0)]
    write_graph(tmp_path, states(1), edges)
    assert convert(tmp_path).attributes["reward"] == "outcome"
    with omstore.open(tmp_path) as store:
        reward = store.graph.successors([0, 0], [0, 1]).reward[:, 0]
    assert np.signbit(reward).tolist() == [False, True]


def test_more_values_than_codes_go_edge_by_edge(tmp_path, monkeypatch):
    monkeypatch.setattr(attributes_module, "MAX_OUTCOMES", 16)
    rng = np.random.default_rng(3)
    edges = []
    for s in range(30):
        for a in range(2):
            for t in rng.choice(30, 4, replace=False).tolist():
                edges.append(
                    (s, a, int(t), 0.25, float(rng.integers(8)), False, float(rng.standard_normal()))
                )
    rng.shuffle(edges)
    write_graph(tmp_path, states(30), edges)
    for encoding in ("csr", "csr-compressed"):
        report = convert(tmp_path, ConvertOptions(keep=("extra",), rows=encoding))
        levels = {"probability": "graph", "reward": "outcome", "done": "graph", "extra": "edge"}
        assert report.attributes == levels
        with omstore.open(tmp_path) as store:
            nodes, actions = np.repeat(np.arange(30), 2), np.tile([0, 1], 30)
            found = store.graph.successors(nodes, actions, keep=["extra"])
            rows = np.repeat(np.arange(60), np.diff(found.offsets))
            got = sorted(zip(rows, found.next_node, found.reward[:, 0], found.kept["extra"], strict=True))
        assert got == sorted((2 * s + a, t, w, x) for s, a, t, _, w, _, x in edges)


def test_too_many_combinations_demote_the_most_varied_attribute(tmp_path, monkeypatch):
    monkeypatch.setattr(attributes_module, "MAX_OUTCOMES", 16)
    edges = [
        (s, a, (s + k) % 25, 0.5, float((s * 7 + a + k) % 12), False, (s * 5 + 3 * a + k * 11) % 9)
        for s in range(25)
        for a in range(2)
        for k in (1, 2)
    ]
    write_graph(tmp_path, states(25), edges)
    report = convert(tmp_path, ConvertOptions(keep=("extra",)))
    assert report.attributes["reward"] == "edge"  # 12 values; extra has 9
    assert report.attributes["extra"] == "outcome"
    with omstore.open(tmp_path) as store:
        found = store.graph.successors(np.repeat(np.arange(25), 2), np.tile([0, 1], 25), keep=["extra"])
        rows = np.repeat(np.arange(50), np.diff(found.offsets))
        got = sorted(zip(rows, found.next_node, found.reward[:, 0], found.kept["extra"], strict=True))
    assert got == sorted((2 * s + a, t, w, x) for s, a, t, _, w, _, x in edges)


def test_same_bytes_whatever_the_order_and_the_budget(tmp_path, monkeypatch):
    rng = np.random.default_rng(5)
    edges = random_edges(rng, 200, 3, "edge")
    write_graph(tmp_path, states(200), edges)
    convert(tmp_path, ConvertOptions(keep=("extra",)))
    expected = digest(tmp_path)
    rng.shuffle(edges)
    write_graph(tmp_path, states(200), [tuple(e) for e in edges])
    regions = []
    plan = edges_module.EdgePlan

    class TinyPlan(plan):
        def __init__(self, counted, num_joint_actions, edge_bytes, budget):
            super().__init__(counted, num_joint_actions, edge_bytes, 20_000)
            regions.append(self.num_regions)

    monkeypatch.setattr(edges_module, "EdgePlan", TinyPlan)
    convert(tmp_path, ConvertOptions(keep=("extra",), max_ram=64 << 20))
    assert regions == [pytest.approx(5, abs=4)]
    assert regions[0] > 1
    assert digest(tmp_path) == expected


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 6), count=st.integers(0, 400), raw=st.integers(0, 2))
def test_rows_are_sorted_as_python_sorts(seed, rows, count, raw):
    rng = np.random.default_rng(seed)
    row, node = rng.integers(0, rows, count), rng.integers(0, 12, count)
    code, words = rng.integers(0, 3, count).astype(np.int32), rng.integers(-2, 2, (count, raw))
    found = sort_rows(row.astype(np.uint32), node.astype(np.uint32), code, words, rows)
    listed = sorted(zip(row.tolist(), node.tolist(), code.tolist(), words.tolist(), strict=True))
    assert np.diff(found.offsets).tolist() == np.bincount(row, minlength=rows).tolist()
    assert found.next_node.tolist() == [n for _, n, _, _ in listed]
    assert found.code.tolist() == [c for _, _, c, _ in listed]
    assert found.raw.tolist() == [w for _, _, _, w in listed]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 3000),
    width=st.integers(1, 9),
    alphabet=st.sampled_from([2, 256]),
    budget=st.sampled_from([1 << 20, 1 << 30]),
)
def test_keys_are_sorted_as_bytes(tmp_path_factory, seed, count, width, alphabet, budget):
    rng = np.random.default_rng(seed)
    dtype = np.dtype([("key", "u1", (width,)), ("number", "<i8")])
    records = np.zeros(count, dtype)
    records["key"] = rng.integers(0, alphabet, (count, width))  # zeros at the end of keys as well
    records["number"] = np.arange(count)

    def chunks():
        for first in range(0, count, 100):
            yield records[first : first + 100]

    with pytest.MonkeyPatch.context() as patch:
        if budget == 1 << 20:  # 1 MiB is the least; make it count for less
            patch.setattr("omstore.convert.keysort._MIN_BUDGET", 2000)
            budget = 2000
        parts = list(sort_by_key(chunks, count, dtype, tmp_path_factory.mktemp("sort"), budget))
    found = np.concatenate(parts)
    expected = sorted((bytes(r["key"]), int(r["number"])) for r in records)
    assert [(bytes(r["key"]), int(r["number"])) for r in found] == expected
    for one, other in itertools.pairwise(parts):
        assert bytes(one[-1]["key"]) < bytes(other[0]["key"])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integer_keys_sort_as_integers(values):
    keys = [bytes(k) for k in key_of_integers(np.array(values, np.int64))]
    assert [v for _, v in sorted(zip(keys, values, strict=True))] == sorted(values)


def test_auto_takes_the_compressed_rows_when_they_are_large(tmp_path, monkeypatch):
    write_graph(tmp_path, states(200), random_edges(np.random.default_rng(0), 200, 2, "edge"))
    assert convert(tmp_path).encoding == "csr"
    as_asked = digest(tmp_path)
    convert(tmp_path, ConvertOptions(rows="csr"))
    assert digest(tmp_path) == as_asked
    monkeypatch.setattr(choose, "CSR_LIMIT", 10)
    assert convert(tmp_path).encoding == "csr-compressed"
