"""Pickle opcodes by name, and the length of each one's operand.

Numbers are from the pickle protocol specification (PEP 307, 3154, 574) as in CPython's
``Lib/pickletools.py``.
"""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["OPERAND", "OPERAND_NAMES", "UNSUPPORTED"]

MARK: Final = 0x28
STOP: Final = 0x2E
POP: Final = 0x30
POP_MARK: Final = 0x31
DUP: Final = 0x32
BINBYTES: Final = 0x42
SHORT_BINBYTES: Final = 0x43
BINFLOAT: Final = 0x47
BININT: Final = 0x4A
BININT1: Final = 0x4B
BININT2: Final = 0x4D
NONE: Final = 0x4E
BINPERSID: Final = 0x51
REDUCE: Final = 0x52
BINUNICODE: Final = 0x58
EMPTY_LIST: Final = 0x5D
APPEND: Final = 0x61
BUILD: Final = 0x62
GLOBAL: Final = 0x63
DICT: Final = 0x64
APPENDS: Final = 0x65
BINGET: Final = 0x68
LONG_BINGET: Final = 0x6A
LIST: Final = 0x6C
BINPUT: Final = 0x71
LONG_BINPUT: Final = 0x72
SETITEM: Final = 0x73
TUPLE: Final = 0x74
SETITEMS: Final = 0x75
EMPTY_DICT: Final = 0x7D
EMPTY_TUPLE: Final = 0x29
PROTO: Final = 0x80
NEWOBJ: Final = 0x81
TUPLE1: Final = 0x85
TUPLE2: Final = 0x86
TUPLE3: Final = 0x87
NEWTRUE: Final = 0x88
NEWFALSE: Final = 0x89
LONG1: Final = 0x8A
LONG4: Final = 0x8B
SHORT_BINUNICODE: Final = 0x8C
BINUNICODE8: Final = 0x8D
BINBYTES8: Final = 0x8E
EMPTY_SET: Final = 0x8F
ADDITEMS: Final = 0x90
FROZENSET: Final = 0x91
NEWOBJ_EX: Final = 0x92
STACK_GLOBAL: Final = 0x93
MEMOIZE: Final = 0x94
FRAME: Final = 0x95
BYTEARRAY8: Final = 0x96
READONLY_BUFFER: Final = 0x98

LENGTH1: Final = -1
"""The operand is a one-byte length and as many bytes."""
LENGTH4: Final = -2
"""A four-byte little-endian length and as many bytes."""
LENGTH8: Final = -3
"""An eight-byte little-endian length and as many bytes."""
LINES2: Final = -4
"""Two newline-terminated lines (GLOBAL)."""
UNSUPPORTED: Final = -5
"""An opcode the reader refuses, or no opcode at all."""

OPERAND_NAMES: Final[dict[int, str]] = {
    0x46: "FLOAT", 0x49: "INT", 0x4C: "LONG", 0x50: "PERSID", 0x51: "BINPERSID", 0x53: "STRING",
    0x54: "BINSTRING", 0x55: "SHORT_BINSTRING", 0x56: "UNICODE", 0x67: "GET", 0x69: "INST", 0x6F: "OBJ",
    0x70: "PUT", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x97: "NEXT_BUFFER",
}  # fmt: skip
"""Opcodes that exist and are refused, by name, for messages."""


def _operands() -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    table = np.full(256, UNSUPPORTED, np.int8)
    for opcode in (
        MARK, STOP, POP, POP_MARK, DUP, NONE, REDUCE, EMPTY_LIST, APPEND, BUILD, DICT, APPENDS, LIST,
        SETITEM, TUPLE, SETITEMS, EMPTY_DICT, EMPTY_TUPLE, NEWOBJ, TUPLE1, TUPLE2, TUPLE3, NEWTRUE, NEWFALSE,
        EMPTY_SET, ADDITEMS, FROZENSET, NEWOBJ_EX, STACK_GLOBAL, MEMOIZE, READONLY_BUFFER,
    ):  # fmt: skip
        table[opcode] = 0
    for opcode in (PROTO, BININT1, BINGET, BINPUT):
        table[opcode] = 1
    table[BININT2] = 2
    for opcode in (BININT, LONG_BINGET, LONG_BINPUT):
        table[opcode] = 4
    for opcode in (BINFLOAT, FRAME):
        table[opcode] = 8
    for opcode in (SHORT_BINBYTES, SHORT_BINUNICODE, LONG1):
        table[opcode] = LENGTH1
    for opcode in (BINBYTES, BINUNICODE, LONG4):
        table[opcode] = LENGTH4
    for opcode in (BINUNICODE8, BINBYTES8, BYTEARRAY8):
        table[opcode] = LENGTH8
    table[GLOBAL] = LINES2
    return table


OPERAND: Final = _operands()
"""int8[256]: the number of operand bytes of an opcode (>= 0) or one of the negative codes above."""
