"""One decorator for every compiled kernel of the project."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

__all__ = ["kernel"]

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile with numba on first call, without the GIL, and cache the machine code on disk.

    Where no cache folder is writable (a read-only installation without a home directory) the kernel
    is compiled afresh in every process instead of failing at import, as numba would.

    numba keys its cache on the content of the function's own file: a kernel must only call kernels of the
    same file, or a change in the other file goes unnoticed.
    """
    try:
        compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled
