"""Templates: they read the usual records, and give the rows that running the opcodes gives."""

from __future__ import annotations

import collections
import dataclasses
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omstore.legacy import reader
from omstore.legacy.machine import registers
from omstore.legacy.reader import read_pickle
from omstore.legacy.state import State
from omstore.legacy.templates import Templates
from tests.legacy.walk import Collect, check_all

MODULE = "legacy_templates_export"
FIELDS = ("src", "joint_action", "dst", "prob", "reward", "done")


@pytest.fixture(scope="module")
def makers() -> Iterator[dict[str, Callable[..., Any]]]:
    """How to make a record of each kind."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    named = collections.namedtuple("Named", FIELDS)  # type: ignore[misc]
    made: dict[str, Any] = {
        "dataclass": dataclasses.make_dataclass("Plain", FIELDS, namespace={"__module__": MODULE}),
        "slots": dataclasses.make_dataclass("Slotted", FIELDS, slots=True),
        "namedtuple": named,
    }
    for cls in made.values():
        cls.__module__ = MODULE
        setattr(module, cls.__name__, cls)
    made["tuple"] = lambda *values: values
    made["dict"] = lambda *values: dict(zip(FIELDS, values, strict=True))
    yield made
    del sys.modules[MODULE]


def make_records(make: Callable[..., Any], count: int) -> list[Any]:
    """Records with numbers of all sizes, nested dicts and tuples, arrays and bytes."""
    rng = np.random.default_rng(count)
    return [
        make(
            rng.integers(0, 256, 12).astype(np.uint8),
            (int(rng.choice([0, 255, 256, 65_536, -1, 2**40])), i % 5),
            bytes(rng.integers(0, 256, 9).tolist()),
            float(rng.normal()),
            {"pursuer_0": float(i), "evader": -float(i)},
            i % 3 == 0,
        )
        for i in range(count)
    ]


def make_record(make: Callable[..., Any], i: int) -> Any:
    """A record without bytes or arrays."""
    return make([i % 7, 300, i], (i * 70_000, -i), i % 300, i / 3, {"pursuer_0": float(i)}, i % 2 == 0)


def read(path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Collect, int]:
    """Tree, rows, and how many of them templates have read."""
    states: list[State] = []

    def remember(*arguments: Any) -> State:
        states.append(State(*arguments))
        return states[-1]

    monkeypatch.setattr(reader, "State", remember)
    path.write_bytes(data)
    sink = Collect()
    tree = read_pickle(path, sink)
    return tree, sink, int(states[0].registers[registers.R_MATCHED])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("record", ["dataclass", "slots", "namedtuple", "tuple", "dict"])
def test_usual_records_are_read_by_templates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, makers: dict[str, Any], record: str, protocol: int
) -> None:
    records = make_records(makers[record], 4000)
    if protocol == 2:  # bytes are stored as text there, whose length varies: such records are run
        records = [make_record(makers[record], i) for i in range(4000)]
    data = pickle.dumps({"edges": records}, protocol)
    tree, sink, matched = read(tmp_path / "export.pkl", data, monkeypatch)
    check_all(pickle.loads(data), tree, sink)
    assert matched > 1900
    monkeypatch.setattr(Templates, "learn", lambda *arguments: None)
    tree2, sink2, matched = read(tmp_path / "export.pkl", data, monkeypatch)
    assert matched == 0
    assert tree == tree2
    for table in tree.tables:
        for column in table.columns:
            one, two = sink.column(table, column.path), sink2.column(table, column.path)
            assert one.dtype == two.dtype
            assert one.tobytes() == two.tobytes()


def test_lists_of_an_adjacency_are_read_by_templates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, makers: dict[str, Any]
) -> None:
    records = iter(make_records(makers["dataclass"], 4 * 2600))
    graph = {node: [next(records) for _ in range(4)] for node in range(2600)}
    data = pickle.dumps(graph, 4)
    tree, sink, matched = read(tmp_path / "export.pkl", data, monkeypatch)
    check_all(graph, tree, sink)
    assert matched > 1000


def test_a_record_that_almost_matches_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, makers: dict[str, Any]
) -> None:
    """An int among floats, numbers of other widths, keys in another order: each is read as it is."""
    records = [{"src": i, "r": 0.5, "v": (1, 2)} for i in range(4000)]
    records[2100] = {"r": 0.25, "v": (3, 4), "src": 2**60}
    records[2200]["v"] = (-1, 2**33)
    records[2300]["r"] = 7
    records[2400]["v"] = [5, 6]
    data = pickle.dumps(records, 4)
    tree, sink, matched = read(tmp_path / "export.pkl", data, monkeypatch)
    check_all(records, tree, sink)
    assert 1900 < matched < 1998


def test_shared_parts_are_fetched_by_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A memo fetch whose value goes into a column: actions and observations that many records share."""
    rng = np.random.default_rng(1)
    actions = [(i, 4 - i) for i in range(5)]
    states = [rng.integers(0, 2, 16).astype(np.uint8) for _ in range(300)]
    records = [
        {"state": states[i * 7 % 300], "action": actions[i % 5], "reward": float(i)} for i in range(4000)
    ]
    data = pickle.dumps({"states": states, "replay": records}, 4)
    tree, sink, matched = read(tmp_path / "export.pkl", data, monkeypatch)
    check_all(pickle.loads(data), tree, sink)
    assert matched > 1900
