"""Exploring against a search that holds everything in memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omstore.errors import ModelError
from omstore.model import Outcomes, TransitionModel
from omstore.model.exploring import _Exploration, explore
from tests.model.small_worlds import Drift


class RandomJumps(TransitionModel):
    """Random jumps between some of 1,000 places."""

    agents = ("a",)
    num_actions = (2,)
    sizes = (10, 100)

    def __init__(self, seed, starts=3, fanout=2):
        rng = np.random.default_rng(seed)
        self.targets = rng.integers(0, 1000, (1000, 2, fanout))
        self.targets[:, :, -1] = self.targets[:, :, 0] * 3 % 1000
        self.starts = rng.integers(0, 1000, starts)

    def initial_states(self):
        return self.space.states(self.starts)

    def successors(self, states, joint_actions):
        targets = self.targets[self.space.numbers(states), joint_actions]
        fanout = targets.shape[1]
        return Outcomes(
            np.arange(len(targets) + 1) * fanout,
            self.space.states(targets.reshape(-1)),
            np.full(targets.size, 1 / fanout),
        )


def reached(model):
    seen = set(model.starts.tolist())
    todo = list(seen)
    while todo:
        for target in set(model.targets[todo.pop()].reshape(-1).tolist()) - seen:
            seen.add(target)
            todo.append(target)
    return sorted(seen)


@given(seed=st.integers(0, 10_000), fanout=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_all_states_and_only_those(tmp_path_factory, seed, fanout):
    model = RandomJumps(seed, fanout=fanout)
    found = explore(model, tmp_path_factory.mktemp("explore"), 1 << 20)
    assert found.numbers.tolist() == reached(model)
    assert found.num_edges == len(found.numbers) * 2 * fanout


def test_runs_that_do_not_fit_are_merged_in_pieces(tmp_path):
    model = RandomJumps(7, fanout=3)
    run = _Exploration(model, tmp_path, 1 << 20, lambda n: None)
    run._buffered, run.budget = 16, 64 * 8  # a run for every few rows, read back a handful at a time
    assert run.run().numbers.tolist() == reached(model)


def test_illegal_and_absorbing_rows_are_not_asked(tmp_path):
    model = Drift()
    asked = []
    successors = model.successors

    def watched(states, joint_actions):
        asked.extend(zip(map(tuple, states.tolist()), joint_actions.tolist(), strict=True))
        return successors(states, joint_actions)

    model.successors = watched
    found = explore(model, tmp_path, 1 << 20)
    assert len(asked) == len(set(asked))
    assert all(one != two for (one, two, _), _ in asked)
    assert all(not (two == 0 and action % 3 == 2) for (_, two, _), action in asked)
    assert found.depth > 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((0, 2), int), "no state to explore from"),
        (np.zeros((1, 3), int), "initial_states gave"),
        (np.array([[0, 100]]), r"component 1 of initial state \(0, 100\)"),
        (np.array([[0.0, 1.0]]), "float64"),
    ],
)
def test_initial_states_that_are_none(tmp_path, given, message):
    model = RandomJumps(0)
    model.initial_states = lambda: given
    with pytest.raises(ModelError, match=message):
        explore(model, tmp_path, 1 << 20)
