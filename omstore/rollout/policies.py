"""Who plays by which policy: tables of cumulative probabilities, and the two sides of a joint action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.rollout.policy_kernels import LANES, cumulate

__all__ = ["GrowingPolicyTable", "PolicyTable", "Sides"]


class PolicyTable:
    """A policy as cumulative probabilities, for all nodes or for those that are visited.

    The action at a uniform number u is the number of cumulative probabilities (float32) that u isn't below;
    the last action of positive probability takes what rounding leaves of 1. So an action of probability 0 is
    never drawn. Memory: 4 bytes an action, a row's actions padded to a multiple of 8.

    Parameters
    ----------
    probabilities : (rows, actions) float32 or float64
        Each row sums to 1 within 1e-3.
    nodes : (rows,) integers, optional
        The node of each row, ascending; default: row r is node r.
    row_of : (N,) int32, optional
        Instead of `nodes`: the row of each node, -1 where it has none.
    out : PolicyTable, optional
        A table of as many rows and actions that isn't needed any more: its memory is used again.

    Attributes
    ----------
    num_rows, num_actions : int

    Raises
    ------
    UsageError
        Naming the row that isn't a distribution; or if shapes don't go together.
    """

    def __init__(
        self,
        probabilities: NDArray[np.float32] | NDArray[np.float64],
        *,
        nodes: ArrayLike | None = None,
        row_of: NDArray[np.int32] | None = None,
        out: PolicyTable | None = None,
    ) -> None:
        given = np.asarray(probabilities)
        if given.ndim != 2 or given.shape[1] < 1 or given.dtype not in (np.float32, np.float64):
            raise UsageError(
                f"a policy is (rows, actions) float32 or float64, not {given.dtype} of shape {given.shape}"
            )
        self.num_rows, self.num_actions = given.shape
        self.stride = -(-self.num_actions // LANES) * LANES
        if out is None:
            self._memory = np.empty(self.num_rows * self.stride, np.float32)
        elif (out.num_rows, out.num_actions) == given.shape:
            self._memory = out._memory
        else:
            raise UsageError(f"a table of shape {given.shape} doesn't fit into one of {out.num_rows} rows")
        row = cumulate(as_input(given, given.dtype), self.stride, self._memory)
        if row >= 0:
            raise UsageError(f"row {row} of the policy isn't a distribution: {given[row]}")
        self.cumulative = as_input(self._memory, np.float32)
        self.nodes = as_input(np.empty(0) if nodes is None else np.asarray(nodes), np.int64)
        self.row_of = as_input(np.empty(0) if row_of is None else row_of, np.int32)
        self.everywhere = nodes is None and row_of is None
        if nodes is not None and (
            row_of is not None or self.nodes.shape != (self.num_rows,) or (np.diff(self.nodes) <= 0).any()
        ):
            raise UsageError(f"the nodes of {self.num_rows} rows are as many, ascending, and no row_of")
        if row_of is not None and len(row_of) and int(np.max(row_of)) >= self.num_rows:
            raise UsageError(f"row_of names row {int(np.max(row_of))} of {self.num_rows}")

    @property
    def nbytes(self) -> int:
        """Memory of the cumulative probabilities and of what finds a node's row."""
        return self._memory.nbytes + self.nodes.nbytes + self.row_of.nbytes

    def rows(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of nodes, (B,) -> (B,) int64, -1 where the table has none."""
        nodes = np.asarray(nodes, np.int64)
        if self.everywhere:
            return np.where(nodes < self.num_rows, nodes, -1)
        if self.row_of.size:
            return self.row_of[nodes].astype(np.int64)
        rows = np.minimum(np.searchsorted(self.nodes, nodes), max(0, self.num_rows - 1))
        return np.where(self.nodes[rows] == nodes, rows, -1) if self.num_rows else np.full(len(nodes), -1)

    def probabilities(self, rows: slice | NDArray[np.int64] = slice(None)) -> NDArray[np.float64]:
        """Return the probabilities that draws have: differences of the cumulative ones, (n, actions)."""
        table = self._memory.reshape(self.num_rows, self.stride)[rows, : self.num_actions]
        sums = np.minimum(table.astype(np.float64), 1.0)
        return np.diff(sums, axis=1, prepend=0.0)


class GrowingPolicyTable(PolicyTable):
    """A policy at the nodes that were added so far, for rollouts that go on step by step.

    Memory: 4 bytes a node of the graph, and 4 an action of each row there is room for, a row's actions padded to a
    multiple of 8.

    Parameters
    ----------
    num_nodes, num_actions : int
    capacity : int
        Rows there is room for.

    Attributes
    ----------
    used : int
        Rows there are.
    """

    def __init__(self, num_nodes: int, num_actions: int, capacity: int) -> None:
        self._row_of = np.full(num_nodes, -1, np.int32)
        super().__init__(np.empty((0, num_actions), np.float32), row_of=self._row_of)
        self.num_rows = capacity
        self._memory = np.empty(capacity * self.stride, np.float32)
        self.cumulative = as_input(self._memory, np.float32)
        self.used = 0

    def clear(self) -> None:
        """Take all rows out."""
        self._row_of.fill(-1)
        self.used = 0

    def missing(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return those of some nodes that have no row."""
        return nodes[self._row_of[nodes] < 0]

    def add(self, nodes: NDArray[np.int64], probabilities: NDArray[np.float32]) -> None:
        """Add rows.

        Parameters
        ----------
        nodes : (rows,) int64
            Without a row, each once.
        probabilities : (rows, actions) float32
            Each row sums to 1 within 1e-3.

        Raises
        ------
        UsageError
            Naming the node whose row isn't a distribution; or if there is no room. Nothing is added then.
        """
        end = self.used + len(nodes)
        if probabilities.shape != (len(nodes), self.num_actions) or end > self.num_rows:
            raise UsageError(
                f"probabilities of shape {probabilities.shape} for {len(nodes)} nodes don't fit into a table of "
                f"{self.num_rows:,} rows, {self.used:,} of them used, and {self.num_actions} actions"
            )
        own = self._memory[self.used * self.stride : end * self.stride]
        row = cumulate(as_input(probabilities, probabilities.dtype), self.stride, own)
        if row >= 0:
            raise UsageError(f"the policy at node {nodes[row]} isn't a distribution: {probabilities[row]}")
        self._row_of[nodes] = np.arange(self.used, end, dtype=np.int32)
        self.used = end


@dataclass(frozen=True)
class Sides:
    """The learner and the other side of a joint action.

    Attributes
    ----------
    learner_joint : (L,) int32
        What each of the learner's actions adds to the joint action. Where the learner is a team, its actions
        are the members' as one mixed-radix integer, in agent order.
    other_joint : (O,) int32
        The same of all other agents, in agent order.
    """

    learner_joint: NDArray[np.int32]
    other_joint: NDArray[np.int32]

    @classmethod
    def of(cls, num_actions: Sequence[int], learner: Sequence[int]) -> Sides:
        """Split agents.

        Parameters
        ----------
        num_actions : sequence of int
            Of each agent, agent 0 first.
        learner : sequence of int
            Which agents learn, ascending; the others are the other side.

        Raises
        ------
        UsageError
            If these aren't agents in their order.
        """
        agents = list(range(len(num_actions)))
        if not learner or list(learner) != sorted({*learner} & {*agents}):
            raise UsageError(
                f"the learner is some of agents 0 to {len(agents) - 1}, ascending, not {learner}"
            )
        strides = [math.prod(num_actions[agent + 1 :]) for agent in agents]

        def parts(members: Sequence[int]) -> NDArray[np.int32]:
            sums = np.zeros(1, np.int64)
            for agent in members:
                sums = np.add.outer(sums, np.arange(num_actions[agent]) * strides[agent]).reshape(-1)
            return as_input(sums, np.int32)

        return cls(parts(list(learner)), parts([agent for agent in agents if agent not in learner]))
