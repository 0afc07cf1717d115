"""Writing attributes of edges into a version: coded where that is smaller, cold beside compressed rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.encode.distinct import DistinctWords, sort_words, words_of
from omstore.encode.hoist import code_dtype
from omstore.format.cold import ColdArray
from omstore.format.hot import drop_pages
from omstore.publish.scratch import ScratchArrays
from omstore.publish.staging import Staging
from omstore.read.attributes import Attribute

__all__ = ["attribute_bytes", "code_by_node", "write_attributes"]

_STEP = 1 << 16


def code_by_node(attribute: Attribute) -> Attribute:
    """Code an attribute by next node or by node where its distinct values and a code for each node take fewer
    bytes; else return it as it is.

    Memory: the codes, 1 or 2 bytes a node (4 while they are made), and the distinct values.
    """
    if attribute.level not in ("next_node", "node") or attribute.codes is not None:
        return attribute
    item_bytes = attribute.dtype.itemsize * int(np.prod(attribute.item_shape, dtype=np.int64))
    count = len(attribute.values)
    if item_bytes <= 1 or not count:
        return attribute
    width = words_of(np.asarray(attribute.values[:1])).shape[1]
    distinct = DistinctWords(width)
    numbers = np.empty(count, np.int32)
    for first in range(0, count, _STEP):
        part = attribute.values[first : first + _STEP]
        numbers[first : first + _STEP] = distinct.number(words_of(np.asarray(part)))
        if distinct.overflowed:
            return attribute
    order, code_of = sort_words(distinct.words, np.full(width, attribute.dtype.kind == "f"))
    dtype = code_dtype(len(order))
    if count * dtype.itemsize + len(order) * item_bytes >= count * item_bytes:
        return attribute
    appears = np.full(len(order), count, np.int64)
    np.minimum.at(appears, numbers, np.arange(count))
    values = np.asarray(attribute.values)[appears[order]]
    return replace(attribute, values=values, codes=code_of.astype(dtype)[numbers])


def attribute_bytes(attributes: Sequence[Attribute]) -> int:
    """Bytes that attributes take uncompressed, but those at the level of rows or edges."""
    total = 0
    for attribute in attributes:
        if attribute.level not in ("row", "edge", "rows"):
            items = len(attribute.values) * int(np.prod(attribute.item_shape, dtype=np.int64))
            total += items * attribute.dtype.itemsize
            total += sum(array.nbytes for array in (attribute.codes, attribute.own) if array is not None)
    return total


def write_attributes(
    staging: Staging,
    attributes: Sequence[Attribute],
    *,
    cold: bool = False,
    staged: ScratchArrays | None = None,
) -> dict[str, dict[str, Any]]:
    """Write attributes where their level says, and return ``manifest.attributes``.

    Parameters
    ----------
    staging : Staging
    attributes : sequence of Attribute
        Values in memory, mapped, or compressed arrays.
    cold : bool
        Compress those at the level of rows or edges, as beside csr-compressed rows.
    staged : ScratchArrays, optional
        Where arrays at the level of rows or edges may lie already, under their names: they are moved instead of
        copied where they are compressed or not as is wanted.

    Notes
    -----
    Memory: 65,536 values at a time.
    """
    described = {}
    for attribute in attributes:
        name, level = attribute.name, attribute.level
        entry: dict[str, Any] = {"level": level}
        if level != "rows":
            entry["path"] = _write_values(staging, attribute, cold, staged)
            for part, array, end in (("codes", attribute.codes, ""), ("own", attribute.own, "_own")):
                if array is not None:
                    entry[part] = f"nodes/attributes/{name}{end}"
                    staging.write_hot(entry[part], array)
        entry |= {"dtype": attribute.dtype.name, "shape": list(attribute.item_shape)}
        described[name] = entry
    return described


def _write_values(staging: Staging, attribute: Attribute, cold: bool, staged: ScratchArrays | None) -> str:
    name, level, values = attribute.name, attribute.level, attribute.values
    if level in ("graph", "outcome") or attribute.codes is not None:
        path = f"outcomes/{name}"
        staging.write_hot(path, np.asarray(values))
        return path
    path = f"nodes/attributes/{name}" if level in ("next_node", "node") else f"rows/attributes/{name}"
    cold = cold and level in ("row", "edge")
    same_kind = cold == isinstance(values, ColdArray)
    if staged is not None and same_kind and (staged.path / path).is_dir():
        staging.adopt(staged, path)
        return path
    writer = (staging.cold if cold else staging.hot)(path, attribute.dtype, attribute.item_shape)
    for first in range(0, len(values), _STEP):
        part: NDArray[Any] = values[first : first + _STEP]
        writer.append(part)
        drop_pages(part)
    writer.close()
    return path
