"""The factored encoding against rows enumerated slowly, and against the exact world's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from omstore.errors import UsageError
from omstore.publish.staging import Staging, stage
from omstore.rows import FactoredRows, GraphSize, Probabilities, RowChunk, RowEncoding
from omstore.rows.factored import Component, Factoring
from tests.rows.factored_reference import Edge, World, random_world
from tools.worlds.pursuit import Pursuit

WORLDS: dict[str, dict[str, Any]] = {
    "two agents": {},
    "empty kernels": {"empty": 0.5},
    "nobody's component first": {"agents": (None, 0, 1), "sizes": (2, 3, 3)},
    "nobody's component between": {"agents": (0, None, 1), "sizes": (3, 2, 3), "exceptions": 0.05},
    "agents the other way round": {"agents": (1, 0), "sizes": (3, 3)},
    "two components of an agent": {"agents": (0, 1, 0), "sizes": (2, 3, 3)},
    "single states": {"agents": (0, 1, None), "sizes": (1, 4, 1)},
    "one component": {"agents": (0,), "num_actions": (3,), "sizes": (7,)},
    "long kernels": {"agents": (0, 1), "sizes": (14, 2)},
    "four components": {"agents": (0, 1, 2, None), "num_actions": (2, 1, 2), "sizes": (2, 3, 2, 2)},
    "missing states": {"missing": 0.3},
    "missing states, shuffled": {"missing": 0.3, "shuffled": True},
    "shuffled": {"shuffled": True, "sizes": (4, 5)},
    "shuffled exceptions": {"shuffled": True, "exceptions": 0.2},
    "exceptions": {"exceptions": 0.05},
    "many exceptions": {"exceptions": 0.6},
    "one state": {"agents": (0,), "num_actions": (2,), "sizes": (1,), "empty": 0.0},
}


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    with stage(tmp_path / "export") as staging:
        yield staging


@pytest.fixture(params=WORLDS)
def made(request: pytest.FixtureRequest, staging: Staging) -> tuple[FactoredRows, World]:
    world = random_world(len(request.param), **WORLDS[request.param])
    return world.write(staging), world


def edges_of(chunk: Any) -> list[list[Edge]]:
    codes = np.zeros(len(chunk.next_node), int) if chunk.outcome is None else chunk.outcome
    pairs = list(zip(chunk.next_node.tolist(), codes.tolist(), strict=True))
    return [pairs[a:b] for a, b in zip(chunk.offsets[:-1], chunk.offsets[1:], strict=True)]


def check_rows(opened: RowEncoding, world: World) -> None:
    """Every way of reading rows gives the world's."""
    count, firsts = len(world.rows), world.first_edges
    rng = np.random.default_rng(1)
    for batch in (rng.integers(0, count, 3 * count), np.arange(count), np.array([], np.int64)):
        edges = opened.gather(batch, edges=True)
        assert edges_of(edges) == [world.rows[row] for row in batch]
        assert edges.edge is not None
        assert edges.edge.tolist() == [e for row in batch for e in range(firsts[row], firsts[row + 1])]
        assert opened.outdegree(batch).tolist() == [len(world.rows[row]) for row in batch]
    for start, stop, step in ((0, count, count), (0, count, 1), (1, count, 5), (count // 2, count, 4)):
        seen: list[list[Edge]] = []
        for chunk in opened.sweep(start, stop, step):
            assert chunk.first_row == start + len(seen)
            assert chunk.first_edge == firsts[chunk.first_row]
            seen += edges_of(chunk)
        assert seen == world.rows[start:stop]
    opened.verify()


def slow_draw(chances: list[float], uniform: float) -> tuple[int, float]:
    """Which edge csr draws, and how near a boundary the uniform number is."""
    sums = np.cumsum(chances)
    last = max(k for k, chance in enumerate(chances) if chance > 0)
    passed = int(np.searchsorted(sums, uniform, side="right"))
    return min(passed, last), float(np.abs(np.append(sums[:-1], 0.0) - uniform).min())


def check_draws(opened: RowEncoding, world: World, probabilities: Probabilities, seed: int = 2) -> None:
    rng = np.random.default_rng(seed)
    legal = [row for row, edges in enumerate(world.rows) if any(world.values[code] > 0 for _, code in edges)]
    if not legal:
        return
    batch, firsts = rng.choice(legal, 600), world.first_edges
    uniforms = rng.random(600)
    drawn = opened.sample(batch, uniforms, probabilities)
    for i, row in enumerate(batch):
        edges = world.rows[row]
        k, near = slow_draw([float(world.values[code]) for _, code in edges], uniforms[i])
        if near < 1e-12:
            continue
        assert drawn.edge[i] == firsts[row] + k
        assert drawn.next_node[i] == edges[k][0]
        if probabilities.level == "outcome":
            assert drawn.outcome[i] == edges[k][1]
            assert drawn.probability[i] == world.values[edges[k][1]]
        else:
            assert drawn.probability[i] == pytest.approx(world.values[edges[k][1]], rel=1e-15)


def test_rows_are_those_of_the_world(made: tuple[FactoredRows, World]) -> None:
    check_rows(*made)


def test_draws_are_those_of_csr(made: tuple[FactoredRows, World]) -> None:
    opened, world = made
    check_draws(opened, world, Probabilities("outcome", world.values))


@pytest.mark.parametrize("name", ["four components", "missing states, shuffled", "long kernels"])
@pytest.mark.parametrize(("tail", "strip"), [(1, 1 << 18), (1 << 14, 0), (1, 0), (6, 1 << 18)])
def test_where_the_tail_begins_changes_nothing(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, name: str, tail: int, strip: int
) -> None:
    monkeypatch.setattr("omstore.rows.factored_tables._TAIL_ENTRIES", tail)
    monkeypatch.setattr("omstore.rows.factored_tables._STRIP_ENTRIES", strip)
    world = random_world(5, **WORLDS[name])
    opened = world.write(staging)
    check_rows(opened, world)
    assert all(opened.matches(chunk) == -1 for chunk in world.csr().sweep(0, len(world.rows), 7))


@pytest.mark.parametrize("pairs", [0, 1 << 16])
def test_tables_for_drawing_change_nothing(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, pairs: int
) -> None:
    monkeypatch.setattr("omstore.rows.factored_tables._PADDED_PAIRS", pairs)
    world = random_world(6, **WORLDS["long kernels"])
    check_draws(world.write(staging), world, Probabilities("outcome", world.values))


@pytest.mark.parametrize("name", ["two components of an agent", "exceptions", "many exceptions"])
def test_starts_without_a_table_of_blocks(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("omstore.rows.factored_arrays._BLOCK_STARTS", 0)
    world = random_world(7, **WORLDS[name])
    opened = world.write(staging)
    check_rows(opened, world)
    check_draws(opened, world, Probabilities("outcome", world.values))


@given(
    seed=st.integers(0, 1 << 30),
    shape=st.lists(
        st.tuples(st.sampled_from([None, 0, 0, 1]), st.integers(1, 4)), min_size=1, max_size=4
    ).filter(lambda parts: len({agent for agent, _ in parts} - {None}) > 0),
    num_actions=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    missing=st.sampled_from([0.0, 0.0, 0.4]),
    shuffled=st.booleans(),
    exceptions=st.sampled_from([0.0, 0.05, 0.5]),
    empty=st.sampled_from([0.0, 0.2]),
)
@example(  # an action without outcomes anywhere, between reads of a row that is kept for its node
    seed=203512, shape=[(0, 4)], num_actions=(3, 1), missing=0.0, shuffled=False, exceptions=0.0, empty=0.2
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_world(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    shape: list[tuple[int | None, int]],
    num_actions: tuple[int, int],
    missing: float,
    shuffled: bool,
    exceptions: float,
    empty: float,
) -> None:
    agents = [agent for agent, _ in shape]
    if 0 not in agents:  # agents are numbered from 0 on
        agents = [None if agent is None else 0 for agent in agents]
    moved = max(agent for agent in agents if agent is not None) + 1
    world = random_world(
        seed,
        agents=tuple(agents),
        num_actions=num_actions[:moved],
        sizes=tuple(size for _, size in shape),
        missing=missing,
        shuffled=shuffled,
        exceptions=exceptions,
        empty=empty,
    )
    with stage(tmp_path_factory.mktemp("any") / "export") as staging:
        opened = world.write(staging)
        check_rows(opened, world)
        check_draws(opened, world, Probabilities("outcome", world.values))
        kept = opened.exceptional_nodes().tolist()
        assert kept == world.exceptional()


@pytest.mark.parametrize("change", ["node", "code", "length", "first edge"])
@pytest.mark.parametrize("name", ["two agents", "missing states, shuffled", "many exceptions"])
def test_a_row_that_differs_is_found(staging: Staging, name: str, change: str) -> None:
    world = random_world(8, **WORLDS[name])
    opened = world.write(staging)
    rng = np.random.default_rng(3)
    for first in range(0, len(world.rows) - 8, 5):
        chunk = next(iter(world.csr().sweep(first, first + 8, 8)))
        assert opened.matches(chunk) == -1
        long = [i for i in range(8) if chunk.offsets[i + 1] > chunk.offsets[i]]
        if not long:
            continue
        row = int(rng.choice(long))
        edge = int(rng.integers(chunk.offsets[row], chunk.offsets[row + 1]))
        nodes, codes, offsets = chunk.next_node.copy(), np.array(chunk.outcome), chunk.offsets.copy()
        if change == "node":
            nodes[edge] = (nodes[edge] + 1) % world.num_nodes
        elif change == "code":
            codes[edge] = (codes[edge] + 1) % len(world.values)
        elif change == "length":
            offsets[row + 1 :] -= 1
            nodes, codes = np.delete(nodes, edge), np.delete(codes, edge)
        first_edge = chunk.first_edge + (change == "first edge")
        if change == "code" and chunk.outcome is None:
            continue
        changed = RowChunk(first, first_edge, offsets, nodes, None if chunk.outcome is None else codes)
        assert opened.matches(changed) == (0 if change == "first edge" else row)


def test_a_wide_code_is_no_narrow_one(staging: Staging) -> None:
    world = random_world(9)
    opened = world.write(staging)
    chunk = next(iter(world.csr().sweep(0, 10, 10)))
    assert chunk.outcome is not None
    same = replace(
        chunk, outcome=chunk.outcome.astype(np.uint32), next_node=chunk.next_node.astype(np.uint64)
    )
    assert opened.matches(same) == -1
    assert opened.matches(replace(same, outcome=same.outcome + 256)) >= 0
    assert opened.matches(replace(same, next_node=same.next_node + (1 << 32))) >= 0


@pytest.mark.parametrize("name", ["two agents", "many exceptions", "shuffled"])
def test_probabilities_are_products(staging: Staging, name: str) -> None:
    world = random_world(10, **WORLDS[name])
    world.factoring = replace(world.factoring, combination=None)
    opened = world.write(staging, probabilities=world.values)
    assert opened.size.num_outcomes == 1
    count = len(world.rows)
    batch = np.random.default_rng(4).integers(0, count, 300)
    for edges, rows in (
        (opened.gather(batch), batch),
        (next(iter(opened.sweep(0, count, count))), np.arange(count)),
    ):
        assert edges.outcome is None
        assert edges.next_node.tolist() == [node for row in rows for node, _ in world.rows[row]]
        expected = [world.values[code] for row in rows for _, code in world.rows[row]]
        assert edges.attributes["probability"].tolist() == expected  # products in the same order
    check_draws(opened, world, Probabilities("rows", np.empty(0)))
    opened.verify()


def test_a_row_of_other_probabilities_is_an_exception(staging: Staging) -> None:
    world = random_world(11)
    assert world.exceptional() == []
    row = next(r for r, edges in enumerate(world.rows) if len(edges) > 1)
    world.rows[row] = [(node, len(world.values) - 1) for node, _ in world.rows[row]]
    world.factoring = replace(world.factoring, combination=None)
    opened = world.write(staging, probabilities=world.values)
    assert opened.exceptional_nodes().tolist() == [row // world.num_joint_actions]
    edges = opened.gather(np.array([row, row + 1]))
    expected = [world.values[code] for r in (row, row + 1) for _, code in world.rows[r]]
    assert edges.attributes["probability"].tolist() == expected


def test_an_illegal_row_cannot_be_drawn_from(staging: Staging) -> None:
    world = random_world(13, empty=0.4, exceptions=0.3)
    opened = world.write(staging)
    chances = Probabilities("outcome", world.values)
    legal = next(r for r, edges in enumerate(world.rows) if edges)
    made = [r for r, edges in enumerate(world.rows) if not edges and world.made[r] == []]
    kept = [r for r, edges in enumerate(world.rows) if not edges and world.made[r] != []]
    assert made
    assert kept
    for row in (made[0], kept[0]):
        with pytest.raises(UsageError, match=f"row {row} .*position 1 .*no successors"):
            opened.sample(np.array([legal, row, legal]), np.zeros(3), chances)


@pytest.mark.parametrize("row", [-1, 1 << 62, -(1 << 62)])
@pytest.mark.parametrize("name", ["two agents", "shuffled exceptions"])
def test_a_row_out_of_range_is_named(staging: Staging, name: str, row: int) -> None:
    world = random_world(13, **WORLDS[name])
    opened = world.write(staging)
    legal = next(r for r, edges in enumerate(world.rows) if edges)
    for call in (
        opened.gather,
        opened.outdegree,
        lambda rows: opened.sample(rows, np.zeros(3), Probabilities("outcome", world.values)),
    ):
        with pytest.raises(UsageError, match=f"row {row} at position 1"):
            call(np.array([legal, row, -5]))
    with pytest.raises(UsageError):
        list(opened.sweep(0, len(world.rows) + 1, 5))


def pursuit_factoring(world: Pursuit) -> tuple[Factoring, np.ndarray[Any, Any]]:
    """The exact world's components, and its table of probabilities."""
    values, classes = np.unique(world.kernel_probabilities, return_inverse=True)
    component = Component(
        0,
        world.num_cells,
        5,
        world.kernel_offsets,
        world.kernel_cells,
        world.kernel_probabilities,
        classes.reshape(-1).astype(np.int64),
        len(values),
    )
    components = [replace(component, agent=agent) for agent in range(world.num_agents)]
    products = np.ones(1)
    for _ in components:
        products = (products[:, None] * values).reshape(-1)
    table, codes = np.unique(products, return_inverse=True)
    return Factoring(components, codes.reshape(-1).astype(np.int64)), table


class PursuitRows(RowEncoding):
    """The exact world's rows, made by itself."""

    name = "pursuit"

    def __init__(self, world: Pursuit, table: np.ndarray[Any, Any]) -> None:
        self.world, self.table = world, table
        self.size = GraphSize(world.num_nodes, world.num_joint_actions, world.num_edges, len(table))

    def chunk(self, rows: np.ndarray[Any, Any], first_edge: int = 0) -> RowChunk:
        actions = self.size.num_joint_actions
        found = self.world.successors(rows // actions, rows % actions)
        codes = np.searchsorted(self.table, found.probability)
        assert (self.table[codes] == found.probability).all()
        nodes = found.next_node.astype(np.uint32)
        outcome = codes.astype(np.uint8) if len(self.table) > 1 else None
        return RowChunk(int(rows[0]) if len(rows) else 0, first_edge, found.offsets, nodes, outcome)

    def outdegree(self, rows: Any) -> Any:
        return np.diff(self.chunk(np.asarray(rows)).offsets)

    def gather(self, rows: Any, *, edges: bool = False) -> Any:
        return self.chunk(np.asarray(rows))

    def sample(self, rows: Any, uniforms: Any, probabilities: Any) -> Any:
        raise NotImplementedError

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        for first in range(start_row, stop_row, chunk_rows):
            yield self.chunk(np.arange(first, min(first + chunk_rows, stop_row)))

    def nbytes(self) -> Any:
        return {}


@pytest.mark.parametrize(("agents", "slip", "edges"), [(2, 0.0, 48_400), (2, 0.1, 571_152)])
def test_the_exact_world_of_two_agents(staging: Staging, agents: int, slip: float, edges: int) -> None:
    from omstore.rows.factored_writer import write_factored

    world = Pursuit(agents, slip)
    factoring, table = pursuit_factoring(world)
    source = PursuitRows(world, table)
    description, size = write_factored(source, factoring, staging)
    assert size.num_edges == edges
    opened = FactoredRows.open(staging.path, description, size)
    assert len(opened.exceptional_nodes()) == 44
    whole = source.chunk(np.arange(size.num_rows))
    assert opened.matches(whole) == -1
    made = opened.gather(np.arange(size.num_rows), edges=True)
    assert np.array_equal(made.next_node, whole.next_node)
    assert np.array_equal(made.edge, np.arange(edges))
    assert made.outcome is None or np.array_equal(made.outcome, whole.outcome)
    opened.verify()


def test_some_rows_of_the_exact_world_of_three_agents(staging: Staging) -> None:
    from omstore.rows.factored_writer import write_factored

    world = Pursuit(3, 0.1)
    factoring, table = pursuit_factoring(world)
    source = PursuitRows(world, table)
    absorbing = np.flatnonzero(world.absorbing(np.arange(world.num_nodes)))
    description, size = write_factored(source, factoring, staging, exceptional_nodes=absorbing)
    assert size.num_edges == 415_886_464
    assert description["exceptions"] == {"nodes": 5720, "rows": 715_000, "patterns": 1, "blocks": 1}
    opened = FactoredRows.open(staging.path, description, size)
    opened.verify()
    rows = np.random.default_rng(5).integers(0, size.num_rows, 5000)
    made, expected = opened.gather(rows), source.chunk(rows)
    assert np.array_equal(made.offsets, expected.offsets)
    assert np.array_equal(made.next_node, expected.next_node)
    assert np.array_equal(made.outcome, expected.outcome)
    uniforms = np.random.default_rng(6).random(len(rows))
    drawn = opened.sample(rows, uniforms, Probabilities("outcome", table))
    chances = table[expected.outcome]
    for i in range(len(rows)):
        part = slice(int(expected.offsets[i]), int(expected.offsets[i + 1]))
        k, near = slow_draw(chances[part].tolist(), uniforms[i])
        if near > 1e-12:
            assert drawn.next_node[i] == expected.next_node[part.start + k]
            assert drawn.probability[i] == chances[part.start + k]
