"""Every encoding against plain Python lists, and what damage does to it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from omstore.errors import CorruptStoreError, SchemaVersionError, UsageError
from omstore.publish.staging import Staging, stage
from omstore.rows import (
    CsrCompressedRows,
    CsrCompressedWriter,
    CsrRows,
    CsrWriter,
    GraphSize,
    Probabilities,
    RowEncoding,
    RowWriter,
    open_rows,
    row_writer,
)
from omstore.rows.compressed import ChunkCache

ENCODINGS = ("csr", "csr-compressed")
N, A, K = 37, 4, 6
Row = list[tuple[int, int]]


def random_rows(seed: int, num_outcomes: int = K, uniform: int | None = None) -> list[Row]:
    """Rows of sorted (next node, code), some without any; equal pairs may repeat."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(N * A):
        count = rng.integers(0, 7) if uniform is None else uniform
        pairs = zip(
            rng.integers(0, N, count).tolist(), rng.integers(0, num_outcomes, count).tolist(), strict=True
        )
        rows.append(sorted(pairs))
    return rows


def write(writer: RowWriter, rows: list[Row], cuts: list[int]) -> tuple[dict[str, Any], GraphSize]:
    bounds = [0, *sorted(cuts), len(rows)]
    for first, last in itertools.pairwise(bounds):
        part = rows[first:last]
        nodes = np.array([node for row in part for node, _ in row], np.int64)
        codes = np.array([code for row in part for _, code in row], np.int64)
        coded = writer._expected.num_outcomes > 1
        writer.append(np.array([len(row) for row in part], np.int64), nodes, codes if coded else None)
    return writer.finish()


def make_writer(encoding: str, staging: Staging, num_outcomes: int = K) -> RowWriter:
    if encoding == "csr":
        return CsrWriter(staging, N, A, num_outcomes)
    return CsrCompressedWriter(staging, N, A, num_outcomes, chunk_rows=16)  # many chunks in a small graph


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    with stage(tmp_path / "export") as staging:
        yield staging


@pytest.fixture(params=ENCODINGS)
def encoded(request: pytest.FixtureRequest, staging: Staging) -> tuple[RowEncoding, list[Row]]:
    rows = random_rows(1)
    description, size = write(make_writer(request.param, staging), rows, [40, 41])
    return open_rows(staging.path, description, size), rows


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_gather_gives_the_rows_in_any_order(encoded: tuple[RowEncoding, list[Row]]) -> None:
    encoding, rows = encoded
    rng = np.random.default_rng(2)
    firsts = np.cumsum([0, *map(len, rows)])
    for batch in (rng.integers(0, N * A, 500), np.arange(N * A), np.array([], np.int64), np.array([5, 5, 3])):
        edges = encoding.gather(batch, edges=True)
        assert edges.outcome is not None
        assert edges.edge is not None
        assert edges.offsets.tolist() == np.cumsum([0, *(len(rows[row]) for row in batch)]).tolist()
        pairs = list(zip(edges.next_node.tolist(), edges.outcome.tolist(), strict=True))
        assert pairs == [pair for row in batch for pair in rows[row]]
        assert edges.edge.tolist() == [firsts[row] + k for row in batch for k in range(len(rows[row]))]
        assert encoding.outdegree(batch).tolist() == [len(rows[row]) for row in batch]


@pytest.mark.parametrize("chunk_rows", [1, 7, 16, 1000])
def test_sweep_gives_the_rows_in_order(encoded: tuple[RowEncoding, list[Row]], chunk_rows: int) -> None:
    encoding, rows = encoded
    for start, stop in ((0, N * A), (13, 90), (60, 60), (N * A, N * A)):
        seen: list[Row] = []
        for chunk in encoding.sweep(start, stop, chunk_rows):
            assert chunk.first_row == start + len(seen)
            assert chunk.first_edge == sum(map(len, rows[: chunk.first_row]))
            assert chunk.outcome is not None
            pairs = list(zip(chunk.next_node.tolist(), chunk.outcome.tolist(), strict=True))
            bounds = chunk.offsets.tolist()
            seen += [pairs[a:b] for a, b in itertools.pairwise(bounds)]
        assert seen == rows[start:stop]


def slow_sample(probabilities: list[float], uniform: float) -> int:
    reached = 0.0
    for k, probability in enumerate(probabilities):
        reached += probability
        if uniform < reached:
            return k
    return max(k for k, probability in enumerate(probabilities) if probability > 0)


@pytest.mark.parametrize("level", ["graph", "outcome", "edge"])
def test_sample_inverts_the_running_sum(encoded: tuple[RowEncoding, list[Row]], level: str) -> None:
    encoding, rows = encoded
    rng = np.random.default_rng(3)
    firsts = np.cumsum([0, *map(len, rows)])
    # Sums are far from 1, so that the rule for what is left of 1 shows as well.
    values = rng.random({"graph": 1, "outcome": K, "edge": int(firsts[-1])}[level]) * 0.4
    if level != "graph":
        values[rng.integers(0, len(values), len(values) // 4)] = 0.0
    legal = np.array([row for row, pairs in enumerate(rows) if pairs])

    def probability_of(row: int) -> list[float]:
        index = {
            "graph": lambda k: 0,
            "outcome": lambda k: rows[row][k][1],
            "edge": lambda k: firsts[row] + k,
        }
        return [float(values[index[level](k)]) for k in range(len(rows[row]))]

    legal = np.array([row for row in legal if any(probability_of(row))])
    batch = rng.choice(legal, 400)
    uniforms = rng.random(400)
    drawn = encoding.sample(batch, uniforms, Probabilities(level, values))
    for i, row in enumerate(batch):
        k = slow_sample(probability_of(row), uniforms[i])
        assert (drawn.next_node[i], drawn.outcome[i]) == rows[row][k]
        assert drawn.edge[i] == firsts[row] + k
        assert drawn.probability[i] == probability_of(row)[k]


def test_sampling_in_small_pieces_changes_nothing(
    encoded: tuple[RowEncoding, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoding, rows = encoded
    rng = np.random.default_rng(4)
    batch = rng.choice([row for row, pairs in enumerate(rows) if pairs], 300)
    chances = Probabilities("outcome", rng.random(K))
    uniforms = rng.random(300)
    whole = encoding.sample(batch, uniforms, chances)
    monkeypatch.setattr("omstore.rows.compressed._SAMPLE_EDGES", 5)
    pieces = encoding.sample(batch, uniforms, chances)
    assert np.array_equal(whole.edge, pieces.edge)


def test_an_illegal_row_cannot_be_sampled(encoded: tuple[RowEncoding, list[Row]]) -> None:
    encoding, rows = encoded
    legal = [row for row, pairs in enumerate(rows) if pairs]
    empty = [row for row, pairs in enumerate(rows) if not pairs]
    batch = np.array([legal[3], legal[2], empty[1], empty[0]])
    with pytest.raises(UsageError, match=f"row {empty[1]} .*position 2 .*no successors"):
        encoding.sample(batch, np.zeros(4), Probabilities("graph", [1.0]))


@pytest.mark.parametrize("row", [-1, N * A, 1 << 62, -(1 << 62)])
def test_a_row_out_of_range_is_named(encoded: tuple[RowEncoding, list[Row]], row: int) -> None:
    encoding, rows = encoded
    legal = [row for row, pairs in enumerate(rows) if pairs]
    batch = np.array([legal[3], legal[9], row, -5])
    for call in (
        encoding.gather,
        encoding.outdegree,
        lambda rows: encoding.sample(rows, np.zeros(4), Probabilities("graph", [1.0])),
    ):
        with pytest.raises(UsageError, match=f"row {row} at position 2"):
            call(batch)
    with pytest.raises(UsageError):
        list(encoding.sweep(0, N * A + 1, 5))
    with pytest.raises(UsageError):
        list(encoding.sweep(0, 5, 0))


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(seed=st.integers(0, 3), uniform=st.sampled_from([None, 0, 1, 3]), data=st.data())
@settings(max_examples=12, deadline=None)
def test_the_bytes_do_not_depend_on_the_chunks(
    tmp_path_factory: pytest.TempPathFactory,
    encoding: str,
    seed: int,
    uniform: int | None,
    data: st.DataObject,
) -> None:
    rows = random_rows(seed, uniform=uniform)
    cuts = data.draw(st.lists(st.integers(0, len(rows)), max_size=6))
    results = []
    for pieces in ([], cuts):
        with stage(tmp_path_factory.mktemp("export")) as staging:
            description, size = write(make_writer(encoding, staging), rows, pieces)
            opened = open_rows(staging.path, description, size)
            opened.verify(chunk_rows=11)
            assert opened.gather(np.arange(N * A)).next_node.tolist() == [n for row in rows for n, _ in row]
            results.append((description, size, files(staging.path)))
    assert results[0] == results[1]
    assert results[0][0].get("outdegree") == uniform
    offsets = {"csr": "rows/offsets/zarr.json", "csr-compressed": "rows/outdegree/zarr.json"}[encoding]
    assert (offsets in results[0][2]) == (uniform is None)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(("uniform", "first"), [(2, 0), (2, 1), (3, 16), (3, N * A - 1)])
def test_outdegrees_that_differ_late(staging: Staging, encoding: str, uniform: int, first: int) -> None:
    rows = random_rows(5, uniform=uniform)
    rows[first] = rows[first][:1]
    description, size = write(make_writer(encoding, staging), rows, list(range(0, N * A, 5)))
    assert "outdegree" not in description
    opened = open_rows(staging.path, description, size)
    assert opened.outdegree(np.arange(N * A)).tolist() == [len(row) for row in rows]
    opened.verify()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_single_outcome_needs_no_codes(staging: Staging, encoding: str) -> None:
    rows = random_rows(6, num_outcomes=1)
    description, size = write(make_writer(encoding, staging, 1), rows, [3])
    opened = open_rows(staging.path, description, size)
    assert not (staging.path / "rows/outcome").exists()
    assert opened.gather(np.arange(9)).outcome is None
    assert all(chunk.outcome is None for chunk in opened.sweep(0, 9, 4))
    legal = np.array([row for row, pairs in enumerate(rows) if pairs])
    drawn = opened.sample(legal, np.full(len(legal), 0.99), Probabilities("graph", [1.0]))
    assert drawn.next_node.tolist() == [rows[row][0][0] for row in legal]
    assert not drawn.outcome.any()


def test_zarr_reads_the_arrays(staging: Staging) -> None:
    rows = random_rows(7)
    write(make_writer("csr-compressed", staging), rows, [])
    nodes = np.array([node for row in rows for node, _ in row])
    sources = np.repeat(np.arange(N * A) // A, [len(row) for row in rows])
    folder = staging.path / "rows"
    assert zarr.open_array(folder / "next_node_delta", mode="r")[:].tolist() == (nodes - sources).tolist()
    assert zarr.open_array(folder / "outcome", mode="r")[:].tolist() == [
        code for row in rows for _, code in row
    ]
    assert zarr.open_array(folder / "outdegree", mode="r")[:].tolist() == [len(row) for row in rows]
    ends = np.cumsum([0, *(len(row) for row in rows)])
    blocks = [*ends[:-1][::16].tolist(), int(ends[-1])]
    assert zarr.open_array(folder / "block_offsets", mode="r")[:].tolist() == blocks


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_nbytes_are_those_on_disk(staging: Staging, encoding: str) -> None:
    description, size = write(make_writer(encoding, staging), random_rows(8), [])
    parts = open_rows(staging.path, description, size).nbytes()
    on_disk = {path.parts[-2 - 1]: path.stat().st_size for path in staging.path.rglob("c/0")}
    assert dict(parts) == on_disk


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_writer_refuses_what_is_no_graph(staging: Staging, encoding: str) -> None:
    writer = make_writer(encoding, staging)
    one = np.array([1])
    writer.append(np.array([2]), np.array([3, 4]), np.array([0, 1]))
    bad = [
        ((np.array([2]), np.array([4, 3]), np.array([0, 1])), "row 1 isn't sorted"),
        ((np.array([0, 2]), np.array([4, 4]), np.array([1, 0])), "row 2 isn't sorted"),
        ((one, np.array([N]), one), "row 1 has a next node"),
        ((one, np.array([-1]), one), "row 1 has a next node"),
        ((one, one, np.array([K])), "row 1 has an outcome code"),
        ((one, one, np.array([-1])), "row 1 has an outcome code"),
        ((one, np.array([1, 2]), np.array([1, 2])), "1 edges were given with 2 next nodes"),
        ((np.array([2, -1]), one, one), "negative"),
        ((one, one, None), "codes were not given"),
        ((np.zeros(N * A, int), one[:0], one[:0]), "more than"),
    ]
    for arguments, message in bad:
        with pytest.raises(UsageError, match=message):
            writer.append(*arguments)
    with pytest.raises(UsageError, match=f"1 of {N * A}"):
        writer.finish()
    with pytest.raises(UsageError, match="no row encoding 'coo'"):
        row_writer("coo", staging, N, A)


def damaged_csr(**changes: Any) -> CsrRows:
    rows = random_rows(9)
    arrays: dict[str, Any] = {
        "offsets": np.cumsum([0, *map(len, rows)]).astype(np.uint64),
        "next_node": np.array([node for row in rows for node, _ in row], np.uint32),
        "outcome": np.array([code for row in rows for _, code in row], np.uint8),
    }
    size = GraphSize(N, A, len(arrays["next_node"]), K)
    for name, (position, value) in changes.items():
        arrays[name][position] = value
    return CsrRows(size, arrays["offsets"], arrays["next_node"], arrays["outcome"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"offsets": (50, 0)}, "offsets"),
        ({"offsets": (50, 1 << 40)}, "offsets"),
        ({"offsets": (50, (1 << 64) - 1)}, "offsets"),
        ({"next_node": (200, N)}, "next node"),
        ({"next_node": (200, (1 << 32) - 1)}, "next node"),
        ({"outcome": (200, K)}, "outcome code"),
    ],
)
def test_damage_is_an_error_wherever_it_is_met(change: dict[str, tuple[int, int]], reason: str) -> None:
    encoding = damaged_csr(**change)
    everything = np.arange(N * A)
    with pytest.raises(CorruptStoreError, match=reason):
        encoding.gather(everything)
    with pytest.raises(CorruptStoreError, match=reason):
        encoding.verify(chunk_rows=13)
    legal = np.array([row for row, pairs in enumerate(random_rows(9)) if pairs])
    batch, uniforms = np.repeat(legal, 30), np.tile(np.linspace(0, 1, 30, endpoint=False), len(legal))
    with pytest.raises(CorruptStoreError, match=reason):
        encoding.sample(batch, uniforms, Probabilities("outcome", np.full(K, 0.2)))


def test_verify_finds_rows_out_of_order_and_edges_missing() -> None:
    damaged_csr().verify()
    with pytest.raises(CorruptStoreError, match="sorted"):
        damaged_csr(next_node=(slice(None), np.arange(len(damaged_csr()._next_node))[::-1] % N)).verify()
    with pytest.raises(CorruptStoreError, match="instead of"):
        damaged_csr(offsets=(N * A, 430)).verify()
    with pytest.raises(CorruptStoreError, match="doesn't begin at edge 0"):
        damaged_csr(offsets=(0, 1)).verify()


@pytest.mark.parametrize("part", ["outdegree", "block_offsets", "next_node_delta", "outcome"])
def test_damaged_compressed_parts(tmp_path: Path, part: str) -> None:
    rows = random_rows(10)
    with stage(tmp_path / "export") as staging:
        description, size = write(make_writer("csr-compressed", staging), rows, [])
        path = staging.path / "rows" / part / "c/0"
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 1
        path.write_bytes(data)
        for read in (
            lambda rows: rows.verify(),
            lambda rows: rows.gather(np.arange(N * A)),
            lambda rows: rows.gather(np.arange(N * A)[::-1]),
        ):
            with pytest.raises(CorruptStoreError):
                read(CsrCompressedRows(staging.path, description, size))
        path.write_bytes(data[:-9])
        with pytest.raises(CorruptStoreError, match=part):
            CsrCompressedRows(staging.path, description, size).verify()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_files_of_another_graph_are_refused(staging: Staging, encoding: str) -> None:
    description, size = write(make_writer(encoding, staging), random_rows(11), [])
    open_rows(staging.path, description, size)
    for wrong in (
        GraphSize(N + 1, A, size.num_edges, K),
        GraphSize(N, A, size.num_edges + 1, K),
        GraphSize(N, A, size.num_edges, 300),
    ):
        with pytest.raises(CorruptStoreError, match="rows/"):
            open_rows(staging.path, description, wrong)
    with pytest.raises(CorruptStoreError):
        open_rows(staging.path, {**description, "outdegree": 2}, size)
    with pytest.raises(SchemaVersionError, match="'coo'"):
        open_rows(staging.path, {"encoding": "coo"}, size)


@pytest.mark.parametrize("with_offsets", [False, True])
def test_more_than_2_to_the_32_edges(tmp_path: Path, with_offsets: bool) -> None:
    outdegree, joint_actions = 1 << 20, 1366
    size = GraphSize(3, joint_actions, 3 * joint_actions * outdegree, 1)
    assert size.num_edges > 1 << 32
    last = np.array([size.num_rows - 1])
    with (tmp_path / "next_node").open("wb") as file:  # a hole of 16 GiB, and the last row
        file.seek((size.num_edges - outdegree) * 4)
        file.write(np.full(outdegree, 2, np.uint32).tobytes())
    next_node = np.memmap(tmp_path / "next_node", np.uint32, "r")
    offsets = np.arange(size.num_rows + 1, dtype=np.uint64) * np.uint64(outdegree) if with_offsets else None
    rows = CsrRows(size, offsets, next_node, None, None if with_offsets else outdegree)
    edges = rows.gather(last, edges=True)
    assert edges.edge is not None
    assert (edges.edge[0], edges.edge[-1]) == (size.num_edges - outdegree, size.num_edges - 1)
    assert (edges.next_node == 2).all()
    drawn = rows.sample(last, np.array([0.5]), Probabilities("graph", [1 / outdegree]))
    assert drawn.edge[0] == size.num_edges - outdegree // 2
    (chunk,) = rows.sweep(size.num_rows - 1, size.num_rows, 8)
    assert (chunk.first_edge, int(chunk.next_node.min())) == (size.num_edges - outdegree, 2)


def test_the_cache_keeps_the_newest_chunks_within_its_bytes() -> None:
    cache = ChunkCache(250)
    decoded: list[int] = []

    def get(chunk: int) -> None:
        def decode() -> np.ndarray:
            decoded.append(chunk)
            return np.full(100, chunk, np.uint8)

        assert cache.get("a", chunk, decode)[0] == chunk

    for chunk in (1, 2, 1, 3, 1, 2):
        get(chunk)
    assert decoded == [1, 2, 3, 2]  # 2 was the oldest when 3 came
    assert cache.nbytes == 200


def test_gathering_decodes_each_chunk_once(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(12)
    description, size = write(make_writer("csr-compressed", staging), rows, [])
    encoding = CsrCompressedRows(staging.path, description, size, cache_bytes=1)
    reads: list[tuple[int, int]] = []
    read = encoding._delta.read
    monkeypatch.setattr(encoding._delta, "read", lambda a, b: reads.append((a, b)) or read(a, b))
    encoding.gather(np.random.default_rng(0).integers(0, N * A, 2000))
    assert len(reads) == len(set(reads)) == encoding._delta.num_chunks
