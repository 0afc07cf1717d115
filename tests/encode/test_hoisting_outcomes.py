"""Hoisting against a slow reference, and values resolved edge by edge afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omstore.encode.hoist import hoist
from omstore.encode.recoded import RecodedRows
from omstore.errors import CorruptStoreError, UsageError
from omstore.read.attributes import Attribute, EdgeSet
from omstore.rows import CsrRows, GraphSize, Probabilities

ACTIONS = 2
VALUES = np.array([[-0.0, -1.0], [0.0, -1.0], [2.5, 0.0], [np.nan, 1.0]])
CHANCES = np.array([0.25, 0.5])


class World:
    """Random rows with two next nodes at most alike, and an attribute made by `value`."""

    def __init__(self, seed: int, value: Callable[[np.random.Generator, int, int], int], loops: bool) -> None:
        rng = np.random.default_rng(seed)
        num_nodes = int(rng.integers(1, 9))
        edges: list[tuple[int, int, int, int]] = []  # row, next node, chance, value
        for row in range(num_nodes * ACTIONS):
            node = row // ACTIONS
            for _ in range(int(rng.integers(0, 4))):
                target = node if loops and node % 2 == 0 else int(rng.integers(num_nodes))
                edges.append((row, target, int(rng.integers(2)), value(rng, node, target)))
        combinations = sorted({(c, v) for _, _, c, v in edges}) or [(0, 0)]
        coded = sorted((row, target, combinations.index((c, v))) for row, target, c, v in edges)
        self.num_nodes = num_nodes
        self.row = np.array([e[0] for e in coded], np.int64)
        self.next_node = np.array([e[1] for e in coded], np.int64)
        codes = np.array([e[2] for e in coded], np.int64)
        self.chance = CHANCES[[combinations[c][0] for c in codes]]
        self.value = np.array([combinations[c][1] for c in codes], np.int64)
        offsets = np.searchsorted(self.row, np.arange(num_nodes * ACTIONS + 1)).astype(np.uint64)
        self.size = GraphSize(num_nodes, ACTIONS, len(coded), len(combinations))
        stored = codes.astype(np.uint8) if len(combinations) > 1 else None
        self.rows = CsrRows(self.size, offsets, self.next_node.astype(np.uint32), stored)
        self.attributes = (
            Attribute("probability", "outcome", CHANCES[[c for c, _ in combinations]]),
            Attribute("reward", "outcome", VALUES[[v for _, v in combinations]]),
        )

    def level(self) -> str:
        """The lowest level at which the value is a function, the obvious way."""
        by_next: dict[int, set[int]] = {}
        by_node: dict[int, set[int]] = {}
        loops: dict[int, bool] = {}
        for row, target, value in zip(
            self.row.tolist(), self.next_node.tolist(), self.value.tolist(), strict=True
        ):
            node = row // ACTIONS
            by_next.setdefault(target, set()).add(value)
            by_node.setdefault(node, set()).add(value)
            loops[node] = loops.get(node, True) and node == target
        if len(set(self.value.tolist())) <= 1:
            return "graph"
        if all(len(values) == 1 for values in by_next.values()):
            return "next_node"
        if all(len(values) == 1 for values in by_node.values()):
            return "node"
        told: dict[int, set[int]] = {}
        for row, target, value in zip(
            self.row.tolist(), self.next_node.tolist(), self.value.tolist(), strict=True
        ):
            if len(by_node[row // ACTIONS]) > 1:
                told.setdefault(target, set()).add(value)
        if all(len(values) == 1 for values in told.values()):
            return "next_node_unless_node"
        return "outcome"


def resolved(world: World, rows: Any, attribute: Attribute) -> np.ndarray:
    """The attribute of every edge, as a reader resolves it."""
    numbers = np.arange(world.size.num_rows)
    found = rows.gather(numbers, edges=True)
    assert found.next_node.tolist() == world.next_node.tolist()
    edges = EdgeSet(found.offsets, numbers, ACTIONS, found.next_node, found.outcome, found.edge)
    return attribute.of(edges)


KINDS: dict[str, Callable[[np.random.Generator, int, int], int]] = {
    "one": lambda rng, node, target: 3,
    "next": lambda rng, node, target: target % 4,
    "node": lambda rng, node, target: node % 4,
    "unless": lambda rng, node, target: 3 if node % 2 == 0 else target % 3,
    "mixed": lambda rng, node, target: int(rng.integers(4)) if rng.random() < 0.1 else target % 3,
}


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), kind=st.sampled_from(sorted(KINDS)), loops=st.booleans())
def test_what_is_hoisted_gives_the_same_values(seed: int, kind: str, loops: bool) -> None:
    world = World(seed, KINDS[kind], loops)
    given_order = world.attributes[::-1] if loops else world.attributes  # a manifest lists them by name
    found = hoist(world.rows, given_order)
    by_name = {a.name: a for a in found.attributes}
    assert [a.name for a in found.attributes] == [a.name for a in given_order]
    if world.size.num_edges:
        assert by_name["reward"].level == world.level()
    recoded = RecodedRows(world.rows, found.code_map, found.num_outcomes)
    recoded.verify()
    for name, expected in (("probability", world.chance), ("reward", VALUES[world.value])):
        values = resolved(world, recoded, by_name[name])
        assert values.tobytes() == expected.tobytes()
    table = {name: np.asarray(a.values) for name, a in by_name.items() if a.level == "outcome"}
    assert all(len(values) == found.num_outcomes for values in table.values())


def test_absorbing_states_get_values_of_their_own_and_others_do_not() -> None:
    # 0 -> 1 (absorbing), 0 -> 2 -> 1: entering 1 carries reward 2.5, staying there nothing
    world = World(0, KINDS["one"], False)
    edges = [(0, 1, 2), (0, 2, 0), (1, 2, 0), (2, 1, 0), (3, 1, 0), (4, 1, 2), (5, 1, 2)]
    row, target, value = (np.array(column) for column in zip(*edges, strict=True))
    size = GraphSize(3, 2, len(edges), 2)
    offsets = np.searchsorted(row, np.arange(7)).astype(np.uint64)
    rows = CsrRows(size, offsets, target.astype(np.uint32), (value // 2).astype(np.uint8))
    found = hoist(rows, (Attribute("reward", "outcome", VALUES[[0, 2]]),))
    reward = found.attributes[0]
    assert (reward.level, found.num_outcomes, found.code_map.tolist()) == ("next_node_unless_node", 1, [0, 0])
    assert reward.own is not None
    assert reward.codes is not None
    assert reward.own.tolist() == [0, 1, 0]
    assert reward.codes[1:].tolist() == [1, 0]
    assert reward.codes.dtype == np.uint8
    assert world.num_nodes


@pytest.mark.parametrize(("what", "node", "code"), [("next node", 9, 0), ("outcome code", 0, 7)])
def test_damage_in_the_source_is_named(what: str, node: int, code: int) -> None:
    size = GraphSize(2, 1, 2, 2)
    rows = CsrRows(size, None, np.array([1, node], np.uint32), np.array([1, code], np.uint8), 1)
    with pytest.raises(CorruptStoreError, match=what):
        hoist(rows, (Attribute("reward", "outcome", VALUES[[0, 2]]),))


def test_an_unsorted_table_is_refused() -> None:
    size = GraphSize(2, 1, 2, 2)
    rows = CsrRows(size, None, np.array([1, 0], np.uint32), np.array([1, 0], np.uint8), 1)
    for values in (VALUES[[2, 0]], VALUES[[1, 0]], VALUES[[1, 1]]):
        with pytest.raises(UsageError, match="sorted"):
            hoist(rows, (Attribute("reward", "outcome", values),))


def test_draws_of_recoded_rows_are_those_of_the_source() -> None:
    world = World(5, KINDS["next"], False)
    found = hoist(world.rows, world.attributes)
    recoded = RecodedRows(world.rows, found.code_map, found.num_outcomes)
    rows = np.flatnonzero(world.rows.outdegree(np.arange(world.size.num_rows)))
    uniforms = np.random.default_rng(0).random(len(rows))
    old = world.rows.sample(rows, uniforms, Probabilities("outcome", world.attributes[0].values))
    new = recoded.sample(rows, uniforms, Probabilities("outcome", np.asarray(found.attributes[0].values)))
    assert old.next_node.tolist() == new.next_node.tolist()
    assert new.outcome.tolist() == found.code_map[old.outcome].tolist()
