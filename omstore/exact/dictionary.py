"""Dictionary rows backed up a block at a time: nothing is decoded, and gains are looked up by position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.exact import block_kernels, block_play_kernels
from omstore.exact.backup import Backup, Policy, plays
from omstore.exact.block_kernels import Layout, Places
from omstore.exact.gains import Gains, Terms, Valuation
from omstore.exact.orders import check_places
from omstore.exact.row_source import Block, MassSource
from omstore.read.graph import Graph
from omstore.rollout.policies import Sides
from omstore.rows import DictionaryRows
from omstore.rows.encoding import next_node_dtype

__all__ = ["DictionarySource"]

_MOST_ENTRIES = 1 << 18
"""Of the patterns of a block; with more, edges are swept."""

_ENTRIES = 1 << 17
"""Of patterns laid out at a time: 2 MiB a thread."""

_ROWS = 1 << 17
"""Of blocks laid out at a time."""

_NODES = 1 << 12
"""Nodes whose policies are asked for at a time."""

_LANES, _BUFFER = 32, 1 << 20
"""Nodes side by side, and the most numbers that their next nodes, or their patterns, may take: with more it is four."""

_HINT = "Convert or build the store again."


class _Room(NamedTuple):
    """A thread's own: what kernels write."""

    local: NDArray[np.int32]
    slot_of: NDArray[np.int32]
    layout: Layout
    at: NDArray[np.int64]
    gain: NDArray[np.float64]
    worth: NDArray[np.float64]


class DictionarySource(MassSource):
    """Goes through blocks of patterns, for all nodes that share one together. Units are nodes in the order of blocks.

    Memory: the gains, 8 bytes a position, and the order, 4 a node below 4 billion; for each thread 8 bytes a
    position at most, 4 a pattern and some megabytes.
    """

    name = "dictionary"

    def __init__(self, graph: Graph, terms: Terms, encoding: DictionaryRows, most_entries: int) -> None:
        super().__init__(graph, terms)
        self._encoding = encoding
        self._chance_of = as_input(np.asarray(graph.attribute("probability").values), np.float64)
        order = np.argsort(encoding.block, kind="stable")
        self._places = Places(
            as_input(order, next_node_dtype(graph.num_nodes)), encoding.position, encoding.table.node_at
        )
        delta = encoding.table.delta
        self._lowest, self._highest = int(delta.min(initial=0)), int(delta.max(initial=0))
        self._most_entries = most_entries
        self._rooms: list[_Room] = []
        positions = encoding.table.num_positions
        if self._lowest <= -positions or self._highest >= positions:
            raise CorruptStoreError("rows/delta is damaged: no next node is that far away", _HINT)

    @classmethod
    def of(cls, graph: Graph, terms: Terms) -> DictionarySource | None:
        """Return the source for a graph, or None where its edges have to be looked at.

        Raises
        ------
        CorruptStoreError
            If positions, patterns, lists or blocks are damaged; they are checked here, once.
        """
        encoding = graph.encoding
        if not isinstance(encoding, DictionaryRows) or not terms.by_next_node:
            return None
        probability = graph.attribute("probability")
        if probability.level not in ("graph", "outcome"):
            return None
        table = encoding.table
        table.verify()
        if table.placed:
            wrong = check_places(encoding.position, table.node_at)
            if wrong >= 0:
                raise CorruptStoreError(
                    f"rows/position: node {wrong} isn't what rows/node_at leads back to", _HINT
                )
        seen = np.full(table.num_patterns, -1, np.int64)
        most, block = block_kernels.measure_blocks(table.block_pattern, table.pattern_offsets, seen)
        if most < 0:
            raise CorruptStoreError(f"rows: block {block} is damaged: a pattern doesn't exist", _HINT)
        if most > _MOST_ENTRIES or len(probability.values) != encoding.size.num_outcomes:
            return None  # one probability for all codes: they mean something else then
        return cls(graph, terms, encoding, most)

    def gains(self, valuation: Valuation) -> Gains:
        """Lay gains out by position."""
        position = self._encoding.position
        return self.terms.gains(
            valuation, self._encoding.table.num_positions, position if position.size else None
        )

    def visit(self, first: int, stop: int, gains: Sequence[Gains]) -> Iterator[Block]:
        """Go through nodes; see :class:`RowSource`."""
        joint = self.num_joint_actions
        rows = [np.empty(min(self._nodes_at_a_time, stop - first) * joint) for _ in gains]
        for begin, end, blocks, room in self._laid_out(first, stop):
            found = [out[: (end - begin) * joint] for out in rows]
            for gain, out in zip(gains, found, strict=True):
                arguments: list[Any] = [blocks, room.layout, self._places, joint, *_of(gain), *room[3:], out]
                self._raise(*block_kernels.write_rows(*arguments))
            yield Block(self._nodes(begin, end), found)

    def play(self, first: int, stop: int, backups: Sequence[Backup], gains: Sequence[Gains]) -> None:
        """Back up units first..stop-1, all value functions while a block is at hand; of each node one value."""
        sides = [backup.sides(self.graph) for backup in backups]
        for begin, end, blocks, room in self._laid_out(first, stop):
            nodes = self._nodes(begin, end)
            for backup, gain, joint in zip(backups, gains, sides, strict=True):
                out, chosen = np.empty(end - begin), np.empty(end - begin, np.int64)
                arguments: list[Any] = [blocks, room.layout, self._places]
                arguments += [*plays(joint, backup.own, backup.other, nodes, len(nodes)), *_of(gain)]
                arguments += [*room[3:], backup.actions is not None, out, chosen]
                self._raise(*block_play_kernels.play_blocks(*arguments))
                backup.out[nodes] = -out if backup.minimise else out
                if backup.actions is not None:
                    backup.actions[nodes] = chosen

    def push(
        self,
        first: int,
        stop: int,
        mass: NDArray[np.float64],
        sides: Sides,
        policies: tuple[Policy, Policy],
        out: NDArray[np.float64],
    ) -> None:
        """Move mass on to positions; see :class:`MassSource`."""
        for begin, end, blocks, room in self._laid_out(first, stop):
            nodes = self._nodes(begin, end)
            here = mass[nodes]
            if not here.any():
                continue
            arguments: list[Any] = [blocks, room.layout, self._places]
            arguments += [*plays(sides, *policies, nodes, len(nodes)), here, *room[3:], out]
            self._raise(*block_play_kernels.push_blocks(*arguments))

    @property
    def num_places(self) -> int:
        """Positions."""
        return self._encoding.table.num_positions

    def by_node(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values of positions as those of nodes; see :class:`MassSource`."""
        position = self._encoding.position
        return values[position] if position.size else values

    def check_mass(self, mass: NDArray[np.float64]) -> None:
        """Check that mass is where nodes are; see :class:`MassSource`."""
        node_at = self._places.node_at
        if node_at.size and (mass[node_at >= self.graph.num_nodes] > 0).any():
            raise CorruptStoreError("rows: a row leads to a position without a node", _HINT)

    @property
    def _nodes_at_a_time(self) -> int:
        return max(1, min(_NODES, (1 << 19) // self.num_joint_actions))

    def _nodes(self, begin: int, end: int) -> NDArray[np.int64]:
        return self._places.order[begin:end].astype(np.int64)

    def _laid_out(self, first: int, stop: int) -> Iterator[tuple[int, int, int, _Room]]:
        """Lay out the blocks of some units at a time: where they begin and end, how many blocks, and the room."""
        encoding, table = self._encoding, self._encoding.table
        try:
            room = self._rooms.pop()
        except IndexError:  # asked for first: another thread might take the last one
            room = self._new_room()
        rows = encoding.block, table.block_pattern, table.pattern_offsets, table.delta, table.pattern_list
        lists = table.list_offsets, table.list_code, self._chance_of, self._lowest
        while first < stop:
            arguments: list[Any] = [first, min(first + self._nodes_at_a_time, stop), self._places.order]
            arguments += [*rows, *lists, *room[:3]]
            status, end, blocks = block_kernels.lay_out(*arguments)
            self._raise(status, end)
            yield first, end, blocks, room
            first = end
        self._rooms.append(room)

    def _new_room(self) -> _Room:
        joint, table = self.num_joint_actions, self._encoding.table
        blocks, entries = max(1, _ROWS // joint), max(_ENTRIES, self._most_entries)
        reach = min(self._most_entries, self._highest - self._lowest + 1)
        patterns = min(joint, table.num_patterns)
        lanes = _LANES if max(reach, patterns) * _LANES <= _BUFFER else 4
        layout = Layout(
            first_unit=np.empty(blocks + 1, np.int64),
            first_pattern=np.empty(blocks + 1, np.int64),
            first_reach=np.empty(blocks + 1, np.int64),
            low=np.empty(blocks, np.int64),
            high=np.empty(blocks, np.int64),
            which=np.empty(blocks * joint, np.int32),
            first_entry=np.empty(blocks * joint + 1, np.int64),
            reach=np.empty(entries, np.int64),
            slots=np.empty(entries, np.int64),
            chances=np.empty(entries),
        )
        return _Room(
            np.full(table.num_patterns, -1, np.int32),
            np.full(self._highest - self._lowest + 1, -1, np.int32),
            layout,
            np.empty(lanes, np.int64),
            np.empty((reach, lanes)),
            np.empty((patterns + 1, lanes)),
        )

    def _raise(self, status: int, unit: int) -> None:
        """Raise the error for what a kernel found wrong with a unit."""
        if status == block_kernels.OK:
            return
        reason = "a next node" if status == block_kernels.BAD_NODE else "its block or pattern"
        raise CorruptStoreError(
            f"rows: node {self._places.order[unit]} is damaged: {reason} doesn't exist", _HINT
        )


def _of(gain: Gains) -> tuple[NDArray[Any], ...]:
    return gain.table, gain.plain, gain.base, gain.marked
