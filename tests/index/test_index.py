"""The index against a dict, and its table against a slow ordered insertion."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError, MemoryBudgetError, UsageError
from omstore.index import StateIndex, build_index, capacity_for
from omstore.index.build import _ranges
from omstore.index.kernels import FINGERPRINT_BITS, NODE_BITS, hash_keys

MASK = (1 << 64) - 1


class Slots:
    """Collects what the builder writes."""

    def __init__(self) -> None:
        self.parts: list[NDArray[np.uint64]] = []

    def append(self, values: NDArray[np.uint64], /) -> None:
        self.parts.append(values.copy())

    @property
    def array(self) -> NDArray[np.uint64]:
        return np.concatenate(self.parts)


def table(packed: NDArray[np.uint8], budget: int = 4 << 20) -> NDArray[np.uint64]:
    slots = Slots()
    assert build_index(packed, slots, budget) == len(slots.array)
    return slots.array


def distinct(count: int, key_bytes: int, seed: int = 0) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    keys = np.unique(rng.integers(0, 256, (count, key_bytes), np.uint8), axis=0)
    return keys[rng.permutation(len(keys))]


def slow_hash(key: bytes) -> int:
    state = 0x9E3779B97F4A7C15 * (2 * len(key) + 1) & MASK
    for start in range(0, len(key), 8):
        state = (state ^ int.from_bytes(key[start : start + 8], "little")) * 0xFF51AFD7ED558CCD & MASK
        state ^= state >> 32
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & MASK
    return state ^ state >> 31


def slow_table(packed: NDArray[np.uint8]) -> list[int]:
    capacity = capacity_for(len(packed))
    slots: dict[int, int] = {}
    place = -1
    for hashed, node in sorted((slow_hash(key.tobytes()), node) for node, key in enumerate(packed)):
        place = max(place + 1, hashed * capacity >> 64)
        slots[place] = (hashed & (1 << FINGERPRINT_BITS) - 1) << NODE_BITS | node + 1
    return [slots.get(at, 0) for at in range(max(capacity, place + 1) + 1)]


@pytest.mark.parametrize("key_bytes", [1, 3, 7, 8, 9, 16, 19, 33])
def test_the_table_is_what_slow_insertion_gives(key_bytes: int) -> None:
    packed = distinct(700, key_bytes)
    assert table(packed).tolist() == slow_table(packed)


@given(st.integers(0, 60), st.sampled_from([1, 2, 8, 11]), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_lookup_agrees_with_a_dict(count: int, key_bytes: int, seed: int) -> None:
    packed = distinct(max(count, 1), key_bytes, seed)[:count]
    index = StateIndex(table(packed), packed)
    queries = np.concatenate([packed, distinct(300, key_bytes, seed + 1)])
    nodes = {key.tobytes(): node for node, key in enumerate(packed)}
    assert index.lookup_packed(queries).tolist() == [nodes.get(key.tobytes(), -1) for key in queries]


@pytest.mark.parametrize("width", [1, 7, 8, 9, 63, 64, 65, 127, 128, 147, 196])
def test_vectors_are_found_as_packbits_packs_them(width: int) -> None:
    rng = np.random.default_rng(width)
    states = np.unique(rng.integers(0, 2, (500, width), np.uint8), axis=0)
    packed = np.packbits(states, axis=1)
    index = StateIndex(table(packed), packed)
    queries = np.concatenate([states, rng.integers(0, 2, (500, width), np.uint8)])
    expected = index.lookup_packed(np.packbits(queries, axis=1))
    assert expected[: len(states)].tolist() == list(range(len(states)))
    for batch in (queries, queries.astype(bool), np.asfortranarray(queries)):
        assert index.lookup_bits(batch).tolist() == expected.tolist()


@pytest.mark.parametrize(("state", "component"), [(0, 0), (129, 64), (299, 76), (255, 8)])
def test_a_component_that_is_no_bit_is_named(state: int, component: int) -> None:
    states = np.random.default_rng(0).integers(0, 2, (300, 77), np.uint8)
    packed = np.unique(np.packbits(states, axis=1), axis=0)
    states[state, component] = 2
    with pytest.raises(UsageError, match=f"state {state} .* component {component} is 2"):
        StateIndex(table(packed), packed).lookup_bits(states)


def test_full_keys_decide_where_fingerprint_and_home_collide() -> None:
    packed = distinct(2000, 3)
    capacity = capacity_for(len(packed))
    slots = table(packed)
    # Give every slot one fingerprint: each probe now meets wrong candidates first.
    fingerprint = slow_hash(packed[7].tobytes()) & (1 << FINGERPRINT_BITS) - 1
    mask = np.uint64((1 << NODE_BITS) - 1)
    forged = np.where(slots == 0, slots, slots & mask | np.uint64(fingerprint << NODE_BITS))
    assert len(forged) > capacity
    index = StateIndex(forged, packed)
    assert index.lookup_packed(packed[7:8]).tolist() == [7]
    strangers = [
        key for key in distinct(20000, 4) if slow_hash(key.tobytes()[:3]) & 0xFFF == fingerprint & 0xFFF
    ]
    for stranger in strangers:
        key = stranger[:3]
        known = (packed == key).all(axis=1).any()
        if not known:
            assert index.lookup_packed(key[None]).tolist() == [-1]


def test_the_bytes_do_not_depend_on_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = distinct(400_000, 9)
    once = table(packed, 1 << 30)
    seen: list[int] = []
    slots = Slots()
    build_index(packed, slots, 4 << 20, seen.append)
    assert sum(seen) > 3 * len(packed), "the small budget was meant to need several ranges"
    assert np.array_equal(slots.array, once)
    StateIndex(once, packed).verify()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=50), st.integers(9, 40))
def test_ranges_cover_the_groups_and_keep_the_limit(counts: list[int], most: int) -> None:
    ranges = list(_ranges(np.array(counts), most, 0))
    assert [group for first, last in ranges for group in range(first, last)] == list(range(len(counts)))
    sums = [sum(counts[first:last]) for first, last in ranges]
    assert max(sums) <= most
    for (_, last), total in zip(ranges, sums, strict=True):
        if last < len(counts):
            assert total + counts[last] > most, "a range could have taken one group more"


def test_too_small_a_budget_is_refused() -> None:
    with pytest.raises(MemoryBudgetError, match="100 KiB"):
        build_index(distinct(10, 3), Slots(), 100 << 10)
    with pytest.raises(MemoryBudgetError, match="one group"):
        list(_ranges(np.array([3, 90]), 50, 0))


def test_the_hash_avalanches() -> None:
    rng = np.random.default_rng(1)
    keys = rng.integers(0, 256, (2000, 19), np.uint8)
    before = np.empty(len(keys), np.uint64)
    after = np.empty(len(keys), np.uint64)
    hash_keys(keys.reshape(-1), 19, before)
    for bit in range(0, 152, 5):
        flipped = keys.copy()
        flipped[:, bit // 8] ^= np.uint8(1 << bit % 8)
        hash_keys(flipped.reshape(-1), 19, after)
        changed = np.unpackbits((before ^ after).view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert changed.min() > 0.42, "an output bit that hardly depends on an input bit"
        assert changed.max() < 0.58


@pytest.mark.parametrize("fault", ["foreign node", "no empty slot", "too short"])
def test_a_damaged_table_is_an_error(fault: str) -> None:
    packed = distinct(500, 5)
    slots = table(packed)
    full = slots != 0
    if fault == "foreign node":
        slots[full] = slots[full] & ~np.uint64((1 << NODE_BITS) - 1) | np.uint64(501)
    elif fault == "no empty slot":
        slots[~full] = np.uint64(1)  # fingerprint 0, node 0
    else:
        slots = slots[: capacity_for(500)]
    with pytest.raises(CorruptStoreError, match="index/slots"):
        StateIndex(slots, packed).lookup_packed(np.concatenate([packed, distinct(5000, 5, seed=9)]))


def test_verify_finds_a_moved_and_a_duplicate_state() -> None:
    packed = distinct(500, 5)
    index = StateIndex(table(packed), packed)
    index.verify(chunk_rows=64)
    moved = packed.copy()
    moved[[3, 4]] = moved[[4, 3]]
    with pytest.raises(CorruptStoreError, match="node 3"):
        StateIndex(table(packed), moved).verify(chunk_rows=64)
    doubled = packed.copy()
    doubled[400] = doubled[3]
    with pytest.raises(CorruptStoreError, match="node 400 is found at node 3"):
        StateIndex(table(doubled), doubled).verify(chunk_rows=64)


def test_wrong_keys_are_refused() -> None:
    packed = distinct(50, 5)
    index = StateIndex(table(packed), packed)
    for keys in (packed[:, :4], packed[0], packed.astype(np.int64)):
        with pytest.raises(UsageError):
            index.lookup_packed(keys)
    assert index.lookup_packed(packed[:0]).tolist() == []
