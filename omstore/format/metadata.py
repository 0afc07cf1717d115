"""The ``zarr.json`` files: metadata of zarr v3 arrays and groups, as far as the store uses them.

Only codecs of the zarr v3 specification occur, and no consolidated metadata, so any zarr tool opens a
version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from omstore.errors import CorruptStoreError, UsageError
from omstore.format.durable import FileDigest, write_file

__all__ = [
    "METADATA_NAME",
    "ArrayMetadata",
    "Codec",
    "chunk_file",
    "json_bytes",
    "load_json",
    "read_array_metadata",
    "stored_dtype",
    "write_array_metadata",
]

METADATA_NAME = "zarr.json"

_DTYPES = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def stored_dtype(dtype: np.typing.DTypeLike) -> np.dtype[Any]:
    """Give the little-endian dtype under which values of `dtype` are stored.

    Raises
    ------
    UsageError
        If it is none of bool, (u)int8-64, float16-64.
    """
    stored = np.dtype(dtype).newbyteorder("<")
    if stored not in _NAMES:
        raise UsageError(
            f"Arrays of {np.dtype(dtype)} can't be stored", "Use bool, (u)int8-64 or float16-64."
        )
    return stored


@dataclass(frozen=True)
class Codec:
    """One codec of a zarr v3 array: its name and configuration."""

    name: str
    configuration: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON form."""
        document: dict[str, Any] = {"name": self.name}
        if self.configuration:
            document["configuration"] = {
                key: [codec.to_dict() for codec in value] if key.endswith("codecs") else value
                for key, value in self.configuration.items()
            }
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Codec:
        """Read the JSON form; raises KeyError or TypeError where it is none."""
        configuration = {
            key: tuple(cls.from_dict(codec) for codec in value) if key.endswith("codecs") else value
            for key, value in document.get("configuration", {}).items()
        }
        return cls(document["name"], configuration)


@dataclass(frozen=True)
class ArrayMetadata:
    """Metadata of a zarr v3 array on a regular grid with default chunk keys.

    Attributes
    ----------
    shape : tuple of int
        Shape of the array.
    dtype : numpy.dtype
        Little-endian dtype.
    chunk_shape : tuple of int
        Shape of a chunk (of a shard, where sharded); every size is at least 1.
    codecs : tuple of Codec
        From the array to the bytes of a chunk.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    codecs: tuple[Codec, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the decoded array."""
        return self.size * self.dtype.itemsize

    def to_dict(self) -> dict[str, Any]:
        """Give the content of ``zarr.json``."""
        kind = self.dtype.kind
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": _NAMES[self.dtype],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunk_shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": False if kind == "b" else 0.0 if kind == "f" else 0,
            "codecs": [codec.to_dict() for codec in self.codecs],
            "attributes": {},
            "storage_transformers": [],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], where: Path) -> ArrayMetadata:
        """Read the content of ``zarr.json``.

        Raises
        ------
        CorruptStoreError
            Naming `where`, if it isn't the metadata of an array that the store could have written.
        """
        try:
            if document["zarr_format"] != 3 or document["node_type"] != "array":
                raise ValueError("it isn't the metadata of a zarr v3 array")
            if document["chunk_grid"]["name"] != "regular":
                raise ValueError("its chunk grid isn't regular")
            keys = document["chunk_key_encoding"]
            if keys["name"] != "default" or keys.get("configuration", {}).get("separator", "/") != "/":
                raise ValueError("its chunks aren't named c/0/0")
            if document.get("storage_transformers"):
                raise ValueError("it has storage transformers")
            metadata = cls(
                _sizes(document["shape"], 0),
                _DTYPES[document["data_type"]],
                _sizes(document["chunk_grid"]["configuration"]["chunk_shape"], 1),
                tuple(Codec.from_dict(codec) for codec in document["codecs"]),
            )
            if not metadata.shape or len(metadata.shape) != len(metadata.chunk_shape):
                raise ValueError(
                    "its chunks have another number of dimensions than its shape, or it has none"
                )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"{error} is missing or unknown" if isinstance(error, KeyError) else str(error)
            raise CorruptStoreError(f"{where} doesn't describe an array of a store: {reason}") from error
        return metadata


def _sizes(values: Any, least: int) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int or value < least for value in values):
        raise ValueError(f"{values!r} isn't a list of sizes")
    return tuple(values)


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """Write JSON so that equal documents give equal bytes: keys sorted, floats in their shortest exact
    form.
    """
    return (json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def load_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a store.

    Raises
    ------
    CorruptStoreError
        Naming the file, if it is missing, isn't JSON, or no object.
    """
    try:
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise CorruptStoreError(f"{path} is missing") from error
    except (ValueError, RecursionError) as error:
        raise CorruptStoreError(f"{path} isn't JSON: {error}") from error
    if not isinstance(document, dict):
        raise CorruptStoreError(f"{path} isn't a JSON object")
    return document


def chunk_file(folder: Path, dimensions: int) -> Path:
    """Path of the first (in a store: the only) chunk or shard of an array."""
    return folder.joinpath("c", *["0"] * dimensions)


def read_array_metadata(folder: Path) -> ArrayMetadata:
    """Read and check the metadata of the array in `folder`; raises `CorruptStoreError`."""
    path = folder / METADATA_NAME
    return ArrayMetadata.from_dict(load_json(path), path)


def write_array_metadata(folder: Path, metadata: ArrayMetadata) -> dict[Path, FileDigest]:
    """Write and fsync ``zarr.json`` of an array; gives its digest by path."""
    path = folder / METADATA_NAME
    return {path: write_file(path, json_bytes(metadata.to_dict()))}
