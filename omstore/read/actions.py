"""Joint actions: one action per agent, as one mixed-radix integer, agent 0 most significant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.read.kernels import first_outside

__all__ = ["as_batch", "decode_joint", "encode_joint"]


def as_batch(values: ArrayLike, name: str, limit: int | None = None) -> NDArray[np.int64]:
    """Check a batch of numbers, and give it as int64.

    Parameters
    ----------
    values : array_like, (B,) integers
    name : str
        What they are, for messages: ``"node"``.
    limit : int, optional
        They must be within 0..limit-1.

    Raises
    ------
    UsageError
        Naming the first position that is out of range; or for another shape, or for floats.
    """
    given: NDArray[Any] = np.asarray(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise UsageError(
            f"{name}s must be a one-dimensional array of integers, not {given.dtype} of shape {given.shape}",
            f"Pass a single {name} as a batch of one.",
        )
    batch = as_input(given, np.int64)
    if limit is not None:
        position = first_outside(batch, limit)
        if position >= 0:
            raise UsageError(
                f"{name} {given[position]} at position {position} of the batch "
                f"isn't within 0 to {limit - 1:,}"
            )
    return batch


def encode_joint(actions: ArrayLike, num_actions: Sequence[int]) -> NDArray[np.int64]:
    """Encode joint actions, (B, agents) integers -> (B,) int64.

    Raises
    ------
    UsageError
        Naming the first action that its agent doesn't have.
    """
    given = np.asarray(actions)
    if given.ndim != 2 or given.shape[1] != len(num_actions) or given.dtype.kind not in "iu":
        raise UsageError(
            f"joint actions must be (batch, {len(num_actions)}) integers, not {given.dtype} of {given.shape}"
        )
    codes = np.zeros(len(given), np.int64)
    for agent, count in enumerate(num_actions):
        column = given[:, agent]
        outside = (column < 0) | (column >= count)
        if outside.any():
            position = int(np.argmax(outside))
            raise UsageError(
                f"action {column[position]} of agent {agent} at position {position} of the batch "
                f"isn't within 0 to {count - 1}"
            )
        codes = codes * count + column.astype(np.int64)
    return codes


def decode_joint(codes: ArrayLike, num_actions: Sequence[int]) -> NDArray[np.int64]:
    """Decode joint actions, (B,) integers -> (B, agents) int64; the inverse of `encode_joint`.

    Raises
    ------
    UsageError
        Naming the first code that isn't one.
    """
    rest = as_batch(codes, "joint action", math.prod(num_actions))
    actions = np.empty((len(rest), len(num_actions)), np.int64)
    for agent in reversed(range(len(num_actions))):
        rest, actions[:, agent] = np.divmod(rest, num_actions[agent])
    return actions
