"""The plan by which records become rows: schema nodes, tables and templates, each a row of an array."""

from __future__ import annotations

from typing import Final

# --- schema nodes: one row of `nodes` each --------------------------------------------------------------
N_KIND: Final = 0
N_COLUMN: Final = 1  # scalar column, or byte offset in the vector row
N_SIZE: Final = 2  # elements of a vector, bytes of an array, children wanted
N_CODE: Final = 3  # dtype code, class
N_CHILD: Final = 4
N_CHILDREN: Final = 5
N_KEYKIND: Final = 6  # how the parent finds this child: 0 text, 1 int
N_KEY: Final = 7  # offset of the text in `key_pool`, or the int
N_KEYLEN: Final = 8
N_KEYPOS: Final = 9  # file offset of the key text seen last: a memoised key is recognised by it
N_NDIM: Final = 10
N_DIM0: Final = 11
N_MODE: Final = 15
NODE_FIELDS: Final = 16

K_SKIP: Final = 0
K_NONE: Final = 1
K_INT: Final = 2
K_FLOAT: Final = 3
K_BOOL: Final = 4
K_INTS: Final = 5
K_FLOATS: Final = 6
K_ARRAY: Final = 7
K_BYTES: Final = 8
K_SEQ: Final = 9
K_DICT: Final = 10
K_OBJ: Final = 11

M_DICT: Final = 0  # BUILD with a dict
M_SLOTS: Final = 1  # BUILD with (dict or None, dict)
M_SEQ: Final = 2  # BUILD with a list or tuple of the fields' values
M_ARGS: Final = 3  # constructor arguments only (NamedTuple)

# --- tables: one row of `tables` each -------------------------------------------------------------------
T_SCALARS: Final = 0  # index of the scalar columns in `buffer`
T_CAP: Final = 1  # rows the buffer holds
T_ROWS: Final = 2  # rows in the buffer
T_FLUSHED: Final = 3  # rows handed over before
T_VECTORS: Final = 4  # byte index of the vector rows in `buffer8`
T_ROWBYTES: Final = 5
T_ROOT: Final = 6  # schema node of an item (KEY and VALUE are its children for a dict's table)
T_LINK: Final = 7  # 1, 2: adjacency of one or two levels
T_TAG: Final = 8  # a record is a value of this tag ...
T_CLASS: Final = 9  # ... and class (OBJ) or length (TUPLE)
T_FIRSTCOL: Final = 10  # link tables: scalar column of the first row; the count is the next column
T_TEMPLATE: Final = 11  # first template
T_TEMPLATES: Final = 12
T_ANYWHERE: Final = 13  # templates may match outside lists (class records of an adjacency)
T_GENERAL: Final = 14  # rows converted without a template since the last look
T_LEARN: Final = 15  # whether that is worth an event
TABLE_FIELDS: Final = 16

# --- templates: one row of `templates` each, their elements in `elements` -------------------------------
TP_FIRST: Final = 0
TP_LAST: Final = 1
TP_MEMOS: Final = 2
TEMPLATE_FIELDS: Final = 4

P_LITERAL: Final = 0  # bytes that must be equal: offset and length in `literals`
P_NUMBER: Final = 1  # a number into a scalar column (-1: nowhere); kind
P_ELEMENT: Final = 2  # a number into the vector row at a byte offset; kind
P_BYTES: Final = 3  # bytes of one length into the vector row
P_TEXT: Final = 4  # text of any length, into nothing
P_GET: Final = 5  # a memo fetch whose value goes through a schema node
P_PUT: Final = 6  # BINPUT, LONG_BINPUT with the next number
# Memo fetches of what every record refers to. The same text (class, dtype) may stand under several numbers,
# so it's the value that counts; the number that was right last time is remembered in the element's fourth
# field.
P_SAMETEXT: Final = 7  # offset and length in `literals`
P_SAMEGLOBAL: Final = 8  # number of the global
P_SAMEDTYPE: Final = 9  # dtype code
ELEMENT_FIELDS: Final = 4
