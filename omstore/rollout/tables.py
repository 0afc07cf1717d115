"""What rollouts need of a graph, made once: how to draw successors, rewards, done, and legal joint actions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.errors import UsageError
from omstore.read.attributes import EdgeSet
from omstore.read.graph import Graph
from omstore.rollout.legality import Legality
from omstore.rollout.outcomes import (
    OutcomeTable,
    done_table,
    has_table,
    resolve_done,
    resolve_reward,
    reward_table,
)
from omstore.rollout.policies import Sides
from omstore.rollout.successors import Drawn, RowSource, SuccessorSource, successor_source

__all__ = ["RolloutTables"]


class RolloutTables:
    """A graph as rollouts read it; made once and shared by all of them, and by threads.

    Making it reads the outdegrees of all rows where the encoding doesn't show at once that every row is legal
    (10.6 million rows of csr: a second). Memory: kilobytes of tables; where some rows aren't legal a bit a row,
    at most 64 MiB; where rewards of nodes aren't coded 8 bytes a node.

    Parameters
    ----------
    graph : Graph
    compiled : bool
        Draw successors by compiled code made for rollouts, where there is any; otherwise by
        `RowEncoding.sample`. The results are equal to the bit.

    Attributes
    ----------
    graph : Graph
    legality : Legality
    source : SuccessorSource
    done : OutcomeTable
    """

    def __init__(self, graph: Graph, *, compiled: bool = True) -> None:
        self.graph = graph
        self.legality = Legality(graph.encoding)
        self._reward = graph.attributes["reward"]
        self._done = graph.attributes["done"]
        self.done = done_table(self._done)
        self._rewards: tuple[bytes, OutcomeTable] | None = None
        levels = (self._reward.level, self._done.level)
        self.resolves_reward = not has_table(self._reward)
        self.resolves_done = not has_table(self._done)
        self.source: SuccessorSource
        if compiled:
            resolved = self.resolves_reward or self.resolves_done
            self.source = successor_source(
                graph.encoding, graph.attributes["probability"], "outcome" in levels, resolved
            )
        else:
            self.source = RowSource(graph.encoding, graph.attributes["probability"])

    def sides(self, learner: Sequence[int]) -> Sides:
        """Split the agents into the learner's and the others'; see :meth:`Sides.of`."""
        return Sides.of(self.graph.num_actions, learner)

    def weights(self, reward_weights: ArrayLike) -> NDArray[np.float64]:
        """Check the weights of the agents' rewards: (agents,) float64."""
        weights = np.array(reward_weights, np.float64)
        if weights.shape != (len(self.graph.agents),) or not np.isfinite(weights).all():
            raise UsageError(
                f"the rewards of {len(self.graph.agents)} agents have {weights} as their weights"
            )
        return weights

    def reward(self, weights: NDArray[np.float64]) -> OutcomeTable:
        """Return the table of weighted rewards; that of the last weights is kept."""
        known, key = self._rewards, weights.tobytes()
        if known is not None and known[0] == key:
            return known[1]
        table = reward_table(self._reward, weights)
        self._rewards = (key, table)  # one assignment: threads may share this
        return table

    def resolve(
        self,
        drawn: Drawn,
        nodes: NDArray[np.int64],
        joint_actions: NDArray[np.int64],
        weights: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64] | None, NDArray[np.uint8] | None]:
        """Resolve rewards and done of edges drawn, where no table has them; None where one has."""
        if drawn.edges is None:
            return None, None
        edges = drawn.edges
        of = EdgeSet(
            None,
            nodes * self.graph.num_joint_actions + joint_actions,
            self.graph.num_joint_actions,
            edges.next_node,
            edges.outcome,
            edges.edge,
            edges.attributes,
        )
        return (
            resolve_reward(self._reward, of, weights) if self.resolves_reward else None,
            resolve_done(self._done, of) if self.resolves_done else None,
        )
