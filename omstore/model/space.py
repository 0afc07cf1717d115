"""The state space of a model: tuples of components, numbered as mixed-radix integers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from omstore.errors import ModelError

__all__ = ["ProductSpace"]


class ProductSpace:
    """All tuples of C components, component c from 0 to ``sizes[c] - 1``.

    A tuple's *number* is the mixed-radix integer with component 0 most significant, so numbers order tuples
    lexicographically.

    Parameters
    ----------
    sizes : sequence of int
        Values of each component, at least 1 each.

    Attributes
    ----------
    sizes : tuple of int
    count : int
        Tuples there are, below 2^63.

    Raises
    ------
    ModelError
        If there is no component, one has no value, or the tuples can't be numbered in 63 bits.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        if not self.sizes or min(self.sizes) < 1:
            raise ModelError(
                f"a state space has components of at least one value each, not sizes {self.sizes}",
                "Give `sizes` one number a component, such as (44, 44, 44).",
            )
        self.count = math.prod(self.sizes)
        if self.count >= 1 << 63:
            raise ModelError(
                f"sizes of {self.sizes} make {self.count:,} states, more than can be numbered (2^63 - 1)",
                "Take components apart that can't vary together, or leave out what never changes.",
            )
        self.strides = tuple(math.prod(self.sizes[c + 1 :]) for c in range(len(self.sizes)))

    def numbers(self, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number tuples, (B, C) -> (B,) int64; components aren't checked."""
        return np.asarray(states, np.int64) @ np.array(self.strides, np.int64)

    def states(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tuples of numbers, (B,) -> (B, C) int64."""
        rest = np.asarray(numbers, np.int64)
        states = np.empty((len(rest), len(self.sizes)), np.int64)
        for component in range(len(self.sizes) - 1, -1, -1):
            rest, states[:, component] = np.divmod(rest, self.sizes[component])
        return states

    def first_outside(self, states: NDArray[np.int64]) -> tuple[int, int] | None:
        """Find the first tuple with a component out of range: its position and the component, or None."""
        outside = (states < 0) | (states >= np.array(self.sizes, np.int64))
        if not outside.any():
            return None
        position = int(np.argmax(outside.any(axis=1)))
        return position, int(np.argmax(outside[position]))
