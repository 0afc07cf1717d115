"""The replay as it is read, against the columns that were written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.errors import UsageError
from tests.read.made_stores import Made, make_store
from tools.worlds.random_graph import RandomGraph


def replay_of(made: Made) -> omstore.Replay:
    replay = omstore.open(made.export).replay
    assert replay is not None
    return replay


SELECTIONS = [
    slice(None),
    slice(60, 130),
    slice(250, 999),
    slice(-7, None),
    slice(10, 200, 17),
    np.array([299, 0, 64, 63, 64]),
    [5],
    [],
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_columns_are_what_was_written(tiny_store: Made, selection: slice | np.ndarray | list[int]) -> None:
    replay, columns = replay_of(tiny_store), tiny_store.replay
    at = selection if isinstance(selection, slice) else np.asarray(selection, np.int64)
    first, second = tiny_store.world.agents
    for found, expected in (
        (replay.states(selection), columns["state"]),
        (replay.next_states(selection), columns["next_state"]),
        (replay.rewards(selection), columns["reward"]),
        (replay.done(selection), columns["done"].astype(bool)),
        (replay.observations(first, selection), columns["state"]),
        (replay.next_observations(first, selection), columns["next_state"]),
        (replay.observations(second, selection), columns[f"observations/{second}"]),
        (replay.next_observations(second, selection), columns[f"next_observations/{second}"]),
        (replay.kept("weight", selection), columns["kept/weight"]),
    ):
        assert np.array_equal(found, expected[at])
        assert found.dtype == expected.dtype


def test_mapped_columns_and_counts(tiny_store: Made) -> None:
    replay, columns = replay_of(tiny_store), tiny_store.replay
    assert len(replay) == 300
    assert np.array_equal(replay.nodes, columns["node"])
    assert np.array_equal(replay.next_nodes, columns["next_node"])
    assert np.array_equal(replay.joint_actions, columns["joint_action"])
    assert replay.kept_names == ("weight",)
    off = sum(a < 0 or b < 0 for a, b in zip(columns["node"], columns["next_node"], strict=True))
    assert replay.off_graph == off > 0


def test_nodes_are_those_of_the_states(tiny_store: Made) -> None:
    store = omstore.open(tiny_store.export)
    assert store.graph is not None
    assert store.replay is not None
    assert np.array_equal(store.graph.lookup(store.replay.states()), store.replay.nodes)


def test_batches_cover_a_range_in_order(tiny_store: Made) -> None:
    replay, columns = replay_of(tiny_store), tiny_store.replay
    batches = list(replay.batches(64, start=10, stop=290))
    assert [len(batch) for batch in batches] == [64, 64, 64, 64, 24]
    assert [batch.first for batch in batches] == [10, 74, 138, 202, 266]
    for name, column in (
        ("nodes", "node"),
        ("next_nodes", "next_node"),
        ("joint_actions", "joint_action"),
        ("states", "state"),
        ("next_states", "next_state"),
        ("rewards", "reward"),
        ("done", "done"),
    ):
        joined = np.concatenate([getattr(batch, name) for batch in batches])
        assert np.array_equal(joined, columns[column][10:290]), name
    assert sum(map(len, replay.batches(1000))) == 300


def test_wrong_selections_are_refused(tiny_store: Made) -> None:
    replay = replay_of(tiny_store)
    for selection, message in (
        (np.array([3, 300]), "transition 300 at position 1"),
        (np.array([-1]), "transition -1 at position 0"),
        (np.zeros(300, bool), "flatnonzero"),
        (np.array([0.5]), "float"),
        (np.array([[1]]), "one-dimensional"),
    ):
        with pytest.raises(UsageError, match=message):
            replay.states(selection)
    with pytest.raises(UsageError, match="no agent 'x'"):
        replay.observations("x")
    with pytest.raises(UsageError, match="It has: weight"):
        replay.kept("x")
    with pytest.raises(UsageError, match="at least one"):
        list(replay.batches(0))
    with pytest.raises(UsageError, match="within 0 to 300"):
        list(replay.batches(5, 0, 301))


def test_a_store_without_replay(tmp_path: Path) -> None:
    made = make_store(tmp_path / "export", RandomGraph(5))
    assert omstore.open(made.export).replay is None
