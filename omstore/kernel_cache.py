"""When machine code on disk is stale: what a kernel takes from other files counts, not its own file alone.

numba stamps what it caches with the contents of the function's own file. A kernel that calls another file's, or uses
a constant that was imported, would keep what it was compiled with when that file changes.

And it numbers the files of a kernel's machine code: of two processes that compile a kernel at once for other types, one
could find the other's code under its number. Here the types are in the name.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

__all__ = ["stamp_cache", "taken_from_elsewhere"]

_CONSTANTS = (bool, int, float, complex, str, bytes, np.generic, np.ndarray)


def stamp_cache(kernel: Any, function: Callable[..., Any]) -> bool:
    """Add to the stamp of a kernel's cache what the kernel takes from elsewhere.

    Parameters
    ----------
    kernel : numba dispatcher
        Made with a cache.
    function : callable
        What it was made of.

    Returns
    -------
    bool
        False where the kernel must not be cached: it may call other files' kernels, and those files can't be read, or
        numba keeps its stamp elsewhere than 0.61 to 0.68 do.
    """
    try:
        files, constants = taken_from_elsewhere(function)
    except OSError:  # a file that can't be read can't be compared either
        return False
    file: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if not hasattr(file, "_source_stamp"):
        return not files
    file._source_stamp = (file._source_stamp, files, constants)
    if all(hasattr(file, name) for name in _SAVING):
        file.save = functools.partial(_save, file)
    return True


_SAVING = ("_cache_path", "_index_name", "_load_index", "_save_index", "_save_data", "save")


def _save(file: Any, key: Any, data: Any) -> None:
    """Save machine code under a name that no other code has, then say so in the index."""
    kernel = file._index_name.removesuffix(".nbi")
    about = repr((key, file._source_stamp))
    name = f"{kernel}.{hashlib.sha256(about.encode()).hexdigest()[:16]}.nbc"
    file._save_data(name, data)
    known = file._load_index()
    if not known:  # the first of this stamp: nobody looks for earlier ones
        for path in Path(file._cache_path).iterdir():
            if path.name.startswith(f"{kernel}.") and path.suffix == ".nbc" and path.name != name:
                path.unlink(missing_ok=True)
    file._save_index({**known, key: name})


def taken_from_elsewhere(function: Callable[..., Any]) -> tuple[tuple[str, ...], str]:
    """Return digests of the other files whose kernels a function could call, and of the constants it could use.

    Everything that its module has by now counts, and what the modules of those kernels have in turn.

    Returns
    -------
    files : tuple of str
        Ascending; of the files' contents, not of where they are.
    constants : str
    """
    assert isinstance(function, FunctionType)
    package = function.__module__.partition(".")[0]
    own = function.__code__.co_filename
    files: dict[str, str] = {}
    constants = hashlib.sha256()
    waiting = [function.__globals__]
    while waiting:
        names = waiting.pop()
        for name in sorted(name for name in names if not name.startswith("__")):
            value = names[name]
            if _is_constant(value):
                constants.update(f"{name}={_written(value)}\n".encode())
                continue
            path, inside = _origin(value, package)
            if path not in ("", own) and path not in files:
                files[path] = _digest(path)
                waiting.append(inside)
    return tuple(sorted(files.values())), constants.hexdigest()


def _origin(value: Any, package: str) -> tuple[str, dict[str, Any]]:
    """Give the file of a kernel, of code that kernels call or of a module, and the names there; "" of all else."""
    if isinstance(value, ModuleType):
        ours = value.__name__.partition(".")[0] == package
        return (value.__file__ or "", vars(value)) if ours else ("", {})
    if type(value).__module__.partition(".")[0] == "numba":
        made_of = getattr(value, "py_func", None) or getattr(
            value, "_defn", None
        )  # of a kernel, of an intrinsic
        if isinstance(made_of, FunctionType):
            return made_of.__code__.co_filename, made_of.__globals__
    return "", {}


def _is_constant(value: Any) -> bool:
    if _is_named_tuple(value):
        return True
    if isinstance(value, tuple):
        return all(_is_constant(part) for part in value)
    return isinstance(value, _CONSTANTS)


def _is_named_tuple(value: Any) -> bool:
    """Whether it is a class of named tuples: kernels take their fields by number."""
    return isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields")


def _written(value: Any) -> str:
    if _is_named_tuple(value):
        return f"fields {value._fields}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype.str}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, tuple):
        return f"({','.join(_written(part) for part in value)})"
    return f"{type(value).__name__} {value!r}"


@functools.cache
def _digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
