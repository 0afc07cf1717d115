"""Templates: the bytes of records seen before, compiled to a list of things to compare and numbers to pick
up.

Records of one table differ in a few numbers only; everything between those is the same bytes. A template is
made from a record the general machine has read: the opcodes are traced symbolically, each number or byte
string that ends in a column becomes an element, and the bytes between are literals to be compared. So a match
has, by construction, the same effect as the opcodes. Whatever doesn't match is read by the general machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from omstore.legacy import opcodes as op
from omstore.legacy.machine import plan, tags
from omstore.legacy.machine.arrays import TemplateArrays
from omstore.legacy.tables import Tables
from omstore.legacy.tracing import BYTES, GETS, NUMBERS, NotTraceable, Traced, after_opcode, trace

__all__ = ["Templates"]

Fetch = Callable[[int], bytes | tuple[int, int] | None]

_MAX_TEMPLATES: Final = 8
_MAX_LITERAL_BYTES: Final = 1 << 16
_FRUITLESS: Final = 6


@dataclass(frozen=True)
class _Element:
    kind: int
    a: int = 0
    b: int = 0


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
        self.templates: NDArray[np.int64] = np.zeros((0, plan.TEMPLATE_FIELDS), np.int64)
        self.elements: NDArray[np.int64] = np.zeros((0, plan.ELEMENT_FIELDS), np.int64)
        self.literals: NDArray[np.uint8] = np.zeros(1, np.uint8)
        self.first_byte: NDArray[np.uint8] = np.zeros((0, 256), np.uint8)

    def add_table(self) -> None:
        """Make room for a new table."""
        self._of_table.append([])
        self._fruitless.append(0)
        self._tables.table[len(self._fruitless) - 1, plan.T_LEARN] = 1
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
        self._tables.table[table, plan.T_GENERAL] = 0
        try:
            records = trace(self._data, start, stop)
        except (NotTraceable, IndexError):
            return
        counts: dict[bytes, int] = {}
        found: dict[bytes, tuple[list[_Element], int]] = {}
        for begin, end, value in records:
            try:
                elements, memos, signature = self._compile(table, begin, end, value, fetch)
            except NotTraceable:
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
            self._tables.table[table, plan.T_LEARN] = 0
        self._rebuild()

    def arrays(self) -> TemplateArrays:
        """What the machine reads."""
        return TemplateArrays(self.templates, self.elements, self.literals, self.first_byte)

    # --- compiling --------------------------------------------------------------------------------------

    def _compile(
        self, table: int, begin: int, end: int, value: Traced, fetch: Fetch
    ) -> tuple[list[_Element], int, bytes]:
        """(elements, memo entries made, a signature that is equal for equal templates) of one traced
        record."""
        slots: dict[int, _Element] = {}
        self._assign(int(self._tables.table[table, plan.T_ROOT]), value, slots, fetch)
        elements: list[_Element] = []
        signature = bytearray()
        literal = bytearray()
        memos = 0

        def close() -> None:
            if literal:
                elements.append(_Element(plan.P_LITERAL, self._literal(bytes(literal)), len(literal)))
                signature.extend(b"L" + bytes(literal))
                literal.clear()

        at = begin
        while at < end:
            after = after_opcode(self._data, at)
            code = int(self._data[at])
            if code == op.FRAME:
                raise NotTraceable
            if code in (op.BINPUT, op.LONG_BINPUT):
                close()
                elements.append(_Element(plan.P_PUT))
                signature.extend(b"P")
                memos += 1
            elif at in slots:
                close()
                element = slots[at]
                elements.append(element)
                signature.extend(f"S{element.kind},{element.a},{element.b};".encode())
            elif code in GETS and (same := self._same(at, after, fetch)) is not None:
                close()
                elements.append(same)
                signature.extend(f"S{same.kind},{same.a},{same.b};".encode())
            else:
                literal.extend(self._data[at:after].tobytes())
                memos += code == op.MEMOIZE
            at = after
        close()
        if not elements or elements[0].kind in (plan.P_PUT, plan.P_TEXT):
            raise NotTraceable
        return elements, memos, bytes(signature)

    def _same(self, at: int, after: int, fetch: Fetch) -> _Element | None:
        """The element for a memo fetch of something that every record refers to, None to compare the number
        itself."""
        held = fetch(int.from_bytes(self._data[at + 1 : after].tobytes(), "little"))
        if isinstance(held, bytes):
            return _Element(plan.P_SAMETEXT, self._literal(held), len(held))
        if held is None:
            return None
        return _Element(plan.P_SAMEGLOBAL if held[0] == tags.GLOBAL else plan.P_SAMEDTYPE, held[1])

    def _literal(self, text: bytes) -> int:
        joined = b"".join(self._literal_parts)
        at = joined.find(text)
        if at < 0:
            at = len(joined)
            self._literal_parts = [joined, text]
            if at + len(text) > _MAX_LITERAL_BYTES:
                raise NotTraceable
        return at

    def _assign(self, node: int, value: Traced, slots: dict[int, _Element], fetch: Fetch) -> None:
        """Walk a traced value along the schema, and note which opcode fills which column."""
        nodes = self._tables.nodes
        kind = int(nodes[node, plan.N_KIND])
        column = int(nodes[node, plan.N_COLUMN])
        size = int(nodes[node, plan.N_SIZE])
        if kind == plan.K_NONE:
            return
        if kind == plan.K_SKIP:
            _skip(value, slots)
            return
        if value.kind == "get":
            slots[value.at] = _Element(plan.P_GET, node)
            return
        if kind in (plan.K_INT, plan.K_FLOAT, plan.K_BOOL):
            if value.kind != "number":
                raise NotTraceable
            slots[value.at] = _Element(plan.P_NUMBER, column, kind)
        elif kind in (plan.K_INTS, plan.K_FLOATS):
            if value.kind not in ("tuple", "list") or len(value.parts) != size:
                raise NotTraceable
            inner = plan.K_INT if kind == plan.K_INTS else plan.K_FLOAT
            for i, part in enumerate(value.parts):
                if part.kind != "number":
                    raise NotTraceable
                slots[part.at] = _Element(plan.P_ELEMENT, column + 8 * i, inner)
        elif kind == plan.K_BYTES:
            if value.kind != "bytes":
                raise NotTraceable
            slots[value.at] = _Element(plan.P_BYTES, column, size)
        elif kind == plan.K_ARRAY:
            # Everything but the data (shape, dtype, order) is compared as literal bytes.
            holder = value.state if value.kind == "reduced" and value.state is not None else value.arguments
            if holder is None or not holder.parts:
                raise NotTraceable
            raw = holder.parts[4] if value.state is not None and len(holder.parts) == 5 else holder.parts[0]
            if raw.kind != "bytes":
                raise NotTraceable
            slots[raw.at] = _Element(plan.P_BYTES, column, size)
        else:
            for child, part in self._children(node, kind, value, fetch):
                self._assign(child, part, slots, fetch)

    def _children(self, node: int, kind: int, value: Traced, fetch: Fetch) -> list[tuple[int, Traced]]:
        nodes = self._tables.nodes
        first, count = int(nodes[node, plan.N_CHILD]), int(nodes[node, plan.N_CHILDREN])
        holder: Traced | None = value
        if kind == plan.K_OBJ:
            if value.kind != "object":
                raise NotTraceable
            mode = int(nodes[node, plan.N_MODE])
            holder = value.arguments if mode == plan.M_ARGS else value.state
            if mode == plan.M_SLOTS:
                if holder is None or holder.kind != "tuple" or len(holder.parts) != 2:
                    raise NotTraceable
                merged = Traced(holder.at, "dict")
                for part in (holder.parts[1], holder.parts[0]):
                    merged.parts += part.parts if part.kind == "dict" else []
                holder = merged
            keyed = mode in (plan.M_DICT, plan.M_SLOTS)
        else:
            keyed = kind == plan.K_DICT
        if holder is None or holder.kind not in (("dict",) if keyed else ("tuple", "list")):
            raise NotTraceable
        if not keyed:
            if len(holder.parts) != count:
                raise NotTraceable
            return [(first + i, part) for i, part in enumerate(holder.parts)]
        # Keys are compared as literal bytes (a memo number or the text itself), so their order is fixed. A
        # template is made from a record that the general machine has read, where the keys are the schema's,
        # mostly in its order.
        if len(holder.parts) != 2 * count:
            raise NotTraceable
        by_key = {self._key_of(first + i): first + i for i in range(count)}
        found = []
        for key, part in zip(holder.parts[::2], holder.parts[1::2], strict=True):
            name = _traced_key(key, fetch)
            child = None if name is None else by_key.get(name)
            if child is None:
                raise NotTraceable
            found.append((child, part))
        return found

    def _key_of(self, node: int) -> bytes | int:
        nodes = self._tables.nodes
        if nodes[node, plan.N_KEYKIND] == 1:
            return int(nodes[node, plan.N_KEY])
        at, length = int(nodes[node, plan.N_KEY]), int(nodes[node, plan.N_KEYLEN])
        return self._tables.key_pool[at : at + length].tobytes()

    def _rebuild(self) -> None:
        """Lay all templates out in the arrays."""
        rows: list[list[int]] = []
        elements: list[list[int]] = []
        self.first_byte = np.zeros((len(self._of_table), 256), np.uint8)
        literals = b"".join(self._literal_parts)
        for table, known in enumerate(self._of_table):
            if table < len(self._tables.table):
                self._tables.table[table, plan.T_TEMPLATE] = len(rows)
                self._tables.table[table, plan.T_TEMPLATES] = len(known)
            for _, parts, memos in known:
                rows.append([len(elements), len(elements) + len(parts), memos, 0])
                elements += [[part.kind, part.a, part.b, -1] for part in parts]
                for byte in _first_bytes(parts[0], literals):
                    self.first_byte[table, byte] = 1
        self.templates = np.array(rows, np.int64).reshape(-1, plan.TEMPLATE_FIELDS)
        self.elements = np.array(elements, np.int64).reshape(-1, plan.ELEMENT_FIELDS)
        self.literals = np.frombuffer(literals + b"\0", np.uint8).copy()


def _traced_key(key: Traced, fetch: Fetch) -> bytes | int | None:
    if key.kind == "text":
        return key.text
    if key.kind == "number":
        return int.from_bytes(key.text, "little", signed=True)
    if key.kind == "get":
        held = fetch(int.from_bytes(key.text, "little"))
        return held if isinstance(held, bytes) else None
    raise NotTraceable


def _first_bytes(element: _Element, literals: bytes) -> tuple[int, ...]:
    if element.kind == plan.P_LITERAL:
        return (literals[element.a],)
    if element.kind in (plan.P_NUMBER, plan.P_ELEMENT):
        return NUMBERS
    return BYTES if element.kind == plan.P_BYTES else GETS


def _skip(value: Traced, slots: dict[int, _Element]) -> None:
    """A value that goes nowhere: its numbers and texts may differ, its structure may not."""
    if value.kind == "number":
        slots[value.at] = _Element(plan.P_NUMBER, -1)
    elif value.kind == "text":
        slots[value.at] = _Element(plan.P_TEXT)
    for part in (*value.parts, value.arguments, value.state):
        if part is not None and value.kind != "dict":
            _skip(part, slots)
    if value.kind == "dict":
        for part in value.parts[1::2]:
            _skip(part, slots)
