"""Cold arrays against zarr-python itself; damage is an error, never zeros."""

import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from omstore.errors import CorruptStoreError, UsageError
from omstore.format.cold import ColdArray, ColdWriter, default_chunk_rows
from omstore.format.durable import digest_file

DTYPES = ["bool", "int8", "int32", "uint16", "uint64", "float32", "float64"]


def write(folder, array, **options):
    with ColdWriter(folder, array.dtype, array.shape[1:], **options) as writer:
        writer.append(array)
    return writer


def sample(shape, dtype, seed=0):
    return np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64,), (65,), (1,), (200, 3), (130, 2, 2), (0,), (0, 3)])
def test_zarr_reads_what_was_written_and_so_do_we(tmp_path, shape, dtype, shuffle):
    array = sample(shape, dtype)
    writer = write(tmp_path / "a", array, chunk_rows=16, shuffle=shuffle)

    read = zarr.open_array(tmp_path / "a", mode="r")
    assert read.dtype == array.dtype
    assert read.shape == shape
    np.testing.assert_array_equal(read[...], array)
    cold = ColdArray(tmp_path / "a", dtype=dtype, item_shape=shape[1:], rows=shape[0])
    assert (cold.shape, cold.dtype, len(cold)) == (shape, array.dtype, shape[0])
    np.testing.assert_array_equal(cold[:], array)
    np.testing.assert_array_equal(np.asarray(cold), array)
    on_disk = {path for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert writer.files == {path: digest_file(path) for path in on_disk}


@pytest.mark.parametrize(
    "options",
    [
        {"compressors": None},
        {"compressors": zarr.codecs.ZstdCodec(level=5)},
        {"compressors": zarr.codecs.ZstdCodec(level=5, checksum=True)},
        {"compressors": zarr.codecs.BloscCodec(cname="zstd", shuffle="shuffle", typesize=4)},
        {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=4)},
        {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
    ],
)
def test_we_read_what_zarr_wrote(tmp_path, options):
    array = 1 + sample((100, 3), "uint32")
    written = zarr.create_array(
        tmp_path / "a", shape=(100, 3), dtype="uint32", chunks=(8, 3), shards=(104, 3), **options
    )
    written[...] = array
    np.testing.assert_array_equal(ColdArray(tmp_path / "a")[:], array)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 25), max_size=8),
    chunk_rows=st.integers(1, 20),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_batches_dont_matter_and_any_slice_reads(tmp_path_factory, lengths, chunk_rows, shuffle, data):
    folder = tmp_path_factory.mktemp("cold")
    total = sum(lengths)
    array = sample((total, 2), "int32")
    with ColdWriter(folder / "a", "int32", (2,), chunk_rows=chunk_rows, shuffle=shuffle) as writer:
        start = 0
        for length in lengths:
            writer.append(array[start : start + length])
            start += length
    whole = write(folder / "b", array, chunk_rows=chunk_rows, shuffle=shuffle)
    assert list(writer.files.values()) == list(whole.files.values())

    cold = ColdArray(folder / "a")
    first = data.draw(st.integers(0, total))
    last = data.draw(st.integers(first, total))
    np.testing.assert_array_equal(cold.read(first, last), array[first:last])
    piece = data.draw(st.slices(total))
    np.testing.assert_array_equal(cold[piece], array[piece])
    if total:
        wanted = np.array(data.draw(st.lists(st.integers(-total, total - 1), max_size=30)), np.int64)
        np.testing.assert_array_equal(cold[wanted], array[wanted])
        np.testing.assert_array_equal(cold.take(wanted % total), array[wanted])
    pieces = list(cold.chunks())
    assert [start for start, _ in pieces] == list(range(0, total, chunk_rows))
    np.testing.assert_array_equal(np.concatenate([array[:0], *(rows for _, rows in pieces)]), array)
    assert [row.tolist() for row in cold] == array.tolist()


def test_default_chunks_are_about_one_mebibyte(tmp_path):
    assert default_chunk_rows("uint32") == 1 << 18
    assert default_chunk_rows("float64", (3,)) == (1 << 20) // 24
    assert default_chunk_rows("float64", (1 << 20,)) == 1
    array = sample((700_000,), "uint32")
    write(tmp_path / "a", array)
    assert zarr.open_array(tmp_path / "a", mode="r").chunks == (1 << 18,)
    np.testing.assert_array_equal(ColdArray(tmp_path / "a")[:], array)


def test_shuffled_bytes_dont_depend_on_blosc_threads(tmp_path):
    import numcodecs.blosc

    array = np.random.default_rng(2).integers(0, 1000, 400_000).astype("float64")
    digests = set()
    before = numcodecs.blosc.set_nthreads(1)
    try:
        for threads in (1, 2, 4):
            numcodecs.blosc.set_nthreads(threads)
            writer = write(tmp_path / f"main{threads}", array, shuffle=True)
            digests.add(writer.files[writer.path])
            with ThreadPoolExecutor(1) as pool:  # blosc takes another way outside of the main thread
                writer = pool.submit(write, tmp_path / f"other{threads}", array, shuffle=True).result()
            digests.add(writer.files[writer.path])
    finally:
        numcodecs.blosc.set_nthreads(before)
    assert len(digests) == 1


def test_take_decodes_every_chunk_once(tmp_path, monkeypatch):
    array = sample((1000,), "uint32")
    write(tmp_path / "a", array, chunk_rows=10)
    cold = ColdArray(tmp_path / "a")
    decoded = []
    original = ColdArray._decode
    monkeypatch.setattr(
        ColdArray, "_decode", lambda self, chunk, out: (decoded.append(chunk), original(self, chunk, out))[1]
    )
    wanted = np.random.default_rng(3).permutation(np.r_[0:1000:7, 0:1000:3])
    np.testing.assert_array_equal(cold.take(wanted), array[wanted])
    assert sorted(decoded) == sorted(set((wanted // 10).tolist()))


def test_threads_share_an_array(tmp_path):
    array = sample((5000,), "uint32")
    write(tmp_path / "a", array, chunk_rows=64)
    cold = ColdArray(tmp_path / "a")

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            wanted = rng.integers(0, 5000, 20)
            if not (cold.take(wanted) == array[wanted]).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_reads_on_when_the_file_is_deleted_pickles_and_closes(tmp_path):
    array = sample((500,), "uint32")
    write(tmp_path / "a", array, chunk_rows=64)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ColdArray(tmp_path / "a")))[:], array)
    cold = ColdArray(tmp_path / "a")
    assert cold.nbytes_stored == cold.path.stat().st_size
    cold.path.unlink()
    np.testing.assert_array_equal(cold[:], array)
    cold.close()
    cold.close()


def test_indices_out_of_range_are_errors(tmp_path):
    write(tmp_path / "a", sample((50,), "uint32"), chunk_rows=8)
    cold = ColdArray(tmp_path / "a")
    for start, stop in [(-1, 5), (6, 5), (0, 51)]:
        with pytest.raises(UsageError):
            cold.read(start, stop)
    for wanted in ([-1], [50], [[1]], [1.0]):
        with pytest.raises(UsageError):
            cold.take(wanted)
    with pytest.raises(IndexError):
        cold[50]
    with pytest.raises(UsageError):
        cold[np.array([-51])]
    with pytest.raises(CorruptStoreError, match="50 rows, not 49"):
        ColdArray(tmp_path / "a", rows=49)


def test_every_flipped_byte_is_found(tmp_path):
    """The sha256 in the manifest aside: nothing wrong is ever read."""
    array = sample((60,), "uint16")
    for shuffle in (False, True):
        writer = write(tmp_path / f"a{shuffle}", array, chunk_rows=16, shuffle=shuffle)
        good = writer.path.read_bytes()
        for position in range(len(good)):
            bad = bytearray(good)
            bad[position] ^= 0x10
            writer.path.write_bytes(bad)
            with pytest.raises(CorruptStoreError, match="c/0"):
                ColdArray(tmp_path / f"a{shuffle}")[:]


def test_every_truncation_is_found(tmp_path):
    writer = write(tmp_path / "a", sample((60,), "uint16"), chunk_rows=16)
    size = writer.path.stat().st_size
    for length in range(size - 1, -1, -1):
        os.truncate(writer.path, length)
        with pytest.raises(CorruptStoreError, match="c/0"):
            ColdArray(tmp_path / "a")[:]


def test_truncated_while_open_is_an_error(tmp_path):
    writer = write(tmp_path / "a", sample((60,), "uint16"), chunk_rows=16)
    cold = ColdArray(tmp_path / "a")
    os.truncate(writer.path, 30)
    with pytest.raises(CorruptStoreError, match="truncated"):
        cold[:]


def test_missing_inner_chunk_or_shard_is_no_zeros(tmp_path):
    written = zarr.create_array(
        tmp_path / "a", shape=(40,), dtype="uint32", chunks=(8,), shards=(40,), fill_value=0
    )
    array = np.arange(1, 41, dtype=np.uint32)
    array[8:16] = 0  # zarr leaves a chunk of fill values out
    written[...] = array
    with pytest.raises(CorruptStoreError, match="inner chunk 1 of 5 is missing"):
        ColdArray(tmp_path / "a")
    (tmp_path / "a" / "c" / "0").unlink()
    with pytest.raises(CorruptStoreError, match="c/0 is missing"):
        ColdArray(tmp_path / "a")


@pytest.mark.parametrize(
    "options",
    [
        {"chunks": (40,)},
        {"chunks": (8,), "shards": (16,)},
        {"chunks": (8,), "shards": {"shape": (40,), "index_location": "start"}},
        {"chunks": (8,), "shards": (40,), "compressors": zarr.codecs.GzipCodec()},
    ],
)
def test_other_layouts_arent_cold(tmp_path, options):
    zarr.create_array(tmp_path / "a", data=np.arange(40, dtype=np.uint32), **options)
    with pytest.raises(CorruptStoreError, match=r"zarr\.json doesn't describe a cold array"):
        ColdArray(tmp_path / "a")


def test_split_items_arent_cold(tmp_path):
    zarr.create_array(tmp_path / "a", data=np.ones((8, 4)), chunks=(8, 2), shards=(8, 4))
    with pytest.raises(CorruptStoreError, match="split"):
        ColdArray(tmp_path / "a")


@pytest.mark.parametrize("rows", [0, 5000, 1 << 62])
def test_a_shape_that_the_shard_doesnt_hold_is_an_error(tmp_path, rows):
    write(tmp_path / "a", sample((60,), "uint16"), chunk_rows=16)
    path = tmp_path / "a" / "zarr.json"
    document = json.loads(path.read_text())
    document["shape"] = [rows]
    path.write_text(json.dumps(document))
    if rows == 0:
        assert len(ColdArray(tmp_path / "a")) == 0
    else:
        with pytest.raises(CorruptStoreError, match="single shard"):
            ColdArray(tmp_path / "a")
        document["chunk_grid"]["configuration"]["chunk_shape"] = [-(-rows // 16) * 16]
        path.write_text(json.dumps(document))
        with pytest.raises(CorruptStoreError, match="too few for its index"):
            ColdArray(tmp_path / "a")


def test_writer_misuse(tmp_path):
    with pytest.raises(UsageError, match="at least one row"):
        ColdWriter(tmp_path / "a", "uint8", chunk_rows=0)
    writer = ColdWriter(tmp_path / "a", "uint8", chunk_rows=2)
    writer.append(np.ones(5, np.uint8))
    with pytest.raises(UsageError, match="shape"), writer:
        writer.append(np.ones((5, 5), np.uint8))
    with pytest.raises(CorruptStoreError, match=r"zarr\.json is missing"):
        ColdArray(tmp_path / "a")
    with pytest.raises(UsageError, match="closed"):
        writer.append(np.ones(5, np.uint8))
