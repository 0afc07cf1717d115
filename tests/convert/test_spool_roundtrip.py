"""What is spooled is read back bit for bit, and takes no more room than the encodings promise."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from omstore.convert import spool_table as spool_module
from omstore.convert.blocks import encode_words
from omstore.convert.spool import Spool
from omstore.legacy.schema import Column, TableSchema

SPECIAL = [0.0, -0.0, float("nan"), float("inf"), -1.5, 1e300, 5e-324]


def schema_of(columns):
    listed = []
    for i, values in enumerate(columns):
        kind = "vector" if values.ndim > 1 else "float" if values.dtype.kind == "f" else "int"
        listed.append(Column((f"c{i}",), kind, values.dtype, values.shape[1:]))
    return TableSchema(0, ("edges",), "list", "dict", listed)


def bits(values):
    return np.ascontiguousarray(values).view(np.uint8)


def spooled(folder, columns, cuts):
    schema = schema_of(columns)
    spool = Spool(folder)
    cuts = sorted({0, *cuts, len(columns[0])})
    for first, stop in itertools.pairwise(cuts):
        spool.rows(schema, first, [c[first:stop] for c in columns])
    schema.num_rows = len(columns[0])
    return spool


COLUMN = st.one_of(
    st.sampled_from(
        ["constant", "bits", "small", "medium", "large", "huge", "same", "vector", "wide", "bytes"]
    ),
    st.sampled_from(
        ["floats", "few floats", "two floats", "float32", "float16", "uint64", "int8", "float vector"]
    ),
)


def make_column(kind, rows, rng, before):
    match kind:
        case "constant":
            return np.full(rows, int(rng.integers(-(2**62), 2**62)))
        case "bits":
            return rng.integers(0, 2, rows) - 7
        case "small":
            return rng.integers(-100, 100, rows)
        case "medium":
            return rng.integers(0, 60000, rows)
        case "large":
            return rng.integers(-(2**31), 2**31, rows)
        case "huge":
            return rng.integers(-(2**63), 2**63 - 1, rows)
        case "same":
            return before[-1].copy() if before else np.arange(rows)
        case "vector":
            return rng.integers(0, 5, (rows, 3))
        case "wide":
            return rng.integers(0, 2, (rows, 21)).astype(np.int64)
        case "bytes":
            return rng.integers(0, 2 + 100 * rng.integers(2), (rows, 9)).astype(np.uint8)
        case "floats":
            return rng.standard_normal(rows)
        case "few floats":
            return np.array(SPECIAL)[rng.integers(0, len(SPECIAL), rows)]
        case "two floats":
            return np.array([-0.01, 1.0])[rng.integers(0, 2, rows)]
        case "float32":
            return rng.standard_normal((rows, 4)).astype(np.float32)
        case "float16":
            return rng.standard_normal(rows).astype(np.float16)
        case "uint64":
            return rng.integers(0, 2**64 - 1, rows, dtype=np.uint64)
        case "int8":
            return rng.integers(-128, 127, (rows, 2)).astype(np.int8)
        case "float vector":
            return rng.choice([0.0, 1.0], (rows, 33))
    raise AssertionError(kind)


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(COLUMN, min_size=1, max_size=6),
    rows=st.integers(1, 300),
    seed=st.integers(0, 2**32),
    cuts=st.lists(st.integers(0, 300), max_size=3),
    spans=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=3),
    chunk_bytes=st.sampled_from([1, 500, 1 << 20]),
)
def test_columns_come_back_bit_for_bit(tmp_path_factory, kinds, rows, seed, cuts, spans, chunk_bytes):
    rng = np.random.default_rng(seed)
    columns = []
    for kind in kinds:
        columns.append(make_column(kind, rows, rng, columns))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "CHUNK_BYTES", chunk_bytes)
        with spooled(tmp_path_factory.mktemp("spool"), columns, [c for c in cuts if c < rows]) as spool:
            table = spool.tables[0]
            assert table.num_rows == rows
            for a, b in [(0, rows), *((min(s), max(s)) for s in spans)]:
                a, b = min(a, rows), min(b, rows)
                found = table.read(a, b, list(range(len(columns))))
                for values, column in zip(found, columns, strict=True):
                    expected = column.reshape(rows, -1)[a:b]
                    assert values.dtype == column.dtype
                    assert np.array_equal(bits(values), bits(expected))


@settings(max_examples=40, deadline=None)
@given(hnp.arrays(np.float64, st.integers(1, 50), elements=st.one_of(st.floats(), st.sampled_from(SPECIAL))))
def test_ranges_are_those_of_the_finite_numbers(tmp_path_factory, values):
    with spooled(tmp_path_factory.mktemp("spool"), [values], []) as spool:
        seen = spool.range_of(0, 0)
    finite = values[np.isfinite(values)]
    assert seen.finite == np.isfinite(values).all()
    if len(finite):
        assert (seen.minimum, seen.maximum) == (finite.min(), finite.max())
    if seen.finite:
        assert seen.whole == all(float(v).is_integer() for v in values)


def test_a_second_column_that_is_the_same_costs_nothing(tmp_path):
    rng = np.random.default_rng(0)
    states = rng.integers(0, 2, (4096, 132)).astype(np.uint8)
    with (
        spooled(tmp_path / "one", [states], []) as one,
        spooled(tmp_path / "two", [states, states.copy(), 1 - states], []) as two,
    ):
        assert one.num_bytes < states.size / 8 + 64 * 4  # bits, and padding
        assert two.num_bytes == 2 * one.num_bytes
        assert two.tables[0].always_same(1, 0)
        assert not two.tables[0].always_same(2, 0)


def test_full_scale_edges_take_under_fifteen_bytes(tmp_path):
    rng = np.random.default_rng(1)
    rows = 50_000
    columns = [
        rng.integers(0, 85184, rows),
        rng.integers(0, 5, (rows, 3)),
        rng.integers(0, 85184, rows),
        rng.choice([0.9, 0.025, 0.7], rows),
        *(rng.choice([-0.01, 1.0, 0.0], rows) for _ in range(3)),
        rng.integers(0, 2, rows).astype(np.uint8),
    ]
    with spooled(tmp_path, columns, []) as spool:
        assert spool.num_bytes < 15.2 * rows


def test_more_than_256_different_floats_are_kept_raw():
    few = np.repeat(np.linspace(0.1, 1, 256), 3)
    many = np.repeat(np.linspace(0.1, 1, 257), 3)
    sizes = []
    for values in (few, many):
        block, _, _ = encode_words(values.view(np.int64).reshape(-1, 1), 0, floats=True)
        sizes.append(block.payload.nbytes)
    assert sizes == [len(few), 8 * len(many)]


def test_a_column_widened_while_reading_comes_back_wide(tmp_path):
    schema = schema_of([np.arange(3)])
    with Spool(tmp_path) as spool:
        spool.rows(schema, 0, [np.arange(3)])
        spool.rows(schema, 3, [np.array([0.5, 1.5])])
        schema.columns[0] = Column(("c0",), "float", np.dtype(np.float64))
        assert spool.tables[0].read(0, 5, [0])[0][:, 0].tolist() == [0.0, 1.0, 2.0, 0.5, 1.5]


def test_leaving_deletes_the_files(tmp_path):
    with spooled(tmp_path, [np.arange(10) * 10**10], []):
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
