"""Pass 2: a compiled pickle machine that turns big containers into columns as it goes.

Everything compiled lives in this one file because numba keys its cache on a file's own content (see
``docs/decisions/0002-compiled-pickle-machine.md``). All state is in plain arrays, so the machine can stop at any opcode,
let Python decide something rare (a new class, a new table, a full buffer), and go on.

A value is a tag and a 64-bit payload. Numbers are their own payload; text and bytes are the file offset of their opcode; the
rest points into a bump heap. The heap is rewound after each batch of records unless the memo still needs something in it, and a
copying collection bounds what is left.

Heap objects, in slots (every slot is tagged; RAW marks numbers of the machine's own):

==========  =======================================================================
TUPLE       n, item * n
container   count, first chunk, last chunk, table, first row, rows, made at  (LIST, DICT, SET, DEQUE)
CHUNK       n, next chunk, item * n                                         (keys and values alternate in a DICT)
OBJ         class, constructor arguments, state
ARRAY       dtype code, shape, order, data
DTYPE       dtype code
==========  =======================================================================

A container's table is 0 (none), t + 1, or -1 (looked at, stays on the heap).
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from omstore.compiled import kernel

# ruff: noqa: E501

# --- tags -------------------------------------------------------------------------------------------------------------------
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

# --- registers --------------------------------------------------------------------------------------------------------------
R_PC: Final = 0
R_SP: Final = 1
R_MARKS: Final = 2
R_TOP: Final = 3
R_MEMO: Final = 4  # number of memo entries so far
R_CURSOR: Final = 5  # first fetched memo id not below R_MEMO
R_PROGRESS: Final = 6  # items of the current opcode that are converted already
R_LOOSE: Final = 7  # table + 1 whose records may sit in any small list (adjacency)
R_TABLE: Final = 8  # event argument: table
R_ADDRESS: Final = 9  # event argument: container, or number of slots wanted
R_NODE: Final = 10  # event argument: schema node that didn't fit
R_TAG: Final = 11  # event argument: the value that didn't fit
R_VALUE: Final = 12
R_HIGH: Final = 13  # highest heap address the memo points at
R_ERROR: Final = 14
R_MATCHED: Final = 15  # rows read by templates
R_FREE_MARK: Final = 16  # marks up to this depth may overflow (their items were looked at and stay)
R_PUTS: Final = 17
NUM_REGISTERS: Final = 20

# --- events -----------------------------------------------------------------------------------------------------------------
EV_LIMIT: Final = 1
EV_STOP: Final = 2
EV_COLLECT: Final = 3
EV_STACK: Final = 4
EV_MARKS: Final = 5
EV_GLOBAL: Final = 6
EV_BIG: Final = 7
EV_FLUSH: Final = 8
EV_MISFIT: Final = 9
EV_OVERFLOW: Final = 10
EV_ERROR: Final = 11
EV_LEARN: Final = 12  # a batch read without templates lies between bytes R_ADDRESS and R_VALUE

# --- errors -----------------------------------------------------------------------------------------------------------------
E_UNDERFLOW: Final = 1
E_MARK: Final = 2
E_MEMO: Final = 3
E_CALL: Final = 4  # REDUCE of something that isn't understood: R_VALUE is the global
E_TYPE: Final = 5  # operands of the wrong kind
E_OPCODE: Final = 6
E_TRUNCATED: Final = 7
E_NEWOBJ: Final = 8
E_DTYPE: Final = 9
E_TENSOR: Final = 10
E_LINK: Final = 11  # an adjacency's list that holds something other than records

# --- what a global is (decided by legacy/globals.py) --------------------------------------------------------------------------
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

# --- schema nodes: one row of `nodes` each ------------------------------------------------------------------------------------
N_KIND: Final = 0
N_COLUMN: Final = 1  # scalar column, or byte offset in the vector row
N_SIZE: Final = 2  # elements of a vector, bytes of an array, children wanted
N_CODE: Final = 3  # dtype code, class
N_CHILD: Final = 4
N_CHILDREN: Final = 5
N_KEYKIND: Final = 6  # how the parent finds this child: 0 text, 1 int
N_KEY: Final = 7  # offset of the text in `key_pool`, or the int
N_KEYLEN: Final = 8
N_KEYPOS: Final = (
    9  # file offset of the key text seen last: a memoised key is recognised without comparing it
)
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

# --- tables: one row of `tables` each -------------------------------------------------------------------------------------------
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

# --- templates: one row of `templates` each, their elements in `elements` ---------------------------------------------------------
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
# Memo fetches of what every record refers to. The same text (class, dtype) may stand under several numbers, so it's the
# value that counts; the number that was right last time is remembered in the element's fourth field.
P_SAMETEXT: Final = 7  # offset and length in `literals`
P_SAMEGLOBAL: Final = 8  # number of the global
P_SAMEDTYPE: Final = 9  # dtype code
ELEMENT_FIELDS: Final = 4

OVERFLOW: Final = 4096
BATCH: Final = 1000
LEARN: Final = 48

CONTAINER_SLOTS: Final = 7
C_COUNT: Final = 0
C_FIRST: Final = 1
C_LAST: Final = 2
C_TABLE: Final = 3
C_ROW: Final = 4
C_ROWS: Final = 5
C_MADE: Final = 6  # file offset of the opcode that made it


class Stacks(NamedTuple):
    """The value stack: tags, payloads, and how many rows a ROWS value stands for."""

    tag: Any
    value: Any
    count: Any


class Marks(NamedTuple):
    """The open marks: stack height, heap top, the table whose records may follow, the table a huge tuple's items go to, offset."""

    height: Any
    heap: Any
    table: Any
    over: Any
    at: Any


class Memory(NamedTuple):
    """The heap."""

    tag: Any
    value: Any


class Memos(NamedTuple):
    """The memo entries that are ever fetched: numbers (ascending), offset of the last fetch, what they hold now."""

    number: Any
    last: Any
    tag: Any
    value: Any


class Names(NamedTuple):
    """The globals seen: ``G_`` codes, and their modules and names as spans (offset, length, offset, length) of a text."""

    kind: Any
    text: Any
    span: Any


class Schema(NamedTuple):
    """Tables, schema nodes, the texts of keys, the row buffers (one memory, as int64 and as bytes), and a work stack."""

    tables: Any
    nodes: Any
    key_pool: Any
    buffer: Any
    buffer8: Any
    work: Any


class TemplateArrays(NamedTuple):
    """Templates, their elements, literal bytes, and by table the bytes a template may begin with."""

    templates: Any
    elements: Any
    literals: Any
    first_byte: Any


@kernel
def _u32(data: Any, at: Any) -> Any:
    return (
        np.int64(data[at])
        | np.int64(data[at + 1]) << 8
        | np.int64(data[at + 2]) << 16
        | np.int64(data[at + 3]) << 24
    )


@kernel
def _u64(data: Any, at: Any) -> Any:
    value = np.int64(0)
    for i in range(8):
        value |= np.int64(data[at + i]) << (8 * i)
    return value


@kernel
def _span(data: Any, at: Any) -> Any:
    """Start and length of the text or bytes whose opcode is at `at`."""
    op = data[at]
    if op == 0x8C or op == 0x43:
        return at + 2, np.int64(data[at + 1])
    if op == 0x58 or op == 0x42:
        return at + 5, _u32(data, at + 1)
    return at + 9, _u64(data, at + 1)


@kernel
def _long(data: Any, at: Any, length: Any) -> Any:
    """Little-endian two's complement of up to 8 bytes."""
    value = np.int64(0)
    for i in range(length):
        value |= np.int64(data[at + i]) << (8 * i)
    if 0 < length < 8 and data[at + length - 1] & 0x80:
        value -= np.int64(1) << (8 * length)
    return value


@kernel
def _binfloat(data: Any, at: Any) -> Any:
    """The bits of the big-endian float64 at `at`."""
    bits = np.int64(0)
    for i in range(8):
        bits = bits << 8 | np.int64(data[at + i])
    return bits


@kernel
def _same_text(data: Any, at: Any, length: Any, pool: Any, offset: Any) -> Any:
    for i in range(length):
        if data[at + i] != pool[offset + i]:
            return False
    return True


@kernel
def _latin1(data: Any, at: Any, length: Any, out: Any, offset: Any, room: Any) -> Any:
    """Decode UTF-8 text of code points below 256 into bytes; their number, or -1 if it isn't such text or doesn't fit."""
    i = np.int64(0)
    n = np.int64(0)
    while i < length:
        byte = data[at + i]
        if byte < 0x80:
            value = byte
            i += 1
        elif (byte & 0xFC) == 0xC0 and i + 1 < length:
            value = np.uint8((byte & 3) << 6 | (data[at + i + 1] & 0x3F))
            i += 2
        else:
            return np.int64(-1)
        if n >= room:
            return np.int64(-1)
        out[offset + n] = value
        n += 1
    return n


@kernel
def _copy_data(data: Any, tag: Any, value: Any, size: Any, out: Any, offset: Any) -> Any:
    """Copy `size` raw bytes of a bytes-like value; False when it has another length."""
    if tag == BYTES:
        start, length = _span(data, value)
        if length != size:
            return False
        for i in range(size):
            out[offset + i] = data[start + i]
        return True
    if tag == RAWAT:
        for i in range(size):
            out[offset + i] = data[value + i]
        return True
    if tag == ENCODED:
        start, length = _span(data, value)
        return _latin1(data, start, length, out, offset, size) == size
    return False


@kernel
def _find_key(
    data: Any, heap_tag: Any, heap: Any, dictionary: Any, position: Any, nodes: Any, key_pool: Any, node: Any
) -> Any:
    """Heap slot of the value under a schema node's key, tried at `position` first; -1 when absent."""
    chunk = heap[dictionary + C_FIRST]
    count = heap[chunk] if chunk >= 0 else np.int64(0)
    want_text = nodes[node, N_KEYKIND] == 0
    at = position * 2
    if chunk >= 0 and at < count:
        slot = chunk + 2 + at
        if want_text:
            if heap_tag[slot] == TEXT and heap[slot] == nodes[node, N_KEYPOS]:
                return slot + 1
        elif heap_tag[slot] == INT and heap[slot] == nodes[node, N_KEY]:
            return slot + 1
    while chunk >= 0:
        count = heap[chunk]
        for i in range(0, count, 2):
            slot = chunk + 2 + i
            if want_text:
                if heap_tag[slot] == TEXT:
                    start, length = _span(data, heap[slot])
                    if length == nodes[node, N_KEYLEN] and _same_text(
                        data, start, length, key_pool, nodes[node, N_KEY]
                    ):
                        nodes[node, N_KEYPOS] = heap[slot]
                        return slot + 1
            elif heap_tag[slot] == INT and heap[slot] == nodes[node, N_KEY]:
                return slot + 1
        chunk = heap[chunk + 1]
    return np.int64(-1)


@kernel
def _number_bits(tag: Any, value: Any, kind: Any) -> Any:
    """(fits, bits) of a number for a column of the kind; bool < int < float widen."""
    if kind == K_FLOAT:
        if tag == FLOAT:
            return True, value
        if tag == INT or tag == BOOL:
            # Exact up to 2^53; beyond, the value isn't what the pickle held.
            return -(1 << 53) <= value <= (1 << 53), np.float64(value).view(np.int64)
        return False, np.int64(0)
    if kind == K_INT:
        return tag == INT or tag == BOOL, value
    return tag == BOOL, value


@kernel
def _convert(
    data: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    node0: Any,
    tag0: Any,
    value0: Any,
    row: Any,
    registers: Any,
) -> Any:
    """Write one value into row `row` of a table's buffers, as its schema says; False (and R_NODE...) when it doesn't fit."""
    heap_tag, heap = memory
    tables, nodes, key_pool, buffer, buffer8, work = schema
    scalars = tables[table, T_SCALARS]
    cap = tables[table, T_CAP]
    vectors = tables[table, T_VECTORS] + row * tables[table, T_ROWBYTES]
    work[0, 0] = node0
    work[0, 1] = tag0
    work[0, 2] = value0
    depth = 1
    while depth > 0:
        depth -= 1
        node = work[depth, 0]
        tag = work[depth, 1]
        value = work[depth, 2]
        kind = nodes[node, N_KIND]
        fits = False
        if kind == K_SKIP:
            fits = True
        elif kind == K_INT or kind == K_FLOAT or kind == K_BOOL:
            fits, bits = _number_bits(tag, value, kind)
            if fits:
                buffer[scalars + nodes[node, N_COLUMN] * cap + row] = bits
        elif kind == K_NONE:
            fits = tag == NONE
        elif kind == K_ARRAY:
            if tag == ARRAY and heap[value] == nodes[node, N_CODE] and heap_tag[value + 1] == TUPLE:
                shape = heap[value + 1]
                ndim = heap[shape]
                fits = ndim == nodes[node, N_NDIM] and (ndim < 2 or heap[value + 2] == 0)
                for i in range(ndim):
                    if (
                        not fits
                        or heap_tag[shape + 1 + i] != INT
                        or heap[shape + 1 + i] != nodes[node, N_DIM0 + i]
                    ):
                        fits = False
                        break
                if fits:
                    fits = _copy_data(
                        data,
                        heap_tag[value + 3],
                        heap[value + 3],
                        nodes[node, N_SIZE],
                        buffer8,
                        vectors + nodes[node, N_COLUMN],
                    )
        elif kind == K_BYTES:
            fits = _copy_data(data, tag, value, nodes[node, N_SIZE], buffer8, vectors + nodes[node, N_COLUMN])
        elif kind == K_INTS or kind == K_FLOATS:
            inner = K_INT if kind == K_INTS else K_FLOAT
            at = (vectors + nodes[node, N_COLUMN]) // 8
            size = nodes[node, N_SIZE]
            if tag == TUPLE:
                fits = heap[value] == size
                if fits:
                    for i in range(size):
                        good, bits = _number_bits(heap_tag[value + 1 + i], heap[value + 1 + i], inner)
                        if not good:
                            fits = False
                            tag = np.int64(heap_tag[value + 1 + i])
                            break
                        buffer[at + i] = bits
            elif tag == LIST:
                fits = heap[value + C_COUNT] == size and heap[value + C_ROWS] == 0
                chunk = heap[value + C_FIRST]
                done = 0
                while fits and chunk >= 0:
                    for i in range(heap[chunk]):
                        good, bits = _number_bits(heap_tag[chunk + 2 + i], heap[chunk + 2 + i], inner)
                        if not good:
                            fits = False
                            tag = np.int64(heap_tag[chunk + 2 + i])
                            break
                        buffer[at + done] = bits
                        done += 1
                    chunk = heap[chunk + 1]
        elif kind == K_SEQ:
            first = nodes[node, N_CHILD]
            count = nodes[node, N_CHILDREN]
            if tag == TUPLE and heap[value] == count:
                fits = True
                for i in range(count - 1, -1, -1):
                    work[depth, 0] = first + i
                    work[depth, 1] = heap_tag[value + 1 + i]
                    work[depth, 2] = heap[value + 1 + i]
                    depth += 1
            elif tag == LIST and heap[value + C_COUNT] == count and heap[value + C_ROWS] == 0:
                fits = True
                chunk = heap[value + C_FIRST]
                done = 0
                while chunk >= 0:
                    for i in range(heap[chunk]):
                        work[depth, 0] = first + done
                        work[depth, 1] = heap_tag[chunk + 2 + i]
                        work[depth, 2] = heap[chunk + 2 + i]
                        depth += 1
                        done += 1
                    chunk = heap[chunk + 1]
        elif kind == K_DICT:
            first = nodes[node, N_CHILD]
            count = nodes[node, N_CHILDREN]
            if tag == DICT and heap[value + C_COUNT] == count:
                fits = True
                for i in range(count):
                    slot = _find_key(data, heap_tag, heap, value, i, nodes, key_pool, first + i)
                    if slot < 0:
                        fits = False
                        break
                    work[depth, 0] = first + i
                    work[depth, 1] = heap_tag[slot]
                    work[depth, 2] = heap[slot]
                    depth += 1
        elif kind == K_OBJ:
            if tag == OBJ and heap[value] == nodes[node, N_CODE]:
                first = nodes[node, N_CHILD]
                count = nodes[node, N_CHILDREN]
                mode = nodes[node, N_MODE]
                state_tag = np.int64(heap_tag[value + 2])
                state = heap[value + 2]
                if mode == M_DICT or mode == M_SLOTS:
                    one = np.int64(-1)
                    two = np.int64(-1)
                    if mode == M_DICT and state_tag == DICT:
                        one = state
                    elif mode == M_SLOTS and state_tag == TUPLE and heap[state] == 2:
                        if heap_tag[state + 1] == DICT:
                            two = heap[state + 1]
                        if heap_tag[state + 2] == DICT:
                            one = heap[state + 2]
                    have = np.int64(0)
                    if one >= 0:
                        have += heap[one + C_COUNT]
                    if two >= 0:
                        have += heap[two + C_COUNT]
                    fits = have == count and one >= 0
                    for i in range(count):
                        if not fits:
                            break
                        slot = _find_key(data, heap_tag, heap, one, i, nodes, key_pool, first + i)
                        if slot < 0 and two >= 0:
                            slot = _find_key(data, heap_tag, heap, two, i, nodes, key_pool, first + i)
                        if slot < 0:
                            fits = False
                            break
                        work[depth, 0] = first + i
                        work[depth, 1] = heap_tag[slot]
                        work[depth, 2] = heap[slot]
                        depth += 1
                else:
                    if mode == M_ARGS:
                        state_tag = np.int64(heap_tag[value + 1])
                        state = heap[value + 1]
                    if state_tag == TUPLE and heap[state] == count:
                        fits = True
                        for i in range(count):
                            work[depth, 0] = first + i
                            work[depth, 1] = heap_tag[state + 1 + i]
                            work[depth, 2] = heap[state + 1 + i]
                            depth += 1
                    elif state_tag == LIST and heap[state + C_COUNT] == count:
                        fits = True
                        chunk = heap[state + C_FIRST]
                        done = 0
                        while chunk >= 0:
                            for i in range(heap[chunk]):
                                work[depth, 0] = first + done
                                work[depth, 1] = heap_tag[chunk + 2 + i]
                                work[depth, 2] = heap[chunk + 2 + i]
                                depth += 1
                                done += 1
                            chunk = heap[chunk + 1]
        if not fits:
            registers[R_NODE] = node
            registers[R_TAG] = tag
            registers[R_VALUE] = value
            return False
    return True


@kernel
def _is_record(heap_tag: Any, heap: Any, tables: Any, table: Any, tag: Any, value: Any) -> Any:
    """Whether a value looks like a record of a table: same tag, and same class or length."""
    if tag != tables[table, T_TAG]:
        return False
    if tag == OBJ:
        return heap[value] == tables[table, T_CLASS]
    if tag == TUPLE:
        return heap[value] == tables[table, T_CLASS]
    if tag == DICT:
        return heap[value + C_COUNT] == tables[table, T_CLASS]
    return True


@kernel
def convert_items(
    data: Any,
    tags: Any,
    values: Any,
    start: Any,
    count: Any,
    step: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    registers: Any,
) -> Any:
    """Convert items start.. (pairs of key and value when `step` is 2) to rows; how many items were done.

    Fewer than `count` means: the buffer is full (R_NODE = -1), or the next item doesn't fit (R_NODE).
    """
    tables, nodes = schema.tables, schema.nodes
    row = tables[table, T_ROWS]
    cap = tables[table, T_CAP]
    root = tables[table, T_ROOT]
    registers[R_NODE] = -1
    registers[R_TABLE] = table
    done = np.int64(0)
    while done < count:
        if row >= cap:
            break
        at = start + done
        if step == 1 and tags[at] == NONE and nodes[root, N_KIND] >= K_SEQ:
            done += 1  # an empty slot of a ring that isn't full yet
            continue
        if step == 2:
            first = nodes[root, N_CHILD]
            if not _convert(
                data, memory, schema, table, first, np.int64(tags[at]), values[at], row, registers
            ):
                break
            if not _convert(
                data, memory, schema, table, first + 1, np.int64(tags[at + 1]), values[at + 1], row, registers
            ):
                break
        elif not _convert(data, memory, schema, table, root, np.int64(tags[at]), values[at], row, registers):
            break
        row += 1
        done += step
    tables[table, T_GENERAL] += row - tables[table, T_ROWS]
    tables[table, T_ROWS] = row
    return done


@kernel
def convert_links(
    data: Any,
    tags: Any,
    values: Any,
    start: Any,
    count: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    progress: Any,
    registers: Any,
) -> Any:
    """Convert pairs (key, list of rows) or (key, {key2: list of rows}) of an adjacency to link rows.

    Returns the number of stack items done; `progress[0]` counts the inner entries done of the pair it stopped in.
    """
    heap_tag, heap = memory
    tables, nodes, buffer = schema.tables, schema.nodes, schema.buffer
    cap = tables[table, T_CAP]
    root = tables[table, T_ROOT]
    level = tables[table, T_LINK]
    first = nodes[root, N_CHILD]
    scalars = tables[table, T_SCALARS]
    column = tables[table, T_FIRSTCOL]
    registers[R_TABLE] = table
    registers[R_NODE] = -1
    done = np.int64(0)
    while done < count:
        at = start + done
        chunk = np.int64(-1)
        entries = np.int64(1)
        if level == 2:
            if tags[at + 1] != DICT:
                registers[R_NODE] = -2
                return done
            chunk = heap[values[at + 1] + C_FIRST]
            entries = heap[values[at + 1] + C_COUNT]
        skip = progress[0]
        seen = np.int64(0)
        inside = np.int64(0)
        while seen < entries:
            if level == 2:
                while inside >= heap[chunk]:
                    chunk = heap[chunk + 1]
                    inside = 0
                tag = heap_tag[chunk + 2 + inside + 1]
                value = heap[chunk + 2 + inside + 1]
            else:
                tag = tags[at + 1]
                value = values[at + 1]
            if seen >= skip:
                row = tables[table, T_ROWS]
                if row >= cap:
                    return done
                if tag == ROWS:
                    head = value
                    rows = np.int64(1)
                elif tag == LIST and heap[value + C_ROWS] == heap[value + C_COUNT]:
                    head = heap[value + C_ROW]
                    rows = heap[value + C_ROWS]
                else:
                    registers[R_NODE] = -2
                    return done
                if not _convert(
                    data, memory, schema, table, first, np.int64(tags[at]), values[at], row, registers
                ):
                    return done
                if level == 2 and not _convert(
                    data,
                    memory,
                    schema,
                    table,
                    first + 1,
                    np.int64(heap_tag[chunk + 2 + inside]),
                    heap[chunk + 2 + inside],
                    row,
                    registers,
                ):
                    return done
                buffer[scalars + column * cap + row] = head
                buffer[scalars + (column + 1) * cap + row] = rows
                tables[table, T_ROWS] = row + 1
                progress[0] += 1
            seen += 1
            inside += 2
        progress[0] = 0
        done += 2
    return done


@kernel
def _memo_slot(memo_id: Any, number: Any) -> Any:
    """Position of a memo number among those that are fetched, -1 when it never is."""
    low = np.int64(0)
    high = np.int64(memo_id.size)
    while low < high:
        middle = (low + high) >> 1
        if memo_id[middle] < number:
            low = middle + 1
        else:
            high = middle
    if low < memo_id.size and memo_id[low] == number:
        return low
    return np.int64(-1)


@kernel
def _match(
    data: Any,
    pc0: Any,
    first: Any,
    last: Any,
    templates: TemplateArrays,
    memos: Memos,
    memo_count: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    row: Any,
    registers: Any,
) -> Any:
    """Read one record by a template: the offset behind it, or -1 when the bytes differ anywhere."""
    elements, literals = templates.elements, templates.literals
    memo_id, memo_tag, memo = memos.number, memos.tag, memos.value
    heap_tag, heap = memory
    tables, _nodes, _key_pool, buffer, buffer8, _work = schema
    pc = pc0
    size = np.int64(data.size)
    scalars = tables[table, T_SCALARS]
    cap = tables[table, T_CAP]
    vectors = tables[table, T_VECTORS] + row * tables[table, T_ROWBYTES]
    for e in range(first, last):
        kind = elements[e, 0]
        a = elements[e, 1]
        b = elements[e, 2]
        if kind == P_LITERAL:
            if pc + b > size:
                return np.int64(-1)
            for i in range(b):
                if data[pc + i] != literals[a + i]:
                    return np.int64(-1)
            pc += b
        elif kind == P_NUMBER or kind == P_ELEMENT:
            if pc + 11 > size:
                return np.int64(-1)
            op = data[pc]
            tag = INT
            if op == 0x4B:
                value = np.int64(data[pc + 1])
                pc += 2
            elif op == 0x47:
                tag = FLOAT
                value = _binfloat(data, pc + 1)
                pc += 9
            elif op == 0x4D:
                value = np.int64(data[pc + 1]) | np.int64(data[pc + 2]) << 8
                pc += 3
            elif op == 0x4A:
                value = _u32(data, pc + 1)
                if value >= 1 << 31:
                    value -= 1 << 32
                pc += 5
            elif op == 0x88 or op == 0x89:
                tag = BOOL
                value = np.int64(0x89) - np.int64(op)
                pc += 1
            elif op == 0x8A and data[pc + 1] <= 8:
                value = _long(data, pc + 2, np.int64(data[pc + 1]))
                pc += 2 + np.int64(data[pc + 1])
            else:
                return np.int64(-1)
            if kind == P_ELEMENT:
                fits, bits = _number_bits(tag, value, b)
                if not fits:
                    return np.int64(-1)
                buffer[(vectors + a) // 8] = bits
            elif a >= 0:
                fits, bits = _number_bits(tag, value, b)
                if not fits:
                    return np.int64(-1)
                buffer[scalars + a * cap + row] = bits
        elif kind == P_BYTES:
            if pc + 9 > size:
                return np.int64(-1)
            op = data[pc]
            if op != 0x43 and op != 0x42 and op != 0x8E and op != 0x96:
                return np.int64(-1)
            start, length = _span(data, pc)
            if length != b or start + length > size:
                return np.int64(-1)
            for i in range(b):
                buffer8[vectors + a + i] = data[start + i]
            pc = start + length
        elif kind == P_TEXT:
            if pc + 9 > size:
                return np.int64(-1)
            op = data[pc]
            if op != 0x8C and op != 0x58 and op != 0x8D:
                return np.int64(-1)
            start, length = _span(data, pc)
            if length < 0 or length > size - start:
                return np.int64(-1)
            pc = start + length
        elif kind == P_GET:
            if pc + 5 > size:
                return np.int64(-1)
            if data[pc] == 0x68:
                number = np.int64(data[pc + 1])
                after = pc + 2
            elif data[pc] == 0x6A:
                number = _u32(data, pc + 1)
                after = pc + 5
            else:
                return np.int64(-1)
            slot = _memo_slot(memo_id, number)
            if slot < 0 or memo_tag[slot] == 0:
                return np.int64(-1)
            if not _convert(
                data, memory, schema, table, a, np.int64(memo_tag[slot]), memo[slot], row, registers
            ):
                return np.int64(-1)
            pc = after
        elif kind >= P_SAMETEXT:
            if pc + 5 > size:
                return np.int64(-1)
            if data[pc] == 0x68:
                number = np.int64(data[pc + 1])
                pc += 2
            elif data[pc] == 0x6A:
                number = _u32(data, pc + 1)
                pc += 5
            else:
                return np.int64(-1)
            if number != elements[e, 3]:
                slot = _memo_slot(memo_id, number)
                if slot < 0:
                    return np.int64(-1)
                value = memo[slot]
                if kind == P_SAMETEXT:
                    if memo_tag[slot] != TEXT:
                        return np.int64(-1)
                    start, length = _span(data, value)
                    if length != b or not _same_text(data, start, length, literals, a):
                        return np.int64(-1)
                elif kind == P_SAMEGLOBAL:
                    if memo_tag[slot] != GLOBAL or value != a:
                        return np.int64(-1)
                elif memo_tag[slot] != DTYPE or heap[value] != a:
                    return np.int64(-1)
                elements[e, 3] = number
        else:
            if pc + 5 > size:
                return np.int64(-1)
            if data[pc] == 0x71:
                number = np.int64(data[pc + 1])
                pc += 2
            elif data[pc] == 0x72:
                number = _u32(data, pc + 1)
                pc += 5
            else:
                return np.int64(-1)
            if number != memo_count:
                return np.int64(-1)
            memo_count += 1
    return pc


@kernel
def _dtype_code(data: Any, at: Any, length: Any) -> Any:
    """Code of a dtype's text such as f8, (kind << 8 | item size) << 1; 0 when it isn't one of a plain number."""
    if length < 2 or length > 3:
        return np.int64(0)
    kind = data[at]
    size = np.int64(0)
    for i in range(1, length):
        if data[at + i] < 48 or data[at + i] > 57:
            return np.int64(0)
        size = size * 10 + np.int64(data[at + i]) - 48
    if kind == 98 and size == 1:  # b1
        return (np.int64(kind) << 8 | size) << 1
    if (kind == 105 or kind == 117) and (size == 1 or size == 2 or size == 4 or size == 8):  # i, u
        return (np.int64(kind) << 8 | size) << 1
    if kind == 102 and (size == 2 or size == 4 or size == 8):  # f
        return (np.int64(kind) << 8 | size) << 1
    return np.int64(0)


@kernel
def _half(bits: Any) -> Any:
    """The float64 value of an IEEE half."""
    sign = -1.0 if bits & 0x8000 else 1.0
    exponent = (bits >> 10) & 0x1F
    fraction = np.float64(bits & 0x3FF)
    if exponent == 0:
        return sign * fraction * 2.0**-24
    if exponent == 31:
        return sign * np.inf if fraction == 0 else np.nan
    return sign * (1.0 + fraction / 1024.0) * 2.0 ** np.float64(exponent - 15)


@kernel
def _scalar(code: Any, scratch: Any) -> Any:
    """(tag, payload) of the numpy scalar whose raw bytes are in `scratch`; tag -1 when it doesn't fit 64 bits."""
    size = (code >> 1) & 0xFF
    kind = (code >> 9) & 0xFF
    bits = np.int64(0)
    for i in range(size):
        at = size - 1 - i if code & 1 else i
        bits |= np.int64(scratch[at]) << (8 * i)
    if kind == 98:
        return np.int64(BOOL), np.int64(bits != 0)
    if kind == 102:
        if size == 8:
            return np.int64(FLOAT), bits
        if size == 4:
            return np.int64(FLOAT), np.float64(np.int32(bits).view(np.float32)).view(np.int64)
        return np.int64(FLOAT), np.float64(_half(bits)).view(np.int64)
    if kind == 105:
        if size < 8 and bits >> (8 * size - 1):
            bits -= np.int64(1) << (8 * size)
        return np.int64(INT), bits
    if size == 8 and bits < 0:
        return np.int64(-1), bits
    return np.int64(INT), bits


@kernel
def _storage(data: Any, at: Any, operand: Any) -> Any:
    """(dtype code, file offset of the data, elements) of a torch storage saved in the legacy (non-zip) format; code 0 if it isn't.

    The format (torch/serialization.py, _legacy_save): five pickles (magic, protocol, system, storage, keys), then for the
    one key an int64 number of elements and the raw data.
    """
    start, length = _span(data, at)
    end = start + length
    pc = start
    code = np.int64(0)
    pickles = 0
    while pc < end and pickles < 5:
        op = np.int64(data[pc])
        kind = np.int64(operand[op])
        if op == 0x51:  # BINPERSID belongs to the format
            kind = np.int64(0)
        if op == 0x2E:
            pickles += 1
        if kind >= 0:
            pc += 1 + kind
        elif kind == -1:
            if pc + 2 > end:
                return np.int64(0), np.int64(0), np.int64(0)
            pc += 2 + np.int64(data[pc + 1])
        elif kind == -2:
            if pc + 5 > end:
                return np.int64(0), np.int64(0), np.int64(0)
            pc += 5 + _u32(data, pc + 1)
        elif kind == -4:
            line = pc + 1
            lines = 0
            begin = line
            while line < end and lines < 2:
                if data[line] == 10:
                    lines += 1
                    if lines == 1:
                        begin = line + 1
                line += 1
            if lines < 2:
                return np.int64(0), np.int64(0), np.int64(0)
            # The class's name, by its first letters: Float, Double, Half, Long, Int, Short, Char, Byte, Bool.
            a = data[begin]
            b = data[begin + 1]
            if a == 70 and b == 108:
                code = np.int64((102 << 8 | 4) << 1)
            elif a == 68 and b == 111:
                code = np.int64((102 << 8 | 8) << 1)
            elif a == 72 and b == 97:
                code = np.int64((102 << 8 | 2) << 1)
            elif a == 76 and b == 111:
                code = np.int64((105 << 8 | 8) << 1)
            elif a == 73 and b == 110:
                code = np.int64((105 << 8 | 4) << 1)
            elif a == 83 and b == 104:
                code = np.int64((105 << 8 | 2) << 1)
            elif a == 67 and b == 104:
                code = np.int64((105 << 8 | 1) << 1)
            elif a == 66 and b == 121:
                code = np.int64((117 << 8 | 1) << 1)
            elif a == 66 and b == 111:
                code = np.int64((98 << 8 | 1) << 1)
            pc = line
        else:
            return np.int64(0), np.int64(0), np.int64(0)
    if pickles < 5 or pc + 8 > end or code == 0:
        return np.int64(0), np.int64(0), np.int64(0)
    elements = _u64(data, pc)
    size = (code >> 1) & 0xFF
    if elements < 0 or elements > (end - pc - 8) // size:
        return np.int64(0), np.int64(0), np.int64(0)
    return code, pc + 8, elements


@kernel
def _new_container(heap_tag: Any, heap: Any, top: Any) -> Any:
    for i in range(CONTAINER_SLOTS):
        heap_tag[top + i] = RAW
        heap[top + i] = 0
    heap[top + C_FIRST] = -1
    heap[top + C_LAST] = -1
    return top + CONTAINER_SLOTS


@kernel
def _add_chunk(
    heap_tag: Any, heap: Any, top: Any, container: Any, tags: Any, values: Any, start: Any, count: Any
) -> Any:
    """Append `count` values to a container as a new chunk."""
    heap_tag[top] = RAW
    heap[top] = count
    heap_tag[top + 1] = RAW
    heap[top + 1] = -1
    for i in range(count):
        heap_tag[top + 2 + i] = tags[start + i]
        heap[top + 2 + i] = values[start + i]
    last = heap[container + C_LAST]
    if last < 0:
        heap_tag[container + C_FIRST] = CHUNK
        heap[container + C_FIRST] = top
    else:
        heap_tag[last + 1] = CHUNK
        heap[last + 1] = top
    heap_tag[container + C_LAST] = CHUNK
    heap[container + C_LAST] = top
    return top + 2 + count


@kernel
def _evacuate(old_tag: Any, old: Any, new_tag: Any, new: Any, top: Any, tag: Any, address: Any) -> Any:
    """Copy one object to the new heap unless it's there already; (its new address, the new top)."""
    if old_tag[address] == FORWARD:
        return old[address], top
    if tag == TUPLE:
        size = 1 + old[address]
    elif tag == CHUNK:
        size = 2 + old[address]
    elif tag == OBJ:
        size = np.int64(3)
    elif tag == ARRAY:
        size = np.int64(4)
    elif tag == DTYPE:
        size = np.int64(1)
    else:
        size = np.int64(CONTAINER_SLOTS)
    for i in range(size):
        new_tag[top + i] = old_tag[address + i]
        new[top + i] = old[address + i]
    old_tag[address] = FORWARD
    old[address] = top
    return top, top + size


@kernel
def collect(
    old_tag: Any,
    old: Any,
    new_tag: Any,
    new: Any,
    stack_tag: Any,
    stack: Any,
    registers: Any,
    memo_tag: Any,
    memo: Any,
) -> Any:
    """Copy what the stack and the memo reach to a new heap (Cheney 1970)."""
    top = np.int64(0)
    for i in range(registers[R_SP]):
        if stack_tag[i] >= FIRST_POINTER:
            stack[i], top = _evacuate(old_tag, old, new_tag, new, top, stack_tag[i], stack[i])
    for i in range(memo.size):
        if memo_tag[i] >= FIRST_POINTER:
            memo[i], top = _evacuate(old_tag, old, new_tag, new, top, memo_tag[i], memo[i])
    at = np.int64(0)
    while at < top:
        if new_tag[at] >= FIRST_POINTER:
            new[at], top = _evacuate(old_tag, old, new_tag, new, top, new_tag[at], new[at])
        at += 1
    registers[R_TOP] = top
    registers[R_HIGH] = top


@kernel
def _reduce(
    data: Any,
    operand: Any,
    heap_tag: Any,
    heap: Any,
    top: Any,
    name: Any,
    global_kind: Any,
    arguments: Any,
    pc: Any,
    scratch: Any,
) -> Any:
    """What REDUCE of a known global gives: (error, tag, payload, new heap top). Nothing is called."""
    kind = global_kind[name]
    count = heap[arguments]
    first = arguments + 1
    result_tag = np.int64(0)
    result = np.int64(0)
    if kind == G_RECONSTRUCT or kind == G_FROMBUFFER:
        for i in range(4):
            heap_tag[top + i] = RAW
            heap[top + i] = 0
        heap_tag[top + 3] = NONE
        if kind == G_FROMBUFFER:
            if (
                count < 4
                or heap_tag[first] != BYTES
                or heap_tag[first + 1] != DTYPE
                or heap_tag[first + 2] != TUPLE
                or heap_tag[first + 3] != TEXT
            ):
                return np.int64(E_TYPE), np.int64(0), np.int64(0), top
            heap[top] = heap[heap[first + 1]]
            heap_tag[top + 1] = TUPLE
            heap[top + 1] = heap[first + 2]
            start, length = _span(data, heap[first + 3])
            heap[top + 2] = 1 if length == 1 and data[start] == 70 else 0  # 'F'
            heap_tag[top + 3] = BYTES
            heap[top + 3] = heap[first]
        result_tag = np.int64(ARRAY)
        result = top
        top += 4
    elif kind == G_SCALAR:
        if count != 2 or heap_tag[first] != DTYPE:
            return np.int64(E_TYPE), np.int64(0), np.int64(0), top
        code = heap[heap[first]]
        if code == 0 or not _copy_data(
            data, heap_tag[first + 1], heap[first + 1], (code >> 1) & 0xFF, scratch, 0
        ):
            return np.int64(E_DTYPE), np.int64(0), np.int64(0), top
        result_tag, result = _scalar(code, scratch)
        if result_tag < 0:
            result_tag = np.int64(BIGINT)
            result = pc
    elif kind == G_DTYPE:
        code = np.int64(0)
        if count >= 1 and heap_tag[first] == TEXT:
            start, length = _span(data, heap[first])
            code = _dtype_code(data, start, length)
        heap_tag[top] = RAW
        heap[top] = code
        result_tag = np.int64(DTYPE)
        result = top
        top += 1
    elif kind == G_ENCODE:
        if count < 1 or heap_tag[first] != TEXT:
            return np.int64(E_TYPE), np.int64(0), np.int64(0), top
        result_tag = np.int64(ENCODED)
        result = heap[first]
    elif kind == G_BYTES:
        if count == 0:
            result_tag = np.int64(NONE)
        elif heap_tag[first] == TEXT:
            result_tag = np.int64(ENCODED)
            result = heap[first]
        elif heap_tag[first] == BYTES or heap_tag[first] == ENCODED:
            result_tag = np.int64(heap_tag[first])
            result = heap[first]
        else:
            return np.int64(E_TYPE), np.int64(0), np.int64(0), top
    elif kind == G_DICT or kind == G_LIST or kind == G_SET or kind == G_DEQUE or kind == G_TUPLE:
        result_tag = np.int64(
            DICT if kind == G_DICT else (LIST if kind == G_LIST else (SET if kind == G_SET else DEQUE))
        )
        if kind == G_TUPLE:
            result_tag = np.int64(TUPLE)
        given = np.int64(-1)
        if (
            kind != G_DICT
            and count >= 1
            and (
                heap_tag[first] == LIST
                or (heap_tag[first] == TUPLE and (heap[heap[first]] > 0 or kind == G_TUPLE))
            )
        ):
            given = first
        if given >= 0 and heap_tag[given] == result_tag:
            result = heap[given]
        elif given >= 0 and heap_tag[given] == LIST and result_tag != TUPLE:
            result = heap[given]  # set([..]), deque([..]): the list's own storage serves
        elif given >= 0 or (
            kind == G_DICT and count >= 1 and heap_tag[first] != GLOBAL and heap_tag[first] != NONE
        ):
            return np.int64(E_CALL), np.int64(0), np.int64(0), top
        else:
            result = top
            top = _new_container(heap_tag, heap, top)
            if kind == G_TUPLE:
                top -= CONTAINER_SLOTS - 1
    elif kind == G_RECONSTRUCTOR:
        if count < 1 or heap_tag[first] != GLOBAL or global_kind[heap[first]] != G_CLASS:
            return np.int64(E_CALL), np.int64(0), np.int64(0), top
        heap_tag[top] = RAW
        heap[top] = heap[first]
        heap_tag[top + 1] = NONE
        heap[top + 1] = 0
        heap_tag[top + 2] = NONE
        heap[top + 2] = 0
        result_tag = np.int64(OBJ)
        result = top
        top += 3
    elif kind == G_NAMESPACE:
        heap_tag[top] = RAW
        heap[top] = name
        heap_tag[top + 1] = TUPLE
        heap[top + 1] = arguments
        heap_tag[top + 2] = NONE
        heap[top + 2] = 0
        result_tag = np.int64(OBJ)
        result = top
        top += 3
    elif kind == G_OPAQUE:
        result_tag = np.int64(OPAQUE)
        result = pc
    elif kind == G_STORAGE:
        if count != 1 or heap_tag[first] != BYTES:
            return np.int64(E_TENSOR), np.int64(0), np.int64(0), top
        result_tag = np.int64(STORAGE)
        result = heap[first]
    elif kind == G_TENSOR:
        if (
            count < 4
            or heap_tag[first] != STORAGE
            or heap_tag[first + 1] != INT
            or heap_tag[first + 2] != TUPLE
            or heap_tag[first + 3] != TUPLE
        ):
            return np.int64(E_TENSOR), np.int64(0), np.int64(0), top
        code, start, length = _storage(data, heap[first], operand)
        shape = heap[first + 2]
        stride = heap[first + 3]
        ndim = heap[shape]
        good = code != 0 and heap[stride] == ndim and heap[first + 1] >= 0
        elements_wanted = np.int64(1)
        if good:
            for i in range(ndim - 1, -1, -1):
                extent = heap[shape + 1 + i]
                if (
                    heap_tag[shape + 1 + i] != INT
                    or extent < 0
                    or extent > length
                    or (extent > 1 and heap[stride + 1 + i] != elements_wanted)
                ):
                    good = False
                    break
                elements_wanted *= extent
                if elements_wanted > length:
                    good = False
                    break
        if not good or heap[first + 1] + elements_wanted > length:
            return np.int64(E_TENSOR), np.int64(0), np.int64(0), top
        heap_tag[top] = RAW
        heap[top] = code
        heap_tag[top + 1] = TUPLE
        heap[top + 1] = shape
        heap_tag[top + 2] = RAW
        heap[top + 2] = 0
        heap_tag[top + 3] = RAWAT
        heap[top + 3] = start + heap[first + 1] * ((code >> 1) & 0xFF)
        result_tag = np.int64(ARRAY)
        result = top
        top += 4
    elif kind == G_PARAMETER:
        if count < 1 or heap_tag[first] != ARRAY:
            return np.int64(E_TENSOR), np.int64(0), np.int64(0), top
        result_tag = np.int64(ARRAY)
        result = heap[first]
    else:
        return np.int64(E_CALL), np.int64(0), np.int64(0), top
    return np.int64(0), result_tag, result, top


@kernel
def _find_global(
    data: Any, global_text: Any, global_span: Any, start1: Any, length1: Any, start2: Any, length2: Any
) -> Any:
    """Number of the global with this module and name, -1 when it wasn't seen before."""
    for g in range(global_span.shape[0]):
        if (
            global_span[g, 1] == length1
            and global_span[g, 3] == length2
            and _same_text(data, start1, length1, global_text, global_span[g, 0])
            and _same_text(data, start2, length2, global_text, global_span[g, 2])
        ):
            return np.int64(g)
    return np.int64(-1)


@kernel
def run(
    data: Any,
    limit: Any,
    operand: Any,
    registers: Any,
    stacks: Stacks,
    marks_: Marks,
    memory: Memory,
    memos: Memos,
    names: Names,
    schema: Schema,
    templates_: TemplateArrays,
    scratch: Any,
    link_progress: Any,
) -> Any:
    """Run opcodes until one of the events; the registers say where and why."""
    stack_tag, stack, stack_count = stacks
    mark_sp, mark_heap, mark_table, mark_over, mark_pc = marks_
    heap_tag, heap = memory
    memo_id, memo_last, memo_tag, memo = memos
    global_kind, global_text, global_span = names
    tables = schema.tables
    templates, first_byte = templates_.templates, templates_.first_byte
    pc = registers[R_PC]
    sp = registers[R_SP]
    marks = registers[R_MARKS]
    top = registers[R_TOP]
    counter = registers[R_MEMO]
    cursor = registers[R_CURSOR]
    high = registers[R_HIGH]
    loose = registers[R_LOOSE] - 1
    anywhere = loose >= 0 and tables[loose, T_ANYWHERE] != 0
    heap_size = np.int64(heap.size)
    stack_size = np.int64(stack.size)
    mark_size = np.int64(mark_sp.size)
    base = mark_sp[marks - 1] if marks > 0 else np.int64(0)
    over = base + OVERFLOW if marks > registers[R_FREE_MARK] else stack_size
    event = 0
    error = 0
    learn = np.int64(-1)
    while True:
        if pc >= limit:
            event = EV_LIMIT
            break
        if top + 16 > heap_size:
            registers[R_ADDRESS] = 16
            event = EV_COLLECT
            break
        if sp + 4 > stack_size:
            event = EV_STACK
            break
        op = np.int64(data[pc])

        # A record that looks like the ones before it is read in one go.
        context = mark_table[marks - 1] - 1 if marks > 0 else np.int64(-1)
        in_list = context >= 0
        if in_list:
            # Only where an item can begin: behind the mark, behind rows, or behind what looks like a record.
            if sp > base and stack_tag[sp - 1] != ROWS and stack_tag[sp - 1] != tables[context, T_TAG]:
                context = np.int64(-1)
        elif anywhere and sp > base and stack_tag[sp - 1] == LIST:
            context = loose
        if context >= 0 and first_byte[context, op] != 0:
            row = tables[context, T_ROWS]
            cap = tables[context, T_CAP]
            fetched_next = memo_id[cursor] if cursor < memo_id.size else np.int64(1) << 62
            matched = np.int64(0)
            wait = False
            at = pc
            while row + matched < cap and at < limit:
                after = np.int64(-1)
                for t in range(
                    tables[context, T_TEMPLATE], tables[context, T_TEMPLATE] + tables[context, T_TEMPLATES]
                ):
                    if counter + templates[t, TP_MEMOS] > fetched_next:
                        continue
                    after = _match(
                        data,
                        at,
                        templates[t, TP_FIRST],
                        templates[t, TP_LAST],
                        templates_,
                        memos,
                        counter,
                        memory,
                        schema,
                        context,
                        row + matched,
                        registers,
                    )
                    if after >= 0:
                        # Pending rows read without a template come first: they are converted below, then this runs again.
                        wait = matched == 0 and in_list and sp > base and stack_tag[sp - 1] != ROWS
                        if not wait:
                            counter += templates[t, TP_MEMOS]
                        break
                if after < 0 or wait:
                    break
                matched += 1
                at = after
                if not in_list:
                    break
            if wait:
                start = sp
                while start > base and stack_tag[start - 1] != ROWS:
                    start -= 1
                head = tables[context, T_FLUSHED] + row
                done = convert_items(
                    data, stack_tag, stack, start, sp - start, 1, memory, schema, context, registers
                )
                if done > 0:
                    if start > base:
                        stack_count[start - 1] += done
                    else:
                        stack_tag[start] = ROWS
                        stack[start] = head
                        stack_count[start] = done
                        start += 1
                        done -= 1
                    for i in range(start, sp - done):
                        stack_tag[i] = stack_tag[i + done]
                        stack[i] = stack[i + done]
                        stack_count[i] = stack_count[i + done]
                    sp -= done
                    if start == sp and mark_heap[marks - 1] > high:
                        top = mark_heap[marks - 1]
                if start < sp:
                    event = EV_FLUSH if registers[R_NODE] < 0 else EV_MISFIT
                    break
                continue
            if matched > 0:
                if in_list and sp > base and stack_tag[sp - 1] == ROWS:
                    stack_count[sp - 1] += matched
                else:
                    stack_tag[sp] = ROWS
                    stack[sp] = tables[context, T_FLUSHED] + row
                    stack_count[sp] = matched
                    sp += 1
                tables[context, T_ROWS] = row + matched
                registers[R_MATCHED] += matched
                pc = at
                continue
            if row >= cap:
                registers[R_TABLE] = context
                event = EV_FLUSH
                break

        if sp >= over:
            if mark_over[marks - 1] > 0:
                table = mark_over[marks - 1] - 1
                start = base + 1 if stack_tag[base] == ROWS else base
                count = np.int64(0)
                while start + count < sp - 256 and _is_record(
                    heap_tag, heap, tables, table, stack_tag[start + count], stack[start + count]
                ):
                    count += 1
                head = tables[table, T_FLUSHED] + tables[table, T_ROWS]
                done = convert_items(
                    data, stack_tag, stack, start, count, 1, memory, schema, table, registers
                )
                if done > 0:
                    if start > base:
                        stack_count[base] += done
                        shift = done
                    else:
                        stack_tag[base] = ROWS
                        stack[base] = head
                        stack_count[base] = done
                        start += 1
                        shift = done - 1
                    for i in range(start, sp - shift):
                        stack_tag[i] = stack_tag[i + shift]
                        stack[i] = stack[i + shift]
                        stack_count[i] = stack_count[i + shift]
                    sp -= shift
                if done < count:
                    event = EV_FLUSH if registers[R_NODE] < 0 else EV_MISFIT
                    break
                if sp >= over:
                    registers[R_NODE] = -1
                    registers[R_TABLE] = table
                    registers[R_FREE_MARK] = marks
                    over = stack_size
                continue
            event = EV_OVERFLOW
            break

        kind = np.int64(operand[op])
        if kind >= 0:
            after = pc + 1 + kind
        elif kind == -1:
            after = pc + 2 + np.int64(data[pc + 1])
        elif kind == -2:
            after = pc + 5 + _u32(data, pc + 1)
        elif kind == -3:
            after = pc + 9 + _u64(data, pc + 1)
        else:
            after = pc + 1

        if op == 0x94 or op == 0x71 or op == 0x72:  # MEMOIZE, BINPUT, LONG_BINPUT
            if sp <= base:
                error = E_UNDERFLOW
                break
            if op == 0x94:
                number = counter
                counter += 1
            else:
                number = np.int64(data[pc + 1]) if op == 0x71 else _u32(data, pc + 1)
                if number >= counter:
                    counter = number + 1
            slot = np.int64(-1)
            if cursor < memo_id.size and memo_id[cursor] == number:
                slot = cursor
            elif number < counter - 1:
                slot = _memo_slot(memo_id, number)
            while cursor < memo_id.size and memo_id[cursor] < counter:
                if memo_id[cursor] == number:
                    slot = cursor
                cursor += 1
            if slot >= 0 and memo_last[slot] > pc:
                memo_tag[slot] = stack_tag[sp - 1]
                memo[slot] = stack[sp - 1]
                if stack_tag[sp - 1] >= FIRST_POINTER and stack[sp - 1] > high:
                    high = stack[sp - 1]
                if stack_tag[sp - 1] == ROWS:
                    error = E_TYPE
                    break
        elif op == 0x68 or op == 0x6A:  # BINGET, LONG_BINGET
            number = np.int64(data[pc + 1]) if op == 0x68 else _u32(data, pc + 1)
            slot = _memo_slot(memo_id, number)
            if slot < 0 or memo_tag[slot] == 0:
                error = E_MEMO
                break
            stack_tag[sp] = memo_tag[slot]
            stack[sp] = memo[slot]
            sp += 1
            if memo_last[slot] <= pc:
                memo_tag[slot] = 0
        elif op == 0x4B:  # BININT1
            stack_tag[sp] = INT
            stack[sp] = data[pc + 1]
            sp += 1
        elif op == 0x47:  # BINFLOAT
            stack_tag[sp] = FLOAT
            stack[sp] = _binfloat(data, pc + 1)
            sp += 1
        elif op == 0x28:  # MARK
            if marks >= mark_size:
                event = EV_MARKS
                break
            mark_sp[marks] = sp
            mark_heap[marks] = top
            mark_table[marks] = 0
            mark_over[marks] = 0
            mark_pc[marks] = pc
            if sp > base:
                tag = stack_tag[sp - 1]
                if tag == LIST or tag == DEQUE or tag == SET:
                    owner = heap[stack[sp - 1] + C_TABLE]
                    if owner > 0:
                        mark_table[marks] = owner
                    elif loose >= 0 and tag == LIST:
                        mark_table[marks] = loose + 1
            marks += 1
            base = sp
            over = base + OVERFLOW
        elif op == 0x8C or op == 0x58 or op == 0x8D:  # SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
            stack_tag[sp] = TEXT
            stack[sp] = pc
            sp += 1
        elif (
            op == 0x43 or op == 0x42 or op == 0x8E or op == 0x96
        ):  # SHORT_BINBYTES, BINBYTES, BINBYTES8, BYTEARRAY8
            stack_tag[sp] = BYTES
            stack[sp] = pc
            sp += 1
        elif op == 0x4D:  # BININT2
            stack_tag[sp] = INT
            stack[sp] = np.int64(data[pc + 1]) | np.int64(data[pc + 2]) << 8
            sp += 1
        elif op == 0x4A:  # BININT
            value = _u32(data, pc + 1)
            if value >= 1 << 31:
                value -= 1 << 32
            stack_tag[sp] = INT
            stack[sp] = value
            sp += 1
        elif op == 0x88 or op == 0x89:  # NEWTRUE, NEWFALSE
            stack_tag[sp] = BOOL
            stack[sp] = 0x89 - op
            sp += 1
        elif op == 0x4E:  # NONE
            stack_tag[sp] = NONE
            stack[sp] = 0
            sp += 1
        elif op == 0x8A or op == 0x8B:  # LONG1, LONG4
            start = pc + 2 if op == 0x8A else pc + 5
            length = after - start
            if length > 8:
                stack_tag[sp] = BIGINT
                stack[sp] = pc
            else:
                stack_tag[sp] = INT
                stack[sp] = _long(data, start, length)
            sp += 1
        elif (
            op == 0x85 or op == 0x86 or op == 0x87 or op == 0x29 or op == 0x74
        ):  # TUPLE1..3, EMPTY_TUPLE, TUPLE
            if op == 0x74:
                if marks == 0:
                    error = E_MARK
                    break
                count = sp - base
                if top + count + 16 > heap_size:
                    registers[R_ADDRESS] = count + 16
                    event = EV_COLLECT
                    break
            else:
                count = np.int64(0) if op == 0x29 else op - 0x84
                if sp - count < base:
                    error = E_UNDERFLOW
                    break
            start = sp - count
            if op == 0x74 and mark_over[marks - 1] > 0:
                # A tuple so long that its items have become rows: what's left of it becomes rows too.
                table = mark_over[marks - 1] - 1
                kept = 1 if stack_tag[base] == ROWS else 0
                done = convert_items(
                    data, stack_tag, stack, base + kept, count - kept, 1, memory, schema, table, registers
                )
                if done < count - kept:
                    if done > 0 and kept > 0:
                        stack_count[base] += done
                        for i in range(base + 1, sp - done):
                            stack_tag[i] = stack_tag[i + done]
                            stack[i] = stack[i + done]
                            stack_count[i] = stack_count[i + done]
                        sp -= done
                    event = EV_FLUSH if registers[R_NODE] < 0 else EV_MISFIT
                    break
                address = top
                top = _new_container(heap_tag, heap, top)
                heap[address + C_TABLE] = table + 1
                heap[address + C_COUNT] = done + (stack_count[base] if kept > 0 else 0)
                heap[address + C_ROWS] = heap[address + C_COUNT]
                stack_tag[start] = LIST
                stack[start] = address
            else:
                good = True
                for i in range(start, sp):
                    if stack_tag[i] == ROWS:
                        good = False
                if not good:
                    error = E_TYPE
                    break
                heap_tag[top] = RAW
                heap[top] = count
                for i in range(count):
                    heap_tag[top + 1 + i] = stack_tag[start + i]
                    heap[top + 1 + i] = stack[start + i]
                stack_tag[start] = TUPLE
                stack[start] = top
                top += 1 + count
            sp = start + 1
            if op == 0x74:
                marks -= 1
                base = mark_sp[marks - 1] if marks > 0 else np.int64(0)
                over = base + OVERFLOW if marks > registers[R_FREE_MARK] else stack_size
        elif op == 0x5D or op == 0x7D or op == 0x8F:  # EMPTY_LIST, EMPTY_DICT, EMPTY_SET
            stack_tag[sp] = LIST if op == 0x5D else (DICT if op == 0x7D else SET)
            stack[sp] = top
            top = _new_container(heap_tag, heap, top)
            heap[top - CONTAINER_SLOTS + C_MADE] = pc
            sp += 1
        elif op == 0x65 or op == 0x61 or op == 0x90:  # APPENDS, APPEND, ADDITEMS
            if op == 0x61:
                if sp - 2 < base:
                    error = E_UNDERFLOW
                    break
                start = sp - 1
            else:
                if marks == 0:
                    error = E_MARK
                    break
                start = base
                if start < 1 or (marks > 1 and start - 1 < mark_sp[marks - 2]):
                    error = E_UNDERFLOW
                    break
            tag = stack_tag[start - 1]
            address = stack[start - 1]
            if tag != LIST and tag != DEQUE and tag != SET:
                error = E_TYPE
                break
            count = sp - start
            table = heap[address + C_TABLE] - 1
            if table < 0 and loose >= 0 and tag == LIST and count > 0:
                table = loose
                for i in range(start, sp):
                    if stack_tag[i] != ROWS and not _is_record(
                        heap_tag, heap, tables, loose, stack_tag[i], stack[i]
                    ):
                        table = np.int64(-1)
                        break
            if table >= 0:
                # Rows read by templates come first on the stack; the rest is converted now.
                i = start + registers[R_PROGRESS]
                stuck = False
                while i < sp:
                    head = tables[table, T_FLUSHED] + tables[table, T_ROWS]
                    if stack_tag[i] == ROWS:
                        head = stack[i]
                        done = stack_count[i]
                        i += 1
                    else:
                        run_end = i
                        while run_end < sp and stack_tag[run_end] != ROWS:
                            run_end += 1
                        done = convert_items(
                            data, stack_tag, stack, i, run_end - i, 1, memory, schema, table, registers
                        )
                        i += done
                        stuck = i < run_end
                    if heap[address + C_ROWS] == 0:
                        heap[address + C_ROW] = head
                    heap[address + C_ROWS] += done
                    heap[address + C_COUNT] += done
                    if stuck:
                        break
                if stuck:
                    registers[R_PROGRESS] = i - start
                    registers[R_ADDRESS] = address
                    event = EV_FLUSH if registers[R_NODE] < 0 else EV_MISFIT
                    break
                registers[R_PROGRESS] = 0
                if (
                    tables[table, T_LEARN] != 0
                    and tables[table, T_GENERAL] >= LEARN
                    and (op != 0x61 or heap[address + C_COUNT] == 1)
                ):
                    learn = table
                    registers[R_TABLE] = table
                    registers[R_ADDRESS] = (
                        mark_pc[marks - 1] + 1 if op != 0x61 else heap[address + C_MADE] + 1
                    )
                    registers[R_VALUE] = pc
                elif op != 0x61:
                    tables[table, T_GENERAL] = 0
                if op != 0x61 and mark_heap[marks - 1] > high:
                    top = mark_heap[marks - 1]
            else:
                if heap[address + C_COUNT] >= BATCH and heap[address + C_TABLE] == 0:
                    registers[R_ADDRESS] = address
                    registers[R_TAG] = tag
                    event = EV_BIG
                    break
                if top + count + 16 > heap_size:
                    registers[R_ADDRESS] = count + 16
                    event = EV_COLLECT
                    break
                if count > 0:
                    good = True
                    for i in range(start, sp):
                        if stack_tag[i] == ROWS:
                            good = False
                    if not good:
                        error = E_LINK
                        break
                    top = _add_chunk(heap_tag, heap, top, address, stack_tag, stack, start, count)
                    heap[address + C_COUNT] += count
            sp = start
            if op != 0x61:
                marks -= 1
                base = mark_sp[marks - 1] if marks > 0 else np.int64(0)
                over = base + OVERFLOW if marks > registers[R_FREE_MARK] else stack_size
        elif op == 0x75 or op == 0x73:  # SETITEMS, SETITEM
            if op == 0x73:
                if sp - 3 < base:
                    error = E_UNDERFLOW
                    break
                start = sp - 2
            else:
                if marks == 0:
                    error = E_MARK
                    break
                start = base
                if start < 1 or (marks > 1 and start - 1 < mark_sp[marks - 2]) or (sp - start) % 2 != 0:
                    error = E_UNDERFLOW
                    break
            if stack_tag[start - 1] != DICT:
                error = E_TYPE
                break
            address = stack[start - 1]
            count = sp - start
            table = heap[address + C_TABLE] - 1
            if table >= 0:
                i = start + registers[R_PROGRESS]
                if tables[table, T_LINK] > 0:
                    done = convert_links(
                        data, stack_tag, stack, i, sp - i, memory, schema, table, link_progress, registers
                    )
                else:
                    done = convert_items(
                        data, stack_tag, stack, i, sp - i, 2, memory, schema, table, registers
                    )
                heap[address + C_COUNT] += done // 2
                heap[address + C_ROWS] += done // 2
                if i + done < sp:
                    registers[R_PROGRESS] = i + done - start
                    if registers[R_NODE] == -2:
                        error = E_LINK
                        break
                    event = EV_FLUSH if registers[R_NODE] < 0 else EV_MISFIT
                    break
                registers[R_PROGRESS] = 0
                if op == 0x75 and mark_heap[marks - 1] > high:
                    top = mark_heap[marks - 1]
            else:
                if heap[address + C_COUNT] >= BATCH and heap[address + C_TABLE] == 0:
                    registers[R_ADDRESS] = address
                    registers[R_TAG] = DICT
                    event = EV_BIG
                    break
                if top + count + 16 > heap_size:
                    registers[R_ADDRESS] = count + 16
                    event = EV_COLLECT
                    break
                if count > 0:
                    top = _add_chunk(heap_tag, heap, top, address, stack_tag, stack, start, count)
                    heap[address + C_COUNT] += count // 2
            sp = start
            if op == 0x75:
                marks -= 1
                base = mark_sp[marks - 1] if marks > 0 else np.int64(0)
                over = base + OVERFLOW if marks > registers[R_FREE_MARK] else stack_size
        elif op == 0x81 or op == 0x92:  # NEWOBJ, NEWOBJ_EX
            wanted = 2 if op == 0x81 else 3
            if sp - wanted < base:
                error = E_UNDERFLOW
                break
            start = sp - wanted
            if stack_tag[start] != GLOBAL or stack_tag[start + 1] != TUPLE:
                error = E_TYPE
                break
            kind = global_kind[stack[start]]
            if op == 0x92 and (stack_tag[sp - 1] != DICT or heap[stack[sp - 1] + C_COUNT] != 0):
                error = E_NEWOBJ
                registers[R_VALUE] = stack[start]
                break
            if kind == G_CLASS or kind == G_NAMESPACE:
                heap_tag[top] = RAW
                heap[top] = stack[start]
                heap_tag[top + 1] = TUPLE
                heap[top + 1] = stack[start + 1]
                heap_tag[top + 2] = NONE
                heap[top + 2] = 0
                stack_tag[start] = OBJ
                stack[start] = top
                top += 3
            elif kind == G_DICT or kind == G_LIST or kind == G_SET or kind == G_DEQUE:
                # A plain standard container made by its class's __new__: filled by the opcodes that follow.
                stack_tag[start] = (
                    DICT
                    if kind == G_DICT
                    else (LIST if kind == G_LIST else (SET if kind == G_SET else DEQUE))
                )
                stack[start] = top
                top = _new_container(heap_tag, heap, top)
            else:
                error = E_NEWOBJ
                registers[R_VALUE] = stack[start]
                break
            sp = start + 1
        elif op == 0x62:  # BUILD
            if sp - 2 < base:
                error = E_UNDERFLOW
                break
            tag = stack_tag[sp - 2]
            address = stack[sp - 2]
            state_tag = stack_tag[sp - 1]
            state = stack[sp - 1]
            if tag == OBJ:
                heap_tag[address + 2] = state_tag
                heap[address + 2] = state
                if state_tag == ROWS:
                    error = E_TYPE
                    break
            elif tag == ARRAY:
                if (
                    state_tag != TUPLE
                    or heap[state] != 5
                    or heap_tag[state + 2] != TUPLE
                    or heap_tag[state + 3] != DTYPE
                ):
                    error = E_TYPE
                    break
                data_tag = heap_tag[state + 5]
                if data_tag != BYTES and data_tag != ENCODED:
                    error = E_DTYPE
                    break
                heap_tag[address + 1] = TUPLE
                heap[address + 1] = heap[state + 2]
                heap[address] = heap[heap[state + 3]]
                heap[address + 2] = heap[state + 4]
                heap_tag[address + 3] = data_tag
                heap[address + 3] = heap[state + 5]
            elif tag == DTYPE:
                if state_tag == TUPLE and heap[state] >= 2 and heap_tag[state + 2] == TEXT:
                    start, length = _span(data, heap[state + 2])
                    if length == 1 and data[start] == 62 and heap[address] != 0:  # '>'
                        heap[address] |= 1
            elif tag == OPAQUE or tag == DICT or tag == LIST or tag == DEQUE or tag == SET:
                pass  # attributes of a subclass or of something nobody needs
            else:
                error = E_TYPE
                break
            sp -= 1
        elif op == 0x52:  # REDUCE
            if sp - 2 < base:
                error = E_UNDERFLOW
                break
            if stack_tag[sp - 2] != GLOBAL or stack_tag[sp - 1] != TUPLE:
                error = E_TYPE
                break
            error, result_tag, result, top = _reduce(
                data, operand, heap_tag, heap, top, stack[sp - 2], global_kind, stack[sp - 1], pc, scratch
            )
            if error != 0:
                registers[R_VALUE] = stack[sp - 2]
                break
            sp -= 1
            stack_tag[sp - 1] = result_tag
            stack[sp - 1] = result
        elif op == 0x93 or op == 0x63:  # STACK_GLOBAL, GLOBAL
            if op == 0x93:
                if sp - 2 < base:
                    error = E_UNDERFLOW
                    break
                if stack_tag[sp - 2] != TEXT or stack_tag[sp - 1] != TEXT:
                    error = E_TYPE
                    break
                start1, length1 = _span(data, stack[sp - 2])
                start2, length2 = _span(data, stack[sp - 1])
            else:
                start1 = pc + 1
                start2 = start1
                while data[start2] != 10:
                    start2 += 1
                length1 = start2 - start1
                start2 += 1
                after = start2
                while data[after] != 10:
                    after += 1
                length2 = after - start2
                after += 1
            found = _find_global(data, global_text, global_span, start1, length1, start2, length2)
            if found < 0:
                registers[R_ADDRESS] = start1
                registers[R_TAG] = length1
                registers[R_NODE] = start2
                registers[R_VALUE] = length2
                event = EV_GLOBAL
                break
            if op == 0x93:
                sp -= 2
            stack_tag[sp] = GLOBAL
            stack[sp] = found
            sp += 1
        elif (
            op == 0x6C or op == 0x64 or op == 0x91
        ):  # LIST, DICT, FROZENSET: made from the items above the mark
            if marks == 0:
                error = E_MARK
                break
            count = sp - base
            if op == 0x64 and count % 2 != 0:
                error = E_UNDERFLOW
                break
            if top + count + 32 > heap_size:
                registers[R_ADDRESS] = count + 32
                event = EV_COLLECT
                break
            good = True
            for i in range(base, sp):
                if stack_tag[i] == ROWS:
                    good = False
            if not good:
                error = E_TYPE
                break
            address = top
            top = _new_container(heap_tag, heap, top)
            if count > 0:
                top = _add_chunk(heap_tag, heap, top, address, stack_tag, stack, base, count)
            heap[address + C_COUNT] = count // 2 if op == 0x64 else count
            stack_tag[base] = LIST if op == 0x6C else (DICT if op == 0x64 else SET)
            stack[base] = address
            sp = base + 1
            marks -= 1
            base = mark_sp[marks - 1] if marks > 0 else np.int64(0)
            over = base + OVERFLOW if marks > registers[R_FREE_MARK] else stack_size
        elif op == 0x80 or op == 0x95 or op == 0x98:  # PROTO, FRAME, READONLY_BUFFER
            pass
        elif op == 0x32:  # DUP
            if sp <= base or stack_tag[sp - 1] == ROWS:
                error = E_UNDERFLOW
                break
            stack_tag[sp] = stack_tag[sp - 1]
            stack[sp] = stack[sp - 1]
            sp += 1
        elif op == 0x30:  # POP
            if sp > base:
                if stack_tag[sp - 1] == ROWS:
                    error = E_TYPE
                    break
                sp -= 1
            elif marks > 0:
                marks -= 1
                base = mark_sp[marks - 1] if marks > 0 else np.int64(0)
                over = base + OVERFLOW if marks > registers[R_FREE_MARK] else stack_size
            else:
                error = E_UNDERFLOW
                break
        elif op == 0x31:  # POP_MARK
            if marks == 0:
                error = E_MARK
                break
            sp = base
            marks -= 1
            base = mark_sp[marks - 1] if marks > 0 else np.int64(0)
            over = base + OVERFLOW if marks > registers[R_FREE_MARK] else stack_size
        elif op == 0x2E:  # STOP
            if sp != 1 or marks != 0:
                error = E_UNDERFLOW
                break
            event = EV_STOP
            break
        else:
            error = E_OPCODE
            break
        if registers[R_FREE_MARK] > marks:
            registers[R_FREE_MARK] = marks
        pc = after
        if learn >= 0:
            event = EV_LEARN
            break

    registers[R_PC] = pc
    registers[R_SP] = sp
    registers[R_MARKS] = marks
    registers[R_TOP] = top
    registers[R_MEMO] = counter
    registers[R_CURSOR] = cursor
    registers[R_HIGH] = high
    registers[R_ERROR] = error
    if error != 0:
        return EV_ERROR
    return event
