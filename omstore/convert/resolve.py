"""The export's records as the store's terms, in the order of the export: what conversion sorts and `verify`
compares.

Nothing here sorts, hoists or writes, so a check of a store against its source can use it without sharing
the steps it checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel
from omstore.convert.actions import ActionSpace
from omstore.convert.records import RecordReader
from omstore.errors import BadDataError
from omstore.format.states import StateCodec
from omstore.legacy.fields import Field
from omstore.legacy.mapping import GraphMapping

__all__ = ["EdgeChunk", "EdgeStream", "IdNodes", "NodeResolver", "StateLookup", "StateNodes", "pack_states"]


class NodeResolver(Protocol):
    """Finds the nodes that endpoints name."""

    def resolve(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the node of every endpoint, (n, k) -> (n,), -1 where there is none."""
        ...

    def describe(self, value: NDArray[Any]) -> str:
        """Write an endpoint that is no node, and what was expected, for an error."""
        ...


@kernel
def _search(sorted_ids: NDArray[np.int64], ids: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
    for i in range(ids.shape[0]):
        wanted = ids[i]
        low, high = 0, sorted_ids.shape[0]
        while low < high:
            middle = (low + high) >> 1
            if sorted_ids[middle] < wanted:
                low = middle + 1
            else:
                high = middle
        positions[i] = low if low < sorted_ids.shape[0] and sorted_ids[low] == wanted else -1


@kernel
def _look_up_nodes(table: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
    """Replace positions by the table's entries, in place; -1 where out of range."""
    for i in range(positions.shape[0]):
        at = positions[i]
        positions[i] = table[at] if 0 <= at < table.shape[0] else -1


class IdNodes:
    """Finds nodes by legacy id.

    Parameters
    ----------
    node_of_legacy : (N,) unsigned integers
        Position in the sorted legacy ids -> node; may be mapped.
    sorted_ids : (N,) int64 or None
        None: the ids are 0..N-1.
    """

    _IN_MEMORY = 1 << 22

    def __init__(self, node_of_legacy: NDArray[Any], sorted_ids: NDArray[np.int64] | None) -> None:
        self._nodes = node_of_legacy
        self._ids = sorted_ids
        self._table: NDArray[np.int64] | None = None
        self._base = 0
        small = len(node_of_legacy) <= self._IN_MEMORY
        if sorted_ids is None and small:
            self._table = node_of_legacy.astype(np.int64)
        elif sorted_ids is not None and len(sorted_ids):
            span = int(sorted_ids[-1]) - int(sorted_ids[0]) + 1
            if span <= min(self._IN_MEMORY, 4 * len(sorted_ids) + 1024):  # with gaps, but dense
                self._base = int(sorted_ids[0])
                self._table = np.full(span, -1, np.int64)
                self._table[sorted_ids - self._base] = node_of_legacy

    def resolve(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the nodes of legacy ids, (n, 1) -> (n,), -1 where there is none."""
        ids = np.array(values[:, 0], np.int64)
        if values.dtype.kind == "f":
            ids[values[:, 0] != ids] = -1 if self._ids is None else np.iinfo(np.int64).min
        if self._table is not None:
            if self._base:
                ids -= self._base
            _look_up_nodes(self._table, ids)
            return ids
        positions = ids
        if self._ids is not None:
            positions = np.empty(len(ids), np.int64)
            _search(self._ids, ids, positions)
        absent = (positions < 0) | (positions >= len(self._nodes))
        positions[absent] = 0
        nodes = self._nodes[positions].astype(np.int64)
        nodes[absent] = -1
        return nodes

    def describe(self, value: NDArray[Any]) -> str:
        """Write an endpoint that is no node."""
        if not len(self._nodes):
            return f"{value[0]} (there are no nodes)"
        if self._ids is None:
            return f"{value[0]} (nodes are numbered 0 to {len(self._nodes) - 1})"
        return f"{value[0]} (there are {len(self._nodes):,} ids from {self._ids[0]} to {self._ids[-1]})"


def pack_states(codec: StateCodec, values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Pack states that may hold components out of the codec's range.

    Returns
    -------
    packed : (n, Wb) uint8
        Zeros where a state doesn't fit.
    fits : (n,) bool
    """
    limit = (1 << codec.component_bits) - 1
    if values.dtype == np.uint8 and (limit >= 255 or (values.size and values.max() <= limit)):
        return codec.pack(values), np.ones(len(values), np.bool_)
    whole = np.trunc(values) == values if values.dtype.kind == "f" else np.True_
    fits = np.logical_and.reduce((values >= 0) & (values <= limit) & whole, axis=1)
    return codec.pack(np.where(fits[:, None], values, 0).astype(np.int64)), fits


class StateLookup(Protocol):
    """Finds packed states: a `StateIndex`, or a graph of a store."""

    def lookup_packed(self, packed: NDArray[np.uint8], /) -> NDArray[np.int64]:
        """Return the nodes of packed states, -1 where there is none."""
        ...


class StateNodes:
    """Finds nodes by state.

    Parameters
    ----------
    codec : StateCodec
    index : StateLookup
    """

    def __init__(self, codec: StateCodec, index: StateLookup) -> None:
        self._codec = codec
        self._index = index

    def resolve(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return the nodes of states, (n, W) -> (n,), -1 where there is none."""
        if values.shape[1] != self._codec.width:
            raise BadDataError(
                f"a state of {values.shape[1]} components, where states have {self._codec.width}"
            )
        packed, fits = pack_states(self._codec, values)
        nodes = self._index.lookup_packed(packed)
        nodes[~fits] = -1
        return nodes

    def describe(self, value: NDArray[Any]) -> str:
        """Write an endpoint that is no node."""
        shown = " ".join(f"{component:g}" for component in value[:40])
        return f"the state ({shown}{' ...' if len(value) > 40 else ''}), which isn't among the nodes"


@dataclass(frozen=True)
class EdgeChunk:
    """Consecutive edges, in the export's order.

    Attributes
    ----------
    first : int
        Number of the first record.
    node, joint_action, next_node : (n,) int64
    probability : (n,) float64 or None
    reward : (n, agents) float64 or None
    done : (n,) uint8 or None
    kept : dict of name to (n, k) array
    """

    first: int
    node: NDArray[np.int64]
    joint_action: NDArray[np.int64]
    next_node: NDArray[np.int64]
    probability: NDArray[np.float64] | None
    reward: NDArray[np.float64] | None
    done: NDArray[np.uint8] | None
    kept: dict[str, NDArray[Any]]


class EdgeStream:
    """The edges of an export, resolved and checked, as often as wanted.

    Parameters
    ----------
    reader : RecordReader
        Of the edges.
    mapping : GraphMapping
    nodes : NodeResolver
    actions : ActionSpace
    where : str
        File name for errors.
    allow_nonfinite : bool
        Take NaN and infinities in rewards and kept fields.
    """

    def __init__(
        self,
        reader: RecordReader,
        mapping: GraphMapping,
        nodes: NodeResolver,
        actions: ActionSpace,
        where: str,
        allow_nonfinite: bool = False,
    ) -> None:
        self.reader = reader
        self.mapping = mapping
        self.nodes = nodes
        self.actions = actions
        self.num_edges = reader.num_rows
        self._where = f"{where}: {mapping.edges.name}"
        self._allow_nonfinite = allow_nonfinite
        check_reward(mapping.reward, len(actions.num_actions), self._where)
        optional = [mapping.probability, mapping.reward, mapping.done]
        self._fields: list[Field] = [mapping.source, mapping.joint_action, mapping.next_node]
        self._fields += [where for where in optional if where is not None]
        self._fields += [where for _, where in mapping.kept]

    def chunks(self, *, attributes: bool = True) -> Iterator[EdgeChunk]:
        """Go through the edges; without attributes, only nodes and joint actions are read.

        Raises
        ------
        BadDataError
            Naming the first record whose endpoint is no node, whose joint action is out of range, whose
            probability isn't within 0..1, or that holds a number that isn't finite.
        """
        mapping = self.mapping
        fields = self._fields if attributes else self._fields[:3]
        for first, values in self.reader.chunks(fields):
            source, action, target = values[:3]
            rest = iter(values[3:])
            node = self._resolve(source, first, "source", mapping.source)
            joint_action = self.actions.encode(action, self._where, first)
            next_node = self._resolve(target, first, "next node", mapping.next_node)
            if not attributes:
                yield EdgeChunk(first, node, joint_action, next_node, None, None, None, {})
                continue
            probability = self._probability(next(rest), first) if mapping.probability else None
            reward = self._reward(next(rest), first) if mapping.reward else None
            done = _truth(next(rest)) if mapping.done else None
            kept = {}
            for name, where in mapping.kept:
                kept[name] = next(rest)
                self._check_finite(kept[name], first, where)
            yield EdgeChunk(first, node, joint_action, next_node, probability, reward, done, kept)

    def _resolve(self, values: NDArray[Any], first: int, what: str, where: Field) -> NDArray[np.int64]:
        nodes = self.nodes.resolve(values)
        if nodes.size and nodes.min() < 0:
            bad = int(np.argmin(nodes))
            raise BadDataError(
                f"{self._where}, record {first + bad}: {what} {where.name} is no node: "
                f"{self.nodes.describe(values[bad])}",
                "If the fields were mistaken, say which they are with --map source=NAME --map "
                "next_node=NAME.",
            )
        return nodes

    def _probability(self, values: NDArray[Any], first: int) -> NDArray[np.float64]:
        probability = values[:, 0].astype(np.float64, copy=False)
        good = (probability >= 0) & (probability <= 1)  # NaN fails this as well
        if not good.all():
            bad = int(np.argmin(good))
            name = self.mapping.probability.name if self.mapping.probability else ""
            raise BadDataError(
                f"{self._where}, record {first + bad}: probability {name} is {probability[bad]}, where "
                f"0 to 1 was expected",
                "If another field is the probability, say which with --map probability=NAME.",
            )
        return probability

    def _reward(self, values: NDArray[Any], first: int) -> NDArray[np.float64]:
        if self.mapping.reward is not None:
            self._check_finite(values, first, self.mapping.reward)
        return per_agent(values, len(self.actions.num_actions))

    def _check_finite(self, values: NDArray[Any], first: int, where: Field) -> None:
        if values.dtype.kind == "f" and not self._allow_nonfinite:
            check_finite(values, self._where, first, where.name)


def check_reward(reward: Field | None, num_agents: int, where: str) -> None:
    """Refuse rewards that are neither one number nor one for each agent."""
    if reward is not None and reward.width not in (1, num_agents):
        raise BadDataError(
            f"{where}: reward {reward.name} has {reward.width} numbers, where there are {num_agents} agents",
            "Say which field is the reward, or how many actions each agent has, with --map reward=NAME or "
            "--actions 5,5,5.",
        )


def per_agent(reward: NDArray[Any], num_agents: int) -> NDArray[np.float64]:
    """Make rewards (n, agents) float64; one number is every agent's."""
    values = reward.astype(np.float64, copy=False)
    return values if values.shape[1] == num_agents else np.repeat(values, num_agents, axis=1)


def check_finite(values: NDArray[Any], where: str, first: int, name: str) -> None:
    """Refuse NaN and infinities, naming the record."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum()
    if not np.isfinite(
        total
    ):  # a sum is cheaper than a look at every number, and finite sums have finite terms
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            bad = int(np.argmin(finite))
            raise BadDataError(
                f"{where}, record {first + bad}: field {name} is {values[bad].tolist()}, where finite "
                f"numbers were expected",
                "Take NaN and infinities with --allow-nonfinite.",
            )


def _truth(values: NDArray[Any]) -> NDArray[np.uint8]:
    truth: NDArray[np.uint8] = (values[:, 0] != 0).astype(np.uint8)
    return truth
