"""A world's rows as a row encoding: made when they are asked for, nodes sorted by state vector."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.format.states import StateCodec
from omstore.rows import DrawnEdges, Edges, GraphSize, Probabilities, RowChunk, RowEncoding
from omstore.rows.encoding import next_node_dtype, outcome_dtype
from tools.worlds.world import World

Vectors = Callable[[NDArray[np.int64]], NDArray[Any]]


class WorldRows(RowEncoding):
    """The rows of a world; outcome codes stand for its probabilities alone.

    `vectors` may lay the states out otherwise than the world does.
    """

    name = "world"

    def __init__(self, world: World, vectors: Vectors | None = None, component_bits: int = 1) -> None:
        self.world = world
        every = np.arange(world.num_nodes)
        states = (vectors or world.vectors)(every)
        self.codec = StateCodec(states.shape[1], component_bits)
        packed = self.codec.pack(states)
        self.order = np.lexsort(packed.T[::-1])  # node -> the world's own number
        self.rank = np.empty_like(self.order)
        self.rank[self.order] = every
        self.packed = packed[self.order]
        self.packed.flags.writeable = False
        self.table = self._probabilities()
        self.size = GraphSize(world.num_nodes, world.num_joint_actions, -1, max(1, len(self.table)))

    def _probabilities(self) -> NDArray[np.float64]:
        """All distinct probabilities: of every row, or of enough of them for the worlds tested."""
        rng = np.random.default_rng(5)
        rows = self.world.num_nodes * self.world.num_joint_actions
        parts = [np.arange(rows)] if rows <= 1 << 16 else [rng.integers(0, rows, 3000) for _ in range(20)]
        seen = []
        for part in parts:
            nodes, joint = np.divmod(part, self.world.num_joint_actions)
            seen.append(np.unique(self._successors(nodes, joint)[2]))
        return np.unique(np.concatenate(seen))

    def _successors(self, nodes: Any, joint: Any) -> tuple[Any, Any, Any]:
        found = self.world.successors(self.order[nodes], joint)
        rows = np.repeat(np.arange(len(nodes)), np.diff(found.offsets))
        successors = self.rank[found.next_node]
        within = np.lexsort((successors, rows))
        return found.offsets, successors[within], found.probability[within]

    def outdegree(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.diff(self.gather(rows).offsets)

    def gather(self, rows: NDArray[np.int64], *, edges: bool = False) -> Edges:
        offsets, successors, chance = self._successors(*np.divmod(rows, self.size.num_joint_actions))
        code = np.searchsorted(self.table, chance)
        assert (self.table[np.minimum(code, len(self.table) - 1)] == chance).all()
        return Edges(offsets, successors, code if len(self.table) > 1 else None, None)

    def sample(self, rows: Any, uniforms: Any, probabilities: Probabilities) -> DrawnEdges:
        raise NotImplementedError

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        first_edge = 0
        for first in range(start_row, stop_row, chunk_rows):
            edges = self.gather(np.arange(first, min(first + chunk_rows, stop_row)))
            next_node = edges.next_node.astype(next_node_dtype(self.size.num_nodes))
            codes = edges.outcome
            if codes is not None:
                codes = codes.astype(outcome_dtype(self.size.num_outcomes))
            yield RowChunk(first, first_edge, edges.offsets, next_node, codes)
            first_edge += len(edges.next_node)

    def nbytes(self) -> Mapping[str, int]:
        return {}
