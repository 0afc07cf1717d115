"""Exact action values: against backward induction written out, how long they serve, what they teach."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omstore.errors import MemoryBudgetError
from tests.rollout.reference import exact_action_values
from tests.trainer.improvement_worlds import (
    World,
    equal_weights,
    members_of,
    policy,
    reward_weights,
    small_config,
    worlds_in,
)
from trainer.exact import ExactModel, Problem
from trainer.improvement import SoftRolloutImprover, SoftRolloutPIConfig, draw_roots
from trainer.improvement.dead_units import wake_dead_units
from trainer.improvement.exact_action_values import ExactActionValues
from trainer.improvement.objective import soft_target
from trainer.progress import Phase
from trainer.tables import Side

SIDES: tuple[Side, Side] = ("agent", "team")
OTHER: dict[Side, Side] = {"agent": "team", "team": "agent"}


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], World]:
    return worlds_in(tmp_path_factory.mktemp)


def exact_config(**changes: Any) -> SoftRolloutPIConfig:
    return small_config(**{"action_values": "exact", "sweep_updates": 2, **changes})


def improver(world: World, learner: Side, config: SoftRolloutPIConfig) -> SoftRolloutImprover:
    own, other = world.sides(learner)
    phase = Phase(1, 1, learner, 0)
    return SoftRolloutImprover(copy.deepcopy(own), other, world.buffer, world.model(), config, phase=phase)


def run(trained: SoftRolloutImprover) -> SoftRolloutImprover:
    while not trained.finished:
        trained.step()
    return trained


@pytest.mark.parametrize("learner", SIDES)
@pytest.mark.parametrize("name", ["random", "factored", "csr", "dictionary"])
def test_values_are_those_of_backward_induction(
    worlds: Callable[[str], World], name: str, learner: Side
) -> None:
    world, config = worlds(name), exact_config(candidate_actions=3)
    own, other = world.sides(learner)
    expected = exact_action_values(
        world.dyn.graph,
        members_of(world.dyn, learner),
        policy(world.dyn, own, learner).astype(np.float64),
        policy(world.dyn, other, OTHER[learner]).astype(np.float64),
        horizon=config.horizon,
        discount=config.discount,
        reward_weights=reward_weights(world.dyn, learner),
    )
    model = world.model()
    roots = draw_roots(
        world.buffer, world.dyn, model.tabulator.masks[learner], requested=40, seed=1, phase=1, update=0,
        candidate_actions=3,
    )  # fmt: skip
    found = ExactActionValues(model, learner, other, config).estimate(own, roots, 0)
    known = roots.candidates >= 0
    assert known.any()
    wrong = found.mean[known] - expected[roots.node[:, None], roots.candidates][known]
    # rounded to a fraction of the temperature; policies are float32
    assert np.abs(wrong).max() <= config.softness / 2**9 + 1e-6
    assert np.ptp(found.mean[known]) > 20 * config.softness / 2**9
    assert not found.mean[~known].any()


def test_values_serve_some_updates(worlds: Callable[[str], World]) -> None:
    world = worlds("factored")
    own, other = world.sides("team")
    model = world.model()
    roots = draw_roots(
        world.buffer, world.dyn, model.tabulator.masks["team"], requested=9, seed=1, phase=1, update=0,
        candidate_actions=None,
    )  # fmt: skip
    values = ExactActionValues(model, "team", other, exact_config(sweep_updates=3))
    changed = copy.deepcopy(own)
    first = values.estimate(changed, roots, 3)
    with torch.no_grad():
        changed.head.weight *= -1
    assert np.array_equal(values.estimate(changed, roots, 5).mean, first.mean)
    after = values.estimate(changed, roots, 6).mean
    assert not np.array_equal(after, first.mean)
    fresh = ExactActionValues(model, "team", other, exact_config()).estimate(changed, roots, 0)
    assert np.array_equal(after, fresh.mean)


def test_step_of_a_policy_by_hand() -> None:
    logits = torch.log(torch.tensor([[1.0, 3.0, 5.0]], dtype=torch.float64))
    values = torch.tensor([[0.5, 0.0, 9.0]], dtype=torch.float64)
    evaluated = torch.tensor([[True, True, False]])
    weights = [math.exp(0.5 / 0.25), 3.0]
    expected = [[weights[0] / sum(weights), weights[1] / sum(weights), 0.0]]
    np.testing.assert_allclose(soft_target(values, evaluated, 0.25, logits), expected, rtol=1e-14)


@pytest.mark.parametrize("learner", SIDES)
@pytest.mark.parametrize("stop", range(6))
def test_goes_on_to_the_bit(worlds: Callable[[str], World], learner: Side, stop: int, tmp_path: Path) -> None:
    world, config = worlds("factored"), exact_config(batch=8)
    whole = run(improver(world, learner, config))
    assert whole.updates == 5
    first = improver(world, learner, config)
    for _ in range(stop):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = improver(world, learner, config)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    run(second)
    assert equal_weights(whole.learner, second.learner)
    assert second.metrics() == whole.metrics()


@pytest.mark.parametrize("rows", ["csr", "dictionary"])
def test_row_encodings_teach_the_same(worlds: Callable[[str], World], rows: str) -> None:
    one, other = (
        run(improver(worlds(name), "team", exact_config(root_state_samples=160)))
        for name in ("factored", rows)
    )
    assert equal_weights(one.learner, other.learner)


def test_metrics_without_rollouts(worlds: Callable[[str], World]) -> None:
    metrics = run(improver(worlds("factored"), "team", exact_config())).metrics()
    assert metrics["q_error"] == 0.0
    assert metrics["imagined_steps"] == 0
    assert metrics["q_best"] >= metrics["q_policy"]


def test_a_budget_that_is_too_small_is_named(worlds: Callable[[str], World]) -> None:
    world = worlds("factored")
    needed = 512 * (4 * 25 + 4 * 5 + 8 * 25 + 24)
    config = exact_config()
    ExactActionValues(world.model(max_ram=2 * needed), "team", world.agent, config)
    with pytest.raises(MemoryBudgetError, match="exact action values of the team take") as error:
        ExactActionValues(world.model(max_ram=2 * needed - 2), "team", world.agent, config)
    assert "--team-action-values rollouts" in str(error.value.hint)


def test_a_team_learns_from_a_level_whose_units_are_dead(worlds: Callable[[str], World]) -> None:
    world = worlds("factored")
    flat = copy.deepcopy(world.team)
    with torch.no_grad():  # what uniformly random play can make of level 0
        flat.second.bias -= 1000.0
        flat.head.bias.zero_()
    model = ExactModel(world.dyn.graph, world.dyn.focal_agent)
    tabulator = world.model().tabulator
    agent = tabulator.probabilities(world.agent, "agent").numpy()
    nodes = np.asarray(world.buffer.graph_state_idx)

    def worth(team: Any) -> float:
        found = model.solve([Problem(agent, team, "team")], horizon=4, discount=0.9)[0]
        return float(found.values[nodes].mean())

    begin = worth(tabulator.probabilities(flat, "team").numpy())
    best = float(model.solve([Problem(agent, None)], horizon=4, discount=0.9)[0].values[nodes].mean())
    config = exact_config(root_state_samples=64 * 200, batch=64, temperature=None)
    ways = []
    for wakes in (False, True):
        learner = copy.deepcopy(flat)
        if wakes:
            assert wake_dead_units(learner, world.buffer, seed=1, phase=2) >= 16
        run(SoftRolloutImprover(learner, world.agent, world.buffer, world.model(), config,
                                phase=Phase(2, 2, "team", 1)))  # fmt: skip
        ways.append((worth(tabulator.probabilities(learner, "team").numpy()) - begin) / (best - begin))
    assert abs(ways[0]) < 0.3  # the head's biases are all that moves
    assert ways[1] > 0.7
