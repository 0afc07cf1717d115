"""Action values: an obvious path that asks the networks at every step, exact ones, and equality to the bit of
all that must not matter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.rollout.reference import exact_action_values
from tests.trainer.improvement_worlds import (
    World,
    members_of,
    policy,
    reference_values,
    reward_weights,
    small_config,
    worlds_in,
)
from trainer.improvement import ActionValues, Estimates, Ranks, Roots, SoftRolloutPIConfig, draw_roots
from trainer.tables import Side, table_bytes

SIDES: tuple[Side, Side] = ("agent", "team")


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], World]:
    return worlds_in(tmp_path_factory.mktemp)


def roots_of(world: World, learner: Side, config: SoftRolloutPIConfig, requested: int = 5) -> Roots:
    return draw_roots(
        world.buffer,
        world.dyn,
        world.model().tabulator.masks[learner],
        requested=requested,
        seed=1,
        phase=1,
        update=0,
        candidate_actions=config.candidate_actions,
    )


def estimated(
    world: World,
    learner: Side,
    roots: Roots,
    config: SoftRolloutPIConfig,
    ranks: Ranks | None = None,
    **model: Any,
) -> tuple[Estimates, ActionValues]:
    own, other = world.sides(learner)
    values = ActionValues(world.model(**model), learner, other, config, ranks=ranks)
    return values.estimate(own, roots), values


def by_action(roots: Roots, values: NDArray[np.float64], actions: int) -> NDArray[np.float64]:
    found = np.full((len(values), actions), np.nan)
    for i, candidates in enumerate(roots.candidates):
        for c, action in enumerate(candidates):
            if action >= 0:
                found[i, action] = values[i, c]
    return found


@pytest.mark.parametrize("learner", SIDES)
@pytest.mark.parametrize("name", ["factored", "random"])
def test_equal_a_path_that_asks_the_networks_at_every_step(
    graphs: Callable[[str], World], name: str, learner: Side
) -> None:
    world = graphs(name)
    config = small_config(horizon=3, n_rollouts=2)
    roots = roots_of(world, learner, config, 3)
    own, other = world.sides(learner)
    expected = reference_values(world.dyn, own, other, learner, roots.node, roots.key, config)
    found, _ = estimated(world, learner, roots, config)
    np.testing.assert_allclose(by_action(roots, found.mean, own.num_actions), expected, atol=1e-12)
    assert np.nanstd(expected) > 0


@pytest.mark.parametrize("learner", SIDES)
@pytest.mark.parametrize("name", ["factored", "random"])
def test_agree_with_exact_values(graphs: Callable[[str], World], name: str, learner: Side) -> None:
    world = graphs(name)
    config = small_config(horizon=4, n_rollouts=4000)
    own, other = world.sides(learner)
    other_side: Side = "team" if learner == "agent" else "agent"
    exact = exact_action_values(
        world.dyn.graph,
        members_of(world.dyn, learner),
        policy(world.dyn, own, learner).astype(np.float64),
        policy(world.dyn, other, other_side).astype(np.float64),
        horizon=4,
        discount=config.discount,
        reward_weights=reward_weights(world.dyn, learner),
    )
    roots = roots_of(world, learner, config, 8)
    found, _ = estimated(world, learner, roots, config)
    known = roots.candidates >= 0
    error = np.sqrt((found.square - found.mean**2)[known] / (config.n_rollouts - 1))
    wrong = found.mean[known] - exact[roots.node[:, None], roots.candidates][known]
    assert np.abs(wrong).max() > 0
    z = np.abs(wrong) / np.maximum(error, 1e-9)
    assert z.max() < 4.5
    assert np.sqrt((z**2).mean()) < 1.5


def budgets(world: World, learner: Side) -> dict[str, int]:
    """Memory budgets by which policies are tabulated over all nodes: both, the other side's, none, with room
    for some of the nodes that are visited; and one that takes one root at a time."""
    own, other = world.sides(learner)
    nodes = world.dyn.num_nodes
    both = table_bytes(nodes, own.num_actions) + table_bytes(nodes, other.num_actions)
    return {
        "both": 4 * both,
        "other": 4 * both - 4,
        "other just": 4 * table_bytes(nodes, other.num_actions),
        "none": 4 * table_bytes(nodes, other.num_actions) - 4,
        "one root": 4,
    }


@pytest.mark.parametrize("learner", SIDES)
@pytest.mark.parametrize("name", ["factored", "csr", "random"])
def test_memory_threads_and_batches_change_no_bit(
    graphs: Callable[[str], World], name: str, learner: Side
) -> None:
    world = graphs(name)
    config = small_config(horizon=5, n_rollouts=4, batch=64)
    roots = roots_of(world, learner, config, 9)
    expected, _ = estimated(graphs("factored") if name == "csr" else world, learner, roots, config, threads=1)
    tabulated = {}
    for budget, size in budgets(world, learner).items():
        for threads in (1, 2, 3):
            found, values = estimated(world, learner, roots, config, threads=threads, max_ram=size)
            assert np.array_equal(found.mean, expected.mean), (budget, threads)
            assert np.array_equal(found.square, expected.square), (budget, threads)
        tabulated[budget] = (values.other_tabulated, values.learner_tabulated)
    assert tabulated == {
        "both": (True, True),
        "other": (True, False),
        "other just": (True, False),
        "none": (False, False),
        "one root": (False, False),
    }
    alone = [
        estimated(
            world,
            learner,
            Roots(
                1,
                roots.node[i : i + 1],
                roots.key[i : i + 1],
                roots.legal[i : i + 1],
                roots.candidates[i : i + 1],
            ),
            config,
        )[0].mean
        for i in range(9)
    ]
    assert np.array_equal(np.concatenate(alone), expected.mean)


def test_the_learner_is_tabulated_where_rollouts_may_visit_twice_as_many_nodes(
    graphs: Callable[[str], World],
) -> None:
    world = graphs("factored")  # 512 nodes

    def tabulated(**changes: int) -> bool:
        config = small_config(**{"batch": 16, "n_rollouts": 8, "horizon": 3, **changes})
        return ActionValues(world.model(), "agent", world.team, config).learner_tabulated

    assert tabulated()  # 16 x 5 x 8 x 2 = 1280, at least twice 512
    assert not tabulated(candidate_actions=3)  # 768
    assert tabulated(candidate_actions=4)  # 1024
    assert not tabulated(batch=12)  # 960
    assert not tabulated(horizon=2)  # 640
    assert not tabulated(horizon=1)


class Pair:
    """Two ranks in two threads."""

    def __init__(self, rank: int, shared: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, 2
        self._shared, self._barrier = shared, barrier

    def gather_rows(self, rows: torch.Tensor) -> torch.Tensor:
        self._shared[self.rank] = rows.clone()
        self._barrier.wait(30)
        gathered = torch.cat(self._shared)
        self._barrier.wait(30)
        return gathered


@pytest.mark.parametrize("requested", [1, 2, 7, 8])
def test_ranks_share_the_roots(graphs: Callable[[str], World], requested: int) -> None:
    world = graphs("factored")
    config = small_config()
    roots = roots_of(world, "agent", config, requested)
    expected, _ = estimated(world, "agent", roots, config)
    shared: list[Any] = [None, None]
    found: list[Any] = [None, None]
    barrier = threading.Barrier(2)

    def run(rank: int) -> None:
        found[rank] = estimated(world, "agent", roots, config, Pair(rank, shared, barrier), threads=1)[0]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for rank in range(2):
        assert np.array_equal(found[rank].mean, expected.mean)
        assert np.array_equal(found[rank].square, expected.square)
    assert len(shared[0]) == len(shared[1]) == -(-requested // 2)


def test_rewards_are_the_learners(graphs: Callable[[str], World]) -> None:
    model = graphs("random").model()  # agent 1 is the focal one of three
    assert model.agents("agent") == [1]
    assert model.agents("team") == [0, 2]
    assert model.reward_weights("agent").tolist() == [0.0, 1.0, 0.0]
    assert model.reward_weights("team").tolist() == [0.5, 0.0, 0.5]
