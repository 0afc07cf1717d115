"""Hot arrays against zarr-python itself, and refused when anything about their files is off."""

import json
import os
import pathlib

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from omstore.errors import CorruptStoreError, UsageError
from omstore.format.durable import digest_file
from omstore.format.hot import HotWriter, create_hot, drop_pages, finish_hot, map_hot, write_hot

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float32",
    "float64",
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7,), (5, 3), (4, 2, 3), (0,), (0, 3), (1, 1)])
def test_zarr_reads_what_was_written_and_so_do_we(tmp_path, dtype, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    files = write_hot(tmp_path / "a", array)

    read = zarr.open_array(tmp_path / "a", mode="r")
    assert read.dtype == array.dtype
    assert read.shape == shape
    np.testing.assert_array_equal(read[...], array)
    mapped = map_hot(tmp_path / "a", dtype=dtype, item_shape=shape[1:], rows=shape[0])
    assert mapped.dtype == array.dtype
    assert not mapped.flags.writeable
    np.testing.assert_array_equal(mapped, array)

    on_disk = {path for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert set(files) == on_disk
    assert files == {path: digest_file(path) for path in on_disk}


@pytest.mark.parametrize("dtype", DTYPES)
def test_we_map_what_zarr_wrote(tmp_path, dtype):
    array = np.arange(24).reshape(8, 3).astype(dtype)
    zarr.create_array(tmp_path / "a", data=array, chunks=(8, 3), compressors=None)
    np.testing.assert_array_equal(map_hot(tmp_path / "a"), array)


@settings(max_examples=25, deadline=None)
@given(
    blocks=st.lists(hnp.arrays(np.uint32, st.tuples(st.integers(0, 9), st.just(2))), max_size=6),
)
def test_batches_dont_matter(tmp_path_factory, blocks):
    folder = tmp_path_factory.mktemp("hot")
    with HotWriter(folder / "a", np.uint32, (2,)) as writer:
        for block in blocks:
            writer.append(block)
    whole = np.concatenate([np.empty((0, 2), np.uint32), *blocks])
    write_hot(folder / "b", whole)
    np.testing.assert_array_equal(map_hot(folder / "a"), whole)
    assert [digest.sha256 for digest in writer.files.values()] == [
        digest_file(folder / "b" / path.relative_to(folder / "a")).sha256 for path in writer.files
    ]


def test_large_writes_go_through_several_writeback_windows(tmp_path):
    array = np.random.default_rng(0).integers(0, 1 << 63, 5_000_000, dtype=np.uint64)  # 40 MB
    with HotWriter(tmp_path / "a", np.uint64) as writer:
        writer.append(array[:3])
        writer.append(array[3:4_000_000])
        for start in range(4_000_000, len(array), 70_001):
            writer.append(array[start : start + 70_001])
    assert (map_hot(tmp_path / "a") == array).all()
    assert writer.files[writer.path] == digest_file(writer.path)


def test_rows_that_dont_fit_are_refused(tmp_path):
    writer = HotWriter(tmp_path / "a", np.uint32, (2,))
    with pytest.raises(UsageError, match="shape"):
        writer.append(np.zeros((3, 3), np.uint32))
    with pytest.raises(UsageError, match="without loss"):
        writer.append(np.zeros((3, 2), np.int64))
    writer.append(np.zeros((3, 2), np.uint16))  # safe
    writer.close()
    with pytest.raises(UsageError, match="closed"):
        writer.append(np.zeros((3, 2), np.uint32))
    with pytest.raises(UsageError, match="complex"):
        HotWriter(tmp_path / "b", np.complex64)
    with pytest.raises(UsageError, match="written once"):
        write_hot(tmp_path / "a", np.ones((1, 2), np.uint32))


def test_an_array_that_wasnt_closed_isnt_one(tmp_path):
    with pytest.raises(UsageError), HotWriter(tmp_path / "a", np.uint8) as writer:
        writer.append(np.ones((5, 5), np.uint8))
    with pytest.raises(CorruptStoreError, match=r"zarr\.json is missing"):
        map_hot(tmp_path / "a")


def test_filled_in_any_order(tmp_path):
    array = create_hot(tmp_path / "a", np.int64, (1000, 2))
    order = np.random.default_rng(1).permutation(1000)
    for row in order:
        array[row] = (row, -row)
    files = finish_hot(tmp_path / "a")
    expected = np.stack([np.arange(1000), -np.arange(1000)], axis=1)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a", mode="r")[...], expected)
    np.testing.assert_array_equal(map_hot(tmp_path / "a"), expected)
    assert files == {path: digest_file(path) for path in (tmp_path / "a").rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match="written once"):
        create_hot(tmp_path / "a", np.int64, (1000, 2))


def test_filled_array_without_elements(tmp_path):
    assert create_hot(tmp_path / "a", np.int64, (0, 2)).shape == (0, 2)
    assert list(finish_hot(tmp_path / "a")) == [tmp_path / "a" / "zarr.json"]
    assert map_hot(tmp_path / "a").shape == (0, 2)


def test_a_map_outlives_its_file_and_gives_pages_back(tmp_path):
    array = np.arange(100_000)
    write_hot(tmp_path / "a", array)
    mapped = map_hot(tmp_path / "a")
    (tmp_path / "a" / "c" / "0").unlink()
    drop_pages(mapped)
    drop_pages(mapped[12_345:67_890])
    drop_pages(mapped[::7])
    drop_pages(array)
    drop_pages(mapped[:0])
    np.testing.assert_array_equal(mapped, array)


def _rss_file() -> int:
    text = pathlib.Path("/proc/self/status").read_text()
    return int(text.split("RssFile:")[1].split()[0]) << 10


def test_dropped_pages_leave_the_resident_set(tmp_path):
    write_hot(tmp_path / "a", np.ones(8 << 20, np.uint8))
    mapped = map_hot(tmp_path / "a")
    before = _rss_file()
    assert mapped.sum() == 8 << 20
    assert _rss_file() > before + (4 << 20)
    drop_pages(mapped)
    assert _rss_file() < before + (4 << 20)


@pytest.mark.parametrize(
    ("expectation", "message"),
    [({"dtype": "uint32"}, "uint64"), ({"item_shape": ()}, "items"), ({"rows": 9}, "10 rows, not 9")],
)
def test_unmet_expectations_are_errors(tmp_path, expectation, message):
    write_hot(tmp_path / "a", np.zeros((10, 2), np.uint64))
    with pytest.raises(CorruptStoreError, match=message):
        map_hot(tmp_path / "a", **expectation)


@pytest.mark.parametrize("size", [0, 1, 79, 81, 160])
def test_truncated_or_grown_file_is_refused_before_mapping(tmp_path, size):
    write_hot(tmp_path / "a", np.zeros(10, np.uint64))
    os.truncate(tmp_path / "a" / "c" / "0", size)
    with pytest.raises(CorruptStoreError, match=rf"c/0 has {size} bytes instead of 80"):
        map_hot(tmp_path / "a")


def test_missing_chunk_is_no_zeros(tmp_path):
    write_hot(tmp_path / "a", np.ones(10, np.uint64))
    (tmp_path / "a" / "c" / "0").unlink()
    assert (zarr.open_array(tmp_path / "a", mode="r")[...] == 0).all()  # what zarr does
    with pytest.raises(CorruptStoreError, match="c/0 is missing"):
        map_hot(tmp_path / "a")


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (5,), "compressors": None},
        {"chunks": (20,), "compressors": None},
        {"chunks": (10,)},
        {"chunks": (5,), "shards": (10,), "compressors": None},
    ],
)
def test_other_layouts_arent_hot(tmp_path, options):
    zarr.create_array(tmp_path / "a", data=np.ones(10, np.uint64), **options)
    with pytest.raises(CorruptStoreError, match="not a hot array"):
        map_hot(tmp_path / "a")


def test_big_endian_isnt_hot(tmp_path):
    write_hot(tmp_path / "a", np.ones(10, np.uint64))
    path = tmp_path / "a" / "zarr.json"
    path.write_text(path.read_text().replace("little", "big"))
    with pytest.raises(CorruptStoreError, match="big endian"):
        map_hot(tmp_path / "a")


@pytest.mark.parametrize(
    "change",
    [
        {"zarr_format": 2},
        {"node_type": "group"},
        {"shape": [-1]},
        {"shape": "x"},
        {"shape": []},
        {"shape": [True]},
        {"data_type": "complex64"},
        {"data_type": ["uint64"]},
        {"chunk_grid": {"name": "rectilinear", "configuration": {}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}},
        {"chunk_grid": None},
        {"chunk_key_encoding": {"name": "v2"}},
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}},
        {"codecs": [{"configuration": {}}]},
        {"codecs": [3]},
        {"codecs": []},
        {"storage_transformers": [{"name": "x"}]},
    ],
)
def test_foreign_metadata_is_a_named_error(tmp_path, change):
    write_hot(tmp_path / "a", np.ones(10, np.uint64))
    path = tmp_path / "a" / "zarr.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CorruptStoreError, match=r"a/zarr\.json"):
        map_hot(tmp_path / "a")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 5000, b"null"])
def test_broken_metadata_is_a_named_error(tmp_path, content):
    write_hot(tmp_path / "a", np.ones(10, np.uint64))
    (tmp_path / "a" / "zarr.json").write_bytes(content)
    with pytest.raises(CorruptStoreError, match=r"a/zarr\.json"):
        map_hot(tmp_path / "a")
