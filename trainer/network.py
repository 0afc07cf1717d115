"""Networks as compiled code evaluates them: weights laid out for it, and states of a graph as its input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from omstore import Graph
from omstore.compiled import as_input
from trainer.models import OpponentMLP
from trainer.network_kernels import NARROW, WIDE, evaluate, list_bits

__all__ = ["CompiledNetwork", "StateInputs"]

_KEPT_BYTES = 4 << 20
_CHUNK = 8192
_CHUNK_BYTES = 4 << 20

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Inputs:
    """Some states as the first layer takes them; see `trainer.network_kernels.evaluate`."""

    count: int
    first_row: int
    rows: NDArray[np.int64]
    positions: NDArray[np.uint32]
    states: Floats


class StateInputs:
    """States of a graph's nodes as a network's first layer takes them.

    Where components are bits these are the numbers of those that are 1, so that the layer adds a few rows of its
    weights; else the components as numbers. Memory: of bits, what all nodes take is kept where that is at most
    4 MiB (pursuit with 3 agents: 1 MiB); beside it at most 4 MiB a chunk, or a state if that takes more.

    Parameters
    ----------
    graph : Graph
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.bits = graph.component_bits == 1
        self._most = 1
        self._kept: NDArray[np.uint32] | None = None
        self._prepared = not self.bits
        self.chunk = max(1, min(_CHUNK, _CHUNK_BYTES // (4 * graph.state_width)))

    def prepare(self) -> None:
        """Make what is kept, the first time; after it several threads may call `of`."""
        if self._prepared:
            return
        self._prepared = True
        number = self._graph.num_nodes
        parts = []
        for first in range(0, number, self.chunk):
            parts.append(self._positions(np.arange(first, min(first + self.chunk, number))))
            if 4 * self._most * number > _KEPT_BYTES:
                return
        kept = np.full((number, self._most), self._graph.state_width, np.uint32)
        for k, part in enumerate(parts):
            kept[k * self.chunk : k * self.chunk + len(part), : part.shape[1]] = part
        self._kept = as_input(kept, np.uint32)

    def of(self, nodes: NDArray[np.int64] | None, first: int, last: int) -> Inputs:
        """Return the inputs of ``nodes[first:last]``, or (None) of nodes first to last - 1: at most a chunk."""
        nobody, nothing = as_input(np.empty(0), np.int64), as_input(np.empty((0, 1)), np.uint32)
        nowhere = as_input(np.empty((0, 0)), np.float32)
        if self._kept is not None:
            rows = nobody if nodes is None else as_input(nodes[first:last], np.int64)
            return Inputs(last - first, first, rows, self._kept, nowhere)
        own = np.arange(first, last) if nodes is None else nodes[first:last]
        if self.bits:
            return Inputs(last - first, 0, nobody, as_input(self._positions(own), np.uint32), nowhere)
        return Inputs(last - first, 0, nobody, nothing, as_input(self._graph.states(own), np.float32))

    def _positions(self, nodes: NDArray[np.int64]) -> NDArray[np.uint32]:
        packed = as_input(self._graph.packed_states(nodes), np.uint8)
        while True:
            positions = np.full((len(nodes), self._most), self._graph.state_width, np.uint32)
            most = list_bits(packed, self._graph.state_width, positions)
            if most <= positions.shape[1]:
                return positions
            self._most = max(self._most, most)


class CompiledNetwork:
    """The weights of a network, copied, as compiled code takes them.

    Parameters
    ----------
    model : OpponentMLP
        On a CPU.
    bits : bool
        Whether it gets positions of bits (`StateInputs.bits`).
    """

    def __init__(self, model: OpponentMLP, *, bits: bool) -> None:
        first = _weights(model.first.weight)
        if bits:
            table = np.zeros((len(first) + 1, -(-model.hidden // WIDE) * WIDE), np.float32)
            table[:-1, : model.hidden] = first
            first = as_input(table, np.float32)
        else:
            first = _panels(first, WIDE)[None]
        size = NARROW if model.num_actions <= NARROW else WIDE
        self._layers = (
            first,
            _filled(_weights(model.first.bias), WIDE),
            _panels(_weights(model.second.weight), WIDE),
            _filled(_weights(model.second.bias), WIDE),
            _panels(_weights(model.head.weight), size),
            _filled(_weights(model.head.bias), size),
            model.hidden,
        )

    def probabilities(self, inputs: Inputs, legal: NDArray[np.bool_] | None, out: Floats) -> int:
        """Write the probabilities of legal actions, (n, actions) float32, the others' being 0.

        Returns how many states' logits are no numbers, nor are then their probabilities.

        A state's numbers are the same, to the bit, whichever others are evaluated with it. Several threads may
        call this. A state without a legal action has nothing but zeros.
        """
        mask = as_input(np.empty((0, 0)) if legal is None else legal, np.bool_)
        wrong: int = evaluate(
            inputs.count, inputs.first_row, inputs.rows, inputs.positions, inputs.states, *self._layers, mask, out
        )  # fmt: skip
        return wrong


def _weights(values: Tensor) -> Floats:
    """Weights as (inputs, outputs), or a bias."""
    found: Floats = values.detach().numpy().astype(np.float32, copy=False).T
    return found


def _filled(values: Floats, size: int) -> Floats:
    """Fill the last axis up with zeros to a multiple of `size`."""
    filled = np.zeros((*values.shape[:-1], -(-values.shape[-1] // size) * size), np.float32)
    filled[..., : values.shape[-1]] = values
    return as_input(filled, np.float32)


def _panels(weights: Floats, size: int) -> Floats:
    """Lay (inputs, outputs) out as (outputs / size, inputs, size), flat."""
    filled = _filled(weights, size)
    panels = filled.reshape(len(filled), -1, size).transpose(1, 0, 2)
    return as_input(panels.reshape(-1), np.float32)
