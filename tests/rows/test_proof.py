"""Proof: whatever differs between an encoding and its source is found, and named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omstore.errors import ProofError, UsageError
from omstore.rows import CsrRows, DrawnEdges, Edges, GraphSize, Probabilities, RowChunk, RowEncoding
from omstore.rows.proof import prove
from omstore.rows.ranges import chunk_rows, node_ranges, over_ranges

N, A, K = 40, 3, 5


def random_csr(seed: int = 0, outcomes: int = K) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, N * A)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    rows = np.repeat(np.arange(N * A), counts)
    next_node, outcome = rng.integers(0, N, len(rows)), rng.integers(0, outcomes, len(rows))
    order = np.lexsort((outcome, next_node, rows))
    return {
        "offsets": offsets.astype(np.uint64),
        "next_node": next_node[order].astype(np.uint32),
        "outcome": outcome[order].astype(np.uint8),
    }


def csr(arrays: Mapping[str, NDArray[Any]], outcomes: int = K) -> CsrRows:
    size = GraphSize(N, A, len(arrays["next_node"]), outcomes)
    codes = arrays["outcome"] if outcomes > 1 else None
    return CsrRows(size, arrays["offsets"], arrays["next_node"], codes)


class Computing(RowEncoding):
    """Rows that answer an attribute themselves: `values` of the edges, by their numbers; and no codes."""

    name = "computing"

    def __init__(self, source: CsrRows, values: NDArray[Any], name: str = "probability") -> None:
        self.size = replace(source.size, num_outcomes=1)
        self._source = source
        self._values = values
        self._attribute = name

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        for chunk in self._source.sweep(start_row, stop_row, chunk_rows):
            edges = slice(chunk.first_edge, chunk.first_edge + len(chunk.next_node))
            yield replace(chunk, outcome=None, attributes={self._attribute: self._values[edges]})

    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Edges:
        found = self._source.gather(rows, edges=True)
        assert found.edge is not None
        return replace(found, outcome=None, attributes={self._attribute: self._values[found.edge]})

    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._source.outdegree(rows)

    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        raise NotImplementedError

    def nbytes(self) -> Mapping[str, int]:
        return {}


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_equal_rows_are_proven_and_counted(threads: int) -> None:
    arrays = random_csr()
    ticks: list[int] = []
    proof = prove(csr(arrays), csr(arrays), threads=threads, tick=ticks.append)
    edges = len(arrays["next_node"])
    assert proof.to_dict() == {"rows": N * A, "edges": edges, "largest_difference_ulp": 0}
    assert sum(ticks) == edges


@given(seed=st.integers(0, 20), data=st.data(), threads=st.sampled_from([1, 2]))
@settings(max_examples=80, deadline=None)
def test_any_change_is_found_and_the_first_row_named(seed: int, data: st.DataObject, threads: int) -> None:
    arrays = random_csr(seed)
    edges = len(arrays["next_node"])
    changed = {name: array.copy() for name, array in arrays.items()}
    first = N * A
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(["next_node", "outcome"]))
        edge = data.draw(st.integers(0, edges - 1))
        limit = N if name == "next_node" else K
        changed[name][edge] = (int(arrays[name][edge]) + data.draw(st.integers(1, limit - 1))) % limit
        first = min(first, int(np.searchsorted(arrays["offsets"], edge, side="right")) - 1)
    for rows in (None, np.arange(N * A)[::-1]):
        with pytest.raises(ProofError, match=f"row {first} "):
            prove(csr(arrays), csr(changed), threads=threads, rows=rows)
    others = np.setdiff1d(np.arange(N * A), [first])
    if (changed["next_node"] != arrays["next_node"]).sum() + (
        changed["outcome"] != arrays["outcome"]
    ).sum() == 1:
        assert prove(csr(arrays), csr(changed), rows=others).num_rows == N * A - 1


def test_an_edge_moved_to_the_next_row_is_found() -> None:
    arrays = random_csr(3)
    counts = np.diff(arrays["offsets"].astype(np.int64))
    row = int(np.flatnonzero((counts[:-1] > 1) & (counts[1:] > 0))[4])
    moved = {**arrays, "offsets": arrays["offsets"].copy()}
    moved["offsets"][row + 1] -= np.uint64(1)
    with pytest.raises(
        ProofError, match=rf"row {row} .*{counts[row] - 1} successors instead of {counts[row]}"
    ):
        prove(csr(arrays), csr(moved))


def test_equal_rows_whose_edges_have_other_numbers_are_found() -> None:
    counts = np.zeros(N * A, np.int64)
    counts[[0, 1, 5]] = 2, 1, 3
    other = counts.copy()
    other[[0, 1]] = 1, 1
    other[9] = 1
    arrays = {"next_node": np.arange(6), "outcome": np.zeros(6, np.uint8)}
    mine = arrays | {"offsets": np.concatenate(([0], np.cumsum(counts)))}
    own = arrays | {
        "offsets": np.concatenate(([0], np.cumsum(other))),
        "next_node": np.array([0, 2, 3, 4, 5, 5]),
    }
    with pytest.raises(ProofError, match=r"row 5 .*edges are numbered otherwise"):
        prove(csr(mine), csr(own), rows=np.array([5]))


def test_counts_that_differ_are_refused_at_once() -> None:
    arrays = random_csr()
    fewer = {**arrays, "offsets": np.minimum(arrays["offsets"], arrays["offsets"][-1] - np.uint64(1))}
    fewer |= {name: arrays[name][:-1] for name in ("next_node", "outcome")}
    with pytest.raises(ProofError, match="num_edges"):
        prove(csr(arrays), csr(fewer))


def test_codes_are_compared_through_the_map() -> None:
    arrays = random_csr()
    code_map = np.array([4, 3, 2, 1, 0])
    other = {**arrays, "outcome": code_map[arrays["outcome"]].astype(np.uint8)}
    assert prove(csr(arrays), csr(other), code_map=code_map).num_rows == N * A
    assert prove(csr(arrays), csr(other), code_map=code_map, rows=np.arange(7)).num_rows == 7
    wrong = code_map.copy()
    wrong[[1, 2]] = wrong[[2, 1]]
    first = (
        int(np.searchsorted(arrays["offsets"], np.argmax(np.isin(arrays["outcome"], [1, 2])), side="right"))
        - 1
    )
    with pytest.raises(ProofError, match=rf"row {first} .*outcome code"):
        prove(csr(arrays), csr(other), code_map=wrong)
    assert prove(csr(arrays), csr(arrays, 1), code_map=np.zeros(K, int)).num_rows == N * A


@pytest.mark.parametrize("rows", [None, np.arange(N * A)])
def test_computed_values_may_be_a_few_ulps_off(rows: NDArray[np.int64] | None) -> None:
    arrays = random_csr()
    table = np.random.default_rng(1).random(K)
    exact = table[arrays["outcome"]]
    proof = prove(csr(arrays), Computing(csr(arrays), exact), values={"probability": table}, rows=rows)
    assert proof.largest_difference == 0
    near = exact.copy()
    near[9] = np.nextafter(np.nextafter(near[9], 2), 2)
    proof = prove(csr(arrays), Computing(csr(arrays), near), values={"probability": table}, rows=rows)
    assert proof.largest_difference == 2
    near[30] = near[30] * (1 + 1e-14)
    row = int(np.searchsorted(arrays["offsets"], 30, side="right")) - 1
    with pytest.raises(ProofError, match=rf"row {row} .*probability of its edge"):
        prove(csr(arrays), Computing(csr(arrays), near), values={"probability": table}, rows=rows)
    for other in (-near[5], np.nan, np.inf, 0.0):
        far = exact.copy()
        far[5] = other
        with pytest.raises(ProofError, match="probability"):
            prove(csr(arrays), Computing(csr(arrays), far), values={"probability": table}, rows=rows)


def test_values_that_both_compute_are_compared_exactly_unless_floats() -> None:
    arrays = random_csr()
    done = (arrays["next_node"] % 2).astype(np.uint8)
    source = Computing(csr(arrays), done, "done")
    assert prove(source, Computing(csr(arrays), done.copy(), "done")).num_rows == N * A
    done = done.copy()
    done[17] ^= 1
    with pytest.raises(ProofError, match="done"):
        prove(source, Computing(csr(arrays), done, "done"))


def test_values_with_nothing_to_compare_with() -> None:
    arrays = random_csr()
    encoded = Computing(csr(arrays), np.ones(len(arrays["next_node"])))
    for rows in (None, np.arange(4)):
        with pytest.raises(UsageError, match="'probability'"):
            prove(csr(arrays), encoded, values={"other": np.zeros(K)}, rows=rows)
    with pytest.raises(UsageError, match="'probability'"):
        prove(csr(arrays), encoded)


def test_rows_are_drawn_with_repetition() -> None:
    arrays = random_csr()
    rows = np.random.default_rng(2).integers(0, N * A, 1000)
    proof = prove(csr(arrays), csr(arrays), rows=rows)
    counts = np.diff(arrays["offsets"].astype(np.int64))
    assert (proof.num_rows, proof.num_edges) == (1000, int(counts[rows].sum()))
    assert prove(csr(arrays), csr(arrays), rows=np.empty(0, np.int64)).num_rows == 0


def test_the_error_of_the_first_range_is_raised_whatever_the_threads() -> None:
    def work(thread: int, first: int, stop: int) -> None:
        if first >= 30:
            raise ValueError(first)

    for threads in (1, 2, 8):
        for _ in range(20):
            with pytest.raises(ValueError, match=r"^30$"):
                over_ranges([(first, first + 10) for first in range(0, 200, 10)], work, threads)


@given(
    nodes=st.integers(0, 300),
    actions=st.integers(1, 9),
    edges=st.integers(0, 5000),
    length=st.integers(1, 2000),
)
@settings(deadline=None)
def test_ranges_cover_every_node_once(nodes: int, actions: int, edges: int, length: int) -> None:
    size = GraphSize(nodes, actions, edges)
    found = [node for first, stop in node_ranges(size, length) for node in range(first, stop)]
    assert found == list(range(nodes))
    assert chunk_rows(size, length) >= 1
