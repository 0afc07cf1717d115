"""What all exports hold: a graph's edges as columns, swept once, and its nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError
from omstore.format.manifest import Manifest
from omstore.format.states import StateCodec
from omstore.memory import DEFAULT_BUDGET
from omstore.progress import Progress, silent
from omstore.read import Graph, SweepChunk

__all__ = ["Column", "Source", "edge_columns"]

_NODE_BYTES = 1 << 22  # of the states of nodes taken at a time
_NEEDED = ("probability", "reward", "done")


@dataclass(frozen=True)
class Column:
    """A column of the edges.

    Attributes
    ----------
    name : str
    dtype : dtype
    item_shape : tuple of int
        Of one edge's value.
    of : callable
        Takes the column out of a chunk: (E', \\*item_shape), C-contiguous, of `dtype`.
    """

    name: str
    dtype: np.dtype[Any]
    item_shape: tuple[int, ...]
    of: Callable[[SweepChunk], NDArray[Any]]

    @property
    def itemsize(self) -> int:
        """Bytes of one edge's value."""
        return int(self.dtype.itemsize * math.prod(self.item_shape))


def edge_columns(source: Source, next_node: np.typing.DTypeLike) -> list[Column]:
    """List the columns of a graph's edges: next node, probability, reward, done and ``kept_NAME``.

    Parameters
    ----------
    source : Source
    next_node : dtype
        What next nodes are to be written as.
    """
    graph = source.graph

    def kept(name: str) -> Column:
        attribute = graph.attribute(name)
        little = attribute.dtype.newbyteorder("<")
        return Column(
            f"kept_{name}",
            little,
            attribute.item_shape,
            lambda chunk: np.ascontiguousarray(chunk.successors.kept[name], little),
        )

    nodes = np.dtype(next_node).newbyteorder("<")
    double = np.dtype("<f8")
    reward = Column(
        "reward",
        double,
        (len(graph.agents),),
        lambda chunk: np.ascontiguousarray(chunk.successors.reward, double),
    )
    return [
        Column("next_node", nodes, (), lambda chunk: chunk.successors.next_node.astype(nodes)),
        Column(
            "probability",
            double,
            (),
            lambda chunk: np.ascontiguousarray(chunk.successors.probability, double),
        ),
        *([reward] if source.rewards else []),
        Column(
            "done", np.dtype(bool), (), lambda chunk: np.ascontiguousarray(chunk.successors.done, np.bool_)
        ),
        *(kept(name) for name in kept_names(graph)),
    ]


@dataclass(frozen=True)
class Source:
    """What is exported: the graph of a store, swept with everything its edges carry.

    Attributes
    ----------
    graph : Graph
    manifest : Manifest
        Of the store's version.
    max_ram : int
        Bytes of anonymous memory; what is written doesn't depend on it.
    progress : Progress
    rewards : bool
        Whether rewards are written.
    """

    graph: Graph
    manifest: Manifest
    max_ram: int = DEFAULT_BUDGET
    progress: Progress = field(default_factory=silent)
    rewards: bool = True

    @property
    def codec(self) -> StateCodec:
        """Of the states."""
        return self.manifest.state

    @property
    def has_legacy_ids(self) -> bool:
        """Whether the graph came from a pickle that numbered its nodes."""
        return "nodes/legacy_id/zarr.json" in self.manifest.files

    def chunk_rows(self) -> int:
        """Choose how many rows are taken at a time: an eighth of the budget holds their edges, on average."""
        kept = sum(
            attribute.dtype.itemsize * math.prod(attribute.item_shape)
            for attribute in self.graph.attributes.values()
        )
        edges = min(1 << 17, max(1 << 12, self.max_ram // 8 // (96 + 3 * kept)))
        mean = max(1.0, self.graph.num_edges / max(1, self.graph.num_rows))
        return max(1, min(1 << 16, int(edges / mean)))

    def sweep(self, chunk_rows: int | None = None) -> Iterator[SweepChunk]:
        """Go through all rows once, with kept fields, showing progress.

        Raises
        ------
        CorruptStoreError
            If there are others than the manifest counts; or a file is damaged where it was read.
        """
        graph, edges = self.graph, 0
        with self.progress.task("writing edges", graph.num_edges, "edges") as task:
            for chunk in graph.sweep(chunk_rows or self.chunk_rows(), keep=kept_names(graph)):
                yield chunk
                edges += len(chunk.successors.next_node)
                task.update(len(chunk.successors.next_node))
        if edges != graph.num_edges:
            raise CorruptStoreError(f"the rows have {edges:,} edges; the manifest says {graph.num_edges:,}")

    def nodes(self, bytes_each: int) -> Iterator[NDArray[np.int64]]:
        """Go through all nodes, 4 MiB at a time where a node takes `bytes_each`."""
        step = max(1, _NODE_BYTES // max(8, bytes_each))
        for first in range(0, self.graph.num_nodes, step):
            yield np.arange(first, min(first + step, self.graph.num_nodes))


def kept_names(graph: Graph) -> tuple[str, ...]:
    """Name the kept fields of a graph's edges."""
    return tuple(name for name in graph.attributes if name not in _NEEDED)
