"""The bytes inside a cold array's one shard: compressed inner chunks, then the index and its checksum.

After the zarr v3 specification of ``sharding_indexed``: the index is an (offset, length) pair of
little-endian uint64 for each inner chunk, followed by its crc32c.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np
from numcodecs import Blosc, Zstd

from omstore.errors import CorruptStoreError
from omstore.format.metadata import ArrayMetadata, Codec

__all__ = ["ChunkCoder", "cold_metadata", "decode_index", "encode_index", "index_bytes"]

LITTLE_ENDIAN = Codec("bytes", {"endian": "little"})
CRC32C = Codec("crc32c")
_MISSING = np.uint64(0xFFFFFFFFFFFFFFFF)


class _Compressor(Protocol):
    def encode(self, data: Any) -> bytes: ...
    def decode(self, data: Any, out: Any = None) -> Any: ...


def crc32c_bytes(data: bytes | memoryview | np.ndarray) -> bytes:
    """Give the crc32c of a buffer as four little-endian bytes."""
    return int(google_crc32c.value(bytes(data))).to_bytes(4, "little")


def cold_metadata(
    rows: int, item_shape: tuple[int, ...], dtype: np.dtype[Any], chunk_rows: int, shuffle: bool, level: int
) -> ArrayMetadata:
    """Metadata of a cold array: one shard over the whole array, inner chunks of `chunk_rows` rows."""
    item = tuple(max(1, length) for length in item_shape)
    chunk_shape = (chunk_rows, *item)
    chunks = max(1, -(-rows // chunk_rows))
    chunk_bytes = int(np.prod(chunk_shape, dtype=np.int64)) * dtype.itemsize
    if shuffle:
        # One block for the whole chunk: blosc's threads finish blocks in any order, and the bytes would
        # differ.
        configuration: Mapping[str, Any] = {
            "cname": "zstd",
            "clevel": level,
            "shuffle": "shuffle",
            "typesize": dtype.itemsize,
            "blocksize": chunk_bytes,
        }
        compressor = Codec("blosc", configuration)
    else:
        compressor = Codec("zstd", {"level": level, "checksum": False})
    sharding = Codec(
        "sharding_indexed",
        {
            "chunk_shape": list(chunk_shape),
            "codecs": (LITTLE_ENDIAN, compressor, CRC32C),
            "index_codecs": (LITTLE_ENDIAN, CRC32C),
            "index_location": "end",
        },
    )
    return ArrayMetadata((rows, *item_shape), dtype, (chunks * chunk_rows, *item), (sharding,))


@dataclass(frozen=True)
class ChunkCoder:
    """Encode and decode inner chunks of one cold array.

    Attributes
    ----------
    chunk_shape : tuple of int
        Shape of an inner chunk, rows first.
    dtype : numpy.dtype
        Little-endian dtype.
    """

    chunk_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    _compressor: _Compressor | None
    _checksum: bool

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded inner chunk."""
        return int(np.prod(self.chunk_shape, dtype=np.int64)) * self.dtype.itemsize

    @classmethod
    def from_metadata(cls, metadata: ArrayMetadata, where: Path) -> ChunkCoder:
        """Make the coder that `metadata` asks for.

        Raises
        ------
        CorruptStoreError
            Naming `where`, if the array isn't cold or uses other codecs than the store does.
        """
        try:
            (sharding,) = metadata.codecs
            configuration = sharding.configuration
            if sharding.name != "sharding_indexed" or configuration.get("index_location", "end") != "end":
                raise ValueError("it isn't one shard with its index at the end")
            if [codec.name for codec in configuration["index_codecs"]] != ["bytes", "crc32c"]:
                raise ValueError("its shard index isn't plain with a crc32c")
            chunk_shape = tuple(int(length) for length in configuration["chunk_shape"])
            _check_grid(metadata, chunk_shape)
            first, *others = configuration["codecs"]
            little = first.configuration.get("endian") == "little" or metadata.dtype.itemsize == 1
            if first.name != "bytes" or not little:
                raise ValueError("its chunks aren't little endian")
            compressor, checksum = _chain(others)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStoreError(f"{where} doesn't describe a cold array: {error}") from error
        return cls(chunk_shape, metadata.dtype, compressor, checksum)

    def encode(self, chunk: np.ndarray) -> bytes:
        """Encode one whole inner chunk, contiguous and in the stored dtype."""
        data = chunk.tobytes() if self._compressor is None else bytes(self._compressor.encode(chunk))
        return data + crc32c_bytes(data) if self._checksum else data

    def decode_into(self, data: bytes, out: np.ndarray) -> None:
        """Decode one inner chunk into `out`, contiguous and of the chunk's shape.

        Raises
        ------
        ValueError
            If the data is corrupt; the caller knows where it is from.
        """
        if self._checksum:
            data, checksum = data[:-4], data[-4:]
            if crc32c_bytes(data) != checksum:
                raise ValueError("its crc32c is wrong")
        if self._compressor is None:
            if len(data) != out.nbytes:
                raise ValueError(f"it holds {len(data)} bytes instead of {out.nbytes}")
            out.reshape(-1).view(np.uint8)[:] = np.frombuffer(data, np.uint8)
            return
        try:
            self._compressor.decode(data, out=out)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"it can't be decompressed: {error}") from error


def _check_grid(metadata: ArrayMetadata, chunk_shape: tuple[int, ...]) -> None:
    rows, *item = metadata.shape
    whole_items = tuple(max(1, length) for length in item)
    if len(chunk_shape) != len(metadata.shape) or min(chunk_shape) < 1:
        raise ValueError("its inner chunks have another number of dimensions")
    if chunk_shape[1:] != whole_items or metadata.chunk_shape[1:] != whole_items:
        raise ValueError("its chunks split the items")
    if metadata.chunk_shape[0] % chunk_shape[0] or metadata.chunk_shape[0] < rows:
        raise ValueError("it isn't a single shard of whole inner chunks")


def _chain(codecs: Sequence[Codec]) -> tuple[_Compressor | None, bool]:
    names = [codec.name for codec in codecs]
    checksum = names[-1:] == ["crc32c"]
    if checksum:
        names.pop()
    if not names:
        return None, checksum
    if names == ["zstd"]:
        options = codecs[0].configuration
        return Zstd(options.get("level", 0), options.get("checksum", False)), checksum
    if names == ["blosc"]:
        options = codecs[0].configuration
        mode = {"noshuffle": Blosc.NOSHUFFLE, "shuffle": Blosc.SHUFFLE, "bitshuffle": Blosc.BITSHUFFLE}
        compressor = Blosc(
            options["cname"], options["clevel"], mode[options["shuffle"]], options.get("blocksize", 0)
        )
        return compressor, checksum
    raise ValueError(f"it is compressed by {names}")


def index_bytes(chunks: int) -> int:
    """Bytes of the index of a shard of so many inner chunks, checksum included."""
    return 16 * chunks + 4


def encode_index(entries: np.ndarray) -> bytes:
    """Encode the index: `entries` is (chunks, 2) uint64, offset and length."""
    data = np.ascontiguousarray(entries, "<u8").tobytes()
    return data + crc32c_bytes(data)


def decode_index(data: bytes, used: int, limit: int, where: Path) -> np.ndarray:
    """Decode and check a shard's index.

    Parameters
    ----------
    data : bytes
        The index with its checksum.
    used : int
        How many inner chunks hold rows of the array; chunks beyond may be missing.
    limit : int
        Where the index begins: chunks lie before it.
    where : Path
        The shard, for messages.

    Returns
    -------
    numpy.ndarray, shape (used, 2), uint64

    Raises
    ------
    CorruptStoreError
        If the checksum is wrong, or a chunk is missing or lies outside the file.
    """
    if crc32c_bytes(data[:-4]) != data[-4:]:
        raise CorruptStoreError(
            f"{where}: the crc32c of the shard index is wrong; the file is truncated or changed"
        )
    entries = np.frombuffer(data[:-4], "<u8").reshape(-1, 2)[:used]
    missing = np.flatnonzero((entries == _MISSING).any(axis=1))
    if len(missing):
        raise CorruptStoreError(f"{where}: inner chunk {missing[0]} of {used} is missing")
    # In this order no sum can wrap around.
    outside = (entries[:, 1] > np.uint64(limit)) | (
        entries[:, 0] > np.uint64(limit) - np.minimum(entries[:, 1], np.uint64(limit))
    )
    if outside.any():
        chunk = int(np.flatnonzero(outside)[0])
        raise CorruptStoreError(
            f"{where}: inner chunk {chunk} lies outside of the file's {limit} bytes of chunks"
        )
    return entries.astype(np.uint64)
