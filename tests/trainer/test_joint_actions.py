"""Joint actions seen from the focal agent: against counting them out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from omstore.errors import UsageError
from trainer.joint_actions import JointActions, find_agent

NUM_ACTIONS = (2, 3, 4)


def counted(focal: int) -> list[tuple[int, int]]:
    """(own, team) of every joint action, in order; team actions numbered in the order of their tuples."""
    others = [range(n) for agent, n in enumerate(NUM_ACTIONS) if agent != focal]
    team_number = {team: i for i, team in enumerate(itertools.product(*others))}
    return [
        (every[focal], team_number[tuple(a for agent, a in enumerate(every) if agent != focal)])
        for every in itertools.product(*map(range, NUM_ACTIONS))
    ]


@pytest.mark.parametrize("focal", [0, 1, 2])
def test_split_and_join(focal: int) -> None:
    actions = JointActions(NUM_ACTIONS, focal)
    assert (actions.num_joint, actions.num_focal, actions.num_team) == (
        24,
        NUM_ACTIONS[focal],
        24 // NUM_ACTIONS[focal],
    )
    own, team = actions.split(np.arange(24, dtype=np.uint8))
    assert list(zip(own.tolist(), team.tolist(), strict=True)) == counted(focal)
    assert np.array_equal(actions.join(own, team), np.arange(24))


@pytest.mark.parametrize("focal", [0, 1, 2])
def test_masks_by_agent(focal: int) -> None:
    actions = JointActions(NUM_ACTIONS, focal)
    legal = np.random.default_rng(0).random((5, 24)) < 0.5
    split = actions.by_agent(legal)
    for joint, (own, team) in enumerate(counted(focal)):
        assert np.array_equal(split[:, own, team], legal[:, joint])


def test_what_is_out_of_range() -> None:
    actions = JointActions(NUM_ACTIONS, 1)
    with pytest.raises(UsageError, match="joint action 24 at position 1"):
        actions.split([0, 24])
    with pytest.raises(UsageError, match="team action 8"):
        actions.join([0], [8])
    with pytest.raises(UsageError, match="integers"):
        actions.split(np.zeros(2))
    for focal in (-1, 3):
        with pytest.raises(UsageError):
            JointActions(NUM_ACTIONS, focal)
    with pytest.raises(UsageError, match="no opponents"):
        JointActions((4,), 0)


def test_agents_by_number_or_name() -> None:
    agents = ("pursuer_0", "pursuer_1", "evader")
    assert find_agent(agents, "evader") == 2
    assert find_agent(agents, 0) == 0
    for unknown in ("fox", 3, -1):
        with pytest.raises(UsageError) as caught:
            find_agent(agents, unknown)
        assert "2 (evader)" in str(caught.value)
