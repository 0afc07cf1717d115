"""Writers of row encodings: rows in order, in chunks of any size, into a staged version."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.rows import kernels
from omstore.rows.compressed import delta_dtype
from omstore.rows.encoding import GraphSize, next_node_dtype, no_codes, outcome_dtype

__all__ = [
    "CHUNK_EDGES",
    "DELTA_LEVEL",
    "CsrCompressedWriter",
    "CsrWriter",
    "RowWriter",
    "Staging",
    "row_writer",
]

CHUNK_EDGES = 1 << 18
"""Edges, or rows, of a compressed chunk: 1 MiB of differences."""

DELTA_LEVEL = 7
"""zstd level of differences: it finds repetitions that lie further back, 0.015 B an edge instead of 0.082 at level 3
for a fifth more time (measured on three slipping agents)."""

_FILL = 1 << 16  # elements made up at a time


class Staging(Protocol):
    """What a writer needs of a version in the making: arrays to append to, by their path in the version."""

    def hot(self, name: str, dtype: Any, item_shape: tuple[int, ...] = ()) -> Any:
        """Begin a hot array."""
        ...

    def cold(
        self,
        name: str,
        dtype: Any,
        item_shape: tuple[int, ...] = (),
        *,
        chunk_rows: int | None = None,
        shuffle: bool = False,
        level: int = 3,
    ) -> Any:
        """Begin a cold array."""
        ...

    def write_hot(self, name: str, array: NDArray[Any]) -> Any:
        """Write a whole hot array."""
        ...


class RowWriter(ABC):
    """Takes the rows of a graph in order and writes one encoding; the bytes don't depend on the chunks.

    Memory: the chunk given, a few arrays of its size, and the buffers of the arrays being written.

    Parameters
    ----------
    staging : Staging
    num_nodes, num_joint_actions : int
        N and A: N * A rows are to come.
    num_outcomes : int
        K, entries in the table of outcomes; with 1, codes are neither expected nor written.
    """

    def __init__(
        self, staging: Staging, num_nodes: int, num_joint_actions: int, num_outcomes: int = 1
    ) -> None:
        self._staging = staging
        self._expected = GraphSize(num_nodes, num_joint_actions, 0, num_outcomes)
        self.num_rows = 0
        self.num_edges = 0
        self._uniform: int | None = None  # the outdegree of every row so far, until two differ
        self._varies = False

    def append(
        self, outdegree: NDArray[Any], next_node: NDArray[Any], outcome: NDArray[Any] | None = None
    ) -> None:
        """Append whole rows.

        Parameters
        ----------
        outdegree : (n,) integers
            Successors of each row.
        next_node : (m,) integers
            Of the rows' edges, m = sum of `outdegree`, each row sorted by next node, then outcome.
        outcome : (m,) integers, optional
            Codes; needed unless there is one outcome only.

        Raises
        ------
        UsageError
            If the rows are more than expected, the lengths don't fit, or a row is unsorted or names a node
            or outcome that doesn't exist.
        """
        size = self._expected
        sums = np.zeros(len(outdegree) + 1, np.int64)
        np.cumsum(outdegree, out=sums[1:])
        coded = size.num_outcomes > 1
        if coded != (outcome is not None):
            raise UsageError(f"{size.num_outcomes} outcomes, but codes were {'not ' if coded else ''}given")
        if sums[-1] != len(next_node) or (outcome is not None and len(outcome) != len(next_node)):
            lengths = f"{len(next_node)} next nodes" + ("" if outcome is None else f", {len(outcome)} codes")
            raise UsageError(f"rows of {sums[-1]} edges were given with {lengths}")
        if self.num_rows + len(outdegree) > size.num_rows:
            raise UsageError(f"more than {size.num_rows:,} rows were given")
        if len(outdegree) and np.min(outdegree) < 0:
            raise UsageError(f"row {self.num_rows + int(np.argmin(outdegree))} has a negative outdegree")
        self._check(sums, next_node, outcome)
        self._append_outdegree(outdegree, sums)
        nodes = as_input(next_node, next_node_dtype(size.num_nodes))
        codes = None if outcome is None else as_input(outcome, outcome_dtype(size.num_outcomes))
        self._append_edges(sums, nodes, codes)
        self.num_rows += len(outdegree)
        self.num_edges += int(sums[-1])

    def finish(self) -> tuple[dict[str, Any], GraphSize]:
        """Close the arrays; return the manifest's ``rows`` and the counts.

        Raises
        ------
        UsageError
            If rows are missing.
        """
        size = self._expected
        if self.num_rows != size.num_rows:
            raise UsageError(f"{self.num_rows:,} of {size.num_rows:,} rows were given")
        description: dict[str, Any] = {"encoding": self.encoding, "num_outcomes": size.num_outcomes}
        if not self._varies:
            description["outdegree"] = self._uniform or 0
        self._close()
        return description, GraphSize(
            size.num_nodes, size.num_joint_actions, self.num_edges, size.num_outcomes
        )

    encoding: str

    @abstractmethod
    def _begin_outdegree(self, rows: int, outdegree: int) -> None:
        """Begin writing outdegrees: the `rows` so far all have `outdegree`."""

    @abstractmethod
    def _write_outdegree(self, outdegree: NDArray[Any], sums: NDArray[np.int64]) -> None:
        """Write outdegrees once they vary; `sums` begin at this chunk's first edge."""

    @abstractmethod
    def _append_edges(
        self, sums: NDArray[np.int64], next_node: NDArray[Any], outcome: NDArray[Any] | None
    ) -> None:
        """Write edges."""

    @abstractmethod
    def _close(self) -> None:
        """Close the arrays."""

    def _check(self, sums: NDArray[np.int64], next_node: NDArray[Any], outcome: NDArray[Any] | None) -> None:
        size = self._expected
        status, position = kernels.check_rows(
            as_input(sums, np.int64),
            as_input(next_node, np.int64),
            no_codes() if outcome is None else as_input(outcome, np.int64),
            outcome is not None,
            size.num_nodes,
            size.num_outcomes,
        )
        if status != kernels.OK:
            reason = {
                kernels.BAD_NODE: f"has a next node that isn't within 0 to {size.num_nodes - 1}",
                kernels.BAD_CODE: f"has an outcome code that isn't within 0 to {size.num_outcomes - 1}",
                kernels.UNSORTED: "isn't sorted by next node, then outcome",
            }[status]
            raise UsageError(f"row {self.num_rows + position} {reason}")

    def _append_outdegree(self, outdegree: NDArray[Any], sums: NDArray[np.int64]) -> None:
        # Until two rows differ nothing is written: what was seen so far is one number, and can be made up.
        if not len(outdegree):
            return
        if not self._varies:
            uniform = int(outdegree[0]) if self._uniform is None else self._uniform
            self._uniform = uniform
            if (np.asarray(outdegree) == uniform).all():
                return
            self._varies = True
            self._begin_outdegree(self.num_rows, uniform)
        self._write_outdegree(outdegree, sums)


class CsrWriter(RowWriter):
    """Writes the csr encoding; see :class:`RowWriter` and :class:`omstore.rows.csr.CsrRows`."""

    encoding = "csr"

    def __init__(
        self, staging: Staging, num_nodes: int, num_joint_actions: int, num_outcomes: int = 1
    ) -> None:
        super().__init__(staging, num_nodes, num_joint_actions, num_outcomes)
        self._offsets: Any = None
        self._next_node = staging.hot("rows/next_node", next_node_dtype(num_nodes))
        self._outcome = staging.hot("rows/outcome", outcome_dtype(num_outcomes)) if num_outcomes > 1 else None

    def _begin_outdegree(self, rows: int, outdegree: int) -> None:
        self._offsets = self._staging.hot("rows/offsets", np.uint64)
        for first in range(0, rows + 1, _FILL):
            numbers = np.arange(first, min(first + _FILL, rows + 1), dtype=np.int64)
            self._offsets.append((numbers * outdegree).astype(np.uint64))

    def _write_outdegree(self, outdegree: NDArray[Any], sums: NDArray[np.int64]) -> None:
        self._offsets.append((sums[1:] + self.num_edges).astype(np.uint64))

    def _append_edges(
        self, sums: NDArray[np.int64], next_node: NDArray[Any], outcome: NDArray[Any] | None
    ) -> None:
        self._next_node.append(next_node)
        if self._outcome is not None:
            self._outcome.append(outcome)

    def _close(self) -> None:
        for array in (self._offsets, self._next_node, self._outcome):
            if array is not None:
                array.close()


class CsrCompressedWriter(RowWriter):
    """Writes the csr-compressed encoding; see :class:`RowWriter` and `CsrCompressedRows`.

    Memory: besides, 8 bytes for each block of `chunk_rows` rows.

    Parameters
    ----------
    chunk_rows : int
        Rows, and edges, of a compressed chunk.
    """

    encoding = "csr-compressed"

    def __init__(
        self,
        staging: Staging,
        num_nodes: int,
        num_joint_actions: int,
        num_outcomes: int = 1,
        *,
        chunk_rows: int = CHUNK_EDGES,
    ) -> None:
        super().__init__(staging, num_nodes, num_joint_actions, num_outcomes)
        self._chunk_rows = chunk_rows
        self._block_offsets: list[int] = []
        self._outdegree: Any = None
        # Differences repeat from row to row as they are: shuffling their bytes only hides it (measured).
        self._delta = staging.cold(
            "rows/next_node_delta", delta_dtype(num_nodes), chunk_rows=chunk_rows, level=DELTA_LEVEL
        )
        self._outcome: Any = None
        if num_outcomes > 1:
            self._outcome = staging.cold(
                "rows/outcome", outcome_dtype(num_outcomes), chunk_rows=chunk_rows, shuffle=True
            )

    def _begin_outdegree(self, rows: int, outdegree: int) -> None:
        self._outdegree = self._staging.cold("rows/outdegree", np.uint32, chunk_rows=self._chunk_rows)
        for first in range(0, rows, _FILL):
            self._outdegree.append(np.full(min(_FILL, rows - first), outdegree, np.uint32))
        self._block_offsets = [row * outdegree for row in range(0, rows, self._chunk_rows)]

    def _write_outdegree(self, outdegree: NDArray[Any], sums: NDArray[np.int64]) -> None:
        self._outdegree.append(np.asarray(outdegree).astype(np.uint32))
        first = -self.num_rows % self._chunk_rows  # of this chunk's rows, the first that begins a block
        self._block_offsets += (sums[:-1][first :: self._chunk_rows] + self.num_edges).tolist()

    def _append_edges(
        self, sums: NDArray[np.int64], next_node: NDArray[Any], outcome: NDArray[Any] | None
    ) -> None:
        rows = np.arange(self.num_rows, self.num_rows + len(sums) - 1)
        nodes = np.repeat(rows // self._expected.num_joint_actions, np.diff(sums))
        self._delta.append((next_node.astype(np.int64) - nodes).astype(delta_dtype(self._expected.num_nodes)))
        if self._outcome is not None:
            self._outcome.append(outcome)

    def _close(self) -> None:
        self._delta.close()
        if self._outcome is not None:
            self._outcome.close()
        if self._outdegree is not None:
            self._outdegree.close()
            offsets = np.array([*self._block_offsets, self.num_edges], np.uint64)
            self._staging.write_hot("rows/block_offsets", offsets)


def row_writer(
    encoding: str, staging: Staging, num_nodes: int, num_joint_actions: int, num_outcomes: int = 1
) -> RowWriter:
    """Make the writer of an encoding by its name.

    Raises
    ------
    UsageError
        If there is no such encoding.
    """
    writers: dict[str, type[RowWriter]] = {"csr": CsrWriter, "csr-compressed": CsrCompressedWriter}
    if encoding not in writers:
        raise UsageError(f"there is no row encoding {encoding!r}", f"Choose one of: {', '.join(writers)}.")
    return writers[encoding](staging, num_nodes, num_joint_actions, num_outcomes)
