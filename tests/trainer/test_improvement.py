"""Policy improvement: counts, masks, losses and updates against plain ones, stopping and going on."""

from __future__ import annotations

import copy
import dataclasses
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from omstore.errors import UsageError
from tests.trainer.improvement_worlds import (
    World,
    buffer_of,
    build_pursuit,
    build_random,
    equal_weights,
    reference_loss,
    reference_values,
    small_config,
)
from trainer.improvement import SoftRolloutImprover, SoftRolloutPIConfig, soft_rollout_policy_improvement
from trainer.improvement.objective import objective, soft_target
from trainer.models import OpponentMLP
from trainer.progress import METRICS, Phase
from trainer.tables import Side


@pytest.fixture(scope="module")
def pursuit(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.of(build_pursuit(tmp_path_factory.mktemp("improving") / "pursuit"), focal=2)


@pytest.fixture(scope="module")
def random_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.of(build_random(tmp_path_factory.mktemp("improving") / "random", 60), focal=0)


def improver(
    world: World, learner: Side = "agent", config: SoftRolloutPIConfig | None = None, **options: Any
) -> SoftRolloutImprover:
    own, other = world.sides(learner)
    return SoftRolloutImprover(
        copy.deepcopy(own),
        other,
        options.pop("source", world.buffer),
        options.pop("model", None) or world.model(),
        config or small_config(),
        phase=options.pop("phase", Phase(1, 1, learner, 0)),
        **options,
    )


def run(trained: SoftRolloutImprover) -> SoftRolloutImprover:
    while not trained.finished:
        trained.step()
    return trained


# Numbers by hand


def test_soft_target_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 7.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    evaluated = torch.tensor([[True, True, False], [True, True, True]])
    e = math.exp(1 / 0.5)
    expected = [[1 / (1 + e), e / (1 + e), 0.0], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose(soft_target(values, evaluated, 0.5), expected, rtol=1e-14)


def test_objective_by_hand() -> None:
    logits = torch.log(torch.tensor([[1.0, 3.0, 5.0], [2.0, 2.0, 4.0]], dtype=torch.float64))
    target = torch.tensor([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]], dtype=torch.float64)
    legal = torch.tensor([[True, True, False], [True, True, True]])
    found = objective(logits, target, legal, legal, 0.25)
    ce = [-(0.5 * math.log(0.25) + 0.5 * math.log(0.75)), -(0.3 * math.log(0.25) + 0.7 * math.log(0.5))]
    entropy = [-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), 0.5 * math.log(4) + 0.5 * math.log(2)]
    assert float(found.policy_ce) == pytest.approx(sum(ce) / 2, rel=1e-14)
    assert float(found.entropy) == pytest.approx(sum(entropy) / 2, rel=1e-14)
    assert float(found.value) == pytest.approx((sum(ce) - 0.25 * sum(entropy)) / 2, rel=1e-14)


def test_a_cap_leaves_what_was_not_evaluated_alone() -> None:
    logits = torch.log(torch.tensor([[1.0, 3.0, 4.0]], dtype=torch.float64)).requires_grad_()
    legal, evaluated = torch.tensor([[True, True, True]]), torch.tensor([[True, True, False]])
    found = objective(logits, torch.tensor([[0.5, 0.5, 0.0]]), legal, evaluated, 0.0)
    assert found.policy_ce.item() == pytest.approx(-(0.5 * math.log(0.25) + 0.5 * math.log(0.75)))
    found.value.backward()
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad, [[0.25 - 0.5, 0.75 - 0.5, 0.0]], atol=1e-12)


# Updates


@pytest.mark.parametrize(("name", "learner"), [("pursuit", "agent"), ("pursuit", "team"), ("random_world", "agent"),
                                               ("random_world", "team")])  # fmt: skip
def test_updates_are_those_of_a_plain_path(name: str, learner: Side, request: pytest.FixtureRequest) -> None:
    world: World = request.getfixturevalue(name)
    config = small_config(root_state_samples=8, batch=4, n_rollouts=2, horizon=3, entropy_coef=0.05)
    trained = improver(world, learner, config)
    plain = copy.deepcopy(trained.learner).double()
    mean = [torch.zeros_like(p) for p in plain.parameters()]
    square = [torch.zeros_like(p) for p in plain.parameters()]
    for update in range(2):
        roots = trained.draw()
        _, other = world.sides(learner)
        as_single = copy.deepcopy(plain).float()
        values = reference_values(world.dyn, as_single, other, learner, roots.node, roots.key, config)
        states = torch.from_numpy(world.dyn.states(roots.node))
        plain.zero_grad()
        losses = reference_loss(plain, states, values, config)
        losses["objective"].backward()
        trained.step()
        metrics = trained.metrics()
        for loss, expected in losses.items():
            assert metrics[loss] == pytest.approx(float(expected.detach()), abs=2e-6), loss
        assert metrics["q_mean"] == pytest.approx(np.nanmean(values), abs=1e-9)
        assert metrics["q_best"] == pytest.approx(np.nanmax(values, axis=1).mean(), abs=1e-9)
        with torch.no_grad():  # Adam as in its paper
            for p, own, m, v in zip(
                plain.parameters(), trained.learner.parameters(), mean, square, strict=True
            ):
                assert p.grad is not None and own.grad is not None  # noqa: PT018
                torch.testing.assert_close(own.grad.double(), p.grad, atol=3e-6, rtol=1e-4)
                m.mul_(0.9).add_(0.1 * p.grad)
                v.mul_(0.999).add_(0.001 * p.grad**2)
                rate = m / (1 - 0.9 ** (update + 1))
                p -= config.lr * rate / ((v / (1 - 0.999 ** (update + 1))).sqrt() + 1e-8)
                big = p.grad.abs() > 1e-4  # a smaller one may be all rounding, and is scaled up
                torch.testing.assert_close(own.double()[big], p[big], atol=1e-4, rtol=0)
                p.copy_(own.double())


@pytest.mark.parametrize("learner", ["agent", "team"])
def test_policies_approach_their_target(pursuit: World, learner: Side) -> None:
    config = small_config(
        root_state_samples=64 * 60,
        batch=64,
        n_rollouts=4,
        horizon=1,
        entropy_coef=0.0,
        lr=0.03,
        temperature=0.2,
    )
    one_node = buffer_of(pursuit.dyn, [77])
    trained = improver(pursuit, learner, config, source=one_node)
    trained.step()
    before = trained.metrics()
    after = run(trained).metrics()
    assert after["policy_ce"] - after["target_entropy"] < 0.1 * (
        before["policy_ce"] - before["target_entropy"]
    )


# Counts


@pytest.mark.parametrize(
    ("samples", "batch", "requested"),
    [(10, 4, [4, 4, 2]), (8, 4, [4, 4]), (9, 4, [4, 4, 1]), (3, 4, [3]), (4, 4, [4]), (1, 1, [1])],
)
def test_budget_counts_root_states(pursuit: World, samples: int, batch: int, requested: list[int]) -> None:
    trained = improver(pursuit, config=small_config(root_state_samples=samples, batch=batch, n_rollouts=1))
    used = 0
    for number, b in enumerate(requested, start=1):
        assert not trained.finished
        assert trained.draw().requested == b
        trained.step()
        used += b
        metrics = trained.metrics()
        assert metrics["local"] == number
        assert metrics["local_total"] == len(requested) == math.ceil(samples / batch)
        assert (metrics["roots"], metrics["roots_total"]) == (used, samples)
        assert (metrics["global"], metrics["global_total"]) == (used, samples)
        assert (metrics["valid"], metrics["requested"]) == (b, b)
        assert trained.optimizer.steps == number
    assert trained.finished
    with pytest.raises(UsageError, match=f"all {samples} root states are used"):
        trained.step()


def test_documented_number_of_updates() -> None:
    assert SoftRolloutPIConfig(root_state_samples=100_000, batch=512).num_updates == 196
    assert SoftRolloutPIConfig(root_state_samples=768_000, batch=256).num_updates == 3000


def test_roots_outside_the_graph_use_the_budget_all_the_same(pursuit: World) -> None:
    nodes = np.asarray(pursuit.buffer.graph_state_idx).copy()
    nodes[5:] = -1
    trained = improver(pursuit, config=small_config(root_state_samples=40, batch=8),
                       source=buffer_of(pursuit.dyn, nodes))  # fmt: skip
    local = 0
    valid = []
    for update in range(5):
        survived = len(trained.draw().node)
        before = copy.deepcopy(trained.learner)
        trained.step()
        valid.append(survived)
        local += survived > 0
        metrics = trained.metrics()
        assert metrics["valid"] == survived
        assert metrics["requested"] == 8
        assert metrics["roots"] == 8 * (update + 1)
        assert metrics["local"] == local == trained.optimizer.steps
        assert equal_weights(before, trained.learner) == (survived == 0)
    assert 0 in valid and max(valid) > 0  # noqa: PT018
    assert metrics["local_total"] == 5


def test_no_valid_root_at_all_makes_no_update(pursuit: World) -> None:
    trained = improver(pursuit, source=buffer_of(pursuit.dyn, [-1] * 20))
    before = copy.deepcopy(trained.learner)
    metrics = run(trained).metrics()
    assert (metrics["local"], metrics["local_total"], metrics["roots"], metrics["valid"]) == (0, 3, 40, 0)
    assert metrics["policy_ce"] is None
    assert metrics["imagined_steps"] == 0
    assert equal_weights(before, trained.learner)


def test_imagined_steps_count_evaluated_actions(pursuit: World, random_world: World) -> None:
    assert run(improver(pursuit)).metrics()["imagined_steps"] == 40 * 5 * 3 * 4
    capped = small_config(candidate_actions=2)
    assert run(improver(pursuit, "team", capped)).metrics()["imagined_steps"] == 40 * 2 * 3 * 4
    trained = improver(random_world, "team", small_config(root_state_samples=16))
    evaluated = int(trained.draw().legal.sum())
    assert evaluated < 16 * 12
    assert run(trained).metrics()["imagined_steps"] == evaluated * 3 * 4


@pytest.mark.parametrize(
    ("decay", "expected"),
    [(0.0, [4, 4, 4, 4, 4]), (1.0, [4, 3.2, 2.4, 1.6, 0.8]), (0.5, [4, 4, 4, 3.2, 1.6])],
)
def test_lr_falls_over_the_end_of_a_phase(
    pursuit: World, decay: float, expected: list[float], tmp_path: Path
) -> None:
    # taken up anew before every update
    config = small_config(root_state_samples=10, batch=2, lr=4e-3, lr_decay=decay)
    trained, used = improver(pursuit, config=config), []
    while not trained.finished:
        trained.step()
        used.append(1e3 * trained.optimizer.lr)
        torch.save(trained.state_dict(), tmp_path / "state.pt")
        trained = improver(pursuit, config=config)
        trained.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert used == pytest.approx(expected)


def test_every_metric_is_defined(pursuit: World) -> None:
    trained = improver(pursuit)
    trained.step()
    assert list(trained.metrics()) == list(METRICS)


def test_error_of_values_is_their_standard_error(pursuit: World) -> None:
    trained = improver(pursuit, config=small_config(root_state_samples=4, n_rollouts=3, horizon=2))
    roots = trained.draw()
    found = trained._values.estimate(trained.learner, roots)
    variance = (found.square - found.mean**2) * 3 / 2  # of a return, estimated from three
    trained.step()
    assert trained.metrics()["q_error"] == pytest.approx(math.sqrt(variance.mean() / 3))
    single = improver(pursuit, config=small_config(root_state_samples=4, n_rollouts=1))
    single.step()
    assert single.metrics()["q_error"] is None


# What must not matter


@pytest.mark.parametrize("learner", ["agent", "team"])
def test_threads_and_memory_change_no_bit(pursuit: World, learner: Side) -> None:
    one = run(improver(pursuit, learner, model=pursuit.model(threads=1)))
    torch_threads = torch.get_num_threads()
    for options in ({"threads": 2}, {"threads": 3, "max_ram": 1 << 18}, {"threads": 1, "max_ram": 1}):
        other = run(improver(pursuit, learner, model=pursuit.model(**options)))
        assert equal_weights(one.learner, other.learner)
        assert one.metrics() == other.metrics()
    assert torch.get_num_threads() == torch_threads


def test_print_every_changes_no_weights(pursuit: World) -> None:
    weights = [run(improver(pursuit, config=small_config(print_every=n))).learner for n in (0, 1, 17)]
    assert equal_weights(weights[0], weights[1])
    assert equal_weights(weights[0], weights[2])


@pytest.mark.parametrize("other", [{"seed": 6}, {"candidate_actions": 3}, {"temperature": 0.2}])
def test_settings_matter(pursuit: World, other: dict[str, Any]) -> None:
    one = run(improver(pursuit))
    assert not equal_weights(one.learner, run(improver(pursuit, config=small_config(**other))).learner)
    assert not equal_weights(one.learner, run(improver(pursuit, phase=Phase(3, 4, "agent", 1))).learner)


@pytest.mark.parametrize("stop", range(4))
def test_goes_on_to_the_bit(pursuit: World, stop: int, tmp_path: Path) -> None:
    whole = run(improver(pursuit))
    first = improver(pursuit)
    for _ in range(stop):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = improver(pursuit)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.metrics() == first.metrics()
    run(second)
    assert equal_weights(whole.learner, second.learner)
    assert second.metrics() == whole.metrics()


def test_other_settings_are_not_gone_on_with(pursuit: World) -> None:
    state = improver(pursuit).state_dict()
    for changed in (
        improver(pursuit, config=small_config(batch=17)),
        improver(pursuit, phase=Phase(2, 4, "team", 1), learner="team"),
        improver(pursuit, source=buffer_of(pursuit.dyn, [1, 2])),
    ):
        with pytest.raises(UsageError, match="can't go on"):
            changed.load_state_dict(state)


# The call


def test_call_shows_one_bar_and_returns_the_last_metrics(pursuit: World) -> None:
    config = small_config(root_state_samples=100, batch=8, n_rollouts=1, horizon=2, print_every=1)
    stream = io.StringIO()
    learner = copy.deepcopy(pursuit.agent)
    seen: list[dict[str, Any]] = []
    last = soft_rollout_policy_improvement(
        learner,
        pursuit.team,
        pursuit.buffer,
        pursuit.dyn,
        config,
        phase=Phase(3, 4, "agent", 1),
        global_before=1000,
        global_total=2000,
        stream=stream,
        on_refresh=seen.append,
    )
    lines = stream.getvalue().splitlines()
    assert len(lines) == len(seen) == 10
    assert lines[0].startswith(
        "soft-rollout-PI 3/4 | agent opp=L1: local=2/13 global=1016/2000 (50.8%) roots=16/100 valid=8/8 policy_ce="
    )
    assert lines[-1].startswith(
        "soft-rollout-PI 3/4 | agent opp=L1: local=13/13 global=1100/2000 (55.0%) roots=100/100 valid=4/4 "
    )
    assert seen[-1] == last
    stepped = run(improver(pursuit, config=config, phase=Phase(3, 4, "agent", 1)))
    assert equal_weights(stepped.learner, learner)


def test_without_a_bar_refreshes_go_on(pursuit: World) -> None:
    stream = io.StringIO()
    seen: list[dict[str, Any]] = []
    config = small_config(root_state_samples=40, batch=4, n_rollouts=1, horizon=1, print_every=0)
    soft_rollout_policy_improvement(
        copy.deepcopy(pursuit.agent), pursuit.team, pursuit.buffer, pursuit.dyn, config, stream=stream,
        on_refresh=seen.append,
    )  # fmt: skip
    assert stream.getvalue() == ""
    assert [metrics["roots"] for metrics in seen] == list(range(4, 41, 4))


def test_divergence_is_said(pursuit: World) -> None:
    trained = improver(pursuit)
    with torch.no_grad():
        trained.learner.head.bias[0] = torch.inf
    with pytest.raises(UsageError, match=r"lower lr"):
        run(trained)


# Settings


def test_every_setting_has_a_unit_and_a_sentence() -> None:
    for field in dataclasses.fields(SoftRolloutPIConfig):
        assert field.metadata["unit"]
        assert field.metadata["help"].endswith(".") or ":" in field.metadata["help"]
        assert f"{field.name} : " in (SoftRolloutPIConfig.__doc__ or "")


@pytest.mark.parametrize(
    "wrong",
    [{"root_state_samples": 0}, {"batch": 0}, {"n_rollouts": 0}, {"horizon": 0}, {"discount": 1.01},
     {"discount": -0.1}, {"temperature": 0.0}, {"entropy_coef": -1e-9}, {"lr": 0.0}, {"lr": math.nan},
     {"lr_decay": 1.01}, {"lr_decay": -0.1},
     {"candidate_actions": 0}, {"print_every": -1}, {"seed": -1}, {"temperature": math.inf}],
)  # fmt: skip
def test_settings_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SoftRolloutPIConfig(**wrong)


def test_a_network_of_another_size_is_refused(pursuit: World) -> None:
    trained = improver(pursuit)
    wrong = SoftRolloutImprover(
        OpponentMLP(3, 5, 8, seed=0), pursuit.team, pursuit.buffer, pursuit.model(), trained.config
    )
    with pytest.raises(UsageError, match="the network is for 5 and 3"):
        wrong.step()
