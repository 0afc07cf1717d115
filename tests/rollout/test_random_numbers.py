"""Counter-based random numbers: published values, the compiled twin, and what must differ."""

import numpy as np
import pytest

from omstore.rollout import action_kernels, extend_key, key_kernels, stream_key, uniform
from omstore.rollout.uniforms import GAMMA

MASK = (1 << 64) - 1


def test_numbers_of_a_key_are_those_of_splitmix64():
    # The first outputs of SplitMix64 seeded with 1234567, as published with other implementations.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    numbers = uniform(np.uint64(1234567), np.arange(5))
    assert numbers.tolist() == [(value >> 11) * 2.0**-53 for value in published]


def test_keys_are_folded_by_the_finalizer_of_murmurhash3():
    # fmix64(1) = 0xB456BCFC34C2CB2C; the word 6 adds 7 * GAMMA.
    before = (1 - 7 * GAMMA) & MASK
    assert int(extend_key(np.uint64(before), 6)) == 0xB456BCFC34C2CB2C
    assert int(stream_key(1 - GAMMA)) == 0xB456BCFC34C2CB2C


def test_words_are_folded_one_after_the_other_and_broadcast():
    key = stream_key(5, 6, 7, 8)
    assert key == extend_key(stream_key(5, 6), 7, 8)
    assert key.shape == ()
    assert stream_key(5, [1, 2, 3]).shape == (3,)
    table = stream_key(np.arange(2)[:, None], np.arange(3), 4)
    assert table.shape == (2, 3)
    assert table[1, 2] == stream_key(1, 2, 4)
    numbers = uniform(table, np.arange(3))
    assert numbers.shape == (2, 3)
    assert numbers[1, 2] == uniform(table[1, 2], 2)
    assert uniform(np.zeros(0, np.uint64), 3).shape == (0,)


def test_negative_words_are_their_twos_complement():
    assert stream_key(-1, -2) == stream_key(MASK, MASK - 1)
    assert stream_key(np.int64(-1)) == stream_key(np.uint64(MASK))


def test_floats_are_no_words():
    with pytest.raises(TypeError):
        stream_key(0.5)


def test_order_and_number_of_words_count():
    keys = [
        stream_key(*words) for words in ((1,), (1, 0), (0, 1), (1, 0, 0), (0, 0, 1), (0, 1, 0), (10,), (0,))
    ]
    assert len({int(key) for key in keys}) == len(keys)


def test_compiled_numbers_are_the_same():
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 1 << 63, 1000).astype(np.uint64) * np.uint64(2) + np.uint64(1)
    counters = rng.integers(0, 1000, 1000)
    out = np.empty(1000)
    action_kernels.numbers(keys, counters, out)
    assert np.array_equal(out, uniform(keys, counters))


def test_compiled_environment_keys_are_the_same():
    first = stream_key(3, np.arange(4))
    root, candidate, rollout = np.array([0, 3, 3]), np.array([2, 0, 4]), np.array([0, 1024, 5])
    keys = np.empty(15, np.uint64)
    key_kernels.environment_keys(first, root, candidate, rollout, 5, keys)
    expected = extend_key(first[root], candidate)[:, None]
    assert np.array_equal(keys.reshape(3, 5), extend_key(expected, rollout[:, None] + np.arange(5)))


def test_numbers_are_uniform_and_uncorrelated():
    # 200 x 3 x 2000 numbers; every statistic is within 5 of its standard deviations.
    keys = stream_key(0, np.arange(200), 7)
    numbers = uniform(keys[:, None, None], (3 * np.arange(2000)[:, None] + np.arange(3))[None])
    flat = numbers.reshape(-1)
    assert flat.min() >= 0.0
    assert flat.max() < 1.0
    counts = np.bincount((flat * 64).astype(np.int64), minlength=64)
    expected = flat.size / 64
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - 63) < 5 * np.sqrt(2 * 63)
    centred = numbers - 0.5
    pairs = [
        (centred[:, :, 0] * centred[:, :, 1]).ravel(),  # within a step
        (centred[:, 1:, 2] * centred[:, :-1, 0]).ravel(),  # from step to step
        (centred[1:] * centred[:-1]).ravel(),  # from stream to stream
    ]
    for product in pairs:
        assert abs(product.mean()) < 5 / 12 / np.sqrt(product.size)
