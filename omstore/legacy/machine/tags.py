"""What a value of the machine is: its tag, the slots of a container, the kinds of globals."""

from __future__ import annotations

from typing import Final

# --- tags -----------------------------------------------------------------------------------------------
RAW: Final = 0
NONE: Final = 1
BOOL: Final = 2
INT: Final = 3
FLOAT: Final = 4
TEXT: Final = 5
BYTES: Final = 6
ENCODED: Final = 7  # bytes that protocol 2 stores as latin-1 text: offset of the text's opcode
GLOBAL: Final = 8
BIGINT: Final = 9
OPAQUE: Final = 10  # the result of a harmless standard-library constructor nobody needs (a date, a path)
RAWAT: Final = 11  # raw array data at this file offset
STORAGE: Final = 12  # a torch storage: offset of the opcode of its torch.save bytes
ROWS: Final = 13  # consecutive rows of a table: first row; on the stack their count is in `stack_count`
FIRST_POINTER: Final = 20
TUPLE: Final = 20
LIST: Final = 21
DICT: Final = 22
SET: Final = 23
DEQUE: Final = 24
OBJ: Final = 25
ARRAY: Final = 26
DTYPE: Final = 27
CHUNK: Final = 28
FORWARD: Final = 29  # left behind by the collection

# --- a container's slots --------------------------------------------------------------------------------
CONTAINER_SLOTS: Final = 7
C_COUNT: Final = 0
C_FIRST: Final = 1
C_LAST: Final = 2
C_TABLE: Final = 3
C_ROW: Final = 4
C_ROWS: Final = 5
C_MADE: Final = 6  # file offset of the opcode that made it

# --- what a global is (decided by legacy/globals.py) ----------------------------------------------------
G_REFUSED: Final = 0
G_CLASS: Final = 1
G_RECONSTRUCT: Final = 2
G_SCALAR: Final = 3
G_DTYPE: Final = 4
G_FROMBUFFER: Final = 5
G_ENCODE: Final = 6
G_DICT: Final = 7
G_LIST: Final = 8
G_SET: Final = 9
G_DEQUE: Final = 10
G_BYTES: Final = 11
G_RECONSTRUCTOR: Final = 12
G_OPAQUE: Final = 13
G_TENSOR: Final = 14
G_STORAGE: Final = 15
G_NAME: Final = 16  # only ever an argument (numpy.ndarray, builtins.object)
G_NAMESPACE: Final = 17  # types.SimpleNamespace: an object whose state is a dict
G_PARAMETER: Final = 18  # torch.nn.Parameter around a tensor
G_TUPLE: Final = 19
