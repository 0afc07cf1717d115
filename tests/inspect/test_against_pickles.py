"""Stores against the pickles they came from, and against pickles that differ in one thing."""

import pickle
import shutil

import pytest

import omstore
from omstore.convert import ConvertOptions, convert
from omstore.errors import ExportNotFoundError, UsageError
from omstore.inspect import verify
from tools.exports.spec import ExportSpec
from tools.make_export import write_export

SHAPES = {
    "slots, protocol 2": {"record": "slots", "protocol": 2, "numpy_scalars": True},
    "tuples in an adjacency": {"graph": "adjacency2", "record": "tuple", "reward": "tuple"},
    "states for endpoints": {"graph": "edge-list", "nodes": "absent", "endpoints": "tuple"},
    "no reward, no done": {"reward": "none", "done": False},
    "a ring": {"replay": "ring", "off_graph": 5},
    "columns": {"replay": "columns", "egocentric": True},
    "reward by edge": {"reward_level": "edge", "duplicates": True},
}


@pytest.mark.parametrize("rows", ["csr", "csr-compressed"])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_was_converted_is_what_the_pickles_hold(shape, rows, tmp_path):
    spec = {"world": "random", "num_nodes": 30, "transitions": 60, **SHAPES[shape]}
    write_export(tmp_path, ExportSpec(**spec))
    convert(tmp_path, ConvertOptions(rows=rows))
    report = verify(tmp_path, against=tmp_path)
    assert report.ok, [check for check in report.checks if check.num_problems]
    assert report.notes == ()
    counts = {check.name: check.looked_at for check in report.checks}
    with omstore.open(tmp_path) as store:
        assert counts["edges as in the pickle"].startswith(f"{store.graph.num_edges:,} edges")
    assert counts["transitions as in the pickle"].startswith("60 transitions")


def test_the_rich_export_with_little_memory(made):
    report = verify(made, against=made, max_ram=1 << 26)
    assert report.ok
    assert "visits" in {c.name: c.looked_at for c in report.checks}["edges as in the pickle"]


# Exports as dicts, so that a single value can be changed in place.
PLAIN = {
    "world": "random",
    "num_nodes": 30,
    "transitions": 50,
    "record": "dict",
    "graph": "dict",
    "nodes": "list-tuple",
    "joint_action": "list",
    "kept": True,
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    export = tmp_path_factory.mktemp("plain") / "export"
    write_export(export, ExportSpec(**PLAIN))
    convert(export, ConvertOptions(keep=("visits",)))
    return export


def changed(plain, tmp_path, part, edit):
    """Copy an export's pickles with one value changed."""
    other = tmp_path / "other"
    shutil.copytree(plain / "wm", other / "wm")
    file = other / "wm" / {"graph": "env_transition_graph.pkl", "replay": "D.pkl"}[part]
    root = pickle.loads(file.read_bytes())  # made by these tests
    edit(root)
    file.write_bytes(pickle.dumps(root, 4))
    return other


def edge(root, i):
    return root["edges"][i]


def another_probability(root):
    """Moves a little probability between two successors of one row: the row still sums to 1."""
    by_row = {}
    for i, e in enumerate(root["edges"]):
        by_row.setdefault((e["src"], tuple(e["joint_action"])), []).append(i)
    i, j = next(rows for rows in by_row.values() if len(rows) > 1)[:2]
    edge(root, i)["prob"] += 1e-9
    edge(root, j)["prob"] -= 1e-9


EDGE_EDITS = {
    "another next node": lambda root: edge(root, 7).update(dst=(edge(root, 7)["dst"] + 1) % 30),
    "another reward": lambda root: edge(root, 7)["reward"].update({"agent_1": 123.0}),
    "another done": lambda root: edge(root, 7).update(done=not edge(root, 7)["done"]),
    "another kept value": lambda root: edge(root, 7).update(visits=edge(root, 7)["visits"] + 1),
    "a probability changed by a billionth": another_probability,
    "an edge twice": lambda root: root["edges"].append(dict(edge(root, 7))),
    "an edge less": lambda root: root["edges"].pop(7),
}


@pytest.mark.parametrize("name", EDGE_EDITS)
def test_one_edge_that_differs_is_found(name, plain, tmp_path):
    def edit(root):
        agents = root["agents"]
        if name == "another reward":
            edge(root, 7)["reward"][agents[1]] = 123.0
        else:
            EDGE_EDITS[name](root)

    report = verify(plain, against=changed(plain, tmp_path, "graph", edit))
    found = {check.name: check for check in report.checks if check.num_problems}
    assert list(found) == ["edges as in the pickle"]
    text = " ".join(found["edges as in the pickle"].problems)
    if name == "an edge less":
        assert "1 stored edges are in no record" in text
    elif name == "an edge twice":
        assert "the pickle has" in text
    elif "probability" not in name:
        assert "record 7:" in text
    assert any("bytes differ" in note for note in report.notes)


def test_a_node_that_differs_is_found(plain, tmp_path):
    def edit(root):
        states = root["nodes"]
        states[3], states[4] = states[4], states[3]

    report = verify(plain, against=changed(plain, tmp_path, "graph", edit))
    checks = {check.name: check for check in report.checks}
    assert "node record 3, id 3" in checks["nodes as in the pickle"].problems[0]


def first_transition(root, i):
    return root[i]


TRANSITION_EDITS = {
    "joint action": lambda t: t.update({k: [1 - v[0], *v[1:]] for k, v in t.items() if k.startswith("act")}),
    "reward": lambda t: next(v for k, v in t.items() if k.startswith("rew")).update(
        dict.fromkeys(next(v for k, v in t.items() if k.startswith("rew")), 77.0)
    ),
    "done": lambda t: t.update(done=not t["done"]),
}


@pytest.mark.parametrize("name", TRANSITION_EDITS)
def test_one_transition_that_differs_is_found(name, plain, tmp_path):
    other = changed(plain, tmp_path, "replay", lambda root: TRANSITION_EDITS[name](root[20]))
    report = verify(plain, against=other)
    found = {check.name: check.problems for check in report.checks if check.num_problems}
    assert list(found) == ["transitions as in the pickle"]
    assert all(f"transition 20: {name}" in line for line in found["transitions as in the pickle"])


def test_a_single_pickle_is_enough(plain):
    report = verify(plain, against=plain / "wm" / "D.pkl")
    assert report.ok
    assert report.notes == ("there is no transition graph to compare with",)
    assert report.checks[-1].name == "transitions as in the pickle"


def test_what_can_not_be_compared_with_is_refused(plain, tmp_path):
    with pytest.raises(ExportNotFoundError):
        verify(plain, against=tmp_path / "nowhere")
    stranger = tmp_path / "other.pkl"
    stranger.write_bytes(b"")
    with pytest.raises(UsageError, match="neither"):
        verify(plain, against=stranger)


def test_nothing_is_left_behind(made):
    before = sorted(p.name for p in made.iterdir())
    verify(made, against=made)
    assert sorted(p.name for p in made.iterdir()) == before
