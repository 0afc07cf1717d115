"""What rows come to at a node: under two policies, under the best action, or for each action; compiled.

A row's expected return is NaN where the row isn't legal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inlined_kernel, kernel

__all__ = ["action_values", "best_values", "policy_values"]


@inlined_kernel
def _meet(rows: Any, first: Any, other: Any, other_joint: Any) -> tuple[float, float, int]:
    """Return what an action is worth against the other side's policy, times the mass of what is legal, that mass, and
    how many rows are legal; `first` is the action's row against the other side's action 0."""
    total, mass, legal = 0.0, 0.0, 0
    for o in range(other_joint.size):
        value = rows[first + other_joint[o]]
        if value == value:
            total += other[o] * value
            mass += other[o]
            legal += 1
    return total, mass, legal


@inlined_kernel
def _mean_of_legal(rows: Any, first: Any, num_joint: Any) -> float:
    """Return the mean of a node's legal rows; 0 where there is none."""
    total, legal = 0.0, 0
    for row in range(first, first + num_joint):
        if rows[row] == rows[row]:
            total += rows[row]
            legal += 1
    return total / legal if legal else 0.0


@kernel
def policy_values(rows: Any, own: Any, other: Any, own_joint: Any, other_joint: Any, out: Any) -> None:
    """Write the value of each node under two policies, their product restricted to legal joint actions.

    Parameters
    ----------
    rows : (n * A,) float64
        Expected return of each row, NaN: not legal.
    own, other : (n, L), (n, O) float64
    own_joint, other_joint : (L,), (O,) int32
        What actions add to the joint action.
    out : (n,) float64
        0 where no joint action is legal.
    """
    num_joint = own_joint.size * other_joint.size
    for node in range(out.size):
        first, total, mass = node * num_joint, 0.0, 0.0
        for a in range(own_joint.size):
            worth, met, _ = _meet(rows, first + own_joint[a], other[node], other_joint)
            total += own[node, a] * worth
            mass += own[node, a] * met
        out[node] = total / mass if mass > 0.0 else _mean_of_legal(rows, first, num_joint)


@kernel
def best_values(rows: Any, other: Any, own_joint: Any, other_joint: Any, out: Any, actions: Any) -> None:
    """Write the value of the best action of each node, and which that is; arguments as for `policy_values`.

    An action that meets no legal one of positive probability plays, as a policy, any legal joint action.

    Parameters
    ----------
    actions : (n,) int64, or empty
        The lowest of those that are as good; -1 where none is legal.
    """
    num_joint = own_joint.size * other_joint.size
    for node in range(out.size):
        first, best, chosen = node * num_joint, 0.0, -1
        for a in range(own_joint.size):
            worth, mass, legal = _meet(rows, first + own_joint[a], other[node], other_joint)
            if not legal:
                continue
            value = worth / mass if mass > 0.0 else _mean_of_legal(rows, first, num_joint)
            if value > best or chosen < 0:
                best, chosen = value, a
        out[node] = best
        if actions.size:
            actions[node] = chosen


@kernel
def action_values(rows: Any, other: Any, own_joint: Any, other_joint: Any, out: Any) -> None:
    """Write the value of each action of each node; arguments as for `policy_values`.

    The action is certain here: one that meets no legal one of positive probability meets any legal one.

    Parameters
    ----------
    out : (n, L) float64
        NaN where the action is part of no legal joint action.
    """
    num_joint = own_joint.size * other_joint.size
    for node in range(out.shape[0]):
        for a in range(own_joint.size):
            first = node * num_joint + own_joint[a]
            worth, mass, legal = _meet(rows, first, other[node], other_joint)
            if not legal:
                out[node, a] = np.nan
            elif mass > 0.0:
                out[node, a] = worth / mass
            else:
                total = 0.0
                for o in range(other_joint.size):
                    if rows[first + other_joint[o]] == rows[first + other_joint[o]]:
                        total += rows[first + other_joint[o]]
                out[node, a] = total / legal
