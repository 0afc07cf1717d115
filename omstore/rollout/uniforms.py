"""Random numbers by counter: the number with a key and a counter is a function of these, and of nothing else.

A generator with a state gives numbers in the order in which they are asked for, so that results depend on how
work was cut into batches, handed to threads and resumed. Here each environment of a rollout has a *key*, made
of the words (seed, phase, update, root, candidate, rollout), and takes number ``3 * step + which`` of it.

Keys are folded together by the finalizer of MurmurHash3 (Appleby), the numbers of a key are those of
SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014): the finalizer
Mix13 of Stafford over key + (counter + 1) * golden gamma. The two finalizers differ, so that a key may be used
for both, and the keys below it aren't its numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["GAMMA", "extend_key", "stream_key", "uniform"]

GAMMA = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, odd: its multiples are spread evenly."""

# Of one dimension: NumPy warns where a number without dimensions wraps around, which is meant here.
_GAMMA = np.full(1, GAMMA, np.uint64)
_ONE = np.ones(1, np.uint64)


def stream_key(seed: ArrayLike, *words: ArrayLike) -> NDArray[np.uint64]:
    """Fold words into the key of a stream of random numbers.

    The seed is hashed first, so a key given as the seed makes another stream than going on from it does
    (:func:`extend_key`).

    Parameters
    ----------
    seed : integers
        Any integers of at most 64 bits, negative ones as their two's complement.
    *words : integers
        Broadcast with each other. Equally many words that differ in one of them make different keys for
        certain; others but for a chance of 2^-64.

    Returns
    -------
    uint64 array of the broadcast shape
    """
    shape = np.shape(seed)
    return extend_key(_finalized(_flat(seed) + _GAMMA).reshape(shape), *words)


def extend_key(key: ArrayLike, *words: ArrayLike) -> NDArray[np.uint64]:
    """Fold further words into keys, as `stream_key` does; rollouts do it with candidate and rollout.

    Parameters
    ----------
    key : uint64 array
    *words : integers

    Returns
    -------
    uint64 array of the broadcast shape
    """
    state = np.asarray(key, np.uint64)
    for word in words:
        shape = np.broadcast_shapes(state.shape, np.shape(word))
        state = _finalized(np.atleast_1d(state) + (_flat(word, keep=True) + _ONE) * _GAMMA).reshape(shape)
    return state


def uniform(key: ArrayLike, counter: ArrayLike) -> NDArray[np.float64]:
    """Return numbers of streams, uniform in [0, 1): multiples of 2^-53.

    Parameters
    ----------
    key : uint64 array
        Of `stream_key`.
    counter : integers
        At least 0; broadcast with `key`.

    Returns
    -------
    float64 array of the broadcast shape
    """
    shape = np.broadcast_shapes(np.shape(key), np.shape(counter))
    bits = _flat(key, keep=True) + (_flat(counter, keep=True) + _ONE) * _GAMMA
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    numbers: NDArray[np.float64] = (bits >> np.uint64(11)) * 2.0**-53
    return numbers.reshape(shape)


def _flat(values: Any, keep: bool = False) -> NDArray[np.uint64]:
    """Integers as uint64, of at least one dimension; of exactly one, unless shapes are kept."""
    if isinstance(values, int):
        return np.full(1, values & (1 << 64) - 1, np.uint64)
    array = np.asarray(values)
    if array.dtype.kind == "i":
        array = array.astype(np.int64).view(np.uint64)
    array = array.astype(np.uint64, casting="same_kind")
    return np.atleast_1d(array) if keep else array.reshape(-1)


def _finalized(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    finished: NDArray[np.uint64] = state ^ (state >> np.uint64(33))
    return finished
