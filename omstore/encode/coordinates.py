"""Coordinates of states, found in the packed vectors alone: nothing is known of the world's geometry.

A *digit* is a coordinate that a state has. A run of components of which exactly one is 1 in every state (a
one-hot block: an agent's cell, say) is one digit, counted from its end, so that digits ascend as the vectors
do. Every other component that varies is a digit by itself, less its least value. Components that never
change are none; inside of a one-hot block they keep their place (a wall in a grid), so that moves are the same
difference wherever they are made.

The digits of a state, read as a mixed-radix number, are its *position*. Nodes are sorted by state, so positions
ascend with them; they leave gaps where nodes don't, which is what lets the row dictionary see that two rows
are alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.encode import coordinate_kernels as kernels
from omstore.errors import CorruptStoreError, UsageError
from omstore.format.hot import drop_pages
from omstore.format.states import StateCodec

__all__ = ["MAX_POSITIONS", "Coordinates", "find_coordinates"]

MAX_POSITIONS = 8
"""Positions a node may take up on average: `node_at` of the dictionary holds every one of them."""

_CHUNK = 1 << 16  # states at a time: a few megabytes, pages behind are given back


@dataclass(frozen=True)
class Coordinates:
    """The digits of the states of a graph, most significant first.

    Attributes
    ----------
    packed : (N, Wb) uint8
        The states, mapped.
    codec : StateCodec
        How they are packed.
    first, last : (C,) int64
        The components a digit is read from: one, or a block of which exactly one is 1.
    low : (C,) int64
        The least value of a digit read from one component; else 0.
    radices : (C,) int64
        A digit is within 0..radix-1; at least 2.
    """

    packed: NDArray[np.uint8]
    codec: StateCodec
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    low: NDArray[np.int64]
    radices: NDArray[np.int64]

    @property
    def num_digits(self) -> int:
        """C."""
        return len(self.radices)

    @property
    def volume(self) -> int:
        """The product of the radices; not bounded by 64 bits."""
        return math.prod(self.radices.tolist())

    @property
    def num_positions(self) -> int:
        """What :meth:`positions` are below: the volume, or N where positions would be too sparse."""
        nodes = len(self.packed)
        return self.volume if self.volume <= MAX_POSITIONS * nodes else nodes

    def digits(self, packed: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the digits of packed states of this graph, (B, Wb) -> (B, C), a new array.

        Raises
        ------
        UsageError
            Naming the first that can't be one of the graph's states.
        """
        out = np.empty((len(packed), self.num_digits), np.int64)
        odd = kernels.digits_of(
            as_input(packed, np.uint8), self.codec.component_bits, *self._layout(), self.radices, out
        )
        if odd >= 0:
            raise UsageError(f"the state at position {odd} of the batch isn't one of this graph's")
        return out

    def positions(self) -> NDArray[np.uint64] | None:
        """Return the positions of all nodes, ascending; memory: 8 N bytes.

        Returns
        -------
        (N,) uint64 array, or None
            None where positions are the nodes themselves, or would be too sparse: more than `MAX_POSITIONS` N.

        Raises
        ------
        CorruptStoreError
            If the states aren't sorted.
        """
        nodes = len(self.packed)
        if not nodes <= self.volume <= MAX_POSITIONS * nodes or self.volume == nodes:
            if self.volume < nodes:
                raise CorruptStoreError(f"the graph's {nodes:,} states aren't distinct")
            return None
        out = np.empty(nodes, np.uint64)
        strides = np.ones(self.num_digits, np.uint64)
        strides[:-1] = np.cumprod(self.radices[:0:-1].astype(np.uint64))[::-1]
        for chunk, part in self._read(strides):
            out[chunk] = part
        if (out[1:] <= out[:-1]).any():
            node = int(np.argmax(out[1:] <= out[:-1]))
            raise CorruptStoreError(f"the states of nodes {node} and {node + 1} aren't in order")
        return out

    def component_digit(self) -> NDArray[np.int64]:
        """Return the digit that every component belongs to, (W,), -1 where to none."""
        digit = np.full(self.codec.width, -1, np.int64)
        for c, (first, last) in enumerate(zip(self.first.tolist(), self.last.tolist(), strict=True)):
            digit[first : last + 1] = c
        return digit

    def describe(self, digit: int) -> str:
        """Say for a message which components of the state a digit is."""
        first, last = int(self.first[digit]), int(self.last[digit])
        return f"component {first}" if first == last else f"components {first} to {last}"

    def _layout(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        return self.first, self.last, self.low

    def _read(self, strides: NDArray[np.uint64]) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
        """Go through all states, giving the sum of their digits times strides."""
        for chunk, part in _chunks(self.packed):
            out = np.empty(len(part), np.uint64)
            odd = kernels.positions_of(
                part, self.codec.component_bits, *self._layout(), self.radices, strides, out
            )
            if odd >= 0:
                raise CorruptStoreError(f"the state of node {chunk.start + odd} isn't laid out as the others")
            yield chunk, out


def find_coordinates(packed: NDArray[np.uint8], codec: StateCodec) -> Coordinates:
    """Find the digits of the states of a graph in two passes over them.

    Whether a run of components holds exactly one 1 in every state is seen by adding each component up over all
    states, weighted at random by the node: up to both ends of the run the sums of components differ by the
    same number of ones in every state, so the weighted sums differ by as many sums of the weights. (Two sums
    modulo 2^64 are equal by chance once in 2^64; so the second pass makes sure.)

    Parameters
    ----------
    packed : (N, Wb) uint8
        Sorted, distinct, packed states, usually mapped.
    codec : StateCodec

    Returns
    -------
    Coordinates
        Holds on to `packed`. Memory: a few numbers for each component, and a chunk of states.
    """
    width, bits = codec.width, codec.component_bits
    sums = np.zeros(width, np.uint64)
    low = np.full(width, 1 if bits == 1 else 1 << 32, np.int64)
    high = np.zeros(width, np.int64)
    weights = 0
    for chunk, part in _chunks(packed):
        weights += int(kernels.component_sums(part, bits, width, chunk.start, sums, low, high))
    if not len(packed):
        low[:] = 0
    base = codec.unpack(np.asarray(packed[:1])).reshape(-1).astype(np.int64) if len(packed) else low
    blocks = _one_hot_blocks(sums, weights & (2**64 - 1), base, low, high)
    coordinates = _coordinates(packed, codec, low, high, blocks)
    if blocks:
        try:
            for _ in coordinates._read(np.zeros(coordinates.num_digits, np.uint64)):
                pass
        except CorruptStoreError:
            coordinates = _coordinates(packed, codec, low, high, [])
    return coordinates


def _one_hot_blocks(
    sums: NDArray[np.uint64],
    weights: int,
    base: NDArray[np.int64],
    low: NDArray[np.int64],
    high: NDArray[np.int64],
) -> list[tuple[int, int]]:
    """First and last components of the blocks of which exactly one is 1."""
    width = len(sums)
    against_base = sums - base.astype(np.uint64) * np.uint64(weights)
    running = [0, *np.cumsum(against_base).tolist()]
    following: list[int] = [width + 1] * (width + 1)  # where the same sum comes again
    seen: dict[int, int] = {}
    for at in reversed(range(width + 1)):
        following[at] = seen.get(running[at], width + 1)
        seen[running[at]] = at
    blocks = []
    at = 0
    while at < width:
        end = following[at]
        if low[at] == high[at]:
            at += 1
        elif end <= width and base[at:end].sum() == 1 and high[at:end].max() == 1:
            blocks.append(
                (at, end - 1)
            )  # it ends with a component that varies, or it would have ended before
            at = end
        else:
            at += 1
    return blocks


def _coordinates(
    packed: NDArray[np.uint8],
    codec: StateCodec,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    blocks: list[tuple[int, int]],
) -> Coordinates:
    inside = np.zeros(len(low), np.bool_)
    for first, last in blocks:
        inside[first : last + 1] = True
    alone = np.flatnonzero((low < high) & ~inside).tolist()
    digits = sorted(
        [(first, last, 0, last - first + 1) for first, last in blocks]
        + [(at, at, int(low[at]), int(high[at] - low[at] + 1)) for at in alone]
    )
    table = np.array(digits, np.int64).reshape(-1, 4)
    return Coordinates(packed, codec, *(np.ascontiguousarray(table[:, k]) for k in range(4)))


def _chunks(packed: NDArray[np.uint8]) -> Iterator[tuple[slice, Any]]:
    for start in range(0, len(packed), _CHUNK):
        chunk = slice(start, min(start + _CHUNK, len(packed)))
        yield chunk, as_input(packed[chunk], np.uint8)
        drop_pages(packed[chunk])
