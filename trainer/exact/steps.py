"""One step of backward induction: what each node is worth, given what the next ones are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

import omstore
from omstore import PolicyTable
from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.exact import Backup, Sweeper
from omstore.rollout import Sides
from trainer.exact.problems import Policy
from trainer.tables import Side

__all__ = ["OTHER", "Choice", "Chunk", "Step", "Steps"]

_CHUNK_EDGES = 1 << 17
"""Edges read at a time, about: 7 MB. Fewer take more calls, more don't stay in cache."""

OTHER: dict[Side, Side] = {"agent": "team", "team": "agent"}

Choice = Literal["policies", "agent", "team", "most", "least"]
"""Who chooses actions: both sides by their policies; the focal agent or the team the best against the other's; or one
player all joint actions, those of the most or the least."""


@dataclass(frozen=True)
class Step:
    """What a step is about.

    Attributes
    ----------
    choice : Choice
    agent, team : Policy or None
        Of sides that don't choose; checked by `Steps.checked`.
    weights : (agents,) float64
        How much each agent's reward counts; empty: none does.
    discount : float
    ends : bool
        Whether nothing follows an edge that is done. Otherwise done isn't looked at.
    """

    choice: Choice
    agent: Policy | None
    team: Policy | None
    weights: NDArray[np.float64]
    discount: float
    ends: bool = True


@dataclass(frozen=True)
class Chunk:
    """Consecutive nodes of a sweep, with all edges of theirs."""

    nodes: slice
    offsets: NDArray[np.int64]
    next_node: NDArray[np.int64]
    probability: NDArray[np.float64]
    reward: NDArray[np.float64]
    done: NDArray[np.bool_]

    @classmethod
    def of(cls, chunk: omstore.SweepChunk, num_joint_actions: int) -> Chunk:
        """Take a sweep's chunk, of whole nodes."""
        found = chunk.successors
        node, rest = divmod(chunk.first_row, num_joint_actions)
        count, more = divmod(len(found.offsets) - 1, num_joint_actions)
        assert rest == more == 0  # chunks of as many rows as were asked for
        return cls(
            slice(node, node + count),
            as_input(found.offsets, np.int64),
            as_input(found.next_node, np.int64),
            as_input(found.probability, np.float64),
            as_input(found.reward, np.float64),
            as_input(found.done, np.bool_),
        )


class Steps:
    """Steps of backward induction on a graph, over all rows, whatever their encoding.

    Nodes are backed up one by one, so threads have no influence.

    Parameters
    ----------
    graph : Graph
    focal_agent : int
    threads : int
    """

    def __init__(self, graph: omstore.Graph, focal_agent: int, threads: int) -> None:
        self.graph = graph
        self.focal_agent = focal_agent
        self.threads = threads
        sides = Sides.of(graph.num_actions, [focal_agent])
        self.joint: dict[Side, NDArray[np.int32]] = {
            "agent": sides.learner_joint,
            "team": sides.other_joint,
        }
        self._sweeper = Sweeper(graph, threads=threads)
        edges_of_node = max(graph.num_joint_actions, graph.num_edges // max(1, graph.num_nodes))
        self._nodes_at_a_time = max(1, _CHUNK_EDGES // edges_of_node)

    def back_up(
        self,
        steps: Sequence[Step],
        before: NDArray[np.float64],
        after: NDArray[np.float64],
        actions: Sequence[NDArray[np.int64] | None] | None = None,
    ) -> None:
        """Make a step for each of several problems in one sweep: reading rows takes longer than backing them up.

        Parameters
        ----------
        steps : sequence of Step
        before : (steps, N) float64
            What nodes are worth after the step.
        after : (steps, N) float64
            What they are worth before it; written. 0 where no joint action is legal.
        actions : sequence of (N,) int64 or None, optional
            Where the actions of a side that chooses are written.
        """
        chosen = [None] * len(steps) if actions is None else actions
        self._sweeper.sweep(
            [
                self._backup(step, values, out, acts)
                for step, values, out, acts in zip(steps, before, after, chosen, strict=True)
            ]
        )

    def action_values(self, step: Step, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what each action of the side that chooses is worth, (N, actions); NaN where it isn't legal."""
        assert step.choice in OTHER
        out = np.empty((self.graph.num_nodes, len(self.joint[step.choice])))
        self._sweeper.sweep([self._backup(step, values, out, None)])
        return out

    def _backup(
        self,
        step: Step,
        values: NDArray[np.float64],
        out: NDArray[np.float64],
        actions: NDArray[np.int64] | None,
    ) -> Backup:
        asked = Backup(values, step.weights, out, step.discount, ends=step.ends, actions=actions)
        if step.choice == "most" or step.choice == "least":
            return replace(asked, minimise=step.choice == "least")
        focal = [self.focal_agent]
        if step.choice == "policies":
            return replace(asked, own_side=focal, own=step.agent, other=step.team)
        if step.choice == "agent":
            return replace(asked, own_side=focal, other=step.team)
        team = [agent for agent in range(len(self.graph.agents)) if agent != self.focal_agent]
        return replace(asked, own_side=team, other=step.agent)

    def sweep(self, visit: Callable[[Chunk], None]) -> None:
        """Give all nodes to `visit`, a chunk at a time, in several threads."""
        joint = self.graph.num_joint_actions
        bounds = np.linspace(0, self.graph.num_nodes, self.threads + 1).astype(np.int64).tolist()

        def run(part: int) -> None:
            rows = self._nodes_at_a_time * joint
            for chunk in self.graph.sweep(rows, start_node=bounds[part], stop_node=bounds[part + 1]):
                visit(Chunk.of(chunk, joint))

        if self.threads == 1:
            run(0)
            return
        with ThreadPoolExecutor(self.threads) as executor:
            list(executor.map(run, range(self.threads)))

    def checked(self, policy: Policy, side: Side) -> Policy:
        """Return a policy, checked to be one of a side at all nodes.

        Raises
        ------
        UsageError
            If its shape is another.
        """
        shape = (self.graph.num_nodes, len(self.joint[side]))
        if isinstance(policy, PolicyTable):
            if not policy.everywhere or (policy.num_rows, policy.num_actions) != shape:
                raise UsageError(
                    f"the {side}'s table has {policy.num_rows} rows of {policy.num_actions} actions; exact values "
                    f"take one of all {shape[0]:,} nodes and {shape[1]} actions"
                )
            return policy
        if policy.shape != shape or policy.dtype.kind != "f":
            raise UsageError(
                f"the {side}'s policy is {policy.dtype} of shape {policy.shape}; exact values take floats of {shape}"
            )
        return policy
