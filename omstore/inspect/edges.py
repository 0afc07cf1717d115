"""One pass over the rows of a graph: what `stats` says of its edges, nodes and joint actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input, kernel
from omstore.inspect.bits import new_bits
from omstore.inspect.node_ranges import NodeRanges
from omstore.memory import DEFAULT_BUDGET
from omstore.progress import Progress, silent
from omstore.read import Graph, SweepChunk

__all__ = [
    "ActionShare",
    "EdgeSummary",
    "NumberSummary",
    "OutdegreeBin",
    "RewardSummary",
    "chunk_rows",
    "sweep_edges",
]

_EXACT = 1024
"""Outdegrees below this are counted one by one, those above by their power of two."""

# Positions in the kernel's integer counters.
_NODE, _NODE_LEGAL, _NODE_LEAVES, _ABSORBING, _DEAD_ENDS, _LEGAL_ROWS, _SELF, _DONE, _MAX_DEGREE = range(9)
# Positions in its float accumulators; the sums of rewards have a table of their own.
_P_MIN, _P_MAX, _P_SUM, _ROW_ERROR = range(4)
_R_MIN, _R_MAX, _R_SUM, _R_EXPECTED, _R_NONZERO, _R_NONFINITE = range(6)


@kernel
def _count_rows(
    first_row: int,
    num_joint_actions: int,
    offsets: Any,
    next_node: Any,
    probability: Any,
    reward: Any,
    done: Any,
    counters: Any,
    floats: Any,
    rewards: Any,
    outdegree: Any,
    legal: Any,
    entered: Any,
) -> None:
    """Add the rows of a chunk to the counters; a node may begin in one chunk and end in the next.

    `entered` is empty where it isn't asked for.
    """
    agents = reward.shape[1]
    for row in range(offsets.size - 1):
        number = first_row + row
        node = number // num_joint_actions
        if node != counters[_NODE]:
            if counters[_NODE] >= 0:
                counters[_DEAD_ENDS] += counters[_NODE_LEGAL] == 0
                counters[_ABSORBING] += counters[_NODE_LEGAL] > 0 and counters[_NODE_LEAVES] == 0
            counters[_NODE] = node
            counters[_NODE_LEGAL] = 0
            counters[_NODE_LEAVES] = 0
        begin = offsets[row]
        end = offsets[row + 1]
        degree = end - begin
        counters[_MAX_DEGREE] = max(counters[_MAX_DEGREE], degree)
        if degree < _EXACT:
            outdegree[degree] += 1
        else:
            power = 0
            while degree >> (power + 1) > 0:
                power += 1
            outdegree[_EXACT + power] += 1
        if degree == 0:
            continue
        counters[_LEGAL_ROWS] += 1
        counters[_NODE_LEGAL] += 1
        legal[number - node * num_joint_actions] += 1
        total = 0.0
        for edge in range(begin, end):
            target = next_node[edge]
            if target == node:
                counters[_SELF] += 1
            else:
                counters[_NODE_LEAVES] = 1
                if entered.size:
                    entered[target >> 3] |= np.uint8(1 << (target & 7))
            p = probability[edge]
            total += p
            floats[_P_MIN] = min(floats[_P_MIN], p)
            floats[_P_MAX] = max(floats[_P_MAX], p)
            counters[_DONE] += done[edge] != 0
            for agent in range(agents):
                value = reward[edge, agent]
                if not np.isfinite(value):
                    rewards[_R_NONFINITE, agent] += 1
                    continue
                rewards[_R_MIN, agent] = min(rewards[_R_MIN, agent], value)
                rewards[_R_MAX, agent] = max(rewards[_R_MAX, agent], value)
                rewards[_R_SUM, agent] += value
                rewards[_R_EXPECTED, agent] += p * value
                rewards[_R_NONZERO, agent] += value != 0
        floats[_P_SUM] += total
        floats[_ROW_ERROR] = max(floats[_ROW_ERROR], abs(total - 1.0))


@dataclass(frozen=True)
class NumberSummary:
    """Smallest, largest and mean of some numbers; None where there are none."""

    minimum: float | None
    maximum: float | None
    mean: float | None


@dataclass(frozen=True)
class RewardSummary:
    """An agent's rewards over all edges.

    Attributes
    ----------
    agent : str
    minimum, maximum, mean : float or None
        Over the edges with a finite reward, each counted once; None where there are none.
    expected : float or None
        Mean over legal rows of the reward expected, by the edges' probabilities.
    nonzero_share : float
        Share of edges with another reward than 0, 0 to 1.
    nonfinite : int
        Edges whose reward is NaN or infinite; they count in nothing else.
    """

    agent: str
    minimum: float | None
    maximum: float | None
    mean: float | None
    expected: float | None
    nonzero_share: float
    nonfinite: int


@dataclass(frozen=True)
class OutdegreeBin:
    """Rows with `low` to `high` successors, both included."""

    low: int
    high: int
    rows: int


@dataclass(frozen=True)
class ActionShare:
    """Share of the nodes' rows that are legal among those with `action` of `agent`, 0 to 1."""

    agent: str
    action: int
    legal: float


@dataclass(frozen=True)
class EdgeSummary:
    """What a pass over the rows found; or over a sample of them, where the graph is too large.

    Of a sample, numbers of rows and nodes are those found times the nodes there are for each that was read;
    shares and means are the sample's, and so are smallest and largest values.

    Attributes
    ----------
    estimated : bool
        Whether it was a sample.
    nodes_read, edges_read : int
        Nodes all of whose rows were read, and their edges.
    legal_rows : int
        Rows with at least one successor.
    max_outdegree : int
    mean_outdegree : float
        Over legal rows.
    outdegree : tuple of OutdegreeBin
        Rows by their number of successors; 0 first, where there are such.
    actions : tuple of ActionShare
    probability : NumberSummary
    row_error : float
        Largest difference of a legal row's sum of probabilities from 1.
    rewards : tuple of RewardSummary
    done_share, self_share : float
        Shares of edges that are done, and that lead back to their own node.
    absorbing : int
        Nodes with a legal row, all of whose edges lead back to them.
    dead_ends : int
        Nodes without any legal row.
    """

    estimated: bool
    nodes_read: int
    edges_read: int
    legal_rows: int
    max_outdegree: int
    mean_outdegree: float
    outdegree: tuple[OutdegreeBin, ...]
    actions: tuple[ActionShare, ...]
    probability: NumberSummary
    row_error: float
    rewards: tuple[RewardSummary, ...]
    done_share: float
    self_share: float
    absorbing: int
    dead_ends: int


def chunk_rows(graph: Graph, max_ram: int = DEFAULT_BUDGET) -> int:
    """Choose how many rows a sweep takes at a time: as many as an eighth of the budget holds on average."""
    per_edge = 64 + 16 * len(graph.agents)
    edges = min(1 << 17, max(1 << 12, max_ram // 8 // per_edge))
    mean = max(1.0, graph.num_edges / max(1, graph.num_rows))
    return max(1, min(1 << 17, int(edges / mean)))


def sweep_edges(
    graph: Graph,
    nodes: NodeRanges,
    *,
    max_ram: int = DEFAULT_BUDGET,
    progress: Progress | None = None,
) -> tuple[EdgeSummary, NDArray[np.uint8] | None]:
    """Go once through the rows of a graph, sequentially, or of ranges of its nodes.

    Parameters
    ----------
    graph : Graph
    nodes : NodeRanges
        Whose rows are read, from `omstore.inspect.node_ranges.ranges_to_read`.
    max_ram : int
        Bytes of anonymous memory; one chunk of rows, 8 bytes for each joint action, and a bit for each node
        (in a file where it doesn't fit).
    progress : Progress, optional

    Returns
    -------
    summary : EdgeSummary
    entered : (ceil(N / 8),) uint8, or None
        One bit a node: whether an edge from another node leads to it. None where not all rows were read.

    Raises
    ------
    CorruptStoreError
        If a file is damaged where it was read.
    """
    tally = _Tally(graph, new_bits(graph.num_nodes if nodes.whole else 0, max_ram // 8))
    expected = graph.num_edges * nodes.num_nodes // max(1, graph.num_nodes)
    with (progress or silent()).task("reading rows", expected, "edges") as task:
        for chunk in nodes.sweep(graph, chunk_rows(graph, max_ram)):
            tally.add(chunk)
            task.update(len(chunk.successors.next_node))
    return tally.summary(nodes), tally.entered if nodes.whole else None


class _Tally:
    """Counters of everything that a pass counts."""

    def __init__(self, graph: Graph, entered: NDArray[np.uint8]) -> None:
        self.graph = graph
        self.entered = entered
        self.counters = np.zeros(9, np.int64)
        self.counters[_NODE] = -1
        self.floats = np.zeros(4)
        self.floats[_P_MIN], self.floats[_P_MAX] = math.inf, -math.inf
        self.rewards = np.zeros((6, len(graph.agents)))
        self.rewards[_R_MIN], self.rewards[_R_MAX] = math.inf, -math.inf
        self.outdegree = np.zeros(_EXACT + 64, np.int64)
        self.legal = np.zeros(graph.num_joint_actions, np.int64)
        self.edges = 0

    def add(self, chunk: SweepChunk) -> None:
        """Count the rows of a chunk."""
        found = chunk.successors
        _count_rows(
            chunk.first_row,
            self.graph.num_joint_actions,
            as_input(found.offsets, np.int64),
            as_input(found.next_node, np.int64),
            as_input(found.probability, np.float64),
            as_input(found.reward, np.float64),
            as_input(found.done.view(np.uint8), np.uint8),
            self.counters,
            self.floats,
            self.rewards,
            self.outdegree,
            self.legal,
            self.entered,
        )
        self.edges += len(found.next_node)

    def summary(self, nodes: NodeRanges) -> EdgeSummary:
        """Sum up; nothing can be added afterwards."""
        graph, counters, floats, edges = self.graph, self.counters, self.floats, self.edges
        counters[_DEAD_ENDS] += counters[_NODE_LEGAL] == 0  # the last node has none after it
        counters[_ABSORBING] += counters[_NODE_LEGAL] > 0 and counters[_NODE_LEAVES] == 0
        legal_rows = int(counters[_LEGAL_ROWS])
        share = 1 / edges if edges else 0.0

        def scaled(count: int) -> int:
            return round(count * graph.num_nodes / nodes.num_nodes) if not nodes.whole else count

        bins = _bins(self.outdegree, int(counters[_MAX_DEGREE]))
        return EdgeSummary(
            estimated=not nodes.whole,
            nodes_read=nodes.num_nodes,
            edges_read=edges,
            legal_rows=scaled(legal_rows),
            max_outdegree=int(counters[_MAX_DEGREE]),
            mean_outdegree=edges / legal_rows if legal_rows else 0.0,
            outdegree=tuple(OutdegreeBin(entry.low, entry.high, scaled(entry.rows)) for entry in bins),
            actions=_action_shares(graph, self.legal, nodes.num_nodes),
            probability=NumberSummary(
                float(floats[_P_MIN]) if edges else None,
                float(floats[_P_MAX]) if edges else None,
                float(floats[_P_SUM] / edges) if edges else None,
            ),
            row_error=float(floats[_ROW_ERROR]),
            rewards=tuple(
                _reward(agent, self.rewards[:, i], edges, legal_rows) for i, agent in enumerate(graph.agents)
            ),
            done_share=float(counters[_DONE] * share),
            self_share=float(counters[_SELF] * share),
            absorbing=scaled(int(counters[_ABSORBING])),
            dead_ends=scaled(int(counters[_DEAD_ENDS])),
        )


def _reward(agent: str, sums: NDArray[np.float64], edges: int, legal_rows: int) -> RewardSummary:
    nonfinite = int(sums[_R_NONFINITE])
    count = edges - nonfinite
    return RewardSummary(
        agent=agent,
        minimum=float(sums[_R_MIN]) if count else None,
        maximum=float(sums[_R_MAX]) if count else None,
        mean=float(sums[_R_SUM] / count) if count else None,
        expected=float(sums[_R_EXPECTED] / legal_rows) if count else None,
        nonzero_share=float(sums[_R_NONZERO] / edges) if edges else 0.0,
        nonfinite=nonfinite,
    )


def _bins(counts: NDArray[np.int64], largest: int, most: int = 24) -> tuple[OutdegreeBin, ...]:
    """Make bins of one outdegree each while there are few, else of powers of two."""
    exact = np.flatnonzero(counts[:_EXACT])
    if largest < _EXACT and len(exact) <= most:
        return tuple(OutdegreeBin(int(d), int(d), int(counts[d])) for d in exact)
    bins = [OutdegreeBin(0, 0, int(counts[0]))] if counts[0] else []
    for power in range(int(largest).bit_length()):
        low, high = 1 << power, (1 << (power + 1)) - 1
        rows = counts[low : high + 1].sum() if low < _EXACT else counts[_EXACT + power]
        if rows:
            bins.append(OutdegreeBin(low, min(high, largest), int(rows)))
    return tuple(bins)


def _action_shares(graph: Graph, legal: NDArray[np.int64], nodes_read: int) -> tuple[ActionShare, ...]:
    by_agent = legal.reshape(graph.num_actions)
    shares = []
    for i, (agent, count) in enumerate(zip(graph.agents, graph.num_actions, strict=True)):
        others = tuple(axis for axis in range(len(graph.agents)) if axis != i)
        rows_each = nodes_read * graph.num_joint_actions // count
        for action, rows in enumerate(by_agent.sum(axis=others).tolist()):
            shares.append(ActionShare(agent, action, rows / rows_each if rows_each else 0.0))
    return tuple(shares)
