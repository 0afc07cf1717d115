"""Root states of an update, and the actions to evaluate at them: drawn by counter, so that any update can be
drawn by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from omstore import stream_key, uniform
from omstore.errors import UsageError
from trainer.adapter import GraphWorldModelAdapter
from trainer.tables import ActionMasks

__all__ = ["Roots", "StatesSource", "draw_roots"]

# The first word of keys: what the random numbers are for.
_ROOTS, _CANDIDATES, _ROLLOUTS = 1, 2, 3


class StatesSource(Protocol):
    """What root states are drawn from; an `OMBuffer` is one."""

    def __len__(self) -> int: ...

    @property
    def graph_state_idx(self) -> NDArray[np.int64] | None:
        """(len,) node of each state, -1 where it isn't in the graph; None: states are looked up when drawn."""

    def states(self, indices: ArrayLike) -> Tensor:
        """Return some states, (n,) -> (n, W) float32."""


@dataclass(frozen=True)
class Roots:
    """The root states of an update that are in the graph.

    Attributes
    ----------
    requested : int
        Root states drawn, b.
    node : (v,) int64
        v <= b: without those that aren't in the graph, or have no legal action.
    key : (v,) uint64
        First key of the rollouts of each.
    legal : (v, actions) bool
        The learner's legal actions.
    candidates : (v, C) int64
        Actions to evaluate, ascending; -1: none.
    """

    requested: int
    node: NDArray[np.int64]
    key: NDArray[np.uint64]
    legal: NDArray[np.bool_]
    candidates: NDArray[np.int64]


def draw_roots(
    source: StatesSource,
    dyn: GraphWorldModelAdapter,
    masks: ActionMasks,
    *,
    requested: int,
    seed: int,
    phase: int,
    update: int,
    candidate_actions: int | None,
) -> Roots:
    """Draw the root states of an update, uniformly with replacement, and what is evaluated at each.

    Root i of the update is sample ``floor(u * len(source))``, u being number i of the stream of (seed, phase,
    update). Its rollouts have the key of (seed, phase, update, i). Where it has more legal actions than
    `candidate_actions`, those are taken that have the smallest numbers a of the stream of (seed, phase, update,
    i), a the action: a choice without replacement, each subset as likely.

    Parameters
    ----------
    source : StatesSource
    dyn : GraphWorldModelAdapter
    masks : ActionMasks
        Of the learner.
    requested : int
        Root states to draw, b.
    seed, phase, update : int
        Words of the keys.
    candidate_actions : int or None

    Raises
    ------
    UsageError
        If the source is empty.
    """
    if not len(source):
        raise UsageError("there are no states to draw roots from", "Load the replay into the buffer first.")
    position = np.arange(requested)
    drawn = uniform(stream_key(seed, _ROOTS, phase, update), position)
    sample = (drawn * len(source)).astype(np.int64)
    nodes = source.graph_state_idx
    node = dyn.lookup(source.states(sample).numpy()) if nodes is None else np.asarray(nodes[sample])
    known = node >= 0
    node, position = node[known], position[known]
    legal = masks.of(node)
    if not masks.always:
        acting = legal.any(axis=1)
        node, position, legal = node[acting], position[acting], legal[acting]
    candidates = np.where(legal, np.arange(masks.num_actions), -1)
    if candidate_actions is not None and candidate_actions < masks.num_actions:
        number = uniform(
            stream_key(seed, _CANDIDATES, phase, update, position)[:, None], np.arange(masks.num_actions)
        )
        first = np.argsort(np.where(legal, number, 2.0), axis=1, kind="stable")[:, :candidate_actions]
        first.sort(axis=1)
        candidates = np.take_along_axis(candidates, first, axis=1)
    key = stream_key(seed, _ROLLOUTS, phase, update, position)
    return Roots(requested, node, key, legal, candidates)
