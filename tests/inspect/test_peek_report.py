"""Peek, on exports whose contents are known and on pickles that can't be mapped."""

import json
import pickle
import tracemalloc

import numpy as np
import pytest

from omstore.errors import ExportNotFoundError, LegacyError, TruncatedPickleError, UsageError
from omstore.inspect import peek
from tools.exports.spec import ExportSpec
from tools.make_export import load_truth, write_export


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peek")
    write_export(
        folder,
        ExportSpec(world="random", num_nodes=40, transitions=60, extra=True, kept=True, compress="gzip"),
    )
    return folder


def test_fields_counts_ranges_and_samples_are_those_of_the_truth(export):
    truth = load_truth(export).graph
    report = peek(export / "wm" / "env_transition_graph.pkl")
    assert report.protocol == 4
    assert report.pickle_bytes > report.size
    assert report.classes == ("pursuit_legacy.graph.Edge", "pursuit_legacy.graph.TransitionGraph")
    assert f"  edges: list of {truth.src.size:,} pursuit_legacy.graph.Edge" in report.tree
    edges = next(table for table in report.tables if table.name == "edges")
    assert edges.num_rows == truth.src.size
    columns = {column.name: column for column in edges.columns}
    assert columns["src"].samples == tuple(truth.src[:3].tolist())
    assert (columns["dst"].minimum, columns["dst"].maximum) == (truth.dst.min(), truth.dst.max())
    assert columns["prob"].samples == tuple(truth.probability[:3].tolist())
    assert set(edges.ignored) == {"info", "kind"}
    assert report.kind == "graph"
    assert report.num_actions == (3, 2)
    assert any("next_node <- dst" in line for line in report.mapping)


def test_a_replay_with_its_focal_agent(export):
    file = export / "wm" / "D.pkl"
    first = peek(file)
    assert (first.kind, first.problem) == ("replay", "")
    assert first.focal == first.agents[0]
    other = peek(file, focal=first.agents[1])
    assert other.focal == first.agents[1]


def test_map_is_tried(export):
    report = peek(export / "wm" / "env_transition_graph.pkl", overrides={"probability": "visits"})
    assert any("probability <- visits" in line for line in report.mapping)
    wrong = peek(export / "wm" / "env_transition_graph.pkl", overrides={"probability": "nix"}, kind="graph")
    assert "nix" in wrong.problem
    assert "prob" in wrong.hint
    with pytest.raises(UsageError, match="frob"):
        peek(export / "wm" / "D.pkl", overrides={"frob": "x"})


def test_what_can_not_be_mapped_is_still_shown_with_the_option_to_use(tmp_path):
    file = tmp_path / "odd.pkl"
    records = [{"eins": i, "zwei": (i + 1) % 500, "drei": i % 3} for i in range(500)]
    file.write_bytes(pickle.dumps({"dinge": records}, 4))
    report = peek(file)
    assert [c.name for t in report.tables for c in t.columns] == ["eins", "zwei", "drei"]
    assert report.mapping == ()
    assert "--map next_node=NAME" in report.hint
    names = {"source": "eins", "next_node": "zwei", "joint_action": "drei"}
    assert peek(file, overrides=names).problem == ""


def test_nothing_is_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'hit')!r}, 'w')",))

    file = tmp_path / "bomb.pkl"
    file.write_bytes(pickle.dumps([Bomb()], 4))
    with pytest.raises(LegacyError, match="exec"):
        peek(file)
    assert not (tmp_path / "hit").exists()


def test_missing_and_truncated_files(export, tmp_path):
    with pytest.raises(ExportNotFoundError, match="no file") as caught:
        peek(export / "wm" / "d.pkl")
    assert "D.pkl" in caught.value.hint
    whole = pickle.dumps(list(range(1000)), 4)
    (tmp_path / "cut.pkl").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TruncatedPickleError):
        peek(tmp_path / "cut.pkl")


def test_memory_does_not_grow_with_the_file(tmp_path):
    def peak(count):
        file = tmp_path / f"{count}.pkl"
        records = [{"s": i, "a": i % 5, "s2": i + 1, "r": float(i)} for i in range(count)]
        file.write_bytes(pickle.dumps(records, 4))
        del records
        tracemalloc.start()
        peek(file)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    peak(1000)  # what is imported and compiled once
    assert peak(50_000) < peak(10_000) + (2 << 20)


def test_the_report_is_json(export):
    document = json.loads(
        json.dumps(peek(export / "wm" / "env_transition_graph.pkl").to_dict(), allow_nan=False)
    )
    assert document["tables"][0]["columns"][0]["samples"]


def test_numbers_that_are_not_finite_are_null_in_json(tmp_path):
    file = tmp_path / "nan.pkl"
    file.write_bytes(pickle.dumps([{"r": float("nan"), "s": np.float64(1)}] * 300, 4))
    columns = {c["name"]: c for c in peek(file).to_dict()["tables"][0]["columns"]}
    assert columns["r"]["samples"] == [None] * 3
    assert columns["r"]["minimum"] is None
