"""Coordinates found in packed vectors, against what the vectors were made of."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omstore.encode.coordinates import Coordinates, find_coordinates
from omstore.errors import CorruptStoreError, UsageError
from omstore.format.states import StateCodec
from tools.worlds.pursuit import GRID, Pursuit


def packed_states(states: Any, component_bits: int = 1) -> tuple[NDArray[np.uint8], StateCodec]:
    """Sorted, distinct and packed."""
    states = np.unique(np.asarray(states), axis=0)
    codec = StateCodec(states.shape[1], component_bits)
    packed = codec.pack(states)
    packed.flags.writeable = False
    return packed, codec


def found(states: Any, component_bits: int = 1) -> Coordinates:
    return find_coordinates(*packed_states(states, component_bits))


def one_hot(values: Any, size: int) -> NDArray[np.uint8]:
    return np.eye(size, dtype=np.uint8)[np.asarray(values)]


def slow_positions(coordinates: Coordinates) -> list[int]:
    positions = []
    for digits in coordinates.digits(coordinates.packed).tolist():
        position = 0
        for digit, radix in zip(digits, coordinates.radices.tolist(), strict=True):
            position = position * radix + digit
        positions.append(position)
    return positions


@pytest.mark.parametrize("agents", [2, 3])
def test_padded_grid_keeps_its_geometry(agents: int) -> None:
    world = Pursuit(agents)
    nodes = np.random.default_rng(1).permutation(world.num_nodes)[:5000]
    packed, codec = packed_states(world.vectors(nodes))
    coordinates = find_coordinates(packed, codec)
    # The last of the 49 cells is a wall, so the digits are 47 - cell, walls inside of the grid counted.
    assert coordinates.radices.tolist() == [48] * agents
    assert coordinates.first.tolist() == [49 * agent for agent in range(agents)]
    cell = world.cells[:, 0] * GRID + world.cells[:, 1]
    digits = 47 - cell[world.cells_of(nodes)]
    back = np.lexsort(codec.pack(world.vectors(nodes)).T[::-1])
    assert np.array_equal(coordinates.digits(packed), digits[back])


def test_moves_are_the_same_difference_of_positions_everywhere() -> None:
    world = Pursuit(2)
    packed, codec = packed_states(world.vectors(np.arange(world.num_nodes)))
    coordinates = find_coordinates(packed, codec)
    positions = coordinates.positions()
    assert positions is not None
    assert positions.dtype == np.uint64
    assert coordinates.num_positions == 48 * 48
    assert positions.tolist() == slow_positions(coordinates)
    order = np.lexsort(codec.pack(world.vectors(np.arange(world.num_nodes))).T[::-1])
    position_of = np.empty(world.num_nodes, np.int64)
    position_of[order] = positions.astype(np.int64)
    # Agent 0 goes east (action 3) and agent 1 north (action 1): one cell less, and seven cells more.
    nodes = np.arange(world.num_nodes)
    cells = world.cells_of(nodes)
    rows = world.successors(nodes, np.full(world.num_nodes, 3 * 5 + 1))
    free = (world.cells_of(rows.next_node) != cells).all(axis=1)
    assert free.sum() > 1000
    assert set((position_of[rows.next_node] - position_of)[free].tolist()) == {-1 * 48 + 7}


def test_unpadded_states_are_their_own_positions() -> None:
    world = Pursuit(2, padded=False)
    coordinates = found(world.vectors(np.arange(world.num_nodes)))
    assert coordinates.radices.tolist() == [44, 44]
    assert coordinates.positions() is None
    assert coordinates.num_positions == world.num_nodes


def test_too_sparse_positions_are_the_nodes() -> None:
    rng = np.random.default_rng(2)
    states = np.concatenate([one_hot(rng.integers(0, 40, 50), 40) for _ in range(2)], axis=1)
    coordinates = found(states)
    nodes = len(coordinates.packed)
    assert coordinates.volume > 8 * nodes
    assert coordinates.positions() is None
    assert coordinates.num_positions == nodes


def test_the_order_of_bits_in_a_block_does_not_matter() -> None:
    world = Pursuit(2)
    shuffled = np.random.default_rng(3).permutation(49)
    vectors = world.vectors(np.arange(world.num_nodes)).reshape(-1, 2, 49)[:, :, shuffled].reshape(-1, 98)
    coordinates = found(vectors)
    assert coordinates.num_digits == 2
    positions = coordinates.positions()
    assert positions is not None
    assert positions.tolist() == slow_positions(coordinates)


def test_flags_before_between_and_behind_blocks() -> None:
    rng = np.random.default_rng(4)
    flags = rng.integers(0, 2, (400, 3)).astype(np.uint8)
    first, second = one_hot(rng.integers(0, 5, 400), 5), one_hot(rng.integers(0, 9, 400), 9)
    coordinates = found(np.concatenate([flags[:, :1], first, flags[:, 1:2], second, flags[:, 2:]], axis=1))
    assert list(zip(coordinates.first.tolist(), coordinates.last.tolist(), strict=True)) == [
        (0, 0), (1, 5), (6, 6), (7, 15), (16, 16),
    ]  # fmt: skip
    assert coordinates.radices.tolist() == [2, 5, 2, 9, 2]


def test_interleaved_blocks_are_bits() -> None:
    world = Pursuit(2, padded=False)
    vectors = world.vectors(np.arange(world.num_nodes)).reshape(-1, 2, 44).transpose(0, 2, 1).reshape(-1, 88)
    coordinates = found(vectors)
    assert coordinates.num_digits == 88
    assert set(coordinates.radices.tolist()) == {2}
    assert coordinates.positions() is None  # 2^88 of them


@pytest.mark.parametrize("component_bits", [8, 16, 32])
def test_integers_are_digits_less_their_least_value(component_bits: int) -> None:
    rng = np.random.default_rng(5)
    base = {8: 7, 16: 1000, 32: 1 << 31}[component_bits]
    # an integer, a constant, a one-hot block, an integer
    states = np.concatenate(
        [
            base + rng.integers(0, 4, (500, 1)),
            np.full((500, 1), 3),
            one_hot(rng.integers(0, 6, 500), 6),
            rng.integers(0, 3, (500, 1)),
        ],
        axis=1,
    )
    coordinates = found(states, component_bits)
    assert coordinates.first.tolist() == [0, 2, 8]
    assert coordinates.low.tolist() == [base, 0, 0]
    assert coordinates.radices.tolist() == [4, 6, 3]
    assert coordinates.describe(1) == "components 2 to 7"
    assert coordinates.component_digit().tolist() == [0, -1, 1, 1, 1, 1, 1, 1, 2]


def test_one_state_has_no_digits() -> None:
    coordinates = found([[1, 0, 1]])
    assert coordinates.num_digits == 0
    assert coordinates.volume == 1
    assert coordinates.positions() is None


def test_a_state_of_another_graph_is_named() -> None:
    coordinates = found(one_hot(np.arange(9), 9))
    batch = coordinates.packed[[3, 4]].copy()
    batch[1] = 255
    with pytest.raises(UsageError, match="position 1"):
        coordinates.digits(batch)


def test_unsorted_or_equal_states_are_named() -> None:
    world = Pursuit(2)
    packed, codec = packed_states(world.vectors(np.arange(world.num_nodes)))
    swapped = packed.copy()
    swapped[[700, 701]] = swapped[[701, 700]]
    with pytest.raises(CorruptStoreError, match="nodes 700 and 701"):
        find_coordinates(swapped, codec).positions()
    same = np.repeat(packed[:2], 3, axis=0)
    with pytest.raises(CorruptStoreError, match="distinct"):
        find_coordinates(same, codec).positions()


def test_the_cut_into_chunks_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Pursuit(2)
    packed, codec = packed_states(world.vectors(np.arange(world.num_nodes)))
    whole = find_coordinates(packed, codec)
    positions = whole.positions()
    monkeypatch.setattr("omstore.encode.coordinates._CHUNK", 97)
    pieces = find_coordinates(packed, codec)
    assert np.array_equal(pieces.radices, whole.radices)
    assert np.array_equal(pieces.first, whole.first)
    assert positions is not None
    assert np.array_equal(positions, np.asarray(pieces.positions()))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_digits_determine_and_order_the_states(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 20))
    bits = data.draw(st.sampled_from([1, 8, 16]))
    largest = 1 if bits == 1 else data.draw(st.sampled_from([1, 2, 200]))
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 16)))
    states = rng.integers(0, largest + 1, (data.draw(st.integers(1, 40)), width))
    if data.draw(st.booleans()):  # blocks of which one is 1, cut anywhere
        cuts = sorted({0, width, *data.draw(st.lists(st.integers(1, width), max_size=3))})
        for a, b in itertools.pairwise(cuts):
            if data.draw(st.booleans()):
                states[:, a:b] = one_hot(rng.integers(0, b - a, len(states)), b - a)
    coordinates = found(states, bits)
    digits = coordinates.digits(coordinates.packed).tolist()
    assert all(before < after for before, after in itertools.pairwise(digits))
    assert (coordinates.digits(coordinates.packed) < coordinates.radices).all()
    assert (coordinates.radices >= 2).all()
    positions = coordinates.positions()
    if positions is not None:
        assert positions.tolist() == slow_positions(coordinates)
        assert coordinates.num_positions == np.prod(coordinates.radices)
    # every digit is read where exactly one component of its block is 1, in every state
    unpacked = coordinates.codec.unpack(coordinates.packed)
    for first, last in zip(coordinates.first, coordinates.last, strict=True):
        if first < last:
            assert (unpacked[:, first : last + 1].sum(axis=1) == 1).all()
