"""Sorting the edges of a range of nodes into rows, in memory: a counting sort by row, then each row by next
node and code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel

__all__ = ["SortedEdges", "row_sums_off", "rows_agree", "sort_rows", "whole_rows"]

SLICE = 1 << 18
"""Edges (or rows) handed to the row writer at a time."""


@kernel
def _count_rows(rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
    for i in range(rows.shape[0]):
        offsets[rows[i] + 1] += 1
    for r in range(1, offsets.shape[0]):
        offsets[r] += offsets[r - 1]


@kernel
def _place(
    rows: NDArray[np.int64],
    next_node: NDArray[np.int64],
    code: NDArray[np.int32],
    offsets: NDArray[np.int64],
    sorted_next: NDArray[np.int64],
    sorted_code: NDArray[np.int32],
    order: NDArray[np.int64],
) -> None:
    """Scatter edges to their rows; `offsets` are shifted by one while it works, and restored."""
    ordered = order.shape[0] > 0
    for i in range(rows.shape[0]):
        at = offsets[rows[i]]
        offsets[rows[i]] = at + 1
        sorted_next[at] = next_node[i]
        sorted_code[at] = code[i]
        if ordered:
            order[at] = i
    for r in range(offsets.shape[0] - 1, 0, -1):
        offsets[r] = offsets[r - 1]
    offsets[0] = 0


@kernel
def _before(
    a: int,
    b: int,
    next_node: NDArray[np.int64],
    code: NDArray[np.int32],
    order: NDArray[np.int64],
    raw: NDArray[np.int64],
) -> bool:
    if next_node[a] != next_node[b]:
        return bool(next_node[a] < next_node[b])
    if code[a] != code[b]:
        return bool(code[a] < code[b])
    if order.shape[0] > 0:
        for k in range(raw.shape[1]):
            x, y = raw[order[a], k], raw[order[b], k]
            if x != y:
                return bool(x < y)
    return False


@kernel
def _swap(
    a: int, b: int, next_node: NDArray[np.int64], code: NDArray[np.int32], order: NDArray[np.int64]
) -> None:
    next_node[a], next_node[b] = next_node[b], next_node[a]
    code[a], code[b] = code[b], code[a]
    if order.shape[0] > 0:
        order[a], order[b] = order[b], order[a]


@kernel
def _sift(
    start: int,
    root: int,
    count: int,
    next_node: NDArray[np.int64],
    code: NDArray[np.int32],
    order: NDArray[np.int64],
    raw: NDArray[np.int64],
) -> None:
    while True:
        child = 2 * root + 1
        if child >= count:
            return
        if child + 1 < count and _before(start + child, start + child + 1, next_node, code, order, raw):
            child += 1
        if not _before(start + root, start + child, next_node, code, order, raw):
            return
        _swap(start + root, start + child, next_node, code, order)
        root = child


@kernel
def _sort_within_rows(
    offsets: NDArray[np.int64],
    next_node: NDArray[np.int64],
    code: NDArray[np.int32],
    order: NDArray[np.int64],
    raw: NDArray[np.int64],
) -> None:
    """Insertion sort for short rows, heap sort for long ones: ties are equal in everything, so neither need
    be stable."""
    for r in range(offsets.shape[0] - 1):
        start = offsets[r]
        count = offsets[r + 1] - start
        if count < 2:
            continue
        if count <= 48:
            for i in range(start + 1, start + count):
                j = i
                while j > start and _before(j, j - 1, next_node, code, order, raw):
                    _swap(j, j - 1, next_node, code, order)
                    j -= 1
            continue
        for root in range(count // 2 - 1, -1, -1):
            _sift(start, root, count, next_node, code, order, raw)
        for end in range(count - 1, 0, -1):
            _swap(start, start + end, next_node, code, order)
            _sift(start, 0, end, next_node, code, order, raw)


@kernel
def _row_sums_off(
    offsets: NDArray[np.int64], probability: NDArray[np.float64], tolerance: float
) -> tuple[int, float]:
    for r in range(offsets.shape[0] - 1):
        if offsets[r + 1] == offsets[r]:
            continue
        total = 0.0
        for i in range(offsets[r], offsets[r + 1]):
            total += probability[i]
        if not abs(total - 1.0) <= tolerance:
            return r, total
    return -1, 1.0


@kernel
def _rows_agree(offsets: NDArray[np.int64], words: NDArray[np.int64]) -> bool:
    for r in range(offsets.shape[0] - 1):
        for i in range(offsets[r] + 1, offsets[r + 1]):
            for k in range(words.shape[1]):
                if words[i, k] != words[offsets[r], k]:
                    return False
    return True


class SortedEdges:
    """Edges of consecutive rows.

    Attributes
    ----------
    offsets : (rows + 1,) int64
    next_node : (m,) int64
    code : (m,) int32
    raw : (m, c) int64
        Words of the attributes that have no code.
    """

    def __init__(
        self,
        offsets: NDArray[np.int64],
        next_node: NDArray[np.int64],
        code: NDArray[np.int32],
        raw: NDArray[np.int64],
    ) -> None:
        self.offsets = offsets
        self.next_node = next_node
        self.code = code
        self.raw = raw


def sort_rows(
    rows: NDArray[Any],
    next_node: NDArray[Any],
    code: NDArray[np.int32],
    raw: NDArray[np.int64],
    num_rows: int,
) -> SortedEdges:
    """Sort edges by row, within a row by next node, then code, then raw words; the order they came in plays
    no part.

    Parameters
    ----------
    rows, next_node : (m,) integers
        Row numbers count from 0.
    code : (m,) int32
    raw : (m, c) int64
    num_rows : int

    Notes
    -----
    Memory: 36 bytes an edge besides the arguments (8 more, and 8 c, with raw words), 8 a row.
    """
    rows64 = np.ascontiguousarray(rows, np.int64)
    next64 = np.ascontiguousarray(next_node, np.int64)
    count = len(rows64)
    offsets = np.zeros(num_rows + 1, np.int64)
    _count_rows(rows64, offsets)
    sorted_next = np.empty(count, np.int64)
    sorted_code = np.empty(count, np.int32)
    order = np.empty(count if raw.shape[1] else 0, np.int64)
    _place(rows64, next64, np.ascontiguousarray(code), offsets, sorted_next, sorted_code, order)
    _sort_within_rows(offsets, sorted_next, sorted_code, order, raw)
    return SortedEdges(offsets, sorted_next, sorted_code, raw[order] if len(order) else raw)


def row_sums_off(
    offsets: NDArray[np.int64], probability: NDArray[np.float64], tolerance: float = 1e-6
) -> tuple[int, float]:
    """Return the first row whose probabilities don't sum to 1, and their sum; row -1 where all do."""
    row, total = _row_sums_off(offsets, probability, tolerance)
    return int(row), float(total)


def rows_agree(offsets: NDArray[np.int64], words: NDArray[np.int64]) -> bool:
    """Tell whether all edges of each row have the same words."""
    return bool(_rows_agree(offsets, words))


def whole_rows(edges: SortedEdges) -> Iterator[SortedEdges]:
    """Cut into whole rows of about `SLICE` edges or rows."""
    offsets = edges.offsets
    row, num_rows = 0, len(offsets) - 1
    while row < num_rows:
        last = int(np.searchsorted(offsets, offsets[row] + SLICE, side="right")) - 1
        last = min(max(last, row + 1), row + SLICE, num_rows)
        part = slice(int(offsets[row]), int(offsets[last]))
        yield SortedEdges(
            offsets[row : last + 1] - offsets[row], edges.next_node[part], edges.code[part], edges.raw[part]
        )
        row = last
