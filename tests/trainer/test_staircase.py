"""The staircase: its phases, budgets and warm starts; stopping anywhere and going on."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omstore.errors import UsageError
from tests.trainer.improvement_worlds import World, build_pursuit, equal_weights, small_config
from trainer.improvement import SoftRolloutImprover
from trainer.models import ImaginedOpponent, OpponentMLP
from trainer.progress import Phase
from trainer.staircase import Staircase, StaircaseConfig

CONFIG = StaircaseConfig(2, 12, 20, small_config(batch=8, n_rollouts=1, horizon=2, print_every=1))
UPDATES = [2, 3, 2, 3]


@pytest.fixture(scope="module")
def pursuit(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.of(build_pursuit(tmp_path_factory.mktemp("staircase") / "pursuit"), focal=2)


def staircase(world: World, config: StaircaseConfig = CONFIG, **model: Any) -> Staircase:
    opponent = ImaginedOpponent(world.dyn.state_width, 25, 16, seed=8)
    opponent.level(0).load_state_dict(world.team.state_dict())
    return Staircase(opponent, copy.deepcopy(world.agent), world.buffer, world.model(**model), config)


def test_four_phases() -> None:
    assert [phase.label for phase in StaircaseConfig().phases] == [
        "soft-rollout-PI 1/4 | agent opp=L0",
        "soft-rollout-PI 2/4 | team level=L1",
        "soft-rollout-PI 3/4 | agent opp=L1",
        "soft-rollout-PI 4/4 | team level=L2",
    ]
    assert [phase.label for phase in StaircaseConfig(levels=1).phases] == [
        "soft-rollout-PI 1/2 | agent opp=L0",
        "soft-rollout-PI 2/2 | team level=L1",
    ]


def test_global_counter_of_the_documented_budgets() -> None:
    config = StaircaseConfig(agent_root_state_samples=768_000, team_root_state_samples=1_152_000)
    assert config.global_total == 3_840_000
    assert [config.budget(phase) for phase in config.phases] == [768_000, 1_152_000] * 2


def test_counters_run_through_all_phases(pursuit: World) -> None:
    stairs = staircase(pursuit)
    seen, used = [], 0
    while not stairs.finished:
        stairs.step()
        metrics = stairs.improver.metrics()
        used += metrics["requested"]
        seen.append((metrics["phase"], metrics["local"], metrics["local_total"], metrics["roots"]))
        assert metrics["global"] == used
        assert metrics["global_total"] == 64
        assert metrics["roots_total"] == (12, 20)[metrics["phase"] % 2 == 0]
    assert seen == [
        (1, 1, 2, 8), (1, 2, 2, 12), (2, 1, 3, 8), (2, 2, 3, 16), (2, 3, 3, 20),
        (3, 1, 2, 8), (3, 2, 2, 12), (4, 1, 3, 8), (4, 2, 3, 16), (4, 3, 3, 20),
    ]  # fmt: skip
    assert used == 64
    with pytest.raises(UsageError, match="all 20 root states are used"):
        stairs.step()


def test_phases_start_from_what_came_before(pursuit: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[Phase, Any, Any]] = []
    made = SoftRolloutImprover.__init__

    def noted(self: Any, learner: Any, other: Any, *rest: Any, **options: Any) -> None:
        begun.append((options["phase"], copy.deepcopy(learner), copy.deepcopy(other)))
        made(self, learner, other, *rest, **options)

    monkeypatch.setattr(SoftRolloutImprover, "__init__", noted)
    stairs = staircase(pursuit)
    ended = []
    while not stairs.finished:
        stairs.step()
        if stairs.improver.finished:
            levels = [copy.deepcopy(level) for level in stairs.opponent.layers]
            ended.append((copy.deepcopy(stairs.agent), levels))
    (_, own1, other1), (_, own2, other2), (_, own3, other3), (_, own4, other4) = begun
    (agent1, levels1), (agent2, levels2), (agent3, levels3), (agent4, levels4) = ended
    assert [len(levels) for _, levels in ended] == [1, 2, 2, 3]
    assert equal_weights(own1, pursuit.agent)
    assert equal_weights(other1, pursuit.team)
    assert same_logits(pursuit, own2, levels1[0])  # level 1 from level 0, its dead units woken
    assert equal_weights(other2, agent1)
    assert equal_weights(own3, agent2)  # the agent's second phase from its first
    assert equal_weights(other3, levels2[1])
    assert same_logits(pursuit, own4, levels3[1])  # level 2 from level 1
    assert equal_weights(other4, agent3)
    # only the learner changes
    assert equal_weights(agent1, agent2) and equal_weights(agent3, agent4)  # noqa: PT018
    assert all(equal_weights(levels[0], pursuit.team) for _, levels in ended)
    assert equal_weights(levels2[1], levels4[1])
    for before, after in ((own1, agent1), (own2, levels2[1]), (own3, agent3), (own4, levels4[2])):
        assert not equal_weights(before, after)


def same_logits(world: World, first: OpponentMLP, second: OpponentMLP) -> bool:
    with torch.no_grad():
        states = world.buffer.states(np.arange(len(world.buffer)))
        return bool(torch.equal(first(states), second(states)))


def test_run_is_the_same_as_steps(pursuit: World) -> None:
    stepped, ran = staircase(pursuit), staircase(pursuit, threads=1, max_ram=1 << 19)
    refreshed = []
    while not stepped.finished:
        metrics = stepped.step()
        if metrics is not None:
            refreshed.append(metrics)
    stream = io.StringIO()
    calls: list[str] = []
    seen: list[Any] = []
    ran.run(
        stream=stream,
        on_update=lambda: calls.append("update"),
        on_refresh=lambda metrics: (calls.append("refresh"), seen.append(metrics)),
    )
    assert seen == refreshed
    assert calls.count("update") == sum(UPDATES)
    assert calls[:2] == ["refresh", "update"]
    assert len(stream.getvalue().splitlines()) == len(seen)
    assert equal_weights(stepped.agent, ran.agent)
    for first, second in zip(stepped.opponent.layers, ran.opponent.layers, strict=True):
        assert equal_weights(first, second)  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", range(11))
def test_goes_on_to_the_bit(pursuit: World, stop: int, tmp_path: Path) -> None:
    whole = staircase(pursuit)
    refreshed: list[Any] = []
    while not whole.finished:
        refreshed.append(whole.step())
    first = staircase(pursuit)
    before = [first.step() for _ in range(stop)]
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = staircase(pursuit)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    after = []
    while not second.finished:
        after.append(second.step())
    assert before + after == refreshed
    assert equal_weights(whole.agent, second.agent)
    assert second.opponent.num_levels == 3
    for a, b in zip(whole.opponent.layers, second.opponent.layers, strict=True):
        assert equal_weights(a, b)  # type: ignore[arg-type]


def test_what_can_not_be_gone_on_with(pursuit: World) -> None:
    state = staircase(pursuit).state_dict()
    other = staircase(pursuit, StaircaseConfig(2, 13, 20, CONFIG.improvement))
    with pytest.raises(UsageError, match="can't go on: its config was"):
        other.load_state_dict(state)
    begun = staircase(pursuit)
    begun.step()
    with pytest.raises(UsageError, match="has begun"):
        begun.load_state_dict(state)


def test_starts_from_level_0_only(pursuit: World) -> None:
    opponent = ImaginedOpponent(pursuit.dyn.state_width, 25, 16, seed=8)
    opponent.add_level()
    with pytest.raises(UsageError, match="starts from level 0; this opponent model has 2 levels"):
        Staircase(opponent, pursuit.agent, pursuit.buffer, pursuit.model(), CONFIG)


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_settings_that_make_no_sense(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(UsageError, match="each is at least 1"):
        StaircaseConfig(*wrong)
