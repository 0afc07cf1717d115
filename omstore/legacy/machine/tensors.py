"""Torch tensors as arrays: their storages stand in the pickle as the bytes of a ``torch.save``."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel
from omstore.legacy import opcodes as op
from omstore.legacy.machine.arrays import Memory, u32, u64
from omstore.legacy.machine.dtypes import item_size, storage_code
from omstore.legacy.machine.operands import span
from omstore.legacy.machine.registers import R_TOP
from omstore.legacy.machine.tags import INT, RAW, RAWAT, STORAGE, TUPLE

__all__ = ["tensor"]


@inner_kernel
def _storage(data: Any, at: Any, operand: Any) -> Any:
    """(dtype code, file offset, elements) of a torch storage saved in the legacy (non-zip) format; code 0 if
    it isn't.

    The format (torch/serialization.py, _legacy_save): five pickles (magic, protocol, system, storage, keys),
    then for the one key an int64 number of elements and the raw data.
    """
    start, length = span(data, at)
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
            pc += 5 + u32(data, pc + 1)
        elif kind == op.LINES2:
            pc += 1
            lines = np.int64(0)
            while pc < end and lines < 2:
                if lines == 1 and code == 0:
                    code = storage_code(data[pc], data[pc + 1])
                    lines = np.int64(1)
                while pc < end and data[pc] != 10:
                    pc += 1
                pc += 1
                lines += 1
        else:
            break
    if pickles < 5 or pc + 8 > end or code == 0:
        return np.int64(0), np.int64(0), np.int64(0)
    elements = u64(data, pc)
    if elements < 0 or elements > (end - pc - 8) // item_size(code):
        return np.int64(0), np.int64(0), np.int64(0)
    return code, pc + 8, elements


@inner_kernel
def tensor(data: Any, operand: Any, memory: Memory, registers: Any, first: Any) -> Any:
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
    heap[top + 3] = start + offset * item_size(code)
    registers[R_TOP] = top + 4
    return True
