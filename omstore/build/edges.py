"""Spooled edges into rows: conversion's sort, then the encoder all rows go through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.build.tables import SpooledTable
from omstore.convert.actions import ActionSpace
from omstore.convert.edges import build_edges
from omstore.convert.nodes import NodeTable
from omstore.convert.resolve import EdgeStream
from omstore.encode import EncodedRows, RowsToEncode, encode_rows
from omstore.legacy.mapping import GraphMapping
from omstore.progress import Progress
from omstore.publish.staging import Staging

__all__ = ["EDGE_COLUMNS", "SameNodes", "edge_table", "encode_edges"]

EDGE_COLUMNS = ("node", "joint_action", "next_node", "probability", "reward", "done")
"""Columns of the table of edges; the last three may be missing."""


class SameNodes:
    """Endpoints that are the nodes themselves."""

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    def resolve(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the nodes, (n, 1) -> (n,), -1 where there is none."""
        nodes = values[:, 0].astype(np.int64)
        return np.where((nodes >= 0) & (nodes < self._num_nodes), nodes, -1)

    def describe(self, value: NDArray[Any]) -> str:
        """Write an endpoint that is no node."""
        return f"{value[0]} (nodes are numbered 0 to {self._num_nodes - 1:,})"


def edge_table(folder: Path, num_agents: int, columns: tuple[str, ...], *, where: str) -> SpooledTable:
    """Begin a table of edges that has some of `EDGE_COLUMNS`."""
    known: dict[str, tuple[Any, int | None]] = {
        "node": (np.int64, None),
        "joint_action": (np.int64, None),
        "next_node": (np.int64, None),
        "probability": (np.float64, None),
        "reward": (np.float64, num_agents),
        "done": (np.uint8, None),
    }
    return SpooledTable(where, folder, [(name, *known[name]) for name in columns])


@dataclass(frozen=True)
class EncodedEdges:
    """Rows written of a table of edges."""

    encoded: EncodedRows
    num_edges: int
    num_legal_rows: int
    notes: list[str]


def encode_edges(
    table: SpooledTable,
    nodes: NodeTable,
    agents: tuple[str, ...],
    num_actions: tuple[int, ...],
    packed: NDArray[np.uint8],
    staging: Staging,
    *,
    rows: str,
    max_ram: int,
    progress: Progress,
    dry_run: bool = False,
    take_scratch: Callable[[], object] = lambda: None,
) -> EncodedEdges:
    """Sort spooled edges into rows, and write them in the best encoding or the one asked for.

    Parameters
    ----------
    table : SpooledTable
        Of `EDGE_COLUMNS`.
    nodes : NodeTable
    packed : (N, Wb) uint8
        The sorted packed states, mapped.
    rows : str
        ``auto`` or an encoding that is stored.
    max_ram : int
        Bytes of anonymous memory.
    take_scratch : callable
        Called when the table isn't needed any more.

    Others as in conversion, and so are the errors.
    """
    records = table.records()
    names = table.names

    def optional(name: str) -> Any:
        return table.field(name) if name in names else None

    mapping = GraphMapping(
        edges=records,
        nodes=None,
        source=table.field("node"),
        next_node=table.field("next_node"),
        joint_action=table.field("joint_action"),
        probability=optional("probability"),
        reward=optional("reward"),
        done=optional("done"),
        kept=(),
        agents=agents,
        num_agents=len(agents),
    )
    stream = EdgeStream(table.reader(), mapping, nodes.endpoints, ActionSpace(num_actions), table.name)
    budget = max(8 << 20, max_ram // 8)  # what is left beside Python and numpy, as in conversion
    with progress.task("sorting edges", 3 * stream.num_edges, "edges") as task:
        edges = build_edges(stream, nodes, staging, budget, task.update)
    take_scratch()
    encoded = encode_rows(
        RowsToEncode(
            edges.staged_rows(), edges.attributes, packed, nodes.codec, num_actions, staged=edges.scratch
        ),
        staging,
        rows=rows,
        budget=max_ram,
        all_forecasts=dry_run,
        dry_run=dry_run,
        progress=progress,
    )
    edges.scratch.remove()
    return EncodedEdges(encoded, edges.size.num_edges, edges.num_legal_rows, edges.notes)
