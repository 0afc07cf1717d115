"""What an edge is worth, weighted reward and what follows, at the lowest level it is a function of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.exact import gain_kernels
from omstore.read.graph import Graph
from omstore.rollout import outcome_kernels
from omstore.rollout.outcomes import OutcomeTable, done_table, has_table, reward_table

__all__ = ["Gains", "Terms", "Valuation"]

_BY_NEXT_NODE = {
    outcome_kernels.CONSTANT,
    outcome_kernels.BY_NEXT,
    outcome_kernels.BY_NODE,
    outcome_kernels.UNLESS,
}
_NOTHING = OutcomeTable(
    outcome_kernels.CONSTANT,
    as_input(np.zeros(1), np.float64),
    as_input(np.empty(0), np.uint8),
    as_input(np.empty(0), np.uint8),
)
_BY_CODE = {outcome_kernels.CONSTANT, outcome_kernels.BY_CODE}


@dataclass(frozen=True, eq=False)
class Valuation:
    """What a backup counts.

    Attributes
    ----------
    values : (N,) float64
        Of the nodes, one step later.
    weights : (agents,) float64
        How much each agent's reward counts.
    discount : float
    sign : float
        -1 turns everything around, so that the best is the least.
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]
    discount: float
    sign: float = 1.0


@dataclass(frozen=True, eq=False)
class Gains:
    """What edges are worth: of edge e from node x to y, with outcome code c, ``base[x] + plain[y]`` where x is
    marked, else ``table[y]``; where there is `code_reward`, ``... + code_reward[c] + code_keep[c] * table[y]``.

    Attributes
    ----------
    valuation : Valuation
        Of which these are the gains.
    table : (places,) float64
        Weighted reward of entering a place, and the discounted value of what follows; where no node is, see
        `Terms.gains`.
    plain : (places,) float64, or empty
        Without the reward.
    base, marked : (N,) float64 and uint8, or empty
    code_reward, code_keep : (K,) float64, or empty
    room : tuple or None
        The arrays, as they are written.
    """

    valuation: Valuation
    table: NDArray[np.float64]
    plain: NDArray[np.float64]
    base: NDArray[np.float64]
    marked: NDArray[np.uint8]
    code_reward: NDArray[np.float64]
    code_keep: NDArray[np.float64]
    room: _Room | None = None


class _Room(NamedTuple):
    """Where gains are written: `table`, `plain`, `base` and `marked` of `Gains`."""

    table: NDArray[np.float64]
    plain: NDArray[np.float64]
    base: NDArray[np.float64]
    marked: NDArray[np.uint8]


class Terms:
    """Rewards and done flags of a graph, as backups need them.

    Parameters
    ----------
    graph : Graph
    rewards : bool
        Whether rewards count; else they are 0.
    ends : bool
        Whether nothing follows an edge that is done; else done isn't looked at.

    Attributes
    ----------
    by_next_node : bool
        Whether gains are a function of the nodes that an edge joins.
    by_code : bool
        Whether they are, with the outcome code.
    marks : bool
        Whether rewards may be nodes' own.
    """

    def __init__(self, graph: Graph, *, rewards: bool = True, ends: bool = True) -> None:
        self.rewards = rewards
        self.ends = ends
        self._graph = graph
        self._reward = graph.attribute("reward")
        self._done = done_table(graph.attribute("done")) if ends else _NOTHING
        self._rewards: tuple[bytes, OutcomeTable] | None = None
        self._spare: list[_Room] = []
        given = rewards and not has_table(self._reward)
        reward = outcome_kernels.GIVEN if given else self._weighted(np.zeros(len(graph.agents))).how
        done = self._done.how
        self.marks = reward in (outcome_kernels.BY_NODE, outcome_kernels.UNLESS)
        ends_by_node = done in (outcome_kernels.CONSTANT, outcome_kernels.BY_NEXT)
        self.by_next_node = reward in _BY_NEXT_NODE and ends_by_node
        self.by_code = reward in _BY_CODE and (ends_by_node or done == outcome_kernels.BY_CODE)

    def gains(
        self,
        valuation: Valuation,
        places: int | None = None,
        place: NDArray[Any] | None = None,
        nowhere: float = np.nan,
    ) -> Gains:
        """Work out what edges are worth, in a pass over the nodes.

        Parameters
        ----------
        valuation : Valuation
        places : int, optional
            Length of the tables; default: a place for each node.
        place : (N,) unsigned integers, optional
            Where each node is.
        nowhere : float
            What is at places without a node, where no edge may lead.

        Returns
        -------
        Gains
            Memory: 8 bytes a place; 17 more where rewards are nodes' own. Given to `give_back` when it isn't needed
            any more, the next ones take its room.

        Raises
        ------
        CorruptStoreError
            If a node's reward or done flag isn't among the values stored, or it has no place.
        """
        nodes = self._graph.num_nodes
        nothing = as_input(np.empty(0), np.float64)
        reward = self._weighted(valuation.weights)
        room = self._room(nodes if places is None else places, None if place is None else nowhere)
        status, node = gain_kernels.fold(
            as_input(valuation.values, np.float64),
            float(valuation.discount),
            float(valuation.sign),
            reward.how,
            reward.values,
            reward.codes,
            reward.own,
            self._done.how,
            as_input(self._done.values, np.uint8),
            self._done.codes,
            as_input(np.empty(0), np.uint32) if place is None else as_input(place, place.dtype),
            *room,
        )
        if status == gain_kernels.BAD_PLACE:
            raise CorruptStoreError(
                f"rows: node {node} stands at a position that doesn't exist",
                "Convert or build the store again.",
            )
        if status != gain_kernels.OK:
            raise CorruptStoreError(
                f"nodes/attributes: node {node} has a code of a reward or done flag that isn't in the table",
                "Publish again, or `omstore rollback` to an earlier version.",
            )
        code_reward = code_keep = nothing
        if not self.by_next_node and self.by_code:
            code_reward, code_keep = self._by_code(reward, valuation.sign)
        return Gains(
            valuation,
            as_input(room.table, np.float64),
            as_input(room.plain, np.float64),
            as_input(room.base, np.float64),
            as_input(room.marked, np.uint8),
            code_reward,
            code_keep,
            room,
        )

    def give_back(self, gains: Gains) -> None:
        """Let the next gains take the room of these: new pages cost more than what is written to them."""
        if gains.room is not None:
            self._spare.append(gains.room)

    def _room(self, places: int, nowhere: float | None) -> _Room:
        if self._spare and len(self._spare[-1].table) == places:
            return self._spare.pop()
        own = self._graph.num_nodes if self.marks else 0
        table = np.empty(places) if nowhere is None else np.full(places, nowhere)
        plain = table.copy() if self.marks else np.empty(0)
        return _Room(table, plain, np.empty(own), np.empty(own, np.uint8))

    def marked_nodes(self) -> NDArray[np.bool_]:
        """Tell which nodes have a reward of their own, (N,)."""
        reward = self._weighted(np.zeros(len(self._graph.agents)))
        if reward.how == outcome_kernels.UNLESS:
            return np.asarray(reward.own > 0)
        return np.full(self._graph.num_nodes, reward.how == outcome_kernels.BY_NODE)

    def _by_code(self, reward: OutcomeTable, sign: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rewards of outcome codes; and 0 for those that are done, 1 for others."""
        num_codes = self._graph.encoding.size.num_outcomes
        gain = np.zeros(num_codes)
        if reward.how == outcome_kernels.BY_CODE:
            gain[:] = reward.values
        keep = np.ones(num_codes)
        if self._done.how == outcome_kernels.BY_CODE:
            keep[self._done.values != 0] = 0.0
            if reward.how == outcome_kernels.CONSTANT:  # in the tables, which don't count where it is done
                gain[self._done.values != 0] = reward.values[0]
        return as_input(sign * gain, np.float64), as_input(keep, np.float64)

    def _weighted(self, weights: NDArray[np.float64]) -> OutcomeTable:
        """Lay the weighted rewards out; the last are kept, sweeps ask for the same ones."""
        if not self.rewards:
            return _NOTHING
        key = np.asarray(weights, np.float64).tobytes()
        known = self._rewards
        if known is None or known[0] != key:
            known = key, reward_table(self._reward, as_input(weights, np.float64))
            self._rewards = known
        return known[1]
