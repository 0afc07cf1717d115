"""Root states, streamed from a store's replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

import omstore
from omstore.errors import UsageError

__all__ = ["RootBatch", "RootStates"]


class RootBatch(NamedTuple):
    """The root states of one update.

    Attributes
    ----------
    update : int
        Number of the update, from 0.
    requested : int
        Root states drawn, b: by this the budget goes down.
    transition : (v,) int64
        Which transitions of the replay they are; v <= b, since states that aren't in the graph are filtered
        out.
    node : (v,) int64
    state : (v, W) uint8, or (v, Wb) uint8 where packed
    """

    update: int
    requested: int
    transition: Tensor
    node: Tensor
    state: Tensor


class RootStates(IterableDataset[RootBatch]):
    """Draws root states uniformly from the replay, a batch for each update.

    Use it with ``DataLoader(roots, batch_size=None, num_workers=...)``. The draws of update u depend on the
    seed and u alone, and worker w of n makes updates w, w + n, ...: so the batches, and their order, are
    the same for any number of workers, and after a resume. Nodes and states are read from mapped arrays; a
    worker holds its batch and nothing else.

    Parameters
    ----------
    store : Store
        With a graph and a replay.
    batch : int
        Root states of an update; the last update takes what is left of the budget.
    budget : int
        Root states to draw altogether.
    seed : int
        At least 0.
    first_update : int
        Where to go on, after a resume.
    packed : bool
        Give packed states: an eighth of the bytes between processes where components are bits.

    Raises
    ------
    UsageError
        If the store lacks a graph or a replay, or a number makes no sense.
    """

    def __init__(
        self,
        store: omstore.Store,
        *,
        batch: int,
        budget: int,
        seed: int,
        first_update: int = 0,
        packed: bool = False,
    ) -> None:
        graph, replay = store.graph, store.replay
        if graph is None or replay is None or len(replay) == 0:
            raise UsageError(
                f"{store.path} has no {'graph' if graph is None else 'replay'} to draw roots from"
            )
        if batch < 1 or budget < 0 or seed < 0 or first_update < 0:
            raise UsageError(f"batch {batch}, budget {budget}, seed {seed} or first update {first_update}")
        self._graph = graph
        self._replay = replay
        self._batch = batch
        self._budget = budget
        self._seed = seed
        self._first_update = first_update
        self._packed = packed

    @property
    def num_updates(self) -> int:
        """Updates in the whole budget, those before `first_update` included."""
        return -(-self._budget // self._batch)

    def draw(self, update: int) -> RootBatch:
        """Return the root states of one update."""
        requested = min(self._batch, self._budget - update * self._batch)
        if requested < 1 or update < 0:
            raise UsageError(f"update {update} isn't within 0 to {self.num_updates - 1}")
        # Counter-based: the update is part of the counter, not of a state that has to be walked to.
        rng = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, update]))
        transition = rng.integers(0, len(self._replay), requested)
        node = self._replay.nodes[transition]
        known = node >= 0
        transition, node = transition[known], node[known]
        # The graph's states are mapped; the replay's, equal where the node is known, would have to be
        # decoded.
        state = self._graph.packed_states(node) if self._packed else self._graph.states(node)
        return RootBatch(
            update, requested, torch.from_numpy(transition), torch.from_numpy(node), torch.from_numpy(state)
        )

    def __iter__(self) -> Iterator[RootBatch]:
        worker = get_worker_info()
        number, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for update in range(self._first_update + number, self.num_updates, step):
            yield self.draw(update)
