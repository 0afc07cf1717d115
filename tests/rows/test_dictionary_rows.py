"""The dictionary encoding against csr and plain Python lists, on random graphs and the pursuit world."""

from __future__ import annotations

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

from omstore.errors import CorruptStoreError, MemoryBudgetError, UsageError
from omstore.publish.staging import stage
from omstore.rows import (
    CsrRows,
    DictionaryRows,
    GraphSize,
    Probabilities,
    RowChunk,
    RowEncoding,
    open_rows,
    pattern_kernels,
)
from omstore.rows import collecting, dictionary, dictionary_kernels, kernels, patterns, ranges
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


def same_rows(encoded: RowEncoding, source: RowEncoding, rows: list[Row]) -> None:
    """Every method of both, against each other and against the lists."""
    count = len(rows)
    firsts = np.cumsum([0, *map(len, rows)])
    rng = np.random.default_rng(7)
    for batch in (np.arange(count), rng.integers(0, count, 50), np.empty(0, np.int64)):
        edges = encoded.gather(batch, edges=True)
        codes = itertools.repeat(0) if edges.outcome is None else edges.outcome.tolist()
        assert list(zip(edges.next_node.tolist(), codes)) == [edge for row in batch for edge in rows[row]]
        assert edges.edge is not None
        assert edges.edge.tolist() == [e for row in batch for e in range(firsts[row], firsts[row + 1])]
        assert encoded.outdegree(batch).tolist() == [len(rows[row]) for row in batch]
    for start, stop, chunk_rows in ((0, count, 1 << 16), (0, count, 3), (count // 3, count // 2, 2)):
        seen: list[Row] = []
        for chunk in encoded.sweep(start, stop, chunk_rows):
            assert (chunk.first_row, chunk.first_edge) == (start + len(seen), firsts[start + len(seen)])
            codes = itertools.repeat(0) if chunk.outcome is None else chunk.outcome.tolist()
            pairs = list(zip(chunk.next_node.tolist(), codes))
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
