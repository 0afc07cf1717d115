"""The shape of a record, inferred from samples: what becomes a column, and what is left out and why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from omstore.legacy.machine import plan, tags
from omstore.legacy.schema import Column, Ignored, Step
from omstore.legacy.values import Array, Mapping, Opaque, Record, RowList, dtype_of

__all__ = ["Shape", "merge_all", "shape_of"]

MAX_CHILDREN: Final = 4096
_MAX_VECTOR_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Shape:
    """What a value looks like, so far.

    Attributes
    ----------
    kind : int
        One of the machine's ``K_`` codes; ``K_SKIP`` with a `reason` makes no column.
    size : int
        Elements of a vector of numbers, or bytes.
    code, dims : int, tuple of int
        Of an array: dtype code and shape.
    class_id, mode : int
        Of an instance.
    children : tuple of (step, Shape)
        Of dicts, sequences and instances.
    reason, sample, origin : str
        For people.
    """

    kind: int
    size: int = 0
    code: int = 0
    dims: tuple[int, ...] = ()
    class_id: int = -1
    mode: int = 0
    children: tuple[tuple[Step, Shape], ...] = field(default=())
    reason: str = ""
    sample: str = ""
    origin: str = ""

    def leaves(self, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], Shape]]:
        """All leaves below, with their paths, in order."""
        if self.kind in (plan.K_SEQ, plan.K_DICT, plan.K_OBJ):
            for step, child in self.children:
                yield from child.leaves((*path, step))
        else:
            yield path, self

    def column(self, path: tuple[Step, ...]) -> Column | Ignored:
        """The column (or the reason for none) of a leaf."""
        scalars: dict[int, tuple[str, np.dtype[Any]]] = {
            plan.K_INT: ("int", np.dtype(np.int64)),
            plan.K_FLOAT: ("float", np.dtype(np.float64)),
            plan.K_BOOL: ("bool", np.dtype(np.uint8)),
        }
        if self.kind in scalars:
            kind, dtype = scalars[self.kind]
            return Column(path, kind, dtype, (), self.origin)
        if self.kind == plan.K_INTS:
            return Column(path, "vector", np.dtype(np.int64), (self.size,), self.origin)
        if self.kind == plan.K_FLOATS:
            return Column(path, "vector", np.dtype(np.float64), (self.size,), self.origin)
        if self.kind == plan.K_BYTES:
            return Column(path, "vector", np.dtype(np.uint8), (self.size,), self.origin)
        if self.kind == plan.K_ARRAY:
            dtype = dtype_of(self.code)
            native = np.dtype(np.uint8) if dtype.kind == "b" else dtype.newbyteorder("=")
            kind = {"b": "bool", "f": "float"}.get(dtype.kind, "int") if self.dims == () else "vector"
            return Column(path, kind, native, self.dims, self.origin)
        if self.kind == plan.K_NONE:
            return Ignored(path, "None in every record", "None")
        return Ignored(path, self.reason, self.sample)


def _skip(reason: str, sample: object = "") -> Shape:
    text = repr(sample) if sample != "" else ""
    return Shape(plan.K_SKIP, reason=reason, sample=text if len(text) < 60 else text[:57] + "...")


def _sequence(items: list[Any] | tuple[Any, ...], origin: str) -> Shape:
    if len(items) == 0:
        return Shape(plan.K_SEQ, origin=origin)
    if all(isinstance(item, bool | int) for item in items):
        return Shape(plan.K_INTS, size=len(items), origin=origin)
    if all(isinstance(item, bool | int | float) for item in items):
        return Shape(plan.K_FLOATS, size=len(items), origin=origin)
    if len(items) > MAX_CHILDREN:
        return _skip(f"a {origin} of {len(items)} values that aren't plain numbers")
    return Shape(
        plan.K_SEQ, children=tuple((i, shape_of(item)) for i, item in enumerate(items)), origin=origin
    )


def shape_of(value: Any) -> Shape:
    """The shape of one sample (see `omstore.legacy.values.Heap.value`)."""
    if value is None:
        return Shape(plan.K_NONE, origin="None")
    if isinstance(value, bool):
        return Shape(plan.K_BOOL, origin="bool")
    if isinstance(value, int):
        return Shape(plan.K_INT, origin="int")
    if isinstance(value, float):
        return Shape(plan.K_FLOAT, origin="float")
    if isinstance(value, str):
        return _skip("text", value)
    if isinstance(value, bytes):
        return Shape(plan.K_BYTES, size=len(value), origin="bytes") if value else _skip("empty bytes")
    if isinstance(value, tuple):
        return _sequence(value, "tuple")
    if isinstance(value, list):
        return _sequence(value, "list")
    if isinstance(value, Array):
        if value.code == 0 or value.tag == tags.NONE:
            return _skip("an array of objects, text or structures")
        if value.fortran_order and len(value.shape) > 1:
            return _skip("an array in Fortran order")
        if len(value.shape) > 4:
            return _skip("an array of more than four dimensions")
        origin = "tensor" if value.tag == tags.RAWAT else "ndarray"
        size = math.prod(value.shape) * dtype_of(value.code).itemsize
        if size > _MAX_VECTOR_BYTES:
            return _skip(f"an array of {size:,} bytes")
        if size == 0:
            return _skip("an empty array")
        return Shape(plan.K_ARRAY, size=size, code=value.code, dims=value.shape, origin=origin)
    if isinstance(value, Mapping):
        if len(value.pairs) > MAX_CHILDREN:
            return _skip(f"a dict of {len(value.pairs)} entries")
        keys = [key for key, _ in value.pairs]
        if not all(isinstance(key, str | int) and not isinstance(key, bool) for key in keys):
            return _skip("a dict whose keys are neither text nor integers")
        return Shape(
            plan.K_DICT, children=tuple((key, shape_of(item)) for key, item in value.pairs), origin="dict"
        )
    if isinstance(value, Record):
        children = tuple((key, shape_of(item)) for key, item in value.fields)
        return Shape(plan.K_OBJ, class_id=value.class_id, mode=value.mode, children=children, origin="object")
    if isinstance(value, RowList):
        return _skip("a list of records")
    if isinstance(value, Opaque):
        return _skip(value.what)
    return _skip(type(value).__name__)


_WIDER: Final = {
    (plan.K_BOOL, plan.K_INT): plan.K_INT,
    (plan.K_BOOL, plan.K_FLOAT): plan.K_FLOAT,
    (plan.K_INT, plan.K_FLOAT): plan.K_FLOAT,
    (plan.K_INTS, plan.K_FLOATS): plan.K_FLOATS,
}


def merge(one: Shape, two: Shape) -> Shape:
    """The shape that both fit; ``K_SKIP`` with the reason where there is none."""
    if one == two:
        return one
    if one.kind == plan.K_SKIP:
        return one if one.reason != "text" or two.reason == "text" else _skip("type varies")
    if two.kind == plan.K_SKIP:
        return _skip("type varies") if two.reason == "text" else two
    if plan.K_NONE in (one.kind, two.kind) and one.kind != two.kind:
        return _skip("None in some records")
    wider = _WIDER.get((one.kind, two.kind)) or _WIDER.get((two.kind, one.kind))
    if wider is not None:
        if one.size != two.size:
            return _skip("length varies")
        return replace(one, kind=wider)
    if one.kind != two.kind:
        return _skip("type varies")
    if one.size != two.size:
        return _skip("length varies")
    if one.kind == plan.K_ARRAY and (one.code, one.dims) != (two.code, two.dims):
        return _skip("shape or dtype varies")
    if one.kind in (plan.K_SEQ, plan.K_DICT, plan.K_OBJ):
        if (one.class_id, one.mode) != (two.class_id, two.mode):
            return _skip("class varies")
        theirs = dict(two.children)
        if len(theirs) != len(one.children) or any(step not in theirs for step, _ in one.children):
            return _skip(
                "keys vary"
                if one.kind == plan.K_DICT
                else "fields vary"
                if one.kind == plan.K_OBJ
                else "length varies"
            )
        return replace(
            one, children=tuple((step, merge(child, theirs[step])) for step, child in one.children)
        )
    return one


def merge_all(samples: list[Any]) -> Shape:
    """The shape all samples fit."""
    merged = shape_of(samples[0])
    for sample in samples[1:]:
        merged = merge(merged, shape_of(sample))
    return merged
