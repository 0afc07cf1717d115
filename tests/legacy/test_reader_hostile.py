"""Damaged and hostile pickles: a named error, no crash, no execution, no runaway memory."""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import pickle
import pickletools
import struct
import threading
import weakref
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omstore.errors import (
    BadDataError,
    LegacyError,
    MemoryBudgetError,
    OmstoreError,
    TruncatedPickleError,
    UnsafePickleError,
    UnsupportedPickleError,
)
from omstore.legacy import reader
from omstore.legacy.reader import DiscardRows, read_pickle
from omstore.legacy.state import State
from omstore.memory import PeakMemory


def read(path: Path, data: bytes, **options: Any) -> Any:
    path.write_bytes(data)
    return read_pickle(path, DiscardRows(), **options)


class Call:
    """Unpickling calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("function", [os.system, os.remove, eval, exec, zlib.compress, __import__, getattr])
def test_calls_are_refused_and_named(tmp_path: Path, protocol: int, function: Any) -> None:
    witness = tmp_path / "executed"
    data = pickle.dumps({"edges": [{"src": 1}], "x": Call(function, f"touch {witness}")}, protocol)
    with pytest.raises(UnsafePickleError) as caught:
        read(tmp_path / "export.pkl", data)
    name = {"system": "posix.system", "remove": "posix.remove"}.get(function.__name__, function.__name__)
    if protocol == 2:
        name = name.rpartition(".")[2]
    assert name in caught.value.message
    (offset,) = [position for opcode, _, position in pickletools.genops(data) if opcode.name == "REDUCE"]
    assert f"byte {offset:,}" in caught.value.message
    assert not witness.exists()


def test_calls_in_the_middle_of_records_are_refused(tmp_path: Path) -> None:
    records: list[Any] = [{"src": i, "r": 0.5} for i in range(3000)]
    records[2500] = {"src": 1, "r": Call(os.system, "true")}
    with pytest.raises(UnsafePickleError, match=r"posix\.system"):
        read(tmp_path / "export.pkl", pickle.dumps(records, 4))


def test_classes_of_the_standard_library_are_refused(tmp_path: Path) -> None:
    data = b"\x80\x02csubprocess\nPopen\n)\x81}b."
    with pytest.raises(UnsafePickleError, match=r"subprocess\.Popen"):
        read(tmp_path / "export.pkl", data)


def test_constructors_of_own_classes_are_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(UnsafePickleError, match=r"my\.world\.Action.*\n.*plain fields"):
        read(tmp_path / "export.pkl", b"\x80\x02cmy.world\nAction\nK\x01\x85R.")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", TruncatedPickleError),
        (b"hello world", TruncatedPickleError),
        (b"PK\x03\x04 a zip file", TruncatedPickleError),
        (b"\x80\x04", TruncatedPickleError),
        (b"\x80\x04]", TruncatedPickleError),
        (pickle.dumps([1, 2, 3], 0), OmstoreError),
        (b"\x80\x02(lp0\n.", UnsupportedPickleError),
        (b"\x80\x02U\x03abc.", UnsupportedPickleError),
        (b"\x80\x02K\x01Q.", UnsupportedPickleError),
        (b"\x80\x05\x97.", UnsupportedPickleError),
        (b"\x80\x02\x82\x01.", UnsupportedPickleError),
        (b"\x80\x04\xff.", TruncatedPickleError),
        (b"\x80\x04.", TruncatedPickleError),
        (b"\x80\x04K\x01K\x02.", TruncatedPickleError),
        (b"\x80\x04R.", TruncatedPickleError),
        (b"\x80\x04u.", TruncatedPickleError),
        (b"\x80\x04(u.", TruncatedPickleError),
        (b"\x80\x04}(K\x01u.", TruncatedPickleError),
        (b"\x80\x04K\x01K\x02a.", TruncatedPickleError),
        (b"\x80\x04h\x07.", TruncatedPickleError),
        (b"\x80\x04\x94.", TruncatedPickleError),
        (b"\x80\x04K\x01b.", TruncatedPickleError),
        (b"\x80\x04K\x01\x85\x81.", TruncatedPickleError),
        (b"\x80\x04\x8cd.", TruncatedPickleError),
        (b"\x80\x02q\x00K\x01\x94.", UnsupportedPickleError),
        (b"\x80\x04}\x8c\x02\xff\xfeK\x01s.", TruncatedPickleError),  # text that isn't UTF-8
        (
            b"\x80\x02c_codecs\nencode\nX\x03\x00\x00\x00\xe4\xba\xba\x85R.",
            TruncatedPickleError,
        ),  # bytes above 255
        # Claimed lengths that mustn't allocate: 2 GiB of text, 2^62 and 2^64-1 bytes, memo number 2^32-1.
        (b"\x80\x04X\xff\xff\xff\x7f.", TruncatedPickleError),
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b".", TruncatedPickleError),
        (b"\x80\x04\x8d" + struct.pack("<Q", 2**64 - 1) + b".", TruncatedPickleError),
        (b"\x80\x02K\x01r\xff\xff\xff\xffj\xfe\xff\xff\xff.", TruncatedPickleError),
    ],
)
def test_damaged_pickles_are_named_errors(tmp_path: Path, data: bytes, kind: type[OmstoreError]) -> None:
    with pytest.raises(kind) as caught:
        read(tmp_path / "export.pkl", data)
    assert "export.pkl" in caught.value.message
    assert caught.value.hint


def test_large_memo_number_that_is_used(tmp_path: Path) -> None:
    tree = read(tmp_path / "export.pkl", b"\x80\x02K\x07r\xff\xff\xff\xff0j\xff\xff\xff\xff.")
    assert tree.root == 7


def test_bytes_behind_the_end_are_noted(tmp_path: Path) -> None:
    tree = read(tmp_path / "export.pkl", pickle.dumps({"a": 1}, 4) + b"more")
    assert tree.root == {"a": 1}
    assert "4 bytes follow" in tree.notes[0]


def test_shared_lists_that_would_explode(tmp_path: Path) -> None:
    value: Any = [1, 2]
    for _ in range(60):
        value = [value, value]
    read(tmp_path / "export.pkl", pickle.dumps({"states": value}, 4))


def test_a_list_in_itself(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    read(tmp_path / "export.pkl", pickle.dumps(value, 4))


def test_deep_nesting(tmp_path: Path) -> None:
    depth = 100_000
    data = b"\x80\x04" + b"(" * depth + b"K\x01" + b"t" * depth + b"."
    with pytest.raises(UnsupportedPickleError, match="nested deeper"):
        read(tmp_path / "export.pkl", data)
    read(tmp_path / "export.pkl", b"\x80\x04" + b"]" * depth + b"a" * (depth - 1) + b".")


def test_unstreamable_object_meets_the_budget(tmp_path: Path) -> None:
    items = [item for i in range(200_000) for item in ([i], "text")]
    with pytest.raises(MemoryBudgetError, match="--max-ram"):
        read(tmp_path / "export.pkl", pickle.dumps({"odd": items}, 4), budget=24 << 20)


def test_too_many_shared_objects_meet_the_budget(tmp_path: Path) -> None:
    keys = [(i, i) for i in range(200_000)]
    data = pickle.dumps([keys, keys[::-1]], 4)
    with pytest.raises(MemoryBudgetError, match="distinct objects"):
        read(tmp_path / "export.pkl", data, budget=4 << 20)
    read(tmp_path / "export.pkl", data, budget=256 << 20)


@pytest.mark.parametrize("records", [[{"src": i, "r": 0.5} for i in range(3000)], [{"src": 1}, os.system]])
def test_memory_is_given_back_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: Any) -> None:
    """Without waiting for the cyclic collector, after errors too."""
    states = []

    def remember(*arguments: Any) -> Any:
        state = State(*arguments)
        states.append(weakref.ref(state))
        return state

    monkeypatch.setattr(reader, "State", remember)
    gc.collect()
    gc.disable()
    try:
        data = pickle.dumps({"edges": records, "x": Call(os.remove, "x") if len(records) == 2 else 1}, 4)
        with contextlib.suppress(UnsafePickleError):
            read(tmp_path / "export.pkl", data)
        assert states[0]() is None
    finally:
        gc.enable()


def test_cancel(tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(KeyboardInterrupt):
        read(tmp_path / "export.pkl", pickle.dumps(list(range(10)), 4), cancel=cancel)


@pytest.mark.parametrize(
    ("late", "text"),
    [
        ({"src": "x", "a": (1, 2)}, "src is 'x', expected an integer"),
        ({"src": None, "a": (1, 2)}, "src is None"),
        ({"src": 2**70, "a": (1, 2)}, "integer beyond 64 bits"),
        ({"src": 1, "a": (1, 2, 3)}, "a is a tuple of 3 numbers, expected 2 integers"),
        ({"src": 1}, "the record itself is a dict with src"),
        ({"src": 1, "b": (1, 2)}, "expected a dict with the same 2 keys"),
        ((1, (1, 2)), "the record itself is a tuple"),
    ],
)
@pytest.mark.parametrize("at", [1500, 2999])
def test_records_that_change_their_shape(tmp_path: Path, late: Any, text: str, at: int) -> None:
    records: list[Any] = [{"src": i, "a": (1, 2)} for i in range(3000)]
    records[at] = late
    with pytest.raises(BadDataError) as caught:
        read(tmp_path / "export.pkl", pickle.dumps({"edges": records}, 4))
    assert text in caught.value.message
    assert f"record {at:,} of edges" in caught.value.message


def test_object_arrays_and_structures_make_no_column(tmp_path: Path) -> None:
    records = [{"src": i, "o": np.array([None, i]), "s": np.zeros(1, "i4,f4"), "t": "a"} for i in range(20)]
    with pytest.raises(UnsupportedPickleError, match="dtype"):
        read(tmp_path / "export.pkl", pickle.dumps(records, 4))


_SEEDS = [
    pickle.dumps(
        {
            "states": [np.arange(4, dtype=np.uint8)] * 3,
            "edges": [{"s": i, "a": (i, 1), "p": 0.5} for i in range(5)],
        },
        4,
    ),
    pickle.dumps([(i, (1, 2), i + 1, 0.25) for i in range(1100)], 2),
    pickle.dumps({i: [(i, 0.5)] * (i % 3) for i in range(1100)}, 5),
    pickle.dumps(collections.deque([np.float32(0.5), np.int64(3)]), 4),
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, len(_SEEDS) - 1),
    edits=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 255), st.sampled_from(["set", "insert", "delete", "cut"])),
        min_size=1,
        max_size=6,
    ),
)
def test_any_damage_is_an_error_or_a_value(
    tmp_path: Path, seed: int, edits: list[tuple[float, int, str]]
) -> None:
    data = bytearray(_SEEDS[seed])
    for where, byte, how in edits:
        at = int(where * (len(data) - 1)) if data else 0
        if how == "set" and data:
            data[at] = byte
        elif how == "insert":
            data.insert(at, byte)
        elif how == "delete" and data:
            del data[at]
        elif how == "cut":
            del data[max(at, 2) :]
    try:
        read(tmp_path / "export.pkl", bytes(data), budget=64 << 20)
    except (LegacyError, MemoryBudgetError) as error:
        assert error.hint  # noqa: PT017 - most of the damaged ones are read


def test_thousands_of_small_lists_stay_small(tmp_path: Path) -> None:
    value = {f"list_{i}": [i, i + 1] for i in range(900)} | {"edges": [{"src": i} for i in range(2000)]}
    with PeakMemory() as peak:
        before = peak.anonymous
        tree = read(tmp_path / "export.pkl", pickle.dumps(value, 4))
    assert peak.anonymous - before < 128 << 20
    assert tree.root["list_899"] == [899, 900]
    assert [table.num_rows for table in tree.tables if table.path == ("edges",)] == [2000]
