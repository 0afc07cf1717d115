"""Backups of a chunk of nodes, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel

__all__ = ["action_backup", "best_backup", "joint_backup", "policy_backup", "push", "row_backup"]


@kernel
def row_backup(
    offsets: Any,
    next_node: Any,
    probability: Any,
    reward: Any,
    done: Any,
    weights: Any,
    values: Any,
    discount: Any,
    ends: Any,
    out: Any,
) -> None:
    """Write the expected return of each row: sum of p * (weighted reward + discount * value of the next node).

    Parameters
    ----------
    offsets : (rows + 1,) int64
    next_node, probability, reward, done : (E,), (E, agents) int64, float64, float64, bool
    weights : (agents,) float64
        Empty: no reward counts.
    values : (N,) float64
    discount : float
    ends : bool
        Whether nothing follows an edge that is done.
    out : (rows,) float64
    """
    agents = weights.size
    for row in range(offsets.size - 1):
        total = 0.0
        for edge in range(offsets[row], offsets[row + 1]):
            gain = 0.0
            for agent in range(agents):
                gain += weights[agent] * reward[edge, agent]
            if not (ends and done[edge]):
                gain += discount * values[next_node[edge]]
            total += probability[edge] * gain
        out[row] = total


@kernel
def policy_backup(
    rows: Any, offsets: Any, own: Any, other: Any, own_joint: Any, other_joint: Any, out: Any
) -> None:
    """Write the value of each node under two policies, their product restricted to legal joint actions.

    Parameters
    ----------
    rows : (n * A,) float64
        Expected return of each row.
    offsets : (n * A + 1,) int64
        A row without edges isn't legal.
    own, other : (n, L), (n, O) float64
    own_joint, other_joint : (L,), (O,) int32
        What actions add to the joint action.
    out : (n,) float64
    """
    num_joint = own_joint.size * other_joint.size
    for node in range(out.size):
        first = node * num_joint
        total, mass, everything, legal = 0.0, 0.0, 0.0, 0
        for a in range(own_joint.size):
            for o in range(other_joint.size):
                row = first + own_joint[a] + other_joint[o]
                if offsets[row] < offsets[row + 1]:
                    weight = own[node, a] * other[node, o]
                    mass += weight
                    total += weight * rows[row]
                    everything += rows[row]
                    legal += 1
        if mass > 0.0:
            out[node] = total / mass
        elif legal:
            out[node] = everything / legal
        else:
            out[node] = 0.0


@kernel
def best_backup(
    rows: Any, offsets: Any, other: Any, own_joint: Any, other_joint: Any, out: Any, actions: Any
) -> None:
    """Write the value of the best action of each node, and which that is; arguments as for `policy_backup`.

    An action that meets no legal one of positive probability plays, as a policy, any legal joint action.

    Parameters
    ----------
    actions : (n,) int64
    """
    num_joint = own_joint.size * other_joint.size
    for node in range(out.size):
        first = node * num_joint
        everything, legal = 0.0, 0
        for joint in range(num_joint):
            if offsets[first + joint] < offsets[first + joint + 1]:
                everything += rows[first + joint]
                legal += 1
        best, chosen = -np.inf, -1
        for a in range(own_joint.size):
            total, mass, allowed = 0.0, 0.0, False
            for o in range(other_joint.size):
                row = first + own_joint[a] + other_joint[o]
                if offsets[row] < offsets[row + 1]:
                    allowed = True
                    mass += other[node, o]
                    total += other[node, o] * rows[row]
            if allowed:
                value = total / mass if mass > 0.0 else everything / legal
                if value > best:
                    best, chosen = value, a
        out[node] = best if chosen >= 0 else 0.0
        actions[node] = chosen


@kernel
def action_backup(rows: Any, offsets: Any, other: Any, own_joint: Any, other_joint: Any, out: Any) -> None:
    """Write the value of each action of each node; arguments as for `policy_backup`.

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
                row = first + own_joint[a] + other_joint[o]
                if offsets[row] < offsets[row + 1]:
                    mass += other[node, o]
                    total += other[node, o] * rows[row]
                    everything += rows[row]
                    legal += 1
            if mass > 0.0:
                out[node, a] = total / mass
            elif legal:
                out[node, a] = everything / legal
            else:
                out[node, a] = np.nan


@kernel
def joint_backup(rows: Any, offsets: Any, num_joint: Any, most: Any, out: Any) -> None:
    """Write the value of the best legal joint action of each node, the most or the least; 0 where none is legal.

    Parameters
    ----------
    rows, offsets
        As for `policy_backup`.
    num_joint : int
    most : bool
    out : (n,) float64
    """
    for node in range(out.size):
        found, best = False, 0.0
        for row in range(node * num_joint, (node + 1) * num_joint):
            if offsets[row] < offsets[row + 1]:
                value = rows[row]
                if not found or (value > best if most else value < best):
                    found, best = True, value
        out[node] = best


@kernel
def push(
    offsets: Any,
    next_node: Any,
    probability: Any,
    done: Any,
    own: Any,
    other: Any,
    own_joint: Any,
    other_joint: Any,
    mass: Any,
    visited: Any,
    going_on: Any,
) -> None:
    """Move the mass on nodes along their edges, actions being played as in `policy_backup`.

    Parameters
    ----------
    offsets, next_node, probability, done
        As for `row_backup`.
    own, other, own_joint, other_joint
        As for `policy_backup`.
    mass : (n,) float64
        On each node of the chunk.
    visited, going_on : (N,) float64
        Added to: mass that comes, and that of it which came by edges that aren't done.
    """
    num_joint = own_joint.size * other_joint.size
    for node in range(mass.size):
        if mass[node] == 0.0:
            continue
        first = node * num_joint
        total, legal = 0.0, 0
        for a in range(own_joint.size):
            for o in range(other_joint.size):
                row = first + own_joint[a] + other_joint[o]
                if offsets[row] < offsets[row + 1]:
                    total += own[node, a] * other[node, o]
                    legal += 1
        if legal == 0:
            continue
        for a in range(own_joint.size):
            for o in range(other_joint.size):
                row = first + own_joint[a] + other_joint[o]
                weight = own[node, a] * other[node, o] / total if total > 0.0 else 1.0 / legal
                weight *= mass[node]
                if weight == 0.0:
                    continue
                for edge in range(offsets[row], offsets[row + 1]):
                    moved = weight * probability[edge]
                    visited[next_node[edge]] += moved
                    if not done[edge]:
                        going_on[next_node[edge]] += moved
