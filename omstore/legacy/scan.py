"""Pass 1: walk a pickle's opcodes and find which memo entries are ever fetched, and where last.

The memo is what defeats streaming: every MEMOIZE keeps its object alive to the end. Knowing which numbers are
fetched, pass 2 keeps only those, and drops each at its last fetch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import kernel
from omstore.errors import MemoryBudgetError, TruncatedPickleError, UnsupportedPickleError
from omstore.legacy import opcodes as op
from omstore.legacy.opcodes import OPERAND, OPERAND_NAMES
from omstore.memory import format_bytes

__all__ = ["Scan", "scan"]

_STEP: Final = 32 << 20

# Registers of the scan kernel.
_PC: Final = 0
_FETCHED: Final = 2
_PROTOCOL: Final = 3
_PUTS: Final = 4
_MEMOIZES: Final = 5
_LAST_PUT: Final = 6
_NUM_REGISTERS: Final = 8

_MORE: Final = 0
_STOPPED: Final = 1
_GROW: Final = 2
_TRUNCATED: Final = 3
_REFUSED: Final = 4
_REUSED: Final = 5


@dataclass(frozen=True)
class Scan:
    """What pass 1 found.

    Attributes
    ----------
    memo_ids : int64 array (M,)
        Memo numbers that are fetched at least once, ascending.
    last_fetch : int64 array (M,)
        Byte offset of the last fetch of each.
    stop : int
        Byte offset just behind STOP.
    protocol : int
        The highest PROTO operand seen (0 when there is none).
    """

    memo_ids: Any
    last_fetch: Any
    stop: int
    protocol: int


@kernel
def _scan(data: Any, operand: Any, registers: Any, keys: Any, values: Any, limit: int) -> Any:
    """Walk opcodes from registers[_PC] to `limit`; an open-addressing table (keys + 1, values) collects
    fetches."""
    pc = registers[_PC]
    size = np.int64(data.size)
    mask = np.int64(keys.size - 1)
    fetched = registers[_FETCHED]
    room = np.int64(keys.size) * 6 // 10
    status = _MORE
    while pc < limit:
        code = np.int64(data[pc])
        kind = np.int64(operand[code])
        if kind >= 0:
            after = pc + 1 + kind
        elif kind == op.LENGTH1:
            if pc + 2 > size:
                status = _TRUNCATED
                break
            after = pc + 2 + np.int64(data[pc + 1])
        elif kind == op.LENGTH4:
            if pc + 5 > size:
                status = _TRUNCATED
                break
            length = np.int64(0)
            for i in range(4):
                length |= np.int64(data[pc + 1 + i]) << (8 * i)
            after = pc + 5 + length
        elif kind == op.LENGTH8:
            if pc + 9 > size or data[pc + 8] > 0x7F:
                status = _TRUNCATED
                break
            length = np.int64(0)
            for i in range(8):
                length |= np.int64(data[pc + 1 + i]) << (8 * i)
            if length > size:
                status = _TRUNCATED
                break
            after = pc + 9 + length
        elif kind == op.LINES2:
            lines = 0
            after = pc + 1
            while after < size and lines < 2:
                if data[after] == 10:
                    lines += 1
                after += 1
            if lines < 2:
                status = _TRUNCATED
                break
        else:
            status = _REFUSED
            break
        if after > size:
            status = _TRUNCATED
            break
        if code == op.BINGET or code == op.LONG_BINGET:
            number = np.int64(data[pc + 1])
            if code == op.LONG_BINGET:
                for i in range(1, 4):
                    number |= np.int64(data[pc + 1 + i]) << (8 * i)
            slot = (number * np.int64(0x9E3779B1)) & mask
            while keys[slot] != 0 and keys[slot] != number + 1:
                slot = (slot + 1) & mask
            if keys[slot] == 0:
                if fetched >= room:
                    status = _GROW
                    break
                keys[slot] = number + 1
                fetched += 1
            values[slot] = pc
        elif code == op.MEMOIZE:
            registers[_MEMOIZES] += 1
        elif code == op.BINPUT or code == op.LONG_BINPUT:
            number = np.int64(data[pc + 1])
            if code == op.LONG_BINPUT:
                for i in range(1, 4):
                    number |= np.int64(data[pc + 1 + i]) << (8 * i)
            if number < registers[_LAST_PUT]:
                status = _REUSED
                break
            registers[_LAST_PUT] = number + 1
            registers[_PUTS] += 1
        elif code == op.PROTO:
            if np.int64(data[pc + 1]) > registers[_PROTOCOL]:
                registers[_PROTOCOL] = np.int64(data[pc + 1])
        elif code == op.STOP:
            pc = after
            status = _STOPPED
            break
        pc = after
    if status == _MORE and pc >= size:
        status = _TRUNCATED
    registers[_PC] = pc
    registers[_FETCHED] = fetched
    return status


def scan(
    data: NDArray[np.uint8],
    name: str,
    *,
    budget: int,
    cancel: threading.Event | None = None,
    progress: Callable[[int], None] | None = None,
    release: Callable[[int, int], None] | None = None,
) -> Scan:
    """Walk all opcodes of a pickle once.

    Parameters
    ----------
    data : uint8 array
        The (decompressed) pickle, mapped.
    name : str
        For messages.
    budget : int
        Bytes the table of fetched memo entries may take.
    cancel : threading.Event, optional
        Checked every 32 MiB; `KeyboardInterrupt` is raised when it is set.
    progress : callable, optional
        Called with the byte offset reached.
    release : callable, optional
        Called with (start, stop) of bytes that won't be needed soon.

    Raises
    ------
    TruncatedPickleError
        If the bytes end before STOP, or an operand reaches past the end.
    UnsupportedPickleError
        If there is an opcode that no pickler of protocols 2 to 5 writes, or that needs outside data.
    MemoryBudgetError
        If more distinct objects are shared than the budget can track (32 bytes each).
    """
    registers = np.zeros(_NUM_REGISTERS, np.int64)
    keys = np.zeros(1 << 12, np.int64)
    values = np.zeros(1 << 12, np.int64)
    if data.size == 0:
        raise TruncatedPickleError(f"{name} is empty", "Export it again.")
    while True:
        start = int(registers[_PC])
        status = _scan(data, OPERAND, registers, keys, values, min(data.size, start + _STEP))
        reached = int(registers[_PC])
        if progress is not None:
            progress(reached)
        if release is not None:
            release(start, reached)
        if cancel is not None and cancel.is_set():
            raise KeyboardInterrupt
        if status == _STOPPED:
            break
        if status == _GROW:
            keys, values = _grow(keys, values, budget, name)
        elif status == _TRUNCATED:
            _raise_truncated(data, name, reached)
        elif status == _REFUSED:
            _raise_refused(data, name, reached)
        elif status == _REUSED:
            raise UnsupportedPickleError(
                f"{name}: the memo entry stored at byte {reached:,} doesn't have a higher number than those "
                "before, as every pickler's has",
                "Export it again with one pickle.dump call.",
            )
    if registers[_PUTS] and registers[_MEMOIZES]:
        raise UnsupportedPickleError(
            f"{name} mixes numbered (BINPUT) and implicit (MEMOIZE) memo entries, which no pickler does",
            "Export it again with one pickle.dump call.",
        )
    used = np.flatnonzero(keys)
    order = np.argsort(keys[used])
    return Scan(
        memo_ids=keys[used][order] - 1,
        last_fetch=values[used][order],
        stop=reached,
        protocol=int(registers[_PROTOCOL]),
    )


def _grow(
    keys: NDArray[np.int64], values: NDArray[np.int64], budget: int, name: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    capacity = keys.size * 2
    if capacity * 16 * 3 // 2 > budget:
        raise MemoryBudgetError(
            f"{name} shares more than {keys.size * 6 // 10:,} distinct objects; "
            f"tracking them needs over {format_bytes(budget)}",
            f"Give it more memory: --max-ram {format_bytes(budget * 8).replace(' ', '').replace('iB', '')}.",
        )
    bigger = np.zeros(capacity, np.int64)
    bigger_values = np.zeros(capacity, np.int64)
    _rehash(keys, values, bigger, bigger_values)
    return bigger, bigger_values


@kernel
def _rehash(keys: Any, values: Any, bigger: Any, bigger_values: Any) -> Any:
    mask = np.int64(bigger.size - 1)
    for i in range(keys.size):
        if keys[i] != 0:
            slot = ((keys[i] - 1) * np.int64(0x9E3779B1)) & mask
            while bigger[slot] != 0:
                slot = (slot + 1) & mask
            bigger[slot] = keys[i]
            bigger_values[slot] = values[i]


def _raise_truncated(data: NDArray[np.uint8], name: str, offset: int) -> None:
    if offset == 0 or data[0] != 0x80:
        _raise_not_a_pickle(data, name)
    raise TruncatedPickleError(
        f"{name} ends early: the operand or opcode at byte {offset:,} reaches past the end "
        f"({data.size:,} bytes)",
        "The export or a copy of it was cut off; export or copy it again.",
    )


def _raise_not_a_pickle(data: NDArray[np.uint8], name: str) -> Any:
    head = bytes(data[:8])
    raise TruncatedPickleError(
        f"{name} isn't a pickle of protocol 2 to 5: it begins with {head!r}, not with a PROTO opcode",
        "Check the path; protocols 0 and 1 (text) must be exported again with protocol=4.",
    )


def _raise_refused(data: NDArray[np.uint8], name: str, offset: int) -> None:
    if data[0] != 0x80:
        _raise_not_a_pickle(data, name)
    code = int(data[offset])
    what = OPERAND_NAMES.get(code)
    if what is None:
        raise TruncatedPickleError(
            f"{name}: byte {offset:,} is {code:#04x}, which is no pickle opcode",
            "The file is damaged; export or copy it again.",
        )
    if what in ("PERSID", "BINPERSID", "NEXT_BUFFER", "EXT1", "EXT2", "EXT4"):
        raise UnsupportedPickleError(
            f"{name}: {what} at byte {offset:,} refers to data outside the pickle",
            "Export with plain pickle.dump, without persistent ids, extension registry or out-of-band "
            "buffers.",
        )
    raise UnsupportedPickleError(
        f"{name}: {what} at byte {offset:,} belongs to pickle protocol 0 or 1, or to Python 2",
        "Export it again from Python 3 with protocol=4.",
    )
