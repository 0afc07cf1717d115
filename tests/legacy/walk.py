"""The slow, obvious reference of the streaming reader: walk what the real unpickler gives, along the paths
the reader reports."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from omstore.legacy.schema import (
    KEY,
    KEY2,
    VALUE,
    ArrayRef,
    Column,
    Instance,
    PickleTree,
    TableRef,
    TableSchema,
)


class Collect:
    """A sink that keeps every row."""

    def __init__(self) -> None:
        self.chunks: dict[int, list[list[np.ndarray[Any, Any]]]] = {}

    def rows(self, table: TableSchema, first_row: int, columns: Sequence[np.ndarray[Any, Any]]) -> None:
        chunks = self.chunks.setdefault(table.id, [])
        assert first_row == sum(len(chunk[0]) for chunk in chunks)
        assert len({len(column) for column in columns}) == 1
        chunks.append([column.copy() for column in columns])

    def column(self, table: TableSchema, path: tuple[Any, ...]) -> np.ndarray[Any, Any]:
        """All rows of one column."""
        (position,) = (i for i, column in enumerate(table.columns) if column.path == path)
        return np.concatenate([chunk[position] for chunk in self.chunks[table.id]])


@functools.cache
def slots_of(cls: type) -> list[str]:
    """All slots of a class, inherited ones too."""
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return names


def fields_of(item: Any) -> dict[Any, Any] | None:
    """An instance's fields by name: from its dict, its slots or its tuple."""
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return dict(enumerate(item))
    names = slots_of(type(item))
    found = {name: getattr(item, name) for name in names if hasattr(item, name)}
    found.update(getattr(item, "__dict__", {}))
    return found or None


def step_into(item: Any, step: Any, positional: bool) -> Any:
    """What sits one step of a path below an object."""
    if isinstance(item, dict):
        return item[step]
    if isinstance(item, list | tuple):
        return item[step]
    fields = fields_of(item)
    assert fields is not None
    return list(fields.values())[step] if positional and isinstance(step, int) else fields[step]


def follow(item: Any, path: tuple[Any, ...], positional: bool = False) -> Any:
    for step in path:
        item = step_into(item, step, positional)
    return item


def plain(value: Any) -> Any:
    """A tensor or bytes as an array; other values as they are."""
    if hasattr(value, "numpy"):
        return value.numpy()
    return np.frombuffer(bytes(value), np.uint8) if isinstance(value, bytes | bytearray) else value


def same(values: list[Any], stored: np.ndarray[Any, Any], column: Column) -> None:
    """Assert that the stored values are what the unpickler gave, bit for bit."""
    assert stored.shape == (len(values), *column.shape), column
    if not values:
        return
    values = [plain(value) for value in values]
    if column.dtype.kind != "f" and column.shape == ():
        assert [int(value) for value in values] == stored.tolist(), column
        return
    expected = np.stack([np.asarray(value) for value in values])
    assert expected.shape == stored.shape, column
    if column.dtype.kind == "f":
        expected, stored = (
            expected.astype(np.float64).view(np.int64),
            stored.astype(np.float64).view(np.int64),
        )
    assert np.array_equal(expected, stored), (column, np.argwhere(expected != stored)[:3])


def items_of(container: Any) -> Iterator[Any]:
    if isinstance(container, dict):
        yield from container.items()
    else:
        yield from container


def check_table(root: Any, tree: PickleTree, sink: Collect, table: TableSchema) -> None:
    """Assert that a table is exactly its container."""
    container = follow(root, table.path, positional=True)
    stored = [np.concatenate(parts) for parts in zip(*sink.chunks.get(table.id, []), strict=True)]
    abandoned = {ignored.path for ignored in table.ignored}
    if table.links_to is not None:
        check_links(container, tree, table, stored)
        return
    if table.container == "adjacency":
        items = [edge for _, edges in links_of(container) for edge in edges]
    else:
        items = [item for item in items_of(container) if item is not None]
    assert table.num_rows == len(items)
    for position, column in enumerate(table.columns):
        path, values = column.path, items
        if any(path[: len(ignored)] == ignored for ignored in abandoned):
            continue
        if table.container == "dict":
            assert path[0] in (KEY, VALUE)
            values = [item[path[0] == VALUE] for item in items]
            path = path[1:]
        same([follow(value, path, table.positional) for value in values], stored[position], column)


def links_of(container: dict[Any, Any]) -> Iterator[tuple[tuple[Any, ...], list[Any]]]:
    for key, value in container.items():
        if isinstance(value, dict):
            for key2, edges in value.items():
                yield (key, key2), edges
        else:
            yield (key,), value


def check_links(
    container: Any, tree: PickleTree, table: TableSchema, stored: list[np.ndarray[Any, Any]]
) -> None:
    entries = list(links_of(container))
    assert table.num_rows == len(entries)
    for position, column in enumerate(table.columns[:-2]):
        assert column.path[0] in (KEY, KEY2)
        keys = [keys[column.path[0] == KEY2] for keys, _ in entries]
        same([follow(key, column.path[1:]) for key in keys], stored[position], column)
    expected_first = 0
    for first, count, (_, edges) in zip(stored[-2].tolist(), stored[-1].tolist(), entries, strict=True):
        assert first == expected_first or not edges
        assert count == len(edges)
        expected_first += len(edges)


def check_tree(tree: Any, value: Any, sink: Collect) -> None:
    """Assert that what isn't a table is in the tree as it was."""
    if isinstance(tree, TableRef):
        return
    if isinstance(tree, ArrayRef):
        assert isinstance(value, np.ndarray) or hasattr(value, "numpy")
        assert tree.shape == tuple(value.shape)
    elif isinstance(tree, Instance):
        assert tree.class_name.rpartition(".")[2] == type(value).__name__
        fields = fields_of(value)
        assert fields is not None
        for (name, part), (real_name, real) in zip(tree.fields.items(), fields.items(), strict=True):
            assert isinstance(name, int) or name == real_name
            check_tree(part, real, sink)
    elif isinstance(tree, dict):
        assert list(tree) == [key if isinstance(key, str | int) else repr(key) for key in value]
        for part, real in zip(tree.values(), value.values(), strict=True):
            check_tree(part, real, sink)
    elif isinstance(tree, list | tuple):
        if isinstance(value, collections.deque | list | tuple):
            for part, real in zip(tree, value, strict=True):
                check_tree(part, real, sink)
    elif tree is not None:
        assert tree == value or (tree != tree and value != value)


def check_all(root: Any, tree: PickleTree, sink: Collect) -> None:
    """Assert that tables and tree together are the object the real unpickler gives."""
    for table in tree.tables:
        check_table(root, tree, sink, table)
    check_tree(tree.root, root, sink)
