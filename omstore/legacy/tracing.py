"""Running opcodes symbolically: which opcode made each part of a record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from omstore.legacy import opcodes as op

__all__ = ["BYTES", "GETS", "NUMBERS", "TEXTS", "NotTraceable", "Traced", "after_opcode", "trace"]

NUMBERS: Final = (op.BININT1, op.BININT2, op.BININT, op.BINFLOAT, op.NEWTRUE, op.NEWFALSE, op.LONG1)
BYTES: Final = (op.SHORT_BINBYTES, op.BINBYTES, op.BINBYTES8, op.BYTEARRAY8)
TEXTS: Final = (op.SHORT_BINUNICODE, op.BINUNICODE, op.BINUNICODE8)
GETS: Final = (op.BINGET, op.LONG_BINGET)

_MAX_ITEMS: Final = 48


@dataclass
class Traced:
    """A value of the symbolic run: the opcode that made it, and what it's made of.

    Attributes
    ----------
    at : int
        File offset of the opcode.
    kind : str
        ``"number"``, ``"text"``, ``"bytes"``, ``"none"``, ``"tuple"``, ``"list"``, ``"dict"``, ``"object"`` (NEWOBJ),
        ``"reduced"`` (REDUCE) or ``"get"`` (a memo fetch).
    parts : list of Traced
        Items; keys and values of a dict alternate.
    arguments, state : Traced or None
        Of an object, or of what a global gave.
    text : bytes
        Of a text; of a number or a memo number, little-endian.
    """

    at: int
    kind: str
    parts: list[Traced] = field(default_factory=list)
    arguments: Traced | None = None
    state: Traced | None = None
    text: bytes = b""


class NotTraceable(Exception):
    """The record uses something a template can't express."""


def trace(data: NDArray[np.uint8], start: int, stop: int) -> list[tuple[int, int, Traced]]:
    """Run opcodes symbolically over the first items of a batch.

    Parameters
    ----------
    data : uint8 array
        The pickle.
    start, stop : int
        File offsets behind the MARK, and before the opcode that takes the items.

    Returns
    -------
    list of (int, int, Traced)
        Start, end and value of up to 48 items, or a few more.

    Raises
    ------
    NotTraceable
        If there is an opcode that no template can express.
    """
    stack: list[Traced] = []
    marks: list[int] = []
    starts: dict[int, int] = {}
    at = start
    while at < stop and (marks[0] if marks else len(stack)) < _MAX_ITEMS:
        code = int(data[at])
        after = after_opcode(data, at)
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
    data: NDArray[np.uint8], at: int, after: int, code: int, stack: list[Traced], marks: list[int]
) -> None:
    """One opcode of the symbolic run."""

    def take(count: int) -> list[Traced]:
        if count > len(stack) - (marks[-1] if marks else 0):
            raise NotTraceable
        taken = stack[len(stack) - count :]
        del stack[len(stack) - count :]
        return taken

    def take_marked() -> list[Traced]:
        if not marks:
            raise NotTraceable
        base = marks.pop()
        taken = stack[base:]
        del stack[base:]
        return taken

    def onto() -> Traced:
        if not stack:
            raise NotTraceable
        return stack[-1]

    if code in NUMBERS:
        text = data[at + 2 : after] if code == op.LONG1 else data[at + 1 : after]
        raw = text.tobytes() + (b"\0" if code in (op.BININT1, op.BININT2) else b"")
        stack.append(Traced(at, "number", text=raw))
    elif code in TEXTS:
        width = {op.SHORT_BINUNICODE: 2, op.BINUNICODE: 5, op.BINUNICODE8: 9}[code]
        stack.append(Traced(at, "text", text=data[at + width : after].tobytes()))
    elif code in BYTES:
        stack.append(Traced(at, "bytes"))
    elif code in GETS:
        number = int.from_bytes(data[at + 1 : after].tobytes(), "little")
        stack.append(Traced(at, "get", text=number.to_bytes(8, "little")))
    elif code == op.NONE:
        stack.append(Traced(at, "none"))
    elif code == op.MARK:
        marks.append(len(stack))
    elif code in (op.EMPTY_TUPLE, op.TUPLE1, op.TUPLE2, op.TUPLE3):
        parts = take({op.EMPTY_TUPLE: 0, op.TUPLE1: 1, op.TUPLE2: 2, op.TUPLE3: 3}[code])
        stack.append(Traced(at, "tuple", parts))
    elif code == op.TUPLE:
        stack.append(Traced(at, "tuple", take_marked()))
    elif code == op.EMPTY_LIST:
        stack.append(Traced(at, "list"))
    elif code == op.EMPTY_DICT:
        stack.append(Traced(at, "dict"))
    elif code in (op.APPENDS, op.SETITEMS):
        parts = take_marked()
        onto().parts += parts
    elif code in (op.APPEND, op.SETITEM):
        parts = take(1 if code == op.APPEND else 2)
        onto().parts += parts
    elif code == op.NEWOBJ:
        taken = take(2)
        stack.append(Traced(at, "object", arguments=taken[1]))
    elif code == op.REDUCE:
        taken = take(2)
        stack.append(Traced(at, "reduced", arguments=taken[1]))
    elif code == op.BUILD:
        (state,) = take(1)
        onto().state = state
    elif code not in (op.MEMOIZE, op.BINPUT, op.LONG_BINPUT, op.FRAME):
        raise NotTraceable


def after_opcode(data: NDArray[np.uint8], at: int) -> int:
    """The offset behind the opcode at `at`."""
    kind = int(op.OPERAND[data[at]])
    if kind >= 0:
        return at + 1 + kind
    if kind == op.LENGTH1:
        return at + 2 + int(data[at + 1])
    if kind in (op.LENGTH4, op.LENGTH8):
        width = 4 if kind == op.LENGTH4 else 8
        return at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width].tobytes(), "little")
    raise NotTraceable
