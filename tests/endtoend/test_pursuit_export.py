"""The stochastic pursuit export of two agents, through conversion, against an enumeration of its own.

The enumeration shares no code with the world that made the export: it walks over cells, and multiplies what
each agent's action may lead to.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.convert import ConvertOptions, convert
from omstore.inspect import verify
from tests.endtoend.compare import check_replay
from tools.exports.spec import ExportSpec
from tools.make_export import Truth, write_export

MAP = ["....#..", ".#.....", ".......", ".......", "..#....", "..#....", "......#"]
FREE = [(r, c) for r in range(7) for c in range(7) if MAP[r][c] == "."]
STEPS = [(0, 0), (-1, 0), (1, 0), (0, 1), (0, -1)]
SLIP = 0.1
Cell = tuple[int, int]

Exported = tuple[Path, Truth]


@pytest.fixture(scope="module", params=["auto", "csr", "csr-compressed"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Adjacency by state, shuffled, with bytes for states: far from how the store has it."""
    folder = tmp_path_factory.mktemp("pursuit")
    spec = ExportSpec(
        agents=2, slip=SLIP, transitions=2000, graph="adjacency2", endpoints="bytes", nodes="dict-state-id",
        ids="shuffled", record="tuple", reward="tuple", shuffle=True, share=True, off_graph=11, replay="ring",
    )  # fmt: skip
    truth = write_export(folder, spec)
    convert(folder, ConvertOptions(rows=request.param, max_ram=128 << 20))
    return folder, truth


def vector(cells: tuple[Cell, Cell]) -> bytes:
    """One-hot over the padded 7x7 grid, for each agent."""
    bits = np.zeros((2, 7, 7), np.uint8)
    for agent, (row, column) in enumerate(cells):
        bits[agent, row, column] = 1
    return bits.tobytes()


def one_agent(cell: Cell, action: int) -> dict[Cell, float]:
    """Where an agent may end, and how probably; ``stay`` never slips."""
    outcome: dict[Cell, float] = defaultdict(float)
    for other, (dr, dc) in enumerate(STEPS):
        probability = float(other == action) if action == 0 else 1 - SLIP if other == action else SLIP / 4
        there = (cell[0] + dr, cell[1] + dc)
        if probability:
            outcome[there if there in FREE else cell] += probability
    return outcome


def enumerated() -> Iterator[tuple[bytes, int, dict[bytes, tuple[float, float, bool]]]]:
    """State, joint action, and by next state the probability, the evader's reward and done."""
    kernels = {(cell, action): one_agent(cell, action) for cell in FREE for action in range(5)}
    vectors = {pair: vector(pair) for pair in itertools.product(FREE, FREE)}
    for (pursuer, evader), state in vectors.items():
        for a, b in itertools.product(range(5), range(5)):
            if pursuer == evader:
                yield state, 5 * a + b, {state: (1.0, 0.0, True)}
                continue
            yield state, 5 * a + b, {
                vectors[x, y]: (p * q, -1.0 if x == y else 0.01, x == y)
                for x, p in kernels[pursuer, a].items()
                for y, q in kernels[evader, b].items()
            }  # fmt: skip


def test_every_edge_is_the_enumerations(exported: Exported) -> None:
    folder, _ = exported
    with omstore.open(folder) as store:
        graph = store.graph
        assert (graph.num_nodes, graph.num_edges, graph.agents) == (1936, 571_152, ("pursuer_0", "evader"))
        states = [state.tobytes() for state in graph.states(np.arange(graph.num_nodes))]
        sweep = {}
        for chunk in graph.sweep(5000):
            found = chunk.successors
            for i, row in enumerate(chunk.rows.tolist()):
                part = slice(found.offsets[i], found.offsets[i + 1])
                sweep[row] = (
                    found.next_node[part],
                    found.probability[part],
                    found.reward[part],
                    found.done[part],
                )
    node = {state: number for number, state in enumerate(states)}
    assert states == sorted(states)
    seen = 0
    for state, joint, outcomes in enumerated():
        next_node, probability, reward, done = (column.tolist() for column in sweep[node[state] * 25 + joint])
        assert sorted(next_node) == sorted(node[next_state] for next_state in outcomes)
        for i, to in enumerate(next_node):
            expected, evaders, ends = outcomes[states[to]]
            assert math.isclose(probability[i], expected, rel_tol=1e-12)
            assert (reward[i], done[i]) == ([-evaders if evaders else 0.0, evaders], ends)
        seen += 1
    assert seen == len(sweep) == 1936 * 25


def test_what_was_replayed(exported: Exported) -> None:
    folder, truth = exported
    with omstore.open(folder) as store:
        graph = store.graph
        node_of = dict(zip(graph.legacy_ids(np.arange(1936)).tolist(), range(1936), strict=True))
        check_replay(store.replay, truth, node_of)
        assert store.replay.off_graph == 11
    assert verify(folder, against=folder).ok


def test_samples_come_as_often_as_they_are_probable(exported: Exported) -> None:
    """One row drawn 20,000 times: no count further from its expectation than five standard deviations."""
    folder, _ = exported
    with omstore.open(folder) as store:
        graph = store.graph
        found = graph.outdegree(*np.divmod(np.arange(graph.num_rows), 25))
        node, joint = divmod(int(np.argmax(found)), 25)
        row = graph.successors([node], [joint])
        count = 20_000
        drawn = graph.sample(np.full(count, node), np.full(count, joint), np.random.default_rng(7))
    counts = np.array([(drawn.next_node == to).sum() for to in row.next_node])
    assert counts.sum() == count
    spread = np.sqrt(count * row.probability * (1 - row.probability))
    assert (np.abs(counts - count * row.probability) < 5 * spread).all()
