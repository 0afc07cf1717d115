"""Attributes of edges, and the lowest level at which each is exactly a function.

"Exactly" is by bit pattern: -0.0 and 0.0 differ, a NaN equals itself. Values are compared as 64-bit words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel
from omstore.convert.resolve import EdgeChunk
from omstore.encode.distinct import DistinctWords, sort_words

__all__ = ["MAX_OUTCOMES", "AttributeSpec", "AttributeSurvey", "sorted_words"]

MAX_OUTCOMES = 1 << 16
"""More distinct values than this are stored edge by edge."""


@kernel
def _all_equal(words: NDArray[np.int64], first: NDArray[np.int64]) -> bool:
    for i in range(words.shape[0]):
        for k in range(words.shape[1]):
            if words[i, k] != first[k]:
                return False
    return True


@kernel
def _is_function(
    keys: NDArray[np.int64], words: NDArray[np.int64], values: NDArray[np.int64], seen: NDArray[np.uint8]
) -> bool:
    """Tell whether equal keys always come with equal words; remembers in `values` and `seen`."""
    for i in range(keys.shape[0]):
        key = keys[i]
        if seen[key] == 0:
            seen[key] = 1
            for k in range(words.shape[1]):
                values[key, k] = words[i, k]
        else:
            for k in range(words.shape[1]):
                if values[key, k] != words[i, k]:
                    return False
    return True


@kernel
def _neighbours_agree(keys: NDArray[np.int64], words: NDArray[np.int64]) -> bool:
    for i in range(1, keys.shape[0]):
        if keys[i] == keys[i - 1]:
            for k in range(words.shape[1]):
                if words[i, k] != words[i - 1, k]:
                    return False
    return True


@dataclass(frozen=True)
class AttributeSpec:
    """An attribute of edges.

    Attributes
    ----------
    name : str
    dtype : numpy.dtype
        As stored: float64, int64 or uint8.
    width : int
        Numbers per edge.
    scalar : bool
        Stored as (n,) instead of (n, width).
    hoist : bool
        May be a function of nodes or rows; probabilities may not.
    """

    name: str
    dtype: np.dtype[Any]
    width: int
    scalar: bool
    hoist: bool

    @property
    def item_shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return () if self.scalar else (self.width,)

    @property
    def item_bytes(self) -> int:
        """Bytes of one value as stored."""
        return self.width * self.dtype.itemsize

    def words(self, chunk: EdgeChunk) -> NDArray[np.int64]:
        """Take the attribute of a chunk as (n, width) 64-bit words."""
        values = chunk.kept[self.name] if self.name in chunk.kept else getattr(chunk, self.name)
        matrix = values.reshape(len(chunk.node), self.width)
        if self.dtype == np.float64:
            return np.ascontiguousarray(matrix, np.float64).view(np.int64)
        return np.ascontiguousarray(matrix, np.int64)

    def values(self, words: NDArray[np.int64]) -> NDArray[Any]:
        """Turn (n, width) words back into (n, ...) values as stored."""
        matrix = np.ascontiguousarray(words)
        typed = matrix.view(np.float64) if self.dtype == np.float64 else matrix.astype(self.dtype)
        return typed.reshape(len(words), *self.item_shape)


def sorted_words(
    specs: Sequence[AttributeSpec], words: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sort distinct combinations of several attributes' words by value.

    Returns
    -------
    words : (K, C) int64
        Sorted, distinct.
    code_of : (n,) int64
        Position in it of every given row.
    """
    floats = [np.full(spec.width, spec.dtype == np.float64) for spec in specs]
    first, code_of = sort_words(words, np.concatenate(floats) if floats else np.zeros(0, np.bool_))
    return words[first], code_of


class AttributeSurvey:
    """Watches one attribute over all edges, and tells the levels at which it is exactly a function.

    Memory: 2 N values (mapped files in scratch beyond `in_memory` bytes) until they are ruled out, and the
    distinct values, at most `MAX_OUTCOMES`.
    """

    def __init__(self, spec: AttributeSpec, num_nodes: int, scratch: Path, in_memory: int) -> None:
        self.spec = spec
        self.distinct = DistinctWords(spec.width, MAX_OUTCOMES)
        self.row_possible = spec.hoist
        self._first: NDArray[np.int64] | None = None
        self._constant = True
        self._tables: dict[str, tuple[NDArray[np.int64], NDArray[np.uint8]]] = {}
        if spec.hoist:
            for level in ("next_node", "node"):
                path = scratch / f"survey-{spec.name}-{level}"
                values = _zeros(path, np.int64, (num_nodes, spec.width), in_memory)
                self._tables[level] = values, _zeros(Path(f"{path}-seen"), np.uint8, (num_nodes,), in_memory)

    def update(self, chunk: EdgeChunk, rows: NDArray[np.int64], words: NDArray[np.int64]) -> None:
        """Look at a chunk of edges."""
        if self._first is None:
            self._first = words[0].copy()
        if self._constant:
            self._constant = bool(_all_equal(words, self._first))
        for level, keys in (("next_node", chunk.next_node), ("node", chunk.node)):
            if level in self._tables and not _is_function(keys, words, *self._tables[level]):
                del self._tables[level]
        if self.row_possible:
            self.row_possible = bool(_neighbours_agree(rows, words))
        if not self.distinct.overflowed:
            self.distinct.number(words)

    @property
    def level(self) -> str:
        """``graph``, ``next_node``, ``node``, ``outcome`` or ``edge``; `row_possible` says whether the row
        is to be tried."""
        if self._constant:
            return "graph"
        for level in ("next_node", "node"):
            if level in self._tables:
                return level
        return "edge" if self.distinct.overflowed else "outcome"

    def node_words(self) -> NDArray[np.int64]:
        """The words by node, (N, width), at level ``next_node`` or ``node``; zeros where no edge tells."""
        return self._tables[self.level][0]

    def constant(self) -> NDArray[np.int64]:
        """The words at level ``graph``, (1, width)."""
        return np.zeros((1, self.spec.width), np.int64) if self._first is None else self._first[None, :]


def _zeros(path: Path, dtype: Any, shape: tuple[int, ...], in_memory: int) -> NDArray[Any]:
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size <= in_memory or size == 0:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, mode="w+", shape=shape).view(np.ndarray)
