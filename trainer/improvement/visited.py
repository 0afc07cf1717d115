"""A policy at the nodes that rollouts come to, step by step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omstore import PolicyTable
from omstore.rollout import GrowingPolicyTable
from trainer.models import OpponentMLP
from trainer.network import CompiledNetwork
from trainer.tables import PolicyTabulator, Side, table_bytes

__all__ = ["VisitedPolicy"]


class VisitedPolicy:
    """Evaluates a network at nodes when rollouts come to them, once each while memory for it lasts.

    It is one network until `forget`.

    A node's numbers are those of a table of all nodes, to the bit. Memory: `most_bytes`, and while nodes are
    evaluated their probabilities; nodes that don't fit have a table of their own meanwhile.

    Parameters
    ----------
    tabulator : PolicyTabulator
    side : {"agent", "team"}
        Whose policy it is.
    most_rows : int
        More nodes aren't kept.
    most_bytes : int
    """

    def __init__(self, tabulator: PolicyTabulator, side: Side, most_rows: int, most_bytes: int) -> None:
        self._tabulator = tabulator
        self._side: Side = side
        nodes, actions = tabulator.graph.num_nodes, tabulator.masks[side].num_actions
        rows = min(most_rows, nodes, (most_bytes - 4 * nodes) // table_bytes(1, actions))
        self._kept = GrowingPolicyTable(nodes, actions, rows) if rows > 0 else None
        self._compiled: CompiledNetwork | None = None

    def forget(self) -> None:
        """Take note that the network has changed."""
        self._compiled = None
        if self._kept is not None:
            self._kept.clear()

    def at(self, network: OpponentMLP, nodes: NDArray[np.int64]) -> PolicyTable:
        """Return a table with rows for some nodes, ascending; the next call may change it."""
        kept = self._kept
        if kept is None or len(nodes) > kept.num_rows:
            return PolicyTable(self._evaluated(network, nodes), nodes=nodes)
        missing = kept.missing(nodes)
        if kept.used + len(missing) > kept.num_rows:
            kept.clear()
            missing = nodes
        if len(missing):
            kept.add(missing, self._evaluated(network, missing))
        return kept

    def _evaluated(self, network: OpponentMLP, nodes: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the probabilities at nodes; the network is laid out once until it changes."""
        if self._compiled is None:
            self._compiled = self._tabulator.compiled(network)
        found = self._tabulator.probabilities(network, self._side, nodes, compiled=self._compiled)
        return np.asarray(found.numpy(), np.float32)
