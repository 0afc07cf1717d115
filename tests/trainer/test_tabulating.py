"""Networks' policies as tables: the right probabilities, and the same ones whatever is asked for with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import omstore
import trainer.tables
from omstore.errors import UsageError
from tests.trainer.improvement_worlds import World, build_pursuit, build_random, policy, sharp
from trainer.adapter import GraphWorldModelAdapter
from trainer.models import OpponentMLP
from trainer.tables import PolicyTabulator, Side, table_bytes

SIDES: tuple[Side, Side] = ("agent", "team")


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    folder = tmp_path_factory.mktemp("tables")
    return {
        "pursuit": World.of(build_pursuit(folder / "pursuit"), focal=1),
        "random": World.of(build_random(folder / "random"), focal=1),
        "bytes": World.of(components_of_bytes(folder / "bytes")),
    }


def components_of_bytes(export: Path) -> omstore.Graph:
    """Two agents and states of three numbers; each node has one legal joint action, and leads to the next; the
    last has none."""
    with omstore.create(export, agents=["a", "b"], num_actions=[2, 3], state_width=3, rows="csr") as writer:
        vectors = np.stack([np.arange(30), 200 - np.arange(30), np.arange(30) % 3], axis=1)
        numbers = writer.add_nodes(vectors)
        writer.add_rows(
            numbers[:-1],
            numbers[:-1] % 6,
            np.ones(29, np.int64),
            next_nodes=numbers[1:],
            probability=np.ones(29),
            reward=np.ones((29, 2)),
            done=np.zeros(29, np.bool_),
        )
    graph = omstore.open(export).graph
    assert graph is not None
    assert graph.component_bits == 8
    return graph


def tabulator(world: World, threads: int = 2) -> PolicyTabulator:
    return PolicyTabulator(world.dyn, omstore.RolloutTables(world.dyn.graph), threads=threads)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["pursuit", "random", "bytes"])
def test_probabilities_are_the_networks_on_legal_actions(
    worlds: dict[str, World], name: str, side: Side
) -> None:
    world = worlds[name]
    network = world.sides(side)[0]
    expected = policy(world.dyn, network, side)
    found = tabulator(world).probabilities(network, side).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-6)
    np.testing.assert_array_equal(found == 0, expected == 0)
    if name == "bytes" or (name, side) == ("random", "team"):
        assert (expected == 0).any()
    table = tabulator(world).table(network, side)
    acting = expected.any(axis=1)  # at other nodes nothing is drawn
    np.testing.assert_allclose(table.probabilities()[acting], expected[acting], atol=2e-6)


def test_a_node_without_legal_actions_has_zeros(worlds: dict[str, World]) -> None:
    world = worlds["bytes"]
    last = world.dyn.lookup([[29, 171, 2]])
    probabilities = tabulator(world).probabilities(world.agent, "agent")
    assert probabilities[last].tolist() == [[0.0, 0.0]]
    others = np.setdiff1d(np.arange(30), last)
    assert torch.allclose(probabilities[others].sum(dim=1), torch.ones(29))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", ["pursuit", "random", "bytes"])
def test_numbers_of_a_node_depend_on_nothing_else(
    worlds: dict[str, World], name: str, side: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer.tables, "_FEW_ROWS", 1)
    world = worlds[name]
    network = world.sides(side)[0]
    whole = tabulator(world, 1).probabilities(network, side)
    rng = np.random.default_rng(0)
    for threads in (1, 2, 3):
        tables = tabulator(world, threads)
        assert torch.equal(tables.probabilities(network, side), whole)
        for count in (1, 2, 31, 32, 33, 100):
            nodes = np.unique(rng.integers(0, world.dyn.num_nodes, count))
            assert torch.equal(tables.probabilities(network, side, nodes), whole[nodes])
            table = tables.table(network, side, nodes)
            assert table.rows(nodes).tolist() == list(range(len(nodes)))


def test_a_table_is_written_over_an_earlier_one(worlds: dict[str, World]) -> None:
    world = worlds["pursuit"]
    tables = tabulator(world)
    first = tables.table(world.agent, "agent")
    again = sharp(OpponentMLP(world.dyn.state_width, 5, 16, seed=77))
    expected = tables.table(again, "agent").probabilities()
    for _ in range(3):
        first = tables.table(world.agent, "agent", out=first)
        second = tables.table(again, "agent", out=first)
        assert np.shares_memory(first.cumulative, second.cumulative)
        np.testing.assert_array_equal(second.probabilities(), expected)


def test_table_bytes_are_those_of_probabilities_and_sums(worlds: dict[str, World]) -> None:
    world = worlds["pursuit"]
    table = tabulator(world).table(world.team, "team")
    assert table_bytes(512, 25) == 512 * 25 * 4 + table.nbytes == 4 * 512 * (25 + 32)


def test_errors_say_what_is_wrong(worlds: dict[str, World]) -> None:
    world = worlds["pursuit"]
    tables = tabulator(world)
    with pytest.raises(UsageError, match="the team has 25 actions"):
        tables.table(world.agent, "team")
    with pytest.raises(UsageError, match="0 threads"):
        PolicyTabulator(world.dyn, omstore.RolloutTables(world.dyn.graph), threads=0)
    broken = OpponentMLP(world.dyn.state_width, 5, 16, seed=1)
    with torch.no_grad():
        broken.head.bias[2] = torch.nan
    with pytest.raises(UsageError, match=r"no numbers any more at 512 of 512 nodes\n.*diverged"):
        tables.table(broken, "agent")


def test_masks_are_those_of_the_adapter_whether_kept_or_not(
    worlds: dict[str, World], monkeypatch: pytest.MonkeyPatch
) -> None:
    dyn: GraphWorldModelAdapter = worlds["random"].dyn
    nodes = np.array([5, 0, 149, 5])
    for kept in (1 << 20, 0):
        monkeypatch.setattr(trainer.tables, "_MASK_BYTES", kept)
        masks = {side: trainer.tables.ActionMasks(dyn, side, always=False) for side in SIDES}
        np.testing.assert_array_equal(masks["agent"].of(nodes), dyn.legal_focal(nodes))
        np.testing.assert_array_equal(masks["team"].of(nodes), dyn.legal_team(nodes))
