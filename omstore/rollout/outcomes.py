"""What a rollout needs of the attributes: the learner's reward as one number, and whether the episode is done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.read.arrays import take
from omstore.read.attributes import Attribute, EdgeSet
from omstore.rollout import outcome_kernels

__all__ = ["OutcomeTable", "done_table", "has_table", "resolve_done", "resolve_reward", "reward_table"]

_READ = 1 << 16

_HOW = {
    "graph": outcome_kernels.CONSTANT,
    "next_node": outcome_kernels.BY_NEXT,
    "node": outcome_kernels.BY_NODE,
    "next_node_unless_node": outcome_kernels.UNLESS,
    "outcome": outcome_kernels.BY_CODE,
}


@dataclass(frozen=True)
class OutcomeTable:
    """Where the compiled loop finds an edge's value.

    Attributes
    ----------
    how : int
        One of the constants of `omstore.rollout.outcome_kernels`; ``GIVEN``: `values` must be resolved for the
        edges drawn.
    values : (n,) float64 or uint8
    codes, own : (N,) uint8 or uint16, or empty
        As in `omstore.Attribute`.
    """

    how: int
    values: NDArray[Any]
    codes: NDArray[Any]
    own: NDArray[Any]


def has_table(attribute: Attribute) -> bool:
    """Whether a table finds the value; otherwise it is resolved for the edges drawn."""
    return attribute.level in _HOW


def reward_table(attribute: Attribute, weights: NDArray[np.float64]) -> OutcomeTable:
    """Lay out the weighted sum of the agents' rewards.

    Memory: 8 bytes for each stored value; a value a node where they aren't coded.
    """
    if not has_table(attribute):
        return _given(np.float64)
    stored = attribute.values
    values = np.empty(len(stored), np.float64)
    for first in range(0, len(stored), _READ):
        piece = slice(first, min(first + _READ, len(stored)))
        values[piece] = _weighed(take(stored, piece), weights)
    return _table(attribute, values)


def done_table(attribute: Attribute) -> OutcomeTable:
    """Lay out whether an edge ends the episode; a flag a node is used as it is stored."""
    if not has_table(attribute):
        return _given(np.uint8)
    if attribute.codes is None and attribute.level in ("next_node", "node"):
        flags = as_input(take(attribute.values, slice(None)), np.uint8)
        truth = as_input(np.arange(256) > 0, np.uint8)
        return OutcomeTable(_HOW[attribute.level], truth, flags, flags[:0])
    return _table(attribute, as_input(take(attribute.values, slice(None)), np.uint8))


def resolve_reward(attribute: Attribute, edges: EdgeSet, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Resolve the weighted sum of rewards for edges drawn, (n,) float64."""
    return _weighed(attribute.of(edges), weights)


def resolve_done(attribute: Attribute, edges: EdgeSet) -> NDArray[np.uint8]:
    """Resolve which of the edges drawn end the episode, (n,) uint8."""
    return attribute.of(edges).view(np.uint8)


def _weighed(values: NDArray[Any], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    out = np.empty(len(values), np.float64)
    outcome_kernels.weigh(as_input(values, np.float64), as_input(weights, np.float64), out)
    return out


def _table(attribute: Attribute, values: NDArray[Any]) -> OutcomeTable:
    codes = np.empty(0, np.uint8) if attribute.codes is None else attribute.codes
    own = codes[:0] if attribute.own is None else attribute.own
    return OutcomeTable(
        _HOW[attribute.level],
        as_input(values, values.dtype),
        as_input(codes, codes.dtype),
        as_input(own, codes.dtype),
    )


def _given(dtype: Any) -> OutcomeTable:
    none = as_input(np.empty(0), np.uint8)
    return OutcomeTable(outcome_kernels.GIVEN, as_input(np.empty(0), dtype), none, none)
