"""Exports in every legacy shape, converted, read back and compared with their truth edge by edge."""

import dataclasses

import numpy as np
import pytest

import omstore
from omstore.convert import ConvertOptions, convert
from tools.exports.spec import ExportSpec
from tools.make_export import write_export

SMALL = {"world": "random", "num_nodes": 40, "transitions": 60}

SHAPES = {
    "plain": {},
    "slots": {"record": "slots", "numpy_scalars": True, "protocol": 2},
    "frozen": {"record": "frozen", "protocol": 3, "extra": True},
    "frozen slots": {"record": "frozen-slots", "protocol": 5, "reward": "tuple"},
    "inherited": {"record": "inherited", "names": "short", "share": True},
    "named tuples": {"record": "namedtuple", "shuffle": True},
    "tuples": {"record": "tuple", "reward": "array", "joint_action": "array"},
    "dicts": {"record": "dict", "names": "arrows", "joint_action": "dict"},
    "long names": {"names": "long", "joint_action": "list", "reward": "array"},
    "vectors for endpoints": {"endpoints": "array", "nodes": "list-tuple"},
    "tuples for endpoints": {"endpoints": "tuple", "nodes": "dict-state-id", "ids": "sparse"},
    "bytes for endpoints": {"endpoints": "bytes", "nodes": "list-bytes"},
    "no nodes, vectors": {"graph": "edge-list", "nodes": "absent", "endpoints": "tuple"},
    "adjacency": {"graph": "adjacency", "nodes": "dict-id-state", "ids": "shuffled"},
    "adjacency with redundant keys": {"graph": "adjacency", "redundant_keys": True},
    "adjacency of adjacencies": {"graph": "adjacency2", "record": "tuple", "reward": "tuple"},
    "adjacency by state": {"graph": "adjacency2", "endpoints": "tuple", "nodes": "list-tuple"},
    "an array of nodes": {"graph": "dict", "nodes": "array", "names": "short"},
    "sparse ids": {"nodes": "dict-id-state", "ids": "sparse"},
    "class actions": {"joint_action": "class", "replay_action": "tuple"},
    "scalar reward": {"reward": "scalar"},
    "no reward, no done": {"reward": "none", "done": False},
    "kept": {"kept": True, "extra": True},
    "parallel edges": {"duplicates": True, "shuffle": True},
    "reward by node": {"reward_level": "node"},
    "a replay in a deque": {"replay": "deque", "replay_record": "tuple"},
    "a replay object": {"replay": "object", "observations": "vector"},
    "a ring": {"replay": "ring", "off_graph": 7},
    "columns": {"replay": "columns"},
    "columns of vectors": {"replay": "columns", "observations": "vector", "replay_action": "array"},
    "egocentric": {"egocentric": True},
    "egocentric columns": {"egocentric": True, "replay": "columns"},
    "float observations": {"state_dtype": "float32", "nodes": "array"},
    "bool observations": {"state_dtype": "bool"},
    "gzip": {"compress": "gzip", "suffix": True, "nodes": "array", "replay": "columns"},
    "xz": {"compress": "xz"},
    "zstd": {"compress": "zstd", "suffix": True},
}


def edges_of(graph):
    """Every edge as a tuple, by an obvious walk over the store's batch interface."""
    nodes = np.repeat(np.arange(graph.num_nodes), graph.num_joint_actions)
    actions = np.tile(np.arange(graph.num_joint_actions), graph.num_nodes)
    found = graph.successors(nodes, actions)
    row = np.repeat(np.arange(len(nodes)), np.diff(found.offsets))
    columns = [nodes[row], actions[row], found.next_node, found.probability, found.reward, found.done]
    return sorted(zip(*(np.asarray(c).tolist() for c in columns), strict=True))


def packed(states):
    return [bytes(np.packbits(s)) for s in np.asarray(states, np.uint8)]


def check_graph(store, truth):
    graph, t = store.graph, truth.graph
    bits = np.asarray(t.states, np.uint8)
    order = sorted(range(len(bits)), key=lambda i: bits[i].tolist())  # nodes are sorted by state
    used = set(t.src.tolist()) | set(t.dst.tolist())
    if truth.spec.nodes == "absent":
        order = [i for i in order if int(t.node_id[i]) in used]
    assert graph.num_nodes == len(order)
    assert np.array_equal(graph.states(np.arange(graph.num_nodes)), bits[order])
    node_of = {int(t.node_id[i]): node for node, i in enumerate(order)}
    agents = len(truth.agents)
    reward = np.zeros((len(t.src), agents)) + (t.reward if t.reward.shape[1] else 0.0)
    columns = [
        [node_of[i] for i in t.src.tolist()],
        t.joint_action.tolist(),
        [node_of[i] for i in t.dst.tolist()],
        t.probability.tolist(),
        reward.tolist(),
        t.done.astype(bool).tolist(),
    ]
    assert edges_of(graph) == sorted(zip(*columns, strict=True))
    if truth.spec.nodes != "absent":
        ids = np.array([int(t.node_id[i]) for i in order])
        assert np.array_equal(graph.legacy_ids(np.arange(graph.num_nodes)), ids)
        assert np.array_equal(graph.nodes_of_legacy(ids), np.arange(graph.num_nodes))
    return node_of


def check_replay(store, truth, node_of):
    replay, t = store.replay, truth.replay
    turn = np.roll(np.arange(len(t.node)), -int(t.oldest))
    known = np.vectorize(lambda i: node_of.get(int(i), -1))
    assert len(replay) == len(t.node)
    assert np.array_equal(replay.nodes, known(t.node[turn]))
    assert np.array_equal(replay.next_nodes, known(t.next_node[turn]))
    assert np.array_equal(replay.states(), t.state[turn])
    assert np.array_equal(replay.next_states(), t.next_state[turn])
    assert np.array_equal(replay.joint_actions, t.joint_action[turn])
    reward = np.zeros((len(turn), len(truth.agents))) + (t.reward if t.reward.shape[1] else 0.0)
    assert np.array_equal(replay.rewards(), reward[turn])
    assert np.array_equal(replay.done(), t.done[turn])
    assert replay.off_graph == int(((known(t.node) < 0) | (known(t.next_node) < 0)).sum())


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_converted_exactly(tmp_path, name):
    spec = ExportSpec(**{**SMALL, **SHAPES[name]})
    truth = write_export(tmp_path, spec)
    overrides = {}
    if spec.record == "tuple" or spec.record == "namedtuple":
        overrides = SHAPES[name].get("map", {})
    keep = ("visits",) if spec.kept else ()
    report = convert(tmp_path, ConvertOptions(map=overrides, keep=keep))
    with omstore.open(tmp_path) as store:
        node_of = check_graph(store, truth)
        check_replay(store, truth, node_of)
        if spec.kept:
            assert "visits" in store.graph.attributes
        assert store.graph.num_actions == truth.num_actions
        assert report.num_edges == len(truth.graph.src)


def test_the_pursuit_world_with_slip(tmp_path):
    spec = ExportSpec(agents=2, slip=0.1, fraction=0.1, transitions=300)
    truth = write_export(tmp_path, spec)
    convert(tmp_path)
    with omstore.open(tmp_path) as store:
        node_of = check_graph(store, truth)
        check_replay(store, truth, node_of)
        levels = {name: a.level for name, a in store.graph.attributes.items()}
        # entering a caught state pays, staying there doesn't: sorted rows have it by outcome, encoded ones don't
        assert levels == {"probability": "outcome", "reward": "next_node_unless_node", "done": "next_node"}
    convert(tmp_path, ConvertOptions(rows="csr"))
    with omstore.open(tmp_path) as store:
        check_graph(store, truth)
        assert store.graph.attribute("reward").level == "outcome"


def test_both_encodings_hold_the_same_graph(tmp_path):
    truth = write_export(tmp_path, ExportSpec(**SMALL, duplicates=True))
    for encoding in ("csr", "csr-compressed"):
        convert(tmp_path, ConvertOptions(rows=encoding))
        with omstore.open(tmp_path) as store:
            assert store.manifest.rows["encoding"] == encoding
            check_graph(store, truth)


def test_only_the_graph_or_only_the_replay(tmp_path):
    both = ExportSpec(**SMALL)
    for part in ("graph", "replay"):
        out = tmp_path / part
        truth = write_export(out, dataclasses.replace(both, parts=(part,)))
        report = convert(out)
        assert any("only the other file" in note for note in report.notes)
        with omstore.open(out) as store:
            if part == "graph":
                check_graph(store, truth)
                assert store.replay is None
            else:
                assert store.graph is None
                assert (np.asarray(store.replay.nodes) == -1).all()
                assert np.array_equal(store.replay.states(), truth.replay.state)
