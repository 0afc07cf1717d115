"""Pass 2: a compiled pickle machine that turns big containers into columns as it goes.

Everything compiled lives in this one file because numba keys its cache on a file's own content (see
``docs/decisions/0002-compiled-pickle-machine.md``). All state is in plain arrays, so the machine can stop at
any opcode, let Python decide something rare (a new class, a new table, a full buffer), and go on.

A value is a tag and a 64-bit payload. Numbers are their own payload; text and bytes are the file offset of
their opcode; the rest points into a bump heap. The heap is rewound after each batch of records unless the
memo still needs something in it, and a copying collection bounds what is left.

Heap objects, in slots (every slot is tagged; RAW marks numbers of the machine's own):

==========  ====================================================================================
TUPLE       n, item * n
container   count, first chunk, last chunk, table, first row, rows, made at  (LIST, DICT, SET, DEQUE)
CHUNK       n, next chunk, item * n                                         (keys and values alternate in a
DICT) OBJ         class, constructor arguments, state
ARRAY       dtype code, shape, order, data
DTYPE       dtype code
==========  ====================================================================================

A container's table is 0 (none), t + 1, or -1 (looked at, stays on the heap).

Inside, arrays are bare pointers: numba would count references to an array at every call, and look for
negative indices at every access, which takes half of the time and most of the compilation. `run` is the only
entry, so that every kernel is compiled once: it makes the pointers, and the caller's arguments keep the
arrays alive. An index is checked where its value comes from the pickle. A row of a two-dimensional array is
named by the offset of its first field: `t` of a table, `n` of a schema node.
"""

# ruff: noqa: SIM102, SIM109, SIM110 - numba compiles chained comparisons and plain loops to less code than `in` and `all`

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from omstore.compiled import inner_kernel, kernel
from omstore.legacy import opcodes as op

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

# --- registers ------------------------------------------------------------------------------------------
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
R_LINKED: Final = 17  # entries of an adjacency's inner dict that are converted already
R_LIMIT: Final = 18  # file offset to stop at
R_BASE: Final = 19  # stack height at the innermost mark
R_AFTER: Final = 20  # file offset behind the opcode at R_PC
R_COMMAND: Final = 21
R_START: Final = 22  # of a conversion: first heap slot
R_COUNT: Final = 23  # heap slots; afterwards, how many were done
R_STEP: Final = 24  # slots an item takes
# Sizes of the arrays, set by `run`.
R_SIZE: Final = 25
R_HEAP_SIZE: Final = 26
R_STACK_SIZE: Final = 27
R_MARK_SIZE: Final = 28
R_MEMO_SIZE: Final = 29
R_NUM_GLOBALS: Final = 30
NUM_REGISTERS: Final = 32

# --- commands -------------------------------------------------------------------------------------------
DO_RUN: Final = 0  # run opcodes
DO_ITEMS: Final = 1  # convert heap slots to rows of R_TABLE
DO_LINKS: Final = 2  # the same for an adjacency's pairs
DO_COLLECT: Final = 3  # collect garbage into `spare`

# --- events ---------------------------------------------------------------------------------------------
AGAIN: Final = -1  # no event: go on where the registers say
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

# --- errors ---------------------------------------------------------------------------------------------
E_UNDERFLOW: Final = 1
E_MARK: Final = 2
E_MEMO: Final = 3
E_CALL: Final = 4  # REDUCE of something that isn't understood: R_VALUE is the global
E_TYPE: Final = 5  # operands of the wrong kind
E_OPCODE: Final = 6
E_NEWOBJ: Final = 8
E_DTYPE: Final = 9
E_TENSOR: Final = 10
E_LINK: Final = 11  # an adjacency's list that holds something other than records

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

OVERFLOW: Final = 4096  # values above one mark before Python is asked what they are
BATCH: Final = 1000  # items of a container before Python is asked whether they make a table
LEARN: Final = 48  # rows read without a template before Python is asked for one
ROOM: Final = 16  # free heap slots before any opcode: enough for what doesn't say how much it takes
NEVER: Final = 1 << 62

CONTAINER_SLOTS: Final = 7
C_COUNT: Final = 0
C_FIRST: Final = 1
C_LAST: Final = 2
C_TABLE: Final = 3
C_ROW: Final = 4
C_ROWS: Final = 5
C_MADE: Final = 6  # file offset of the opcode that made it


# --- what the machine works on --------------------------------------------------------------------------
# Arrays where Python calls `run`, pointers inside.


class Stacks(NamedTuple):
    """The value stack: tags, payloads, and how many rows a ROWS value stands for."""

    tag: Any
    value: Any
    count: Any


class Marks(NamedTuple):
    """The open marks.

    Stack height, heap top, the table whose records may follow, the table a huge tuple's items go to, file
    offset.
    """

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
    """The memo entries that are ever fetched: numbers (ascending), offset of the last fetch, what they hold
    now."""

    number: Any
    last: Any
    tag: Any
    value: Any


class Names(NamedTuple):
    """The globals seen: ``G_`` codes, and modules and names as spans (offset, length, offset, length) of a
    text."""

    kind: Any
    text: Any
    span: Any


class Schema(NamedTuple):
    """Tables, schema nodes, the texts of keys, the row buffers (one memory, as int64 and as bytes), a work
    stack."""

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


class Row(NamedTuple):
    """Where one row of a table lies: its first scalar, the distance to the next column, its first vector
    byte."""

    scalars: Any
    stride: Any
    vectors: Any


def _make_pointer(typing_context: Any, array: Any) -> Any:
    """Where an array's elements begin."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    element_pointer: Any = cast(Any, types.CPointer)(array.dtype)
    return element_pointer(array), generate


_pointer: Any = intrinsic(_make_pointer)


def _loader(bits: int, *, swapped: bool = False) -> Any:
    """Make the kernel that loads a little-endian (`swapped`: big-endian) number from any byte offset,
    zero-extended."""

    def load(typing_context: Any, pointer: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address = builder.gep(arguments[0], [arguments[1]])
            number = builder.load(builder.bitcast(address, ir.IntType(bits).as_pointer()), align=1)
            number = builder.bswap(number) if swapped else number
            return builder.zext(number, ir.IntType(64)) if bits < 64 else number

        return types.int64(pointer, types.int64), generate

    return intrinsic(load)


_u16: Any = _loader(16)
_u32: Any = _loader(32)
_u64: Any = _loader(64)
_float_bits: Any = _loader(64, swapped=True)


def _make_copy(typing_context: Any, target: Any, to: Any, source: Any, start: Any, count: Any) -> Any:
    """Copy elements from one memory to another (memmove: loops would be compiled to several vectorised
    versions)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        out, to, data, start, count = arguments
        size = context.get_abi_sizeof(context.get_value_type(signature.args[0].dtype))
        memmove: Any = cgutils.raw_memmove
        memmove(builder, builder.gep(out, [to]), builder.gep(data, [start]), count, size)
        return context.get_dummy_value()

    return types.none(target, types.int64, source, types.int64, types.int64), generate


_copy: Any = intrinsic(_make_copy)

# --- bytes ----------------------------------------------------------------------------------------------


@inner_kernel
def _span(data: Any, at: Any) -> Any:
    """Start and length of the text or bytes whose opcode is at `at`."""
    code = data[at]
    if code == op.SHORT_BINUNICODE or code == op.SHORT_BINBYTES:
        return at + 2, np.int64(data[at + 1])
    if code == op.BINUNICODE or code == op.BINBYTES:
        return at + 5, _u32(data, at + 1)
    return at + 9, _u64(data, at + 1)


@inner_kernel
def _long(data: Any, at: Any, length: Any) -> Any:
    """Little-endian two's complement of up to 8 bytes."""
    value = np.int64(0)
    for i in range(length):
        value |= np.int64(data[at + i]) << (8 * i)
    if 0 < length < 8 and data[at + length - 1] & 0x80:
        value -= np.int64(1) << (8 * length)
    return value


@inner_kernel
def _same_bytes(data: Any, at: Any, pool: Any, offset: Any, length: Any) -> Any:
    """Whether two runs of bytes are equal, eight at a time."""
    i = np.int64(0)
    while i + 8 <= length:
        if _u64(data, at + i) != _u64(pool, offset + i):
            return False
        i += 8
    while i < length:
        if data[at + i] != pool[offset + i]:
            return False
        i += 1
    return True


@inner_kernel
def _latin1(data: Any, at: Any, left: Any) -> Any:
    """(byte, width) of the UTF-8 character at `at`; width 0 when it isn't a whole one below 256."""
    byte = np.int64(data[at])
    if byte < 0x80:
        return byte, np.int64(1)
    if (byte & 0xFC) == 0xC0 and left > 1:
        return (byte & 3) << 6 | (np.int64(data[at + 1]) & 0x3F), np.int64(2)
    return byte, np.int64(0)


@inner_kernel
def _copy_data(data: Any, tag: Any, value: Any, size: Any, out: Any, to: Any) -> Any:
    """Copy `size` raw bytes of a bytes-like value; False when it has another length."""
    if tag == RAWAT:
        _copy(out, to, data, value, size)
        return True
    if tag != BYTES and tag != ENCODED:
        return False
    start, length = _span(data, value)
    if tag == BYTES:
        if length == size:
            _copy(out, to, data, start, size)
        return length == size
    i = np.int64(0)
    done = np.int64(0)
    while i < length:
        byte, width = _latin1(data, start + i, length - i)
        if width == 0 or done >= size:
            return False
        out[to + done] = byte
        done += 1
        i += width
    return done == size


@inner_kernel
def _scalar_bits(data: Any, tag: Any, value: Any, size: Any, swapped: Any) -> Any:
    """(fits, bits) of a number of `size` raw bytes, big-endian when `swapped` isn't 0."""
    bits = np.int64(0)
    if tag != BYTES and tag != ENCODED:
        return False, bits
    start, length = _span(data, value)
    i = np.int64(0)
    done = np.int64(0)
    while i < length:
        byte = np.int64(data[start + i])
        width = np.int64(1)
        if tag == ENCODED:
            byte, width = _latin1(data, start + i, length - i)
        if width == 0 or done >= size:
            return False, bits
        bits |= byte << (8 * (size - 1 - done if swapped != 0 else done))
        done += 1
        i += width
    return done == size, bits


# --- from values to rows --------------------------------------------------------------------------------


@inner_kernel
def _number_bits(tag: Any, value: Any, kind: Any) -> Any:
    """(fits, bits) of a number for a column of the kind; bool < int < float widen."""
    if kind == K_FLOAT:
        if tag == FLOAT:
            return True, value
        if tag == INT or tag == BOOL:
            # Exact up to 2^53; beyond, the value isn't what the pickle held.
            return -(1 << 53) <= value <= (1 << 53), np.float64(value).view(np.int64)
        return False, value
    if kind == K_INT:
        return tag == INT or tag == BOOL, value
    return tag == BOOL, value


@inner_kernel
def _row_at(tables: Any, t: Any, row: Any) -> Any:
    return Row(
        tables[t + T_SCALARS] + row, tables[t + T_CAP], tables[t + T_VECTORS] + row * tables[t + T_ROWBYTES]
    )


@inner_kernel
def _find_key(data: Any, memory: Memory, schema: Schema, dictionary: Any, position: Any, n: Any) -> Any:
    """Heap slot of the value under a schema node's key, tried at `position` first; -1 when absent."""
    heap_tag, heap = memory
    nodes = schema.nodes
    chunk = heap[dictionary + C_FIRST]
    key = nodes[n + N_KEY]
    is_text = nodes[n + N_KEYKIND] == 0
    tag = TEXT if is_text else INT
    seen = nodes[n + N_KEYPOS] if is_text else key
    if chunk >= 0 and position * 2 < heap[chunk]:
        slot = chunk + 2 + position * 2
        if heap[slot] == seen and heap_tag[slot] == tag:
            return slot + 1
    while chunk >= 0:
        for slot in range(chunk + 2, chunk + 2 + heap[chunk], 2):
            if heap_tag[slot] == tag:
                if is_text:
                    start, length = _span(data, heap[slot])
                    if length == nodes[n + N_KEYLEN] and _same_bytes(
                        data, start, schema.key_pool, key, length
                    ):
                        nodes[n + N_KEYPOS] = heap[slot]
                        return slot + 1
                elif heap[slot] == key:
                    return slot + 1
        chunk = heap[chunk + 1]
    return np.int64(-1)


@inner_kernel
def _offer(memory: Memory, schema: Schema, row: Row, node: Any, slot: Any, depth: Any) -> Any:
    """Take the value in a heap slot to a schema node: a number is written at once, the rest waits on the work
    stack."""
    nodes, work = schema.nodes, schema.work
    n = node * NODE_FIELDS
    kind = nodes[n + N_KIND]
    tag = np.int64(memory.tag[slot])
    value = memory.value[slot]
    if kind == K_INT or kind == K_FLOAT or kind == K_BOOL:
        fits, bits = _number_bits(tag, value, kind)
        if fits:
            schema.buffer[row.scalars + nodes[n + N_COLUMN] * row.stride] = bits
            return depth
    work[3 * depth] = node
    work[3 * depth + 1] = tag
    work[3 * depth + 2] = value
    return depth + 1


@inner_kernel
def _offer_items(memory: Memory, schema: Schema, row: Row, n: Any, tag: Any, value: Any, depth: Any) -> Any:
    """Take a tuple's or list's items to a node's children; the new depth, -1 when it isn't a sequence of that
    length."""
    heap = memory.value
    child = schema.nodes[n + N_CHILD]
    count = schema.nodes[n + N_CHILDREN]
    if tag == TUPLE and heap[value] == count:
        for slot in range(value + 1, value + 1 + count):
            depth = _offer(memory, schema, row, child, slot, depth)
            child += 1
        return depth
    if tag == LIST and heap[value + C_COUNT] == count and heap[value + C_ROWS] == 0:
        chunk = heap[value + C_FIRST]
        while chunk >= 0:
            for slot in range(chunk + 2, chunk + 2 + heap[chunk]):
                depth = _offer(memory, schema, row, child, slot, depth)
                child += 1
            chunk = heap[chunk + 1]
        return depth
    return np.int64(-1)


@inner_kernel
def _offer_fields(
    data: Any, memory: Memory, schema: Schema, row: Row, n: Any, one: Any, two: Any, depth: Any
) -> Any:
    """Take the values of a dict (or of two, -1: none) to a node's children; the new depth, -1 when the keys
    differ."""
    heap = memory.value
    first = schema.nodes[n + N_CHILD]
    count = schema.nodes[n + N_CHILDREN]
    have = heap[one + C_COUNT]
    if two >= 0:
        have += heap[two + C_COUNT]
    if have != count:
        return np.int64(-1)
    for i in range(count):
        m = (first + i) * NODE_FIELDS
        slot = _find_key(data, memory, schema, one, i, m)
        if slot < 0 and two >= 0:
            slot = _find_key(data, memory, schema, two, i, m)
        if slot < 0:
            return np.int64(-1)
        depth = _offer(memory, schema, row, first + i, slot, depth)
    return depth


@inner_kernel
def _offer_state(data: Any, memory: Memory, schema: Schema, row: Row, n: Any, value: Any, depth: Any) -> Any:
    """Take an instance's fields to a node's children; the new depth, -1 when it's made another way."""
    heap_tag, heap = memory
    mode = schema.nodes[n + N_MODE]
    tag = np.int64(heap_tag[value + 2])
    state = heap[value + 2]
    if mode == M_ARGS:
        return _offer_items(memory, schema, row, n, np.int64(heap_tag[value + 1]), heap[value + 1], depth)
    if mode == M_SEQ:
        return _offer_items(memory, schema, row, n, tag, state, depth)
    two = np.int64(-1)
    if mode == M_SLOTS:
        if tag != TUPLE or heap[state] != 2:
            return np.int64(-1)
        if heap_tag[state + 1] == DICT:
            two = heap[state + 1]
        tag = np.int64(heap_tag[state + 2])
        state = heap[state + 2]
    if tag != DICT:
        return np.int64(-1)
    return _offer_fields(data, memory, schema, row, n, state, two, depth)


@inner_kernel
def _numbers(memory: Memory, start: Any, count: Any, kind: Any, buffer: Any, to: Any) -> Any:
    """Write the numbers in heap slots as a vector's elements; how many fit."""
    for i in range(count):
        fits, bits = _number_bits(np.int64(memory.tag[start + i]), memory.value[start + i], kind)
        if not fits:
            return np.int64(i)
        buffer[to + i] = bits
    return count


@inner_kernel
def _vector(memory: Memory, tag: Any, value: Any, size: Any, kind: Any, buffer: Any, to: Any) -> Any:
    """Write a tuple's or list's numbers; -1 when done, else the tag of what doesn't fit (its own for a wrong
    length)."""
    heap_tag, heap = memory
    if tag == TUPLE and heap[value] == size:
        done = _numbers(memory, value + 1, size, kind, buffer, to)
        return np.int64(-1) if done == size else np.int64(heap_tag[value + 1 + done])
    if tag == LIST and heap[value + C_COUNT] == size and heap[value + C_ROWS] == 0:
        chunk = heap[value + C_FIRST]
        while chunk >= 0:
            done = _numbers(memory, chunk + 2, heap[chunk], kind, buffer, to)
            if done < heap[chunk]:
                return np.int64(heap_tag[chunk + 2 + done])
            to += done
            chunk = heap[chunk + 1]
        return np.int64(-1)
    return tag


@inner_kernel
def _same_array(memory: Memory, nodes: Any, n: Any, value: Any) -> Any:
    """Whether an array has a schema node's dtype and shape, in C order."""
    heap_tag, heap = memory
    if heap[value] != nodes[n + N_CODE] or heap_tag[value + 1] != TUPLE:
        return False
    shape = heap[value + 1]
    ndim = heap[shape]
    if ndim != nodes[n + N_NDIM] or (ndim > 1 and heap[value + 2] != 0):
        return False
    for i in range(ndim):
        if heap_tag[shape + 1 + i] != INT or heap[shape + 1 + i] != nodes[n + N_DIM0 + i]:
            return False
    return True


@inner_kernel
def _convert(
    data: Any, memory: Memory, schema: Schema, row: Row, node: Any, tag: Any, value: Any, registers: Any
) -> Any:
    """Write one value into a row as its schema node says; False (and R_NODE, R_TAG, R_VALUE) when it doesn't
    fit."""
    heap_tag, heap = memory
    nodes, work, buffer8 = schema.nodes, schema.work, schema.buffer8
    work[0] = node
    work[1] = tag
    work[2] = value
    depth = np.int64(1)
    while depth > 0:
        depth -= 1
        node = work[3 * depth]
        tag = work[3 * depth + 1]
        value = work[3 * depth + 2]
        n = node * NODE_FIELDS
        kind = nodes[n + N_KIND]
        to = row.vectors + nodes[n + N_COLUMN]
        size = nodes[n + N_SIZE]
        fits = False
        below = np.int64(-1)
        if kind == K_SKIP:
            fits = True
        elif kind == K_NONE:
            fits = tag == NONE
        elif kind == K_INT or kind == K_FLOAT or kind == K_BOOL:
            fits, bits = _number_bits(tag, value, kind)
            if fits:
                schema.buffer[row.scalars + nodes[n + N_COLUMN] * row.stride] = bits
        elif kind == K_ARRAY:
            if tag == ARRAY and _same_array(memory, nodes, n, value):
                fits = _copy_data(data, np.int64(heap_tag[value + 3]), heap[value + 3], size, buffer8, to)
        elif kind == K_BYTES:
            fits = _copy_data(data, tag, value, size, buffer8, to)
        elif kind == K_INTS or kind == K_FLOATS:
            inner = np.int64(K_INT if kind == K_INTS else K_FLOAT)
            wrong = _vector(memory, tag, value, size, inner, schema.buffer, to // 8)
            fits = wrong < 0
            tag = tag if fits else wrong
        elif kind == K_SEQ:
            below = _offer_items(memory, schema, row, n, tag, value, depth)
        elif kind == K_DICT:
            if tag == DICT:
                below = _offer_fields(data, memory, schema, row, n, value, np.int64(-1), depth)
        elif kind == K_OBJ:
            if tag == OBJ and heap[value] == nodes[n + N_CODE]:
                below = _offer_state(data, memory, schema, row, n, value, depth)
        if below >= 0:
            depth = below
        elif not fits:
            registers[R_NODE] = node
            registers[R_TAG] = tag
            registers[R_VALUE] = value
            return False
    return True


@inner_kernel
def _is_record(memory: Memory, tables: Any, t: Any, tag: Any, value: Any) -> Any:
    """Whether a value looks like a record of a table: same tag, and same class or length."""
    if tag != tables[t + T_TAG]:
        return False
    if tag == OBJ or tag == TUPLE:
        return memory.value[value] == tables[t + T_CLASS]
    if tag == DICT:
        return memory.value[value + C_COUNT] == tables[t + T_CLASS]
    return True


@inner_kernel
def _convert_items(
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
    t = table * TABLE_FIELDS
    row = tables[t + T_ROWS]
    cap = tables[t + T_CAP]
    root = tables[t + T_ROOT]
    # An empty slot of a ring that isn't full yet is no record.
    gaps = step == 1 and nodes[root * NODE_FIELDS + N_KIND] >= K_SEQ
    node = root if step == 1 else nodes[root * NODE_FIELDS + N_CHILD]
    registers[R_NODE] = -1
    registers[R_TABLE] = table
    done = np.int64(0)
    while done < count and row < cap:
        if not (gaps and tags[start + done] == NONE):
            place = _row_at(tables, t, row)
            for i in range(step):
                at = start + done + i
                if not _convert(
                    data, memory, schema, place, node + i, np.int64(tags[at]), values[at], registers
                ):
                    break
            if registers[R_NODE] >= 0:
                break
            row += 1
        done += step
    tables[t + T_GENERAL] += row - tables[t + T_ROWS]
    tables[t + T_ROWS] = row
    return done


@inner_kernel
def _convert_links(
    data: Any,
    tags: Any,
    values: Any,
    start: Any,
    count: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    registers: Any,
) -> Any:
    """Convert pairs (key, list of rows) or (key, {key2: list of rows}) of an adjacency to link rows.

    Returns the number of items done; R_LINKED counts the inner entries done of the pair it stopped in. R_NODE
    is -2 when there is something other than rows.
    """
    heap_tag, heap = memory
    tables, buffer = schema.tables, schema.buffer
    t = table * TABLE_FIELDS
    two_levels = tables[t + T_LINK] == 2
    first = schema.nodes[tables[t + T_ROOT] * NODE_FIELDS + N_CHILD]
    registers[R_TABLE] = table
    registers[R_NODE] = -1
    done = np.int64(0)
    while done < count:
        at = start + done
        chunk = np.int64(-1)
        entries = np.int64(1)
        if two_levels:
            if tags[at + 1] != DICT:
                registers[R_NODE] = -2
                return done
            chunk = heap[values[at + 1] + C_FIRST]
            entries = heap[values[at + 1] + C_COUNT]
        seen = np.int64(0)
        inside = np.int64(0)
        while seen < entries:
            tag = np.int64(tags[at + 1])
            value = values[at + 1]
            slot = np.int64(0)
            if two_levels:
                while chunk >= 0 and inside >= heap[chunk]:
                    chunk = heap[chunk + 1]
                    inside = np.int64(0)
                if chunk < 0:  # the inner dict's items have become rows of their own
                    registers[R_NODE] = -2
                    return done
                slot = chunk + 2 + inside
                tag = np.int64(heap_tag[slot + 1])
                value = heap[slot + 1]
            if seen >= registers[R_LINKED]:
                row = tables[t + T_ROWS]
                if row >= tables[t + T_CAP]:
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
                place = _row_at(tables, t, row)
                for level in range(2 if two_levels else 1):
                    key = heap[slot] if level == 1 else values[at]
                    key_tag = np.int64(heap_tag[slot]) if level == 1 else np.int64(tags[at])
                    if not _convert(data, memory, schema, place, first + level, key_tag, key, registers):
                        return done
                column = place.scalars + tables[t + T_FIRSTCOL] * place.stride
                buffer[column] = head
                buffer[column + place.stride] = rows
                tables[t + T_ROWS] = row + 1
                registers[R_LINKED] += 1
            seen += 1
            inside += 2
        registers[R_LINKED] = 0
        done += 2
    return done


# --- templates ------------------------------------------------------------------------------------------


@inner_kernel
def _memo_slot(numbers: Any, size: Any, number: Any) -> Any:
    """Position of a memo number among those that are fetched, -1 when it never is."""
    low = np.int64(0)
    high = size
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    if low < size and numbers[low] == number:
        return low
    return np.int64(-1)


@inner_kernel
def _number_at(data: Any, pc: Any) -> Any:
    """(tag, value, offset behind) of the number whose opcode is at `pc`; tag 0 when there is none."""
    code = data[pc]
    if code == op.BININT1:
        return np.int64(INT), np.int64(data[pc + 1]), pc + 2
    if code == op.BINFLOAT:
        return np.int64(FLOAT), _float_bits(data, pc + 1), pc + 9
    if code == op.BININT2:
        return np.int64(INT), _u16(data, pc + 1), pc + 3
    if code == op.BININT:
        return np.int64(INT), _signed(_u32(data, pc + 1)), pc + 5
    if code == op.NEWTRUE or code == op.NEWFALSE:
        return np.int64(BOOL), np.int64(code == op.NEWTRUE), pc + 1
    if code == op.LONG1 and data[pc + 1] <= 8:
        length = np.int64(data[pc + 1])
        return np.int64(INT), _long(data, pc + 2, length), pc + 2 + length
    return np.int64(0), np.int64(0), pc


@inner_kernel
def _signed(value: Any) -> Any:
    """The two's complement of 32 bits."""
    return (value ^ 0x80000000) - 0x80000000


@inner_kernel
def _same_shared(
    data: Any, memory: Memory, memos: Memos, literals: Any, kind: Any, a: Any, b: Any, slot: Any
) -> Any:
    """Whether a memo entry is the text, global or dtype that every record refers to."""
    value = memos.value[slot]
    tag = memos.tag[slot]
    if kind == P_SAMETEXT:
        if tag != TEXT:
            return False
        start, length = _span(data, value)
        return length == b and _same_bytes(data, start, literals, a, length)
    if kind == P_SAMEGLOBAL:
        return tag == GLOBAL and value == a
    return tag == DTYPE and memory.value[value] == a


@inner_kernel
def _match(
    data: Any,
    pc: Any,
    template: Any,
    templates: TemplateArrays,
    memos: Memos,
    memory: Memory,
    schema: Schema,
    row: Row,
    memo_count: Any,
    registers: Any,
) -> Any:
    """Read one record by a template: the offset behind it, or -1 when the bytes differ anywhere."""
    elements, literals = templates.elements, templates.literals
    size = registers[R_SIZE]
    first = templates.templates[template * TEMPLATE_FIELDS + TP_FIRST]
    last = templates.templates[template * TEMPLATE_FIELDS + TP_LAST]
    for e in range(first * ELEMENT_FIELDS, last * ELEMENT_FIELDS, ELEMENT_FIELDS):
        kind = elements[e]
        a = elements[e + 1]
        b = elements[e + 2]
        if kind == P_LITERAL:
            if pc + b > size or not _same_bytes(data, pc, literals, a, b):
                return np.int64(-1)
            pc += b
            continue
        if pc + 11 > size:
            return np.int64(-1)
        code = data[pc]
        if kind == P_NUMBER or kind == P_ELEMENT:
            tag, value, pc = _number_at(data, pc)
            if tag == 0:
                return np.int64(-1)
            if a >= 0:
                fits, bits = _number_bits(tag, value, b)
                if not fits:
                    return np.int64(-1)
                to = (row.vectors + a) >> 3 if kind == P_ELEMENT else row.scalars + a * row.stride
                schema.buffer[to] = bits
        elif kind == P_BYTES or kind == P_TEXT:
            text = code == op.SHORT_BINUNICODE or code == op.BINUNICODE or code == op.BINUNICODE8
            raw = (
                code == op.SHORT_BINBYTES
                or code == op.BINBYTES
                or code == op.BINBYTES8
                or code == op.BYTEARRAY8
            )
            if not (raw if kind == P_BYTES else text):
                return np.int64(-1)
            start, length = _span(data, pc)
            if length < 0 or length > size - start:
                return np.int64(-1)
            if kind == P_BYTES:
                if length != b:
                    return np.int64(-1)
                _copy(schema.buffer8, row.vectors + a, data, start, length)
            pc = start + length
        elif kind == P_PUT:
            if code == op.BINPUT:
                number = np.int64(data[pc + 1])
                pc += 2
            elif code == op.LONG_BINPUT:
                number = _u32(data, pc + 1)
                pc += 5
            else:
                return np.int64(-1)
            if number != memo_count:
                return np.int64(-1)
            memo_count += 1
        else:
            if code == op.BINGET:
                number = np.int64(data[pc + 1])
                pc += 2
            elif code == op.LONG_BINGET:
                number = _u32(data, pc + 1)
                pc += 5
            else:
                return np.int64(-1)
            if kind != P_GET and number == elements[e + 3]:
                continue
            slot = _memo_slot(memos.number, registers[R_MEMO_SIZE], number)
            if slot < 0:
                return np.int64(-1)
            if kind != P_GET:
                if not _same_shared(data, memory, memos, literals, kind, a, b, slot):
                    return np.int64(-1)
                elements[e + 3] = number
            elif memos.tag[slot] == 0 or not _convert(
                data, memory, schema, row, a, np.int64(memos.tag[slot]), memos.value[slot], registers
            ):
                return np.int64(-1)
    return pc


@inner_kernel
def _settle(
    data: Any,
    stacks: Stacks,
    start: Any,
    count: Any,
    base: Any,
    memory: Memory,
    schema: Schema,
    table: Any,
    registers: Any,
) -> Any:
    """Turn values on the stack into rows where they lie: they join the ROWS below them (above `base`), or
    become one.

    Returns how many values were taken; the stack is that much lower. Fewer than `count`: see
    `_convert_items`.
    """
    tags, values, counts = stacks
    t = table * TABLE_FIELDS
    before = schema.tables[t + T_ROWS]
    done = _convert_items(data, tags, values, start, count, np.int64(1), memory, schema, table, registers)
    rows = schema.tables[t + T_ROWS] - before
    keep = start
    if rows > 0:
        if start > base and tags[start - 1] == ROWS:
            counts[start - 1] += rows
        else:
            tags[start] = ROWS
            values[start] = schema.tables[t + T_FLUSHED] + before
            counts[start] = rows
            keep = start + 1
    left = registers[R_SP] - start - done
    _copy(tags, keep, tags, start + done, left)
    _copy(values, keep, values, start + done, left)
    _copy(counts, keep, counts, start + done, left)
    registers[R_SP] = keep + left
    return done


@inner_kernel
def _full_or_misfit(registers: Any) -> Any:
    """The event for a conversion that stopped early."""
    return np.int64(EV_FLUSH) if registers[R_NODE] < 0 else np.int64(EV_MISFIT)


@inner_kernel
def _read_rows(
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    memos: Memos,
    schema: Schema,
    templates: TemplateArrays,
    table: Any,
    in_list: Any,
) -> Any:
    """Read records that look like those before in one go, as many as follow each other.

    Returns AGAIN when something was done, 0 when the next opcode must be run by itself, or an event.
    """
    tables = schema.tables
    t = table * TABLE_FIELDS
    row = tables[t + T_ROWS]
    cap = tables[t + T_CAP]
    first = tables[t + T_TEMPLATE]
    pc = registers[R_PC]
    sp = registers[R_SP]
    base = registers[R_BASE]
    counter = registers[R_MEMO]
    limit = registers[R_LIMIT]
    fetched = np.int64(NEVER)
    if registers[R_CURSOR] < registers[R_MEMO_SIZE]:
        fetched = memos.number[registers[R_CURSOR]]
    pending = in_list and sp > base and stacks.tag[sp - 1] != ROWS
    matched = np.int64(0)
    while row + matched < cap and pc < limit:
        after = np.int64(-1)
        place = _row_at(tables, t, row + matched)
        for template in range(first, first + tables[t + T_TEMPLATES]):
            memo_entries = templates.templates[template * TEMPLATE_FIELDS + TP_MEMOS]
            # A record is read as a whole only where nothing ever refers to what's inside it.
            if counter + memo_entries <= fetched:
                after = _match(
                    data, pc, template, templates, memos, memory, schema, place, counter, registers
                )
                if after >= 0:
                    counter += memo_entries
                    break
        if after < 0:
            break
        if pending:
            # Records read without a template come first: they become rows, then this one is read again.
            start = sp
            while start > base and stacks.tag[start - 1] != ROWS:
                start -= 1
            count = sp - start
            done = _settle(data, stacks, start, count, base, memory, schema, table, registers)
            if done < count:
                return _full_or_misfit(registers)
            mark = marks.heap[registers[R_MARKS] - 1]
            if mark > registers[R_HIGH]:
                registers[R_TOP] = mark
            return np.int64(AGAIN)
        matched += 1
        pc = after
        if not in_list:
            break
    if matched == 0:
        if row < cap:
            return np.int64(0)
        registers[R_TABLE] = table
        registers[R_NODE] = -1
        return np.int64(EV_FLUSH)
    if in_list and sp > base:
        stacks.count[sp - 1] += matched
    else:
        stacks.tag[sp] = ROWS
        stacks.value[sp] = tables[t + T_FLUSHED] + row
        stacks.count[sp] = matched
        registers[R_SP] = sp + 1
    tables[t + T_ROWS] = row + matched
    registers[R_MATCHED] += matched
    registers[R_MEMO] = counter
    registers[R_PC] = pc
    return np.int64(AGAIN)


@inner_kernel
def _overflow(
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """Thousands of values lie above a mark: turn them into rows, all but the last few, if Python has said of
    which table."""
    mark = registers[R_MARKS] - 1
    table = marks.over[mark] - 1
    if table < 0:
        return np.int64(EV_OVERFLOW)
    base = registers[R_BASE]
    sp = registers[R_SP]
    start = base + 1 if stacks.tag[base] == ROWS else base
    count = np.int64(0)
    while start + count < sp - 256 and _is_record(
        memory,
        schema.tables,
        table * TABLE_FIELDS,
        np.int64(stacks.tag[start + count]),
        stacks.value[start + count],
    ):
        count += 1
    done = _settle(data, stacks, start, count, base, memory, schema, table, registers)
    if done < count:
        return _full_or_misfit(registers)
    if registers[R_SP] >= base + OVERFLOW:
        registers[R_FREE_MARK] = mark + 1
    return np.int64(AGAIN)


# --- the heap -------------------------------------------------------------------------------------------


@inner_kernel
def _new_container(memory: Memory, top: Any, made: Any) -> Any:
    for i in range(CONTAINER_SLOTS):
        memory.tag[top + i] = RAW
        memory.value[top + i] = 0
    memory.value[top + C_FIRST] = -1
    memory.value[top + C_LAST] = -1
    memory.value[top + C_MADE] = made
    return top + CONTAINER_SLOTS


@inner_kernel
def _new_object(memory: Memory, registers: Any, name: Any, arguments_tag: Any, arguments: Any) -> Any:
    """Make an instance without state; its address."""
    top = registers[R_TOP]
    memory.tag[top] = RAW
    memory.value[top] = name
    memory.tag[top + 1] = arguments_tag
    memory.value[top + 1] = arguments
    memory.tag[top + 2] = NONE
    memory.value[top + 2] = 0
    registers[R_TOP] = top + 3
    return top


@inner_kernel
def _add_chunk(memory: Memory, registers: Any, container: Any, stacks: Stacks, start: Any, count: Any) -> Any:
    """Append `count` values of the stack to a container as a new chunk."""
    heap_tag, heap = memory
    top = registers[R_TOP]
    heap_tag[top] = RAW
    heap[top] = count
    heap_tag[top + 1] = RAW
    heap[top + 1] = -1
    _copy(heap_tag, top + 2, stacks.tag, start, count)
    _copy(heap, top + 2, stacks.value, start, count)
    last = heap[container + C_LAST]
    at = container + C_FIRST if last < 0 else last + 1
    heap_tag[at] = CHUNK
    heap[at] = top
    heap_tag[container + C_LAST] = CHUNK
    heap[container + C_LAST] = top
    registers[R_TOP] = top + 2 + count


@inner_kernel
def _keep_all(registers: Any, marks: Marks, address: Any) -> Any:
    """Note that an object has changed that may be older than an open mark: what it holds now mustn't be
    rewound."""
    mark = registers[R_MARKS] - 1
    if mark >= 0 and address < marks.heap[mark]:
        registers[R_HIGH] = registers[R_TOP]


@inner_kernel
def _evacuate(old: Memory, new: Memory, top: Any, tag: Any, address: Any) -> Any:
    """Copy one object to the new heap unless it's there already; (its new address, the new top)."""
    if old.tag[address] == FORWARD:
        return old.value[address], top
    if tag == TUPLE:
        size = 1 + old.value[address]
    elif tag == CHUNK:
        size = 2 + old.value[address]
    elif tag == OBJ:
        size = np.int64(3)
    elif tag == ARRAY:
        size = np.int64(4)
    elif tag == DTYPE:
        size = np.int64(1)
    else:
        size = np.int64(CONTAINER_SLOTS)
    _copy(new.tag, top, old.tag, address, size)
    _copy(new.value, top, old.value, address, size)
    old.tag[address] = FORWARD
    old.value[address] = top
    return top, top + size


@inner_kernel
def _collect(registers: Any, stacks: Stacks, memos: Memos, old: Memory, new: Memory) -> Any:
    """Copy what the stack and the memo reach to a new heap (Cheney 1970)."""
    top = np.int64(0)
    for i in range(registers[R_SP]):
        tag = np.int64(stacks.tag[i])
        if tag >= FIRST_POINTER:
            stacks.value[i], top = _evacuate(old, new, top, tag, stacks.value[i])
    for i in range(registers[R_MEMO_SIZE]):
        tag = np.int64(memos.tag[i])
        if tag >= FIRST_POINTER:
            if memos.last[i] < registers[R_PC]:  # a template has read past the last fetch
                memos.tag[i] = 0
            else:
                memos.value[i], top = _evacuate(old, new, top, tag, memos.value[i])
    at = np.int64(0)
    while at < top:
        tag = np.int64(new.tag[at])
        if tag >= FIRST_POINTER:
            new.value[at], top = _evacuate(old, new, top, tag, new.value[at])
        at += 1
    registers[R_TOP] = top
    registers[R_HIGH] = top


# --- what known globals make ----------------------------------------------------------------------------


@inner_kernel
def _dtype_code(data: Any, at: Any, length: Any) -> Any:
    """Code of a dtype's text such as f8, (kind << 8 | item size) << 1; 0 when it isn't one of a plain
    number."""
    if length != 2:
        return np.int64(0)
    kind = np.int64(data[at])
    size = np.int64(data[at + 1]) - 48
    good = size == 1 or size == 2 or size == 4 or size == 8
    if kind == 98:  # b
        good = size == 1
    elif kind == 102:  # f
        good = good and size > 1
    elif kind != 105 and kind != 117:  # i, u
        good = False
    return (kind << 8 | size) << 1 if good else np.int64(0)


@inner_kernel
def _half(bits: Any) -> Any:
    """The float64 value of an IEEE half."""
    sign = -1.0 if bits & 0x8000 else 1.0
    exponent = (bits >> 10) & 0x1F
    fraction = np.float64(bits & 0x3FF)
    if exponent == 31:
        return sign * np.inf if fraction == 0 else np.nan
    if exponent > 0:
        fraction += 1024.0
        exponent -= 1
    return sign * fraction * 2.0**-24 * np.float64(np.int64(1) << exponent)


@inner_kernel
def _scalar(code: Any, bits: Any) -> Any:
    """(tag, payload) of a numpy scalar's bits; tag BIGINT when it doesn't fit 64 bits."""
    size = (code >> 1) & 0xFF
    kind = (code >> 9) & 0xFF
    if kind == 98:
        return np.int64(BOOL), np.int64(bits != 0)
    if kind == 102:
        if size == 4:
            bits = np.float64(np.int32(bits).view(np.float32)).view(np.int64)
        elif size == 2:
            bits = np.float64(_half(bits)).view(np.int64)
        return np.int64(FLOAT), bits
    if kind == 105:
        shift = 64 - 8 * size
        return np.int64(INT), (bits << shift) >> shift
    return np.int64(BIGINT) if bits < 0 else np.int64(INT), bits


@inner_kernel
def _storage_code(one: Any, two: Any) -> Any:
    """Dtype code of a torch storage class by its name's first two letters; 0 when it isn't of a plain
    number."""
    letters = np.int64(one) << 8 | np.int64(two)
    if letters == 0x466C:  # Float
        return np.int64((102 << 8 | 4) << 1)
    if letters == 0x446F:  # Double
        return np.int64((102 << 8 | 8) << 1)
    if letters == 0x4861:  # Half
        return np.int64((102 << 8 | 2) << 1)
    if letters == 0x4C6F:  # Long
        return np.int64((105 << 8 | 8) << 1)
    if letters == 0x496E:  # Int
        return np.int64((105 << 8 | 4) << 1)
    if letters == 0x5368:  # Short
        return np.int64((105 << 8 | 2) << 1)
    if letters == 0x4368:  # Char
        return np.int64((105 << 8 | 1) << 1)
    if letters == 0x4279:  # Byte
        return np.int64((117 << 8 | 1) << 1)
    if letters == 0x426F:  # Bool
        return np.int64((98 << 8 | 1) << 1)
    return np.int64(0)


@inner_kernel
def _storage(data: Any, at: Any, operand: Any) -> Any:
    """(dtype code, file offset, elements) of a torch storage saved in the legacy (non-zip) format; code 0 if
    it isn't.

    The format (torch/serialization.py, _legacy_save): five pickles (magic, protocol, system, storage, keys),
    then for the one key an int64 number of elements and the raw data.
    """
    start, length = _span(data, at)
    end = start + length
    pc = start
    code = np.int64(0)
    pickles = np.int64(0)
    while pc + 8 <= end and pickles < 5:
        kind = np.int64(operand[data[pc]])
        if data[pc] == op.BINPERSID:  # belongs to the format
            kind = np.int64(0)
        if data[pc] == op.STOP:
            pickles += 1
        if kind >= 0:
            pc += 1 + kind
        elif kind == op.LENGTH1:
            pc += 2 + np.int64(data[pc + 1])
        elif kind == op.LENGTH4:
            pc += 5 + _u32(data, pc + 1)
        elif kind == op.LINES2:
            pc += 1
            lines = np.int64(0)
            while pc < end and lines < 2:
                if lines == 1 and code == 0:
                    code = _storage_code(data[pc], data[pc + 1])
                    lines = np.int64(1)
                while pc < end and data[pc] != 10:
                    pc += 1
                pc += 1
                lines += 1
        else:
            break
    if pickles < 5 or pc + 8 > end or code == 0:
        return np.int64(0), np.int64(0), np.int64(0)
    elements = _u64(data, pc)
    if elements < 0 or elements > (end - pc - 8) // ((code >> 1) & 0xFF):
        return np.int64(0), np.int64(0), np.int64(0)
    return code, pc + 8, elements


@inner_kernel
def _tensor(data: Any, operand: Any, memory: Memory, registers: Any, first: Any) -> Any:
    """Make an array of a tensor's storage, offset, shape and strides; whether it's dense and inside its
    storage."""
    heap_tag, heap = memory
    if (
        heap_tag[first] != STORAGE
        or heap_tag[first + 1] != INT
        or heap_tag[first + 2] != TUPLE
        or heap_tag[first + 3] != TUPLE
    ):
        return False
    code, start, length = _storage(data, heap[first], operand)
    offset = heap[first + 1]
    shape = heap[first + 2]
    stride = heap[first + 3]
    ndim = heap[shape]
    if code == 0 or heap[stride] != ndim or offset < 0 or offset > length:
        return False
    size = np.int64(1)
    for i in range(1, ndim + 1):
        if heap_tag[shape + i] != INT or heap[shape + i] < 0:
            return False
        if heap[shape + i] == 0:
            size = np.int64(0)
    for i in range(ndim, 0, -1):
        extent = heap[shape + i]
        if size > 0 and extent > 1:
            if extent > length or heap[stride + i] != size:
                return False
            size *= extent
            if size > length:
                return False
    if offset + size > length:
        return False
    top = registers[R_TOP]
    heap_tag[top] = RAW
    heap[top] = code
    heap_tag[top + 1] = TUPLE
    heap[top + 1] = shape
    heap_tag[top + 2] = RAW
    heap[top + 2] = 0
    heap_tag[top + 3] = RAWAT
    heap[top + 3] = start + offset * ((code >> 1) & 0xFF)
    registers[R_TOP] = top + 4
    return True


@inner_kernel
def _numpy_array(data: Any, memory: Memory, registers: Any, first: Any, count: Any, filled: Any) -> Any:
    """Make an empty array, or one of (data, dtype, shape, order); whether the arguments are such."""
    heap_tag, heap = memory
    top = registers[R_TOP]
    for i in range(4):
        heap_tag[top + i] = RAW
        heap[top + i] = 0
    heap_tag[top + 3] = NONE
    if filled:
        if (
            count < 4
            or heap_tag[first] != BYTES
            or heap_tag[first + 1] != DTYPE
            or heap_tag[first + 2] != TUPLE
            or heap_tag[first + 3] != TEXT
        ):
            return False
        heap[top] = heap[heap[first + 1]]
        heap_tag[top + 1] = TUPLE
        heap[top + 1] = heap[first + 2]
        start, length = _span(data, heap[first + 3])
        heap[top + 2] = 1 if length == 1 and data[start] == 70 else 0  # F
        heap_tag[top + 3] = BYTES
        heap[top + 3] = heap[first]
    registers[R_TOP] = top + 4
    return True


@inner_kernel
def _container_tag(kind: Any) -> Any:
    """The tag of what a standard container's class makes; 0 for other globals."""
    if kind == G_DICT:
        return np.int64(DICT)
    if kind == G_LIST:
        return np.int64(LIST)
    if kind == G_SET:
        return np.int64(SET)
    if kind == G_DEQUE:
        return np.int64(DEQUE)
    if kind == G_TUPLE:
        return np.int64(TUPLE)
    return np.int64(0)


@inner_kernel
def _call_container(memory: Memory, registers: Any, tag: Any, first: Any, count: Any, pc: Any) -> Any:
    """Address of what calling a standard container's class makes; -1 when it isn't understood."""
    heap_tag, heap = memory
    given = np.int64(heap_tag[first]) if count >= 1 else np.int64(NONE)
    if tag == DICT:
        if given != NONE and given != GLOBAL:  # defaultdict's factory
            return np.int64(-1)
    elif given == tag and given == TUPLE:
        return heap[first]
    elif given == LIST and tag != TUPLE:
        return heap[first]  # set([..]), deque([..]): the list's own storage serves
    elif given == LIST or (given == TUPLE and heap[heap[first]] > 0):
        return np.int64(-1)
    top = registers[R_TOP]
    registers[R_TOP] = _new_container(memory, top, pc)
    if tag == TUPLE:
        registers[R_TOP] = top + 1
    return top


@inner_kernel
def _call(
    data: Any, operand: Any, memory: Memory, names: Names, registers: Any, name: Any, arguments: Any, pc: Any
) -> Any:
    """What calling a known global gives: (error, tag, payload). Nothing is called."""
    heap_tag, heap = memory
    kind = names.kind[name]
    count = heap[arguments]
    first = arguments + 1
    given = np.int64(heap_tag[first]) if count >= 1 else np.int64(RAW)
    value = heap[first] if count >= 1 else np.int64(0)
    error = np.int64(0)
    tag = np.int64(NONE)
    result = np.int64(0)
    if kind == G_RECONSTRUCT or kind == G_FROMBUFFER:
        tag = np.int64(ARRAY)
        result = registers[R_TOP]
        if not _numpy_array(data, memory, registers, first, count, kind == G_FROMBUFFER):
            error = np.int64(E_TYPE)
    elif kind == G_SCALAR:
        code = np.int64(0)
        if count == 2 and given == DTYPE:
            code = heap[value]
            fits, bits = _scalar_bits(
                data, np.int64(heap_tag[first + 1]), heap[first + 1], (code >> 1) & 0xFF, code & 1
            )
            if code != 0 and fits:
                tag, result = _scalar(code, bits)
            else:
                error = np.int64(E_DTYPE)
        else:
            error = np.int64(E_TYPE)
    elif kind == G_DTYPE:
        code = np.int64(0)
        if given == TEXT:
            start, length = _span(data, value)
            code = _dtype_code(data, start, length)
        tag = np.int64(DTYPE)
        result = registers[R_TOP]
        heap_tag[result] = RAW
        heap[result] = code
        registers[R_TOP] = result + 1
    elif kind == G_ENCODE or kind == G_BYTES:
        result = value
        if given == TEXT:
            tag = np.int64(ENCODED)
        elif kind == G_BYTES and (given == BYTES or given == ENCODED):
            tag = given
        elif kind == G_ENCODE or count > 0:
            error = np.int64(E_TYPE)
    elif kind == G_RECONSTRUCTOR:
        if given == GLOBAL and names.kind[value] == G_CLASS:
            tag = np.int64(OBJ)
            result = _new_object(memory, registers, value, np.int64(NONE), np.int64(0))
        else:
            error = np.int64(E_CALL)
    elif kind == G_NAMESPACE:
        tag = np.int64(OBJ)
        result = _new_object(memory, registers, name, np.int64(TUPLE), arguments)
    elif kind == G_OPAQUE:
        tag = np.int64(OPAQUE)
        result = pc
    elif kind == G_STORAGE:
        tag = np.int64(STORAGE)
        result = value
        if given != BYTES:
            error = np.int64(E_TENSOR)
    elif kind == G_TENSOR:
        tag = np.int64(ARRAY)
        result = registers[R_TOP]
        if count < 4 or not _tensor(data, operand, memory, registers, first):
            error = np.int64(E_TENSOR)
    elif kind == G_PARAMETER:
        tag = np.int64(ARRAY)
        result = value
        if given != ARRAY:
            error = np.int64(E_TENSOR)
    else:
        tag = _container_tag(kind)
        if tag != 0:
            result = _call_container(memory, registers, tag, first, count, pc)
        if tag == 0 or result < 0:
            error = np.int64(E_CALL)
    return error, tag, result


# --- opcodes --------------------------------------------------------------------------------------------
# The rare ones, a kernel each. They work on the registers, and return 0 or an event.


@inner_kernel
def _fail(registers: Any, error: Any) -> Any:
    registers[R_ERROR] = error
    return np.int64(EV_ERROR)


@inner_kernel
def _need_heap(registers: Any, slots: Any) -> Any:
    """Whether the heap is too full for so many slots more; R_ADDRESS says how many."""
    registers[R_ADDRESS] = slots
    return registers[R_TOP] + slots > registers[R_HEAP_SIZE]


@inner_kernel
def _has_rows(stacks: Stacks, start: Any, stop: Any) -> Any:
    """Whether there are ROWS among values that must be single ones."""
    for i in range(start, stop):
        if stacks.tag[i] == ROWS:
            return True
    return False


@inner_kernel
def _rewind(registers: Any, marks: Marks) -> Any:
    """Drop what the heap holds from the innermost mark on, unless the memo needs it: it has become rows."""
    heap = marks.heap[registers[R_MARKS] - 1]
    if heap > registers[R_HIGH]:
        registers[R_TOP] = heap


@inner_kernel
def _ask_for_template(registers: Any, tables: Any, table: Any, start: Any, stop: Any) -> Any:
    """The event that lets Python learn from the records between two offsets, when enough were read without;
    else 0."""
    t = table * TABLE_FIELDS
    if tables[t + T_LEARN] == 0 or tables[t + T_GENERAL] < LEARN:
        return np.int64(0)
    registers[R_TABLE] = table
    registers[R_ADDRESS] = start
    registers[R_VALUE] = stop
    return np.int64(EV_LEARN)


@inner_kernel
def _close(registers: Any, sp: Any) -> Any:
    """Close the innermost mark, leaving the stack at a height."""
    registers[R_MARKS] -= 1
    registers[R_SP] = sp
    if registers[R_FREE_MARK] > registers[R_MARKS]:
        registers[R_FREE_MARK] = registers[R_MARKS]


@inner_kernel
def _owner(registers: Any, marks: Marks) -> Any:
    """Stack position of the container below the innermost mark, -1 when there is none."""
    count = registers[R_MARKS]
    owner = registers[R_BASE] - 1
    below = marks.height[count - 2] if count > 1 else np.int64(0)
    return owner if owner >= below else np.int64(-1)


@inner_kernel
def _add_items(
    code: Any,
    pc: Any,
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """APPENDS, ADDITEMS, APPEND."""
    heap = memory.value
    tables = schema.tables
    sp = registers[R_SP]
    if code == op.APPEND:
        owner = sp - 2 if sp - 2 >= registers[R_BASE] else np.int64(-1)
    else:
        if registers[R_MARKS] == 0:
            return _fail(registers, np.int64(E_MARK))
        owner = _owner(registers, marks)
    if owner < 0:
        return _fail(registers, np.int64(E_UNDERFLOW))
    tag = stacks.tag[owner]
    if tag != LIST and tag != DEQUE and tag != SET:
        return _fail(registers, np.int64(E_TYPE))
    address = stacks.value[owner]
    start = owner + 1
    table = heap[address + C_TABLE] - 1
    loose = registers[R_LOOSE] - 1
    if table < 0 and loose >= 0 and tag == LIST and sp > start:
        table = loose
        for i in range(start, sp):
            if stacks.tag[i] != ROWS and not _is_record(
                memory, tables, loose * TABLE_FIELDS, np.int64(stacks.tag[i]), stacks.value[i]
            ):
                table = np.int64(-1)
                break
    event = np.int64(0)
    if table >= 0:
        # Rows read by templates come first; the rest becomes rows now.
        first = start + 1 if sp > start and stacks.tag[start] == ROWS else start
        if _has_rows(stacks, first, sp):
            return _fail(registers, np.int64(E_LINK))
        if _settle(data, stacks, first, sp - first, start, memory, schema, table, registers) < sp - first:
            registers[R_ADDRESS] = address
            return _full_or_misfit(registers)
        if registers[R_SP] > start:
            if heap[address + C_ROWS] == 0:
                heap[address + C_ROW] = stacks.value[start]
            elif table == loose and heap[address + C_ROW] + heap[address + C_ROWS] != stacks.value[start]:
                return _fail(registers, np.int64(E_LINK))  # a list that grew before and after other lists
            heap[address + C_ROWS] += stacks.count[start]
            heap[address + C_COUNT] += stacks.count[start]
        if code != op.APPEND:
            event = _ask_for_template(registers, tables, table, marks.at[registers[R_MARKS] - 1] + 1, pc)
            if event == 0 and registers[R_SP] > start and stacks.count[start] >= LEARN:
                tables[table * TABLE_FIELDS + T_GENERAL] = 0  # templates have read most of the batch
            _rewind(registers, marks)
        elif heap[address + C_COUNT] == 1:
            event = _ask_for_template(registers, tables, table, heap[address + C_MADE] + 1, pc)
    else:
        count = sp - start
        if heap[address + C_COUNT] >= BATCH and heap[address + C_TABLE] == 0:
            registers[R_ADDRESS] = address
            registers[R_TAG] = tag
            return np.int64(EV_BIG)
        if _need_heap(registers, count + ROOM):
            return np.int64(EV_COLLECT)
        if count > 0:
            if _has_rows(stacks, start, sp):
                return _fail(registers, np.int64(E_LINK))
            _add_chunk(memory, registers, address, stacks, start, count)
            heap[address + C_COUNT] += count
    if code == op.APPEND:
        registers[R_SP] = start
    else:
        _close(registers, start)
    if table < 0:
        _keep_all(registers, marks, address)
    return event


@inner_kernel
def _set_items(
    code: Any,
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """SETITEMS, SETITEM."""
    heap = memory.value
    sp = registers[R_SP]
    if code == op.SETITEM:
        owner = sp - 3 if sp - 3 >= registers[R_BASE] else np.int64(-1)
    else:
        if registers[R_MARKS] == 0:
            return _fail(registers, np.int64(E_MARK))
        owner = _owner(registers, marks)
    start = owner + 1
    count = sp - start
    if owner < 0 or count % 2 != 0:
        return _fail(registers, np.int64(E_UNDERFLOW))
    if stacks.tag[owner] != DICT:
        return _fail(registers, np.int64(E_TYPE))
    address = stacks.value[owner]
    table = heap[address + C_TABLE] - 1
    if table >= 0:
        i = start + registers[R_PROGRESS]
        if schema.tables[table * TABLE_FIELDS + T_LINK] > 0:
            done = _convert_links(data, stacks.tag, stacks.value, i, sp - i, memory, schema, table, registers)
        else:
            done = _convert_items(
                data, stacks.tag, stacks.value, i, sp - i, np.int64(2), memory, schema, table, registers
            )
        heap[address + C_COUNT] += done // 2
        heap[address + C_ROWS] += done // 2
        if i + done < sp:
            registers[R_PROGRESS] = i + done - start
            return (
                _fail(registers, np.int64(E_LINK)) if registers[R_NODE] == -2 else _full_or_misfit(registers)
            )
        registers[R_PROGRESS] = 0
        if code == op.SETITEMS:
            _rewind(registers, marks)
    else:
        if heap[address + C_COUNT] >= BATCH and heap[address + C_TABLE] == 0:
            registers[R_ADDRESS] = address
            registers[R_TAG] = DICT
            return np.int64(EV_BIG)
        if _need_heap(registers, count + ROOM):
            return np.int64(EV_COLLECT)
        if count > 0:
            _add_chunk(memory, registers, address, stacks, start, count)
            heap[address + C_COUNT] += count // 2
    if code == op.SETITEM:
        registers[R_SP] = start
    else:
        _close(registers, start)
    if table < 0:
        _keep_all(registers, marks, address)
    return np.int64(0)


@inner_kernel
def _long_tuple(
    pc: Any,
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """TUPLE of so many items that they have become rows: what's left of them becomes rows too."""
    base = registers[R_BASE]
    sp = registers[R_SP]
    table = marks.over[registers[R_MARKS] - 1] - 1
    first = base + 1 if sp > base and stacks.tag[base] == ROWS else base
    if _has_rows(stacks, first, sp):
        return _fail(registers, np.int64(E_TYPE))
    if _settle(data, stacks, first, sp - first, base, memory, schema, table, registers) < sp - first:
        return _full_or_misfit(registers)
    address = registers[R_TOP]
    registers[R_TOP] = _new_container(memory, address, pc)
    memory.value[address + C_TABLE] = table + 1
    if registers[R_SP] > base:
        memory.value[address + C_ROW] = stacks.value[base]
        memory.value[address + C_ROWS] = stacks.count[base]
        memory.value[address + C_COUNT] = stacks.count[base]
    stacks.tag[base] = LIST
    stacks.value[base] = address
    _close(registers, base + 1)
    return np.int64(0)


@inner_kernel
def _unusual_tuple(
    code: Any,
    pc: Any,
    data: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    schema: Schema,
) -> Any:
    """A tuple that `_run` couldn't make at once: it's huge, the heap is full, or something is wrong."""
    base = registers[R_BASE]
    count = code - (op.TUPLE1 - 1)
    if code == op.EMPTY_TUPLE:
        count = np.int64(0)
    elif code == op.TUPLE:
        if registers[R_MARKS] == 0:
            return _fail(registers, np.int64(E_MARK))
        if marks.over[registers[R_MARKS] - 1] > 0:
            return _long_tuple(pc, data, registers, stacks, marks, memory, schema)
        count = registers[R_SP] - base
    if registers[R_SP] - count < base:
        return _fail(registers, np.int64(E_UNDERFLOW))
    if _need_heap(registers, count + ROOM):
        return np.int64(EV_COLLECT)
    return _fail(registers, np.int64(E_TYPE))


@inner_kernel
def _marked_container(code: Any, pc: Any, registers: Any, stacks: Stacks, memory: Memory) -> Any:
    """LIST, DICT, FROZENSET: made from the items above the mark."""
    if registers[R_MARKS] == 0:
        return _fail(registers, np.int64(E_MARK))
    base = registers[R_BASE]
    sp = registers[R_SP]
    count = sp - base
    if code == op.DICT and count % 2 != 0:
        return _fail(registers, np.int64(E_UNDERFLOW))
    if _need_heap(registers, count + 2 * ROOM):
        return np.int64(EV_COLLECT)
    if _has_rows(stacks, base, sp):
        return _fail(registers, np.int64(E_TYPE))
    address = registers[R_TOP]
    registers[R_TOP] = _new_container(memory, address, pc)
    if count > 0:
        _add_chunk(memory, registers, address, stacks, base, count)
    memory.value[address + C_COUNT] = count // 2 if code == op.DICT else count
    stacks.tag[base] = LIST if code == op.LIST else (DICT if code == op.DICT else SET)
    stacks.value[base] = address
    _close(registers, base + 1)
    return np.int64(0)


@inner_kernel
def _new_instance(code: Any, pc: Any, registers: Any, stacks: Stacks, memory: Memory, names: Names) -> Any:
    """NEWOBJ, NEWOBJ_EX."""
    sp = registers[R_SP]
    start = sp - 2 if code == op.NEWOBJ else sp - 3
    if start < registers[R_BASE]:
        return _fail(registers, np.int64(E_UNDERFLOW))
    if stacks.tag[start] != GLOBAL or stacks.tag[start + 1] != TUPLE:
        return _fail(registers, np.int64(E_TYPE))
    name = stacks.value[start]
    kind = names.kind[name]
    tag = _container_tag(kind)
    registers[R_VALUE] = name
    if code == op.NEWOBJ_EX and (
        stacks.tag[sp - 1] != DICT or memory.value[stacks.value[sp - 1] + C_COUNT] != 0
    ):
        return _fail(registers, np.int64(E_NEWOBJ))
    if kind == G_CLASS or kind == G_NAMESPACE:
        stacks.tag[start] = OBJ
        stacks.value[start] = _new_object(memory, registers, name, np.int64(TUPLE), stacks.value[start + 1])
    elif tag != 0 and tag != TUPLE:
        # A plain standard container made by its class's __new__: filled by the opcodes that follow.
        stacks.tag[start] = tag
        stacks.value[start] = registers[R_TOP]
        registers[R_TOP] = _new_container(memory, registers[R_TOP], pc)
    else:
        return _fail(registers, np.int64(E_NEWOBJ))
    registers[R_SP] = start + 1
    return np.int64(0)


@inner_kernel
def _build(data: Any, registers: Any, stacks: Stacks, marks: Marks, memory: Memory) -> Any:
    """BUILD."""
    heap_tag, heap = memory
    sp = registers[R_SP]
    if sp - 2 < registers[R_BASE]:
        return _fail(registers, np.int64(E_UNDERFLOW))
    tag = stacks.tag[sp - 2]
    address = stacks.value[sp - 2]
    state_tag = stacks.tag[sp - 1]
    state = stacks.value[sp - 1]
    if tag == OBJ and state_tag != ROWS:
        heap_tag[address + 2] = state_tag
        heap[address + 2] = state
        _keep_all(registers, marks, address)
    elif tag == ARRAY:
        if (
            state_tag != TUPLE
            or heap[state] != 5
            or heap_tag[state + 2] != TUPLE
            or heap_tag[state + 3] != DTYPE
        ):
            return _fail(registers, np.int64(E_TYPE))
        if heap_tag[state + 5] != BYTES and heap_tag[state + 5] != ENCODED:
            return _fail(registers, np.int64(E_DTYPE))
        heap[address] = heap[heap[state + 3]]
        heap_tag[address + 1] = TUPLE
        heap[address + 1] = heap[state + 2]
        heap[address + 2] = heap[state + 4]
        heap_tag[address + 3] = heap_tag[state + 5]
        heap[address + 3] = heap[state + 5]
        _keep_all(registers, marks, address)
    elif tag == DTYPE:
        if state_tag == TUPLE and heap[state] >= 2 and heap_tag[state + 2] == TEXT:
            start, length = _span(data, heap[state + 2])
            if length == 1 and data[start] == 62 and heap[address] != 0:  # >
                heap[address] |= 1
    elif tag != OPAQUE and tag != DICT and tag != LIST and tag != DEQUE and tag != SET:
        return _fail(
            registers, np.int64(E_TYPE)
        )  # of those, attributes of a subclass or of something nobody needs
    registers[R_SP] = sp - 1
    return np.int64(0)


@inner_kernel
def _reduce(
    pc: Any, data: Any, operand: Any, registers: Any, stacks: Stacks, memory: Memory, names: Names
) -> Any:
    """REDUCE."""
    sp = registers[R_SP]
    if sp - 2 < registers[R_BASE]:
        return _fail(registers, np.int64(E_UNDERFLOW))
    if stacks.tag[sp - 2] != GLOBAL or stacks.tag[sp - 1] != TUPLE:
        return _fail(registers, np.int64(E_TYPE))
    name = stacks.value[sp - 2]
    error, tag, result = _call(data, operand, memory, names, registers, name, stacks.value[sp - 1], pc)
    if error != 0:
        registers[R_VALUE] = name
        return _fail(registers, error)
    stacks.tag[sp - 2] = tag
    stacks.value[sp - 2] = pc if tag == BIGINT else result
    registers[R_SP] = sp - 1
    return np.int64(0)


@inner_kernel
def _line_end(data: Any, at: Any) -> Any:
    """Offset of the next newline; pass 1 has seen that there is one."""
    while data[at] != 10:
        at += 1
    return at


@inner_kernel
def _find_global(code: Any, pc: Any, data: Any, registers: Any, stacks: Stacks, names: Names) -> Any:
    """STACK_GLOBAL, GLOBAL; R_AFTER is the offset behind."""
    sp = registers[R_SP]
    if code == op.STACK_GLOBAL:
        if sp - 2 < registers[R_BASE]:
            return _fail(registers, np.int64(E_UNDERFLOW))
        if stacks.tag[sp - 2] != TEXT or stacks.tag[sp - 1] != TEXT:
            return _fail(registers, np.int64(E_TYPE))
        module, module_length = _span(data, stacks.value[sp - 2])
        name, name_length = _span(data, stacks.value[sp - 1])
        sp -= 2
    else:
        module = pc + 1
        module_length = _line_end(data, module) - module
        name = module + module_length + 1
        name_length = _line_end(data, name) - name
        registers[R_AFTER] = name + name_length + 1
    for g in range(registers[R_NUM_GLOBALS]):
        s = g * 4
        if (
            names.span[s + 1] == module_length
            and names.span[s + 3] == name_length
            and _same_bytes(data, module, names.text, names.span[s], module_length)
            and _same_bytes(data, name, names.text, names.span[s + 2], name_length)
        ):
            stacks.tag[sp] = GLOBAL
            stacks.value[sp] = g
            registers[R_SP] = sp + 1
            return np.int64(0)
    registers[R_ADDRESS] = module
    registers[R_TAG] = module_length
    registers[R_NODE] = name
    registers[R_VALUE] = name_length
    return np.int64(EV_GLOBAL)


@inner_kernel
def _pop(code: Any, registers: Any, stacks: Stacks) -> Any:
    """POP, POP_MARK."""
    sp = registers[R_SP]
    if code == op.POP and sp > registers[R_BASE]:
        if stacks.tag[sp - 1] == ROWS:
            return _fail(registers, np.int64(E_TYPE))
        registers[R_SP] = sp - 1
        return np.int64(0)
    if registers[R_MARKS] == 0:
        return _fail(registers, np.int64(E_UNDERFLOW if code == op.POP else E_MARK))
    _close(registers, registers[R_BASE])
    return np.int64(0)


@inner_kernel
def _rare(
    code: Any,
    pc: Any,
    data: Any,
    operand: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    names: Names,
    schema: Schema,
) -> Any:
    """Opcodes that aren't worth a place in the loop of `_run`, and the reasons why a common one can't be
    run."""
    sp = registers[R_SP]
    registers[R_AFTER] = pc + 1
    if code == op.SETITEMS or code == op.SETITEM:
        return _set_items(code, data, registers, stacks, marks, memory, schema)
    if code == op.BUILD:
        return _build(data, registers, stacks, marks, memory)
    if code == op.NEWOBJ or code == op.NEWOBJ_EX:
        return _new_instance(code, pc, registers, stacks, memory, names)
    if code == op.REDUCE:
        return _reduce(pc, data, operand, registers, stacks, memory, names)
    if code == op.APPENDS or code == op.APPEND or code == op.ADDITEMS:
        return _add_items(code, pc, data, registers, stacks, marks, memory, schema)
    if code == op.STACK_GLOBAL or code == op.GLOBAL:
        return _find_global(code, pc, data, registers, stacks, names)
    if code == op.LIST or code == op.DICT or code == op.FROZENSET:
        return _marked_container(code, pc, registers, stacks, memory)
    if code == op.POP or code == op.POP_MARK:
        return _pop(code, registers, stacks)
    if code == op.PROTO or code == op.FRAME or code == op.READONLY_BUFFER:
        registers[R_AFTER] = pc + 1 + np.int64(operand[code])
        return np.int64(0)
    if code == op.DUP:
        if sp <= registers[R_BASE] or stacks.tag[sp - 1] == ROWS:
            return _fail(registers, np.int64(E_UNDERFLOW))
        stacks.tag[sp] = stacks.tag[sp - 1]
        stacks.value[sp] = stacks.value[sp - 1]
        registers[R_SP] = sp + 1
        return np.int64(0)
    if code == op.STOP:
        if sp != 1 or registers[R_MARKS] != 0:
            return _fail(registers, np.int64(E_UNDERFLOW))
        return np.int64(EV_STOP)
    if code == op.MARK:
        return np.int64(EV_MARKS)
    if code == op.BINGET or code == op.LONG_BINGET:
        return _fail(registers, np.int64(E_MEMO))
    if code == op.MEMOIZE or code == op.BINPUT or code == op.LONG_BINPUT:
        return _fail(registers, np.int64(E_UNDERFLOW))
    if (
        code == op.EMPTY_TUPLE
        or code == op.TUPLE1
        or code == op.TUPLE2
        or code == op.TUPLE3
        or code == op.TUPLE
    ):
        return _unusual_tuple(code, pc, data, registers, stacks, marks, memory, schema)
    return _fail(registers, np.int64(E_OPCODE))


# --- the loop -------------------------------------------------------------------------------------------


@inner_kernel
def _run(
    data: Any,
    operand: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    memos: Memos,
    names: Names,
    schema: Schema,
    templates: TemplateArrays,
) -> Any:
    """Run opcodes until one of the events; the registers say where and why.

    What the common opcodes change is in local variables; for everything else they are written to the
    registers, and read again.
    """
    stack_tag, stack, _counts = stacks
    heap_tag, heap = memory
    tables = schema.tables
    limit = registers[R_LIMIT]
    heap_room = registers[R_HEAP_SIZE] - ROOM
    stack_room = registers[R_STACK_SIZE] - 4
    mark_room = registers[R_MARK_SIZE]
    memo_size = registers[R_MEMO_SIZE]
    loose = registers[R_LOOSE] - 1
    anywhere = loose >= 0 and tables[loose * TABLE_FIELDS + T_ANYWHERE] != 0
    pc = sp = top = counter = cursor = high = marked = base = over = np.int64(0)
    begins = np.int64(-1)  # the table whose records may follow the innermost mark
    frame = np.int64(-1)  # number of marks that `base`, `over` and `begins` are for
    untried = np.int64(-1)  # where the templates were found not to match
    stale = True
    while True:
        if stale:
            stale = False
            pc = registers[R_PC]
            sp = registers[R_SP]
            top = registers[R_TOP]
            counter = registers[R_MEMO]
            cursor = registers[R_CURSOR]
            high = registers[R_HIGH]
            marked = registers[R_MARKS]
            frame = np.int64(-1)
        if marked != frame:
            frame = marked
            if registers[R_FREE_MARK] > marked:
                registers[R_FREE_MARK] = marked
            base = np.int64(0)
            begins = np.int64(-1)
            over = np.int64(NEVER)
            if marked > 0:
                base = marks.height[marked - 1]
                begins = marks.table[marked - 1] - 1
                if marked > registers[R_FREE_MARK]:
                    over = base + OVERFLOW
        after = pc
        code = np.int64(-1)
        context = np.int64(-1)
        if pc < limit and top <= heap_room and sp <= stack_room:
            code = np.int64(data[pc])
            # Templates are tried where an item of a table can begin: behind the mark, rows, or what looks
            # like a record.
            if begins >= 0:
                if (
                    sp == base
                    or stack_tag[sp - 1] == ROWS
                    or stack_tag[sp - 1] == tables[begins * TABLE_FIELDS + T_TAG]
                ):
                    context = begins
            elif anywhere and sp > base and stack_tag[sp - 1] == LIST:
                context = loose
            if context >= 0 and (templates.first_byte[context * 256 + code] == 0 or pc == untried):
                context = np.int64(-1)
        if code >= 0 and context < 0 and sp < over:
            if code == op.MEMOIZE or code == op.BINPUT or code == op.LONG_BINPUT:
                if sp > base:
                    after = pc + 1
                    if code != op.MEMOIZE:
                        counter = np.int64(data[pc + 1]) if code == op.BINPUT else _u32(data, pc + 1)
                        after = pc + 2 if code == op.BINPUT else pc + 5
                        while cursor < memo_size and memos.number[cursor] < counter:
                            cursor += 1
                    if cursor < memo_size and memos.number[cursor] == counter:
                        tag = np.int64(stack_tag[sp - 1])
                        if memos.last[cursor] > pc and tag != ROWS:
                            memos.tag[cursor] = tag
                            memos.value[cursor] = stack[sp - 1]
                            if tag >= FIRST_POINTER and stack[sp - 1] > high:
                                high = stack[sp - 1]
                        cursor += 1
                    counter += 1
            elif code == op.BINGET or code == op.LONG_BINGET:
                number = np.int64(data[pc + 1]) if code == op.BINGET else _u32(data, pc + 1)
                slot = _memo_slot(memos.number, memo_size, number)
                if slot >= 0 and memos.tag[slot] != 0:
                    stack_tag[sp] = memos.tag[slot]
                    stack[sp] = memos.value[slot]
                    sp += 1
                    if memos.last[slot] <= pc:
                        memos.tag[slot] = 0
                    after = pc + 2 if code == op.BINGET else pc + 5
            elif code == op.BININT1:
                stack_tag[sp] = INT
                stack[sp] = data[pc + 1]
                sp += 1
                after = pc + 2
            elif code == op.BINFLOAT:
                stack_tag[sp] = FLOAT
                stack[sp] = _float_bits(data, pc + 1)
                sp += 1
                after = pc + 9
            elif code == op.MARK:
                if marked < mark_room:
                    table = np.int64(0)
                    if sp > base:
                        tag = np.int64(stack_tag[sp - 1])
                        if tag == LIST or tag == DEQUE or tag == SET:
                            table = heap[stack[sp - 1] + C_TABLE]
                            if table <= 0:
                                table = loose + 1 if tag == LIST else np.int64(0)
                    marks.height[marked] = sp
                    marks.heap[marked] = top
                    marks.table[marked] = table
                    marks.over[marked] = 0
                    marks.at[marked] = pc
                    marked += 1
                    after = pc + 1
            elif code == op.SHORT_BINUNICODE or code == op.SHORT_BINBYTES:
                stack_tag[sp] = TEXT if code == op.SHORT_BINUNICODE else BYTES
                stack[sp] = pc
                sp += 1
                after = pc + 2 + np.int64(data[pc + 1])
            elif code == op.BINUNICODE or code == op.BINBYTES:
                stack_tag[sp] = TEXT if code == op.BINUNICODE else BYTES
                stack[sp] = pc
                sp += 1
                after = pc + 5 + _u32(data, pc + 1)
            elif code == op.BINUNICODE8 or code == op.BINBYTES8 or code == op.BYTEARRAY8:
                stack_tag[sp] = TEXT if code == op.BINUNICODE8 else BYTES
                stack[sp] = pc
                sp += 1
                after = pc + 9 + _u64(data, pc + 1)
            elif code == op.BININT2:
                stack_tag[sp] = INT
                stack[sp] = _u16(data, pc + 1)
                sp += 1
                after = pc + 3
            elif code == op.BININT:
                stack_tag[sp] = INT
                stack[sp] = _signed(_u32(data, pc + 1))
                sp += 1
                after = pc + 5
            elif code == op.NEWTRUE or code == op.NEWFALSE:
                stack_tag[sp] = BOOL
                stack[sp] = op.NEWFALSE - code
                sp += 1
                after = pc + 1
            elif code == op.NONE:
                stack_tag[sp] = NONE
                stack[sp] = 0
                sp += 1
                after = pc + 1
            elif code == op.LONG1 or code == op.LONG4:
                start = pc + 2 if code == op.LONG1 else pc + 5
                count = np.int64(data[pc + 1]) if code == op.LONG1 else _u32(data, pc + 1)
                stack_tag[sp] = BIGINT if count > 8 else INT
                stack[sp] = pc if count > 8 else _long(data, start, count)
                sp += 1
                after = start + count
            elif code == op.EMPTY_LIST or code == op.EMPTY_DICT or code == op.EMPTY_SET:
                stack_tag[sp] = LIST if code == op.EMPTY_LIST else (DICT if code == op.EMPTY_DICT else SET)
                stack[sp] = top
                top = _new_container(memory, top, pc)
                sp += 1
                after = pc + 1
            elif (
                code == op.EMPTY_TUPLE
                or code == op.TUPLE1
                or code == op.TUPLE2
                or code == op.TUPLE3
                or (code == op.TUPLE and marked > 0 and marks.over[marked - 1] == 0)
            ):
                count = np.int64(0) if code == op.EMPTY_TUPLE else code - (op.TUPLE1 - 1)
                if code == op.TUPLE:
                    count = sp - base
                start = sp - count
                good = start >= base and top + count <= heap_room
                if good:
                    heap_tag[top] = RAW
                    heap[top] = count
                    for i in range(count):
                        tag = np.int64(stack_tag[start + i])
                        good = good and tag != ROWS
                        heap_tag[top + 1 + i] = tag
                        heap[top + 1 + i] = stack[start + i]
                if good:
                    stack_tag[start] = TUPLE
                    stack[start] = top
                    top += 1 + count
                    sp = start + 1
                    after = pc + 1
                    if code == op.TUPLE:
                        marked -= 1
            if after > pc:
                pc = after
                continue

        # Whatever is rarer works on the registers.
        registers[R_PC] = pc
        registers[R_SP] = sp
        registers[R_TOP] = top
        registers[R_MEMO] = counter
        registers[R_CURSOR] = cursor
        registers[R_HIGH] = high
        registers[R_MARKS] = marked
        registers[R_BASE] = base
        stale = True
        if pc >= limit:
            return np.int64(EV_LIMIT)
        if top > heap_room:
            registers[R_ADDRESS] = ROOM
            return np.int64(EV_COLLECT)
        if sp > stack_room:
            return np.int64(EV_STACK)
        if context >= 0:
            event = _read_rows(
                data,
                registers,
                stacks,
                marks,
                memory,
                memos,
                schema,
                templates,
                context,
                begins >= 0,
            )
            if event == 0:
                untried = pc
        elif sp >= over:
            event = _overflow(data, registers, stacks, marks, memory, schema)
        else:
            event = _rare(code, pc, data, operand, registers, stacks, marks, memory, names, schema)
            if event == 0 or event == EV_LEARN:
                registers[R_PC] = registers[R_AFTER]
        if event > 0:
            return event


@kernel
def run(
    data: Any,
    operand: Any,
    registers: Any,
    stacks: Stacks,
    marks: Marks,
    memory: Memory,
    spare: Memory,
    memos: Memos,
    names: Names,
    schema: Schema,
    templates: TemplateArrays,
) -> Any:
    """Do what registers[R_COMMAND] says; of DO_RUN, the event that stopped it.

    All arrays are contiguous, uint8 where they hold tags or bytes, else int64.
    """
    r = _pointer(registers)
    r[R_SIZE] = data.size
    r[R_HEAP_SIZE] = memory.tag.size
    r[R_STACK_SIZE] = stacks.tag.size
    r[R_MARK_SIZE] = marks.at.size
    r[R_MEMO_SIZE] = memos.number.size
    r[R_NUM_GLOBALS] = names.kind.size
    bytes_ = _pointer(data)
    stack = Stacks(_pointer(stacks.tag), _pointer(stacks.value), _pointer(stacks.count))
    heap = Memory(_pointer(memory.tag), _pointer(memory.value))
    memo = Memos(_pointer(memos.number), _pointer(memos.last), _pointer(memos.tag), _pointer(memos.value))
    plan = Schema(
        _pointer(schema.tables),
        _pointer(schema.nodes),
        _pointer(schema.key_pool),
        _pointer(schema.buffer),
        _pointer(schema.buffer8),
        _pointer(schema.work),
    )
    if r[R_COMMAND] == DO_ITEMS:
        r[R_COUNT] = _convert_items(
            bytes_, heap.tag, heap.value, r[R_START], r[R_COUNT], r[R_STEP], heap, plan, r[R_TABLE], r
        )
        return np.int64(0)
    if r[R_COMMAND] == DO_LINKS:
        r[R_COUNT] = _convert_links(
            bytes_, heap.tag, heap.value, r[R_START], r[R_COUNT], heap, plan, r[R_TABLE], r
        )
        return np.int64(0)
    if r[R_COMMAND] == DO_COLLECT:
        _collect(r, stack, memo, heap, Memory(_pointer(spare.tag), _pointer(spare.value)))
        return np.int64(0)
    return _run(
        bytes_,
        _pointer(operand),
        r,
        stack,
        Marks(
            _pointer(marks.height),
            _pointer(marks.heap),
            _pointer(marks.table),
            _pointer(marks.over),
            _pointer(marks.at),
        ),
        heap,
        memo,
        Names(_pointer(names.kind), _pointer(names.text), _pointer(names.span)),
        plan,
        TemplateArrays(
            _pointer(templates.templates),
            _pointer(templates.elements),
            _pointer(templates.literals),
            _pointer(templates.first_byte),
        ),
    )
