"""How much of a graph its replay has seen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input, kernel
from omstore.errors import CorruptStoreError
from omstore.inspect.bits import count_set, new_bits
from omstore.memory import DEFAULT_BUDGET
from omstore.progress import Progress, silent
from omstore.read import Graph, Replay

__all__ = ["Coverage", "sweep_replay"]

_CHUNK = 1 << 17


@kernel
def _visit(
    node: Any,
    next_node: Any,
    joint_action: Any,
    num_nodes: int,
    num_joint_actions: int,
    seen: Any,
    visited: Any,
    counts: Any,
) -> int:
    """Set the bits of nodes and rows; counts: on the graph, off it.

    Returns the first position whose numbers are out of range, or -1.
    """
    for i in range(node.size):
        if max(node[i], next_node[i]) >= num_nodes or not 0 <= joint_action[i] < num_joint_actions:
            return i
        if node[i] < 0 or next_node[i] < 0:
            counts[1] += 1
        else:
            counts[0] += 1
        if node[i] >= 0:
            seen[node[i] >> 3] |= np.uint8(1 << (node[i] & 7))
            row = node[i] * num_joint_actions + joint_action[i]
            visited[row >> 3] |= np.uint8(1 << (row & 7))
        if next_node[i] >= 0:
            seen[next_node[i] >> 3] |= np.uint8(1 << (next_node[i] & 7))
    return -1


@dataclass(frozen=True)
class Coverage:
    """What the replay has seen of the graph.

    Attributes
    ----------
    transitions : int
    off_graph : int
        Transitions whose state or next state isn't in the graph.
    off_graph_share : float
        Their share, 0 to 1.
    nodes, node_share : int, float
        Nodes that occur as a state or a next state, and their share of all nodes.
    rows, row_share : int, float
        Rows that were taken at least once, and their number over that of the legal rows.
    illegal : int
        Transitions from a node by a joint action that isn't legal there.
    """

    transitions: int
    off_graph: int
    off_graph_share: float
    nodes: int
    node_share: float
    rows: int
    row_share: float
    illegal: int


def sweep_replay(
    graph: Graph,
    replay: Replay,
    legal_rows: int,
    *,
    max_ram: int = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> tuple[Coverage, NDArray[np.uint8]]:
    """Go once through the nodes and joint actions of a replay.

    Parameters
    ----------
    graph : Graph
    replay : Replay
    legal_rows : int
        Of the graph, from `omstore.inspect.edges.sweep_edges`.
    max_ram : int
        Bytes of anonymous memory; a bit for each node and row (in a file where it doesn't fit).
    progress : Progress, optional

    Returns
    -------
    coverage : Coverage
    seen : (ceil(N / 8),) uint8
        One bit a node: whether it is in the replay.

    Raises
    ------
    CorruptStoreError
        If a node or joint action is out of range.
    """
    seen = new_bits(graph.num_nodes, max_ram // 8)
    visited = new_bits(graph.num_rows, max_ram // 8)
    counts = np.zeros(2, np.int64)
    illegal = 0
    with (progress or silent()).task("reading the replay", len(replay), "transitions") as task:
        for start in range(0, len(replay), _CHUNK):
            part = slice(start, start + _CHUNK)
            node = as_input(replay.nodes[part], np.int64)
            action = as_input(replay.joint_actions[part], np.int64)
            next_node = as_input(replay.next_nodes[part], np.int64)
            bad = _visit(
                node, next_node, action, graph.num_nodes, graph.num_joint_actions, seen, visited, counts
            )
            if bad >= 0:
                raise CorruptStoreError(
                    f"replay: transition {start + bad} has a node or joint action that doesn't exist",
                    "`omstore verify` looks for more.",
                )
            on_graph = np.flatnonzero(node >= 0)
            illegal += int(np.count_nonzero(graph.outdegree(node[on_graph], action[on_graph]) == 0))
            task.update(len(node))
    total, off = len(replay), int(counts[1])
    nodes, rows = count_set(seen), count_set(visited)
    return Coverage(
        transitions=total,
        off_graph=off,
        off_graph_share=off / total if total else 0.0,
        nodes=nodes,
        node_share=nodes / graph.num_nodes,
        rows=rows,
        row_share=rows / legal_rows if legal_rows else 0.0,
        illegal=illegal,
    ), seen
