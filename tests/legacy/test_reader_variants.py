"""Every record and container shape of legacy exports, against what the real unpickler gives on the same
bytes."""

from __future__ import annotations

import collections
import dataclasses
import gzip
import itertools
import lzma
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from omstore.legacy.reader import read_pickle
from tests.legacy.walk import Collect, check_all

MODULE = "legacy_variants_export"
FIELDS = ("src", "joint_action", "dst", "prob", "reward", "done")


@pytest.fixture(scope="module")
def classes() -> Iterator[dict[str, Any]]:
    """Record classes in a module that goes away after the tests, as the exporters' classes do."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    namespace = {"__module__": MODULE}
    fields = [(name, Any) for name in FIELDS]
    made: dict[str, Any] = {
        "dataclass": dataclasses.make_dataclass("Plain", fields, namespace=namespace),
        "slots": dataclasses.make_dataclass("Slotted", fields, namespace=namespace, slots=True),
        "frozen": dataclasses.make_dataclass("Frozen", fields, namespace=namespace, frozen=True),
        "frozen-slots": dataclasses.make_dataclass(
            "FrozenSlotted", fields, namespace=namespace, frozen=True, slots=True
        ),
        "namedtuple": NamedTuple("Named", fields),  # type: ignore[misc]
        "graph": dataclasses.make_dataclass("Graph", [("states", Any), ("edges", Any)], namespace=namespace),
    }
    made["namedtuple"].__module__ = MODULE
    base = dataclasses.make_dataclass("Base", fields[:3], namespace=namespace)
    made["inherited"] = dataclasses.make_dataclass(
        "Inherited", fields[3:], bases=(base,), namespace=namespace
    )
    slotted_base = dataclasses.make_dataclass("SlottedBase", fields[:3], namespace=namespace, slots=True)
    # A slotted base under a class with a __dict__: the state is (dict, slots).
    made["slots-and-dict"] = dataclasses.make_dataclass(
        "Mixed", fields[3:], bases=(slotted_base,), namespace=namespace
    )

    def init(self: Any, *values: Any) -> None:
        self.__dict__.update(zip(FIELDS, values, strict=True))

    made["plain"] = type("Ordinary", (), {"__module__": MODULE, "__init__": init})
    made["tuple"] = lambda *values: values
    made["dict"] = lambda *values: dict(zip(FIELDS, values, strict=True))
    for made_class in [*made.values(), base, slotted_base]:
        if isinstance(made_class, type):
            setattr(module, made_class.__name__, made_class)
            made_class.__qualname__ = made_class.__name__
            made_class.__module__ = MODULE  # from Python 3.12 on, the namespace's is overridden
    yield made
    del sys.modules[MODULE]


RECORDS = [
    *(
        "dataclass",
        "slots",
        "frozen",
        "frozen-slots",
        "namedtuple",
        "inherited",
        "slots-and-dict",
        "plain",
        "tuple",
        "dict",
    ),
]


def make_records(make: Callable[..., Any], count: int, seed: int, share: bool = False) -> list[Any]:
    """Edges with dict rewards and tuple actions; `share` interns the actions and rewards."""
    rng = np.random.default_rng(seed)
    actions = list(itertools.product(range(3), range(2)))
    rewards = [{"a": float(x), "b": -float(x)} for x in rng.random(7)]
    sources = rng.choice([3, 300, 70_000, 2**40], count).tolist()
    targets = rng.integers(0, 2**20, count).tolist()
    probabilities = rng.random(count).tolist()
    found = []
    for i in range(count):
        # Not the very objects, unless they are to be shared.
        action = actions[i % 6] if share else (i % 3, i % 2)
        reward = rewards[i % 7] if share else dict(rewards[i % 7])
        found.append(make(sources[i], action, targets[i], probabilities[i], reward, i % 3 == 0))
    return found


def read(
    tmp_path: Path, value: Any, protocol: int = 4, data: bytes | None = None
) -> tuple[Any, Collect, bytes]:
    path = tmp_path / "export.pkl"
    data = pickle.dumps(value, protocol) if data is None else data
    path.write_bytes(data)
    sink = Collect()
    return read_pickle(path, sink, scratch=tmp_path), sink, data


def check(tmp_path: Path, value: Any, protocol: int = 4) -> Any:
    tree, sink, data = read(tmp_path, value, protocol)
    check_all(pickle.loads(data), tree, sink)
    return tree


@pytest.mark.parametrize("count", [1, 999, 1000, 1001, 2001])
@pytest.mark.parametrize("record", RECORDS)
def test_records_in_an_object(tmp_path: Path, classes: dict[str, Any], record: str, count: int) -> None:
    rng = np.random.default_rng(count)
    states = [(rng.random(11) < 0.3).astype(np.uint8) for _ in range(count)]
    for protocol in (2, 3, 4, 5) if count == 1001 else (4,):
        graph = classes["graph"](states, make_records(classes[record], count, 1))
        tree = check(tmp_path, graph, protocol)
        tables = [table for table in tree.tables if table.path == ("edges",)]
        assert [table.num_rows for table in tables] == [count]
        # source, two actions in one vector, next node, probability, two rewards, done
        assert len(tables[0].columns) == 7


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("record", RECORDS)
def test_bare_lists_and_sharing(tmp_path: Path, classes: dict[str, Any], record: str, share: bool) -> None:
    records = make_records(classes[record], 1101, 2, share)
    tree = check(tmp_path, records)
    assert tree.tables[0].num_rows == 1101


@pytest.mark.parametrize(
    ("container", "counts"),
    [
        (tuple, (5, 1001, 4095, 9000)),  # a tuple's items are all stacked, and become rows from 4,096 on
        (collections.deque, (5, 1001)),
        (lambda records: collections.deque(records, maxlen=9000), (5, 1001)),
    ],
)
@pytest.mark.parametrize("record", ["dataclass", "tuple", "namedtuple", "dict"])
def test_tuples_and_deques(
    tmp_path: Path, classes: dict[str, Any], record: str, counts: tuple[int, ...], container: Any
) -> None:
    for count in counts:
        tree = check(tmp_path, {"transitions": container(make_records(classes[record], count, 3))})
        assert tree.tables[0].num_rows == count


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("container", [list, tuple, collections.deque])
def test_a_few_records_make_a_table(
    tmp_path: Path, classes: dict[str, Any], record: str, container: Any
) -> None:
    tree = check(tmp_path, container(make_records(classes[record], 30, 3)))
    assert [table.num_rows for table in tree.tables] == [30]


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize(("nodes", "fan"), [(5, 3), (1020, 4), (3, 1101)])
def test_adjacency(
    tmp_path: Path, classes: dict[str, Any], record: str, levels: int, nodes: int, fan: int
) -> None:
    edges = iter(make_records(classes[record], nodes * fan, 4))
    graph: dict[Any, Any] = {}
    for node in range(nodes):
        if levels == 1:
            graph[node] = [next(edges) for _ in range(fan if node % 4 else 1)]
        else:
            split = fan // 3
            graph[node] = {
                (a, 1): [next(edges) for _ in range(n)]
                for a, n in enumerate((1, split, 0 if node % 2 else fan - split - 1))
            }
    tree = check(tmp_path, graph)
    (links,) = [table for table in tree.tables if table.links_to is not None]
    assert links.num_rows == (nodes if levels == 1 else 3 * nodes)


def test_adjacency_too_large_for_one_batch(tmp_path: Path, classes: dict[str, Any]) -> None:
    """The heap fills up before the first thousand keys are set: the dict is recognised while its values are
    being built."""
    edges = iter(make_records(classes["dataclass"], 30_000, 5))
    graph = {node: {(a,): [next(edges) for _ in range(40)] for a in range(30)} for node in range(25)}
    check(tmp_path, {"adjacency": graph, "n": 3})


@pytest.mark.parametrize("count", [3, 1001])
def test_node_containers(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    vectors = np.unique((rng.random((count * 2, 20)) < 0.5).astype(np.uint8), axis=0)[:count]
    keys = [tuple(int(x) for x in vector) for vector in vectors]
    for nodes in (
        list(vectors),
        keys,
        [vector.tobytes() for vector in vectors],
        vectors,
        dict(zip(keys, range(count), strict=True)),
        dict(enumerate(vectors, 5)),
        {np.packbits(vector).tobytes() + bytes([i & 255, i >> 8]): i for i, vector in enumerate(vectors)},
        [list(map(float, vector)) for vector in vectors],
        {"vectors": [vector.astype(np.float32) for vector in vectors], "label": "x"},
    ):
        for protocol in (2, 4, 5):
            check(tmp_path, {"states": nodes, "edges": make_records(tuple_of_six, 5, 1)}, protocol)


def tuple_of_six(*values: Any) -> tuple[Any, ...]:
    return values


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_numpy_scalars_and_arrays(tmp_path: Path, protocol: int) -> None:
    rng = np.random.default_rng(1)
    records = []
    for i in range(1300):
        records.append(
            {
                "f8": np.float64(rng.random()),
                "f4": np.float32(rng.random()),
                "f2": np.float16(rng.random() * 1e-6 if i % 5 == 0 else rng.random() * 1000),
                "i8": np.int64(-(2**62) + i),
                "i2": np.int16(-i),
                "u1": np.uint8(i & 255),
                "u8": np.uint64(2**63 - 1 - i),
                "b": np.bool_(i % 2),
                "mixed": [i, np.int32(i), float(i) + 0.5][i % 3],
                "zero_d": np.array(rng.random(), np.float32),
                "big_endian": rng.integers(-9, 9, 4).astype(">i4"),
                "matrix": rng.random((2, 3)),
                "flags": rng.random(5) < 0.5,
                "int": int(
                    rng.choice([0, 255, 256, 65_535, 65_536, -1, -(2**31), 2**31, -(2**63), 2**63 - 1])
                ),
            }
        )
    tree = check(tmp_path, records, protocol)
    assert len(tree.tables[0].columns) == 14


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_columns_of_arrays(tmp_path: Path, protocol: int) -> None:
    rng = np.random.default_rng(2)
    columns = {
        "obs": (rng.random((3000, 20)) < 0.4).astype(np.uint8),
        "actions": rng.integers(0, 5, (3000, 2)),
        "rewards": rng.random(3000).tolist(),
        "done": np.asfortranarray(rng.random((3000, 2)) < 0.1),
    }
    tree, sink, data = read(tmp_path, columns, protocol)
    check_all(columns, tree, sink)
    for name in ("obs", "actions", "done"):
        reference = tree.root[name]
        raw = data[reference.offset :] if reference.offset >= 0 else reference.data
        order = "F" if reference.fortran_order else "C"
        count = int(np.prod(reference.shape))
        array = np.frombuffer(raw, reference.dtype, count).reshape(reference.shape, order=order)
        assert np.array_equal(array, columns[name])


def test_ring_with_empty_slots(tmp_path: Path, classes: dict[str, Any]) -> None:
    for count in (10, 1200):
        records = [*make_records(classes["dataclass"], count, 1), *[None] * 3000]
        check(tmp_path, {"buffer": records, "position": count, "capacity": count + 3000})


def test_int_then_float_is_widened(tmp_path: Path) -> None:
    records = [{"r": 0, "v": (0, 1), "flag": False} for _ in range(3000)]
    records += [{"r": 0.5, "v": (0.25, 1), "flag": 2} for _ in range(3000)]
    tree = check(tmp_path, records)
    assert [column.dtype for column in tree.tables[0].columns] == [np.float64, np.float64, np.int64]


def test_field_that_plays_no_part_may_vary(tmp_path: Path) -> None:
    records = [{"src": i, "note": i if i < 2000 else "text"} for i in range(3000)]
    tree, sink, _ = read(tmp_path, records)
    assert sink.column(tree.tables[0], ("src",)).tolist() == list(range(3000))
    assert [ignored.path for ignored in tree.tables[0].ignored] == [("note",)]


@pytest.mark.parametrize("compress", ["gzip", "xz", "zstd"])
def test_compressed(tmp_path: Path, classes: dict[str, Any], compress: str) -> None:
    records = make_records(classes["dataclass"], 1500, 7)
    data = pickle.dumps(records, 4)
    if compress == "zstd":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        packed = zstd.compress(data)
    else:
        packed = {"gzip": gzip.compress, "xz": lzma.compress}[compress](data)
    tree, sink, _ = read(tmp_path, None, data=packed)
    check_all(records, tree, sink)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export.pkl"]


def test_unframed_and_fast_pickles(tmp_path: Path, classes: dict[str, Any]) -> None:
    """Without memo (Pickler.fast) every class and key stands in full in every record; the pure Python pickler
    frames its own way."""
    import io

    records = make_records(classes["dataclass"], 2100, 8)
    for fast in (True, False):
        stream = io.BytesIO()
        pickler = pickle._Pickler(stream, 4)  # type: ignore[attr-defined]
        pickler.fast = fast
        pickler.dump(records)
        tree, sink, _ = read(tmp_path, None, data=stream.getvalue())
        check_all(records, tree, sink)


def test_shared_vectors(tmp_path: Path) -> None:
    """Endpoints that are the very arrays of the node list, and next observations that are the next record's
    observations."""
    rng = np.random.default_rng(3)
    states = [(rng.random(30) < 0.3).astype(np.uint8) for _ in range(1400)]
    edges = [{"src": states[i], "dst": states[(i * 7) % 1400], "a": i % 5} for i in range(1400)] * 2
    check(tmp_path, {"states": states, "edges": edges})
    observations = [{"x": vector, "y": vector} for vector in states]
    replay = [
        {"obs": observations[i], "next_obs": observations[i + 1], "action": {"x": i % 3, "y": 0}}
        for i in range(1399)
    ]
    check(tmp_path, replay)


def test_numbers_with_none_between_them_are_no_table(tmp_path: Path) -> None:
    tree = check(tmp_path, {"history": [None, 0.5, 1.5], "edges": [{"src": 1}, {"src": 2}]})
    assert tree.root["history"] == [None, 0.5, 1.5]
