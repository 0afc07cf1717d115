"""Action values of root states, by rollouts against a fixed other side."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from omstore import PolicyTable, RolloutState, RolloutTables
from omstore.memory import DEFAULT_BUDGET
from omstore.rollout import rollout
from trainer.adapter import GraphWorldModelAdapter
from trainer.improvement.config import SoftRolloutPIConfig
from trainer.improvement.ranks import Ranks, SingleProcess
from trainer.improvement.roots import Roots
from trainer.improvement.visited import VisitedPolicy
from trainer.models import OpponentMLP
from trainer.tables import PolicyTabulator, Side, table_bytes

__all__ = ["ActionValues", "Estimates", "RolloutModel"]

_SHARE = 4
"""Policies may take a fourth of the memory budget: a table of all nodes that would take more isn't made."""

_ENVIRONMENT_BYTES = 64
"""Of an environment that is advanced step by step, while it is."""

_MANY_VISITS = 2
"""The learner's policy is tabulated over all nodes where rollouts may visit so many times as many: of fewer visits too
few nodes are left out to pay for finding them."""


class RolloutModel:
    """What rollouts in a graph need beside policies, made once for all phases.

    Parameters
    ----------
    dyn : GraphWorldModelAdapter
    threads : int
        Has no influence on any result.
    max_ram : int
        Bytes of memory to stay under; policy tables take at most a fourth of it. No influence on any result.

    Attributes
    ----------
    dyn : GraphWorldModelAdapter
    tables : RolloutTables
    tabulator : PolicyTabulator
    """

    def __init__(
        self, dyn: GraphWorldModelAdapter, *, threads: int = 2, max_ram: int = DEFAULT_BUDGET
    ) -> None:
        self.dyn = dyn
        self.threads = threads
        self.max_ram = max_ram
        self.share = max_ram // _SHARE
        self.tables = RolloutTables(dyn.graph)
        self.tabulator = PolicyTabulator(dyn, self.tables, threads=threads)

    def agents(self, side: Side) -> list[int]:
        """Return the numbers of a side's agents, ascending."""
        focal = self.dyn.focal_agent
        return [agent for agent in range(len(self.dyn.graph.agents)) if (agent == focal) == (side == "agent")]

    def reward_weights(self, side: Side) -> NDArray[np.float64]:
        """Return how much each agent's reward counts: the focal agent's, or the mean of the team's members."""
        weights = np.zeros(len(self.dyn.graph.agents))
        weights[self.agents(side)] = 1 / len(self.agents(side))
        return weights


@dataclass(frozen=True)
class Estimates:
    """Estimated action values.

    Attributes
    ----------
    mean : (v, C) float64
        Mean return of the rollouts of each candidate; 0 where there is none.
    square : (v, C) float64
        Mean of the squares of the returns.
    """

    mean: NDArray[np.float64]
    square: NDArray[np.float64]


class ActionValues:
    """Estimates action values of a learner whose policy changes, against another side whose policy doesn't.

    The other side's policy is tabulated once over all nodes, the learner's at each estimate where rollouts may visit
    many times as many. Else, or where a table of all nodes would take too much memory (`RolloutModel`), rollouts go
    on step by step, some roots at a time, and a policy is evaluated at the nodes that they come to (`VisitedPolicy`).
    The results are the same to the bit.

    Parameters
    ----------
    model : RolloutModel
    learner : {"agent", "team"}
    other : OpponentMLP
        The other side's network. It must not change while this is used.
    config : SoftRolloutPIConfig
    ranks : Ranks, optional

    Attributes
    ----------
    other_tabulated, learner_tabulated : bool
        Whether over all nodes; the learner's for a full batch.
    """

    def __init__(
        self,
        model: RolloutModel,
        learner: Side,
        other: OpponentMLP,
        config: SoftRolloutPIConfig,
        *,
        ranks: Ranks | None = None,
    ) -> None:
        self._model = model
        self.learner: Side = learner
        self.other_side: Side = "team" if learner == "agent" else "agent"
        self._other = other
        self._config = config
        self._ranks = SingleProcess() if ranks is None else ranks
        masks = model.tabulator.masks
        self.num_actions = masks[learner].num_actions
        self._num_other = masks[self.other_side].num_actions
        nodes, left = model.dyn.num_nodes, model.share
        self.other_tabulated = table_bytes(nodes, self._num_other) <= left
        if self.other_tabulated:
            left -= table_bytes(nodes, self._num_other)
        cap = config.candidate_actions or self.num_actions
        environments = config.batch * min(cap, self.num_actions) * config.n_rollouts
        visits = environments * (config.horizon - 1)
        self.learner_tabulated = (
            self.other_tabulated
            and _MANY_VISITS * nodes <= visits
            and table_bytes(nodes, self.num_actions) <= left
        )
        self._environment_share = left // 2  # while they are advanced step by step
        each = (left - self._environment_share) // (1 if self.other_tabulated else 2)
        self._visited: dict[Side, VisitedPolicy] = {}
        for side, tabulated in ((learner, self.learner_tabulated), (self.other_side, self.other_tabulated)):
            if not tabulated:
                self._visited[side] = VisitedPolicy(model.tabulator, side, visits, each)
        self._other_table: PolicyTable | None = None
        self._learner_table: PolicyTable | None = None

    def estimate(self, network: OpponentMLP, roots: Roots) -> Estimates:
        """Estimate the values of the candidates of roots; on each rank some of them, and all get all.

        Parameters
        ----------
        network : OpponentMLP
            The learner's, as it is now.
        roots : Roots

        Returns
        -------
        Estimates
        """
        count = len(roots.node)
        each = -(-count // self._ranks.size)
        own = slice(min(self._ranks.rank * each, count), min((self._ranks.rank + 1) * each, count))
        found = np.zeros((2, each, roots.candidates.shape[1]))
        if own.stop > own.start:
            found[:, : own.stop - own.start] = self._estimate(network, roots, own)
        rows = self._ranks.gather_rows(torch.from_numpy(np.ascontiguousarray(found.transpose(1, 0, 2))))
        values = rows.numpy()[:count]
        return Estimates(np.ascontiguousarray(values[:, 0]), np.ascontiguousarray(values[:, 1]))

    def _estimate(self, network: OpponentMLP, roots: Roots, own: slice) -> NDArray[np.float64]:
        tabulator = self._model.tabulator
        if self.other_tabulated and self._other_table is None:
            self._other_table = tabulator.table(self._other, self.other_side)
        if self.learner_tabulated and self._config.horizon > 1:
            self._learner_table = tabulator.table(network, self.learner, out=self._learner_table)
        if self._other_table is not None and (self.learner_tabulated or self._config.horizon == 1):
            means, squares = rollout(
                self._model.tables,
                roots.node[own],
                roots.candidates[own],
                roots.key[own],
                learner=self._model.agents(self.learner),
                learner_table=self._learner_table,
                other_table=self._other_table,
                n_rollouts=self._config.n_rollouts,
                horizon=self._config.horizon,
                discount=self._config.discount,
                reward_weights=self._model.reward_weights(self.learner),
                threads=self._model.threads,
            )
            return np.stack((means, squares))
        if self.learner in self._visited:
            self._visited[self.learner].forget()
        step = self._roots_at_a_time(roots.candidates.shape[1])
        parts = [
            self._by_steps(network, roots, slice(first, min(first + step, own.stop)))
            for first in range(own.start, own.stop, step)
        ]
        return np.concatenate(parts, axis=1)

    def _by_steps(self, network: OpponentMLP, roots: Roots, some: slice) -> NDArray[np.float64]:
        state = RolloutState(
            self._model.tables,
            roots.node[some],
            roots.candidates[some],
            roots.key[some],
            learner=self._model.agents(self.learner),
            n_rollouts=self._config.n_rollouts,
            horizon=self._config.horizon,
            discount=self._config.discount,
            reward_weights=self._model.reward_weights(self.learner),
            threads=self._model.threads,
        )
        for step in range(self._config.horizon):
            nodes = state.nodes()
            if not len(nodes):
                break
            own = self._visited[self.learner].at(network, nodes) if step else None
            theirs = self._other_table
            if theirs is None:
                theirs = self._visited[self.other_side].at(self._other, nodes)
            state.step(own, theirs)
        return np.stack(state.result())

    def _roots_at_a_time(self, candidates: int) -> int:
        """Roots whose environments, each at a node of its own, fit into their share of memory."""
        each = _ENVIRONMENT_BYTES + table_bytes(1, self.num_actions)
        if not self.other_tabulated:
            each += table_bytes(1, self._num_other)
        return max(1, math.floor(self._environment_share / (each * candidates * self._config.n_rollouts)))
