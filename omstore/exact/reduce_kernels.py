"""What rows come to at a node: under two policies, under the best action, or for each action; compiled.

A row's expected return is NaN where the row isn't legal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel

__all__ = ["action_values", "best_values", "policy_values"]


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
        first = node * num_joint
        total, mass, everything, legal = 0.0, 0.0, 0.0, 0
        for a in range(own_joint.size):
            for o in range(other_joint.size):
                value = rows[first + own_joint[a] + other_joint[o]]
                if value == value:
                    weight = own[node, a] * other[node, o]
                    mass += weight
                    total += weight * value
                    everything += value
                    legal += 1
        if mass > 0.0:
            out[node] = total / mass
        elif legal:
            out[node] = everything / legal
        else:
            out[node] = 0.0


@kernel
def best_values(rows: Any, other: Any, own_joint: Any, other_joint: Any, out: Any, actions: Any) -> None:
    """Write the value of the best action of each node, and which that is; arguments as for `policy_values`.

    An action that meets no legal one of positive probability plays, as a policy, any legal joint action.

    Parameters
    ----------
    actions : (n,) int64, or empty
        The lowest of those that are as good; -1 where none is legal.
    """
    num_own, num_other = own_joint.size, other_joint.size
    for node in range(out.size):
        first = node * num_own * num_other
        best, chosen = -np.inf, -1
        everything, legal = 0.0, -1  # summed once an action needs it
        for a in range(num_own):
            total, mass, allowed = 0.0, 0.0, False
            for o in range(num_other):
                value = rows[first + own_joint[a] + other_joint[o]]
                if value == value:
                    allowed = True
                    mass += other[node, o]
                    total += other[node, o] * value
            if not allowed:
                continue
            if mass > 0.0:
                worth = total / mass
            else:
                if legal < 0:
                    legal = 0
                    for joint in range(num_own * num_other):
                        if rows[first + joint] == rows[first + joint]:
                            everything += rows[first + joint]
                            legal += 1
                worth = everything / legal
            if worth > best or chosen < 0:
                best, chosen = worth, a
        out[node] = best if chosen >= 0 else 0.0
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
        first = node * num_joint
        for a in range(own_joint.size):
            total, mass, everything, legal = 0.0, 0.0, 0.0, 0
            for o in range(other_joint.size):
                value = rows[first + own_joint[a] + other_joint[o]]
                if value == value:
                    mass += other[node, o]
                    total += other[node, o] * value
                    everything += value
                    legal += 1
            if mass > 0.0:
                out[node, a] = total / mass
            elif legal:
                out[node, a] = everything / legal
            else:
                out[node, a] = np.nan
