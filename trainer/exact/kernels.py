"""Moving mass along edges, compiled."""

from __future__ import annotations

from typing import Any

from omstore.compiled import kernel

__all__ = ["push"]


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
    """Move the mass on nodes along their edges, actions being played as `omstore.exact.Backup` says.

    Parameters
    ----------
    offsets : (n * A + 1,) int64
        A row without edges isn't legal.
    next_node, probability, done : (E,) int64, float64, bool
    own, other : (n, L), (n, O) float64
    own_joint, other_joint : (L,), (O,) int32
        What actions add to the joint action.
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
