"""Root states: the same batches with any number of workers, however these are started."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.errors import UsageError
from tests.read.made_stores import Made, make_store
from tools.worlds.random_graph import RandomGraph

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from trainer.roots import RootBatch, RootStates  # noqa: E402


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    world = RandomGraph(40, (3, 2), width=13, seed=3)
    return make_store(tmp_path_factory.mktemp("roots") / "export", world, transitions=500)


def batches(made: Made, workers: int = 0, method: str | None = None, **options: int) -> list[RootBatch]:
    settings = {"batch": 64, "budget": 1000, "seed": 7} | options
    roots = RootStates(omstore.open(made.export), **settings)
    loader = DataLoader(roots, batch_size=None, num_workers=workers, multiprocessing_context=method)
    return list(loader)


def assert_equal(some: list[RootBatch], others: list[RootBatch]) -> None:
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert (one.update, one.requested) == (other.update, other.requested)
        for a, b in zip(one[2:], other[2:], strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_change_nothing(made: Made, method: str) -> None:
    assert_equal(batches(made, 2, method), batches(made))


def test_roots_are_states_of_the_replay_that_are_in_the_graph(made: Made) -> None:
    columns = made.replay
    found = batches(made)
    assert [batch.requested for batch in found] == [64] * 15 + [40]
    assert [batch.update for batch in found] == list(range(16))
    for batch in found:
        assert np.array_equal(columns["node"][batch.transition], batch.node)
        assert np.array_equal(columns["state"][batch.transition], batch.state)
        assert (batch.node >= 0).all()
        assert 0 < len(batch.node) <= batch.requested
    assert any(len(batch.node) < batch.requested for batch in found), "some states aren't in the graph"


def test_draws_are_uniform_over_the_replay(made: Made) -> None:
    drawn = np.concatenate([batch.transition for batch in batches(made, budget=200_000, batch=5000)])
    known = made.replay["node"] >= 0
    counts = np.bincount(drawn, minlength=500)
    assert (counts[~known] == 0).all()
    expected = 200_000 / 500
    assert abs(counts[known].mean() - expected) < 5
    assert np.abs(counts[known] - expected).max() < 6 * np.sqrt(expected)


def test_a_resume_and_packed_states(made: Made) -> None:
    whole = batches(made)
    assert_equal(batches(made, first_update=11), whole[11:])
    for plain, packed in zip(whole, batches(made, packed=True), strict=True):
        assert np.array_equal(np.packbits(plain.state.numpy(), axis=1), packed.state)
    assert not torch.equal(batches(made, seed=8)[0].transition, whole[0].transition)


def test_what_makes_no_sense_is_refused(made: Made, tmp_path: Path) -> None:
    for options in ({"batch": 0}, {"seed": -1}, {"first_update": -1}):
        with pytest.raises(UsageError):
            batches(made, **options)
    with pytest.raises(UsageError, match="update 16"):
        RootStates(omstore.open(made.export), batch=64, budget=1000, seed=7).draw(16)
    bare = make_store(tmp_path / "bare", RandomGraph(5))
    with pytest.raises(UsageError, match="no replay"):
        RootStates(omstore.open(bare.export), batch=1, budget=1, seed=0)
