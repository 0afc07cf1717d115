"""The csr-compressed encoding: outdegrees, differences of nodes and outcome codes in compressed chunks."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.format.cold import ColdArray
from omstore.format.hot import map_hot
from omstore.rows import kernels
from omstore.rows.csr import sample_arrays
from omstore.rows.encoding import (
    DrawnEdges,
    Edges,
    GraphSize,
    Probabilities,
    RowChunk,
    RowEncoding,
    check_sweep,
    next_node_dtype,
    outcome_dtype,
    raise_status,
)

__all__ = ["DEFAULT_CACHE", "ChunkCache", "CsrCompressedRows", "delta_dtype"]

DEFAULT_CACHE = 64 << 20
"""Bytes of decoded chunks kept."""

_SAMPLE_EDGES = 1 << 20  # gathered at a time to sample from: 9 to 20 MiB


class ChunkCache:
    """Decoded chunks, the least recently used dropped first, at most `capacity` bytes (or a single chunk).

    Threads may share it; a fork gives the child its own lock, and the parent's chunks.
    """

    def __init__(self, capacity: int = DEFAULT_CACHE) -> None:
        self._capacity = capacity
        self._chunks: OrderedDict[tuple[str, int], NDArray[Any]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._process = os.getpid()

    def get(self, name: str, chunk: int, decode: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Return a chunk from the cache, else decode and keep it."""
        key = (name, chunk)
        with self._own_lock():
            found = self._chunks.get(key)
            if found is not None:
                self._chunks.move_to_end(key)
                return found
        # Decoding outside of the lock may happen twice in two threads, and is harmless.
        decoded = as_input(values := decode(), values.dtype)
        with self._own_lock():
            if key not in self._chunks:
                self._chunks[key] = decoded
                self._bytes += decoded.nbytes
                while self._bytes > self._capacity and len(self._chunks) > 1:
                    self._bytes -= self._chunks.popitem(last=False)[1].nbytes
        return decoded

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks held."""
        return self._bytes

    def _own_lock(self) -> threading.Lock:
        if self._process != os.getpid():  # another thread may have held it when this process forked off
            self._process, self._lock = os.getpid(), threading.Lock()
        return self._lock


class CsrCompressedRows(RowEncoding):
    """Rows in compressed chunks of consecutive rows or edges.

    A batch is sorted, and each chunk it touches is decoded once: cheap for sweeps and for rows near each
    other, dear for a few rows drawn all over the graph.

    Parameters
    ----------
    folder : Path
        The version's folder.
    description : mapping
        ``manifest.rows``; ``outdegree`` in it is that of every row.
    size : GraphSize
    cache_bytes : int
        Decoded chunks to keep.

    Raises
    ------
    CorruptStoreError
        Naming the file that is missing, truncated or foreign.
    """

    name = "csr-compressed"

    def __init__(
        self, folder: Path, description: Mapping[str, Any], size: GraphSize, cache_bytes: int = DEFAULT_CACHE
    ) -> None:
        rows = Path(folder) / "rows"
        self.size = size
        self._cache = ChunkCache(cache_bytes)
        uniform = description.get("outdegree")
        self._uniform = -1 if uniform is None else int(uniform)
        self._delta = ColdArray(
            rows / "next_node_delta", dtype=delta_dtype(size.num_nodes), item_shape=(), rows=size.num_edges
        )
        self._outcome: ColdArray | None = None
        if size.num_outcomes > 1:
            codes = outcome_dtype(size.num_outcomes)
            self._outcome = ColdArray(rows / "outcome", dtype=codes, item_shape=(), rows=size.num_edges)
        self._outdegree: ColdArray | None = None
        self._block_rows = 1
        self._block_offsets: NDArray[np.int64] = np.zeros(1, np.int64)
        if uniform is None:
            self._outdegree = ColdArray(
                rows / "outdegree", dtype=np.uint32, item_shape=(), rows=size.num_rows
            )
            self._block_rows = self._outdegree.chunk_rows
            blocks = -(-size.num_rows // self._block_rows)
            mapped = map_hot(rows / "block_offsets", dtype=np.uint64, item_shape=(), rows=blocks + 1)
            self._block_offsets = mapped.view(np.int64)
        elif uniform * size.num_rows != size.num_edges:
            raise CorruptStoreError(
                f"{rows}: {size.num_rows:,} rows of {uniform} edges aren't {size.num_edges:,} edges"
            )

    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of successors of each row; see :class:`RowEncoding`."""
        rows = self._checked(rows)
        order, ordered = _in_order(rows)
        counts = np.empty(len(rows), np.int64)
        counts[order] = self._bounds(ordered)[1]
        return counts

    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Edges:
        """Return the edges of rows in any order, decoding each chunk once; see :class:`RowEncoding`."""
        rows = self._checked(rows)
        order, ordered = _in_order(rows)
        starts, counts = self._bounds(ordered)
        sums = np.zeros(len(rows) + 1, np.int64)
        sums[1:][order] = counts
        np.cumsum(sums, out=sums)
        return self._gather(rows, order, starts, counts, sums, edges)

    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw one edge for each row, gathering rows a million edges at a time; see :class:`RowEncoding`."""
        rows = self._checked(rows)
        order, ordered = _in_order(rows)
        starts, counts = self._bounds(ordered)
        empty = order[counts == 0]
        if len(empty):
            position = int(empty.min())
            raise_status(kernels.ILLEGAL, position, int(rows[position]), self.size)
        uniforms = np.asarray(uniforms, np.float64)[order]
        ends = np.cumsum(counts)
        drawn = DrawnEdges.empty(len(rows))
        first = done = 0
        while first < len(rows):
            last = max(first + 1, int(np.searchsorted(ends, done + _SAMPLE_EDGES, side="right")))
            piece = slice(first, last)
            part = self._draw(ordered[piece], starts[piece], counts[piece], uniforms[piece], probabilities)
            for field in ("next_node", "outcome", "edge", "probability"):
                getattr(drawn, field)[order[piece]] = getattr(part, field)
            first, done = last, int(ends[last - 1])
        return drawn

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Go through rows in order, decoding every chunk once; see :class:`RowEncoding`."""
        check_sweep(self.size, start_row, stop_row, chunk_rows)
        if start_row == stop_row:
            return
        first_edge = int(self._bounds(np.array([start_row], np.int64))[0][0])
        for first in range(start_row, stop_row, chunk_rows):
            last = min(first + chunk_rows, stop_row)
            sums = np.zeros(last - first + 1, np.int64)
            if self._outdegree is None:
                sums[1:] = self._uniform
            else:
                sums[1:] = self._outdegree.read(first, last)
            np.cumsum(sums, out=sums)
            self._check_blocks(first, last, first_edge, sums)
            stop_edge = first_edge + int(sums[-1])
            deltas = self._delta.read(first_edge, stop_edge)
            next_node = np.empty(len(deltas), next_node_dtype(self.size.num_nodes))
            no_rows = np.empty(0, np.int64)
            status, position = kernels.add_nodes(
                first, no_rows, self.size.num_joint_actions, sums, deltas, self.size.num_nodes, next_node
            )
            if status != kernels.OK:
                raise_status(status, position, first + position, self.size)
            codes = None if self._outcome is None else self._outcome.read(first_edge, stop_edge)
            yield RowChunk(first, first_edge, sums, next_node, codes)
            first_edge = stop_edge

    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes of the compressed files and the block offsets."""
        return {
            "outdegree": 0 if self._outdegree is None else self._outdegree.nbytes_stored,
            "block_offsets": 0 if self._outdegree is None else self._block_offsets.nbytes,
            "next_node_delta": self._delta.nbytes_stored,
            "outcome": 0 if self._outcome is None else self._outcome.nbytes_stored,
        }

    def _checked(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = as_input(rows, np.int64)
        outside = (rows < 0) | (rows >= self.size.num_rows)
        if outside.any():
            position = int(np.argmax(outside))
            raise_status(kernels.ROW_RANGE, position, int(rows[position]), self.size)
        return rows

    def _bounds(self, ordered: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First edges and outdegrees of rows that ascend."""
        if self._outdegree is None:
            return ordered * self._uniform, np.full(len(ordered), self._uniform, np.int64)
        starts = np.empty(len(ordered), np.int64)
        counts = np.empty(len(ordered), np.int64)
        first = 0
        while first < len(ordered):
            block = int(ordered[first]) // self._block_rows
            base = block * self._block_rows
            last = int(np.searchsorted(ordered, base + self._block_rows))
            sums = self._cache.get("block", block, partial(self._block_sums, block))
            within = ordered[first:last] - base
            starts[first:last] = sums[within]
            counts[first:last] = sums[within + 1] - sums[within]
            first = last
        return starts, counts

    def _block_sums(self, block: int) -> NDArray[np.int64]:
        """First edge of every row of a block, and of the next block."""
        assert self._outdegree is not None
        first = block * self._block_rows
        last = min(first + self._block_rows, self.size.num_rows)
        sums = np.zeros(last - first + 1, np.int64)
        sums[1:] = self._outdegree.read(first, last)
        np.cumsum(sums, out=sums)
        first_edge = int(self._block_offsets[block])
        self._check_blocks(first, last, first_edge, sums)
        return sums + first_edge

    def _check_blocks(self, first: int, last: int, first_edge: int, sums: NDArray[np.int64]) -> None:
        """Compare running sums of outdegrees with the block offsets within, and with the number of edges."""
        if self._outdegree is not None:
            blocks = np.arange(-(-first // self._block_rows), last // self._block_rows + 1)
            blocks = blocks[blocks * self._block_rows <= last]
            at = blocks * self._block_rows - first
            wrong = np.flatnonzero(first_edge + sums[at] != self._block_offsets[blocks])
            if len(wrong):
                raise_status(kernels.BAD_OFFSETS, 0, min(first + int(at[wrong[0]]), last - 1), self.size)
        if not 0 <= first_edge <= first_edge + int(sums[-1]) <= self.size.num_edges:
            raise_status(kernels.BAD_OFFSETS, 0, first, self.size)

    def _gather(
        self,
        rows: NDArray[np.int64],
        order: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        sums: NDArray[np.int64],
        edges: bool,
    ) -> Edges:
        """Gather rows; `starts` and `counts` are in the `order` that sorts them, `sums` in the batch's."""
        total = int(sums[-1])
        places = sums[:-1][order]
        next_node = np.empty(total, np.int64)
        self._copy("delta", self._delta, starts, counts, places, next_node)
        status, position = kernels.add_nodes(
            0, rows, self.size.num_joint_actions, sums, next_node, self.size.num_nodes, next_node
        )
        if status != kernels.OK:
            raise_status(status, position, int(rows[position]), self.size)
        codes = None
        if self._outcome is not None:
            codes = np.empty(total, self._outcome.dtype)
            self._copy("outcome", self._outcome, starts, counts, places, codes)
            if total and codes.max() >= self.size.num_outcomes:
                edge = int(np.argmax(codes >= self.size.num_outcomes))
                row = int(rows[np.searchsorted(sums, edge, side="right") - 1])
                raise_status(kernels.BAD_CODE, 0, row, self.size)
        numbers = None
        if edges:
            by_row = np.empty(len(rows), np.int64)
            by_row[order] = starts
            numbers = np.empty(total, np.int64)
            kernels.number_edges(by_row, sums, numbers)
        return Edges(sums, next_node, codes, numbers)

    def _draw(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        uniforms: NDArray[np.float64],
        probabilities: Probabilities,
    ) -> DrawnEdges:
        """Draw from ascending rows, having gathered their edges."""
        sums = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(counts, out=sums[1:])
        by_edge = probabilities.level == "edge"
        found = self._gather(rows, np.arange(len(rows)), starts, counts, sums, by_edge)
        table = probabilities.values
        if by_edge:
            assert found.edge is not None
            table = table.take(found.edge)
        unsigned = next_node_dtype(self.size.num_nodes)
        drawn, status, position = sample_arrays(
            self.size,
            as_input(sums, np.uint64),
            -1,
            as_input(found.next_node, unsigned),
            None if found.outcome is None else as_input(found.outcome, found.outcome.dtype),
            as_input(np.arange(len(rows)), np.int64),
            uniforms,
            probabilities.mode,
            table,
        )
        if status != kernels.OK:
            raise_status(status, position, int(rows[position]), self.size)
        drawn.edge[:] += starts - sums[:-1]
        return drawn

    def _copy(
        self,
        name: str,
        array: ColdArray,
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[Any],
    ) -> None:
        """Copy the edges of ascending rows out of a compressed array, one chunk after the other."""
        full = counts > 0
        starts, counts, places = starts[full], counts[full], places[full]
        ends = starts + counts
        length = array.chunk_rows
        done = 0  # rows copied to their end
        chunk = -1
        while done < len(starts):
            chunk = max(chunk + 1, int(starts[done]) // length)
            base, stop = chunk * length, min((chunk + 1) * length, len(array))
            values = self._decoded(name, array, chunk)
            last = int(np.searchsorted(starts, stop))
            part = slice(done, last)
            kernels.copy_chunk(values, base, starts[part], counts[part], places[part], out)
            done = int(np.searchsorted(ends, stop, side="right"))

    def _decoded(self, name: str, array: ColdArray, chunk: int) -> NDArray[Any]:
        first = chunk * array.chunk_rows
        last = min(first + array.chunk_rows, len(array))
        return self._cache.get(name, chunk, lambda: array.read(first, last))


def delta_dtype(num_nodes: int) -> np.dtype[Any]:
    """Return what differences of nodes are stored as: int32 while it suffices, else int64."""
    return np.dtype(np.int32 if num_nodes <= 1 << 31 else np.int64)


def _in_order(rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the order that sorts rows, and them sorted; no sorting where they ascend."""
    if len(rows) == 0 or (rows[1:] >= rows[:-1]).all():
        return np.arange(len(rows)), rows
    order = np.argsort(rows, kind="stable")
    return order, rows[order]
