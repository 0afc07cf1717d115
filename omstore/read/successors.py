"""What a graph answers: the successors of rows, one drawn of each, and those of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sample", "Successors", "SweepChunk"]


@dataclass(frozen=True)
class Successors:
    """The successors of a batch of B rows, ragged: row b owns ``offsets[b]:offsets[b + 1]`` of each array.

    Attributes
    ----------
    offsets : (B + 1,) int64
    next_node : (E',) int64
        Ascending within a row.
    probability : (E',) float64
    reward : (E', agents) float64
    done : (E',) bool
    kept : mapping of str to (E', ...) array
        Kept fields that were asked for.
    """

    offsets: NDArray[np.int64]
    next_node: NDArray[np.int64]
    probability: NDArray[np.float64]
    reward: NDArray[np.float64]
    done: NDArray[np.bool_]
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def outdegree(self) -> NDArray[np.int64]:
        """(B,) successors of each row."""
        return np.diff(self.offsets)


@dataclass(frozen=True)
class Sample:
    """One successor of each of B rows.

    Attributes
    ----------
    next_node : (B,) int64
    probability : (B,) float64
        Of the successor drawn.
    reward : (B, agents) float64
    done : (B,) bool
    kept : mapping of str to (B, ...) array
        Kept fields that were asked for.
    """

    next_node: NDArray[np.int64]
    probability: NDArray[np.float64]
    reward: NDArray[np.float64]
    done: NDArray[np.bool_]
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepChunk:
    """Consecutive rows of a sweep: their numbers are ``first_row`` and on."""

    first_row: int
    successors: Successors

    @property
    def rows(self) -> NDArray[np.int64]:
        """(n,) row numbers, ``node * num_joint_actions + joint_action``."""
        return np.arange(self.first_row, self.first_row + len(self.successors.offsets) - 1)
