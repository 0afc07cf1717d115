"""The dictionary encoding against csr and plain Python lists, on random graphs and the pursuit world."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError, MemoryBudgetError, ProofError, UsageError
from omstore.publish.staging import stage
from omstore.rows import (
    CsrRows,
    DictionaryRows,
    Edges,
    GraphSize,
    Probabilities,
    RowChunk,
    RowEncoding,
    collecting,
    dictionary,
    open_rows,
    patterns,
    ranges,
)
from omstore.rows.dictionary_writer import collect_patterns, write_dictionary
from omstore.rows.proof import prove
from tools.worlds.pursuit import GRID, Pursuit

Row = list[tuple[int, int]]


def csr_of(rows: list[Row], num_nodes: int, actions: int, outcomes: int) -> CsrRows:
    offsets = np.cumsum([0, *map(len, rows)]).astype(np.uint64)
    edges = [edge for row in rows for edge in row]
    size = GraphSize(num_nodes, actions, len(edges), outcomes)
    next_node = np.array([node for node, _ in edges], np.uint32)
    codes = np.array([code for _, code in edges], np.uint32) if outcomes > 1 else None
    return CsrRows(size, offsets, next_node, codes)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[CsrRows, list[Row], NDArray[np.uint64] | None, int]:
    """A graph with ragged, empty and repeated rows; and perhaps positions to stand at."""
    num_nodes = draw(st.integers(1, 12))
    actions = draw(st.integers(1, 4))
    outcomes = draw(st.sampled_from([1, 2, 5, 300, 70_000]))
    few = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    kinds = []
    for _ in range(few):
        count = int(rng.integers(0, 6))
        shifts = rng.integers(-3, 4, count)
        kinds.append((shifts, rng.integers(0, outcomes, count)))
    rows = []
    for row in range(num_nodes * actions):
        shifts, codes = kinds[rng.integers(0, few)]
        nodes = (row // actions + shifts) % num_nodes  # shifted alike, but for the borders
        rows.append(sorted(zip(nodes.tolist(), codes.tolist(), strict=True)))
    positions = None
    total = num_nodes
    if draw(st.booleans()):
        total = num_nodes + draw(st.integers(0, 9))
        positions = np.sort(rng.choice(total, num_nodes, replace=False)).astype(np.uint64)
    return csr_of(rows, num_nodes, actions, outcomes), rows, positions, total


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def encode(
    folder: Path, source: RowEncoding, **options: Any
) -> tuple[DictionaryRows, Mapping[str, Any], dict[str, bytes]]:
    """Write a dictionary, open it, and keep its files."""
    with stage(folder / "export") as staging:
        description, size = write_dictionary(source, staging, **options)
        encoded = open_rows(staging.path, description, size)
        assert isinstance(encoded, DictionaryRows)
        return encoded, description, files(staging.path)


def pairs_of(edges: Edges | RowChunk) -> Row:
    codes = [0] * len(edges.next_node) if edges.outcome is None else edges.outcome.tolist()
    return list(zip(edges.next_node.tolist(), codes, strict=True))


def same_rows(encoded: RowEncoding, source: RowEncoding, rows: list[Row]) -> None:
    """Every method of both, against each other and against the lists."""
    count = len(rows)
    firsts = np.cumsum([0, *map(len, rows)])
    rng = np.random.default_rng(7)
    for batch in (np.arange(count), rng.integers(0, count, 50), np.empty(0, np.int64)):
        edges = encoded.gather(batch, edges=True)
        assert pairs_of(edges) == [edge for row in batch for edge in rows[row]]
        assert edges.edge is not None
        assert edges.edge.tolist() == [e for row in batch for e in range(firsts[row], firsts[row + 1])]
        assert encoded.outdegree(batch).tolist() == [len(rows[row]) for row in batch]
    for start, stop, chunk_rows in ((0, count, 1 << 16), (0, count, 3), (count // 3, count // 2, 2)):
        seen: list[Row] = []
        for chunk in encoded.sweep(start, stop, chunk_rows):
            assert (chunk.first_row, chunk.first_edge) == (start + len(seen), firsts[start + len(seen)])
            pairs = pairs_of(chunk)
            seen += [pairs[a:b] for a, b in itertools.pairwise(chunk.offsets.tolist())]
        assert seen == rows[start:stop]
    legal = np.array([row for row, edges in enumerate(rows) if edges], np.int64)
    if len(legal):
        batch = rng.choice(legal, 400)
        uniforms = rng.random(400)
        outcomes, edges_total = source.size.num_outcomes, source.size.num_edges
        for level, values in (
            ("graph", np.array([rng.random()])),
            ("outcome", rng.random(outcomes) * rng.integers(0, 2, outcomes)),
            ("edge", rng.random(edges_total) * 0.5),
        ):
            expected = source.sample(batch, uniforms, Probabilities(level, values))
            drawn = encoded.sample(batch, uniforms, Probabilities(level, values))
            for field in ("next_node", "outcome", "edge", "probability"):
                assert np.array_equal(getattr(drawn, field), getattr(expected, field)), (level, field)
    encoded.verify()
    RowEncoding.verify(encoded, chunk_rows=3)


@given(graph=graphs())
@settings(max_examples=60, deadline=None)
def test_all_methods_answer_as_csr_does(
    tmp_path_factory: pytest.TempPathFactory, graph: tuple[CsrRows, list[Row], Any, int]
) -> None:
    source, rows, positions, total = graph
    options = {} if positions is None else {"positions": positions, "num_positions": total}
    encoded, description, _ = encode(tmp_path_factory.mktemp("dictionary"), source, **options)
    assert description["encoding"] == "dictionary"
    same_rows(encoded, source, rows)
    assert prove(source, encoded).num_edges == source.size.num_edges
    base = np.arange(source.size.num_nodes) if positions is None else positions.astype(np.int64)
    actions = source.size.num_joint_actions
    distinct = {
        tuple((int(base[node] - base[row // actions]), code) for node, code in edges)
        for row, edges in enumerate(rows)
    }
    assert description["num_patterns"] == len(distinct)


def pursuit_csr(world: Pursuit) -> tuple[CsrRows, NDArray[np.float64]]:
    """All rows of a small pursuit world, codes being distinct probabilities."""
    nodes = np.repeat(np.arange(world.num_nodes), world.num_joint_actions)
    actions = np.tile(np.arange(world.num_joint_actions), world.num_nodes)
    found = world.successors(nodes, actions)
    values, codes = np.unique(found.probability, return_inverse=True)
    size = GraphSize(world.num_nodes, world.num_joint_actions, len(codes), len(values))
    source = CsrRows(
        size,
        found.offsets.astype(np.uint64),
        found.next_node.astype(np.uint32),
        codes.reshape(-1) if len(values) > 1 else None,
    )
    return source, values


def grid_positions(world: Pursuit) -> NDArray[np.uint64]:
    """Where states stand when cells are numbered in the whole 7x7 grid, walls included."""
    positions = np.zeros(world.num_nodes, np.int64)
    for cells in world.cells_of(np.arange(world.num_nodes)).T:
        positions = positions * GRID**2 + world.cells[cells] @ np.array([GRID, 1])
    return positions.astype(np.uint64)


@pytest.mark.parametrize("slip", [0.0, 0.1])
def test_pursuit(tmp_path: Path, slip: float) -> None:
    world = Pursuit(2, slip)
    source, values = pursuit_csr(world)
    base = grid_positions(world)
    options = {"positions": base, "num_positions": GRID**4}
    encoded, description, _ = encode(tmp_path, source, **options)
    rows = np.arange(source.size.num_rows)
    mine, own = source.gather(rows, edges=True), encoded.gather(rows, edges=True)
    for field in ("offsets", "next_node", "outcome", "edge"):
        assert np.array_equal(getattr(mine, field), getattr(own, field))
    shifts = base.astype(np.int64)[mine.next_node] - np.repeat(
        base.astype(np.int64)[rows // 25], np.diff(mine.offsets)
    )
    codes = np.zeros(len(shifts), int) if mine.outcome is None else mine.outcome
    distinct = {
        (shifts[a:b].tobytes(), codes[a:b].tobytes()) for a, b in itertools.pairwise(mine.offsets.tolist())
    }
    assert description["num_patterns"] == len(distinct)
    uniforms = np.random.default_rng(1).random(len(rows))
    chances = Probabilities("outcome" if len(values) > 1 else "graph", values)
    assert np.array_equal(
        source.sample(rows, uniforms, chances).edge, encoded.sample(rows, uniforms, chances).edge
    )
    encoded.verify()
    assert prove(source, encoded).num_edges == world.num_edges
    # Without the padded grid there is more that differs.
    plain, described, _ = encode(tmp_path / "plain", source)
    assert described["num_patterns"] > len(distinct)
    plain.verify()
    assert prove(source, plain).num_rows == len(rows)


def test_the_bytes_do_not_depend_on_threads_ranges_or_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Pursuit(2, 0.1)
    source, _ = pursuit_csr(world)
    options = {"positions": grid_positions(world), "num_positions": GRID**4}
    results = [encode(tmp_path / "0", source, **options)[1:]]
    for number, (threads, range_edges, chunk_edges, piece) in enumerate(
        [(2, 4_000, 300, 100), (1, 1, 50_000, 7), (3, 50_000, 1, 1 << 20), (2, 1 << 30, 1 << 30, 999)],
        start=1,
    ):
        monkeypatch.setattr(ranges, "RANGE_EDGES", range_edges)
        monkeypatch.setattr(ranges.node_ranges, "__defaults__", (range_edges,))
        monkeypatch.setattr(ranges.chunk_rows, "__defaults__", (chunk_edges,))
        monkeypatch.setattr(collecting, "_PIECE", piece)
        encoded, *result = encode(tmp_path / str(number), source, threads=threads, **options)
        results.append(tuple(result))
        assert prove(source, encoded, threads=threads).num_edges == world.num_edges
    assert all(result == results[0] for result in results)


def test_patterns_are_numbered_by_first_appearance(tmp_path: Path) -> None:
    rows: list[Row] = [[(1, 1)], [(2, 0)], [(2, 1)], [(3, 0)], [(2, 0)], [], [(3, 0), (3, 1)], [(3, 1)]]
    encoded, description, _ = encode(tmp_path, csr_of(rows, 4, 2, 2))
    table = encoded.table
    # Differences and codes, row by row: +1:1 +2:0 | +1:1 +2:0 | 0:0, none | 0:0 0:1, 0:1
    assert table.block_pattern.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert table.delta.tolist() == [1, 2, 0, 0, 0, 0]
    assert table.pattern_offsets.tolist() == [0, 1, 2, 3, 3, 5, 6]
    assert table.pattern_list.tolist() == [0, 1, 1, 2, 3, 0]
    assert table.list_offsets.tolist() == [0, 1, 2, 2, 4]
    assert table.list_code.tolist() == [1, 0, 0, 1]
    assert encoded.block.tolist() == [0, 0, 1, 2]
    assert encoded._first_edge.tolist() == [0, 2, 4, 5, 8]
    assert description["num_lists"] == 4


class Cut(RowEncoding):
    """A source whose sweep gives fewer rows at a time than it is asked for."""

    name = "cut"

    def __init__(self, source: RowEncoding, rows: int) -> None:
        self.size = source.size
        self._source = source
        self._rows = rows

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        return self._source.sweep(start_row, stop_row, min(chunk_rows, self._rows))

    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._source.outdegree(rows)

    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Any:
        return self._source.gather(rows, edges=edges)

    def sample(self, rows: Any, uniforms: Any, probabilities: Any) -> Any:
        return self._source.sample(rows, uniforms, probabilities)

    def nbytes(self) -> Mapping[str, int]:
        return {}


@pytest.mark.parametrize("cut", [1, 7, 24, 25, 26, 40])
def test_a_nodes_rows_may_come_in_several_chunks(tmp_path: Path, cut: int) -> None:
    source, _ = pursuit_csr(Pursuit(2, 0.1))
    whole, pieces = encode(tmp_path / "whole", source), encode(tmp_path / "cut", Cut(source, cut))
    assert whole[1:] == pieces[1:]
    assert prove(Cut(source, cut), whole[0]).num_rows == source.size.num_rows


def test_rows_whose_brief_keys_are_equal_are_still_told_apart(tmp_path: Path) -> None:
    # Rows of 33 that differ in one edge none of the quick looks see, and in one code.
    length, wide = 33, 200
    base = np.arange(0, 4 * length, 4)
    rows: list[Row] = []
    for node in range(64):
        shifts, codes = base.copy(), np.zeros(length, int)
        shifts[5] += node % 4 and node % 3
        codes[[6, 7, 9][node % 3]] = node % 2
        rows.append([(int(node + shift), int(code)) for shift, code in zip(shifts, codes, strict=True)])
    rows += [[] for _ in range(wide - 64)]
    source = csr_of(rows, wide, 1, 2)
    encoded, description, _ = encode(tmp_path, source)
    distinct = {tuple((n - node, c) for n, c in row) for node, row in enumerate(rows)}
    assert description["num_patterns"] == len(distinct) > 6
    assert prove(source, encoded).num_edges == 64 * length


def test_other_codes_are_written_through_the_map(tmp_path: Path) -> None:
    source, values = pursuit_csr(Pursuit(2, 0.1))
    code_map = np.arange(len(values)) // 2
    encoded, description, _ = encode(
        tmp_path / "few", source, num_outcomes=len(values) // 2 + 1, code_map=code_map
    )
    rows = np.arange(source.size.num_rows)
    mine, own = source.gather(rows), encoded.gather(rows)
    assert np.array_equal(code_map[mine.outcome], own.outcome)
    assert prove(source, encoded, code_map=code_map).largest_difference == 0
    single, described, written = encode(
        tmp_path / "one", source, num_outcomes=1, code_map=np.zeros(len(values), int)
    )
    assert "rows/list_code/zarr.json" not in written
    assert described["num_patterns"] < description["num_patterns"]
    assert single.gather(rows).outcome is None
    prove(source, single, code_map=np.zeros(len(values), int))
    with pytest.raises(CorruptStoreError, match="outcome code"):
        encode(tmp_path / "short", source, num_outcomes=5, code_map=np.zeros(3, int))


def test_patterns_beyond_the_budget_are_refused_with_the_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows: list[Row] = [sorted((int(n), 0) for n in rng.integers(0, 3000, 9)) for _ in range(3000)]
    source = csr_of(rows, 3000, 1, 1)
    with pytest.raises(MemoryBudgetError, match=r"patterns of [\d,]+ edges after [\d,]+ rows") as caught:
        encode(tmp_path, source, budget=500_000)
    assert "--rows csr-compressed" in caught.value.hint
    assert encode(tmp_path / "more", source, budget=8 << 20)[1]["num_patterns"] == 3000


def test_what_a_sample_would_take(tmp_path: Path) -> None:
    world = Pursuit(2, 0.1)
    source, _ = pursuit_csr(world)
    options: dict[str, Any] = {"positions": grid_positions(world), "num_positions": GRID**4}
    half, whole = collect_patterns(source, [(0, 900), (900, 1936)], **options)
    encoded, description, _ = encode(tmp_path, source, **options)
    assert (half.num_nodes, whole.num_nodes) == (900, 1936)
    assert (whole.num_rows, whole.num_edges) == (source.size.num_rows, source.size.num_edges)
    assert 0 < half.num_patterns < whole.num_patterns == description["num_patterns"]
    assert (whole.num_lists, whole.num_blocks) == (description["num_lists"], description["num_blocks"])
    on_disk = encoded.nbytes()
    assert whole.nbytes == sum(
        on_disk[name]
        for name in ("block_pattern", "pattern_offsets", "delta", "pattern_list", "list_offsets", "list_code")
    )


def test_nbytes_are_those_on_disk(tmp_path: Path) -> None:
    world = Pursuit(2, 0.1)
    source, _ = pursuit_csr(world)
    encoded, _, written = encode(tmp_path, source, positions=grid_positions(world), num_positions=GRID**4)
    sizes = {name.split("/")[1]: len(data) for name, data in written.items() if "/c/" in name}
    assert dict(encoded.nbytes()) == sizes


@pytest.mark.parametrize(
    ("positions", "total"), [([0, 2, 2], 5), ([0, 3, 2], 5), ([0, 2, 5], 5), ([0, 1, 1 << 63], 5)]
)
def test_positions_that_cannot_be(tmp_path: Path, positions: list[int], total: int) -> None:
    source = csr_of([[], [], []], 3, 1, 1)
    with pytest.raises(UsageError, match="position of node"):
        encode(tmp_path, source, positions=np.array(positions, np.uint64), num_positions=total)
    with pytest.raises(UsageError, match="without their number"):
        encode(tmp_path / "b", source, positions=np.array([0, 1, 2], np.uint64))


def test_a_source_that_names_no_node_is_refused(tmp_path: Path) -> None:
    rows: list[Row] = [[(0, 0)], [(1, 0), (7, 0)], [(2, 0)]]
    source = csr_of(rows, 3, 1, 1)
    with pytest.raises(CorruptStoreError, match="row 1 "):
        encode(tmp_path, source)


def test_rows_and_draws_out_of_range(tmp_path: Path) -> None:
    encoded, _, _ = encode(tmp_path, csr_of([[(0, 0)], [], [(2, 0)]], 3, 1, 1))
    for row in (-1, 3, 1 << 62):
        for call in (
            encoded.gather,
            encoded.outdegree,
            lambda rows: encoded.sample(rows, np.zeros(2), Probabilities("graph", np.ones(1))),
        ):
            with pytest.raises(UsageError, match=f"row {row} at position 1"):
                call(np.array([0, row]))
    with pytest.raises(UsageError, match=r"row 1 .*position 2 .*no successors"):
        encoded.sample(np.array([0, 2, 1]), np.zeros(3), Probabilities("graph", np.ones(1)))
    with pytest.raises(UsageError):
        list(encoded.sweep(0, 4, 1))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[CsrRows, dict[str, NDArray[Any]]]:
    """The arrays of a pursuit dictionary, to be damaged."""
    world = Pursuit(2, 0.1)
    source, _ = pursuit_csr(world)
    encoded, _, _ = encode(
        tmp_path_factory.mktemp("store"), source, positions=grid_positions(world), num_positions=GRID**4
    )
    table = encoded.table
    names = (
        "block_pattern",
        "pattern_offsets",
        "delta",
        "pattern_list",
        "list_offsets",
        "list_code",
        "node_at",
    )
    arrays = {name: np.array(getattr(table, name)) for name in names}
    arrays |= {name: np.array(getattr(encoded, name)) for name in ("block", "position")}
    arrays["first_edge"] = np.array(encoded._first_edge)
    return source, arrays


def made_of(size: GraphSize, arrays: Mapping[str, NDArray[Any]]) -> DictionaryRows:
    order = (
        "block_pattern",
        "pattern_offsets",
        "delta",
        "pattern_list",
        "list_offsets",
        "list_code",
        "node_at",
    )
    table = patterns.PatternTable(size.num_nodes, size.num_outcomes, *(arrays[name] for name in order))
    return DictionaryRows(size, table, arrays["block"], arrays["first_edge"], arrays["position"])


LARGEST = {"uint8": 255, "uint32": (1 << 32) - 1, "uint64": (1 << 64) - 1, "int32": (1 << 31) - 1}


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("block_pattern", (3, 7), LARGEST["uint32"]),
        ("block_pattern", (3, 7), 1 << 20),
        ("pattern_offsets", 40, 0),
        ("pattern_offsets", 40, 1 << 40),
        ("pattern_offsets", 40, LARGEST["uint64"]),
        ("delta", 70, LARGEST["int32"]),
        ("delta", 70, -LARGEST["int32"]),
        ("pattern_list", 9, LARGEST["uint32"]),
        ("pattern_list", 9, 0),
        ("list_offsets", 3, LARGEST["uint64"]),
        ("list_offsets", 3, 0),
        ("list_code", 6, 255),
        ("block", 700, LARGEST["uint32"]),
        ("position", 700, 2401),
        ("position", 700, LARGEST["uint32"]),
        ("node_at", slice(None), LARGEST["uint32"]),
        ("node_at", slice(None), 1936),
        ("first_edge", 700, 1),
        ("first_edge", 700, LARGEST["uint64"]),
    ],
)
def test_damage_is_found_and_nothing_is_read_outside(
    store: tuple[CsrRows, dict[str, NDArray[Any]]], name: str, place: Any, value: int
) -> None:
    source, good = store
    made_of(source.size, good).verify()
    damaged = {**good, name: good[name].copy()}
    damaged[name][place] = value
    rows = np.arange(source.size.num_rows)
    uniforms = np.random.default_rng(5).random(len(rows))
    with pytest.raises(CorruptStoreError):
        made_of(source.size, damaged).verify()
    with pytest.raises(CorruptStoreError):
        for _ in made_of(source.size, damaged).sweep(0, len(rows), 100):
            pass
    with pytest.raises(ProofError if name == "first_edge" else (CorruptStoreError, ProofError)):
        prove(source, made_of(source.size, damaged))
    encoded = made_of(source.size, damaged)
    if name != "first_edge":  # which only numbers edges
        with pytest.raises(CorruptStoreError):
            encoded.gather(rows, edges=True)
    for level, values in (("graph", np.ones(1)), ("outcome", np.full(source.size.num_outcomes, 0.3))):
        with contextlib.suppress(CorruptStoreError):  # a draw may miss it, but must not read outside
            encoded.sample(rows, uniforms, Probabilities(level, values))


@pytest.mark.parametrize(
    ("name", "place", "other"),
    [("block", 700, 701), ("position", 700, None), ("first_edge", 700, None), ("node_at", 0, None)],
)
def test_verify_finds_what_decodes_but_is_wrong(
    store: tuple[CsrRows, dict[str, NDArray[Any]]], name: str, place: int, other: int | None
) -> None:
    source, good = store
    damaged = {**good, name: good[name].copy()}
    array = damaged[name]
    if name == "node_at":
        array[np.argmax(array == source.size.num_nodes)] = 5  # a node at a second place
    elif other is None:
        array[place] += 1
    else:
        counts = np.diff(good["first_edge"].view(np.int64))
        other = int(np.argmax(counts != counts[place]))
        array[place] = array[other]
    with pytest.raises(CorruptStoreError):
        made_of(source.size, damaged).verify()


def test_verify_by_sweeping_where_differences_are_too_many(
    store: tuple[CsrRows, dict[str, NDArray[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, good = store
    # A next node that isn't there: the place of one that others lead to is emptied, and it stands elsewhere.
    damaged = {name: array.copy() for name, array in good.items()}
    hole = int(np.flatnonzero(damaged["node_at"] == source.size.num_nodes)[0])
    node = int(damaged["node_at"][hole - 1])
    damaged["node_at"][hole - 1], damaged["node_at"][hole] = source.size.num_nodes, node
    damaged["position"][node] = hole
    for limit in ("_REACH", "_SPAN"):
        monkeypatch.setattr(dictionary, limit, 10 if limit == "_REACH" else 1 << 24)
        made_of(source.size, good).verify()
        with pytest.raises(CorruptStoreError, match="next node"):
            made_of(source.size, damaged).verify()


def test_numbers_of_edges_without_a_table_of_them(
    store: tuple[CsrRows, dict[str, NDArray[Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, good = store
    monkeypatch.setattr(dictionary, "_STARTS_BYTES", 0)
    rows = np.arange(source.size.num_rows)
    edges = made_of(source.size, good).gather(rows, edges=True).edge
    assert edges is not None
    assert edges.tolist() == list(range(source.size.num_edges))


@pytest.mark.parametrize("level", ["graph", "outcome", "edge"])
def test_draws_by_scanning_and_by_reading_are_the_same(
    store: tuple[CsrRows, dict[str, NDArray[Any]]], monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    source, good = store
    rng = np.random.default_rng(6)
    size = source.size
    values = rng.random({"graph": 1, "outcome": size.num_outcomes, "edge": size.num_edges}[level]) * 0.3
    batch, uniforms = rng.integers(0, size.num_rows, 3000), rng.random(3000)
    expected = source.sample(batch, uniforms, Probabilities(level, values))

    class Read:
        def take(self, edges: NDArray[np.int64]) -> NDArray[np.float64]:
            return values[edges]

    monkeypatch.setattr(patterns, "_SEARCHED", 0)
    monkeypatch.setattr(patterns, "_TAKEN", 100)
    given = [values, Read()] if level == "edge" else [values]
    for held in given:
        drawn = made_of(size, good).sample(batch, uniforms, Probabilities(level, held))
        for field in ("next_node", "outcome", "edge", "probability"):
            assert np.array_equal(getattr(drawn, field), getattr(expected, field)), field


def test_threads_may_sweep_and_draw_at_once(store: tuple[CsrRows, dict[str, NDArray[Any]]]) -> None:
    source, good = store
    encoded = made_of(source.size, good)
    rows = np.arange(source.size.num_rows)
    uniforms = np.random.default_rng(8).random(len(rows))
    chances = Probabilities("outcome", np.full(source.size.num_outcomes, 0.2))
    expected = source.sample(rows, uniforms, chances).edge
    wrong: list[str] = []

    def work(part: int) -> None:
        for chunk in encoded.sweep(part * 10_000, part * 10_000 + 10_000, 77):
            bounds = slice(chunk.first_edge, chunk.first_edge + len(chunk.next_node))
            if not np.array_equal(chunk.next_node, source._next_node[bounds]):
                wrong.append(f"rows {chunk.first_row}")
        if not np.array_equal(encoded.sample(rows, uniforms, chances).edge, expected):
            wrong.append("draws")

    threads = [threading.Thread(target=work, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_more_than_2_to_the_32_edges_and_rows() -> None:
    actions, length = 1 << 16, 1 << 9
    nodes = 1 << 17
    size = GraphSize(nodes, actions, nodes * actions * length, 1)
    assert size.num_edges == 1 << 42
    assert size.num_rows == 1 << 33
    table = patterns.PatternTable(
        nodes,
        1,
        np.zeros((1, actions), np.uint32),
        np.array([0, length], np.uint64),
        np.zeros(length, np.int32),
    )
    first_edge = np.arange(nodes + 1, dtype=np.uint64) * np.uint64(actions * length)
    encoded = DictionaryRows(size, table, np.zeros(nodes, np.uint32), first_edge)
    encoded.verify()
    rows = np.array([size.num_rows - 1, 1 << 32, (1 << 32) - 1, 1 << 31])
    edges = encoded.gather(rows, edges=True)
    assert edges.edge is not None
    assert edges.edge[[0, 512, 1024, 1536]].tolist() == (rows * length).tolist()
    assert edges.next_node[::512].tolist() == (rows // actions).tolist()
    drawn = encoded.sample(rows, np.full(4, 0.5), Probabilities("graph", np.array([1 / length])))
    assert drawn.edge.tolist() == (rows * length + length // 2).tolist()
    (chunk,) = encoded.sweep(size.num_rows - 1, size.num_rows, 5)
    assert chunk.first_edge == size.num_edges - length
    assert encoded.matches(chunk) == -1
