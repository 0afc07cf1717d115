"""What every compiled kernel of the project is made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.extending
import numpy as np
from llvmlite import ir
from numba.core import types
from numpy.typing import DTypeLike, NDArray

from omstore.kernel_cache import stamp_cache

__all__ = ["as_input", "inlined_kernel", "inner_kernel", "intrinsic", "kernel", "prefetch"]

F = TypeVar("F", bound=Callable[..., Any])

_BYTE = ir.IntType(8)


def kernel(function: F) -> F:
    """Compile with numba on first call, without the GIL, and cache the machine code on disk.

    Where no cache folder is writable (a read-only installation without a home directory) the kernel
    is compiled afresh in every process instead of failing at import, as numba would.

    A kernel may call kernels of other files: the machine code on disk is stale when one of those files changes,
    see :mod:`omstore.kernel_cache`.
    """
    try:
        made = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # "cannot cache function ...: no locator available"
        made = None
    if made is None or not stamp_cache(made, function):
        made = numba.njit(nogil=True, error_model="numpy")(function)
    return cast(F, made)


def inner_kernel(function: F) -> F:
    """Compile a function that only kernels call.

    It has no wrapper that Python could call and nothing of its own on disk: both take time to compile, and
    the kernels that call it have all of it in theirs.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
    }
    return cast(F, cast(Any, numba.njit)(**options)(function))


def inlined_kernel(function: F) -> F:
    """Compile a function into each kernel's place that calls it.

    For small functions in hot loops: a call passes seven values for every array, which can take longer than
    the work. Each call adds to the time that its kernel takes to compile.
    """
    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "no_cpython_wrapper": True,
        "no_cfunc_wrapper": True,
        "forceinline": True,
    }
    return cast(F, cast(Any, numba.njit)(**options)(function))


def intrinsic(function: Any) -> Any:
    """Let kernels call a generator of LLVM code with the arguments behind `typing`, which mypy can't know."""
    return numba.extending.intrinsic(function)


@intrinsic
def prefetch(typing: Any, array: Any, position: Any) -> Any:
    """Ask for the cache line of an element ahead of its use; any position is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), _BYTE.as_pointer())
        i32 = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch",
            (_BYTE.as_pointer(),),
            ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), i32, i32, i32]),
        )
        # read, keep in all caches, data
        builder.call(function, [pointer, ir.Constant(i32, 0), ir.Constant(i32, 3), ir.Constant(i32, 1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


def as_input(array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """Make an array what kernels take as input: C-contiguous, of one dtype, native byte order, read-only.

    A kernel is compiled once for every combination of argument types, and a read-only (mapped) array is
    another type than a writable one: flagging all inputs read-only halves the combinations. A view where
    possible, else a copy.
    """
    view = np.ascontiguousarray(array, dtype=dtype).view(np.ndarray)
    if view.flags.writeable:
        view = view.view()
        view.flags.writeable = False
    return view
