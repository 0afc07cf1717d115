"""Pursuit built in every row encoding, against the world of tools/ row by row."""

import hashlib

import numpy as np
import pytest

import omstore
from omstore.build import BuildOptions, build
from omstore.model import load_model
from tools.worlds.pursuit import Pursuit as World

ENCODINGS = ["csr", "csr-compressed", "dictionary", "factored", "procedural"]


def pursuit(agents=2, slip=0.1):
    return load_model("pursuit", {"agents": agents, "slip": slip})


def digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def compare_with_world(graph, world, rows):
    """Rows of the store against the world's, whatever order the nodes are in."""
    everyone = np.arange(world.num_nodes)
    node_of = graph.lookup(world.vectors(everyone))
    assert sorted(node_of.tolist()) == everyone.tolist()
    nodes, actions = np.divmod(rows, world.num_joint_actions)
    truth = world.successors(nodes, actions)
    found = graph.successors(node_of[nodes], actions)
    order = np.lexsort((node_of[truth.next_node], truth.row_of_edge))
    assert np.array_equal(found.offsets, truth.offsets)
    assert np.array_equal(found.next_node, node_of[truth.next_node][order])
    assert np.array_equal(found.probability, truth.probability[order])
    assert np.array_equal(found.reward, truth.reward[order])
    assert np.array_equal(found.done, truth.done[order])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_row_of_two_slipping_agents(tmp_path, encoding):
    report = build(pursuit(), tmp_path, BuildOptions(rows=encoding))
    with omstore.open(tmp_path) as store:
        graph = store.graph
        assert graph.encoding.name == encoding == report.encoding
        assert (graph.num_nodes, graph.num_edges) == (1936, 571_152) == (report.num_nodes, report.num_edges)
        assert report.num_absorbing == 44
        compare_with_world(graph, World(2, 0.1), np.arange(1936 * 25))
        graph.verify()
        assert store.manifest.options["model"] == "pursuit"
        assert store.manifest.options["parameters"] == {"agents": 2, "slip": 0.1}
        if encoding != "procedural":
            assert report.proof == {"rows": 48_400, "edges": 571_152, "largest_difference_ulp": 0}


@pytest.mark.parametrize("encoding", ["csr", "factored", "procedural"])
def test_three_agents_that_do_not_slip(tmp_path, encoding):
    build(pursuit(3, 0.0), tmp_path, BuildOptions(rows=encoding))
    with omstore.open(tmp_path) as store:
        assert store.graph.num_edges == 10_648_000
        batch = np.random.default_rng(0).integers(0, 85_184 * 125, 20_000)
        compare_with_world(store.graph, World(3, 0.0), batch)


def test_auto_is_factored_and_says_why(tmp_path):
    report = build(pursuit(), tmp_path)
    assert report.encoding == "factored"
    assert "independent" in report.encoding_reason
    assert report.store_bytes < 200_000


def test_all_encodings_draw_alike(tmp_path):
    drawn = []
    for encoding in ENCODINGS:
        build(pursuit(), tmp_path / encoding, BuildOptions(rows=encoding))
        graph = omstore.open(tmp_path / encoding).graph
        rng = np.random.default_rng(3)
        nodes, actions = rng.integers(0, 1936, 5000), rng.integers(0, 25, 5000)
        drawn.append(graph.sample(nodes, actions, rng))
    for other in drawn[1:]:
        assert np.array_equal(drawn[0].next_node, other.next_node)
        assert np.array_equal(drawn[0].reward, other.reward)
        assert np.array_equal(drawn[0].done, other.done)


@pytest.mark.parametrize("encoding", ["csr-compressed", "dictionary", "factored"])
def test_the_bytes_do_not_depend_on_the_budget(tmp_path, encoding):
    for name, max_ram in (("one", 512 << 20), ("other", 128 << 20)):
        options = BuildOptions(rows=encoding, max_ram=max_ram, transitions=500)
        build(pursuit(), tmp_path / name, options)
    one, other = (digests(tmp_path / name / "store" / "v000001") for name in ("one", "other"))
    assert one == other


def test_a_map_of_ones_own(tmp_path):
    grid = ["..#", "...", "#.."]
    report = build(load_model("pursuit", {"agents": 2, "slip": 0.2, "grid": grid}), tmp_path)
    assert report.num_nodes == 49
    with omstore.open(tmp_path) as store:
        assert store.graph.state_width == 18
        assert store.manifest.options["parameters"]["grid"] == grid


def test_an_interrupted_build_leaves_nothing(tmp_path):
    class Failing(type(pursuit())):
        def reward(self, next_states):
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        build(Failing(2), tmp_path)
    assert not list((tmp_path / "store").glob("v*"))
    assert not list((tmp_path / "store").glob(".*"))


def test_a_wrong_factoring_is_found_out(tmp_path, monkeypatch):
    from dataclasses import replace

    from omstore.build import independent
    from omstore.errors import ProofError

    right = independent.model_factoring

    def wrong(rows):
        factoring = right(rows)
        first = factoring.components[0]
        classes = first.outcome_class.copy()
        at = int(np.flatnonzero(np.diff(first.offsets) > 1)[0])
        pair = slice(first.offsets[at], first.offsets[at] + 2)
        classes[pair] = classes[pair][::-1]  # two outcomes with each other's probabilities
        return replace(
            factoring, components=(replace(first, outcome_class=classes), *factoring.components[1:])
        )

    monkeypatch.setattr(independent, "model_factoring", wrong)
    with pytest.raises(ProofError):
        build(pursuit(), tmp_path, BuildOptions(rows="factored"))
    assert not list((tmp_path / "store").glob("v*"))
