"""Models of all kinds: explored ones against brute force, vectors that sort in any way."""

import itertools

import numpy as np
import pytest

import omstore
from omstore.build import BuildOptions, build
from omstore.errors import ModelError, ModelImportError, UsageError
from omstore.model import load_model
from omstore.model.numbering import ListedNumbering, ProductNumbering
from omstore.model.rows import model_rows
from tests.model import small_worlds
from tests.model.small_worlds import Drift, ManyProbabilities, Weather

HERE = f"{small_worlds.__file__}:make_drift"
ENCODINGS = ["auto", "csr", "csr-compressed", "dictionary", "procedural"]


def brute_force(model):
    """All states reached from the first ones, and every row's outcomes."""
    start = tuple(model.initial_states()[0])
    rows, todo = {}, [start]
    while todo:
        state = todo.pop()
        rows[state] = {}
        for actions in itertools.product(*map(range, model.num_actions)):
            if state[0] == state[1]:
                outcomes = [(state, 1.0, (0.0, 0.0), True)]
            elif state[1] == 0 and actions[1] == 2:
                outcomes = []
            else:
                outcomes = model.rows(state, actions)
            rows[state][actions] = outcomes
            todo += [o[0] for o in outcomes if o[0] not in rows and o[0] not in todo]
    return rows


def compare_with_brute_force(graph, model):
    truth = brute_force(model)
    states = list(truth)
    vectors = model.vectors(np.array(states))
    nodes = graph.lookup(vectors)
    assert sorted(nodes.tolist()) == list(range(graph.num_nodes))
    node_of = dict(zip(states, nodes.tolist(), strict=True))
    edges = 0
    for state, by_action in truth.items():
        for joint, outcomes in enumerate(by_action.values()):
            found = graph.successors([node_of[state]], [joint])
            expected = sorted((node_of[o[0]], o[1], tuple(map(float, o[2])), bool(o[3])) for o in outcomes)
            assert expected == list(
                zip(
                    found.next_node.tolist(),
                    found.probability.tolist(),
                    map(tuple, found.reward.tolist()),
                    found.done.tolist(),
                    strict=True,
                )
            )
            edges += len(outcomes)
    assert edges == graph.num_edges


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_explored_world_with_rewards_of_edges(tmp_path, encoding):
    model = load_model(HERE, {"length": 5})
    report = build(model, tmp_path, BuildOptions(rows=encoding))
    assert report.num_nodes < model.space.count
    with omstore.open(tmp_path, allow_model_import=True) as store:
        compare_with_brute_force(store.graph, Drift(5))
        store.graph.verify()
    assert any("can be reached" in note for note in report.notes)


class EverywhereDrift(Drift):
    """All states of the product are nodes."""

    def initial_states(self):
        return None


@pytest.mark.parametrize("encoding", ["csr", "dictionary"])
def test_a_product_that_is_asked_for(tmp_path, encoding):
    model = EverywhereDrift(3)
    report = build(model, tmp_path, BuildOptions(rows=encoding))
    assert report.num_nodes == 18
    graph = omstore.open(tmp_path).graph
    sizes = np.cumsum(model.sizes)[:-1]
    for node in range(18):
        state = tuple(int(np.argmax(part)) for part in np.split(graph.states([node])[0], sizes))
        found = graph.successors([node], [1])
        if state[0] == state[1]:
            assert found.next_node.tolist() == [node]
        else:
            assert len(found.next_node) == len(model.rows(state, (0, 1)))


@pytest.mark.parametrize("vectors", ["one-hot", "shuffled", "mixed"])
@pytest.mark.parametrize("encoding", ["csr", "dictionary", "factored", "procedural"])
def test_vectors_that_sort_in_any_way(tmp_path, vectors, encoding):
    path = f"{small_worlds.__file__}:make_weather"
    model = load_model(path, {"seed": 4, "vectors": vectors})
    build(model, tmp_path, BuildOptions(rows=encoding))
    graph = omstore.open(tmp_path, allow_model_import=True).graph
    states = model.space.states(np.arange(24))
    packed = [bytes(row) for row in graph.packed_states(np.arange(24))]
    assert packed == sorted(packed)
    nodes = graph.lookup(model.vectors(states))
    node_of = dict(zip(map(tuple, states.tolist()), nodes.tolist(), strict=True))
    for state, node in node_of.items():
        for joint in range(6):
            found = graph.successors([node], [joint])
            if state[0] == 2 and state[2] == 3:
                expected = [(node, 1.0, (0.0, 0.0), True)]
            else:
                outcomes = model.successors(np.array([state]), np.array([joint]))
                following = outcomes.next_states
                reward, done = model.reward(following), model.absorbing(following)
                expected = sorted(
                    (node_of[tuple(s)], p, tuple(r), bool(d))
                    for s, p, r, d in zip(
                        following.tolist(), outcomes.probability.tolist(), reward.tolist(), done, strict=True
                    )
                )
            assert expected == list(
                zip(
                    found.next_node.tolist(),
                    found.probability.tolist(),
                    map(tuple, found.reward.tolist()),
                    found.done.tolist(),
                    strict=True,
                )
            )


@pytest.mark.parametrize("absorbs", [False, True])
def test_more_probabilities_than_codes(tmp_path, absorbs):
    def absorbing(self, states):
        return states[:, 0] == states[:, 1]

    model = type("Many", (ManyProbabilities,), {"absorbing": absorbing} if absorbs else {})()
    report = build(model, tmp_path, BuildOptions(rows="factored"))
    assert report.attributes["probability"] == "rows"
    assert report.proof["edges"] == report.num_edges
    graph, source = omstore.open(tmp_path).graph, model_rows(model)
    node_of = graph.lookup(model.vectors(model.space.states(np.arange(1600))))
    rows = np.random.default_rng(0).integers(0, 6400, 300)
    found, truth = graph.successors(node_of[rows // 4], rows % 4), source.gather(rows)
    order = np.lexsort((node_of[truth.next_node], np.repeat(np.arange(300), np.diff(truth.offsets))))
    assert np.array_equal(found.next_node, node_of[truth.next_node][order])
    np.testing.assert_array_max_ulp(found.probability, truth.attributes["probability"][order], 2)
    for encoding in ("csr", "dictionary"):
        with pytest.raises(UsageError, match="computed"):
            build(model, tmp_path, BuildOptions(rows=encoding))


def test_how_nodes_are_numbered(tmp_path):
    from omstore.build.nodes import stage_nodes
    from omstore.publish.staging import stage

    for vectors, kind in (
        ("one-hot", ProductNumbering),
        ("shuffled", ProductNumbering),
        ("mixed", ListedNumbering),
    ):
        with stage(tmp_path / vectors) as staging:
            nodes = stage_nodes(Weather(vectors=vectors), staging, 8 << 20)
            assert type(nodes.numbering) is kind
            states = nodes.numbering.states(np.arange(24))
            assert np.array_equal(nodes.packed, nodes.codec.pack(Weather(vectors=vectors).vectors(states)))
            assert np.array_equal(
                nodes.numbering.nodes(nodes.numbering.numbers(np.arange(24))), np.arange(24)
            )
            assert np.array_equal(nodes.index.lookup_packed(np.array(nodes.packed)), np.arange(24))


def test_nodes_sorted_out_of_core_are_the_same(tmp_path, monkeypatch):
    from omstore.build import nodes as module
    from omstore.publish.staging import stage

    made = []
    for name, step in (("whole", 1 << 14), ("pieces", 5)):
        monkeypatch.setattr(module, "_STEP", step)
        with stage(tmp_path / name) as staging:
            nodes = module.stage_nodes(Weather(vectors="mixed"), staging, 8 << 20)
            made.append((np.array(nodes.packed), np.array(nodes.numbering.number)))
    assert all(np.array_equal(one, other) for one, other in zip(*made, strict=True))


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (lambda self, states: states[:, :1], "the same vector"),
        (lambda self, states: states - 1, "whole numbers from 0 on"),
        (lambda self, states: states * 0.5, "whole numbers from 0 on"),
    ],
)
def test_vectors_that_are_no_states(tmp_path, vectors, message):
    model = type("Odd", (EverywhereDrift,), {"vectors": vectors})(3)
    with pytest.raises(ModelError, match=message):
        build(model, tmp_path)
    assert not list((tmp_path / "store").glob("v*"))


def test_a_bad_row_is_named_and_nothing_published(tmp_path):
    class Wrong(Drift):
        def rows(self, state, actions):
            found = super().rows(state, actions)
            return found[:-1] if state == (1, 3, 0) and actions == (1, 1) else found

    with pytest.raises(ModelError, match=r"state \(1, 3, 0\), joint action \(1, 1\).*sum to"):
        build(Wrong(5), tmp_path)
    assert not list((tmp_path / "store").glob("v*"))


def test_procedural_rows_need_a_model_that_can_be_found_again(tmp_path):
    with pytest.raises(UsageError, match="can't be found again"):
        build(Drift(), tmp_path, BuildOptions(rows="procedural"))


def test_importing_a_model_needs_permission(tmp_path):
    build(load_model(HERE, {"length": 4}), tmp_path, BuildOptions(rows="procedural", transitions=20))
    with pytest.raises(ModelImportError, match="must be imported") as raised:
        omstore.open(tmp_path)
    assert "allow_model_import=True" in raised.value.hint
    assert "--allow-model-import" in raised.value.hint
    import pickle

    with omstore.open(tmp_path, allow_model_import=True) as store:
        for part in (store, store.graph, store.replay):
            assert repr(pickle.loads(pickle.dumps(part))) == repr(part)
        assert len(store.replay) == 20


def test_a_store_whose_model_changed_is_found_out(tmp_path):
    path = tmp_path / "changing.py"
    text = (
        "import sys\nsys.path.insert(0, {root!r})\nfrom tests.model.small_worlds import {name}\n"
        "def make():\n    return {name}({size})\n"
    )
    root = str(small_worlds.__file__).removesuffix("/tests/model/small_worlds.py")
    path.write_text(text.format(root=root, name="Weather", size=1))
    build(load_model(f"{path}:make"), tmp_path / "export", BuildOptions(rows="procedural"))
    assert omstore.open(tmp_path / "export", allow_model_import=True).graph.num_nodes == 24
    import sys

    del sys.modules["omstore_model_changing"]
    path.write_text(text.format(root=root, name="Drift", size=5))
    with pytest.raises((ModelError, omstore.errors.CorruptStoreError)):
        omstore.open(tmp_path / "export", allow_model_import=True)
    del sys.modules["omstore_model_changing"]
    path.unlink()
    with pytest.raises(ModelError, match="no file"):
        omstore.open(tmp_path / "export", allow_model_import=True)
