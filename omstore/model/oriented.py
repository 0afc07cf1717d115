"""Kernels in the order of the nodes: values by rank, so that a row's edges come sorted by next node."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omstore.model.numbering import Numbering, ProductNumbering
from omstore.model.protocol import IndependentModel

__all__ = ["KernelPart", "oriented_kernels"]


@dataclass(frozen=True)
class KernelPart:
    """A component's kernel in the order of the nodes: local state r is the component's value of rank r.

    Attributes
    ----------
    mover : int or None
    size, num_actions : int
    offsets : (size * num_actions + 1,) int64
    next_state : (m,) int64
        Local states, ascending within a pair.
    probability : (m,) float64
    outcome_class : (m,) int64
        Which of the component's distinct probabilities, ascending.
    classes : (num_classes,) float64
        The distinct probabilities.
    """

    mover: int | None
    size: int
    num_actions: int
    offsets: NDArray[np.int64]
    next_state: NDArray[np.int64]
    probability: NDArray[np.float64]
    outcome_class: NDArray[np.int64]
    classes: NDArray[np.float64]


def oriented_kernels(model: IndependentModel, numbering: Numbering) -> tuple[KernelPart, ...]:
    """Put a model's kernels into the order of its nodes: values by rank, next values ascending by rank."""
    parts = []
    for component, kernel in enumerate(model.checked_kernels):
        size, actions = model.sizes[component], model.kernel_num_actions(component)
        order = rank = np.arange(size)
        if isinstance(numbering, ProductNumbering):
            order, rank = numbering.orders[component], numbering.ranks[component]
        pairs = (order[:, None] * actions + np.arange(actions)).reshape(-1)  # in the order of ranks
        counts = np.diff(kernel.offsets)[pairs]
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        pair = np.repeat(np.arange(len(pairs)), counts)
        origin = kernel.offsets[pairs][pair] + np.arange(len(pair)) - offsets[pair]
        following = rank[kernel.next_state[origin]]
        ordered = np.lexsort((following, pair))
        probability = kernel.probability[origin][ordered]
        classes, outcome_class = np.unique(probability, return_inverse=True)
        parts.append(
            KernelPart(
                model.movers[component],
                size,
                actions,
                offsets,
                following[ordered].astype(np.int64),
                probability,
                outcome_class.reshape(-1).astype(np.int64),
                classes,
            )
        )
    return tuple(parts)
