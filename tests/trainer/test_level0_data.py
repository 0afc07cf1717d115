"""Level 0's data: the state that the focal agent saw, and the team action, of every transition."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.errors import StoreNotFoundError, UsageError
from tests.read.made_stores import Made, make_store
from tests.trainer.made_exports import NUM_ACTIONS, MadeExport, make_export
from tools.worlds.random_graph import RandomGraph

pytest.importorskip("torch")

from trainer.buffer import OMBuffer
from trainer.level0 import Level0Chunk, extract_level0_dataset


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeExport:
    return make_export(tmp_path_factory.mktemp("level0") / "export", strangers=(3, 77))


@pytest.fixture(scope="module")
def observing(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """agent_1 observes three floats, agent_0 the state."""
    world = RandomGraph(40, (3, 2), width=13, seed=3)
    return make_store(tmp_path_factory.mktemp("observing") / "export", world, transitions=300)


def team_classes(focal: int) -> dict[int, int]:
    """Joint action -> team action, counted out in the order of agents."""
    joint = list(itertools.product(*map(range, NUM_ACTIONS)))
    teams = sorted({every[:focal] + every[focal + 1 :] for every in joint})
    return {i: teams.index(every[:focal] + every[focal + 1 :]) for i, every in enumerate(joint)}


@pytest.mark.parametrize("focal", [0, 1, 2])
def test_every_transition_in_order(made: MadeExport, focal: int) -> None:
    data = extract_level0_dataset(made.open(), focal_agent=focal, chunk=64)
    assert len(data) == 500
    assert (data.num_actions, data.state_width) == (24 // NUM_ACTIONS[focal], 13)
    parts = list(data)
    assert [part.first for part in parts] == list(range(0, 500, 64))
    assert [len(part) for part in parts] == [64] * 7 + [52]
    assert np.array_equal(np.concatenate([part.state for part in parts]), made.states)
    classes = team_classes(focal)
    team = np.concatenate([part.action for part in parts])
    assert team.tolist() == [classes[joint] for joint in made.joint_actions.tolist()]
    nodes = np.concatenate([part.node for part in parts])
    assert np.flatnonzero(nodes < 0).tolist() == [3, 77]
    graph = made.open().graph
    assert graph is not None
    assert np.array_equal(nodes, graph.lookup(made.states))


@pytest.mark.parametrize("chunk", [1, 7, 499, 500, 501])
def test_chunks_change_nothing(made: MadeExport, chunk: int) -> None:
    def joined(parts: list[Level0Chunk]) -> list[np.ndarray]:
        return [
            np.concatenate([getattr(part, name) for part in parts]) for name in ("stored", "action", "node")
        ]

    whole = joined(list(extract_level0_dataset(made.open(), chunk=100)))
    for one, other in zip(joined(list(extract_level0_dataset(made.open(), chunk=chunk))), whole, strict=True):
        assert np.array_equal(one, other)


def test_nothing_is_float_before_a_batch(made: MadeExport) -> None:
    data = extract_level0_dataset(made.open(), focal_agent="agent_1")
    assert data.state_dtype is None
    (part,) = data
    assert part.bits
    assert part.stored.dtype == np.uint8
    assert part.stored.shape == (500, 2)  # 13 bits
    buffer = OMBuffer(500, 13, num_actions=data.num_actions, state_dtype=data.state_dtype)
    buffer.add_packed(part.stored, part.action)
    assert np.array_equal(buffer.states(np.arange(500)).numpy(), made.states)


def test_a_part_of_the_transitions(made: MadeExport) -> None:
    data = extract_level0_dataset(made.open(), chunk=10)
    parts = list(data.chunks(495))
    assert [(part.first, len(part)) for part in parts] == [(495, 5)]
    assert np.array_equal(parts[0].state, made.states[495:])
    assert list(data.chunks(500)) == []
    with pytest.raises(UsageError, match="501"):
        list(data.chunks(0, 501))


def test_what_the_focal_agent_observed(observing: Made) -> None:
    store = omstore.open(observing.export)
    seen = extract_level0_dataset(store, focal_agent="agent_1", chunk=128)
    assert seen.observed
    assert (seen.state_width, seen.state_dtype, seen.num_actions) == (3, np.float32, 3)
    states = np.concatenate([part.state for part in seen])
    assert np.array_equal(states, observing.replay["observations/agent_1"])
    assert np.array_equal(np.concatenate([part.node for part in seen]), observing.replay["node"])
    for data in (
        extract_level0_dataset(store, focal_agent="agent_1", representation="state"),
        extract_level0_dataset(store, focal_agent="agent_0"),
    ):
        assert not data.observed
        assert np.array_equal(np.concatenate([part.state for part in data]), observing.replay["state"])


@pytest.mark.parametrize("largest", [1, 2])
def test_observations_are_kept_as_bits_where_they_are(tmp_path: Path, largest: int) -> None:
    world = RandomGraph(10, (3, 2), width=13, seed=3)
    made = make_store(tmp_path / "export", world, transitions=50)
    own = np.random.default_rng(0).integers(0, 2, (50, 4), np.uint8)
    own[41, 2] = largest
    store = omstore.open(made.export)
    replay = store.replay
    assert replay is not None
    replay._others["replay/observations/agent_1"] = own
    data = extract_level0_dataset(store, focal_agent=1, chunk=8)
    assert (data.state_dtype is None) == (largest == 1)
    assert np.array_equal(np.concatenate([part.state for part in data]), own)


def test_what_can_not_be_extracted(made: MadeExport, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no agent 'fox'"):
        extract_level0_dataset(made.open(), focal_agent="fox")
    with pytest.raises(UsageError, match="at least one transition"):
        extract_level0_dataset(made.open(), chunk=0)
    with pytest.raises(UsageError, match="'sight'"):
        extract_level0_dataset(made.open(), representation="sight")  # type: ignore[arg-type]
    bare = make_export(tmp_path / "bare", transitions=0)
    with pytest.raises(StoreNotFoundError, match="no replay") as caught:
        extract_level0_dataset(bare.open())
    assert "omstore convert" in caught.value.hint
