"""The rows of any `TransitionModel`: asked for in batches, checked, sorted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input, kernel
from omstore.errors import CorruptStoreError, ModelError, UsageError
from omstore.model.checks import Answers
from omstore.model.numbering import Numbering
from omstore.model.protocol import TransitionModel
from omstore.rows.encoding import (
    DrawnEdges,
    Edges,
    GraphSize,
    Probabilities,
    RowChunk,
    check_sweep,
    next_node_dtype,
)

__all__ = ["AnsweredRows", "ModelRows", "answer_rows"]

_ASKED = 1 << 12
"""Rows asked of a model at a time: thousands, so that numpy's overhead doesn't count, and not more, because
nothing is known of how many outcomes they have."""


@kernel
def _draw(offsets: Any, probability: Any, uniforms: Any, chosen: Any) -> int:
    """Find each row's edge at which the running sum passes `uniforms`; the first row without edges, or -1."""
    for i in range(offsets.size - 1):
        if offsets[i] == offsets[i + 1]:
            return i
        reached = 0.0
        chosen[i] = offsets[i + 1] - 1
        for k in range(offsets[i], offsets[i + 1]):
            reached += probability[k]
            if uniforms[i] < reached:
                chosen[i] = k
                break
    return -1


@dataclass(frozen=True)
class AnsweredRows:
    """The edges of a batch of rows, ragged by `offsets`; sorted by next node, then what else they carry."""

    offsets: NDArray[np.int64]
    next_node: NDArray[np.int64]
    probability: NDArray[np.float64]
    reward: NDArray[np.float64]
    done: NDArray[np.uint8]

    @property
    def attributes(self) -> dict[str, NDArray[Any]]:
        """The attributes at level ``rows``."""
        return {"probability": self.probability, "reward": self.reward, "done": self.done}


def answer_rows(answers: Answers, numbering: Numbering, rows: NDArray[np.int64]) -> AnsweredRows:
    """Ask a model for rows, at most a few thousand; row numbers exist.

    Raises
    ------
    ModelError
        If an answer isn't right, or names a state that isn't a node.
    """
    model = answers.model
    num_joint_actions = model.num_joint_actions
    nodes, at = np.unique(rows // num_joint_actions, return_inverse=True)
    at = at.reshape(-1)
    actions = rows % num_joint_actions
    states = numbering.states(nodes)
    absorbing = answers.absorbing(states)
    legal = answers.legal(states)
    asked = ~absorbing[at]
    if legal is not None:
        asked &= legal[at, actions]
    which = np.flatnonzero(asked)
    found = answers.successors(states[at[which]], actions[which])
    following = numbering.nodes(numbering.space.numbers(found.next_states))
    if len(following) and following.min() < 0:
        edge = int(np.argmin(following))
        row = int(which[np.searchsorted(found.offsets, edge, side="right") - 1])
        raise ModelError(
            f"{type(model).__name__}: state {tuple(states[at[row]].tolist())}, joint action "
            f"{tuple(model.actions(actions[row : row + 1])[0].tolist())} leads to state "
            f"{tuple(found.next_states[edge].tolist())}, which wasn't met when the states were explored",
            "A model must answer the same whenever it is asked the same: draw nothing at random in it.",
        )
    reward = answers.reward(found.next_states) if found.reward is None else found.reward
    done = answers.done(found.next_states) if found.done is None else found.done
    counts = np.zeros(len(rows), np.int64)
    counts[which] = np.diff(found.offsets)
    still = np.flatnonzero(absorbing[at])
    counts[still] = 1
    offsets = np.concatenate(([0], np.cumsum(counts)))
    row_of = np.concatenate((np.repeat(which, np.diff(found.offsets)), still))
    own = nodes[at[still]]
    own_done = answers.done(states)[at[still]]
    next_node = np.concatenate((following, own))
    probability = np.concatenate((found.probability, np.ones(len(still))))
    rewards = np.concatenate((reward, np.zeros((len(still), reward.shape[1]))))
    flags = np.concatenate((done, own_done)).astype(np.uint8)
    order = np.lexsort((flags, *rewards.T[::-1], probability, next_node, row_of))
    return AnsweredRows(offsets, next_node[order], probability[order], rewards[order], flags[order])


class ModelRows:
    """Answers the rows of a model by asking it; probability, reward and done are attributes at level ``rows``.

    Parameters
    ----------
    model : TransitionModel
    numbering : Numbering
    first_edge : (N + 1,) integers, or None
        Number of every node's first edge; may be mapped. None: the model is asked for all of its rows once.
    num_edges : int, optional
        E, where it is known.
    count_now : bool
        Whether to count edges that aren't known at once, or when they are first needed: `size` says 0 then.
    """

    def __init__(
        self,
        model: TransitionModel,
        numbering: Numbering,
        first_edge: NDArray[Any] | None = None,
        num_edges: int | None = None,
        *,
        count_now: bool = True,
    ) -> None:
        self.model = model
        self.numbering = numbering
        self._answers = Answers(model)
        self._first_edges = first_edge
        self.size = GraphSize(numbering.num_nodes, model.num_joint_actions, num_edges or 0)
        if first_edge is not None or (num_edges is None and count_now):
            self.size = GraphSize(numbering.num_nodes, model.num_joint_actions, self.num_edges)

    @property
    def num_edges(self) -> int:
        """E, counted where it wasn't."""
        return int(self.first_edges[-1])

    @property
    def first_edges(self) -> NDArray[Any]:
        """(N + 1,) number of every node's first edge; asks for all rows where they weren't counted."""
        if self._first_edges is None:
            self._first_edges = self._count()
        return self._first_edges

    def _count(self) -> NDArray[np.int64]:
        firsts = np.zeros(self.size.num_nodes + 1, np.int64)
        for first, counts in self.node_counts():
            firsts[first + 1 : first + 1 + len(counts)] = counts
        return np.cumsum(firsts)

    def node_counts(self) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Ask for all rows, and yield the number of edges of consecutive nodes, with the first node."""
        num_joint_actions = self.size.num_joint_actions
        step = max(1, _ASKED // num_joint_actions)
        for first in range(0, self.size.num_nodes, step):
            last = min(first + step, self.size.num_nodes)
            found = self.answer(np.arange(first * num_joint_actions, last * num_joint_actions))
            yield first, np.diff(found.offsets[::num_joint_actions])

    def answer(self, rows: NDArray[np.int64]) -> AnsweredRows:
        """Ask for rows in any order, a few thousand at a time."""
        parts = [
            answer_rows(self._answers, self.numbering, rows[first : first + _ASKED])
            for first in range(0, len(rows), _ASKED)
        ]
        if len(parts) == 1:
            return parts[0]
        agents = len(self.model.agents)
        counts = np.concatenate([np.empty(0, np.int64), *(np.diff(part.offsets) for part in parts)])
        return AnsweredRows(
            np.concatenate(([0], np.cumsum(counts))),
            np.concatenate([np.empty(0, np.int64), *(part.next_node for part in parts)]),
            np.concatenate([np.empty(0), *(part.probability for part in parts)]),
            np.concatenate([np.empty((0, agents)), *(part.reward for part in parts)]),
            np.concatenate([np.empty(0, np.uint8), *(part.done for part in parts)]),
        )

    def bounds(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], None]:
        """Return the running sum of the rows' outdegrees."""
        return self.answer(self._checked(rows)).offsets, None

    def sweep(self, start_row: int, stop_row: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Go through rows in order."""
        check_sweep(self.size, start_row, stop_row, chunk_rows)
        if start_row == stop_row:
            return
        node, action = divmod(start_row, self.size.num_joint_actions)
        before = self.answer(np.arange(start_row - action, start_row)) if action else None
        first_edge = int(self.first_edges[node]) + (len(before.next_node) if before else 0)
        dtype = next_node_dtype(self.size.num_nodes)
        for first in range(start_row, stop_row, chunk_rows):
            found = self.answer(np.arange(first, min(first + chunk_rows, stop_row)))
            count = len(found.next_node)
            if first_edge + count > self.size.num_edges:
                raise _changed(self.model)
            nodes = found.next_node.astype(dtype)
            yield RowChunk(first, first_edge, found.offsets, nodes, None, found.attributes)
            first_edge += count

    def gather(self, rows: NDArray[np.int64], edges: bool) -> Edges:
        """Return the edges of rows in any order."""
        rows = self._checked(rows)
        found = self.answer(rows)
        numbers = None
        if edges:
            num_joint_actions = self.size.num_joint_actions
            nodes, actions = np.divmod(rows, num_joint_actions)
            firsts = np.empty(len(rows), np.int64)
            for i, (node, action) in enumerate(zip(nodes.tolist(), actions.tolist(), strict=True)):
                before = np.arange(node * num_joint_actions, node * num_joint_actions + action)
                firsts[i] = int(self.first_edges[node]) + int(self.answer(before).offsets[-1])
            numbers = np.repeat(firsts - found.offsets[:-1], np.diff(found.offsets))
            numbers += np.arange(found.offsets[-1])
        return Edges(found.offsets, found.next_node, None, numbers, found.attributes)

    def sample(
        self, rows: NDArray[np.int64], uniforms: NDArray[np.float64], probabilities: Probabilities
    ) -> DrawnEdges:
        """Draw an edge of each row; edges aren't numbered (-1)."""
        rows = self._checked(rows)
        found = self.answer(rows)
        chosen = np.empty(len(rows), np.int64)
        empty = int(
            _draw(
                as_input(found.offsets, np.int64),
                as_input(found.probability, np.float64),
                as_input(uniforms, np.float64),
                chosen,
            )
        )
        if empty >= 0:
            node, action = divmod(int(rows[empty]), self.size.num_joint_actions)
            raise UsageError(
                f"row {rows[empty]} (node {node}, joint action {action}) at position {empty} of the batch "
                "has no successors to draw from",
                "Draw joint actions from the legal mask (graph.legal).",
            )
        attributes = {name: values[chosen] for name, values in found.attributes.items()}
        return DrawnEdges(
            found.next_node[chosen],
            np.zeros(len(rows), np.int64),
            np.full(len(rows), -1),
            attributes["probability"],
            attributes,
        )

    def nbytes(self) -> Mapping[str, int]:
        """Return the bytes of the first edges, the only thing stored."""
        return {"first_edge": self.first_edges.nbytes}

    def _checked(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = as_input(rows, np.int64)
        outside = (rows < 0) | (rows >= self.size.num_rows)
        if outside.any():
            position = int(np.argmax(outside))
            raise UsageError(
                f"row {rows[position]} at position {position} of the batch isn't within 0 to "
                f"{self.size.num_rows - 1:,}"
            )
        return rows


def _changed(model: TransitionModel) -> CorruptStoreError:
    return CorruptStoreError(
        f"{type(model).__name__} has more edges than when the store was built: the model changed",
        "Build the store again.",
    )
