"""Root states and candidates of an update: each by its own counter, whatever else is drawn."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from omstore import stream_key, uniform
from omstore.errors import UsageError
from tests.trainer.improvement_worlds import World, buffer_of, build_random
from trainer.buffer import OMBuffer
from trainer.improvement import Roots, draw_roots


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.of(build_random(tmp_path_factory.mktemp("roots") / "random"), focal=1)


def drawn(world: World, source: OMBuffer | None = None, **changes: Any) -> Roots:
    given: dict[str, Any] = {"requested": 50, "seed": 9, "phase": 2, "update": 3, "candidate_actions": None}
    masks = world.model().tabulator.masks["team"]
    return draw_roots(world.buffer if source is None else source, world.dyn, masks, **{**given, **changes})


def test_roots_are_the_samples_that_their_numbers_name(world: World) -> None:
    roots = drawn(world)
    numbers = uniform(stream_key(9, 1, 2, 3), np.arange(50))
    samples = [int(number * len(world.buffer)) for number in numbers]
    nodes = world.buffer.graph_state_idx
    assert nodes is not None
    assert roots.node.tolist() == nodes[samples].tolist()
    assert roots.key.tolist() == [int(stream_key(9, 3, 2, 3, i)) for i in range(50)]
    assert roots.requested == 50


def test_every_sample_is_drawn_about_as_often(world: World) -> None:
    many = drawn(world, buffer_of(world.dyn, np.arange(20)), requested=20_000)
    counts = np.bincount(many.node, minlength=20)
    assert counts.sum() == 20_000
    assert abs(counts - 1000).max() < 5 * np.sqrt(1000)


def test_a_smaller_batch_is_the_beginning_of_a_larger_one(world: World) -> None:
    few, many = drawn(world, requested=7), drawn(world)
    for name in ("node", "key", "legal", "candidates"):
        np.testing.assert_array_equal(getattr(few, name), getattr(many, name)[:7])


@pytest.mark.parametrize("word", ["seed", "phase", "update"])
def test_each_word_makes_another_draw(world: World, word: str) -> None:
    other = drawn(world, **{word: 1})
    assert other.node.tolist() != drawn(world).node.tolist()
    assert not set(other.key.tolist()) & set(drawn(world).key.tolist())


def test_states_that_are_not_in_the_graph_are_left_out(world: World) -> None:
    nodes = np.asarray(world.buffer.graph_state_idx).copy()
    nodes[::3] = -1
    kept, all_of_them = drawn(world, buffer_of(world.dyn, nodes)), drawn(world)
    samples = (uniform(stream_key(9, 1, 2, 3), np.arange(50)) * 60).astype(int)
    known = nodes[samples] >= 0
    assert 0 < known.sum() < 50
    assert kept.requested == 50
    for name in ("node", "key", "legal", "candidates"):  # the others are what they were
        np.testing.assert_array_equal(getattr(kept, name), getattr(all_of_them, name)[known])


def test_a_source_without_indices_is_looked_up(world: World) -> None:
    indexed = drawn(world)
    source = buffer_of(world.dyn, np.asarray(world.buffer.graph_state_idx))
    source.graph_state_idx = None
    assert drawn(world, source).node.tolist() == indexed.node.tolist()


def test_candidates_are_the_legal_actions(world: World) -> None:
    roots = drawn(world)
    np.testing.assert_array_equal(roots.legal, world.dyn.legal_team(roots.node))
    for legal, candidates in zip(roots.legal, roots.candidates, strict=True):
        assert candidates[candidates >= 0].tolist() == np.flatnonzero(legal).tolist()


def test_a_cap_takes_some_of_the_legal_actions(world: World) -> None:
    for cap in (1, 3, 7):
        roots = drawn(world, candidate_actions=cap)
        assert roots.candidates.shape == (50, cap)
        for legal, candidates in zip(roots.legal, roots.candidates, strict=True):
            taken = candidates[candidates >= 0]
            assert len(taken) == min(cap, legal.sum())
            assert legal[taken].all()
            assert sorted(set(taken.tolist())) == taken.tolist()
    everything = drawn(world)
    for cap in (8, 100):  # eight team actions are all
        np.testing.assert_array_equal(drawn(world, candidate_actions=cap).candidates, everything.candidates)


def test_each_subset_is_as_likely(world: World) -> None:
    node = int(np.flatnonzero(world.dyn.legal_team(np.arange(150)).sum(axis=1) == 8)[0])
    roots = drawn(world, buffer_of(world.dyn, [node]), requested=28_000, candidate_actions=2)
    counts = Counter(tuple(pair) for pair in roots.candidates.tolist())
    assert len(counts) == 28
    assert max(abs(count - 1000) for count in counts.values()) < 5 * np.sqrt(1000)


def test_an_empty_source_is_refused(world: World) -> None:
    empty = OMBuffer(3, world.dyn.state_width, num_actions=8)
    with pytest.raises(UsageError, match="no states to draw roots from"):
        drawn(world, empty)
