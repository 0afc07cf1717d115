"""Random record schemas, pickled in every way, read back as the real unpickler reads them.

Hypothesis draws the schema, the container and the numbers of records; the values come from a seeded
generator, so that thousands of records cost nothing to draw and to shrink.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import keyword
import pickle
import sys
import types
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from omstore.errors import LegacyError
from omstore.legacy.reader import read_pickle
from omstore.legacy.schema import PickleTree
from tests.legacy.walk import Collect, check_all

MODULE = "legacy_random_export"

SPECIAL_FLOATS = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    5e-324,
    -5e-324,
    2.2250738585072014e-308,
    1.7976931348623157e308,
    0.1,
    -1.0,
]
SPECIAL_INTS = [
    0,
    1,
    -1,
    255,
    256,
    -256,
    65_535,
    65_536,
    2**31 - 1,
    2**31,
    -(2**31),
    -(2**31) - 1,
    2**63 - 1,
    -(2**63),
]
ARRAY_DTYPES = [
    "?",
    "u1",
    "i1",
    "<u2",
    ">u2",
    "<i4",
    ">i4",
    "<i8",
    ">i8",
    "<u8",
    "<f2",
    ">f2",
    "<f4",
    ">f4",
    "<f8",
    ">f8",
]
SCALAR_DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
RECORDS = ["dataclass", "slots", "frozen", "frozen-slots", "namedtuple", "plain", "tuple", "dict"]


@dataclass(frozen=True)
class Leaf:
    """A field of numbers, or of what makes no column."""

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    low: int = 0
    pool: int = 0  # values come from so many shared objects; 0: each record has its own

    def make(self, rng: np.random.Generator) -> Any:
        return getattr(self, "_" + self.kind)(rng)

    def _none(self, rng: np.random.Generator) -> Any:
        return None

    def _text(self, rng: np.random.Generator) -> Any:
        return "größe" * int(rng.integers(0, 60))

    def _int(self, rng: np.random.Generator) -> int:
        ranges = [(0, 256), (0, 65_536), (-(2**31), 2**31), (-(2**63), 2**63 - 1)]
        if rng.random() < 0.1:
            return SPECIAL_INTS[rng.integers(len(SPECIAL_INTS))] if self.low == 3 else 7
        return int(rng.integers(*ranges[self.low]))

    def _float(self, rng: np.random.Generator) -> float:
        return float(
            SPECIAL_FLOATS[rng.integers(len(SPECIAL_FLOATS))] if rng.random() < 0.3 else rng.normal()
        )

    def _bool(self, rng: np.random.Generator) -> bool:
        return bool(rng.integers(2))

    def _mixed(self, rng: np.random.Generator) -> Any:
        # An integer that isn't exact as a float is refused beside floats.
        makers: list[Callable[[], Any]] = [
            lambda: int(rng.integers(-(2**53), 2**53)),
            lambda: self._float(rng),
        ]
        makers += [lambda: np.float32(rng.normal())]
        makers += [lambda: np.int16(rng.integers(-99, 99))]
        return makers[rng.integers(len(makers))]()

    def _scalar(self, rng: np.random.Generator) -> Any:
        value = self._array(rng, ())[()]
        return value >> np.uint64(1) if self.dtype == "u8" else value  # columns of integers are int64

    def _array(self, rng: np.random.Generator, shape: tuple[int, ...] | None = None) -> Any:
        dtype = np.dtype(self.dtype)
        shape = self.shape if shape is None else shape
        if dtype.kind == "f":
            values = np.where(
                rng.random(shape) < 0.2, rng.choice(SPECIAL_FLOATS, shape), rng.normal(size=shape)
            )
            with np.errstate(over="ignore"):
                return np.asarray(values, dtype)
        return (
            np.frombuffer(rng.bytes(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()
            if dtype.kind != "b"
            else (np.asarray(rng.random(shape) < 0.5))
        )

    def _ints(self, rng: np.random.Generator) -> list[int]:
        return [self._int(rng) for _ in range(self.shape[0])]

    def _tuple_of_ints(self, rng: np.random.Generator) -> tuple[int, ...]:
        return tuple(self._ints(rng))

    def _floats(self, rng: np.random.Generator) -> list[float]:
        return [self._float(rng) for _ in range(self.shape[0])]

    def _tuple_of_floats(self, rng: np.random.Generator) -> tuple[float, ...]:
        return tuple(self._floats(rng))

    def _bytes(self, rng: np.random.Generator) -> bytes:
        return rng.bytes(self.shape[0])

    def _zero_bytes(self, rng: np.random.Generator) -> bytes:
        return bytes(self.shape[0])


@dataclass(frozen=True)
class Nested:
    """A field that is a dict, tuple or list of fields."""

    kind: str
    names: tuple[Any, ...]
    fields: tuple[Any, ...]
    pool: int = 0

    def make(self, rng: np.random.Generator) -> Any:
        values = [item.make(rng) for item in self.fields]
        if self.kind == "dict":
            return dict(zip(self.names, values, strict=True))
        return tuple(values) if self.kind == "tuple" else values


@dataclass(frozen=True)
class Schema:
    """Everything that decides an export's bytes."""

    record: str
    names: tuple[str, ...]
    fields: tuple[Leaf | Nested, ...]
    container: str
    count: int
    around: str
    protocol: int
    pickler: str
    seed: int


sizes = st.integers(1, 5)
pools = st.sampled_from([0, 0, 0, 1, 3, 200])


@st.composite
def leaves(draw: st.DrawFn) -> Leaf:
    kind = draw(
        st.sampled_from(
            [
                *(
                    "int",
                    "int",
                    "float",
                    "float",
                    "bool",
                    "mixed",
                    "scalar",
                    "array",
                    "array",
                    "ints",
                    "tuple_of_ints",
                ),
                *("floats", "tuple_of_floats", "bytes", "zero_bytes", "none", "text"),
            ]
        )
    )
    dtype, shape = "", ()
    if kind == "scalar":
        dtype = draw(st.sampled_from(SCALAR_DTYPES))
    elif kind == "array":
        dtype = draw(st.sampled_from(ARRAY_DTYPES))
        shape = tuple(draw(st.lists(st.integers(1, 4), max_size=3)))
    elif kind in ("ints", "tuple_of_ints", "floats", "tuple_of_floats"):
        shape = (draw(st.sampled_from([1, 2, 3, 4, 5, 17])),)
    elif "bytes" in kind:
        shape = (draw(st.sampled_from([1, 2, 7, 255, 256, 300])),)
    return Leaf(kind, dtype, shape, draw(st.integers(0, 3)), draw(pools))


def of_32_bits(field: Any) -> Any:
    """The same field with smaller integers."""
    if not isinstance(field, Leaf):
        return field
    wide = field.kind == "scalar" and field.dtype in ("u8", "i8")
    return dataclasses.replace(field, low=min(field.low, 2), dtype="i4" if wide else field.dtype)


@st.composite
def nested(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Nested:
    kind = draw(st.sampled_from(["dict", "tuple", "list"]))
    fields = tuple(draw(st.lists(inner, min_size=1, max_size=4)))
    if kind != "dict":
        # Integers and floats make one vector of floats; an integer that isn't exact as a float is refused.
        fields = tuple(map(of_32_bits, fields))
    keys = draw(st.sampled_from(["text", "agents", "numbers"]))
    if keys == "text":
        texts = st.text(max_size=12).filter(
            lambda text: not any(unicodedata.category(c) == "Cs" for c in text)
        )
        names: tuple[Any, ...] = tuple(
            draw(st.lists(texts, min_size=len(fields), max_size=len(fields), unique=True))
        )
    else:
        names = tuple(f"pursuer_{i}" if keys == "agents" else i for i in range(len(fields)))
    return Nested(kind, names, fields, draw(pools))


fields = st.recursive(leaves(), nested, max_leaves=5)

identifiers = st.one_of(
    st.sampled_from(["src", "dst", "action", "p", "r", "done", "größe", "状态", "_private", "x1"]),
    st.text("abcxyzäβ", min_size=1, max_size=300),
).filter(
    lambda name: (
        name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name
    )
)


@st.composite
def schemas(draw: st.DrawFn, counts: tuple[int, ...] = (1, 2, 3, 60, 999, 1000, 1001, 2001)) -> Schema:
    record = draw(st.sampled_from(RECORDS))
    chosen = tuple(draw(st.lists(fields, min_size=1, max_size=5)))
    names = draw(st.lists(identifiers, min_size=len(chosen), max_size=len(chosen), unique=True))
    if record == "namedtuple":
        names = [name.lstrip("_") or "u" for name in names]
        names = [f"{name}_{i}" for i, name in enumerate(names)]
    containers = ["list", "list", "tuple", "deque", "dict", "dict of tuples", "adjacency", "adjacency2"]
    container = draw(st.sampled_from(containers))
    count = draw(st.sampled_from(counts))
    return Schema(
        record,
        tuple(names),
        chosen,
        container,
        max(2, count) if container == "tuple" else count,  # a tuple of one value isn't taken for records
        draw(st.sampled_from(["nothing", "dict", "object", "two lists"])),
        draw(st.integers(2, 5)),
        draw(st.sampled_from(["C", "C", "C", "Python", "fast"])),
        draw(st.integers(0, 2**32)),
    )


def numeric(field: Leaf | Nested) -> bool:
    """Whether a field has a number somewhere, so that its records make a table."""
    if isinstance(field, Nested):
        return any(numeric(inner) for inner in field.fields)
    return field.kind not in ("none", "text")


def record_maker(schema: Schema) -> Callable[..., Any]:
    if schema.record == "tuple":
        return lambda *values: values
    if schema.record == "dict":
        return lambda *values: dict(zip(schema.names, values, strict=True))
    module = sys.modules[MODULE]
    made: Any
    if schema.record == "namedtuple":
        made = collections.namedtuple("Record", schema.names)
    elif schema.record == "plain":

        def init(self: Any, *values: Any) -> None:
            self.__dict__.update(zip(schema.names, values, strict=True))

        made = type("Record", (), {"__init__": init})
    else:
        slots, frozen = "slots" in schema.record, "frozen" in schema.record
        made = dataclasses.make_dataclass(
            "Record", [(name, Any) for name in schema.names], slots=slots, frozen=frozen
        )
    made.__module__ = MODULE
    made.__qualname__ = "Record"
    module.Record = made  # type: ignore[attr-defined]
    return made


def build(schema: Schema) -> Any:
    """The object that is pickled."""
    rng = np.random.default_rng(schema.seed)
    make = record_maker(schema)
    shared = [[field.make(rng) for _ in range(field.pool)] for field in schema.fields]

    def one() -> Any:
        return make(
            *(
                pool[rng.integers(len(pool))] if pool else field.make(rng)
                for field, pool in zip(schema.fields, shared, strict=True)
            )
        )

    records = [one() for _ in range(schema.count)]
    root: Any = records
    if schema.container == "tuple":
        root = tuple(records)
    elif schema.container == "deque":
        root = collections.deque(records)
    elif schema.container == "dict":
        root = {
            int(key): record for key, record in zip(rng.permutation(schema.count) * 3, records, strict=True)
        }
    elif schema.container == "dict of tuples":
        root = {(i % 7, i): record for i, record in enumerate(records)}
    elif schema.container.startswith("adjacency"):
        groups: dict[Any, Any] = {}
        for i, record in enumerate(records):
            node, action = i * 40 // schema.count, (i % 3, 0)
            where = groups if schema.container == "adjacency" else groups.setdefault(node, {})
            where.setdefault(node if schema.container == "adjacency" else action, []).append(record)
        root = groups
    if schema.around == "dict":
        return {"n": 3, "edges": root, "name": "x"}
    if schema.around == "object":
        return sys.modules[MODULE].Around(root)  # type: ignore[attr-defined]
    if schema.around == "two lists":
        return {"first": root, "second": [one() for _ in range(5)], "again": root}
    return root


def dumps(schema: Schema, root: Any) -> bytes:
    if schema.pickler == "C":
        return pickle.dumps(root, schema.protocol)
    stream = io.BytesIO()
    pickler = pickle._Pickler(stream, schema.protocol)  # type: ignore[attr-defined]
    pickler.fast = schema.pickler == "fast"
    pickler.dump(root)
    return stream.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder, and a module for the records' classes."""
    module = types.ModuleType(MODULE)
    module.Around = dataclasses.make_dataclass("Around", ["edges"])  # type: ignore[attr-defined]
    module.Around.__module__ = MODULE
    sys.modules[MODULE] = module
    yield tmp_path_factory.mktemp("random")
    del sys.modules[MODULE]


def read_as_unpickled(folder: Path, schema: Schema) -> tuple[PickleTree, Collect]:
    """Read a random export, and check everything read against the unpickler."""
    data = dumps(schema, build(schema))
    path = folder / "export.pkl"
    path.write_bytes(data)
    sink = Collect()
    tree = read_pickle(path, sink)
    check_all(pickle.loads(data), tree, sink)
    return tree, sink


def check_nothing_is_missing(schema: Schema, tree: PickleTree) -> None:
    """Assert that the records make one table, and that only what is no number is left out."""
    if not any(map(numeric, schema.fields)) or schema.around == "two lists":
        return
    tables = [table for table in tree.tables if table.links_to is None]
    assert sum(table.num_rows for table in tables) == schema.count
    for table in tables:
        for ignored in table.ignored:
            assert ignored.reason in (
                "None in every record",
                "text",
                "an array in Fortran order",
                "type varies",
            ), ignored


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas())
def test_random_records_are_read_as_the_unpickler_reads_them(folder: Path, schema: Schema) -> None:
    tree, _ = read_as_unpickled(folder, schema)
    check_nothing_is_missing(schema, tree)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=schemas((1, 3, 999, 1000, 1001, 1500, 2001, 4100, 9000)))
def test_many_random_records_are_read_as_the_unpickler_reads_them(folder: Path, schema: Schema) -> None:
    # Other lists of its records beside an adjacency that doesn't fit the heap become rows of it: conversion refuses it.
    assume(schema.around != "two lists" or not schema.container.startswith("adjacency"))
    tree, _ = read_as_unpickled(folder, schema)
    check_nothing_is_missing(schema, tree)


# Found by fuzzing


def refused(folder: Path, data: bytes) -> LegacyError:
    path = folder / "export.pkl"
    path.write_bytes(data)
    with pytest.raises(LegacyError) as caught:
        read_pickle(path, Collect())
    assert "export.pkl" in caught.value.message
    assert caught.value.hint
    return caught.value


def test_text_that_is_not_text(folder: Path) -> None:
    """Keys are decoded late, so damage to them shows late."""
    data = pickle.dumps({"nodes": [1, 2], "edges": [{"src": 1, "dst": 2}]}, 4)
    error = refused(folder, data.replace(b"edges", b"ed\x98es"))
    assert f"byte {data.index(b'edges') - 2:,}" in error.message
    encoded = pickle.dumps({"x": b"\xff\xfe"}, 2)
    assert "\xff".encode() in encoded
    refused(folder, encoded.replace("\xff".encode(), "\u0400".encode()))


def test_records_of_nothing_but_text_are_no_rows(folder: Path) -> None:
    for values in (("a", "b"), (None, None)):
        path = folder / "export.pkl"
        path.write_bytes(pickle.dumps({node: [values] * 30 for node in range(60)}, 4))
        sink = Collect()
        tree = read_pickle(path, sink)
        assert all(not table.columns or table.links_to is not None for table in tree.tables)
        assert {table.id for table in tree.tables if table.columns} == set(sink.chunks)


def test_thousands_of_adjacencies_make_no_thousands_of_buffers(folder: Path) -> None:
    """A damaged export can look so; it took minutes."""
    small = [{i: [(i, 0.5), (i, 0.25)]} for i in range(2000)]
    path = folder / "export.pkl"
    path.write_bytes(pickle.dumps([{"a": one} for one in small], 4))
    assert len(read_pickle(path, Collect()).tables) < 200
