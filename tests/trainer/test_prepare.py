"""What is checked before any training, and what training gets."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.errors import MemoryBudgetError, StoreNotFoundError, UsageError
from tests.read.made_stores import make_store
from tests.trainer.made_exports import MadeExport, make_export
from tools.worlds.random_graph import RandomGraph

pytest.importorskip("torch")

from trainer import prepare
from trainer.adapter import GraphWorldModelAdapter
from trainer.focal_agent import FocalAgent
from trainer.prepare import prepare_om_training_inputs


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeExport:
    return make_export(tmp_path_factory.mktemp("prepare") / "export")


@pytest.fixture(scope="module")
def straying(tmp_path_factory: pytest.TempPathFactory) -> MadeExport:
    return make_export(tmp_path_factory.mktemp("straying") / "export", strangers=(41, 77, 480))


def test_buffer_graph_and_adapter(made: MadeExport) -> None:
    ticks: list[int] = []
    inputs = prepare_om_training_inputs(made.export, focal_agent=1, chunk=64, tick=ticks.append)
    assert len(inputs.buffer) == inputs.buffer.capacity == sum(ticks) == 500
    assert np.array_equal(inputs.buffer.states(np.arange(500)).numpy(), made.states)
    first, rest = np.divmod(made.joint_actions, 12)
    assert np.array_equal(inputs.buffer.actions(np.arange(500)), first * 4 + rest % 4)
    assert inputs.buffer.num_actions == 8
    nodes = inputs.buffer.graph_state_idx
    assert nodes is not None
    assert nodes.dtype == np.int64
    assert np.array_equal(inputs.graph.states(nodes), made.states), "each sample's own node"
    assert isinstance(inputs.dyn, GraphWorldModelAdapter)
    assert inputs.graph is inputs.dyn.graph
    assert inputs.focal_agent == inputs.dyn.focal_agent == 1
    assert (inputs.off_graph, inputs.notes) == (0, ())


def test_one_adapter_is_made_and_nothing_is_hashed_again(
    made: MadeExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters: list[int] = []
    whole = GraphWorldModelAdapter.__init__

    def noted(self: GraphWorldModelAdapter, *given: object, **named: object) -> None:
        adapters.append(id(self))
        whole(self, *given, **named)  # type: ignore[arg-type]

    def hashed(*_: object) -> None:
        raise AssertionError("a state was hashed")

    monkeypatch.setattr(GraphWorldModelAdapter, "__init__", noted)
    monkeypatch.setattr(omstore.Graph, "lookup", hashed)
    monkeypatch.setattr(omstore.Graph, "lookup_packed", hashed)
    inputs = prepare_om_training_inputs(made.export, legal_cache=17)
    assert adapters == [id(inputs.dyn)]
    assert inputs.dyn.legal_cache == 17


@pytest.mark.parametrize(("capacity", "held"), [(1, 1), (123, 123), (499, 499), (500, 500), (501, 500)])
def test_the_newest_transitions_that_fit(made: MadeExport, capacity: int, held: int) -> None:
    inputs = prepare_om_training_inputs(made.export, capacity=capacity, chunk=100)
    assert (len(inputs.buffer), inputs.buffer.capacity) == (held, capacity)
    assert np.array_equal(inputs.buffer.states(np.arange(held)).numpy(), made.states[500 - held :])
    nodes = inputs.buffer.graph_state_idx
    assert nodes is not None
    assert np.array_equal(inputs.graph.states(nodes), made.states[500 - held :])


def test_states_that_are_not_in_the_graph_are_refused(straying: MadeExport) -> None:
    with pytest.raises(UsageError, match=r"3 of 500 extracted states aren't in the graph") as caught:
        prepare_om_training_inputs(straying.export, chunk=10)
    assert "the first at transition 41" in str(caught.value)
    assert "strict=False" in caught.value.hint
    with pytest.raises(UsageError, match=r"1 of 20 .* the first at transition 480"):
        prepare_om_training_inputs(straying.export, capacity=20)
    prepare_om_training_inputs(straying.export, capacity=19)  # only those in the buffer matter


def test_or_left_out_of_the_roots_where_that_is_allowed(straying: MadeExport) -> None:
    inputs = prepare_om_training_inputs(straying.export, strict=False)
    nodes = inputs.buffer.graph_state_idx
    assert nodes is not None
    assert np.flatnonzero(nodes < 0).tolist() == [41, 77, 480]
    assert len(inputs.buffer) == 500, "level 0 learns from them all the same"
    assert np.array_equal(inputs.buffer.states(np.arange(500)).numpy(), straying.states)
    assert inputs.off_graph == 3
    assert "3 of 500" in inputs.notes[0]


def test_without_a_store(tmp_path: Path) -> None:
    export = tmp_path / "3"
    with pytest.raises(StoreNotFoundError, match="no folder"):
        prepare_om_training_inputs(export)
    (export / "wm").mkdir(parents=True)
    with pytest.raises(StoreNotFoundError, match="no store") as caught:
        prepare_om_training_inputs(export)
    assert "omstore build" in caught.value.hint
    assert f"omstore convert {export}" in caught.value.hint
    (export / "wm/env_transition_graph.pkl.zst").touch()
    with pytest.raises(StoreNotFoundError) as caught:
        prepare_om_training_inputs(export)
    assert f"omstore convert {export}" in caught.value.hint
    assert "build" not in caught.value.hint


def test_without_a_graph_or_a_replay(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no replay"):
        prepare_om_training_inputs(make_export(tmp_path / "bare", transitions=0).export)
    half = make_export(tmp_path / "half", graph=False)
    with pytest.raises(StoreNotFoundError, match="no graph"):
        prepare_om_training_inputs(half.export)


def test_other_widths_than_the_graphs(tmp_path: Path) -> None:
    made = make_store(tmp_path / "export", RandomGraph(40, (3, 2), width=13, seed=3), transitions=100)
    with pytest.raises(
        UsageError, match=r"agent_1 observed has 3 components, the graph's states have 13"
    ) as caught:
        prepare_om_training_inputs(made.export, focal_agent="agent_1", strict=False)
    assert "agent_0" in caught.value.hint
    inputs = prepare_om_training_inputs(
        made.export, focal_agent="agent_1", strict=False, representation="state"
    )
    assert np.array_equal(inputs.buffer.states(np.arange(100)).numpy(), made.replay["state"])


def test_observations_that_differ_are_looked_up_and_roots_are_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_export(tmp_path / "export", transitions=60)
    opened = omstore.open

    def observing(*given: object, **named: object) -> omstore.Store:
        store = opened(*given, **named)  # type: ignore[arg-type]
        replay = store.replay
        assert replay is not None
        replay._others["replay/observations/agent_2"] = own
        replay.observers = ("agent_2",)
        return store

    monkeypatch.setattr(omstore, "open", observing)
    own = made.world.vectors(np.arange(60) % 40)
    inputs = prepare_om_training_inputs(made.export, focal_agent=2, chunk=7)
    assert np.array_equal(inputs.buffer.states(np.arange(60)).numpy(), own)
    nodes = inputs.buffer.graph_state_idx
    assert nodes is not None
    assert np.array_equal(inputs.graph.states(nodes), made.states)
    assert "agent_2 observed" in inputs.notes[0]
    known = {tuple(vector) for vector in made.world.vectors(np.arange(40)).tolist()}
    while tuple(own[33].tolist()) in known:
        own[33] = np.random.default_rng(0).integers(0, 2, 13)
    with pytest.raises(UsageError, match=r"1 of 60 .* the first at transition 33"):
        prepare_om_training_inputs(made.export, focal_agent=2, chunk=7)
    own = own + np.float32(0.5)  # no states at all
    with pytest.raises(UsageError, match="60 of 60"):
        prepare_om_training_inputs(made.export, focal_agent=2, chunk=7)


def test_the_focal_agent_unless_said(
    tmp_path: Path, made: MadeExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepare_om_training_inputs(made.export).focal_agent == 0
    opened = omstore.open

    def recorded(*given: object, **named: object) -> omstore.Store:
        store = opened(*given, **named)  # type: ignore[arg-type]
        store.manifest.replay["focal"] = "agent_2"  # type: ignore[index]
        return store

    monkeypatch.setattr(omstore, "open", recorded)
    assert prepare_om_training_inputs(made.export).focal_agent == 2
    assert prepare_om_training_inputs(made.export, focal_agent="agent_1").focal_agent == 1
    with pytest.raises(UsageError, match="no agent 'fox'"):
        prepare_om_training_inputs(made.export, focal_agent="fox")


def test_a_budget(made: MadeExport) -> None:
    """500 samples of 2 bytes of state and 1 of action: 1500 bytes, at most half of the budget."""
    assert len(prepare_om_training_inputs(made.export, max_ram=3000).buffer) == 500
    with pytest.raises(MemoryBudgetError, match="500 samples") as caught:
        prepare_om_training_inputs(made.export, max_ram=2999)
    assert "--capacity 499" in caught.value.hint
    assert len(prepare_om_training_inputs(made.export, max_ram=2999, capacity=499).buffer) == 499
    with pytest.raises(UsageError, match="capacity"):
        prepare_om_training_inputs(made.export, capacity=0)


def test_large_temporaries_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stays is the buffer, what comes and goes is a chunk."""
    count, chunk = 200_000, 2000
    made = make_export(tmp_path / "export", transitions=count)
    # it decodes chunks of rewards, 3 MiB at the peak, which are gone when this goes on
    monkeypatch.setattr(prepare, "choose_focal_agent", lambda *given, **named: FocalAgent(0))
    prepare_om_training_inputs(made.export, chunk=chunk)  # compiles
    tracemalloc.start()
    try:
        inputs = prepare_om_training_inputs(made.export, chunk=chunk)
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert inputs.buffer.nbytes == count * 3
    assert current < inputs.buffer.nbytes + 200_000
    # a chunk of the replay as it is stored, 1 MiB; all nodes would be 1.6 MB, all states unpacked 2.6 MB
    assert peak < inputs.buffer.nbytes + (3 << 19)
