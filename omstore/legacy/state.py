"""The machine's state as Python sees it: the arrays of one run, and the commands that work on them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omstore.errors import MemoryBudgetError, UnsupportedPickleError
from omstore.legacy.globals import global_kind
from omstore.legacy.machine import registers, tags
from omstore.legacy.machine.arrays import Marks, Memory, Memos, Names, Stacks
from omstore.legacy.machine.entry import run
from omstore.legacy.opcodes import OPERAND
from omstore.legacy.scan import Scan
from omstore.legacy.schema import Sink
from omstore.legacy.tables import Tables
from omstore.legacy.templates import Templates
from omstore.legacy.values import Heap
from omstore.memory import format_bytes

__all__ = ["State"]

_MAX_STACK: Final = 1 << 24
_MAX_MARKS: Final = 1 << 16
_MAX_GLOBALS: Final = 1000
_FIRST_STACK: Final = 1 << 14
_FIRST_MARKS: Final = 256


class State:
    """One machine on its way through a pickle.

    Parameters
    ----------
    data : uint8 array
        The pickle.
    name : str
        For messages.
    passed : Scan
        What pass 1 found.
    sink : Sink
        Takes the tables' rows.
    budget : int
        Bytes of anonymous memory for stack and heap.

    Attributes
    ----------
    heap : Heap
        The values.
    tables, templates
        What has been decided about the records so far.
    classes : list of (module, name)
        The globals seen, by number.
    """

    def __init__(self, data: NDArray[np.uint8], name: str, passed: Scan, sink: Sink, budget: int) -> None:
        self.data = data
        self.name = name
        self.budget = budget
        self.registers: NDArray[np.int64] = np.zeros(registers.NUM_REGISTERS, np.int64)
        self.stacks = Stacks(
            np.zeros(_FIRST_STACK, np.uint8),
            np.zeros(_FIRST_STACK, np.int64),
            np.zeros(_FIRST_STACK, np.int64),
        )
        self.marks = Marks(*(np.zeros(_FIRST_MARKS, np.int64) for _ in Marks._fields))
        self.heap = Heap(data, name)
        self._spare = Memory(np.zeros(1, np.uint8), np.zeros(1, np.int64))
        entries = passed.memo_ids.size
        self.memos = Memos(
            passed.memo_ids, passed.last_fetch, np.zeros(entries, np.uint8), np.zeros(entries, np.int64)
        )
        self.names = Names(np.zeros(0, np.int64), np.zeros(1, np.uint8), np.zeros((0, 4), np.int64))
        self.classes: list[tuple[str, str]] = []
        self.tables = Tables(sink)
        self.templates = Templates(data, self.tables)

    # --- commands ---------------------------------------------------------------------------------------

    def _do(self, command: int) -> int:
        self.registers[registers.R_COMMAND] = command
        return int(
            run(
                self.data,
                OPERAND,
                self.registers,
                self.stacks,
                self.marks,
                Memory(self.heap.tags, self.heap.slots),
                self._spare,
                self.memos,
                self.names,
                self.tables.arrays(),
                self.templates.arrays(),
            )
        )

    def run(self, limit: int) -> int:
        """Run opcodes up to a file offset, or to another of the machine's events; the event."""
        self.registers[registers.R_LIMIT] = limit
        return self._do(registers.DO_RUN)

    def convert(self, command: int, table: int, start: int, count: int, step: int) -> int:
        """Convert heap slots to rows of a table (``DO_ITEMS`` or ``DO_LINKS``); how many slots were done.

        Fewer than `count`: R_NODE is -1 when the table's buffer is full, else what didn't fit.
        """
        self.registers[registers.R_TABLE] = table
        self.registers[registers.R_START] = start
        self.registers[registers.R_COUNT] = count
        self.registers[registers.R_STEP] = step
        self._do(command)
        return int(self.registers[registers.R_COUNT])

    def collect(self, need: int) -> None:
        """Collect garbage, and grow the heap when that doesn't leave half of it and `need` slots free.

        Raises
        ------
        MemoryBudgetError
            If what is alive doesn't fit.
        """
        size = self.heap.slots.size
        new = Memory(np.zeros(size, np.uint8), np.zeros(size, np.int64))
        self._spare, kept = new, self._spare
        self._do(registers.DO_COLLECT)
        self._spare = kept
        live = self.register(registers.R_TOP)
        # Heap addresses of the open marks are only used to rewind: nothing collected may be dropped by that.
        self.marks.heap[: self.register(registers.R_MARKS)] = live
        if live + need > size // 2:
            bigger = max(size * 2, 1 << (live + need).bit_length())
            if bigger * 9 * 2 > self.budget:
                raise MemoryBudgetError(
                    f"{self.name}: at byte {self.offset:,} the objects still referred to need more than "
                    f"{format_bytes(self.budget)} (shared objects, or one object too large to stream)",
                    "Give it more memory with --max-ram.",
                )
            new = Memory(_grown(new.tag, bigger), _grown(new.value, bigger))
        self.heap.tags, self.heap.slots = new

    # --- growth -----------------------------------------------------------------------------------------

    def grow_stack(self) -> None:
        """Make room for twice as many values."""
        size = self.stacks.tag.size
        if size >= _MAX_STACK or size * 2 * 17 > self.budget // 2:
            raise UnsupportedPickleError(
                f"{self.name}: more than {size:,} values are stacked at byte {self.offset:,}",
                "The pickle is damaged or holds one huge tuple of values that aren't alike.",
            )
        self.stacks = Stacks(*(_grown(array, 2 * size) for array in self.stacks))

    def grow_marks(self) -> None:
        """Make room for twice as many open marks."""
        size = self.marks.at.size
        if size >= _MAX_MARKS:
            raise UnsupportedPickleError(
                f"{self.name}: nested deeper than {size:,} levels at byte {self.offset:,}",
                "The pickle is damaged or hostile.",
            )
        self.marks = Marks(*(_grown(array, 2 * size) for array in self.marks))

    def add_global(self) -> None:
        """Take in the global that the machine has met for the first time."""
        module_at, module_length = self.register(registers.R_ADDRESS), self.register(registers.R_TAG)
        name_at, name_length = self.register(registers.R_NODE), self.register(registers.R_VALUE)
        texts = [self.data[module_at : module_at + module_length], self.data[name_at : name_at + name_length]]
        if len(self.classes) >= _MAX_GLOBALS:
            raise UnsupportedPickleError(
                f"{self.name} names more than {_MAX_GLOBALS:,} classes and functions", "It isn't an export."
            )
        module, name = (bytes(text).decode("utf-8", "replace") for text in texts)
        at = self.names.text.size
        span = np.array([[at, module_length, at + module_length, name_length]], np.int64)
        self.names = Names(
            np.append(self.names.kind, global_kind(module, name)),
            np.concatenate([self.names.text, *texts]),
            np.concatenate([self.names.span, span]),
        )
        self.classes.append((module, name))

    # --- looking at it ----------------------------------------------------------------------------------

    def register(self, number: int) -> int:
        """One of the machine's registers."""
        return int(self.registers[number])

    @property
    def offset(self) -> int:
        """File offset the machine is at."""
        return self.register(registers.R_PC)

    def class_name(self, number: int) -> str:
        """Full name of a global."""
        return ".".join(self.classes[number])

    def stacked(self, start: int, stop: int | None = None) -> list[tuple[int, int]]:
        """(tag, payload) of the stack's values from a height on."""
        height = self.register(registers.R_SP)
        stop = height if stop is None else min(stop, height)
        return list(
            zip(self.stacks.tag[start:stop].tolist(), self.stacks.value[start:stop].tolist(), strict=True)
        )

    def stack_index(self, tag: int, address: int) -> int | None:
        """Height at which a heap object lies on the stack, None when it doesn't."""
        height = self.register(registers.R_SP)
        found = np.flatnonzero((self.stacks.value[:height] == address) & (self.stacks.tag[:height] == tag))
        return int(found[-1]) if found.size else None

    def learn(self, table: int, start: int, stop: int) -> None:
        """Make templates from the records between two file offsets (see `Templates.learn`)."""
        # The method is passed on, not kept: a cycle of references would keep all arrays until the next
        # collection.
        self.templates.learn(table, start, stop, self._memo_holds)

    def _memo_holds(self, number: int) -> bytes | tuple[int, int] | None:
        """What a memo number holds, for templates (see `Templates`)."""
        slot = int(np.searchsorted(self.memos.number, number))
        if slot >= self.memos.number.size or self.memos.number[slot] != number:
            return None
        tag, value = int(self.memos.tag[slot]), int(self.memos.value[slot])
        if tag == tags.TEXT:
            return self.heap.text(value).encode("utf-8", "surrogatepass")
        if tag == tags.GLOBAL:
            return tag, value
        return (tag, int(self.heap.slots[value])) if tag == tags.DTYPE else None


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    new = np.zeros(size, array.dtype)
    new[: array.size] = array
    return new
