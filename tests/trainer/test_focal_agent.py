"""The focal agent where nobody says so: one whose team has something to learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.errors import UsageError
from tests.trainer.made_exports import make_export
from trainer.focal_agent import choose_focal_agent
from trainer.level0 import extract_level0_dataset
from trainer.prepare import prepare_om_training_inputs

CAPTURE = [1.0, 1.0, -1.0]
STEP = [-0.01, -0.01, 0.01]


def export_of(folder: Path, rewards: list[list[float]]) -> Path:
    return make_export(folder, len(rewards), rewards=np.array(rewards)).export


def chosen(export: Path, given: int | str | None = None, chunk: int = 7) -> tuple[int, str]:
    found = choose_focal_agent(omstore.open(export), given, chunk=chunk)
    return found.number, found.note


def test_rewards_that_cancel_out_choose_the_evader(tmp_path: Path) -> None:
    export = export_of(tmp_path, [STEP] * 20 + [CAPTURE] + [STEP] * 9)
    number, note = chosen(export)
    assert number == 2
    assert note.startswith("agent_2 is the focal agent; with agent_0 the team's rewards cancel out")
    inputs = prepare_om_training_inputs(export)
    assert inputs.focal_agent == inputs.dyn.focal_agent == 2
    assert inputs.notes == (note,)
    assert extract_level0_dataset(omstore.open(export)).focal_agent == 2


def test_an_agent_that_is_given_is_taken_and_told_about(tmp_path: Path) -> None:
    export = export_of(tmp_path, [STEP] * 20 + [CAPTURE] + [STEP] * 9)
    for given in (1, "agent_1"):
        number, note = chosen(export, given)
        assert number == 1
        assert note.endswith("--focal-agent agent_2 is one that has")
    assert chosen(export, 2) == (2, "")
    with pytest.raises(UsageError, match="no agent 'fox'"):
        chosen(export, "fox")


@pytest.mark.parametrize(
    "rewards",
    [
        [STEP] * 20,  # nothing happens: no choice is better
        [[0.1 + 0.2, 0.3, 0.0], [0.3, 0.1 + 0.2, 0.0]] * 5,  # sums that differ by rounding alone
        [[0.0, 0.0, 0.0]] * 9 + [[0.0, 0.0, 1.0]],  # agent 0's team does vary, in the last transition
    ],
)
def test_else_the_first(tmp_path: Path, rewards: list[list[float]]) -> None:
    assert chosen(export_of(tmp_path, rewards)) == (0, "")


def test_only_agents_that_observe_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = omstore.open(export_of(tmp_path, [STEP, CAPTURE]))
    assert store.replay is not None
    monkeypatch.setattr(store.replay, "observers", ("agent_2",))
    assert choose_focal_agent(store).number == 0
    assert choose_focal_agent(store, 0).note == ""


def test_nothing_is_read_beyond_what_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = omstore.open(export_of(tmp_path, [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]] * 10))
    assert store.replay is not None
    read: list[slice] = []
    rewards = store.replay.rewards
    monkeypatch.setattr(store.replay, "rewards", lambda part: (read.append(part), rewards(part))[1])
    assert choose_focal_agent(store, chunk=4).number == 0
    assert read == [slice(0, 4)]


def test_without_a_replay(tmp_path: Path) -> None:
    made = make_export(tmp_path, 0)
    assert choose_focal_agent(made.open()).number == 0
