"""npz, scipy and Parquet exports against the world they came from, as NumPy, SciPy and pyarrow read them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

import omstore
from omstore.exporting import export_graph
from omstore.exporting.columns import Source
from omstore.exporting.parquet import _regrouped
from tests.read.made_stores import Made
from tools.worlds.world import Successors


def test_npz_holds_the_graph(made: Made, everything: Successors, tmp_path: Path) -> None:
    report = export_graph(made.export, tmp_path / "graph.npz", "npz")
    world = made.world
    with np.load(tmp_path / "graph.npz") as graph:
        assert graph["offsets"].tolist() == everything.offsets.tolist()
        assert graph["next_node"].tolist() == everything.next_node.tolist()
        assert graph["next_node"].dtype == np.uint32
        assert np.array_equal(graph["probability"], everything.probability)
        assert np.array_equal(graph["reward"], everything.reward)
        assert np.array_equal(graph["done"], everything.done)
        row = everything.row_of_edge
        kept = np.stack([row % 11, row % 7, row % 3, row % 2], axis=1).reshape(-1, 2, 2)
        assert np.array_equal(graph["kept_colour"], kept)
        bits = np.unpackbits(graph["state"], axis=1, count=int(graph["state_width"]))
        assert np.array_equal(bits, world.vectors(made.order))
        assert graph["legacy_id"].tolist() == (made.order * 7 - 20).tolist()
        assert tuple(graph["agents"]) == world.agents
        assert tuple(graph["num_actions"]) == world.num_actions
        assert graph["state_component_bits"] == 1
    assert (report.num_edges, report.size) == (
        len(everything.next_node),
        (tmp_path / "graph.npz").stat().st_size,
    )


def test_scipy_loads_the_probabilities(made: Made, everything: Successors, tmp_path: Path) -> None:
    export_graph(made.export, tmp_path / "graph.npz", "scipy")
    matrix = scipy.sparse.load_npz(tmp_path / "graph.npz")
    expected = np.zeros((len(everything.offsets) - 1, made.world.num_nodes))
    np.add.at(expected, (everything.row_of_edge, everything.next_node), everything.probability)
    assert matrix.format == "csr"
    assert np.array_equal(matrix.toarray(), expected)
    assert matrix.indices.dtype == matrix.indptr.dtype == np.int32
    with np.load(tmp_path / "graph.npz") as file:
        rewards = scipy.sparse.csr_matrix(
            (file["reward"][:, 1], matrix.indices, matrix.indptr), shape=matrix.shape
        )
    np.add.at(expected, (everything.row_of_edge, everything.next_node), -everything.probability)
    np.add.at(expected, (everything.row_of_edge, everything.next_node), everything.reward[:, 1])
    assert np.allclose(rewards.toarray(), expected)


@pytest.mark.parametrize("to", ["npz", "scipy"])
def test_without_rewards_everything_else_is_as_it_was(made: Made, tmp_path: Path, to: str) -> None:
    for rewards in (True, False):
        export_graph(made.export, tmp_path / f"{rewards}.npz", to, rewards=rewards)
    with np.load(tmp_path / "True.npz") as whole, np.load(tmp_path / "False.npz") as less:
        assert [name for name in whole.files if name != "reward"] == less.files
        assert all(np.array_equal(whole[name], less[name]) for name in less.files)


def test_parquet_without_rewards(made: Made, tmp_path: Path) -> None:
    for rewards in (True, False):
        export_graph(made.export, tmp_path / str(rewards), "parquet", rewards=rewards)
    whole, less = (
        pyarrow.parquet.read_table(tmp_path / f"{rewards}" / "edges.parquet") for rewards in (True, False)
    )
    assert whole.drop_columns([f"reward_{agent}" for agent in made.world.agents]).equals(less)


def test_parquet_holds_edges_and_nodes(made: Made, everything: Successors, tmp_path: Path) -> None:
    export_graph(made.export, tmp_path / "tables", "parquet")
    edges = pyarrow.parquet.read_table(tmp_path / "tables" / "edges.parquet")
    width = made.world.num_joint_actions
    column = {name: edges[name].to_numpy() for name in edges.column_names if name != "kept_colour"}
    assert np.array_equal(column["node"] * width + column["joint_action"], everything.row_of_edge)
    assert np.array_equal(column["next_node"], everything.next_node)
    assert np.array_equal(column["probability"], everything.probability)
    for agent, name in enumerate(made.world.agents):
        assert np.array_equal(column[f"reward_{name}"], everything.reward[:, agent])
    assert np.array_equal(column["done"], everything.done)
    row = everything.row_of_edge
    kept = np.stack([row % 11, row % 7, row % 3, row % 2], axis=1)
    assert edges["kept_colour"].to_pylist() == kept.tolist()
    nodes = pyarrow.parquet.read_table(tmp_path / "tables" / "nodes.parquet")
    packed = np.packbits(made.world.vectors(made.order), axis=1)
    assert nodes["state"].to_pylist() == [state.tobytes() for state in packed]
    assert nodes["node"].to_pylist() == list(range(made.world.num_nodes))
    assert nodes["legacy_id"].to_pylist() == (made.order * 7 - 20).tolist()
    about = json.loads(edges.schema.metadata[b"omstore"])
    assert about["agents"] == list(made.world.agents)
    assert about["state"] == {"width": 13, "component_bits": 1}


@pytest.mark.parametrize("to", ["npz", "scipy", "umb", "parquet"])
def test_the_bytes_do_not_depend_on_chunks_or_encoding(
    made: Made, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omstore.exporting.parquet._EDGES", 100)
    first = tmp_path / "first"
    export_graph(made.export, first, to)
    for chunk_rows in (1, 4, 7, 250):
        monkeypatch.setattr(Source, "chunk_rows", lambda self, rows=chunk_rows: rows)
        export_graph(made.export, tmp_path / "again", to, force=True)
        assert contents(first) == contents(tmp_path / "again")


def contents(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in (sorted(path.iterdir()) if path.is_dir() else [path])]


def test_parquet_row_groups_have_one_size(
    made: Made, everything: Successors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omstore.exporting.parquet._EDGES", 64)
    export_graph(made.export, tmp_path / "tables", "parquet")
    about = pyarrow.parquet.ParquetFile(tmp_path / "tables" / "edges.parquet").metadata
    sizes = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
    assert set(sizes[:-1]) == {64}
    assert sum(sizes) == len(everything.next_node)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 7))
def test_regrouping_keeps_order_and_size(lengths: list[int], size: int) -> None:
    ends = np.cumsum([0, *lengths])
    parts = ({"a": np.arange(a, b), "b": -np.arange(a, b)} for a, b in itertools.pairwise(ends))
    groups = list(_regrouped(parts, size, {"a": np.arange(0), "b": np.arange(0)}))
    assert np.concatenate([group["a"] for group in groups]).tolist() == list(range(ends[-1]))
    assert all((group["b"] == -group["a"]).all() for group in groups)
    assert all(len(group["a"]) == size for group in groups[:-1])


def test_the_sample_sums_to_one(sample: Path, tmp_path: Path) -> None:
    export_graph(sample, tmp_path / "graph.npz", "scipy")
    matrix = scipy.sparse.load_npz(tmp_path / "graph.npz")
    assert matrix.shape == (48_400, 1_936)
    assert matrix.nnz == 571_152
    assert abs(matrix.sum(axis=1) - 1).max() < 1e-12
    graph = omstore.open(sample).graph
    assert graph is not None
    found = graph.successors([1000], [7])
    row = matrix[[1000 * 25 + 7]]
    assert row.indices.tolist() == found.next_node.tolist()
    assert row.data.tolist() == found.probability.tolist()
