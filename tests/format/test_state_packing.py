"""Packing states against plain Python, and against the order that packing promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omstore.errors import UsageError
from omstore.format.states import StateCodec, component_bits_for


@st.composite
def batches(draw):
    bits = draw(st.sampled_from([1, 8, 16, 32]))
    width = draw(st.integers(1, 20))
    vector = st.lists(st.integers(0, (1 << bits) - 1), min_size=width, max_size=width)
    return bits, width, draw(st.lists(vector, max_size=8))


def packed_by_hand(vector, bits):
    text = "".join(f"{value:0{bits}b}" for value in vector)
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


@settings(deadline=None)
@given(batches(), st.sampled_from(["int64", "uint64", "float64", "u4", "bool"]))
def test_packs_as_by_hand_and_back(batch, dtype):
    bits, width, vectors = batch
    if dtype == "bool" and bits > 1:
        dtype = "int64"
    codec = StateCodec(width, bits)
    states = np.array(vectors, dtype).reshape(len(vectors), width)
    packed = codec.pack(states)
    assert packed.dtype == np.uint8
    assert packed.shape == (len(vectors), codec.packed_bytes)
    assert [row.tobytes() for row in packed] == [packed_by_hand(vector, bits) for vector in vectors]
    back = codec.unpack(packed)
    assert back.dtype == codec.dtype
    assert back.dtype.isnative
    assert back.tolist() == vectors


@given(batches())
def test_order_of_bytes_is_order_of_vectors(batch):
    bits, width, vectors = batch
    packed = StateCodec(width, bits).pack(np.array(vectors, np.int64).reshape(len(vectors), width))
    by_bytes = sorted(range(len(vectors)), key=lambda i: packed[i].tobytes())
    assert by_bytes == sorted(range(len(vectors)), key=lambda i: vectors[i])


def test_packing_copies():
    states = np.zeros((2, 3), np.uint8)
    packed = StateCodec(3, 8).pack(states)
    packed[:] = 7
    assert states.sum() == 0
    unpacked = StateCodec(3, 8).unpack(packed)
    unpacked[:] = 9
    assert (packed == 7).all()


def test_views_with_strides_pack():
    wide = np.random.default_rng(0).integers(0, 2, (9, 40)).astype(np.uint8)
    codec = StateCodec(20, 1)
    np.testing.assert_array_equal(codec.unpack(codec.pack(wide[:, ::2])), wide[:, ::2])
    packed = codec.pack(wide[:, :20])
    np.testing.assert_array_equal(codec.unpack(packed[::2]), wide[::2, :20])
    bytes_codec = StateCodec(20, 16)
    np.testing.assert_array_equal(bytes_codec.unpack(bytes_codec.pack(wide[:, ::2])[::-1]), wide[::-1, ::2])


@pytest.mark.parametrize(
    ("bits", "value"),
    [(1, 2), (1, -1), (8, 256), (8, -1), (16, 65536), (32, 1 << 32), (1, 0.5), (8, np.nan), (8, np.inf)],
)
def test_values_that_dont_fit_are_errors(bits, value):
    states = np.array([[0, 0, value], [0, 0, 0]])
    with pytest.raises(UsageError):
        StateCodec(3, bits).pack(states)


def test_misfits_are_errors():
    with pytest.raises(UsageError, match="shape"):
        StateCodec(3, 1).pack(np.zeros((2, 4), np.uint8))
    with pytest.raises(UsageError, match="shape"):
        StateCodec(3, 1).pack(np.zeros(3, np.uint8))
    with pytest.raises(UsageError, match="integers"):
        StateCodec(1, 1).pack(np.array([["a"]]))
    for packed in (np.zeros((2, 2), np.uint8), np.zeros((2, 1), np.int8), np.zeros(1, np.uint8)):
        with pytest.raises(UsageError, match="Packed"):
            StateCodec(3, 1).unpack(packed)
    with pytest.raises(UsageError):
        StateCodec(0, 1)
    with pytest.raises(UsageError):
        StateCodec(3, 4)


def test_fewest_bits():
    assert [component_bits_for(n) for n in (0, 1, 2, 255, 256, 65535, 65536, 2**32 - 1)] == [
        *(1, 1, 8, 8, 16, 16, 32, 32)
    ]
    for n in (-1, 2**32):
        with pytest.raises(UsageError):
            component_bits_for(n)
