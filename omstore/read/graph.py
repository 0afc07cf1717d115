"""The graph of a store: states, legal joint actions, successors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, UsageError
from omstore.format.manifest import Manifest
from omstore.index import StateIndex
from omstore.read.actions import as_batch, decode_joint, encode_joint
from omstore.read.arrays import VersionArrays
from omstore.read.attributes import Attribute, EdgeSet, open_attribute
from omstore.read.kernels import find_legacy, row_numbers
from omstore.read.successors import Sample, Successors, SweepChunk
from omstore.rows import GraphSize, Probabilities, RowEncoding, open_rows

__all__ = ["Graph"]

_NEEDED = ("probability", "reward", "done")


class Graph:
    """A stored transition graph; every method is batched and its memory is that of its result.

    Made by :func:`omstore.open`. The arrays stay on disk, mapped; several threads may read, forks too.
    Pickles as the store's path and version.

    Attributes
    ----------
    num_nodes, num_edges, num_joint_actions, num_rows : int
        N, E, A, and N * A.
    agents : tuple of str
        Names, agent 0 first.
    num_actions : tuple of int
        Actions of each agent; their product is A.
    state_width, component_bits : int
        W, components of a state, and the bits that each takes: 1, 8, 16 or 32.
    attributes : mapping of str to Attribute
        Probability, reward, done and the kept fields, as stored.
    """

    def __init__(
        self,
        arrays: VersionArrays,
        manifest: Manifest,
        origin: tuple[Any, ...],
        *,
        allow_model_import: bool = False,
    ) -> None:
        counts = manifest.counts
        self._origin = origin
        self.num_nodes = counts.num_nodes
        self.num_joint_actions = counts.num_joint_actions
        self.num_rows = counts.num_rows
        self.num_edges = counts.num_edges
        self.agents = manifest.agents
        self.num_actions = manifest.num_actions
        self._codec = manifest.state
        self.state_width = manifest.state.width
        self.component_bits = manifest.state.component_bits
        if math.prod(self.num_actions) != self.num_joint_actions:
            raise CorruptStoreError(
                f"{arrays.folder / 'manifest.json'}: actions of {self.num_actions} don't make "
                f"{self.num_joint_actions} joint actions"
            )
        num_outcomes = manifest.rows.get("num_outcomes", 1)
        size = GraphSize(self.num_nodes, self.num_joint_actions, self.num_edges, num_outcomes)
        arrays.check("rows")
        self._rows: RowEncoding
        if manifest.rows.get("encoding") == "procedural":
            from omstore.model.rows import open_procedural  # the only rows that need models

            self._rows = open_procedural(arrays.folder, manifest.rows, size, allow_import=allow_model_import)
        else:
            self._rows = open_rows(arrays.folder, manifest.rows, size)
        self._packed = arrays.hot(
            "nodes/state", rows=self.num_nodes, dtype=np.uint8, item_shape=(self._codec.packed_bytes,)
        )
        slots = arrays.hot("index/slots", rows=None, dtype=np.uint64, item_shape=())
        self._index = StateIndex(slots, self._packed, str(arrays.folder / "index/slots"))
        self._legacy_id: NDArray[np.int64] | None = None
        if "nodes/legacy_id" in arrays:
            self._legacy_id = arrays.hot(
                "nodes/legacy_id", rows=self.num_nodes, dtype=np.int64, item_shape=()
            )
            self._node_of_legacy = arrays.hot("nodes/node_of_legacy", rows=self.num_nodes, item_shape=())
        self.attributes = self._open_attributes(arrays, manifest, size)
        probability = self.attributes["probability"]
        if probability.level not in ("graph", "outcome", "edge", "rows"):
            raise CorruptStoreError(
                f"{arrays.folder}: probabilities are stored at level {probability.level!r}"
            )
        self._probabilities = Probabilities(probability.level, probability.values)

    def _open_attributes(
        self, arrays: VersionArrays, manifest: Manifest, size: GraphSize
    ) -> dict[str, Attribute]:
        kinds: dict[str, tuple[Any, tuple[int, ...]]] = {
            "probability": (np.float64, ()),
            "reward": (np.float64, (len(self.agents),)),
            "done": (np.uint8, ()),
        }
        missing = [name for name in kinds if name not in manifest.attributes]
        if missing:
            raise CorruptStoreError(f"{arrays.folder / 'manifest.json'} has no attribute {missing[0]!r}")
        return {
            name: open_attribute(arrays, name, entry, size, *kinds.get(name, (None, None)))
            for name, entry in manifest.attributes.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._origin

    def __repr__(self) -> str:
        return (
            f"<Graph of {self.num_nodes:,} nodes, {self.num_joint_actions:,} joint actions, "
            f"{self.num_edges:,} edges ({self._rows.name})>"
        )

    @property
    def encoding(self) -> RowEncoding:
        """The rows as they are stored: successors and outcome codes, without attributes."""
        return self._rows

    # States

    def lookup(self, states: ArrayLike) -> NDArray[np.int64]:
        """Find the nodes of states.

        Parameters
        ----------
        states : array_like, (B, W)
            One vector a row; fastest as a C-contiguous uint8 or bool array.

        Returns
        -------
        (B,) int64 array
            -1 where the state isn't in the graph.

        Raises
        ------
        UsageError
            If the width is another, or a component is none (neither 0 nor 1 in a graph of bits).
        """
        given: NDArray[Any] = np.asarray(states)
        if given.ndim != 2 or given.shape[1] != self.state_width:
            raise UsageError(
                f"states must be (batch, {self.state_width}), not {given.shape}",
                "Pass a single state as a batch of one: state[None].",
            )
        if self._codec.component_bits == 1 and given.dtype in (np.uint8, np.bool_):
            return self._index.lookup_bits(given)
        if self._codec.component_bits == 8 and given.dtype == np.uint8:
            return self._index.lookup_packed(given)  # one byte a component: packed as it is
        return self._index.lookup_packed(self._codec.pack(given))

    def lookup_packed(self, packed: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Find the nodes of packed states, (B, Wb) uint8 -> (B,) int64, -1 where absent."""
        return self._index.lookup_packed(packed)

    def states(self, nodes: ArrayLike) -> NDArray[Any]:
        """Return the states of nodes, (B,) -> (B, W): uint8 for components of 1 or 8 bits, else wider."""
        return self._codec.unpack(self.packed_states(nodes))

    def packed_states(self, nodes: ArrayLike) -> NDArray[np.uint8]:
        """Return the packed states of nodes, (B,) -> (B, Wb) uint8."""
        return self._packed[as_batch(nodes, "node", self.num_nodes)]

    def legacy_ids(self, nodes: ArrayLike) -> NDArray[np.int64]:
        """Return what the nodes were numbered in the pickle, (B,) -> (B,) int64."""
        batch = as_batch(nodes, "node", self.num_nodes)
        if self._legacy_id is None:
            raise UsageError("this graph came from no pickle; its nodes have no legacy ids")
        return self._legacy_id[batch]

    def nodes_of_legacy(self, legacy_ids: ArrayLike) -> NDArray[np.int64]:
        """Return the nodes of the pickle's node ids, (B,) -> (B,) int64, -1 where there is none."""
        batch = as_batch(legacy_ids, "legacy id")
        if self._legacy_id is None:
            raise UsageError("this graph came from no pickle; its nodes have no legacy ids")
        nodes = np.empty(len(batch), np.int64)
        order = self._node_of_legacy
        if find_legacy(as_input(self._legacy_id, np.int64), as_input(order, order.dtype), batch, nodes) == -2:
            raise CorruptStoreError("nodes/node_of_legacy names a node that doesn't exist")
        return nodes

    # Joint actions

    def encode_joint(self, actions: ArrayLike) -> NDArray[np.int64]:
        """Encode one action per agent, (B, agents) -> (B,) joint actions; agent 0 is most significant."""
        return encode_joint(actions, self.num_actions)

    def decode_joint(self, joint_actions: ArrayLike) -> NDArray[np.int64]:
        """Decode joint actions, (B,) -> (B, agents)."""
        return decode_joint(joint_actions, self.num_actions)

    def legal(self, nodes: ArrayLike) -> NDArray[np.bool_]:
        """Return which joint actions have a successor, (B,) nodes -> (B, A) bool.

        Memory: the flags, and 32 bytes for each while they are made.
        """
        batch = as_batch(nodes, "node", self.num_nodes)
        actions = np.arange(self.num_joint_actions)
        rows = (batch[:, None] * self.num_joint_actions + actions).reshape(-1)
        return (self._rows.outdegree(rows) > 0).reshape(len(batch), self.num_joint_actions)

    # Successors

    def rows(self, nodes: ArrayLike, joint_actions: ArrayLike) -> NDArray[np.int64]:
        """Number the rows of (node, joint action) pairs, (B,), (B,) -> (B,): ``node * A + joint_action``.

        Raises
        ------
        UsageError
            Naming the first position that is out of range.
        """
        batch = as_batch(nodes, "node")
        actions = as_batch(joint_actions, "joint action")
        if len(batch) != len(actions):
            raise UsageError(f"{len(batch)} nodes were given with {len(actions)} joint actions")
        numbers = np.empty(len(batch), np.int64)
        if row_numbers(batch, actions, self.num_nodes, self.num_joint_actions, numbers) >= 0:
            as_batch(nodes, "node", self.num_nodes)
            as_batch(joint_actions, "joint action", self.num_joint_actions)
        return numbers

    def outdegree(self, nodes: ArrayLike, joint_actions: ArrayLike) -> NDArray[np.int64]:
        """Return the number of successors of each row, (B,), (B,) -> (B,); 0 where it isn't legal."""
        return self._rows.outdegree(self.rows(nodes, joint_actions))

    def successors(
        self, nodes: ArrayLike, joint_actions: ArrayLike, *, keep: Sequence[str] = ()
    ) -> Successors:
        """Return all successors of each row.

        Parameters
        ----------
        nodes, joint_actions : array_like, (B,) integers
        keep : sequence of str
            Kept fields to resolve as well.

        Returns
        -------
        Successors
            17 bytes an edge and 8 for each agent's reward, besides the offsets. A row that isn't legal has
            none.

        Raises
        ------
        UsageError
            Naming the first position that is out of range.
        CorruptStoreError
            If a file is damaged where it was read.
        """
        numbers = self.rows(nodes, joint_actions)
        wanted = self._wanted(keep)
        found = self._rows.gather(numbers, edges=any(attribute.needs_edges for attribute in wanted))
        edges = EdgeSet(
            found.offsets,
            numbers,
            self.num_joint_actions,
            found.next_node,
            found.outcome,
            found.edge,
            found.attributes,
        )
        return self._resolve(wanted, edges, found.offsets)

    def sample(
        self,
        nodes: ArrayLike,
        joint_actions: ArrayLike,
        rng: np.random.Generator,
        *,
        keep: Sequence[str] = (),
    ) -> Sample:
        """Draw one successor of each row, by its probability.

        Takes one uniform number from `rng` for each row, so equal generators give equal draws whatever the
        row encoding.

        Parameters
        ----------
        nodes, joint_actions : array_like, (B,) integers
        rng : numpy.random.Generator
        keep : sequence of str
            Kept fields to resolve as well.

        Raises
        ------
        UsageError
            Naming the first position that is out of range, or whose row isn't legal.
        CorruptStoreError
            If a file is damaged where it was read.
        """
        numbers = self.rows(nodes, joint_actions)
        wanted = self._wanted(keep)
        drawn = self._rows.sample(numbers, rng.random(len(numbers)), self._probabilities)
        edges = EdgeSet(
            None,
            numbers,
            self.num_joint_actions,
            drawn.next_node,
            drawn.outcome,
            drawn.edge,
            drawn.attributes,
        )
        values = {
            attribute.name: attribute.of(edges) for attribute in wanted if attribute.name != "probability"
        }
        return Sample(
            drawn.next_node,
            drawn.probability,
            values.pop("reward"),
            values.pop("done").view(np.bool_),
            values,
        )

    def sweep(
        self,
        chunk_rows: int = 1 << 13,
        *,
        start_node: int = 0,
        stop_node: int | None = None,
        keep: Sequence[str] = (),
    ) -> Iterator[SweepChunk]:
        """Go through all rows in order, reading sequentially; pages behind the sweep are given back.

        Parameters
        ----------
        chunk_rows : int
            Rows at a time; memory is about 50 bytes for each of their edges.
        start_node, stop_node : int
            Sweep only the rows of these nodes.
        keep : sequence of str
            Kept fields to resolve as well.
        """
        stop_node = self.num_nodes if stop_node is None else stop_node
        if not 0 <= start_node <= stop_node <= self.num_nodes:
            raise UsageError(f"nodes {start_node} to {stop_node} aren't within 0 to {self.num_nodes:,}")
        wanted = self._wanted(keep)
        first_row, last_row = start_node * self.num_joint_actions, stop_node * self.num_joint_actions
        for chunk in self._rows.sweep(first_row, last_row, chunk_rows):
            edges = EdgeSet(
                chunk.offsets,
                slice(chunk.first_row, chunk.first_row + len(chunk.offsets) - 1),
                self.num_joint_actions,
                self._checked_nodes(chunk.next_node),
                self._checked_codes(chunk.outcome),
                slice(chunk.first_edge, chunk.first_edge + len(chunk.next_node)),
                {name: values.copy() for name, values in chunk.attributes.items()},  # a buffer, maybe
            )
            yield SweepChunk(chunk.first_row, self._resolve(wanted, edges, chunk.offsets))
            for attribute in wanted:
                attribute.give_back(edges)

    def attribute(self, name: str) -> Attribute:
        """Return an attribute as stored: its level, and its values (mapped or read by slices).

        Raises
        ------
        UsageError
            If the graph has no such attribute; the message lists those it has.
        """
        if name not in self.attributes:
            raise UsageError(f"the graph has no attribute {name!r}", f"It has: {', '.join(self.attributes)}.")
        return self.attributes[name]

    def verify(self, node_ranges: Sequence[tuple[int, int]] | None = None) -> None:
        """Read the rows and the index once, and check their structure.

        Parameters
        ----------
        node_ranges : sequence of (int, int), optional
            Check the rows of these nodes only: first node, and the one behind the last.

        Raises
        ------
        CorruptStoreError
            Naming what is wrong.
        """
        self._rows.check_probabilities(self._probabilities)
        if node_ranges is None:
            self._rows.verify()
        else:
            for start, stop in node_ranges:
                self._rows.verify_rows(start * self.num_joint_actions, stop * self.num_joint_actions)
        self._index.verify()

    def _wanted(self, keep: Sequence[str]) -> list[Attribute]:
        return [self.attribute(name) for name in dict.fromkeys((*_NEEDED, *keep))]

    def _resolve(self, wanted: list[Attribute], edges: EdgeSet, offsets: NDArray[np.int64]) -> Successors:
        values = {attribute.name: attribute.of(edges) for attribute in wanted}
        return Successors(
            offsets,
            edges.next_node,
            values.pop("probability"),
            values.pop("reward"),
            values.pop("done").view(np.bool_),
            values,
        )

    def _checked_nodes(self, next_node: NDArray[Any]) -> NDArray[np.int64]:
        # A sweep hands out the file's own bytes; here they become indices.
        nodes = next_node.astype(np.int64)
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.num_nodes:
            raise CorruptStoreError(
                f"rows/next_node names a node that isn't within 0 to {self.num_nodes - 1:,}"
            )
        return nodes

    def _checked_codes(self, outcome: NDArray[Any] | None) -> NDArray[Any] | None:
        if outcome is not None and len(outcome) and outcome.max() >= self._rows.size.num_outcomes:
            raise CorruptStoreError("rows/outcome has a code that isn't in the table of outcomes")
        return outcome


def _reopen(path: str, version: str, allow_model_import: bool = False) -> Graph:
    """Open the graph of a store that was pickled."""
    from omstore.read.store import open_store

    graph = open_store(path, version, allow_model_import=allow_model_import).graph
    assert graph is not None  # it was pickled from this immutable version
    return graph
