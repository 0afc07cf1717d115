"""The ring of samples, against a deque that forgets the oldest."""

from __future__ import annotations

import tracemalloc
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omstore.errors import UsageError

torch = pytest.importorskip("torch")

from trainer.buffer import OMBuffer  # noqa: E402

WIDTH = 11


def samples(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples that tell their number: its bits, and its remainder by 7."""
    numbers = np.arange(first, first + count)
    return ((numbers[:, None] >> np.arange(WIDTH)) & 1).astype(np.uint8), numbers % 7


def held(buffer: OMBuffer) -> list[tuple[int, int]]:
    batch = buffer.sample(np.arange(len(buffer)))
    assert batch.state.dtype == torch.float32
    assert batch.action.dtype == torch.int64
    numbers = (batch.state.numpy().astype(np.int64) << np.arange(WIDTH)).sum(axis=1)
    return list(zip(numbers.tolist(), batch.action.tolist(), strict=True))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 9), st.lists(st.integers(0, 21), max_size=8), st.booleans())
def test_the_newest_samples_stay_in_order(capacity: int, sizes: list[int], as_tensors: bool) -> None:
    buffer = OMBuffer(capacity, WIDTH, num_actions=7)
    model: deque[tuple[int, int]] = deque(maxlen=capacity)
    first = 0
    for size in sizes:
        states, actions = samples(first, size)
        if as_tensors:
            buffer.add(torch.from_numpy(states).float(), torch.from_numpy(actions))
        else:
            buffer.add(states, actions)
        model.extend((number, number % 7) for number in range(first, first + size))
        first += size
        assert len(buffer) == len(model)
        assert held(buffer) == list(model)


@pytest.mark.parametrize("size", [3, 4, 5, 9])
def test_a_batch_as_large_as_the_capacity_and_larger(size: int) -> None:
    buffer = OMBuffer(4, WIDTH, num_actions=7)
    buffer.add(*samples(100, 3))
    buffer.add(*samples(0, size))
    everything = [*range(100, 103), *range(size)]
    assert [number for number, _ in held(buffer)] == everything[-4:]


def test_any_write_but_an_empty_one_clears_the_nodes() -> None:
    buffer = OMBuffer(4, WIDTH, num_actions=7)
    assert buffer.graph_state_idx is None
    buffer.add(*samples(0, 2))
    nodes = np.array([5, -1])
    buffer.graph_state_idx = nodes
    buffer.add(*samples(2, 0))
    assert buffer.graph_state_idx is not None
    assert buffer.graph_state_idx.tolist() == [5, -1]
    assert not buffer.graph_state_idx.flags.writeable
    assert nodes.flags.writeable, "the caller's own array stays as it was"
    buffer.add(*samples(2, 1))
    assert buffer.graph_state_idx is None
    buffer.add(*samples(0, 4))
    buffer.graph_state_idx = torch.arange(4)
    buffer.add(*samples(0, 9))  # larger than the capacity
    assert buffer.graph_state_idx is None


def test_nodes_must_be_one_a_sample() -> None:
    buffer = OMBuffer(4, WIDTH, num_actions=7)
    buffer.add(*samples(0, 3))
    for wrong in ([1, 2], [1, 2, 3, 4], [[1, 2, 3]], [0.0, 1.0, 2.0]):
        with pytest.raises(UsageError, match="each of the 3 samples"):
            buffer.graph_state_idx = wrong  # type: ignore[assignment]
    assert buffer.graph_state_idx is None
    buffer.graph_state_idx = [1, 2, 3]  # type: ignore[assignment]
    buffer.graph_state_idx = None
    assert buffer.graph_state_idx is None


def test_given_indices_in_their_order() -> None:
    buffer = OMBuffer(5, WIDTH, num_actions=7)
    buffer.add(*samples(0, 8))  # holds 3..7
    buffer.add(*samples(8, 2))  # holds 5..9, and the ring has turned
    chosen = torch.tensor([4, 0, 0, 2])
    states, actions = samples(0, 10)
    numbers = [9, 5, 5, 7]
    assert np.array_equal(buffer.sample(chosen).state.numpy(), states[numbers])
    assert np.array_equal(buffer.states(chosen.numpy()).numpy(), states[numbers])
    assert buffer.actions(chosen).tolist() == actions[numbers].tolist()
    for outside in ([5], [-1]):
        with pytest.raises(UsageError, match="isn't within 0 to 4"):
            buffer.sample(outside)
    with pytest.raises(UsageError, match="integers"):
        buffer.sample(np.array([True, False]))


@pytest.mark.parametrize(("num_actions", "bytes_each"), [(1, 1), (256, 1), (257, 2), (65536, 2), (65537, 4)])
def test_actions_take_the_smallest_unsigned_type(num_actions: int, bytes_each: int) -> None:
    buffer = OMBuffer(10, 147, num_actions=num_actions)
    assert buffer.nbytes == 10 * (19 + bytes_each)  # 147 bits: 19 bytes
    buffer.add(np.zeros((2, 147), np.uint8), np.array([0, num_actions - 1]))
    assert buffer.actions([0, 1]).tolist() == [0, num_actions - 1]
    with pytest.raises(UsageError, match=f"team action {num_actions} at position 1"):
        buffer.add(np.zeros((2, 147), np.uint8), np.array([0, num_actions]))
    with pytest.raises(UsageError, match="team action -1"):
        buffer.add(np.zeros((1, 147), np.uint8), np.array([-1]))
    assert len(buffer) == 2, "what is refused changes nothing"


def test_components_that_are_no_bits() -> None:
    rng = np.random.default_rng(0)
    for dtype, values in (
        (np.uint8, rng.integers(0, 256, (6, 3))),
        (np.uint16, rng.integers(0, 65536, (6, 3))),
        (np.float32, rng.normal(size=(6, 3))),
    ):
        buffer = OMBuffer(4, 3, num_actions=2, state_dtype=dtype)
        buffer.add(values, np.zeros(6, np.int64))
        assert np.array_equal(buffer.states(range(4)).numpy(), values[2:].astype(np.float32))
    with pytest.raises(UsageError, match="doesn't fit uint8"):
        OMBuffer(4, 1, num_actions=2, state_dtype=np.uint8).add([[256]], [0])
    with pytest.raises(UsageError, match="neither 0 nor 1"):
        OMBuffer(4, 1, num_actions=2).add([[2]], [0])
    with pytest.raises(UsageError, match="float64"):
        OMBuffer(4, 1, num_actions=2, state_dtype=np.float64)


def test_what_makes_no_sense_is_refused() -> None:
    for capacity, width, num_actions in ((0, 3, 2), (-1, 3, 2), (4, 0, 2), (4, -1, 2), (4, 3, 0)):
        with pytest.raises(UsageError):
            OMBuffer(capacity, width, num_actions=num_actions)
    assert len(OMBuffer(1, 1, num_actions=1)) == 0
    buffer = OMBuffer(4, 3, num_actions=2)
    with pytest.raises(UsageError, match="batch, 3"):
        buffer.add(np.zeros((2, 4), np.uint8), [0, 0])
    with pytest.raises(UsageError, match="2 states were given"):
        buffer.add(np.zeros((2, 3), np.uint8), [0])
    with pytest.raises(UsageError, match="packed states"):
        buffer.add_packed(np.zeros((2, 3), np.uint8), [0, 0])


def test_packed_states_are_those_of_packbits() -> None:
    states, actions = samples(0, 6)
    one, other = OMBuffer(4, WIDTH, num_actions=7), OMBuffer(4, WIDTH, num_actions=7)
    one.add(states, actions)
    other.add_packed(np.packbits(states, axis=1), actions)
    assert held(one) == held(other)


def test_memory_is_bits() -> None:
    tracemalloc.start()
    try:
        buffer = OMBuffer(100_000, 147, num_actions=25)
        for first in range(0, 100_000, 10_000):
            buffer.add_packed(np.full((10_000, 19), first % 251, np.uint8), np.zeros(10_000, np.uint8))
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert buffer.nbytes == 2_000_000  # so a million take 20 MB
    assert current < 2_050_000
