"""Both sides of 2^31 and 2^32 rows, edges and nodes, in every encoding, against closed forms.

The files are as long as such graphs need, and made of holes: only the pages around what is asked for exist.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from omstore.format.hot import write_hot
from omstore.format.metadata import chunk_file, write_array_metadata
from omstore.format.sharding import ChunkCoder, cold_metadata, encode_index
from omstore.read.kernels import row_numbers
from omstore.rows import CsrCompressedRows, CsrRows, GraphSize, Probabilities, RowEncoding
from omstore.rows.dictionary import DictionaryRows
from omstore.rows.factored import Component, FactoredRows, Factoring
from omstore.rows.patterns import PatternTable

BOUNDARIES = (1 << 31, 1 << 32)
REACH = 5


class Large(Protocol):
    """A graph in closed form."""

    @property
    def size(self) -> GraphSize: ...

    def outdegree(self, row: int) -> int: ...

    def first_edge(self, row: int) -> int: ...

    def next_nodes(self, row: int) -> list[int]: ...


@dataclass(frozen=True)
class Spread:
    """Every row has `degree` successors; they begin somewhere that depends on the row, and are 5 apart."""

    size: GraphSize
    degree: int

    def outdegree(self, row: int) -> int:
        return self.degree

    def first_edge(self, row: int) -> int:
        return row * self.degree

    def next_nodes(self, row: int) -> list[int]:
        first = row * 3 % (self.size.num_nodes - 5 * self.degree)
        return [first + 5 * k for k in range(self.degree)]


@dataclass(frozen=True)
class Repeating:
    """Rows repeat some `shifts`: the differences of their next nodes and their node, ascending in a row.

    Nodes at the ends of the graph would lead outside; they aren't asked for.
    """

    size: GraphSize
    shifts: tuple[tuple[int, ...], ...]

    def outdegree(self, row: int) -> int:
        return len(self.shifts[row % len(self.shifts)])

    def first_edge(self, row: int) -> int:
        rounds, rest = divmod(row, len(self.shifts))
        degrees = [len(each) for each in self.shifts]
        return rounds * sum(degrees) + sum(degrees[:rest])

    def next_nodes(self, row: int) -> list[int]:
        node = row // self.size.num_joint_actions
        return [node + shift for shift in self.shifts[row % len(self.shifts)]]


MIXED = ((0,), (-3, 1, 4), (), (-2, 7))
UNIFORM = ((-1, 0, 2), (-2, 1, 3))


def spread(num_nodes: int, num_joint_actions: int, degree: int) -> Spread:
    return Spread(GraphSize(num_nodes, num_joint_actions, num_nodes * num_joint_actions * degree, 1), degree)


def repeating(num_nodes: int, num_joint_actions: int, shifts: tuple[tuple[int, ...], ...]) -> Repeating:
    rounds, rest = divmod(num_nodes * num_joint_actions, len(shifts))
    assert rest == 0
    num_edges = rounds * sum(len(each) for each in shifts)
    return Repeating(GraphSize(num_nodes, num_joint_actions, num_edges, 1), shifts)


def around(numbers: Iterable[int], most: int) -> list[int]:
    """Numbers near some of them, and near both ends of 0..most-1; ascending."""
    near = {n + shift for n in (*numbers, 0, most) for shift in range(-REACH, REACH + 1)}
    return sorted(n for n in near if 0 <= n < most)


def rows_of_interest(graph: Large, margin: int = 0) -> list[int]:
    """Rows near the boundaries of rows, of edges and of nodes that the graph has; at the ends of the graph, or
    `margin` nodes inside."""
    size = graph.size
    per_row = size.num_edges / size.num_rows
    rows = [n for n in BOUNDARIES if n < size.num_rows]
    rows += [int(n / per_row) for n in BOUNDARIES if n < size.num_edges]
    rows += [n * size.num_joint_actions for n in BOUNDARIES if n < size.num_nodes]
    assert rows
    first, last = margin * size.num_joint_actions, (size.num_nodes - margin) * size.num_joint_actions
    return [row for row in around([*rows, first, last], size.num_rows) if first <= row < last]


def sparse(path: Path, length: int, dtype: Any, pieces: dict[int, NDArray[Any]]) -> NDArray[Any]:
    """Map a file of `length` elements, of which only some pieces are written: position -> values."""
    dtype = np.dtype(dtype)
    with path.open("wb") as file:
        for start, values in pieces.items():
            file.seek(start * dtype.itemsize)
            file.write(np.ascontiguousarray(values, dtype).tobytes())
        file.truncate(length * dtype.itemsize)
    return np.memmap(path, dtype, "r", shape=(length,))


def check(encoding: RowEncoding, graph: Large, rows: list[int]) -> None:
    """Compare everything an encoding answers for some rows with the closed form."""
    shuffled = np.random.default_rng(0).permutation(rows)
    degrees = [graph.outdegree(row) for row in shuffled.tolist()]
    assert encoding.outdegree(shuffled).tolist() == degrees
    found = encoding.gather(shuffled, edges=True)
    assert found.offsets.tolist() == np.cumsum([0, *degrees]).tolist()
    assert found.next_node.tolist() == [n for row in shuffled.tolist() for n in graph.next_nodes(row)]
    assert found.edge is not None
    assert found.edge.tolist() == [
        graph.first_edge(row) + k
        for row, count in zip(shuffled.tolist(), degrees, strict=True)
        for k in range(count)
    ]
    for part in (0.1, 0.5, 0.99):
        legal = np.array([row for row in rows if graph.outdegree(row)])
        degree = max(graph.outdegree(row) for row in rows)
        drawn = encoding.sample(
            legal, np.full(len(legal), part), Probabilities("graph", np.array([1 / degree]))
        )
        at = [min(int(part * degree), graph.outdegree(row) - 1) for row in legal.tolist()]
        assert drawn.edge.tolist() == [
            graph.first_edge(row) + k for row, k in zip(legal.tolist(), at, strict=True)
        ]
        assert drawn.next_node.tolist() == [
            graph.next_nodes(row)[k] for row, k in zip(legal.tolist(), at, strict=True)
        ]
    for start, stop in runs(rows):
        seen = start
        for chunk in encoding.sweep(start, stop, 3):
            assert (chunk.first_row, chunk.first_edge) == (seen, graph.first_edge(seen))
            for i in range(len(chunk.offsets) - 1):
                nodes = chunk.next_node[chunk.offsets[i] : chunk.offsets[i + 1]]
                assert nodes.tolist() == graph.next_nodes(seen)
                seen += 1
        assert seen == stop


def runs(rows: list[int]) -> list[tuple[int, int]]:
    """Cut ascending numbers into runs of consecutive ones."""
    ends = [i for i in range(1, len(rows) + 1) if i == len(rows) or rows[i] != rows[i - 1] + 1]
    return [(rows[a], rows[b - 1] + 1) for a, b in zip([0, *ends], ends, strict=False)]


# csr


def csr(folder: Path, graph: Large, rows: list[int], *, offsets: bool, degree: int | None) -> CsrRows:
    size = graph.size
    dtype = np.uint32 if size.num_nodes < 1 << 32 else np.uint64
    edges = {graph.first_edge(row): np.array(graph.next_nodes(row)) for row in rows}
    next_node = sparse(folder / "next_node", size.num_edges, dtype, edges)
    if not offsets:
        return CsrRows(size, None, next_node, None, degree)
    bounds = {row: np.array([graph.first_edge(row), graph.first_edge(row + 1)]) for row in rows}
    return CsrRows(size, sparse(folder / "offsets", size.num_rows + 1, np.uint64, bounds), next_node, None)


@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize(
    "graph",
    [
        spread(70_000, 1 << 16, 3),  # 4,587,520,000 rows, three times as many edges
        spread((1 << 32) + 1000, 1, 2),  # nodes beyond 2^32
        spread((1 << 32) - 1, 1, 1),  # the last node that takes 32 bits
        spread((1 << 31) + 9, 2, 1),
    ],
    ids=["rows", "nodes", "last-of-32-bits", "2^31"],
)
def test_csr(tmp_path: Path, graph: Spread, offsets: bool) -> None:
    rows = rows_of_interest(graph)
    check(csr(tmp_path, graph, rows, offsets=offsets, degree=graph.degree), graph, rows)


# csr-compressed: the chunks repeat, so all entries of a shard's index lead to the same compressed chunk


def repeated_cold(folder: Path, length: int, chunk: NDArray[Any]) -> None:
    """Write a cold array of any length whose inner chunks are all the same."""
    metadata = cold_metadata(length, (), chunk.dtype, len(chunk), False, 3)
    data = ChunkCoder.from_metadata(metadata, folder).encode(chunk)
    path = chunk_file(folder, 1)
    path.parent.mkdir(parents=True)
    entries = np.tile(np.array([0, len(data)], np.uint64), (-(-length // len(chunk)), 1))
    path.write_bytes(data + encode_index(entries))
    write_array_metadata(folder, metadata)


@pytest.mark.parametrize(
    "graph",
    [
        repeating(70_000, 1 << 16, MIXED),
        repeating(70_000, 1 << 16, UNIFORM),
        repeating((1 << 32) + 1000, 1, UNIFORM),
        repeating((1 << 32) + 1000, 1, MIXED),
    ],
    ids=["mixed", "uniform", "uniform-nodes", "mixed-nodes"],
)
def test_csr_compressed(tmp_path: Path, graph: Repeating) -> None:
    size = graph.size
    shifts = [shift for each in graph.shifts for shift in each]
    delta = np.dtype(np.int32 if size.num_nodes < 1 << 31 else np.int64)
    edges = len(shifts) << 15
    repeated_cold(
        tmp_path / "rows/next_node_delta", size.num_edges, np.resize(np.array(shifts, delta), edges)
    )
    description: dict[str, Any] = {"num_outcomes": 1}
    if graph.shifts is UNIFORM:
        description["outdegree"] = 3
    else:
        block = 1 << 20
        degrees = np.array([len(each) for each in graph.shifts], np.uint32)
        repeated_cold(tmp_path / "rows/outdegree", size.num_rows, np.resize(degrees, block))
        blocks = -(-size.num_rows // block)
        offsets = [graph.first_edge(min(i * block, size.num_rows)) for i in range(blocks + 1)]
        write_hot(tmp_path / "rows/block_offsets", np.array(offsets, np.uint64))
    check(CsrCompressedRows(tmp_path, description, size), graph, rows_of_interest(graph, 10))


# dictionary


def pattern_table(graph: Repeating, step: int = 1, **places: Any) -> PatternTable:
    """Make one block for all nodes; differences of positions are `step` times those of nodes."""
    size = graph.size
    positions = len(places["node_at"]) if places else size.num_nodes
    lengths = [len(each) for each in graph.shifts]
    return PatternTable(
        size.num_nodes,
        1,
        np.resize(np.arange(len(lengths), dtype=np.uint32), (1, size.num_joint_actions)),
        np.cumsum([0, *lengths]).astype(np.uint64),
        np.array(
            [shift * step for each in graph.shifts for shift in each],
            np.int32 if positions <= 1 << 31 else np.int64,
        ),
        **places,
    )


@pytest.mark.parametrize(
    "graph",
    [repeating(70_000, 1 << 16, MIXED), repeating((1 << 32) + 1000, 4, MIXED)],
    ids=["rows", "nodes"],
)
def test_dictionary(tmp_path: Path, graph: Repeating) -> None:
    size = graph.size
    rows = rows_of_interest(graph, 10)
    nodes = {row // size.num_joint_actions for row in rows} | {0, size.num_nodes - 1}
    firsts = {
        node: np.array([graph.first_edge((node + i) * size.num_joint_actions) for i in (0, 1)])
        for node in nodes
    }
    first_edge = sparse(tmp_path / "first_edge", size.num_nodes + 1, np.uint64, firsts)
    block = sparse(tmp_path / "block", size.num_nodes, np.uint32, {})
    check(DictionaryRows(size, pattern_table(graph), block, first_edge), graph, rows)


def test_dictionary_of_more_positions_than_2_to_the_32(tmp_path: Path) -> None:
    graph = repeating(1000, 4, MIXED)
    step = 1 << 23
    rows = list(range(4 * 200, 4 * 205)) + list(range(4 * 254, 4 * 258)) + list(range(4 * 510, 4 * 514))
    nodes = np.arange(1000)
    places = {int(node) * step: np.array([node]) for node in nodes}
    node_at = sparse(tmp_path / "node_at", 1000 * step, np.uint32, places)
    assert 510 * step < 1 << 32 < 514 * step
    first_edge = np.array([graph.first_edge(4 * node) for node in range(1001)], np.uint64)
    encoding = DictionaryRows(
        graph.size,
        pattern_table(graph, step, node_at=node_at),
        np.zeros(1000, np.uint32),
        first_edge,
        (nodes * step).astype(np.uint64),
    )
    check(encoding, graph, rows)


# factored


@dataclass(frozen=True)
class Independent:
    """Two agents move independently, each to `degree` of its local states; `frozen` nodes are absorbing."""

    sizes: tuple[int, int]
    actions: tuple[int, int]
    degree: int = 2
    frozen: tuple[int, ...] = ()

    @property
    def size(self) -> GraphSize:
        nodes, actions = math.prod(self.sizes), math.prod(self.actions)
        fewer = len(self.frozen) * actions * (self.degree**2 - 1)
        return GraphSize(nodes, actions, nodes * actions * self.degree**2 - fewer, 1)

    def local(self, agent: int, state: int, action: int) -> list[int]:
        return sorted((state + action + 7 * j) % self.sizes[agent] for j in range(self.degree))

    def outdegree(self, row: int) -> int:
        return 1 if row // self.size.num_joint_actions in self.frozen else self.degree**2

    def first_edge(self, row: int) -> int:
        width = self.size.num_joint_actions
        node, action = divmod(row, width)
        fewer = sum(width for each in self.frozen if each < node) + action * (node in self.frozen)
        return row * self.degree**2 - fewer * (self.degree**2 - 1)

    def next_nodes(self, row: int) -> list[int]:
        node, action = divmod(row, self.size.num_joint_actions)
        if node in self.frozen:
            return [node]
        states, actions = divmod(node, self.sizes[1]), divmod(action, self.actions[1])
        first, second = (self.local(agent, states[agent], actions[agent]) for agent in (0, 1))
        return [a * self.sizes[1] + b for a in first for b in second]

    def component(self, agent: int) -> Component:
        size, actions = self.sizes[agent], self.actions[agent]
        states, moves = np.divmod(np.arange(size * actions), actions)
        steps = 7 * np.arange(self.degree)
        targets = np.sort((states[:, None] + moves[:, None] + steps) % size, axis=1).reshape(-1)
        return Component(
            agent,
            size,
            actions,
            np.arange(size * actions + 1) * self.degree,
            targets,
            np.full(len(targets), 1 / self.degree),
        )


@pytest.mark.parametrize(
    "graph",
    [
        Independent((256, 300), (256, 256)),  # 5,033,164,800 rows, four times as many edges
        Independent((70_000, 61_400), (2, 2)),  # 4,298,000,000 nodes
        Independent((70_000, 61_400), (2, 1), frozen=((1 << 31) - 1, (1 << 32) - 2, (1 << 32) + 1)),
    ],
    ids=["rows", "nodes", "exceptions"],
)
def test_factored(tmp_path: Path, graph: Independent) -> None:
    size = graph.size
    rows = rows_of_interest(graph)
    nodes = {row // size.num_joint_actions for row in rows}
    firsts = {
        node: np.array([graph.first_edge((node + i) * size.num_joint_actions) for i in (0, 1)])
        for node in nodes | {0, size.num_nodes - 1}
    }
    first_edge = sparse(tmp_path / "first_edge", size.num_nodes + 1, np.uint64, firsts)
    exceptions: dict[str, Any] = {}
    if graph.frozen:
        stay = (
            np.zeros((1, size.num_joint_actions), np.uint32),
            np.array([0, 1], np.uint64),
            np.zeros(1, np.int64),
        )
        exceptions["exceptions"] = PatternTable(size.num_nodes, 1, *stay)
        blocks = {node: np.array([1]) for node in graph.frozen}
        exceptions["block"] = sparse(tmp_path / "block", size.num_nodes, np.uint8, blocks)
        exceptions["exception_probability"] = np.ones(1)
    factoring = Factoring((graph.component(0), graph.component(1)))
    check(FactoredRows(size, factoring, first_edge, **exceptions), graph, rows)


# above the encodings


def test_row_numbers_of_nodes_and_joint_actions() -> None:
    nodes = np.array([0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32])
    actions = np.array([624, 0, 1, 623, 624])
    numbers = np.empty(5, np.int64)
    assert row_numbers(nodes, actions, (1 << 32) + 1, 625, numbers) == -1
    expected = [int(n) * 625 + int(a) for n, a in zip(nodes, actions, strict=True)]
    assert numbers.tolist() == expected
