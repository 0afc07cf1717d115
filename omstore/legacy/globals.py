"""What a pickle's globals mean to the machine. Nothing is ever imported: a name decides.

The names a few standard containers, numpy and torch use in their pickles are understood as data. Classes that
belong to neither the standard library nor a known package are records' classes: an instance is kept as its
fields. Everything else that a pickle would call is refused.
"""

from __future__ import annotations

import sys
from typing import Final

from omstore.legacy import machine

__all__ = ["global_kind"]

_NUMPY_CORE: Final = ("numpy.core", "numpy._core")

_KNOWN: Final[dict[tuple[str, str], int]] = {
    ("numpy", "dtype"): machine.G_DTYPE,
    ("numpy", "ndarray"): machine.G_NAME,
    ("_codecs", "encode"): machine.G_ENCODE,
    ("copyreg", "_reconstructor"): machine.G_RECONSTRUCTOR,
    ("copy_reg", "_reconstructor"): machine.G_RECONSTRUCTOR,
    ("collections", "OrderedDict"): machine.G_DICT,
    ("collections", "defaultdict"): machine.G_DICT,
    ("collections", "Counter"): machine.G_DICT,
    ("collections", "deque"): machine.G_DEQUE,
    ("types", "SimpleNamespace"): machine.G_NAMESPACE,
    ("torch._utils", "_rebuild_tensor_v2"): machine.G_TENSOR,
    ("torch._utils", "_rebuild_parameter"): machine.G_PARAMETER,
    ("torch.storage", "_load_from_bytes"): machine.G_STORAGE,
}
for _core in _NUMPY_CORE:
    _KNOWN[(f"{_core}.multiarray", "_reconstruct")] = machine.G_RECONSTRUCT
    _KNOWN[(f"{_core}.multiarray", "scalar")] = machine.G_SCALAR
    _KNOWN[(f"{_core}.numeric", "_frombuffer")] = machine.G_FROMBUFFER
for _builtins in ("builtins", "__builtin__"):
    _KNOWN[(_builtins, "dict")] = machine.G_DICT
    _KNOWN[(_builtins, "list")] = machine.G_LIST
    _KNOWN[(_builtins, "tuple")] = machine.G_TUPLE
    _KNOWN[(_builtins, "set")] = machine.G_SET
    _KNOWN[(_builtins, "frozenset")] = machine.G_SET
    _KNOWN[(_builtins, "bytes")] = machine.G_BYTES
    _KNOWN[(_builtins, "bytearray")] = machine.G_BYTES
    for _name in ("object", "int", "float", "bool", "str"):
        _KNOWN[(_builtins, _name)] = machine.G_NAME

# Constructors of plain values that exports carry in their metadata. They stay unread.
_OPAQUE: Final = {
    ("datetime", "datetime"), ("datetime", "date"), ("datetime", "time"), ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("pathlib", "Path"), ("pathlib", "PosixPath"), ("pathlib", "PurePosixPath"),
    ("pathlib._local", "PosixPath"),
    ("decimal", "Decimal"), ("fractions", "Fraction"), ("builtins", "slice"), ("builtins", "range"),
    ("builtins", "complex"),
    ("__builtin__", "slice"), ("__builtin__", "complex"), ("__builtin__", "xrange"),
}  # fmt: skip

_NO_CLASSES: Final = {
    "posix",
    "nt",
    "torch",
    "numpy",
    "pandas",
    "scipy",
    "__builtin__",
    "copy_reg",
    "joblib",
    "dill",
    "cloudpickle",
}


def global_kind(module: str, name: str) -> int:
    """What a global is, one of the machine's ``G_`` codes.

    ``__main__`` counts as the export's own module, as do all modules that are neither the standard library's
    nor a known package's.
    """
    known = _KNOWN.get((module, name))
    if known is not None:
        return known
    if (module, name) in _OPAQUE:
        return machine.G_OPAQUE
    top = module.partition(".")[0]
    if module != "__main__" and (top in sys.stdlib_module_names or top in _NO_CLASSES):
        return machine.G_REFUSED
    return machine.G_CLASS
