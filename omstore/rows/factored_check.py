"""Checking a factored graph's arrays against each other, without making its edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError
from omstore.rows.factored_tables import Factoring
from omstore.rows.patterns import NO_PATTERN, PatternTable

if TYPE_CHECKING:
    from omstore.rows.factored import FactoredRows

__all__ = ["check_combination", "check_structure"]

_HINT = "Convert or build the store again."
_TOLERANCE = 1e-9
_PIECE = 1 << 20  # nodes, or product numbers, at a time


def check_structure(rows: FactoredRows) -> None:
    """Check product numbers, exceptions and first edges; memory: about 40 MiB, and 16 bytes a block.

    Raises
    ------
    CorruptStoreError
        Naming the array, and the first place in it that is wrong.
    """
    _check_products(rows)
    if rows.exceptions is not None:
        rows.exceptions.verify()
        _check_exceptions(rows, rows.exceptions)
    _check_first_edges(rows)


def check_combination(factoring: Factoring, table: NDArray[np.float64]) -> None:
    """Compare the products of the components' probabilities with those of their codes.

    Parameters
    ----------
    factoring : Factoring
        With a combination.
    table : (K,) or (1,) float64
        Probabilities by outcome code, or one for all.

    Raises
    ------
    CorruptStoreError
        Naming the first combination of classes that isn't, within 1e-9.
    """
    assert factoring.combination is not None  # the caller looked
    products = np.ones(1)
    for number, component in enumerate(factoring.components):
        classes = np.zeros(len(component.next_state), np.int64)
        classes = classes if component.outcome_class is None else component.outcome_class
        lowest, highest = np.full(component.num_classes, np.inf), np.full(component.num_classes, -np.inf)
        np.minimum.at(lowest, classes, component.probability)
        np.maximum.at(highest, classes, component.probability)
        used = highest >= lowest
        if not (highest[used] - lowest[used] <= _TOLERANCE).all():
            raise CorruptStoreError(
                f"rows/kernel_class: a class of component {number} has several probabilities", _HINT
            )
        # A class that no outcome has makes nan, which is no difference.
        products = (products[:, None] * np.where(used, highest, np.nan)).reshape(-1)
    codes = factoring.combination
    expected = table[np.where(codes < 0, 0, codes)] if len(table) > 1 else np.full(len(codes), table[0])
    wrong = (np.abs(products - expected) > _TOLERANCE * np.maximum(products, expected)) & (codes >= 0)
    if wrong.any():
        place = int(np.argmax(wrong))
        raise CorruptStoreError(
            f"rows/combination: element {place} has outcome code {codes[place]} of probability "
            f"{expected[place]!r}, but the kernels make {products[place]!r}",
            _HINT,
        )


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, _PIECE):
        yield first, min(first + _PIECE, count)


def _check_products(rows: FactoredRows) -> None:
    product, node_at = rows.factoring.product, rows.node_at
    if product is None or node_at is None:
        return
    num_products, before = rows.factoring.num_products, -1
    for first, stop in _pieces(rows.size.num_nodes):
        numbers = product[first:stop]
        outside = numbers >= num_products
        if outside.any():
            _damaged("product", first + int(np.argmax(outside)), f"isn't within 0 to {num_products - 1:,}")
        numbers = numbers.astype(np.int64)
        wrong = node_at[numbers] != np.arange(first, stop, dtype=np.uint64).astype(node_at.dtype)
        if wrong.any():
            _damaged("product", first + int(np.argmax(wrong)), "isn't what rows/node_at leads back from")
        if rows.ordered:
            falls = np.diff(numbers, prepend=before) <= 0
            if falls.any():
                _damaged("product", first + int(np.argmax(falls)), "doesn't ascend, as the manifest says")
            before = int(numbers[-1])
    there = sum(
        int(np.count_nonzero(node_at[first:stop] != rows.size.num_nodes))
        for first, stop in _pieces(num_products)
    )
    if there != rows.size.num_nodes:
        raise CorruptStoreError(f"rows/node_at has {there:,} nodes instead of {rows.size.num_nodes:,}", _HINT)


def _check_exceptions(rows: FactoredRows, exceptions: PatternTable) -> None:
    """Check that patterns exist, and lead from every node that has them to one that exists."""
    lowest, highest = _reach_of_blocks(exceptions)
    num_nodes = rows.size.num_nodes
    for first, stop in _pieces(num_nodes):
        block = rows.block[first:stop].astype(np.int64)
        if len(block) and block.max() > exceptions.num_blocks:
            node = first + int(np.argmax(block > exceptions.num_blocks))
            _damaged("exceptions/block", node, f"isn't within 0 to {exceptions.num_blocks:,}")
        at = np.flatnonzero(block)
        nodes, kinds = at + first, block[at] - 1
        wrong = (nodes + lowest[kinds] < 0) | (nodes + highest[kinds] >= num_nodes)
        if wrong.any():
            node = int(nodes[np.argmax(wrong)])
            _damaged("exceptions/block", node, "has a next node that doesn't exist")


def _reach_of_blocks(exceptions: PatternTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The least and the greatest difference in each block's patterns (0 where there is none)."""
    starts = exceptions.pattern_offsets.astype(np.int64)
    filled = np.diff(starts) > 0
    least, most = (
        np.zeros(exceptions.num_patterns + 1, np.int64),
        np.zeros(exceptions.num_patterns + 1, np.int64),
    )
    least[:-1][filled] = exceptions.delta[starts[:-1][filled]]
    most[:-1][filled] = exceptions.delta[starts[1:][filled] - 1]
    lowest = np.empty(exceptions.num_blocks, np.int64)
    highest = np.empty(exceptions.num_blocks, np.int64)
    step = max(1, _PIECE // max(1, exceptions.block_pattern.shape[1]))
    for first in range(0, exceptions.num_blocks, step):
        patterns = exceptions.block_pattern[first : first + step].astype(np.int64)
        patterns[patterns == NO_PATTERN] = exceptions.num_patterns  # reaches nowhere
        if patterns.max() > exceptions.num_patterns:
            block = first + int(np.argmax((patterns > exceptions.num_patterns).any(axis=1)))
            _damaged("exceptions/block_pattern", block, "names a pattern that doesn't exist")
        lowest[first : first + step] = least[patterns].min(axis=1)
        highest[first : first + step] = most[patterns].max(axis=1)
    return lowest, highest


def _check_first_edges(rows: FactoredRows) -> None:
    first_edge, done = rows.first_edge, 0
    for first, stop in _pieces(rows.size.num_nodes):
        edges = rows.node_edges(first, stop)
        expected = np.cumsum(edges) - edges + done
        wrong = first_edge[first:stop] != expected.astype(np.uint64)
        if wrong.any():
            _damaged("first_edge", first + int(np.argmax(wrong)), "isn't the sum of the outdegrees before")
        done += int(edges.sum())
    if not done == int(first_edge[rows.size.num_nodes]) == rows.size.num_edges:
        raise CorruptStoreError(
            f"rows/first_edge ends at {int(first_edge[-1]):,}; there are {done:,} edges, and the manifest says "
            f"{rows.size.num_edges:,}",
            _HINT,
        )


def _damaged(array: str, place: int, reason: str) -> None:
    raise CorruptStoreError(f"rows/{array}: element {place} is damaged: {reason}", _HINT)
