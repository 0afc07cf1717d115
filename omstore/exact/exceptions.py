"""Rows of a factored graph that don't factor, as kernels read them."""

from __future__ import annotations

import numpy as np

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.exact.exception_kernels import Patterns
from omstore.exact.gains import Terms
from omstore.read.graph import Graph
from omstore.rows import FactoredRows
from omstore.rows.patterns import NO_PATTERN

__all__ = ["marked_are_exceptions", "patterns_of"]

_HINT = "Convert or build the store again."


def patterns_of(graph: Graph, encoding: FactoredRows) -> Patterns:
    """Lay out the rows that don't factor."""
    exceptions = encoding.exceptions
    nothing = as_input(np.empty(0), np.uint32)
    if exceptions is None:
        none = as_input(np.empty(0), np.uint64)
        return Patterns(
            nothing,
            as_input(np.empty((0, 1)), np.uint32),
            as_input(np.empty(0), np.int64),
            none,
            as_input(np.empty(0), np.int32),
            nothing,
            none,
            as_input(np.empty(0), np.uint8),
            as_input(np.empty(0), np.float64),
        )
    patterns = exceptions.block_pattern
    same = np.where((patterns == patterns[:, :1]).all(axis=1), patterns[:, 0].astype(np.int64), -1)
    same[same == NO_PATTERN] = -1
    chances = encoding.exception_probability
    return Patterns(
        encoding.block,
        patterns,
        as_input(same, np.int64),
        exceptions.pattern_offsets,
        exceptions.delta,
        exceptions.pattern_list,
        exceptions.list_offsets,
        exceptions.list_code,
        as_input(
            np.asarray(graph.attribute("probability").values if chances is None else chances), np.float64
        ),
    )


def marked_are_exceptions(terms: Terms, encoding: FactoredRows) -> bool:
    """Whether all rows of nodes with a reward of their own are patterns."""
    marked = terms.marked_nodes()
    if not marked.any():
        return True
    if encoding.exceptions is None:
        return False
    blocks = np.asarray(encoding.block)[marked].astype(np.int64)
    if int(blocks.max()) > encoding.exceptions.num_blocks:
        raise CorruptStoreError("rows/exceptions/block names a block that doesn't exist", _HINT)
    whole = np.concatenate(([False], (encoding.exceptions.block_pattern != NO_PATTERN).all(axis=1)))
    return bool(whole[blocks].all())
