"""Expected returns of the rows of consecutive nodes, whichever encoding holds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.exact import edge_kernels, push_kernels
from omstore.exact.backup import Policy, plays
from omstore.exact.gains import Gains, Terms, Valuation
from omstore.read.attributes import EdgeSet
from omstore.read.graph import Graph
from omstore.rollout.policies import Sides
from omstore.rows import RowChunk

__all__ = ["Block", "EdgeSource", "MassSource", "ResolvedSource", "RowSource"]

_CHUNK_EDGES = 1 << 19
"""Edges looked at at a time, about: 2.6 MB as a large graph's csr has them. A quarter of it takes half as long again."""

_RESOLVED_EDGES = 1 << 17
"""The same where they are resolved: 5 MB with three agents."""

_CHUNK_ROWS = 1 << 19
"""Rows whose returns are held at a time: 4 MiB."""

_HINT = "Convert or build the store again."


@dataclass(frozen=True)
class Block:
    """The rows of some nodes.

    Attributes
    ----------
    nodes : slice or (n,) int64
        Which nodes; ascending.
    rows : sequence of (n * A,) float64
        For each valuation, the expected return of every row: NaN where it isn't legal. A buffer that the next
        block overwrites.
    """

    nodes: slice | NDArray[np.int64]
    rows: Sequence[NDArray[np.float64]]


class RowSource(ABC):
    """Works out expected returns; several threads may visit different nodes at once.

    Attributes
    ----------
    name : str
        How rows are gone through.
    chunk_edges : int
        Edges looked at at a time, about, where they are.
    """

    name: str
    chunk_edges = _CHUNK_EDGES

    def __init__(self, graph: Graph, terms: Terms) -> None:
        self.graph = graph
        self.terms = terms
        self.num_joint_actions = graph.num_joint_actions

    @property
    def num_units(self) -> int:
        """What a sweep goes through: nodes, if not said otherwise."""
        return self.graph.num_nodes

    def gains(self, valuation: Valuation) -> Gains:
        """Lay gains out as this source reads them."""
        return self.terms.gains(valuation)

    def bounds(self, parts: int) -> list[int]:
        """Divide the units into parts: where each begins, and the last ends."""
        return [int(at) for at in np.unique(np.linspace(0, self.num_units, parts + 1).astype(np.int64))]

    @abstractmethod
    def visit(self, first: int, stop: int, gains: Sequence[Gains]) -> Iterator[Block]:
        """Go through units in order, some at a time.

        Raises
        ------
        CorruptStoreError
            If a file is damaged where it was read.
        """

    def _step(self) -> int:
        """Nodes at a time."""
        graph = self.graph
        edges = max(1, graph.num_edges // max(1, graph.num_nodes))
        nodes = min(self.chunk_edges // edges, _CHUNK_ROWS // graph.num_joint_actions)
        return max(1, nodes)

    def _block(self, chunk_row: int, count: int, rows: Sequence[NDArray[np.float64]]) -> Block:
        first = chunk_row // self.num_joint_actions
        return Block(slice(first, first + count // self.num_joint_actions), rows)


class MassSource(RowSource):
    """Moves mass besides, to *places*: nodes, or what gains are looked up by."""

    @property
    def num_places(self) -> int:
        """Nodes, if not said otherwise."""
        return self.graph.num_nodes

    @abstractmethod
    def push(
        self,
        first: int,
        stop: int,
        mass: NDArray[np.float64],
        sides: Sides,
        policies: tuple[Policy, Policy],
        out: NDArray[np.float64],
    ) -> None:
        """Move the mass on nodes, (N,), of units first..stop-1 along their rows; added to `out`, (places,).

        Both sides play by policies, the own side's first.

        Raises
        ------
        CorruptStoreError
            If a file is damaged where it was read.
        """

    def by_node(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values of places, (places,), as those of nodes, (N,)."""
        return values

    def check_mass(self, mass: NDArray[np.float64]) -> None:
        """Check that none has come to places, (places,), without a node."""


class EdgeSource(MassSource):
    """Goes through the edges as the encoding sweeps them: of any encoding, sequentially.

    What an edge is worth is looked up by its next node and outcome code; nothing else is decoded.
    """

    name = "edges"

    def visit(self, first: int, stop: int, gains: Sequence[Gains]) -> Iterator[Block]:
        """Go through nodes; see :class:`RowSource`."""
        joint = self.num_joint_actions
        step = self._step()
        rows = [np.empty(step * joint) for _ in gains]
        for chunk in self.graph.encoding.sweep(first * joint, stop * joint, step * joint):
            count = len(chunk.offsets) - 1
            how, probability = self._probability(chunk)
            for gain, out in zip(gains, rows, strict=True):
                status, row = edge_kernels.back_up_edges(
                    chunk.first_row,
                    joint,
                    as_input(chunk.offsets, np.int64),
                    *_edges(chunk),
                    how,
                    probability,
                    gain.table,
                    gain.plain,
                    gain.base,
                    gain.marked,
                    gain.code_reward,
                    gain.code_keep,
                    out[:count],
                )
                if status != edge_kernels.OK:
                    raise_bad_row(status, chunk.first_row + row, joint)
            yield self._block(chunk.first_row, count, [out[:count] for out in rows])

    def push(
        self,
        first: int,
        stop: int,
        mass: NDArray[np.float64],
        sides: Sides,
        policies: tuple[Policy, Policy],
        out: NDArray[np.float64],
    ) -> None:
        """Move mass along edges; see :class:`MassSource`."""
        joint = self.num_joint_actions
        step = self._step() * joint
        for chunk in self.graph.encoding.sweep(first * joint, stop * joint, step):
            node = chunk.first_row // joint
            here = mass[node : node + (len(chunk.offsets) - 1) // joint]
            if not here.any():
                continue
            how, probability = self._probability(chunk)
            arguments: list[Any] = [as_input(chunk.offsets, np.int64), *_edges(chunk), how, probability]
            arguments += plays(sides, *policies, slice(node, node + len(here)), len(here))
            arguments += [as_input(here, np.float64), out]
            status, row = push_kernels.push_edges(*arguments)
            if status != edge_kernels.OK:
                raise_bad_row(status, chunk.first_row + row, joint)

    def _probability(self, chunk: RowChunk) -> tuple[int, NDArray[np.float64]]:
        """Where the probabilities of a chunk's edges are."""
        attribute = self.graph.attribute("probability")
        if attribute.level == "graph" or (attribute.level == "outcome" and chunk.outcome is None):
            return edge_kernels.CONSTANT, as_input(np.asarray(attribute.values), np.float64)
        if attribute.level == "outcome":
            return edge_kernels.PER_CODE, as_input(np.asarray(attribute.values), np.float64)
        count = len(chunk.offsets) - 1
        edges = EdgeSet(
            chunk.offsets,
            slice(chunk.first_row, chunk.first_row + count),
            self.num_joint_actions,
            chunk.next_node,
            chunk.outcome,
            slice(chunk.first_edge, chunk.first_edge + len(chunk.next_node)),
            chunk.attributes,
        )
        found = as_input(attribute.of(edges), np.float64)
        attribute.give_back(edges)
        return edge_kernels.PER_EDGE, found


class ResolvedSource(RowSource):
    """Resolves reward and done of every edge: where they are a function of nothing less."""

    name = "resolved edges"
    chunk_edges = _RESOLVED_EDGES

    def gains(self, valuation: Valuation) -> Gains:
        """Keep the valuation: there is nothing to lay out."""
        nothing = as_input(np.empty(0), np.float64)
        flags = as_input(np.empty(0), np.uint8)
        return Gains(valuation, nothing, nothing, nothing, flags, nothing, nothing)

    def visit(self, first: int, stop: int, gains: Sequence[Gains]) -> Iterator[Block]:
        """Go through nodes; see :class:`RowSource`."""
        step = self._step() * self.num_joint_actions
        rows = [np.empty(step) for _ in gains]
        for chunk in self.graph.sweep(step, start_node=first, stop_node=stop):
            found = chunk.successors
            count = len(found.offsets) - 1
            for gain, out in zip(gains, rows, strict=True):
                asked = gain.valuation
                edge_kernels.back_up_resolved(
                    as_input(found.offsets, np.int64),
                    as_input(found.next_node, np.int64),
                    as_input(found.probability, np.float64),
                    as_input(found.reward, np.float64),
                    as_input(found.done, np.bool_),
                    as_input(asked.weights, np.float64),
                    as_input(asked.values, np.float64),
                    float(asked.discount),
                    self.terms.ends,
                    float(asked.sign),
                    out[:count],
                )
            yield self._block(chunk.first_row, count, [out[:count] for out in rows])


def _edges(chunk: RowChunk) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return next nodes and outcome codes, empty where there are none, as kernels take them."""
    codes = np.empty(0, np.uint8) if chunk.outcome is None else chunk.outcome
    return as_input(chunk.next_node, chunk.next_node.dtype), as_input(codes, codes.dtype)


def raise_bad_row(status: int, row: int, num_joint_actions: int) -> None:
    """Raise the error for what a kernel found wrong with a row."""
    node, action = divmod(row, num_joint_actions)
    reason = {
        edge_kernels.BAD_NODE: "a next node doesn't exist",
        edge_kernels.BAD_CODE: "an outcome code isn't in the table of outcomes",
    }[status]
    raise CorruptStoreError(
        f"rows: row {row} (node {node}, joint action {action}) is damaged: {reason}", _HINT
    )
