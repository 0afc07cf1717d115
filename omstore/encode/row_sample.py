"""Random rows of a graph, gathered a bounded number of edges at a time: what factorings are found from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from omstore.encode import factoring_kernels as kernels
from omstore.rows import Edges, Probabilities, RowEncoding

__all__ = ["MAX_EDGES", "ActionGrid", "RowSample", "RowSampler", "ragged_positions"]

MAX_EDGES = 1 << 21
"""Edges gathered at a time: up to 100 MiB with what is made of them. Not a part of the budget: what is
found must not depend on it."""


@dataclass(frozen=True)
class ActionGrid:
    """Joint actions as one action per agent, agent 0 most significant."""

    num_actions: tuple[int, ...]

    @cached_property
    def strides(self) -> NDArray[np.int64]:
        """(agents,) what one action counts in a joint action."""
        later = [math.prod(self.num_actions[agent + 1 :]) for agent in range(len(self.num_actions))]
        return np.array(later, np.int64)

    def action(self, joint: NDArray[np.int64], agent: int) -> NDArray[np.int64]:
        """Return an agent's part of joint actions."""
        return np.asarray(joint // self.strides[agent] % self.num_actions[agent])

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Draw joint actions, each equally likely."""
        return rng.integers(0, math.prod(self.num_actions), count)

    def with_action(
        self, joint: NDArray[np.int64], agent: int, action: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Replace an agent's action in joint actions."""
        return np.asarray(joint + (action - self.action(joint, agent)) * self.strides[agent])


@dataclass(frozen=True)
class RowSample:
    """Rows with their edges, in csr form.

    Attributes
    ----------
    nodes, joint : (R,) int64
    offsets : (R + 1,) int64
    next_node : (E',) int64
    code : (E',) int64, or None
        Outcome codes; None where there is one outcome only.
    chance : (E',) float64
        Probabilities.
    """

    nodes: NDArray[np.int64]
    joint: NDArray[np.int64]
    offsets: NDArray[np.int64]
    next_node: NDArray[np.int64]
    code: NDArray[np.int64] | None
    chance: NDArray[np.float64]

    @cached_property
    def legal(self) -> NDArray[np.bool_]:
        """(R,) whether the row has successors."""
        return np.diff(self.offsets) > 0

    @cached_property
    def stays(self) -> NDArray[np.bool_]:
        """(R,) whether the row leads nowhere but back to its node; so does one without successors."""
        out = np.empty(len(self.nodes), np.uint8)
        kernels.self_loops(self.nodes, self.offsets, self.next_node, out)
        return out > 0


class RowSampler:
    """Gathers rows of one graph.

    Parameters
    ----------
    source : RowEncoding
    probabilities : Probabilities
        Of the edges of `source`.
    num_actions : sequence of int
        Of each agent.
    """

    def __init__(self, source: RowEncoding, probabilities: Probabilities, num_actions: Sequence[int]) -> None:
        self.source = source
        self.grid = ActionGrid(tuple(num_actions))
        self._probabilities = probabilities

    @property
    def level(self) -> str:
        """Where the probability of an edge is found (see `Probabilities`)."""
        return self._probabilities.level

    @property
    def table(self) -> NDArray[np.float64]:
        """(K,) the probability of each outcome code."""
        return np.asarray(self._probabilities.values, np.float64)

    def outdegree(self, nodes: NDArray[np.int64], joint: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of successors of rows."""
        return self.source.outdegree(self._rows(nodes, joint))

    def gather(self, nodes: NDArray[np.int64], joint: NDArray[np.int64]) -> RowSample:
        """Gather rows; memory: 16 to 24 bytes an edge."""
        found = self.source.gather(self._rows(nodes, joint), edges=self._probabilities.level == "edge")
        code = None if found.outcome is None else found.outcome.astype(np.int64)
        return RowSample(nodes, joint, found.offsets, found.next_node, code, self._chance(found))

    def batches(
        self, nodes: NDArray[np.int64], joint: NDArray[np.int64], group: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], RowSample]]:
        """Gather rows at most `MAX_EDGES` edges at a time, keeping those of a group together.

        A group is cut short where it has more edges than that by itself. Yields the positions of the rows in
        the batch, and the rows. Rows of a group must be consecutive.
        """
        ends = np.cumsum(self.outdegree(nodes, joint))
        heads = np.append(np.flatnonzero(np.diff(group, prepend=group[:1] - 1)), len(group))
        first = 0
        while first < len(nodes):
            limit = MAX_EDGES + (int(ends[first - 1]) if first else 0)
            fits = int(np.searchsorted(ends, limit, side="right"))
            start = int(np.searchsorted(heads, first, side="right"))
            stop = int(heads[max(start, int(np.searchsorted(heads, fits, side="right")) - 1)])
            rows = np.arange(first, min(stop, max(fits, first + 1)))
            yield rows, self.gather(nodes[rows], joint[rows])
            first = stop

    def _rows(self, nodes: NDArray[np.int64], joint: NDArray[np.int64]) -> NDArray[np.int64]:
        return nodes * self.source.size.num_joint_actions + joint

    def _chance(self, found: Edges) -> NDArray[np.float64]:
        level, values = self._probabilities.level, self._probabilities.values
        if level == "rows":
            return np.asarray(found.attributes["probability"], np.float64)
        if level == "edge":
            take = getattr(values, "take", None)
            return np.asarray(values[found.edge] if take is None else take(found.edge), np.float64)
        if found.outcome is None or level == "graph":
            return np.full(len(found.next_node), float(values[0]))
        return np.asarray(self.table[found.outcome])


def ragged_positions(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Concatenate ``arange(start, start + length)`` over all pairs."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(starts - (ends - lengths), lengths))
