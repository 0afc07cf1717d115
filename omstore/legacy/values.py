"""Values of the machine's heap as Python objects: samples, and the small tree around the tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omstore.errors import TruncatedPickleError, UnsupportedPickleError
from omstore.legacy import opcodes as op
from omstore.legacy.machine import plan, tags
from omstore.legacy.machine.dtypes import BOOLS, FLOATS, INTEGERS, UNSIGNED

__all__ = ["Array", "Heap", "Mapping", "Opaque", "Record", "RowList", "dtype_of"]

_MAX_VALUES: Final = 100_000
_MAX_SAMPLED: Final = 10_000_000
_MAX_DEPTH: Final = 12
_KINDS: Final = {BOOLS: "?", INTEGERS: "i", UNSIGNED: "u", FLOATS: "f"}


def dtype_of(code: int) -> np.dtype[Any]:
    """The numpy dtype of one of the machine's dtype codes."""
    kind = _KINDS[(code >> 9) & 0xFF]
    size = (code >> 1) & 0xFF
    order = ">" if code & 1 else "<"
    return np.dtype("?") if kind == "?" else np.dtype(f"{order}{kind}{size}")


@dataclass(frozen=True)
class Mapping:
    """A dict, as pairs in their order (keys need not be hashable)."""

    pairs: list[tuple[Any, Any]]


@dataclass(frozen=True)
class RowList:
    """A small list whose items have become rows first..first+count-1 of a table."""

    first: int
    count: int


@dataclass(frozen=True)
class Record:
    """An instance: class number, how its state was given (a machine ``M_`` code), and its fields in order."""

    class_id: int
    mode: int
    fields: list[tuple[str | int, Any]]


@dataclass(frozen=True)
class Array:
    """A numpy array or tensor: dtype code (0: no plain number type), shape, order, and where its data is."""

    code: int
    shape: tuple[int, ...]
    fortran_order: bool
    tag: int
    value: int


@dataclass(frozen=True)
class Opaque:
    """Something that is kept unread, named for messages."""

    what: str


class Heap:
    """Read access to the machine's values.

    Parameters
    ----------
    data : uint8 array
        The pickle.
    name : str
        Of the file, for messages.
    """

    def __init__(self, data: NDArray[np.uint8], name: str) -> None:
        self.data = data
        self.name = name
        self.tags: NDArray[np.uint8] = np.zeros(1 << 20, np.uint8)
        self.slots: NDArray[np.int64] = np.zeros(1 << 20, np.int64)
        self._left = _MAX_VALUES
        self._allowance = _MAX_SAMPLED

    def span(self, at: int) -> tuple[int, int]:
        """Start and length of the text or bytes whose opcode is at `at`."""
        code = int(self.data[at])
        if code in (op.SHORT_BINUNICODE, op.SHORT_BINBYTES):
            return at + 2, int(self.data[at + 1])
        width = 4 if code in (op.BINUNICODE, op.BINBYTES) else 8
        return at + 1 + width, int.from_bytes(self.data[at + 1 : at + 1 + width].tobytes(), "little")

    def text(self, at: int) -> str:
        """The text whose opcode is at `at`; raises `TruncatedPickleError` where it isn't UTF-8."""
        start, length = self.span(at)
        try:
            return bytes(self.data[start : start + length]).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise self._damaged(at, "a text that isn't UTF-8") from error

    def _damaged(self, at: int, what: str) -> TruncatedPickleError:
        return TruncatedPickleError(
            f"{self.name}: byte {at:,}: {what}; the file is damaged or not an export",
            "Copy or export the file again.",
        )

    def raw(self, tag: int, value: int) -> bytes:
        """The bytes of a bytes-like value."""
        if tag == tags.ENCODED:
            try:
                return self.text(value).encode("latin-1")
            except UnicodeEncodeError as error:
                raise self._damaged(value, "bytes written as text that isn't Latin-1") from error
        start, length = self.span(value)
        return bytes(self.data[start : start + length])

    def items(self, address: int) -> list[tuple[int, int]]:
        """(tag, payload) of everything in a container's chunks; a dict's keys and values alternate."""
        found = []
        chunk = int(self.slots[address + tags.C_FIRST])
        while chunk >= 0:
            count = int(self.slots[chunk])
            kinds = self.tags[chunk + 2 : chunk + 2 + count].tolist()
            found += list(zip(kinds, self.slots[chunk + 2 : chunk + 2 + count].tolist(), strict=True))
            chunk = int(self.slots[chunk + 1])
        return found

    def chunks(self, address: int) -> list[tuple[int, int]]:
        """(first slot, number of slots) of each chunk of a container."""
        found = []
        chunk = int(self.slots[address + tags.C_FIRST])
        while chunk >= 0:
            found.append((chunk + 2, int(self.slots[chunk])))
            chunk = int(self.slots[chunk + 1])
        return found

    def tuple_items(self, address: int) -> list[tuple[int, int]]:
        """(tag, payload) of a tuple's items."""
        count = int(self.slots[address])
        kinds = self.tags[address + 1 : address + 1 + count].tolist()
        return list(zip(kinds, self.slots[address + 1 : address + 1 + count].tolist(), strict=True))

    def value(self, tag: int, value: int) -> Any:
        """A value as a Python object made of plain values and the classes of this module.

        A hostile pickle can make a few shared lists look like 2^60 values: too deep or past 100,000 they are
        `Opaque`.
        """
        return self.samples([(tag, value)])[0]

    def samples(self, items: list[tuple[int, int]]) -> list[Any]:
        """Values as `value` gives them: of all items, or of the first ones when those are large."""
        left = self._left = _MAX_VALUES
        found: list[Any] = []
        for tag, value in items:
            sample = self._value(tag, value, _MAX_DEPTH)
            if self._left < 0 and found:
                break  # this one has been cut off
            found.append(sample)
        self._allowance -= left - max(self._left, 0)
        if self._allowance < 0:
            raise UnsupportedPickleError(
                f"{self.name}: lists that hold each other look like more than {_MAX_SAMPLED:,} values",
                "The pickle is damaged or hostile; an export holds plain records.",
            )
        return found

    def _value(self, tag: int, value: int, depth: int) -> Any:
        self._left -= 1
        if depth == 0 or self._left < 0:
            return Opaque("deeply nested value")
        if tag == tags.NONE:
            return None
        if tag == tags.BOOL:
            return bool(value)
        if tag == tags.INT:
            return value
        if tag == tags.FLOAT:
            return float(np.int64(value).view(np.float64))
        if tag == tags.TEXT:
            return self.text(value)
        if tag in (tags.BYTES, tags.ENCODED):
            return self.raw(tag, value)
        if tag == tags.TUPLE:
            return tuple(self._value(t, v, depth - 1) for t, v in self.tuple_items(value))
        if tag in (tags.LIST, tags.DEQUE, tags.SET):
            if self.slots[value + tags.C_ROWS]:
                return RowList(int(self.slots[value + tags.C_ROW]), int(self.slots[value + tags.C_ROWS]))
            return [self._value(t, v, depth - 1) for t, v in self.items(value)]
        if tag == tags.DICT:
            items = [self._value(t, v, depth - 1) for t, v in self.items(value)]
            return Mapping(list(zip(items[::2], items[1::2], strict=True)))
        if tag == tags.OBJ:
            return self._record(value, depth)
        if tag == tags.ARRAY:
            extents = (
                self.tuple_items(int(self.slots[value + 1])) if self.tags[value + 1] == tags.TUPLE else []
            )
            sound = all(t == tags.INT and v >= 0 for t, v in extents)
            shape = tuple(v for _, v in extents) if sound else ()
            return Array(
                int(self.slots[value]) if sound else 0,
                shape,
                bool(self.slots[value + 2]),
                int(self.tags[value + 3]),
                int(self.slots[value + 3]),
            )
        if tag == tags.ROWS:
            return RowList(value, 1)
        names = {
            tags.BIGINT: "integer beyond 64 bits",
            tags.GLOBAL: "class or function",
            tags.DTYPE: "dtype",
        }
        return Opaque(names.get(tag, "value that isn't data"))

    def _record(self, address: int, depth: int) -> Record:
        """An instance's fields, by how its state was given."""
        class_id = int(self.slots[address])
        state_tag, state = int(self.tags[address + 2]), int(self.slots[address + 2])
        if state_tag == tags.NONE:
            arguments: list[tuple[int, int]] = []
            if self.tags[address + 1] == tags.TUPLE:
                arguments = self.tuple_items(int(self.slots[address + 1]))
            fields: list[tuple[str | int, Any]] = [
                (i, self._value(t, v, depth - 1)) for i, (t, v) in enumerate(arguments)
            ]
            return Record(class_id, plan.M_ARGS, fields)
        value = self._value(state_tag, state, depth - 1)
        if isinstance(value, Mapping):
            return Record(class_id, plan.M_DICT, _named(value))
        if (
            isinstance(value, tuple)
            and len(value) == 2
            and isinstance(value[1], Mapping)
            and (value[0] is None or isinstance(value[0], Mapping))
        ):
            named = _named(value[1])
            if isinstance(value[0], Mapping):
                named += _named(value[0])
            return Record(class_id, plan.M_SLOTS, named)
        if isinstance(value, list | tuple):
            return Record(class_id, plan.M_SEQ, list(enumerate(value)))
        return Record(class_id, plan.M_SEQ, [(0, value)])


def _named(mapping: Mapping) -> list[tuple[str | int, Any]]:
    return [(key if isinstance(key, str | int) else repr(key), value) for key, value in mapping.pairs]
