"""The replay of a store: real transitions, as columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError, UsageError
from omstore.format.cold import ColdArray
from omstore.format.manifest import Manifest
from omstore.read.arrays import VersionArrays
from omstore.read.kernels import first_outside

__all__ = ["Replay", "Transitions"]

Selection = slice | NDArray[Any] | list[int]
"""Which transitions: a slice, or an array of indices."""

_ALL = slice(None)


@dataclass(frozen=True)
class Transitions:
    """Consecutive transitions ``first`` and on; arrays as the `Replay` has them under the same names."""

    first: int
    nodes: NDArray[np.int64]
    next_nodes: NDArray[np.int64]
    joint_actions: NDArray[Any]
    states: NDArray[Any]
    next_states: NDArray[Any]
    rewards: NDArray[np.float64]
    done: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.nodes)


class Replay:
    """The T transitions of a store, read lazily.

    Made by :func:`omstore.open`. Columns are read by a *selection*: a slice or an array of indices, in any
    order. Compressed columns are decoded a chunk at a time: slices, sorted and near indices are cheap; a
    few indices all over the replay decode a chunk each.

    Attributes
    ----------
    nodes, next_nodes : (T,) int64, mapped
        The node of each state, resolved when the store was made; -1 where it isn't in the graph.
    joint_actions : (T,) unsigned integers, mapped
    agents : tuple of str
        Names, agent 0 first.
    kept_names : tuple of str
        Fields kept besides.
    observers : tuple of str
        Agents whose observations are stored, since they differ from the states somewhere.
    """

    def __init__(self, arrays: VersionArrays, manifest: Manifest, origin: tuple[Any, ...]) -> None:
        length = manifest.counts.num_transitions
        self._origin = origin
        self._length = length
        self._codec = manifest.state
        self._manifest = manifest
        self._arrays = arrays
        self._cold: dict[str, ColdArray] = {}
        self.agents = manifest.agents
        self.nodes: NDArray[np.int64] = arrays.hot("replay/node", rows=length, dtype=np.int64, item_shape=())
        self.next_nodes: NDArray[np.int64] = arrays.hot(
            "replay/next_node", rows=length, dtype=np.int64, item_shape=()
        )
        self.joint_actions: NDArray[Any] = arrays.hot("replay/joint_action", rows=length, item_shape=())
        packed = (self._codec.packed_bytes,)
        self._state = arrays.cold("replay/state", rows=length, dtype=np.uint8, item_shape=packed)
        self._next_state = arrays.cold("replay/next_state", rows=length, dtype=np.uint8, item_shape=packed)
        self._reward = arrays.cold(
            "replay/reward", rows=length, dtype=np.float64, item_shape=(len(self.agents),)
        )
        self._done = arrays.cold("replay/done", rows=length, dtype=np.uint8, item_shape=())
        self.kept_names = tuple(arrays.names("replay/kept"))
        others = [f"replay/kept/{name}" for name in self.kept_names]
        for kind in ("observations", "next_observations"):
            others += [
                f"replay/{kind}/{agent}" for agent in self.agents if f"replay/{kind}/{agent}" in arrays
            ]
        self._others = {name: arrays.any(name, rows=length) for name in others}
        self.observers = tuple(agent for agent in self.agents if f"replay/observations/{agent}" in arrays)

    def __len__(self) -> int:
        return self._length

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, self._origin

    def __repr__(self) -> str:
        return f"<Replay of {self._length:,} transitions>"

    @property
    def off_graph(self) -> int:
        """Number of transitions whose state or next state isn't in the graph."""
        known = self._manifest.replay.get("off_graph")
        if isinstance(known, int):
            return known
        return int(np.count_nonzero((self.nodes < 0) | (self.next_nodes < 0)))

    def states(self, selection: Selection = _ALL) -> NDArray[Any]:
        """Return states, (n, W), of the dtype that `Graph.states` has."""
        return self._codec.unpack(self.packed_states(selection))

    def next_states(self, selection: Selection = _ALL) -> NDArray[Any]:
        """Return next states, (n, W)."""
        return self._codec.unpack(self.packed_next_states(selection))

    def packed_states(self, selection: Selection = _ALL) -> NDArray[np.uint8]:
        """Return packed states, (n, Wb) uint8: an eighth of the memory where components are bits."""
        return self._read(self._state, selection)

    def packed_next_states(self, selection: Selection = _ALL) -> NDArray[np.uint8]:
        """Return packed next states, (n, Wb) uint8."""
        return self._read(self._next_state, selection)

    def rewards(self, selection: Selection = _ALL) -> NDArray[np.float64]:
        """Return rewards, (n, agents) float64."""
        return self._read(self._reward, selection)

    def done(self, selection: Selection = _ALL) -> NDArray[np.bool_]:
        """Return done flags, (n,) bool."""
        return self._read(self._done, selection).view(np.bool_)

    def observations(self, agent: str, selection: Selection = _ALL) -> NDArray[Any]:
        """Return an agent's observations, (n, ...); the states, where the agent observes just these."""
        return self._observed("observations", agent, selection, self.states)

    def next_observations(self, agent: str, selection: Selection = _ALL) -> NDArray[Any]:
        """Return an agent's next observations, (n, ...); the next states, where it observes just these."""
        return self._observed("next_observations", agent, selection, self.next_states)

    def kept(self, name: str, selection: Selection = _ALL) -> NDArray[Any]:
        """Return a kept field, (n, ...).

        Raises
        ------
        UsageError
            If there is no such field; the message lists those there are.
        """
        if name not in self.kept_names:
            known = f"It has: {', '.join(self.kept_names)}." if self.kept_names else "It has none."
            raise UsageError(f"the replay has no kept field {name!r}", known)
        return self._read(self._others[f"replay/kept/{name}"], selection)

    def batches(self, count: int, start: int = 0, stop: int | None = None) -> Iterator[Transitions]:
        """Go through transitions start..stop in order, `count` at a time (the last batch may be shorter).

        Memory: one batch, and one decoded chunk of each column.
        """
        if count < 1:
            raise UsageError(f"a batch has at least one transition, not {count}")
        stop = len(self) if stop is None else stop
        if not 0 <= start <= stop <= len(self):
            raise UsageError(f"transitions {start} to {stop} aren't within 0 to {len(self):,}")
        for first in range(start, stop, count):
            part = slice(first, min(first + count, stop))
            yield Transitions(
                first,
                self.nodes[part],
                self.next_nodes[part],
                self.joint_actions[part],
                self.states(part),
                self.next_states(part),
                self.rewards(part),
                self.done(part),
            )

    def _observed(self, kind: str, agent: str, selection: Selection, states: Any) -> NDArray[Any]:
        if agent not in self.agents:
            raise UsageError(f"there is no agent {agent!r}", f"The agents are: {', '.join(self.agents)}.")
        own = self._others.get(f"replay/{kind}/{agent}")
        result: NDArray[Any] = states(selection) if own is None else self._read(own, selection)
        return result

    def _read(self, array: Any, selection: Selection) -> NDArray[Any]:
        if isinstance(selection, slice):
            result: NDArray[Any] = array[selection]
            return result
        indices: NDArray[Any] = np.asarray(selection)
        if (
            indices.dtype == np.bool_
            or indices.ndim != 1
            or (indices.size and indices.dtype.kind not in "iu")
        ):
            raise UsageError(
                f"a selection is a slice or a one-dimensional array of indices, not {indices.dtype} "
                f"of shape {indices.shape}",
                "Turn a mask into indices with numpy.flatnonzero.",
            )
        indices = indices.astype(np.int64)
        position = first_outside(indices, self._length)
        if position >= 0:
            raise UsageError(
                f"transition {indices[position]} at position {position} of the selection isn't within "
                f"0 to {self._length - 1:,}"
            )
        taken: NDArray[Any] = array[indices]
        return taken


def _reopen(path: str, version: str, allow_model_import: bool = False) -> Replay:
    """Open the replay of a store that was pickled."""
    from omstore.read.store import open_store

    replay = open_store(path, version, allow_model_import=allow_model_import).replay
    if replay is None:
        raise CorruptStoreError(f"{path}: version {version} has no replay any more")
    return replay
