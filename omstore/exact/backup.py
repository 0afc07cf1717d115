"""What is asked of a sweep: whose values, under which policies, and where the results go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.read.graph import Graph
from omstore.rollout.policies import PolicyTable, Sides

__all__ = ["Backup", "NodePolicy", "Policy", "plays", "policy_block", "policy_rows"]


class NodePolicy(Protocol):
    """A policy that is asked for some nodes at a time; several threads may ask at once."""

    def probabilities(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        """Return the probabilities of nodes, (n, actions) of any floating type."""


Policy = NDArray[Any] | NodePolicy
"""(N, actions) probabilities of a side at every node, of any floating type (which may be broadcast, taking no
memory), or what gives them for some nodes, such as a `PolicyTable` of all nodes. Illegal actions may have some:
they are never played."""


@dataclass(frozen=True, eq=False)
class Backup:
    """One value function to back up.

    Actions are played as in rollouts: joint actions have the product of both policies restricted to legal ones
    and normalized again; where that is 0 on all legal ones, each of them is as likely. A node without a legal
    joint action has value 0.

    Attributes
    ----------
    values : (N,) float64
        Of the nodes, one step later.
    weights : (agents,) floats
        How much each agent's reward counts; empty: none does.
    out : (N,) or (N, L) float64
        For the result; (N, L): the value of each of the own side's actions, NaN where it is part of no legal
        joint action.
    discount : float
    ends : bool
        Whether nothing follows an edge that is done; else done isn't looked at.
    own_side : sequence of int, optional
        The agents of one side, ascending. None: all of them, moved by one player.
    own : Policy, optional
        Of the own side; None: it plays the best action.
    other : Policy, optional
        Of the other side, where there is one.
    minimise : bool
        Whether the best is the least.
    actions : (N,) int64, optional
        For the best action of each node, the lowest of those that are as good; -1 where none is legal.
    """

    values: NDArray[np.float64]
    weights: Sequence[float] | NDArray[np.float64]
    out: NDArray[np.float64]
    discount: float = 1.0
    ends: bool = True
    own_side: Sequence[int] | None = None
    own: Policy | None = None
    other: Policy | None = None
    minimise: bool = False
    actions: NDArray[np.int64] | None = None

    @property
    def one_player(self) -> bool:
        """Whether one player chooses all joint actions, and nobody asks which."""
        return self.other is None and self.own is None and self.actions is None and self.out.ndim == 1

    def sides(self, graph: Graph) -> Sides:
        """Split the joint actions of a graph into this side's and the other's."""
        agents = range(len(graph.num_actions))
        return Sides.of(graph.num_actions, list(agents if self.own_side is None else self.own_side))

    def check(self, graph: Graph) -> None:
        """Raise UsageError unless this makes sense for a graph."""
        nodes = graph.num_nodes
        sides = self.sides(graph)
        own, other = len(sides.learner_joint), len(sides.other_joint)
        if self.values.shape != (nodes,) or self.values.dtype != np.float64:
            raise UsageError(
                f"values are float64 of all {nodes:,} nodes, not {self.values.dtype} of {self.values.shape}"
            )
        if np.shape(self.weights) not in ((len(graph.agents),), (0,)):
            raise UsageError(f"{len(graph.agents)} agents' rewards have as many weights, not {self.weights}")
        if self.out.shape not in ((nodes,), (nodes, own)) or self.out.dtype != np.float64:
            raise UsageError(
                f"out is float64 of ({nodes},) or ({nodes}, {own}), not {self.out.dtype} of {self.out.shape}"
            )
        if np.may_share_memory(self.values, self.out):
            raise UsageError(
                "a backup reads all values while it writes: out can't be where they are",
                "Keep two arrays, and swap them after each sweep.",
            )
        if self.actions is not None and (self.actions.shape != (nodes,) or self.actions.dtype != np.int64):
            raise UsageError(f"actions are int64 of all {nodes:,} nodes")
        if self.own is not None and (self.actions is not None or self.out.ndim == 2):
            raise UsageError("a side that plays by its policy has no best action: leave own, or actions, out")
        if self.actions is not None and self.out.ndim == 2:
            raise UsageError("values of all actions are asked for, or the best one: not both at once")
        if self.other is None and other > 1:
            raise UsageError("the other side's policy is needed: it has a choice")
        for policy, count, whose in ((self.own, own, "own"), (self.other, other, "other")):
            _check_policy(policy, (nodes, count), whose)


def policy_block(
    policy: Policy | None, nodes: slice | NDArray[np.int64], count: int, actions: int
) -> NDArray[np.float64]:
    """Return the probabilities of some nodes, (count, actions) float64; all 1 of a side that doesn't exist."""
    if policy is None:
        return as_input(np.ones((count, actions)), np.float64)
    block = policy[nodes] if isinstance(policy, np.ndarray) else policy.probabilities(nodes)
    if block.shape != (count, actions):
        raise UsageError(f"a policy gave probabilities of shape {block.shape} instead of {(count, actions)}")
    return as_input(block, np.float64)


def policy_rows(
    policy: Policy | None, nodes: slice | NDArray[np.int64], count: int, actions: int
) -> NDArray[np.float64]:
    """Return the probabilities of some nodes, or one row, (1, actions), where they are those of every node."""
    if isinstance(policy, np.ndarray) and policy.strides[0] == 0 and len(policy):
        return policy_block(policy[:1], slice(None), 1, actions)
    return policy_block(policy, nodes, count, actions)


def plays(
    sides: Sides, own: Policy | None, other: Policy | None, nodes: slice | NDArray[np.int64], count: int
) -> tuple[Any, ...]:
    """Return what kernels need to know of both sides at some nodes.

    Returns
    -------
    own, own_step, other, other_step
        Policies, (count or 1, actions) float64, or empty where there is none; and 1, or 0 where there is one row for
        all nodes.
    learner_joint, other_joint : (L,), (O,) int32
        Of `sides`.
    """
    found: list[Any] = []
    for policy, joint in ((own, sides.learner_joint), (other, sides.other_joint)):
        block = as_input(np.empty((0, 0)), np.float64)
        if policy is not None:
            block = policy_rows(policy, nodes, count, len(joint))
        found += [block, int(len(block) > 1)]
    return *found, sides.learner_joint, sides.other_joint


def _check_policy(policy: Policy | None, shape: tuple[int, int], whose: str) -> None:
    if isinstance(policy, PolicyTable):
        if not policy.everywhere or (policy.num_rows, policy.num_actions) != shape:
            raise UsageError(
                f"the {whose} side's table has {policy.num_rows} rows of {policy.num_actions} actions; a sweep "
                f"takes one of all {shape[0]:,} nodes and {shape[1]} actions"
            )
    elif isinstance(policy, np.ndarray) and (policy.shape != shape or policy.dtype.kind != "f"):
        raise UsageError(
            f"the {whose} side's policy is {policy.dtype} of shape {policy.shape}; a sweep takes floats of {shape}"
        )
