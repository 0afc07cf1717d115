"""The export's records resolved through its store, as `verify --against` streams them."""

import numpy as np
import pytest

import omstore
from omstore.convert import ConvertOptions, convert
from omstore.convert.against import open_export
from tools.exports.spec import ExportSpec
from tools.make_export import write_export


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"nodes": "dict-id-state", "ids": "sparse", "shuffle": True},
        {"endpoints": "array", "kept": True},
        {"graph": "edge-list", "nodes": "absent", "endpoints": "tuple"},
        {"joint_action": "class", "replay_action": "dict", "replay": "ring", "off_graph": 5},
    ],
)
def test_records_in_the_store_s_terms(tmp_path, shape):
    spec = ExportSpec(world="random", num_nodes=30, transitions=50, **shape)
    truth = write_export(tmp_path, spec)
    keep = ("visits",) if spec.kept else ()
    convert(tmp_path, ConvertOptions(keep=keep))
    t = truth.graph
    scratch = tmp_path / "scratch"
    with omstore.open(tmp_path) as store, open_export(tmp_path, store.manifest, scratch) as source:
        assert source.sources == store.manifest.sources
        graph = store.graph
        state_of = dict(zip(t.node_id.tolist(), np.asarray(t.states, np.uint8), strict=True))
        node = {
            i: int(n) for i, n in zip(state_of, graph.lookup(np.stack(list(state_of.values()))), strict=True)
        }
        edges = list(source.edges(graph).chunks())
        for name, truth_column in (
            ("node", [node[i] for i in t.src.tolist()]),
            ("next_node", [node[i] for i in t.dst.tolist()]),
            ("joint_action", t.joint_action),
            ("probability", t.probability),
            ("reward", t.reward),
            ("done", t.done),
        ):
            assert np.array_equal(np.concatenate([getattr(c, name) for c in edges]), truth_column)
        if spec.kept:
            assert np.array_equal(np.concatenate([c.kept["visits"][:, 0] for c in edges]), t.visits)
        nodes = list(source.nodes())
        if spec.nodes != "absent":
            ids = np.concatenate([c.legacy_id for c in nodes])
            packed = np.concatenate([c.packed for c in nodes])
            assert sorted(ids.tolist()) == t.node_id.tolist()
            assert np.array_equal(graph.packed_states(graph.nodes_of_legacy(ids)), packed)
        transitions = list(source.transitions(graph).chunks())
        assert np.array_equal(np.concatenate([c.node for c in transitions]), store.replay.nodes)
        assert np.array_equal(np.concatenate([c.reward for c in transitions]), store.replay.rewards())
        assert np.array_equal(
            np.concatenate([c.next_state for c in transitions]), store.replay.packed_next_states()
        )
    assert not [p for p in scratch.rglob("*") if p.is_file()]
