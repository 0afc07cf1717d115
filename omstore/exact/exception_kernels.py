"""Expected returns of rows that don't factor, from their patterns; compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import inlined_kernel, inner_kernel, kernel
from omstore.rows.patterns import NO_PATTERN

__all__ = [
    "BAD_BLOCK",
    "BAD_CODE",
    "BAD_NODE",
    "NO_BLOCK",
    "OK",
    "Patterns",
    "back_up_nodes",
    "back_up_rows",
    "find_node",
    "push_nodes",
]

OK, BAD_NODE, BAD_CODE, BAD_BLOCK = 0, 1, 2, 3

NO_BLOCK = -2
"""Of a node whose block doesn't exist."""


class Patterns(NamedTuple):
    """Patterns of a table (`omstore.rows.patterns.PatternTable`), and which nodes have them.

    `block` is 1 + the block of each node, 0: all its rows factor; `block_same` the pattern of all rows of a block, -1
    where they differ; `chance_of` the probabilities of outcome codes.
    """

    block: NDArray[Any]
    block_pattern: NDArray[np.uint32]
    block_same: NDArray[np.int64]
    offsets: NDArray[np.uint64]
    delta: NDArray[np.int32]
    list_of: NDArray[np.uint32]
    list_offsets: NDArray[np.uint64]
    list_code: NDArray[Any]
    chance_of: NDArray[np.float64]


@inlined_kernel
def find_node(number: Any, node_at: Any, num_nodes: Any, block: Any, block_same: Any) -> tuple[Any, Any]:
    """Return the node with a product number, -1 where there is none, and its block: -1 where all its rows factor.

    Parameters
    ----------
    number : int
        Within the product numbers.
    node_at : (products,) unsigned integers, or empty
        Product number -> node (N: no node); empty where they are equal.
    num_nodes : int
    block : (N,) unsigned integers, or empty
        1 + the node's block of patterns; 0: all rows factor.
    block_same : (blocks,) int64
    """
    node = np.int64(node_at[number]) if node_at.size else np.int64(number)
    if node < 0 or node >= num_nodes:
        node = np.int64(-1)
    which = np.int64(block[node]) - 1 if node >= 0 and block.size else np.int64(-1)
    if which >= block_same.size:
        which = np.int64(NO_BLOCK)
    return node, which


@inner_kernel
def _row_of_pattern(
    node: Any, pattern: Any, num_nodes: Any, product: Any, gain: Any, start: Any, patterns: Any
) -> tuple[int, float]:
    """Return the expected return of a row, NaN where it isn't legal; patterns are checked, nodes and codes aren't."""
    begin, end = np.int64(patterns.offsets[pattern]), np.int64(patterns.offsets[pattern + 1])
    if begin == end:
        return OK, np.nan
    coded = patterns.list_of.size > 0
    codes = np.int64(patterns.list_offsets[patterns.list_of[pattern]]) if coded else 0
    total = 0.0
    for entry in range(begin, end):
        follows = node + np.int64(patterns.delta[entry])
        if follows < 0 or follows >= num_nodes:
            return BAD_NODE, 0.0
        at = np.int64(product[follows]) if product.size else follows
        if at < 0 or at >= gain.size:
            return BAD_NODE, 0.0
        code = np.int64(patterns.list_code[codes + entry - begin]) if coded else 0
        if code >= patterns.chance_of.size:
            return BAD_CODE, 0.0
        total += patterns.chance_of[code] * (start + gain[at])
    return OK, total


@kernel
def back_up_rows(
    first: Any, stop: Any, product: Any, node_at: Any, num_nodes: Any, patterns: Any,
    table: Any, plain: Any, base: Any, marked: Any, out: Any,
) -> tuple[int, int]:  # fmt: skip
    """Write the rows that don't factor, of nodes with product numbers first..stop-1, among all rows of these nodes.

    Parameters
    ----------
    first, stop : int
    product, node_at : (N,), (products,) unsigned integers, or empty
        Node -> product number, and back (N: no node); empty where they are equal.
    patterns : Patterns
    table, plain, base, marked : arrays
        Of `omstore.exact.gains.Gains`, by product number.
    out : (nodes * A,) float64
        NaN where a row isn't legal.

    Returns
    -------
    status, node : int
        ``OK``, or what is wrong with the node.
    """
    num_joint = patterns.block_pattern.shape[1]
    block, block_same = patterns.block, patterns.block_same
    written = 0
    for number in range(first, stop):
        node, which = find_node(number, node_at, num_nodes, block, block_same)
        if node < 0:
            continue
        if which == NO_BLOCK:
            return BAD_BLOCK, node
        if which >= 0:
            gain, start = table, 0.0
            if marked.size and marked[node]:
                gain, start = plain, base[node]
            same = block_same[which]
            status, worth = OK, 0.0
            for joint in range(num_joint):
                pattern = np.int64(patterns.block_pattern[which, joint])
                if pattern == NO_PATTERN:
                    continue
                if same < 0 or joint == 0:
                    status, worth = _row_of_pattern(node, pattern, num_nodes, product, gain, start, patterns)
                    if status != OK:
                        return status, node
                out[written * num_joint + joint] = worth
        written += 1
    return OK, written


@kernel
def back_up_nodes(
    first: Any, stop: Any, product: Any, node_at: Any, num_nodes: Any, patterns: Any,
    table: Any, plain: Any, base: Any, marked: Any, out: Any, chosen: Any,
) -> tuple[int, int]:  # fmt: skip
    """Write the values of nodes all of whose rows are the same pattern, whoever plays what; arguments as for
    `back_up_rows`.

    Parameters
    ----------
    out : (nodes,) float64
        0 where no row is legal.
    chosen : (nodes,) int64, or empty
        Action 0, or -1 where no row is legal.
    """
    block, block_same = patterns.block, patterns.block_same
    written = 0
    for number in range(first, stop):
        node, which = find_node(number, node_at, num_nodes, block, block_same)
        if node < 0:
            continue
        if which == NO_BLOCK:
            return BAD_BLOCK, node
        if which >= 0:
            gain, start = table, 0.0
            if marked.size and marked[node]:
                gain, start = plain, base[node]
            same = block_same[which]
            status, worth = _row_of_pattern(node, same, num_nodes, product, gain, start, patterns)
            if status != OK:
                return status, node
            legal = worth == worth
            out[written] = worth if legal else 0.0
            if chosen.size:
                chosen[written] = 0 if legal else -1
        written += 1
    return OK, written


@kernel
def push_nodes(
    first: Any, stop: Any, product: Any, node_at: Any, num_nodes: Any, patterns: Any, mass: Any, out: Any
) -> tuple[int, int]:
    """Move the mass on nodes all of whose rows are the same pattern; arguments as for `back_up_rows`.

    Parameters
    ----------
    mass : (N,) float64
    out : (products,) float64
        Added to: mass that comes.
    """
    block, block_same = patterns.block, patterns.block_same
    for number in range(first, stop):
        node, which = find_node(number, node_at, num_nodes, block, block_same)
        if node < 0:
            continue
        if which == NO_BLOCK:
            return BAD_BLOCK, node
        if which < 0 or mass[node] == 0.0:
            continue
        pattern = block_same[which]
        begin, end = np.int64(patterns.offsets[pattern]), np.int64(patterns.offsets[pattern + 1])
        coded = patterns.list_of.size > 0
        codes = np.int64(patterns.list_offsets[patterns.list_of[pattern]]) if coded else 0
        for entry in range(begin, end):
            follows = node + np.int64(patterns.delta[entry])
            if follows < 0 or follows >= num_nodes:
                return BAD_NODE, node
            at = np.int64(product[follows]) if product.size else follows
            if at < 0 or at >= out.size:
                return BAD_NODE, node
            code = np.int64(patterns.list_code[codes + entry - begin]) if coded else 0
            if code >= patterns.chance_of.size:
                return BAD_CODE, node
            out[at] += mass[node] * patterns.chance_of[code]
    return OK, 0
