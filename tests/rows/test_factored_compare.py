"""Rows compared with a factoring by vectors: every edge counts, wherever it lies in a vector, a row or a chunk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from omstore.rows.encoding import GraphSize, RowChunk
from omstore.rows.factored import Component, FactoredRows, Factoring


def _component(agent: int, size: int, codes: int) -> Component:
    """Go anywhere with equal chance; the class is the distance modulo `codes`."""
    states = np.tile(np.arange(size), size)
    origin = np.repeat(np.arange(size), size)
    return Component(
        agent,
        size,
        1,
        np.arange(size + 1) * size,
        states,
        np.full(size * size, 1.0 / size),
        (states - origin) % codes,
        codes,
    )


def _world(
    sizes: tuple[int, ...], codes: int, num_outcomes: int, shift: int
) -> tuple[FactoredRows, RowChunk]:
    """All rows made by hand, as one chunk: an edge to every node, its code the combination's number + shift."""
    components = [_component(agent, size, codes) for agent, size in enumerate(sizes)]
    nodes = int(np.prod(sizes))
    digits = np.stack(np.unravel_index(np.arange(nodes), sizes), axis=1)
    apart = (digits[None, :, :] - digits[:, None, :]) % codes
    number = np.zeros((nodes, nodes), np.int64)
    for agent in range(len(sizes)):
        number = number * codes + apart[:, :, agent]
    size = GraphSize(nodes, 1, nodes * nodes, num_outcomes)
    combination = np.arange(codes ** len(sizes)) + shift
    rows = FactoredRows(size, Factoring(components, combination), np.arange(nodes + 1) * nodes)
    chunk = RowChunk(
        0,
        0,
        np.arange(nodes + 1) * nodes,
        np.tile(np.arange(nodes), nodes).astype(np.uint32),
        (number.reshape(-1) + shift).astype(np.uint8),
    )
    return rows, chunk


@pytest.mark.parametrize("sizes", [(1,), (3,), (9,), (3, 5), (2, 8), (2, 3, 3), (5, 17)])
def test_every_edge_is_compared(sizes: tuple[int, ...]) -> None:
    rows, chunk = _world(sizes, 2, 200, 7)
    assert chunk.outcome is not None
    assert rows.matches(chunk) == -1
    width = len(chunk.offsets) - 1
    for edge in range(len(chunk.next_node)):
        nodes, codes = chunk.next_node.copy(), chunk.outcome.copy()
        nodes[edge] += 1
        codes[edge] += 1
        assert rows.matches(replace(chunk, next_node=nodes)) == edge // width
        assert rows.matches(replace(chunk, outcome=codes)) == edge // width


def test_what_never_occurs_is_no_code() -> None:
    """With 256 outcomes, codes have 8 bits: -1, held as 256, must not become 0."""
    rows, chunk = _world((2, 3), 2, 256, 0)
    assert rows.matches(chunk) == -1
    combination = np.arange(4)
    combination[0] = -1
    never = FactoredRows(rows.size, replace(rows.factoring, combination=combination), rows.first_edge)
    assert never.matches(chunk) == 0
    assert len(never.find_different(chunk)) == 6  # each row stays in its place with code 0
