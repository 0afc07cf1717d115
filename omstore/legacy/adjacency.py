"""Recognising an adjacency: a dict of lists of edges, or a dict of dicts of lists of edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from omstore.legacy.machine import plan, tags
from omstore.legacy.shapes import Shape, merge_all
from omstore.legacy.values import Heap

__all__ = ["Adjacency", "find_adjacency"]

_SAMPLES: Final = 256
_RECORDS: Final = (tags.OBJ, tags.TUPLE, tags.DICT)


@dataclass(frozen=True)
class Adjacency:
    """What was found.

    Attributes
    ----------
    keys : list of Shape
        Of the outer key and, with two levels, the inner one.
    record : Shape
        Of an edge.
    lists : list of int
        Addresses of every list of edges on the heap, in the order they were made; the last ones may still
        grow.
    """

    keys: list[Shape]
    record: Shape
    lists: list[int]


def find_adjacency(
    heap: Heap, items: list[tuple[int, int]], pending: list[tuple[int, int]]
) -> Adjacency | None:
    """Say whether a dict is an adjacency.

    Parameters
    ----------
    heap : Heap
    items : list of (tag, payload)
        Keys and values the dict holds already, alternating.
    pending : list of (tag, payload)
        What is on the stack above the dict: keys and values not yet set, and whatever the last value is being
        built from.
    """
    entries = items + pending
    pairs = [(entries[i], entries[i + 1]) for i in range(0, len(entries) - 1, 2)]
    # Of what's pending only leading (key, value) pairs count; the rest belongs to the value under
    # construction.
    level = 0
    outer, inner, lists = [], [], []
    for key, (tag, value) in pairs:
        if tag == tags.LIST and level != 2:
            level = 1
            lists.append(value)
        elif tag == tags.DICT and level != 1 and (found := _inner_lists(heap, value)) is not None:
            level = 2
            inner += found[0]
            lists += found[1]
        else:
            break
        outer.append(key)
    if level == 0:
        return None
    settled = len(outer) * 2
    if settled < len(items):
        return None
    # A list of edges that is still being filled hangs higher on the stack.
    if level == 2:
        open_items = entries[settled - 1 :] if settled > 0 else entries
        for position, (tag, value) in enumerate(open_items):
            if tag == tags.LIST and value not in lists and position > 0:
                lists.append(value)
    if level == 2 and not inner:
        return None
    keys = [merge_all(heap.samples(some[:_SAMPLES])) for some in (outer, inner) if some]
    if any(key.kind == plan.K_SKIP for key in keys):
        return None  # text, mostly: a dict of an export's parts
    records: list[tuple[int, int]] = []
    for address in lists:
        if heap.slots[address + tags.C_ROWS] == 0 and len(records) < _SAMPLES:
            records += heap.items(address)
    if not records or any(tag not in _RECORDS for tag, _ in records):
        return None
    record = merge_all(heap.samples(records[:_SAMPLES]))
    if record.kind not in (plan.K_OBJ, plan.K_SEQ, plan.K_DICT, plan.K_INTS, plan.K_FLOATS):
        return None
    kept = [address for address in lists if all(tag in _RECORDS for tag, _ in heap.items(address))]
    return Adjacency(keys, record, kept)


def _inner_lists(heap: Heap, address: int) -> tuple[list[tuple[int, int]], list[int]] | None:
    """Keys and lists of an inner dict; None when a value isn't a list."""
    items = heap.items(address)
    keys, lists = items[::2], []
    for tag, value in items[1::2]:
        if tag != tags.LIST:
            return None
        lists.append(value)
    return keys, lists
