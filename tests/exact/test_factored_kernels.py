"""Kernels on components of every shape, against dense tensors: sums of all widths, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from omstore.compiled import as_input
from omstore.exact import factored_kernels
from omstore.exact.stages import Stages
from omstore.rows.factored_tables import Component


def random_component(
    rng: np.random.Generator, agent: int | None, size: int, actions: int, empty: float
) -> Component:
    """Up to `size` outcomes a pair; some pairs have none."""
    counts = rng.integers(1, size + 1, size * actions)
    counts[rng.random(len(counts)) < empty] = 0
    nexts = [np.sort(rng.choice(size, count, replace=False)) for count in counts]
    chances = [rng.dirichlet(np.ones(count)) for count in counts if count]
    return Component(
        agent,
        size,
        actions,
        np.concatenate(([0], np.cumsum(counts))),
        np.concatenate(nexts).astype(np.int64),
        np.concatenate(chances),
    )


def dense(part: Component) -> np.ndarray:
    """(size, actions, size) probabilities; NaN where the pair has no outcomes."""
    out = np.zeros((part.num_pairs, part.size))
    for pair in range(part.num_pairs):
        one = slice(part.offsets[pair], part.offsets[pair + 1])
        out[pair, part.next_state[one]] = part.probability[one]
        if one.start == one.stop:
            out[pair] = np.nan
    return out.reshape(part.size, part.num_actions, part.size)


def all_rows(parts: Sequence[Component], table: np.ndarray) -> np.ndarray:
    """(products, joint actions) expected gains, agents in the order of the components."""
    values = table.reshape([part.size for part in parts])
    for number in range(len(parts) - 1, -1, -1):
        # the component's axis becomes (state, action); those behind it are there already
        values = np.moveaxis(np.tensordot(dense(parts[number]), values, (2, number)), (0, 1), (-2, -1))
        values = np.moveaxis(values, -2, number)
    count = len(parts)
    order = list(range(count)) + list(range(2 * count - 1, count - 1, -1))
    return values.transpose(order).reshape(table.size, -1)


@pytest.mark.parametrize(
    ("sizes", "actions", "empty"),
    [
        ((3, 2), (2, 3), 0.0),
        ((2, 3), (1, 1), 0.3),
        ((5, 44), (2, 3), 0.0),
        ((4, 7, 5), (3, 2, 4), 0.0),
        ((4, 7, 5), (3, 2, 4), 0.2),
        ((3, 6, 9), (9, 7, 2), 0.1),
        ((2, 45, 3), (5, 23, 2), 0.0),
    ],
)
def test_every_width(sizes, actions, empty):
    rng = np.random.default_rng(sum(sizes))
    parts = [
        random_component(rng, k, *pair, empty) for k, pair in enumerate(zip(sizes, actions, strict=True))
    ]
    stages = Stages.of(parts, actions)
    table = rng.normal(size=int(np.prod(sizes)))
    expected = all_rows(parts, table)
    nothing = as_input(np.empty(0), np.uint32)
    where = nothing, len(table), nothing, as_input(np.empty(0), np.int64), as_input(table, np.float64)

    rows = np.empty(expected.size)
    joint = stages.joint_head, stages.joint_action
    arguments = (*stages.plan, *where, *stages.buffers())
    assert factored_kernels.back_up_products(0, len(table), *joint, *arguments, rows) == (0, len(table))
    assert np.allclose(rows.reshape(expected.shape), expected, rtol=0, atol=1e-13, equal_nan=True)

    best = np.empty(len(table))
    assert stages.whole
    assert factored_kernels.best_products(0, len(table), *arguments, best) == (0, len(table))
    legal = ~np.isnan(expected)
    most = np.where(legal.any(axis=1), np.where(legal, expected, -np.inf).max(axis=1), 0.0)
    assert np.allclose(best, most, rtol=0, atol=1e-13)
    pieces = np.empty(len(table))
    for first in range(0, len(table), 7):  # whatever was staged before
        stop = min(first + 7, len(table))
        factored_kernels.best_products(first, stop, *stages.plan, *where, *stages.buffers(), pieces[first:])
    assert pieces.tobytes() == best.tobytes()
