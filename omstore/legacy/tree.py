"""The small tree around the tables: what is left on the machine's heap once everything large has become
rows."""

from __future__ import annotations

import math
from typing import Any, Final

from omstore.errors import TruncatedPickleError
from omstore.legacy.discovery import Discovery
from omstore.legacy.machine import tags
from omstore.legacy.schema import ArrayRef, Instance, Step, TableRef
from omstore.legacy.state import State
from omstore.legacy.values import dtype_of

__all__ = ["Tree"]

_MAX_DEPTH: Final = 16
_MAX_VALUES: Final = 100_000
_LARGE_DATA: Final = 1 << 16
_RECORDS: Final = {tags.DICT, tags.TUPLE, tags.OBJ}
_CONTAINERS: Final = {tags.LIST, tags.DICT, tags.DEQUE, tags.SET}

Path = tuple[Step, ...]


class Tree:
    """Turns the machine's last value into the tree of a `PickleTree`.

    Containers that were too small for the machine to ask about become tables here, too, when their items are
    alike.
    Deeper than 16 levels or past 100,000 values (a hostile pickle can make a few shared lists look like 2^60)
    the tree ends in None.
    """

    def __init__(self, state: State, discovery: Discovery) -> None:
        self._state = state
        self._heap = state.heap
        self._discovery = discovery
        self._left = _MAX_VALUES

    def root(self) -> Any:
        """The whole tree."""
        ((tag, value),) = self._state.stacked(0)
        return self._value(tag, value, (), _MAX_DEPTH)

    def _value(self, tag: int, value: int, path: Path, depth: int) -> Any:
        self._left -= 1
        if depth == 0 or self._left < 0:
            return None
        if tag == tags.DICT:
            return self._dict(value, path, depth)
        if tag in _CONTAINERS:
            return self._list(tag, value, path, depth)
        if tag == tags.TUPLE:
            return self._tuple(value, path, depth)
        if tag == tags.OBJ:
            return self._instance(value, path, depth)
        if tag == tags.ARRAY:
            return self._array(value)
        if tag in (tags.BYTES, tags.ENCODED):
            raw = self._heap.raw(tag, value)
            return raw if len(raw) <= _LARGE_DATA else None
        plain = self._heap.value(tag, value)
        return plain if isinstance(plain, bool | int | float | str) else None

    def _reference(self, path: Path, table: int = -1) -> TableRef:
        """A reference to a table (the newest), which now knows for sure where it is."""
        schemas = self._state.tables.schemas
        schema = schemas[table]
        schema.path = path
        if schema.links_to is not None:
            schemas[schema.links_to].path = path
        return TableRef(schema.id)

    def _table_of(self, address: int) -> int:
        """A container's table, -1: none yet, -2: its items were looked at and make none."""
        table = int(self._heap.slots[address + tags.C_TABLE])
        return table - 1 if table >= 0 else -2

    def _dict(self, address: int, path: Path, depth: int) -> Any:
        table = self._table_of(address)
        if table >= 0:
            return self._reference(path, table)
        items = self._heap.items(address)
        pairs = list(zip(items[::2], items[1::2], strict=True))
        named = all(tag == tags.TEXT for (tag, _), _ in pairs)
        if pairs and not named and table == -1 and self._discovery.dict_table(address, path):
            return self._reference(path, self._table_of(address))
        return {
            self._key(*key): self._value(*item, (*path, self._key(*key)), depth - 1) for key, item in pairs
        }

    def _list(self, tag: int, address: int, path: Path, depth: int) -> Any:
        table = self._table_of(address)
        if table >= 0:
            return self._reference(path, table)
        items = self._heap.items(address)
        nested = any(self._holds_table(*item) for item in items)
        if items and not nested and table == -1 and self._discovery.list_table(tag, address, path):
            return self._reference(path)
        return [self._value(*item, (*path, i), depth - 1) for i, item in enumerate(items)]

    def _tuple(self, address: int, path: Path, depth: int) -> Any:
        """A tuple of records is a table; one of arrays or containers of other things is a structure."""
        items = self._heap.tuple_items(address)
        kinds = {tag for tag, _ in items}
        alike = len(kinds) == 1 and kinds <= _RECORDS
        if (
            len(items) > 1
            and (alike or not kinds & _CONTAINERS)
            and max(kinds) >= tags.FIRST_POINTER
            and not any(self._holds_table(*item) for item in items)
            and self._discovery.list_table(tags.TUPLE, address, path)
        ):
            return self._reference(path)
        return tuple(self._value(*item, (*path, i), depth - 1) for i, item in enumerate(items))

    def _holds_table(self, tag: int, address: int) -> bool:
        """Whether a value is a table or has records in it: then the container around it is a structure, no
        table."""
        if tag not in (tags.DICT, tags.LIST, tags.DEQUE):
            return False
        if self._table_of(address) >= 0:
            return True
        first = self._heap.items(address)[:4]
        return tag != tags.DICT and any(item in (tags.OBJ, tags.DICT, tags.ARRAY) for item, _ in first)

    def _key(self, tag: int, value: int) -> Step:
        plain = self._heap.value(tag, value)
        return plain if isinstance(plain, str | int) else repr(plain)

    def _instance(self, address: int, path: Path, depth: int) -> Instance:
        """An instance's fields: from its dict, its slots, a sequence of values, or its constructor's
        arguments."""
        heap = self._heap
        tag, state = int(heap.tags[address + 2]), int(heap.slots[address + 2])
        dicts: list[int] = []
        values: list[tuple[int, int]] = []
        if tag == tags.DICT:
            dicts = [state]
        elif tag == tags.TUPLE:
            values = heap.tuple_items(state)
            if all(part in (tags.DICT, tags.NONE) for part, _ in values):
                dicts = [part for part_tag, part in values if part_tag == tags.DICT]
        elif tag == tags.LIST:
            values = heap.items(state)
        elif heap.tags[address + 1] == tags.TUPLE:
            values = heap.tuple_items(int(heap.slots[address + 1]))
        named: list[tuple[Step, tuple[int, int]]] = list(enumerate(values))
        if dicts:
            items = [item for part in dicts for item in heap.items(part)]
            named = [(self._key(*key), item) for key, item in zip(items[::2], items[1::2], strict=True)]
        fields = {step: self._value(*item, (*path, step), depth - 1) for step, item in named}
        return Instance(self._state.class_name(int(heap.slots[address])), fields)

    def _array(self, address: int) -> ArrayRef | None:
        array = self._heap.value(tags.ARRAY, address)
        if array.code == 0:
            return None
        dtype = dtype_of(array.code)
        size = math.prod(array.shape) * dtype.itemsize
        if array.tag == tags.RAWAT and array.value + size <= self._state.data.size:
            return ArrayRef(dtype, array.shape, array.fortran_order, array.value)
        if array.tag == tags.BYTES:
            start, length = self._heap.span(array.value)
            if length == size:
                return ArrayRef(dtype, array.shape, array.fortran_order, start)
        elif array.tag == tags.ENCODED:
            raw = self._heap.raw(array.tag, array.value)
            if len(raw) == size:
                return ArrayRef(dtype, array.shape, array.fortran_order, -1, raw)
        raise TruncatedPickleError(
            f"{self._state.name}: an array of shape {array.shape} and dtype {dtype} doesn't have its "
            f"{size:,} bytes",
            "Copy or export the file again.",
        )
