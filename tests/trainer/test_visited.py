"""Policies at the nodes that rollouts come to: as in a table of all nodes, evaluated once each while there is room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.errors import UsageError
from omstore.rollout import GrowingPolicyTable
from tests.trainer.improvement_worlds import World, build_pursuit, sharp
from trainer.improvement.visited import VisitedPolicy
from trainer.models import OpponentMLP
from trainer.tables import PolicyTabulator, table_bytes


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder: Path = tmp_path_factory.mktemp("visited") / "export"
    return World.of(build_pursuit(folder), focal=1)


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The nodes that networks were asked about, in this order."""
    nodes: list[int] = []
    original = PolicyTabulator._evaluated

    def noting(self: PolicyTabulator, model, side, some, *rest):  # type: ignore[no-untyped-def]
        nodes.extend(some.tolist())
        return original(self, model, side, some, *rest)

    monkeypatch.setattr(PolicyTabulator, "_evaluated", noting)
    return nodes


def policy_with_room_for(world: World, rows: int) -> VisitedPolicy:
    tabulator = PolicyTabulator(world.dyn, omstore.RolloutTables(world.dyn.graph))
    return VisitedPolicy(tabulator, "agent", 10_000, 4 * world.dyn.num_nodes + table_bytes(rows, 5))


def rows(table: omstore.PolicyTable, nodes: list[int]) -> np.ndarray:
    found = table.rows(np.array(nodes))
    assert (found >= 0).all()
    return table.probabilities(found)


def test_a_node_is_evaluated_once_until_the_network_changes(world: World, evaluated: list[int]) -> None:
    policy = policy_with_room_for(world, 10)
    tabulator = PolicyTabulator(world.dyn, omstore.RolloutTables(world.dyn.graph))
    whole = tabulator.table(world.agent, "agent", np.arange(world.dyn.num_nodes)).probabilities()
    evaluated.clear()
    for asked, new in (([3, 5, 200], [3, 5, 200]), ([0, 5, 200, 511], [0, 511]), ([3, 511], [])):
        table = policy.at(world.agent, np.array(asked))
        assert evaluated == new
        np.testing.assert_array_equal(rows(table, asked), whole[asked])
        evaluated.clear()
    other = sharp(OpponentMLP(world.dyn.state_width, 5, 16, seed=77))
    policy.forget()
    found = rows(policy.at(other, np.array([5, 6])), [5, 6])
    assert evaluated == [5, 6]
    np.testing.assert_array_equal(found, tabulator.table(other, "agent", np.array([5, 6])).probabilities())


def test_what_there_is_no_room_for_makes_room(world: World, evaluated: list[int]) -> None:
    policy = policy_with_room_for(world, 4)
    assert len(rows(policy.at(world.agent, np.arange(3)), [0, 1, 2])) == 3
    assert len(rows(policy.at(world.agent, np.array([1, 2, 3, 4])), [1, 2, 3, 4])) == 4  # five in all
    assert evaluated == [0, 1, 2, 1, 2, 3, 4]
    assert len(rows(policy.at(world.agent, np.arange(5)), [0, 1, 2, 3, 4])) == 5  # never fits
    policy.at(world.agent, np.array([1, 4]))
    assert evaluated[7:] == [0, 1, 2, 3, 4]


def test_without_room_every_node_is_evaluated(world: World, evaluated: list[int]) -> None:
    policy = policy_with_room_for(world, 0)
    for _ in range(2):
        assert len(rows(policy.at(world.agent, np.array([1, 4])), [1, 4])) == 2
    assert evaluated == [1, 4, 1, 4]


@pytest.mark.parametrize("room", [0, 2, 10])
def test_a_network_is_laid_out_once(world: World, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[OpponentMLP] = []
    original = PolicyTabulator.compiled
    monkeypatch.setattr(
        PolicyTabulator, "compiled", lambda self, model: (made.append(model), original(self, model))[1]
    )
    policy = policy_with_room_for(world, room)
    tabulator = PolicyTabulator(world.dyn, omstore.RolloutTables(world.dyn.graph))
    other = sharp(OpponentMLP(world.dyn.state_width, 5, 16, seed=77))
    for network in (world.agent, other):
        policy.forget()
        for nodes in ([1, 4, 7], [2, 4], [1, 2, 9, 200]):
            expected = tabulator.table(network, "agent", np.array(nodes)).probabilities()
            np.testing.assert_array_equal(rows(policy.at(network, np.array(nodes)), nodes), expected)
    assert made == [world.agent, other]


def test_a_growing_table() -> None:
    table = GrowingPolicyTable(10, 3, 4)
    given = np.array([[0.25, 0.5, 0.25], [0, 1, 0]], np.float32)
    table.add(np.array([7, 2]), given)
    assert table.rows(np.array([2, 3, 7])).tolist() == [1, -1, 0]
    assert table.missing(np.array([2, 3, 7])).tolist() == [3]
    np.testing.assert_array_equal(table.probabilities(np.array([0, 1])), given)
    with pytest.raises(UsageError, match=r"policy at node 9 isn't a distribution: \[0\.5 0\.  0\. \]"):
        table.add(np.array([0, 9]), np.array([[1, 0, 0], [0.5, 0, 0]], np.float32))
    with pytest.raises(UsageError, match="table of 4 rows, 2 of them used"):
        table.add(np.array([4, 5, 6]), np.ones((3, 3), np.float32) / 3)
    assert table.missing(np.array([0, 9])).tolist() == [0, 9]
    table.clear()
    assert (table.used, table.missing(np.arange(10)).tolist()) == (0, list(range(10)))
