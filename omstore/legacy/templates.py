"""Templates: the bytes of records seen before, compiled to a list of things to compare and numbers to pick
up.

Records of one table differ in a few numbers only; everything between those is the same bytes. A template is
made from a record the general machine has read: the opcodes are traced symbolically, each number or byte
string that ends in a column becomes an element, and the bytes between are literals to be compared. So a match
has, by construction, the same effect as the opcodes. Whatever doesn't match is read by the general machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from omstore.legacy import machine
from omstore.legacy import opcodes as op
from omstore.legacy.tables import Tables

__all__ = ["Templates"]

Fetch = Callable[[int], bytes | tuple[int, int] | None]

_MAX_TEMPLATES: Final = 8
_MAX_LITERAL_BYTES: Final = 1 << 16
_TRACED: Final = 48
_FRUITLESS: Final = 6


@dataclass
class _Traced:
    """A value of the symbolic run: the opcode that made it, and what it's made of."""

    at: int
    kind: str
    parts: list[_Traced] = field(default_factory=list)
    arguments: _Traced | None = None
    state: _Traced | None = None
    text: bytes = b""


@dataclass(frozen=True)
class _Element:
    kind: int
    a: int = 0
    b: int = 0


class _NotTraceable(Exception):
    """The record uses something a template can't express."""


class Templates:
    """The templates of all tables, in the arrays the machine reads.

    Parameters
    ----------
    data : uint8 array
        The pickle.
    tables : Tables
    """

    def __init__(self, data: NDArray[np.uint8], tables: Tables) -> None:
        self._data = data
        self._tables = tables
        self._of_table: list[list[tuple[bytes, list[_Element], int]]] = []
        self._fruitless: list[int] = []
        self._literal_parts: list[bytes] = []
        self.templates: NDArray[np.int64] = np.zeros((0, machine.TEMPLATE_FIELDS), np.int64)
        self.elements: NDArray[np.int64] = np.zeros((0, machine.ELEMENT_FIELDS), np.int64)
        self.literals: NDArray[np.uint8] = np.zeros(1, np.uint8)
        self.first_byte: NDArray[np.uint8] = np.zeros((0, 256), np.uint8)

    def add_table(self) -> None:
        """Make room for a new table."""
        self._of_table.append([])
        self._fruitless.append(0)
        self._tables.table[len(self._fruitless) - 1, machine.T_LEARN] = 1
        self._rebuild()

    def drop(self, table: int) -> None:
        """Forget a table's templates: its schema has changed."""
        self._of_table[table] = []
        self._rebuild()

    def learn(self, table: int, start: int, stop: int, fetch: Fetch) -> None:
        """Make templates from the first records between two byte offsets.

        They lie behind a MARK and before the opcode that takes the items. `fetch` says what a memo number
        holds: text as bytes, a global as (GLOBAL, number), a dtype as (DTYPE, code), None for other things.
        """
        known = self._of_table[table]
        self._tables.table[table, machine.T_GENERAL] = 0
        try:
            records = _trace(self._data, start, stop)
        except (_NotTraceable, IndexError):
            return
        counts: dict[bytes, int] = {}
        found: dict[bytes, tuple[list[_Element], int]] = {}
        for begin, end, value in records:
            try:
                elements, memos, signature = self._compile(table, begin, end, value, fetch)
            except _NotTraceable:
                continue
            counts[signature] = counts.get(signature, 0) + 1
            found[signature] = (elements, memos)
        have = {signature for signature, _, _ in known}
        for signature in sorted(counts, key=lambda s: -counts[s]):
            if signature not in have and len(known) < _MAX_TEMPLATES:
                known.append((signature, *found[signature]))
        if len(known) == len(have):
            self._fruitless[table] += 1
        if len(known) >= _MAX_TEMPLATES or self._fruitless[table] >= _FRUITLESS:
            self._tables.table[table, machine.T_LEARN] = 0
        self._rebuild()

    def arrays(self) -> machine.TemplateArrays:
        """What the machine reads."""
        return machine.TemplateArrays(self.templates, self.elements, self.literals, self.first_byte)

    # --- compiling --------------------------------------------------------------------------------------

    def _compile(
        self, table: int, begin: int, end: int, value: _Traced, fetch: Fetch
    ) -> tuple[list[_Element], int, bytes]:
        """(elements, memo entries made, a signature that is equal for equal templates) of one traced
        record."""
        slots: dict[int, _Element] = {}
        self._assign(int(self._tables.table[table, machine.T_ROOT]), value, slots, fetch)
        elements: list[_Element] = []
        signature = bytearray()
        literal = bytearray()
        memos = 0

        def close() -> None:
            if literal:
                elements.append(_Element(machine.P_LITERAL, self._literal(bytes(literal)), len(literal)))
                signature.extend(b"L" + bytes(literal))
                literal.clear()

        at = begin
        while at < end:
            after = _after(self._data, at)
            code = int(self._data[at])
            if code == op.FRAME:
                raise _NotTraceable
            if code in (op.BINPUT, op.LONG_BINPUT):
                close()
                elements.append(_Element(machine.P_PUT))
                signature.extend(b"P")
                memos += 1
            elif at in slots:
                close()
                element = slots[at]
                elements.append(element)
                signature.extend(f"S{element.kind},{element.a},{element.b};".encode())
            elif code in _GETS and (same := self._same(at, after, fetch)) is not None:
                close()
                elements.append(same)
                signature.extend(f"S{same.kind},{same.a},{same.b};".encode())
            else:
                literal.extend(self._data[at:after].tobytes())
                memos += code == op.MEMOIZE
            at = after
        close()
        if not elements or elements[0].kind in (machine.P_PUT, machine.P_TEXT):
            raise _NotTraceable
        return elements, memos, bytes(signature)

    def _same(self, at: int, after: int, fetch: Fetch) -> _Element | None:
        """The element for a memo fetch of something that every record refers to, None to compare the number
        itself."""
        held = fetch(int.from_bytes(self._data[at + 1 : after].tobytes(), "little"))
        if isinstance(held, bytes):
            return _Element(machine.P_SAMETEXT, self._literal(held), len(held))
        if held is None:
            return None
        return _Element(machine.P_SAMEGLOBAL if held[0] == machine.GLOBAL else machine.P_SAMEDTYPE, held[1])

    def _literal(self, text: bytes) -> int:
        joined = b"".join(self._literal_parts)
        at = joined.find(text)
        if at < 0:
            at = len(joined)
            self._literal_parts = [joined, text]
            if at + len(text) > _MAX_LITERAL_BYTES:
                raise _NotTraceable
        return at

    def _assign(self, node: int, value: _Traced, slots: dict[int, _Element], fetch: Fetch) -> None:
        """Walk a traced value along the schema, and note which opcode fills which column."""
        nodes = self._tables.nodes
        kind = int(nodes[node, machine.N_KIND])
        column = int(nodes[node, machine.N_COLUMN])
        size = int(nodes[node, machine.N_SIZE])
        if kind == machine.K_NONE:
            return
        if kind == machine.K_SKIP:
            _skip(value, slots)
            return
        if value.kind == "get":
            slots[value.at] = _Element(machine.P_GET, node)
            return
        if kind in (machine.K_INT, machine.K_FLOAT, machine.K_BOOL):
            if value.kind != "number":
                raise _NotTraceable
            slots[value.at] = _Element(machine.P_NUMBER, column, kind)
        elif kind in (machine.K_INTS, machine.K_FLOATS):
            if value.kind not in ("tuple", "list") or len(value.parts) != size:
                raise _NotTraceable
            inner = machine.K_INT if kind == machine.K_INTS else machine.K_FLOAT
            for i, part in enumerate(value.parts):
                if part.kind != "number":
                    raise _NotTraceable
                slots[part.at] = _Element(machine.P_ELEMENT, column + 8 * i, inner)
        elif kind == machine.K_BYTES:
            if value.kind != "bytes":
                raise _NotTraceable
            slots[value.at] = _Element(machine.P_BYTES, column, size)
        elif kind == machine.K_ARRAY:
            # Everything but the data (shape, dtype, order) is compared as literal bytes.
            holder = value.state if value.kind == "reduced" and value.state is not None else value.arguments
            if holder is None or not holder.parts:
                raise _NotTraceable
            raw = holder.parts[4] if value.state is not None and len(holder.parts) == 5 else holder.parts[0]
            if raw.kind != "bytes":
                raise _NotTraceable
            slots[raw.at] = _Element(machine.P_BYTES, column, size)
        else:
            for child, part in self._children(node, kind, value, fetch):
                self._assign(child, part, slots, fetch)

    def _children(self, node: int, kind: int, value: _Traced, fetch: Fetch) -> list[tuple[int, _Traced]]:
        nodes = self._tables.nodes
        first, count = int(nodes[node, machine.N_CHILD]), int(nodes[node, machine.N_CHILDREN])
        holder: _Traced | None = value
        if kind == machine.K_OBJ:
            if value.kind != "object":
                raise _NotTraceable
            mode = int(nodes[node, machine.N_MODE])
            holder = value.arguments if mode == machine.M_ARGS else value.state
            if mode == machine.M_SLOTS:
                if holder is None or holder.kind != "tuple" or len(holder.parts) != 2:
                    raise _NotTraceable
                merged = _Traced(holder.at, "dict")
                for part in (holder.parts[1], holder.parts[0]):
                    merged.parts += part.parts if part.kind == "dict" else []
                holder = merged
            keyed = mode in (machine.M_DICT, machine.M_SLOTS)
        else:
            keyed = kind == machine.K_DICT
        if holder is None or holder.kind not in (("dict",) if keyed else ("tuple", "list")):
            raise _NotTraceable
        if not keyed:
            if len(holder.parts) != count:
                raise _NotTraceable
            return [(first + i, part) for i, part in enumerate(holder.parts)]
        # Keys are compared as literal bytes (a memo number or the text itself), so their order is fixed. A
        # template is made from a record that the general machine has read, where the keys are the schema's,
        # mostly in its order.
        if len(holder.parts) != 2 * count:
            raise _NotTraceable
        by_key = {self._key_of(first + i): first + i for i in range(count)}
        found = []
        for key, part in zip(holder.parts[::2], holder.parts[1::2], strict=True):
            name = _traced_key(key, fetch)
            child = None if name is None else by_key.get(name)
            if child is None:
                raise _NotTraceable
            found.append((child, part))
        return found

    def _key_of(self, node: int) -> bytes | int:
        nodes = self._tables.nodes
        if nodes[node, machine.N_KEYKIND] == 1:
            return int(nodes[node, machine.N_KEY])
        at, length = int(nodes[node, machine.N_KEY]), int(nodes[node, machine.N_KEYLEN])
        return self._tables.key_pool[at : at + length].tobytes()

    def _rebuild(self) -> None:
        """Lay all templates out in the arrays."""
        rows: list[list[int]] = []
        elements: list[list[int]] = []
        self.first_byte = np.zeros((len(self._of_table), 256), np.uint8)
        literals = b"".join(self._literal_parts)
        for table, known in enumerate(self._of_table):
            if table < len(self._tables.table):
                self._tables.table[table, machine.T_TEMPLATE] = len(rows)
                self._tables.table[table, machine.T_TEMPLATES] = len(known)
            for _, parts, memos in known:
                rows.append([len(elements), len(elements) + len(parts), memos, 0])
                elements += [[part.kind, part.a, part.b, -1] for part in parts]
                for byte in _first_bytes(parts[0], literals):
                    self.first_byte[table, byte] = 1
        self.templates = np.array(rows, np.int64).reshape(-1, machine.TEMPLATE_FIELDS)
        self.elements = np.array(elements, np.int64).reshape(-1, machine.ELEMENT_FIELDS)
        self.literals = np.frombuffer(literals + b"\0", np.uint8).copy()


_NUMBERS: Final = (op.BININT1, op.BININT2, op.BININT, op.BINFLOAT, op.NEWTRUE, op.NEWFALSE, op.LONG1)
_BYTES: Final = (op.SHORT_BINBYTES, op.BINBYTES, op.BINBYTES8, op.BYTEARRAY8)
_TEXTS: Final = (op.SHORT_BINUNICODE, op.BINUNICODE, op.BINUNICODE8)
_GETS: Final = (op.BINGET, op.LONG_BINGET)


def _traced_key(key: _Traced, fetch: Fetch) -> bytes | int | None:
    if key.kind == "text":
        return key.text
    if key.kind == "number":
        return int.from_bytes(key.text, "little", signed=True)
    if key.kind == "get":
        held = fetch(int.from_bytes(key.text, "little"))
        return held if isinstance(held, bytes) else None
    raise _NotTraceable


def _first_bytes(element: _Element, literals: bytes) -> tuple[int, ...]:
    if element.kind == machine.P_LITERAL:
        return (literals[element.a],)
    if element.kind in (machine.P_NUMBER, machine.P_ELEMENT):
        return _NUMBERS
    return _BYTES if element.kind == machine.P_BYTES else _GETS


def _after(data: NDArray[np.uint8], at: int) -> int:
    """The offset behind the opcode at `at`."""
    kind = int(op.OPERAND[data[at]])
    if kind >= 0:
        return at + 1 + kind
    if kind == op.LENGTH1:
        return at + 2 + int(data[at + 1])
    if kind in (op.LENGTH4, op.LENGTH8):
        width = 4 if kind == op.LENGTH4 else 8
        return at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width].tobytes(), "little")
    raise _NotTraceable


def _skip(value: _Traced, slots: dict[int, _Element]) -> None:
    """A value that goes nowhere: its numbers and texts may differ, its structure may not."""
    if value.kind == "number":
        slots[value.at] = _Element(machine.P_NUMBER, -1)
    elif value.kind == "text":
        slots[value.at] = _Element(machine.P_TEXT)
    for part in (*value.parts, value.arguments, value.state):
        if part is not None and value.kind != "dict":
            _skip(part, slots)
    if value.kind == "dict":
        for part in value.parts[1::2]:
            _skip(part, slots)


def _trace(data: NDArray[np.uint8], start: int, stop: int) -> list[tuple[int, int, _Traced]]:
    """Run opcodes symbolically over the first items of a batch: (start, end, value) of each."""
    stack: list[_Traced] = []
    marks: list[int] = []
    starts: dict[int, int] = {}
    at = start
    while at < stop and (marks[0] if marks else len(stack)) < _TRACED:
        code = int(data[at])
        after = _after(data, at)
        depth = len(stack) + len(marks)
        if code not in (op.MEMOIZE, op.BINPUT, op.LONG_BINPUT, op.FRAME):
            # An item begins at the last opcode that found just the items before it.
            starts[depth] = at
        _step(data, at, after, code, stack, marks)
        at = after
    # Stopped early, the last item may still be under construction.
    complete = len(stack) if at >= stop and not marks else (marks[0] if marks else len(stack)) - 1
    begins = [starts[i] for i in range(complete)]
    ends = [*begins[1:], starts.get(complete, stop) if complete < len(stack) else stop]
    return list(zip(begins, ends, stack[:complete], strict=True))


def _step(
    data: NDArray[np.uint8], at: int, after: int, code: int, stack: list[_Traced], marks: list[int]
) -> None:
    """One opcode of the symbolic run."""

    def take(count: int) -> list[_Traced]:
        if count > len(stack) - (marks[-1] if marks else 0):
            raise _NotTraceable
        taken = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return taken

    def take_marked() -> list[_Traced]:
        if not marks:
            raise _NotTraceable
        base = marks.pop()
        taken = stack[base:]
        del stack[base:]
        return taken

    def onto() -> _Traced:
        if not stack:
            raise _NotTraceable
        return stack[-1]

    if code in _NUMBERS:
        text = data[at + 2 : after] if code == op.LONG1 else data[at + 1 : after]
        raw = text.tobytes() + (b"\0" if code in (op.BININT1, op.BININT2) else b"")
        stack.append(_Traced(at, "number", text=raw))
    elif code in _TEXTS:
        width = {op.SHORT_BINUNICODE: 2, op.BINUNICODE: 5, op.BINUNICODE8: 9}[code]
        stack.append(_Traced(at, "text", text=data[at + width : after].tobytes()))
    elif code in _BYTES:
        stack.append(_Traced(at, "bytes"))
    elif code in _GETS:
        number = int.from_bytes(data[at + 1 : after].tobytes(), "little")
        stack.append(_Traced(at, "get", text=number.to_bytes(8, "little")))
    elif code == op.NONE:
        stack.append(_Traced(at, "none"))
    elif code == op.MARK:
        marks.append(len(stack))
    elif code in (op.EMPTY_TUPLE, op.TUPLE1, op.TUPLE2, op.TUPLE3):
        parts = take({op.EMPTY_TUPLE: 0, op.TUPLE1: 1, op.TUPLE2: 2, op.TUPLE3: 3}[code])
        stack.append(_Traced(at, "tuple", parts))
    elif code == op.TUPLE:
        stack.append(_Traced(at, "tuple", take_marked()))
    elif code == op.EMPTY_LIST:
        stack.append(_Traced(at, "list"))
    elif code == op.EMPTY_DICT:
        stack.append(_Traced(at, "dict"))
    elif code in (op.APPENDS, op.SETITEMS):
        parts = take_marked()
        onto().parts += parts
    elif code in (op.APPEND, op.SETITEM):
        parts = take(1 if code == op.APPEND else 2)
        onto().parts += parts
    elif code == op.NEWOBJ:
        taken = take(2)
        stack.append(_Traced(at, "object", arguments=taken[1]))
    elif code == op.REDUCE:
        taken = take(2)
        stack.append(_Traced(at, "reduced", arguments=taken[1]))
    elif code == op.BUILD:
        (state,) = take(1)
        onto().state = state
    elif code not in (op.MEMOIZE, op.BINPUT, op.LONG_BINPUT, op.FRAME):
        raise _NotTraceable
