"""The rows of an `IndependentModel`: products of its kernels, in compiled code; nothing of size rows is held."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, ModelError, UsageError
from omstore.model import kernels
from omstore.model.checks import Answers
from omstore.model.numbering import ListedNumbering, Numbering
from omstore.model.oriented import oriented_kernels
from omstore.model.protocol import IndependentModel
from omstore.rows.encoding import (
    DrawnEdges,
    Edges,
    GraphSize,
    Probabilities,
    RowChunk,
    check_sweep,
    next_node_dtype,
    outcome_dtype,
)

__all__ = ["MAX_OUTCOMES", "KernelRows"]

MAX_OUTCOMES = 1 << 16
"""More distinct probabilities than this aren't coded: an edge's is multiplied anew."""

_MAX_COMBINATIONS = 1 << 24
_BLOCK_NODES = 32
_COUNTED = 1 << 15
_KEEP_FLAGS = 1 << 25
_MAX_ROW = 1 << 24
_MAX_TAIL = 1 << 22
_WITHOUT, _CODED, _MULTIPLIED = 0, 1, 2


class KernelRows:
    """Answers the rows of an independent model: what `ProceduralRows` is for kernels.

    Edges are in the order of next nodes; outcome codes number the distinct probabilities, ascending, where
    there are at most `MAX_OUTCOMES` of them; else the probability is an attribute at level ``rows``.

    Parameters
    ----------
    model : IndependentModel
    numbering : Numbering
        Of all states of its product.
    num_edges : int, optional
        Where it is known already; else the nodes are counted.

    Attributes
    ----------
    parts : tuple of KernelPart
    probabilities : (K,) float64
        By outcome code; empty where they are multiplied.
    combination : (product of the parts' num_classes,) int32, or None
        Outcome code of each combination of classes, the first component's most significant.
    """

    def __init__(self, model: IndependentModel, numbering: Numbering, num_edges: int | None = None) -> None:
        self.model = model
        self.numbering = numbering
        self._answers = Answers(model)
        if numbering.num_nodes != numbering.space.count:
            raise UsageError("kernels answer for all states of a product; explore other models' states")
        self.parts = oriented_kernels(model, numbering)
        self.probabilities, self.combination = self._outcomes()
        self._mode = (
            _CODED if len(self.probabilities) > 1 else _WITHOUT if len(self.probabilities) else _MULTIPLIED
        )
        self._certain = int(np.searchsorted(self.probabilities, 1.0)) if len(self.probabilities) else 0
        num_joint_actions = model.num_joint_actions
        self.size = GraphSize(numbering.num_nodes, num_joint_actions, 0, max(1, len(self.probabilities)))
        self._world = self._make_world()
        self._tail = self._make_tail()
        self._lock = threading.Lock()
        self._flags: NDArray[np.uint8] | None = None
        self._firsts: NDArray[np.int64] | None = None
        edges = self.count_edges() if num_edges is None else num_edges
        self.size = GraphSize(numbering.num_nodes, num_joint_actions, edges, max(1, len(self.probabilities)))

    def _outcomes(self) -> tuple[NDArray[np.float64], NDArray[np.int32] | None]:
        """List the distinct products of probabilities, multiplied in component order, and each one's code."""
        products = np.ones(1)
        for number, part in enumerate(self.parts):
            if len(products) * len(part.classes) > _MAX_COMBINATIONS:
                return np.empty(0), None
            products = part.classes if number == 0 else np.multiply.outer(products, part.classes).reshape(-1)
        certain = np.ones(1 if self.has_absorbing else 0)
        values, codes = np.unique(np.concatenate((products, certain)), return_inverse=True)
        if len(values) > MAX_OUTCOMES:
            return np.empty(0), None
        return values, codes.reshape(-1)[: len(products)].astype(np.int32)

    @cached_property
    def has_absorbing(self) -> bool:
        """Whether the model says that states may be absorbing."""
        return self.model.absorbing(np.zeros((1, len(self.model.sizes)), np.int64)) is not None

    def _make_world(self) -> tuple[NDArray[Any], ...]:
        """Lay the kernels out as `omstore.model.kernels` takes them."""
        model, parts = self.model, self.parts
        space = self.numbering.space
        classes = [len(part.classes) for part in parts]
        strides = np.array(space.strides, np.int64)
        class_strides = np.array(
            [int(np.prod(classes[c + 1 :], dtype=object)) for c in range(len(classes))], object
        )
        coded = self._mode == _CODED
        pair_counts = [part.size * part.num_actions for part in parts]
        bases = np.concatenate(([0], np.cumsum([len(part.next_state) for part in parts]))).astype(np.int64)
        offsets = [part.offsets[:-1] + base for part, base in zip(parts, bases[:-1], strict=True)]
        joint = np.arange(model.num_joint_actions)
        actions = model.kernel_actions(joint)
        _, prefix = np.unique(actions[:, : -2 if self._joins else -1], axis=0, return_inverse=True)
        longest = [max(1, int(np.diff(part.offsets).max())) for part in parts]
        self._longest = np.array(
            [np.prod(longest[:-1], dtype=object), np.prod(longest, dtype=object)], object
        )
        if self._longest[1] > _MAX_ROW:
            raise ModelError(
                f"a row of {type(model).__name__} may have {self._longest[1]:,} successors, more than 2^24"
            )
        self._longest = self._longest.astype(np.int64)
        product = node_at = np.empty(0, np.int64)
        if isinstance(self.numbering, ListedNumbering):
            product = self.numbering.number
            node_at = np.empty(space.count, next_node_dtype(space.count))
            node_at[np.asarray(product, np.int64)] = np.arange(space.count)
        arrays = (
            np.array(space.sizes, np.int64),
            strides,
            np.concatenate(([0], np.cumsum(pair_counts)[:-1])).astype(np.int64),
            np.array([part.num_actions for part in parts], np.int64),
            actions.astype(np.int64),
            prefix.reshape(-1).astype(np.int64),
            np.concatenate((*offsets, bases[-1:])).astype(np.int64),
            np.concatenate([p.next_state * s for p, s in zip(parts, strides, strict=True)]).astype(np.int64),
            np.concatenate(
                [
                    p.outcome_class * (int(s) if coded else 0)
                    for p, s in zip(parts, class_strides, strict=True)
                ]
            ).astype(np.int64),
            np.concatenate([part.probability for part in parts]),
            (self.combination if coded and self.combination is not None else np.empty(0)).astype(np.int32),
            product.astype(np.int64),
            node_at.astype(np.int64),
        )
        return tuple(as_input(array, array.dtype) for array in arrays)

    @cached_property
    def _joins(self) -> bool:
        """Whether the last two components are multiplied in advance: their codes are."""
        if len(self.parts) < 2 or self._mode == _MULTIPLIED or isinstance(self.numbering, ListedNumbering):
            return False
        return len(self.parts[-1].next_state) * len(self.parts[-2].next_state) <= _MAX_TAIL

    def _make_tail(self) -> tuple[NDArray[Any], ...]:
        """Multiply the last two components' kernels: 8 to 12 bytes an outcome of any two of their pairs."""
        step_type = next_node_dtype(self.size.num_nodes)
        if not self._joins:
            empty = np.empty(0, np.int64), np.empty(0, step_type), np.empty(0, np.uint32)
            return tuple(as_input(array, array.dtype) for array in empty)
        one, other = self.parts[-2:]
        counts = np.multiply.outer(np.diff(one.offsets), np.diff(other.offsets)).reshape(-1)
        offsets = np.concatenate(([0], np.cumsum(counts)))
        pair = np.repeat(np.arange(len(counts)), counts)
        within = np.arange(len(pair)) - offsets[pair]
        first, second = np.divmod(pair, len(other.offsets) - 1)
        fanout = np.maximum(np.diff(other.offsets)[second], 1)
        at = one.offsets[first] + within // fanout
        behind = other.offsets[second] + within % fanout
        step = one.next_state[at] * other.size + other.next_state[behind]
        kind = one.outcome_class[at] * len(other.classes) + other.outcome_class[behind]
        slack = np.zeros(kernels.RUN, np.int64)
        step, kind = np.concatenate((step, slack)), np.concatenate((kind, slack))
        arrays = offsets.astype(np.int64), step.astype(step_type), kind.astype(np.uint32)
        return tuple(as_input(array, array.dtype) for array in arrays)

    # ---- which nodes are absorbing

    def absorbing(self, first: int, last: int) -> NDArray[np.uint8]:
        """Return the flags of consecutive nodes, (last - first,) uint8."""
        if not self.has_absorbing:
            return np.zeros(last - first, np.uint8)
        if self._flags is not None:
            return self._flags[first:last]
        return self._answers.absorbing(self.numbering.states(np.arange(first, last))).view(np.uint8)

    def _frozen(self, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
        nodes = rows // self.size.num_joint_actions
        if not self.has_absorbing:
            return as_input(np.zeros(len(rows), np.uint8), np.uint8)
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.size.num_nodes:
            nodes = np.clip(nodes, 0, self.size.num_nodes - 1)  # the kernel reports them
        if self._flags is not None:
            return as_input(self._flags[nodes], np.uint8)
        return as_input(self._answers.absorbing(self.numbering.states(nodes)).view(np.uint8), np.uint8)

    def _block_firsts(self) -> NDArray[np.int64]:
        """First edge of every block of nodes, and the number of edges; counted once."""
        with self._lock:
            if self._firsts is None:
                num_nodes = self.size.num_nodes
                keep = self.has_absorbing and num_nodes <= _KEEP_FLAGS
                flags = np.zeros(num_nodes, np.uint8) if keep else None
                sums = np.zeros(-(-num_nodes // _BLOCK_NODES) + 1, np.int64)
                for first in range(0, num_nodes, _COUNTED):
                    last = min(first + _COUNTED, num_nodes)
                    frozen = self.absorbing(first, last)
                    if flags is not None:
                        flags[first:last] = frozen
                    counts = self.count_nodes(np.arange(first, last), frozen)
                    block = first // _BLOCK_NODES
                    parts = np.add.reduceat(counts, np.arange(0, len(counts), _BLOCK_NODES))
                    sums[block + 1 : block + 1 + len(parts)] = parts
                self._flags = flags
                self._firsts = np.cumsum(sums)
            return self._firsts

    def count_edges(self) -> int:
        """Return E, counted node by node."""
        return int(self._block_firsts()[-1])

    def count_nodes(self, nodes: NDArray[np.int64], frozen: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the edges of nodes, (B,) -> (B,), given which of them are absorbing."""
        counts = np.empty(len(nodes), np.int64)
        status = kernels.count_nodes(
            self._world, *self._movers, as_input(nodes, np.int64), as_input(frozen, np.uint8), counts
        )
        if status != kernels.OK:
            raise _bad_numbering()
        return counts

    @cached_property
    def _movers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        movers = np.array([-1 if part.mover is None else part.mover for part in self.parts], np.int64)
        return as_input(movers, np.int64), as_input(np.array(self.model.num_actions), np.int64)

    def first_edges(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the first edges of rows that exist, (B,) -> (B,); fastest for sorted rows."""
        sums = self._block_firsts()
        blocks, block_of = np.unique(rows // self.size.num_joint_actions // _BLOCK_NODES, return_inverse=True)
        nodes = np.minimum(blocks[:, None] * _BLOCK_NODES + np.arange(_BLOCK_NODES), self.size.num_nodes - 1)
        if self._flags is not None:
            frozen = self._flags[nodes]
        elif not self.has_absorbing:
            frozen = np.zeros(nodes.shape, np.uint8)
        else:
            frozen = self._answers.absorbing(self.numbering.states(nodes.reshape(-1))).view(np.uint8)
        numbers = np.empty(len(rows), np.int64)
        status = kernels.number_rows(
            self._world,
            *self._movers,
            as_input(rows, np.int64),
            as_input(block_of.reshape(-1), np.int64),
            as_input(sums[blocks], np.int64),
            as_input(frozen.reshape(nodes.shape), np.uint8),
            numbers,
        )
        if status != kernels.OK:
            raise _bad_numbering()
        return numbers

    # ---- rows

    def bounds(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the running sum of the rows' outdegrees, and which rows are of absorbing nodes."""
        rows = as_input(rows, np.int64)
        frozen = self._frozen(rows)
        sums = np.empty(len(rows) + 1, np.int64)
        status, position = kernels.count_rows(self._world, self.size.num_nodes, rows, frozen, sums)
        self._raise(status, position, rows)
        return sums, frozen

    def fill(
        self,
        rows: NDArray[np.int64],
        frozen: NDArray[np.uint8],
        sums: NDArray[np.int64],
        next_node: NDArray[Any],
        second: NDArray[Any],
    ) -> None:
        """Write the edges of rows: next nodes, and codes or probabilities, whichever there are."""
        multiplied = self._mode == _MULTIPLIED
        status, position = kernels.fill_rows(
            self._world,
            self._tail,
            self.size.num_nodes,
            as_input(rows, np.int64),
            frozen,
            sums,
            self._mode,
            self._certain,
            self._longest,
            next_node,
            np.empty(0, np.uint8) if multiplied else second,
            second if multiplied else np.empty(0, np.float64),
        )
        self._raise(status, position, rows)

    def buffers(self, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Make what `fill` fills with `count` edges: next nodes, and codes or probabilities; and some room."""
        length = count + kernels.RUN
        second = np.empty(length if self._mode else 0, self.second_dtype())
        return np.empty(length, next_node_dtype(self.size.num_nodes)), second

    def second_dtype(self) -> np.dtype[Any]:
        """Of codes, or of probabilities where they are multiplied."""
        return np.dtype(np.float64) if self._mode == _MULTIPLIED else outcome_dtype(self.size.num_outcomes)

    def told(self, second: NDArray[Any]) -> tuple[NDArray[Any] | None, Mapping[str, NDArray[Any]]]:
        """Tell what `fill` wrote beside the next nodes: codes or None, and attributes at level ``rows``."""
        if self._mode == _MULTIPLIED:
            return None, {"probability": second}
        return (second if self._mode == _CODED else None), {}

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Go through rows in order; chunks are views of buffers that the next one overwrites."""
        check_sweep(self.size, start_row, stop_row, chunk_rows)
        if start_row == stop_row:
            return
        first_edge = int(self.first_edges(np.array([start_row]))[0])
        next_node, second = self.buffers(0)
        for first in range(start_row, stop_row, chunk_rows):
            rows = np.arange(first, min(first + chunk_rows, stop_row))
            sums, frozen = self.bounds(rows)
            count = int(sums[-1])
            if count + kernels.RUN > len(next_node):
                next_node, second = self.buffers(count + count // 4)
            self.fill(rows, frozen, sums, next_node, second)
            outcome, attributes = self.told(second[:count])
            yield RowChunk(first, first_edge, sums, next_node[:count], outcome, attributes)
            first_edge += count

    def gather(self, rows: NDArray[np.int64], edges: bool) -> Edges:
        """Return the edges of rows in any order."""
        rows = as_input(rows, np.int64)
        sums, frozen = self.bounds(rows)
        count = int(sums[-1])
        next_node, second = self.buffers(count)
        self.fill(rows, frozen, sums, next_node, second)
        outcome, attributes = self.told(second[:count])
        numbers = None
        if edges:
            numbers = np.repeat(self.first_edges(rows) - sums[:-1], np.diff(sums)) + np.arange(sums[-1])
        return Edges(sums, next_node[:count].astype(np.int64), outcome, numbers, attributes)

    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw an edge of each row; edges aren't numbered (-1)."""
        rows = as_input(rows, np.int64)
        count = len(rows)
        drawn = DrawnEdges(
            np.empty(count, np.int64), np.zeros(count, np.int64), np.full(count, -1), np.empty(count)
        )
        status, position = kernels.draw_rows(
            self._world,
            self.size.num_nodes,
            rows,
            self._frozen(rows),
            self._certain,
            self._longest,
            as_input(uniforms, np.float64),
            drawn.next_node,
            drawn.outcome,
            drawn.probability,
        )
        self._raise(status, position, rows)
        return drawn

    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes of the kernels in memory: nothing of them is stored but the model."""
        return {"kernels": sum(array.nbytes for array in self._world)}

    def _raise(self, status: int, position: int, rows: NDArray[np.int64]) -> None:
        if status == kernels.OK:
            return
        row = int(rows[position])
        if status == kernels.ROW_RANGE:
            raise UsageError(
                f"row {row} at position {position} of the batch isn't within 0 to {self.size.num_rows - 1:,}"
            )
        if status == kernels.ILLEGAL:
            node, action = divmod(row, self.size.num_joint_actions)
            raise UsageError(
                f"row {row} (node {node}, joint action {action}) at position {position} of the batch has no "
                "successors to draw from",
                "Draw joint actions from the legal mask (graph.legal).",
            )
        raise _bad_numbering()


def _bad_numbering() -> CorruptStoreError:
    return CorruptStoreError("rows/number names a state that isn't the model's", "Build the store again.")
