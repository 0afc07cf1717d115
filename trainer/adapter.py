"""The graph as a world model: legal masks of learner and team, successors, draws, lookups."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import omstore
from omstore.errors import CorruptStoreError, UsageError
from trainer.config import TrainConfig
from trainer.joint_actions import JointActions, find_agent

__all__ = ["GraphWorldModelAdapter"]

_ROWS_AT_A_TIME = 1 << 18
"""Rows whose legality is read at a time; the graph takes 32 bytes for each meanwhile."""

_CHECKED_NODES = 64
"""Nodes whose rows are looked at before anything else uses the graph."""


@dataclass(frozen=True)
class _KeptMasks:
    """Joint masks by node: sorted arrays, since a dict of as many takes ten times the memory.

    Attributes
    ----------
    node : (k,) int64
        Ascending.
    used : (k,) int64
        When each was used last; no two alike.
    mask : (k, bytes) uint8
        Packed.
    """

    node: NDArray[np.int64]
    used: NDArray[np.int64]
    mask: NDArray[np.uint8]

    def with_more(
        self, node: NDArray[np.int64], used: NDArray[np.int64], mask: NDArray[np.uint8], cap: int
    ) -> _KeptMasks:
        """Merge masks, (m,) nodes ascending, and keep the `cap` used last. Memory: both together."""
        # another thread may have read some of them as well
        others = ~np.isin(self.node, node, assume_unique=True)
        nodes = np.concatenate((self.node[others], node))
        times = np.concatenate((self.used[others], used))
        masks = np.concatenate((self.mask[others], mask))
        order = np.argsort(nodes, kind="stable")  # two runs: merged in one pass
        if len(nodes) > cap:
            last = np.zeros(len(nodes), np.bool_)
            last[np.argsort(times)[len(nodes) - cap :]] = True
            order = order[last[order]]
        return _KeptMasks(nodes[order], times[order], masks[order])


class GraphWorldModelAdapter:
    """A stored graph, seen by the focal agent and its team. Made once for a training run, and checked then.

    Nodes and joint actions are integers, methods are batched, and nothing of the graph is held but the legal
    masks used last. Several threads may use it; it pickles without its cache.

    Parameters
    ----------
    graph : Graph
    legal_cache : int
        Nodes whose legal mask is kept, those used last; 0 keeps none. It never changes a result. A kept mask
        takes ``A / 8 + 16`` bytes, and as much again while others are added: 6.4 MB for the default of 100,000
        with 125 joint actions.
    focal_agent : int or str
        Number or name.

    Attributes
    ----------
    graph : Graph
    actions : JointActions
        Splits joint actions into the focal agent's and the team's.
    num_nodes, state_width : int
        N and W.

    Raises
    ------
    UsageError
        If the cap is negative, or there is no such agent, or only one.
    CorruptStoreError
        If rows looked at here don't make a transition graph: probabilities that don't sum to 1, or rewards for
        another number of agents. A few nodes are looked at; `omstore verify` reads everything.
    """

    def __init__(
        self, graph: omstore.Graph, legal_cache: int = TrainConfig.legal_cache, *, focal_agent: int | str = 0
    ) -> None:
        if legal_cache < 0:
            raise UsageError(f"a cache holds at least 0 legal masks, not {legal_cache}")
        self.graph = graph
        self.legal_cache = int(legal_cache)
        self.focal_agent = find_agent(graph.agents, focal_agent)
        self.actions = JointActions(graph.num_actions, self.focal_agent)
        self.num_nodes = graph.num_nodes
        self.state_width = graph.state_width
        self._mask_bytes = (graph.num_joint_actions + 7) // 8
        self._nodes_at_a_time = max(1, _ROWS_AT_A_TIME // graph.num_joint_actions)
        self._kept = _KeptMasks(np.empty(0, np.int64), np.empty(0, np.int64), self._no_masks())
        self._clock = 0
        self._lock = threading.Lock()
        self._check()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self.graph, self.legal_cache, self.focal_agent)

    def __repr__(self) -> str:
        return (
            f"<GraphWorldModelAdapter of {self.graph!r}, focal agent {self.graph.agents[self.focal_agent]}>"
        )

    @property
    def num_kept(self) -> int:
        """Legal masks kept now; at most `legal_cache`."""
        return len(self._kept.node)

    # Legal masks

    def legal_joint(self, nodes: ArrayLike) -> NDArray[np.bool_]:
        """Return which joint actions are legal, (B,) nodes -> (B, A) bool."""
        return self._legal(nodes, self.actions.num_joint, lambda joint: joint)

    def legal_focal(self, nodes: ArrayLike) -> NDArray[np.bool_]:
        """Return which actions of the focal agent are legal with some team action, (B,) -> (B, focal) bool."""
        return self._legal(
            nodes, self.actions.num_focal, lambda joint: np.any(self.actions.by_agent(joint), axis=2)
        )

    def legal_team(self, nodes: ArrayLike) -> NDArray[np.bool_]:
        """Return which team actions are legal with some action of the focal agent, (B,) -> (B, team) bool."""
        return self._legal(
            nodes, self.actions.num_team, lambda joint: np.any(self.actions.by_agent(joint), axis=1)
        )

    # The graph, by nodes

    def lookup(self, states: ArrayLike) -> NDArray[np.int64]:
        """Find the nodes of states, (B, W) -> (B,) int64, -1 where there is none."""
        return self.graph.lookup(states)

    def states(self, nodes: ArrayLike) -> NDArray[Any]:
        """Return the states of nodes, (B,) -> (B, W)."""
        return self.graph.states(nodes)

    def successors(self, nodes: ArrayLike, joint_actions: ArrayLike) -> omstore.Successors:
        """Return all successors of each row, (B,), (B,); see `omstore.Graph.successors`."""
        return self.graph.successors(nodes, joint_actions)

    def sample(self, nodes: ArrayLike, joint_actions: ArrayLike, rng: np.random.Generator) -> omstore.Sample:
        """Draw one successor of each row, (B,), (B,); see `omstore.Graph.sample`."""
        return self.graph.sample(nodes, joint_actions, rng)

    # Inside

    def _no_masks(self) -> NDArray[np.uint8]:
        return np.empty((0, self._mask_bytes), np.uint8)

    def _legal(
        self,
        nodes: ArrayLike,
        width: int,
        reduced: Callable[[NDArray[np.bool_]], NDArray[np.bool_]],
    ) -> NDArray[np.bool_]:
        given = np.asarray(nodes)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise UsageError(f"nodes must be (B,) integers, not {given.dtype} of shape {given.shape}")
        outside = (given < 0) | (given >= self.num_nodes)
        if outside.any():  # here, where the position is the caller's
            position = int(np.argmax(outside))
            raise UsageError(
                f"node {given[position]} at position {position} of the batch "
                f"isn't within 0 to {self.num_nodes - 1:,}"
            )
        result = np.empty((len(given), width), np.bool_)
        for first in range(0, len(given), self._nodes_at_a_time):
            part = slice(first, first + self._nodes_at_a_time)
            packed = self._packed_masks(given[part].astype(np.int64))
            joint = np.unpackbits(packed, axis=1, count=self.actions.num_joint).view(np.bool_)
            result[part] = reduced(joint)
        return result

    def _packed_masks(self, nodes: NDArray[np.int64]) -> NDArray[np.uint8]:
        """(B,) nodes -> (B, bytes): joint masks, kept or read."""
        unique, first_behind, inverse = np.unique(nodes[::-1], return_index=True, return_inverse=True)
        last = len(nodes) - 1 - first_behind  # where in the batch each was asked for last
        with self._lock:
            kept = self._kept
            used = self._clock + last
            self._clock += len(nodes)
            place = np.searchsorted(kept.node, unique)
            place[place == len(kept.node)] = 0
            known = kept.node[place] == unique if len(kept.node) else np.zeros(len(unique), np.bool_)
            masks = np.empty((len(unique), self._mask_bytes), np.uint8)
            masks[known] = kept.mask[place[known]]
            kept.used[place[known]] = used[known]
        if not known.all():
            missing = ~known
            masks[missing] = np.packbits(self.graph.legal(unique[missing]), axis=1)
            with self._lock:
                self._kept = self._kept.with_more(
                    unique[missing], used[missing], masks[missing], self.legal_cache
                )
        return masks[inverse[::-1].reshape(-1)]

    def _check(self) -> None:
        graph = self.graph
        nodes = np.unique(np.linspace(0, graph.num_nodes - 1, _CHECKED_NODES).astype(np.int64))
        rng = np.random.default_rng(0)
        joint_actions = rng.integers(0, graph.num_joint_actions, len(nodes))
        found = graph.successors(nodes, joint_actions)
        if found.reward.shape[1:] != (len(graph.agents),):
            raise CorruptStoreError(
                f"{graph!r}: rewards of shape {found.reward.shape[1:]} for {len(graph.agents)} agents",
                "`omstore verify EXPORT` says more; convert or build the store again.",
            )
        row = np.repeat(np.arange(len(nodes)), found.outdegree)
        total = np.bincount(row, weights=found.probability, minlength=len(nodes))
        wrong = np.flatnonzero((found.outdegree > 0) & ~(np.abs(total - 1) < 1e-6))
        if len(wrong):
            at = wrong[0]
            raise CorruptStoreError(
                f"{graph!r}: the probabilities of node {nodes[at]}, joint action {joint_actions[at]} "
                f"sum to {total[at]:.6g}",
                "`omstore verify EXPORT` says more; convert or build the store again.",
            )


def _made_again(graph: omstore.Graph, legal_cache: int, focal_agent: int) -> GraphWorldModelAdapter:
    return GraphWorldModelAdapter(graph, legal_cache, focal_agent=focal_agent)
