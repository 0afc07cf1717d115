"""Read a legacy pickle in bounded memory: two passes over the mapped bytes, tables to a sink, a small tree back.

Nothing in the pickle is imported or executed. Memory is bounded by the row buffers (2 MiB a table), the
heap of values still needed, and 32 bytes for every distinct object that the pickle shares.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omstore.errors import (
    BadDataError,
    MemoryBudgetError,
    TruncatedPickleError,
    UnsafePickleError,
    UnsupportedPickleError,
)
from omstore.legacy import machine
from omstore.legacy.adjacency import find_adjacency
from omstore.legacy.globals import global_kind
from omstore.legacy.names import plays_a_part
from omstore.legacy.opcodes import OPERAND
from omstore.legacy.scan import scan
from omstore.legacy.schema import (
    KEY,
    VALUE,
    ArrayRef,
    Instance,
    PickleTree,
    Sink,
    Step,
    TableRef,
    TableSchema,
)
from omstore.legacy.shapes import Shape, merge_all, shape_of
from omstore.legacy.source import PickleSource
from omstore.legacy.tables import Tables
from omstore.legacy.templates import Templates
from omstore.legacy.values import Heap, dtype_of
from omstore.memory import DEFAULT_BUDGET, format_bytes

__all__ = ["DiscardRows", "read_pickle"]

_STEP: Final = 32 << 20
_SAMPLES: Final = 256
_MAX_STACK: Final = 1 << 24
_MAX_MARKS: Final = 1 << 16
_ADJACENCY_SLOTS: Final = 1 << 18
_LARGE_DATA: Final = 1 << 16
_MAX_TREE: Final = 100_000


class DiscardRows:
    """A sink that drops the rows: for looking at a pickle's structure only."""

    def rows(self, table: TableSchema, first_row: int, columns: Any) -> None:
        """Drop them."""


def read_pickle(
    path: Path,
    sink: Sink,
    *,
    scratch: Path | None = None,
    budget: int = DEFAULT_BUDGET,
    required: Callable[[tuple[Step, ...]], bool] | None = None,
    cancel: threading.Event | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PickleTree:
    """Read a pickle into tables and a tree.

    Parameters
    ----------
    path : Path
        The pickle, protocol 2 to 5, plain or compressed with gzip, zstd or xz.
    sink : Sink
        Takes the tables' rows, in the order of the pickle.
    scratch : Path, optional
        Folder for the decompressed copy of a compressed pickle.
    budget : int
        Bytes of anonymous memory the reader may use.
    required : callable, optional
        Says of a field's path whether a change of its shape is an error; other fields are left out, with a note, when
        their shape changes. By default the fields whose names play a part.
    cancel : threading.Event, optional
        When set, `KeyboardInterrupt` is raised soon, in the thread that reads.
    progress : callable, optional
        Called with (bytes walked, bytes in all) of the two passes together.

    Returns
    -------
    PickleTree

    Raises
    ------
    UnsafePickleError
        If the pickle would call something that isn't known to be data: the global's name and byte offset.
    UnsupportedPickleError, TruncatedPickleError, BadDataError, MemoryBudgetError
        See `omstore.errors`.
    """
    with PickleSource(path, scratch, cancel) as source:
        return _Reader(source, sink, budget, required or plays_a_part, cancel, progress).read()


class _Reader:
    """One run of pass 1 and pass 2 over a source."""

    def __init__(
        self,
        source: PickleSource,
        sink: Sink,
        budget: int,
        required: Callable[[tuple[Step, ...]], bool],
        cancel: threading.Event | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.source = source
        self.name = source.name
        self.data = source.data
        self.budget = budget
        self.required = required
        self.cancel = cancel
        self.progress = progress
        self.tables = Tables(sink)
        self.heap = Heap(self.data)
        self.templates = Templates(self.data, self.tables, self._memo_holds)
        self.classes: list[tuple[str, str]] = []
        self.global_kind: NDArray[np.int64] = np.zeros(0, np.int64)
        self.global_text: NDArray[np.uint8] = np.zeros(1, np.uint8)
        self.global_span: NDArray[np.int64] = np.zeros((0, 4), np.int64)
        self.registers = np.zeros(machine.NUM_REGISTERS, np.int64)
        self.stack_tag: NDArray[np.uint8] = np.zeros(1 << 14, np.uint8)
        self.stack: NDArray[np.int64] = np.zeros(1 << 14, np.int64)
        self.stack_count: NDArray[np.int64] = np.zeros(1 << 14, np.int64)
        self.mark_sp: NDArray[np.int64] = np.zeros(256, np.int64)
        self.mark_heap: NDArray[np.int64] = np.zeros(256, np.int64)
        self.mark_table: NDArray[np.int64] = np.zeros(256, np.int64)
        self.mark_over: NDArray[np.int64] = np.zeros(256, np.int64)
        self.mark_pc: NDArray[np.int64] = np.zeros(256, np.int64)
        self.scratch = np.zeros(64, np.uint8)
        self.link_progress = np.zeros(1, np.int64)
        self.notes: list[str] = []
        self._tree_left = _MAX_TREE

    # --- the run --------------------------------------------------------------------------------------------------------------

    def read(self) -> PickleTree:
        """Both passes."""
        size = self.source.size
        passed = scan(
            self.data,
            self.name,
            budget=self.budget // 3,
            cancel=self.cancel,
            progress=None if self.progress is None else self._report,
            release=self.source.release,
        )
        if passed.stop < size:
            self.notes.append(f"{size - passed.stop:,} bytes follow the pickle's end and were not read")
        self.memo_id = passed.memo_ids
        self.memo_last = passed.last_fetch
        self.memo_tag = np.zeros(self.memo_id.size, np.uint8)
        self.memo = np.zeros(self.memo_id.size, np.int64)
        self.stop = passed.stop
        handlers = {
            machine.EV_LIMIT: self._limit,
            machine.EV_COLLECT: self._collect,
            machine.EV_STACK: self._grow_stack,
            machine.EV_MARKS: self._grow_marks,
            machine.EV_GLOBAL: self._new_global,
            machine.EV_BIG: self._big_container,
            machine.EV_FLUSH: self._flush,
            machine.EV_MISFIT: self._misfit,
            machine.EV_OVERFLOW: self._overflow,
            machine.EV_ERROR: self._error,
            machine.EV_LEARN: self._learn,
        }
        released = 0
        while (event := self._run(released)) != machine.EV_STOP:
            handlers[event]()
            at = int(self.registers[machine.R_PC])
            if at - released >= _STEP:
                self.source.release(released, at)
                released = at
            if self.cancel is not None and self.cancel.is_set():
                raise KeyboardInterrupt
        root = self._tree(int(self.stack_tag[0]), int(self.stack[0]), (), 16)
        self.tables.flush_all()
        for schema in self.tables.schemas:
            schema.num_rows = self.tables.num_rows(schema.id)
        return PickleTree(root, self.tables.schemas, passed.protocol, size, self.notes)

    def _report(self, reached: int) -> None:
        if self.progress is not None:
            self.progress(reached, 2 * self.source.size)

    def _memory(self) -> machine.Memory:
        return machine.Memory(self.heap.tags, self.heap.slots)

    def _run(self, released: int) -> int:
        return int(
            machine.run(
                self.data,
                min(self.stop, released + _STEP),
                OPERAND,
                self.registers,
                machine.Stacks(self.stack_tag, self.stack, self.stack_count),
                machine.Marks(self.mark_sp, self.mark_heap, self.mark_table, self.mark_over, self.mark_pc),
                self._memory(),
                machine.Memos(self.memo_id, self.memo_last, self.memo_tag, self.memo),
                machine.Names(self.global_kind, self.global_text, self.global_span),
                self.tables.arrays(),
                self.templates.arrays(),
                self.scratch,
                self.link_progress,
            )
        )

    # --- events ---------------------------------------------------------------------------------------------------------------

    def _limit(self) -> None:
        if self.progress is not None:
            self.progress(self.source.size + int(self.registers[machine.R_PC]), 2 * self.source.size)

    def _collect(self) -> None:
        """Collect garbage; grow the heap when that isn't enough."""
        need = int(self.registers[machine.R_ADDRESS])
        if self.registers[machine.R_LOOSE] == 0:
            self._look_for_adjacency()
        size = self.heap.slots.size
        new_tag, new = np.zeros(size, np.uint8), np.zeros(size, np.int64)
        machine.collect(
            self.heap.tags,
            self.heap.slots,
            new_tag,
            new,
            self.stack_tag,
            self.stack,
            self.registers,
            self.memo_tag,
            self.memo,
        )
        # Heap addresses of the open marks are only used to rewind: after a collection nothing above them may be dropped.
        self.mark_heap[:] = np.where(self.mark_heap > 0, 1 << 62, self.mark_heap)
        self.mark_heap[: int(self.registers[machine.R_MARKS])] = self.registers[machine.R_TOP]
        live = int(self.registers[machine.R_TOP])
        if live + need > size // 2:
            bigger = max(size * 2, 1 << (live + need).bit_length())
            if bigger * 9 * 2 > self.budget:
                raise MemoryBudgetError(
                    f"{self.name}: at byte {int(self.registers[machine.R_PC]):,} the objects still referred to need more than "
                    f"{format_bytes(self.budget)} (shared objects, or one object too large to stream)",
                    "Give it more memory with --max-ram.",
                )
            grown_tag, grown = np.zeros(bigger, np.uint8), np.zeros(bigger, np.int64)
            grown_tag[:live], grown[:live] = new_tag[:live], new[:live]
            new_tag, new = grown_tag, grown
        self.heap.tags, self.heap.slots = new_tag, new

    def _grow_stack(self) -> None:
        size = self.stack.size
        if size >= _MAX_STACK or size * 2 * 17 > self.budget // 2:
            raise UnsupportedPickleError(
                f"{self.name}: more than {size:,} values are stacked at byte {int(self.registers[machine.R_PC]):,}",
                "The pickle is damaged or holds one huge tuple of values that aren't alike.",
            )
        for name in ("stack_tag", "stack", "stack_count"):
            old = getattr(self, name)
            new = np.zeros(size * 2, old.dtype)
            new[:size] = old
            setattr(self, name, new)

    def _grow_marks(self) -> None:
        size = self.mark_sp.size
        if size >= _MAX_MARKS:
            raise UnsupportedPickleError(
                f"{self.name}: nested deeper than {size:,} levels at byte {int(self.registers[machine.R_PC]):,}",
                "The pickle is damaged or hostile.",
            )
        for name in ("mark_sp", "mark_heap", "mark_table", "mark_over", "mark_pc"):
            old = getattr(self, name)
            new = np.zeros(size * 2, old.dtype)
            new[:size] = old
            setattr(self, name, new)

    def _new_global(self) -> None:
        spans = [
            (int(self.registers[machine.R_ADDRESS]), int(self.registers[machine.R_TAG])),
            (int(self.registers[machine.R_NODE]), int(self.registers[machine.R_VALUE])),
        ]
        texts = [self.data[start : start + length] for start, length in spans]
        module, name = (bytes(text).decode("utf-8", "replace") for text in texts)
        if len(self.classes) >= 1000:
            raise UnsupportedPickleError(
                f"{self.name} names more than 1,000 classes and functions", "It isn't an export."
            )
        at = self.global_text.size
        self.global_text = np.concatenate([self.global_text, *texts])
        span = np.array([[at, texts[0].size, at + texts[0].size, texts[1].size]], np.int64)
        self.global_span = np.concatenate([self.global_span, span])
        self.global_kind = np.append(self.global_kind, global_kind(module, name))
        self.classes.append((module, name))

    def _class_name(self, class_id: int) -> str:
        return ".".join(self.classes[class_id])

    def _big_container(self) -> None:
        """A container has outgrown one batch: its items become rows of a table, if they are alike."""
        address = int(self.registers[machine.R_ADDRESS])
        tag = int(self.registers[machine.R_TAG])
        index = self._stack_index(tag, address)
        path = self._path(index) if index is not None else ()
        if tag == machine.DICT:
            made = self._dict_table(address, path)
        elif self.registers[machine.R_LOOSE] == 0 and self._look_for_adjacency():
            return
        else:
            made = self._list_table(tag, address, path)
        if self._settle(address, made):
            self._refresh_marks()

    def _refresh_marks(self) -> None:
        """Tell open marks above a list that has become a table so."""
        for mark in range(int(self.registers[machine.R_MARKS])):
            owner = int(self.mark_sp[mark]) - 1
            if owner >= 0 and self.stack_tag[owner] in (machine.LIST, machine.DEQUE, machine.SET):
                table = int(self.heap.slots[self.stack[owner] + machine.C_TABLE])
                if table > 0:
                    self.mark_table[mark] = table

    def _stack_index(self, tag: int, address: int) -> int | None:
        for i in range(int(self.registers[machine.R_SP]) - 1, -1, -1):
            if self.stack_tag[i] == tag and self.stack[i] == address:
                return i
        return None

    def _path(self, index: int) -> tuple[Step, ...]:
        """Where a value that is still being built will sit in the root object, as far as the stack tells."""
        path: list[Step] = []
        marks = self.mark_sp[: int(self.registers[machine.R_MARKS])].tolist()
        while index > 0 and len(path) < 16:
            base = max([m for m in marks if m <= index], default=0)
            if index > base and self.stack_tag[index - 1] == machine.OBJ:
                index -= 1
            elif index > base and self.stack_tag[index - 1] == machine.TEXT:
                path.append(self.heap.text(int(self.stack[index - 1])))
                index = base - 1 if base > 0 and self.stack_tag[base - 1] == machine.DICT else index - 2
            else:
                path.append(index - base)
                index = base - 1
        return tuple(reversed(path))

    # --- tables -----------------------------------------------------------------------------------------------------------------

    def _samples(self, tag: int, address: int) -> list[Any]:
        items = self.heap.tuple_items(address) if tag == machine.TUPLE else self.heap.items(address)
        return [self.heap.value(t, v) for t, v in items[:_SAMPLES] if t != machine.NONE]

    def _settle(self, address: int, made: bool) -> bool:
        """Remember that a container's items don't make a table: it may be shared, and looked at again."""
        if not made:
            self.heap.slots[address + machine.C_TABLE] = -1
        return made

    def _record_name(self, shape: Shape) -> str:
        if shape.kind == machine.K_OBJ:
            return self._class_name(shape.class_id)
        if shape.kind == machine.K_DICT:
            return "dict"
        return shape.origin if shape.kind == machine.K_SEQ else "value"

    def _list_table(self, tag: int, address: int, path: tuple[Step, ...]) -> bool:
        """Make a table of a list's (tuple's, set's) items and convert what it holds; False when they aren't alike."""
        samples = self._samples(tag, address)
        if not samples:
            return False
        shape = merge_all(samples)
        if not _tabular(shape):
            return False
        container = {machine.DEQUE: "deque", machine.SET: "set", machine.TUPLE: "tuple"}.get(tag, "list")
        table = self.tables.add(path, container, self._record_name(shape), shape)
        self.templates.add_table()
        if tag == machine.TUPLE:
            self._convert(table, address + 1, int(self.heap.slots[address]), 1)
            return True
        self._convert_chunks(table, address, 1)
        return True

    def _dict_table(self, address: int, path: tuple[Step, ...]) -> bool:
        """The same for a dict: rows of key and value, or an adjacency."""
        if self._make_adjacency(address, path):
            return True
        items = self.heap.items(address)[: 2 * _SAMPLES]
        if not items:
            return False
        keys = merge_all([self.heap.value(t, v) for t, v in items[::2]])
        values = merge_all([self.heap.value(t, v) for t, v in items[1::2]])
        if not (_tabular(keys) and _tabular(values)):
            return False
        shape = Shape(machine.K_SEQ, children=((KEY, keys), (VALUE, values)))
        table = self.tables.add(path, "dict", "item", shape, pairs=True)
        self.templates.add_table()
        self._convert_chunks(table, address, 2)
        return True

    def _convert_chunks(self, table: int, address: int, step: int) -> None:
        """Turn what a container holds into rows, and leave it empty with its table's number."""
        slots = self.heap.slots
        first = self.tables.num_rows(table)
        for start, count in self.heap.chunks(address):
            self._convert(table, start, count, step)
        slots[address + machine.C_FIRST] = slots[address + machine.C_LAST] = -1
        self.heap.tags[address + machine.C_FIRST] = self.heap.tags[address + machine.C_LAST] = machine.RAW
        slots[address + machine.C_TABLE] = table + 1
        slots[address + machine.C_ROW] = first
        slots[address + machine.C_ROWS] = self.tables.num_rows(table) - first

    def _convert(self, table: int, start: int, count: int, step: int) -> None:
        """Convert heap slots to rows, handing over full buffers and settling misfits on the way."""
        t = self.tables
        while count > 0:
            arguments = (
                self.data, self.heap.tags, self.heap.slots, start, count, step, self._memory(), t.arrays(), table, self.registers,
            )  # fmt: skip
            done = int(machine.convert_items(*arguments))
            start += done
            count -= done
            if count > 0:
                if self.registers[machine.R_NODE] < 0:
                    t.flush(table)
                else:
                    self._misfit()

    def _look_for_adjacency(self) -> bool:
        """The heap is full, or a list long: perhaps a dict whose values are lists of edges is being built."""
        for i in range(int(self.registers[machine.R_SP])):
            if self.stack_tag[i] == machine.DICT and self.heap.slots[self.stack[i] + machine.C_TABLE] == 0:
                if self._make_adjacency(int(self.stack[i]), self._path(i), stack_index=i):
                    return True
        return False

    def _make_adjacency(self, address: int, path: tuple[Step, ...], stack_index: int | None = None) -> bool:
        """Make the two tables of an adjacency, if the dict is one."""
        pairs = self.heap.items(address)
        if stack_index is None:
            stack_index = self._stack_index(machine.DICT, address)
        pending: list[tuple[int, int]] = []
        if stack_index is not None:
            end = int(self.registers[machine.R_SP])
            pending = list(
                zip(
                    self.stack_tag[stack_index + 1 : end].tolist(),
                    self.stack[stack_index + 1 : end].tolist(),
                    strict=True,
                )
            )
        found = find_adjacency(self.heap, pairs, pending)
        if found is None:
            return False
        records = self.tables.add(path, "adjacency", self._record_name(found.record), found.record)
        self.templates.add_table()
        links = self.tables.add_links(path, found.keys, records)
        self.templates.add_table()
        if found.record.kind == machine.K_OBJ:
            self.tables.table[records, machine.T_ANYWHERE] = 1
        for inner in found.lists:
            self._convert_chunks(records, inner, 1)
            # Its rows are known by number; it isn't the table itself, and may still grow.
            self.heap.slots[inner + machine.C_TABLE] = 0
        self.registers[machine.R_LOOSE] = records + 1
        for start, count in self.heap.chunks(address):
            self._convert_link_pairs(links, start, count)
        slots = self.heap.slots
        slots[address + machine.C_FIRST] = slots[address + machine.C_LAST] = -1
        self.heap.tags[address + machine.C_FIRST] = self.heap.tags[address + machine.C_LAST] = machine.RAW
        slots[address + machine.C_TABLE] = links + 1
        return True

    def _convert_link_pairs(self, table: int, start: int, count: int) -> None:
        t = self.tables
        while count > 0:
            arguments = (
                self.data, self.heap.tags, self.heap.slots, start, count, self._memory(), t.arrays(), table, self.link_progress, self.registers,
            )  # fmt: skip
            done = int(machine.convert_links(*arguments))
            start += done
            count -= done
            if count > 0:
                if self.registers[machine.R_NODE] == -2:
                    self._link_error()
                if self.registers[machine.R_NODE] < 0:
                    t.flush(table)
                else:
                    self._misfit()

    def _flush(self) -> None:
        self.tables.flush(int(self.registers[machine.R_TABLE]))

    def _learn(self) -> None:
        start, stop = int(self.registers[machine.R_ADDRESS]), int(self.registers[machine.R_VALUE])
        self.templates.learn(int(self.registers[machine.R_TABLE]), start, stop)

    def _memo_holds(self, number: int) -> bytes | tuple[int, int] | None:
        """What a memo number holds, for templates (see `Templates`)."""
        slot = int(np.searchsorted(self.memo_id, number))
        if slot >= self.memo_id.size or self.memo_id[slot] != number:
            return None
        tag, value = int(self.memo_tag[slot]), int(self.memo[slot])
        if tag == machine.TEXT:
            return self.heap.text(value).encode("utf-8", "surrogatepass")
        if tag == machine.GLOBAL:
            return tag, value
        return (tag, int(self.heap.slots[value])) if tag == machine.DTYPE else None

    def _overflow(self) -> None:
        """Thousands of values are stacked above one mark: a huge tuple, or a batch larger than picklers write."""
        mark = int(self.registers[machine.R_MARKS]) - 1
        base = int(self.mark_sp[mark])
        owner = base - 1
        table = -1
        if (
            owner >= 0
            and self.stack_tag[owner] in (machine.LIST, machine.DEQUE, machine.SET)
            and self.mark_table[mark] > 0
        ):
            table = int(self.mark_table[mark]) - 1
        else:
            stop = base + _SAMPLES
            values = [
                self.heap.value(t, v)
                for t, v in zip(
                    self.stack_tag[base:stop].tolist(), self.stack[base:stop].tolist(), strict=True
                )
                if t != machine.NONE
            ]
            shape = merge_all(values) if values else Shape(machine.K_SKIP)
            # Plain numbers stay: a state of thousands of components is one value, not a table.
            scalar = shape.kind in (machine.K_INT, machine.K_FLOAT, machine.K_BOOL)
            if _tabular(shape) and not scalar and not (owner >= 0 and self.stack_tag[owner] == machine.DICT):
                table = self.tables.add(self._path(base), "tuple", self._record_name(shape), shape)
                self.templates.add_table()
        if table < 0:
            self.registers[machine.R_FREE_MARK] = mark + 1
            return
        self.mark_over[mark] = table + 1
        self.mark_table[mark] = table + 1
        self.templates.learn(table, int(self.mark_pc[mark]) + 1, self.offset())

    def offset(self) -> int:
        """Byte offset the machine is at."""
        return int(self.registers[machine.R_PC])

    def _misfit(self) -> None:
        """A value doesn't fit its column: widen the column, leave an unimportant field out, or refuse."""
        node = int(self.registers[machine.R_NODE])
        tag, value = int(self.registers[machine.R_TAG]), int(self.registers[machine.R_VALUE])
        tables = self.tables
        if tables.widen(node, tag):
            self.templates.drop(tables.infos[node].table)
            return
        info = tables.infos[node]
        field_path = tables.infos[info.field].path if info.field >= 0 else ()
        schema = tables.schemas[info.table]
        if info.field >= 0 and not schema.positional and not self.required(field_path):
            tables.abandon(node, "its shape varies between records")
            self.templates.drop(info.table)
            return
        found = (
            repr(self.heap.value(tag, value))
            if tag < machine.FIRST_POINTER
            else _describe(shape_of(self.heap.value(tag, value)))
        )
        where = "".join(f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in info.path).lstrip(
            "."
        )
        raise BadDataError(
            f"{self.name}: record {tables.num_rows(info.table):,} of {_place(schema)} has another shape than those before: "
            f"{where or 'the record itself'} is {found[:120]}, expected {self._expected(node)} "
            f"(near byte {self.offset():,})",
            "All records must have the same fields, of the same kinds and lengths.",
        )

    def _expected(self, node: int) -> str:
        kind = int(self.tables.nodes[node, machine.N_KIND])
        size = int(self.tables.nodes[node, machine.N_SIZE])
        dims = tuple(
            self.tables.nodes[
                node, machine.N_DIM0 : machine.N_DIM0 + self.tables.nodes[node, machine.N_NDIM]
            ].tolist()
        )
        code = int(self.tables.nodes[node, machine.N_CODE])
        children = int(self.tables.nodes[node, machine.N_CHILDREN])
        return {
            machine.K_NONE: "None",
            machine.K_INT: "an integer",
            machine.K_FLOAT: "a number",
            machine.K_BOOL: "a bool",
            machine.K_INTS: f"{size} integers",
            machine.K_FLOATS: f"{size} numbers",
            machine.K_ARRAY: f"an array of shape {dims} and dtype {dtype_of(code) if code else '?'}",
            machine.K_BYTES: f"{size} bytes",
            machine.K_SEQ: f"{children} values",
            machine.K_DICT: f"a dict with the same {children} keys",
            machine.K_OBJ: f"{self._class_name(code) if kind == machine.K_OBJ else 'an object'} with the same {children} fields",
        }.get(kind, "something else")

    def _link_error(self) -> None:
        raise BadDataError(
            f"{self.name}: near byte {self.offset():,} a list of the adjacency holds something other than records of one shape",
            "Every list of edges must hold edges of the same shape only.",
        )

    def _error(self) -> None:
        code = int(self.registers[machine.R_ERROR])
        at = self.offset()
        what = f"{self.name}: byte {at:,}"
        if code in (machine.E_CALL, machine.E_NEWOBJ):
            module, name = self.classes[int(self.registers[machine.R_VALUE])]
            if global_kind(module, name) == machine.G_CLASS and code == machine.E_CALL:
                raise UnsafePickleError(
                    f"{what}: unpickling would call {module}.{name}, which omstore doesn't execute",
                    "If it's a class of yours (an enum, attrs, or one with __reduce__), export its plain fields instead.",
                )
            raise UnsafePickleError(
                f"{what}: unpickling would call {module}.{name}; omstore executes nothing from a pickle",
                "Don't unpickle this file anywhere unless you trust where it comes from; export plain data.",
            )
        if code == machine.E_LINK:
            self._link_error()
        if code == machine.E_TENSOR:
            raise UnsupportedPickleError(
                f"{what}: a torch tensor that isn't a contiguous, dense CPU tensor of a plain number type",
                "Export numpy arrays, or tensor.contiguous().cpu().",
            )
        if code == machine.E_DTYPE:
            raise UnsupportedPickleError(
                f"{what}: a numpy value of a dtype that isn't bool, integer or float up to 64 bits",
                "Export such arrays with a plain number dtype.",
            )
        reasons = {
            machine.E_UNDERFLOW: "an opcode finds too few values",
            machine.E_MARK: "an opcode finds no mark",
            machine.E_MEMO: "a memo entry is fetched that was never stored",
            machine.E_TYPE: "an opcode finds values of the wrong kind",
            machine.E_OPCODE: "an opcode isn't supported",
        }
        raise TruncatedPickleError(
            f"{what}: {reasons.get(code, 'the pickle makes no sense')}; the file is damaged or not an export",
            "Copy or export the file again.",
        )

    # --- the tree around the tables -----------------------------------------------------------------------------------------------

    def _tree(self, tag: int, value: int, path: tuple[Step, ...], depth: int) -> Any:
        """What is left on the heap once everything large has become rows."""
        self._tree_left -= 1
        if depth == 0 or self._tree_left < 0:
            return None
        if tag in (machine.LIST, machine.DEQUE, machine.SET, machine.DICT):
            return self._container_tree(tag, value, path, depth)
        if tag == machine.TUPLE:
            items = self.heap.tuple_items(value)
            holds_containers = any(
                t in (machine.LIST, machine.DICT, machine.DEQUE, machine.SET) for t, _ in items
            )
            if (
                len(items) > 1
                and not holds_containers
                and any(t >= machine.FIRST_POINTER for t, _ in items)
                and self._list_table(tag, value, path)
            ):
                return self._reference(path)
            return tuple(self._tree(t, v, (*path, i), depth - 1) for i, (t, v) in enumerate(items))
        if tag == machine.OBJ:
            return self._instance(value, path, depth)
        if tag == machine.ARRAY:
            return self._array(value)
        if tag in (machine.BYTES, machine.ENCODED):
            raw = self.heap.raw(tag, value)
            return raw if len(raw) <= _LARGE_DATA else None
        plain = self.heap.value(tag, value)
        return plain if isinstance(plain, bool | int | float | str) else None

    def _reference(self, path: tuple[Step, ...], table: int = -1) -> TableRef:
        schema = self.tables.schemas[table]
        schema.path = path
        if schema.links_to is not None:
            self.tables.schemas[schema.links_to].path = path
        return TableRef(schema.id)

    def _container_tree(self, tag: int, address: int, path: tuple[Step, ...], depth: int) -> Any:
        table = int(self.heap.slots[address + machine.C_TABLE])
        if table > 0:
            return self._reference(path, table - 1)
        items = self.heap.items(address)
        if tag == machine.DICT:
            pairs = list(zip(items[::2], items[1::2], strict=True))
            named = all(k[0] == machine.TEXT for k, _ in pairs)
            if pairs and not named and table == 0 and self._settle(address, self._dict_table(address, path)):
                return self._reference(path, int(self.heap.slots[address + machine.C_TABLE]) - 1)
            return {self._key(*k): self._tree(*v, (*path, self._key(*k)), depth - 1) for k, v in pairs}
        nested = any(
            t in (machine.DICT, machine.LIST, machine.DEQUE) and self._holds_table(t, v) for t, v in items
        )
        if (
            items
            and not nested
            and table == 0
            and self._settle(address, self._list_table(tag, address, path))
        ):
            return self._reference(path)
        return [self._tree(t, v, (*path, i), depth - 1) for i, (t, v) in enumerate(items)]

    def _holds_table(self, tag: int, address: int) -> bool:
        """Whether a container is a table or has records in it: then the one around it is a structure, not a table."""
        if self.heap.slots[address + machine.C_TABLE] > 0:
            return True
        return (
            any(t in (machine.OBJ, machine.DICT, machine.ARRAY) for t, _ in self.heap.items(address)[:4])
            and tag != machine.DICT
        )

    def _key(self, tag: int, value: int) -> Step:
        plain = self.heap.value(tag, value)
        return plain if isinstance(plain, str | int) else repr(plain)

    def _instance(self, address: int, path: tuple[Step, ...], depth: int) -> Instance:
        slots, tags = self.heap.slots, self.heap.tags
        record = int(slots[address])
        state_tag, state = int(tags[address + 2]), int(slots[address + 2])
        fields: dict[Step, Any] = {}
        parts: list[tuple[int, int]] = []
        if state_tag == machine.DICT:
            parts = [(state_tag, state)]
        elif state_tag == machine.TUPLE and all(
            t in (machine.DICT, machine.NONE) for t, _ in self.heap.tuple_items(state)
        ):
            parts = [(t, v) for t, v in self.heap.tuple_items(state) if t == machine.DICT]
        if parts:
            for _, part in parts:
                items = self.heap.items(part)
                for key, item in zip(items[::2], items[1::2], strict=True):
                    step = self._key(*key)
                    fields[step] = self._tree(*item, (*path, step), depth - 1)
            return Instance(self._class_name(record), fields)
        positional: list[tuple[int, int]] = []
        if state_tag in (machine.TUPLE, machine.LIST):
            positional = (
                self.heap.tuple_items(state) if state_tag == machine.TUPLE else self.heap.items(state)
            )
        elif tags[address + 1] == machine.TUPLE:
            positional = self.heap.tuple_items(int(slots[address + 1]))
        for i, (t, v) in enumerate(positional):
            fields[i] = self._tree(t, v, (*path, i), depth - 1)
        return Instance(self._class_name(record), fields)

    def _array(self, address: int) -> ArrayRef | None:
        array = self.heap.value(machine.ARRAY, address)
        if array.code == 0:
            return None
        dtype = dtype_of(array.code)
        size = math.prod(array.shape) * dtype.itemsize
        if array.tag == machine.RAWAT and array.value + size <= self.data.size:
            return ArrayRef(dtype, array.shape, array.fortran_order, array.value)
        if array.tag == machine.BYTES:
            start, length = self.heap.span(array.value)
            if length == size:
                return ArrayRef(dtype, array.shape, array.fortran_order, start)
        elif array.tag == machine.ENCODED:
            raw = self.heap.raw(array.tag, array.value)
            if len(raw) == size:
                return ArrayRef(dtype, array.shape, array.fortran_order, -1, raw)
        raise TruncatedPickleError(
            f"{self.name}: an array of shape {array.shape} and dtype {dtype} doesn't have its {size:,} bytes",
            "Copy or export the file again.",
        )


def _tabular(shape: Shape) -> bool:
    """Whether items of this shape make rows: at least one column, or nothing but a reason to say why not."""
    return any(leaf.kind not in (machine.K_SKIP, machine.K_NONE) for _, leaf in shape.leaves(()))


def _place(schema: TableSchema) -> str:
    return ".".join(str(step) for step in schema.path) or f"the {schema.container}"


def _describe(shape: Shape) -> str:
    if shape.kind in (machine.K_INTS, machine.K_FLOATS):
        return f"a {shape.origin} of {shape.size} numbers"
    if shape.kind == machine.K_ARRAY:
        return f"an array of shape {shape.dims} and dtype {dtype_of(shape.code)}"
    if shape.kind == machine.K_BYTES:
        return f"{shape.size} bytes"
    if shape.children:
        return f"a {shape.origin} with {', '.join(str(step) for step, _ in shape.children)}"
    return shape.reason or f"a {shape.origin}"
