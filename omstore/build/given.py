"""What an exporter gives to the writer, checked and brought to one form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.convert.actions import ActionSpace
from omstore.errors import BadDataError, UsageError

__all__ = ["given_column", "given_integers", "given_joint_actions", "given_states"]


def given_states(states: ArrayLike, what: str, width: int) -> NDArray[Any]:
    """Check state vectors, (B, W) whole numbers; integers, or bool.

    Raises
    ------
    UsageError
        Naming `what` they are.
    """
    vectors: NDArray[Any] = np.asarray(states)
    if vectors.ndim != 2 or vectors.shape[1] != width or vectors.dtype.kind not in "buif":
        raise UsageError(
            f"{what} must be numbers of shape (batch, {width}), not {vectors.dtype} {vectors.shape}"
        )
    if vectors.dtype.kind == "f":
        if not (np.isfinite(vectors) & (np.trunc(vectors) == vectors)).all():
            raise UsageError(f"{what} have components that aren't whole numbers")
        vectors = vectors.astype(np.int64)
    return vectors


def given_joint_actions(joint_actions: ArrayLike, space: ActionSpace, count: int) -> NDArray[np.int64]:
    """Check joint actions, (B,) or (B, agents), and encode them, (B,) int64.

    Raises
    ------
    UsageError
        Naming the first that is out of range.
    """
    actions: NDArray[Any] = np.asarray(joint_actions)
    agents = len(space.num_actions)
    if actions.ndim == 1:
        actions = actions[:, None]
    if actions.ndim != 2 or len(actions) != count or actions.shape[1] not in (1, agents):
        raise UsageError(
            f"joint actions of shape {np.shape(joint_actions)} were given for {count} rows; ({count},) or "
            f"({count}, {agents}) was expected"
        )
    if count and actions.dtype.kind not in "iu":
        raise UsageError(f"joint actions must be integers, not {actions.dtype}")
    try:
        return space.encode(actions, "joint actions", 0)
    except BadDataError as error:
        raise UsageError(error.message) from error


def given_integers(values: ArrayLike, what: str) -> NDArray[np.int64]:
    """Check one-dimensional integers; UsageError names `what` they are."""
    given: NDArray[Any] = np.asarray(values)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise UsageError(f"{what} must be one-dimensional integers, not {given.dtype} {given.shape}")
    return given.astype(np.int64)


def given_column(name: str, values: ArrayLike, dtype: Any, count: int, num_agents: int) -> NDArray[Any]:
    """Check probabilities, rewards or done flags, and repeat one for all where only one was given.

    Raises
    ------
    UsageError
        If they aren't numbers, or of another shape than ``(count,)``; rewards ``(count, num_agents)``.
    """
    given: NDArray[Any] = np.asarray(values)
    if given.dtype.kind not in "buif":
        raise UsageError(f"{name} must be numbers, not {given.dtype}")
    if dtype == np.uint8:
        given = given != 0
    shape: tuple[int, ...] = (count,)
    if name == "reward":
        shape = (count, num_agents)
        given = given[:, None] if given.ndim == 1 else given
    try:
        whole = np.broadcast_to(given, shape)
    except ValueError:
        raise UsageError(f"{name} has shape {np.shape(values)}, where {shape} was expected") from None
    return np.ascontiguousarray(whole, dtype)
