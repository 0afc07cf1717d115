"""Values of every node on disk: hot zarr arrays in om/values/, published whole, read by slices."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError, StoreNotFoundError, UsageError
from trainer import files

__all__ = ["StoredValues", "open_values", "write_values"]

FORMAT = "node values"
SCHEMA = 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def write_values(
    folder: Path, name: str, arrays: Mapping[str, NDArray[Any]], document: Mapping[str, Any]
) -> Path:
    """Write values of all nodes, whole or not at all; replaces earlier ones of the same name.

    Parameters
    ----------
    folder : Path
        Such as ``om/values``.
    name : str
        Letters, digits, ``_``, ``-`` and dots.
    arrays : mapping of str to (N, ...) array
        Each becomes an uncompressed zarr v3 array of one chunk, whose file is the array.
    document : mapping
        What they are, as JSON.

    Returns
    -------
    Path
        ``folder/NAME.json``: names the folder of the arrays, and holds the document.

    Raises
    ------
    UsageError
        If a name is none.
    DiskFullError
        If there is no room for the document; earlier values are still there.
    """
    for each in (name, *arrays):
        if not _NAME.fullmatch(each):
            raise UsageError(f"{each!r} is no name for values", "Use letters, digits, _ and -.")
    folder.mkdir(parents=True, exist_ok=True)
    staging = folder / f".{name}.{os.getpid()}.partial"
    shutil.rmtree(staging, ignore_errors=True)
    try:
        digest = _write_arrays(staging, arrays)
        target = folder / f"{name}-{digest}"
        if target.exists():
            shutil.rmtree(staging)  # the same values
        else:
            staging.rename(target)
            files.flush_folder(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    described = {
        "format": FORMAT,
        "schema": SCHEMA,
        "folder": target.name,
        "arrays": {
            key: {"shape": list(values.shape), "dtype": values.dtype.str} for key, values in arrays.items()
        },
        "document": dict(document),
    }
    path = folder / f"{name}.json"
    text = json.dumps(described, indent=2, allow_nan=False) + "\n"
    files.write_atomically(path, text.encode())
    for old in folder.glob(f"{name}-*"):
        if old != target and re.fullmatch(re.escape(name) + r"-[0-9a-f]{16}", old.name):
            shutil.rmtree(old, ignore_errors=True)
    return path


def _write_arrays(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Write a zarr group, flushed to the disk; returns a digest of names and numbers."""
    digest = hashlib.sha256()
    group = zarr.create_group(store=folder, zarr_format=3)
    for key, values in arrays.items():
        given = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        made = group.create_array(
            key,
            shape=given.shape,
            chunks=tuple(max(1, length) for length in given.shape),
            dtype=given.dtype,
            compressors=None,
            filters=None,
            config={"write_empty_chunks": True},  # else an array of zeros has no file
        )
        made[...] = given
        digest.update(f"{key} {given.dtype.str} {given.shape} ".encode())
        digest.update(given.data)
    for where, _, names in os.walk(folder, topdown=False):
        for file in names:
            with _descriptor(Path(where) / file) as descriptor:
                files._fsync(descriptor)
        files.flush_folder(Path(where))
    return digest.hexdigest()[:16]


@contextlib.contextmanager
def _descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class StoredValues(Mapping[str, NDArray[Any]]):
    """Values of nodes by name, mapped: slices read what they need, and nothing else.

    Made by `open_values`.

    Attributes
    ----------
    path : Path
        The json file.
    document : dict
        What the values are.
    """

    def __init__(self, path: Path, document: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        self.path = path
        self.document = document
        self._arrays = arrays

    def __getitem__(self, name: str) -> NDArray[Any]:
        try:
            return self._arrays[name]
        except KeyError:
            raise UsageError(
                f"{self.path} has no values {name!r}", f"It has: {', '.join(self._arrays)}."
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<StoredValues {self.path.stem}: {', '.join(self._arrays)}>"


def open_values(path: str | Path, name: str = "evaluation") -> StoredValues:
    """Open values that `omtrain evaluate` wrote.

    Parameters
    ----------
    path : path
        The export's folder, or a json file of its ``om/values/``.
    name : str
        Which, in an export.

    Returns
    -------
    StoredValues
        Arrays are mapped read-only, (N, ...).

    Raises
    ------
    StoreNotFoundError
        If there are none.
    CorruptStoreError
        If a file isn't what the json says.
    """
    given = Path(path)
    file = given / "om" / "values" / f"{name}.json" if given.is_dir() else given
    for attempt in (0, 1):
        try:
            return _opened(file)
        except CorruptStoreError:
            # replaced between reading the json and opening what it named: read it again, once
            if attempt:
                raise
    raise AssertionError("unreachable")


def _opened(file: Path) -> StoredValues:
    try:
        described = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{file} isn't there", "Write values with `omtrain evaluate EXPORT`."
        ) from error
    except ValueError as error:
        raise CorruptStoreError(f"{file} isn't JSON: {error}", "Evaluate again.") from error
    if not isinstance(described, dict) or described.get("format") != FORMAT:
        raise CorruptStoreError(f"{file} describes no {FORMAT}", "Evaluate again.")
    if described["schema"] > SCHEMA:
        raise UsageError(f"{file} has schema {described['schema']}; this version knows up to {SCHEMA}")
    try:
        folder = file.parent / str(described["folder"])
        if not _NAME.fullmatch(folder.name) or folder.parent != file.parent:
            raise CorruptStoreError(f"{file} names a folder elsewhere: {described['folder']!r}")
        arrays = {
            key: _mapped(folder, key, tuple(entry["shape"]), np.dtype(entry["dtype"]))
            for key, entry in described["arrays"].items()
        }
        return StoredValues(file, described["document"], arrays)
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptStoreError(f"{file} is damaged: {error}", "Evaluate again.") from error


def _mapped(folder: Path, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if not _NAME.fullmatch(key) or dtype.hasobject or any(length < 0 for length in shape) or not shape:
        raise CorruptStoreError(f"{folder}: values {key!r} of {dtype} and shape {shape}")
    chunk = folder / key / "c" / "/".join("0" * len(shape))
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    found = chunk.stat().st_size if chunk.is_file() else -1
    if found != size:
        raise CorruptStoreError(
            f"{chunk} has {max(0, found):,} bytes, not {size:,}" if found >= 0 else f"{chunk} isn't there",
            "Evaluate again.",
        )
    if size == 0:
        return np.empty(shape, dtype)
    return np.memmap(chunk, dtype, "r", shape=shape)
