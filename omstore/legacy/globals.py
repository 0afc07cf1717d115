"""What a pickle's globals mean to the machine. Nothing is ever imported: a name decides.

The names a few standard containers, numpy and torch use in their pickles are understood as data. Classes that
belong to neither the standard library nor a known package are records' classes: an instance is kept as its
fields. Everything else that a pickle would call is refused.
"""

from __future__ import annotations

import sys
from typing import Final

from omstore.legacy.machine import tags

__all__ = ["global_kind"]

_NUMPY_CORE: Final = ("numpy.core", "numpy._core")

_KNOWN: Final[dict[tuple[str, str], int]] = {
    ("numpy", "dtype"): tags.G_DTYPE,
    ("numpy", "ndarray"): tags.G_NAME,
    ("_codecs", "encode"): tags.G_ENCODE,
    ("copyreg", "_reconstructor"): tags.G_RECONSTRUCTOR,
    ("copy_reg", "_reconstructor"): tags.G_RECONSTRUCTOR,
    ("collections", "OrderedDict"): tags.G_DICT,
    ("collections", "defaultdict"): tags.G_DICT,
    ("collections", "Counter"): tags.G_DICT,
    ("collections", "deque"): tags.G_DEQUE,
    ("types", "SimpleNamespace"): tags.G_NAMESPACE,
    ("torch._utils", "_rebuild_tensor_v2"): tags.G_TENSOR,
    ("torch._utils", "_rebuild_parameter"): tags.G_PARAMETER,
    ("torch.storage", "_load_from_bytes"): tags.G_STORAGE,
}
for _core in _NUMPY_CORE:
    _KNOWN[(f"{_core}.multiarray", "_reconstruct")] = tags.G_RECONSTRUCT
    _KNOWN[(f"{_core}.multiarray", "scalar")] = tags.G_SCALAR
    _KNOWN[(f"{_core}.numeric", "_frombuffer")] = tags.G_FROMBUFFER
for _builtins in ("builtins", "__builtin__"):
    _KNOWN[(_builtins, "dict")] = tags.G_DICT
    _KNOWN[(_builtins, "list")] = tags.G_LIST
    _KNOWN[(_builtins, "tuple")] = tags.G_TUPLE
    _KNOWN[(_builtins, "set")] = tags.G_SET
    _KNOWN[(_builtins, "frozenset")] = tags.G_SET
    _KNOWN[(_builtins, "bytes")] = tags.G_BYTES
    _KNOWN[(_builtins, "bytearray")] = tags.G_BYTES
    for _name in ("object", "int", "float", "bool", "str"):
        _KNOWN[(_builtins, _name)] = tags.G_NAME

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
        return tags.G_OPAQUE
    top = module.partition(".")[0]
    if module != "__main__" and (top in sys.stdlib_module_names or top in _NO_CLASSES):
        return tags.G_REFUSED
    return tags.G_CLASS
