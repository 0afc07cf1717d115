"""Deciding on tables: from the first items of a container to its columns, and what to do when a later one
doesn't fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from omstore.legacy.adjacency import find_adjacency
from omstore.legacy.machine import plan, registers, tags
from omstore.legacy.refusals import link_error, misfit_error
from omstore.legacy.schema import KEY, VALUE, Step
from omstore.legacy.shapes import Shape, merge_all
from omstore.legacy.state import State
from omstore.legacy.tables import MAX_TABLES

__all__ = ["Discovery"]

_SAMPLES: Final = 256
_LISTS: Final = (tags.LIST, tags.DEQUE, tags.SET)
_CONTAINERS: Final = {tags.DEQUE: "deque", tags.SET: "set", tags.TUPLE: "tuple"}
_MAX_PATH: Final = 16


class Discovery:
    """Finds the tables of one pickle.

    Parameters
    ----------
    state : State
    required : callable
        Says of a field's path whether a change of its shape is an error.
    """

    def __init__(self, state: State, required: Callable[[tuple[Step, ...]], bool]) -> None:
        self._state = state
        self._required = required

    # --- when the machine asks --------------------------------------------------------------------------

    def big_container(self) -> None:
        """A container has outgrown one batch: its items become rows of a table, if they are alike."""
        state = self._state
        address, tag = state.register(registers.R_ADDRESS), state.register(registers.R_TAG)
        index = state.stack_index(tag, address)
        path = self._path(index) if index is not None else ()
        if tag == tags.DICT:
            made = self.dict_table(address, path)
        elif self.look_for_adjacency():
            return
        else:
            made = self.list_table(tag, address, path)
        if made:
            self._refresh_marks()

    def overflow(self) -> None:
        """Thousands of values lie above one mark: a huge tuple, or a batch larger than picklers write."""
        state = self._state
        mark = state.register(registers.R_MARKS) - 1
        base = int(state.marks.height[mark])
        owner = int(state.stacks.tag[base - 1]) if base > 0 else tags.RAW
        table = -1
        if owner in _LISTS and state.marks.table[mark] > 0:
            table = int(state.marks.table[mark]) - 1
        elif owner != tags.DICT:
            values = self._values(state.stacked(base, base + _SAMPLES))
            shape = merge_all(values) if values else Shape(plan.K_SKIP)
            # Plain numbers stay: a state of thousands of components is one value, not a table.
            scalar = shape.kind in (plan.K_INT, plan.K_FLOAT, plan.K_BOOL)
            if _tabular(shape) and not scalar:
                table = self._add(self._path(base), "tuple", shape)
        if table < 0:
            state.registers[registers.R_FREE_MARK] = mark + 1
            return
        state.marks.over[mark] = state.marks.table[mark] = table + 1
        state.learn(table, int(state.marks.at[mark]) + 1, state.offset)

    def look_for_adjacency(self) -> bool:
        """The heap is full, or a list long: perhaps a dict whose values are lists of edges is being built."""
        state = self._state
        if state.register(registers.R_LOOSE) != 0:
            return False
        for height, (tag, address) in enumerate(state.stacked(0)):
            undecided = tag == tags.DICT and state.heap.slots[address + tags.C_TABLE] == 0
            if undecided and self._make_adjacency(address, self._path(height)):
                return True
        return False

    def misfit(self) -> None:
        """A value doesn't fit its column: widen the column, leave an unimportant field out, or refuse."""
        state = self._state
        tables = state.tables
        node = state.register(registers.R_NODE)
        info = tables.infos[node]
        if not tables.widen(node, state.register(registers.R_TAG)):
            positional = tables.schemas[info.table].positional
            if info.field < 0 or positional or self._required(tables.infos[info.field].path):
                raise misfit_error(state)
            tables.abandon(node, "its shape varies between records")
        state.templates.drop(info.table)

    # --- tables -----------------------------------------------------------------------------------------

    def list_table(self, tag: int, address: int, path: tuple[Step, ...]) -> bool:
        """Make a table of a list's (tuple's, set's) items and convert what it holds; False when they aren't
        alike."""
        heap = self._state.heap
        items = heap.tuple_items(address) if tag == tags.TUPLE else heap.items(address)
        samples = self._values(items[:_SAMPLES])
        shape = merge_all(samples) if samples else Shape(plan.K_SKIP)
        # Empty slots are skipped among records only; numbers with None between them stay plain values.
        holes = any(part == tags.NONE for part, _ in items[:_SAMPLES])
        records = shape.kind in (plan.K_SEQ, plan.K_DICT, plan.K_OBJ)
        if not _tabular(shape) or self._full() or (holes and not records):
            return self._no_table(tag, address)
        table = self._add(path, _CONTAINERS.get(tag, "list"), shape)
        if tag == tags.TUPLE:
            self._convert(registers.DO_ITEMS, table, address + 1, len(items), 1)
        else:
            self._convert_chunks(registers.DO_ITEMS, table, address, 1)
        return True

    def dict_table(self, address: int, path: tuple[Step, ...]) -> bool:
        """The same for a dict: rows of key and value, or an adjacency."""
        if self._make_adjacency(address, path):
            return True
        heap = self._state.heap
        items = heap.items(address)[: 2 * _SAMPLES]
        if not items:
            return self._no_table(tags.DICT, address)
        keys = merge_all(heap.samples(items[::2]))
        values = merge_all(heap.samples(items[1::2]))
        if not (_tabular(keys) and _tabular(values)) or self._full():
            return self._no_table(tags.DICT, address)
        shape = Shape(plan.K_SEQ, children=((KEY, keys), (VALUE, values)))
        table = self._add(path, "dict", shape, pairs=True)
        self._convert_chunks(registers.DO_ITEMS, table, address, 2)
        return True

    def _make_adjacency(self, address: int, path: tuple[Step, ...]) -> bool:
        """Make the two tables of an adjacency, if the dict is one."""
        state, tables = self._state, self._state.tables
        height = state.stack_index(tags.DICT, address)
        pending = [] if height is None else state.stacked(height + 1)
        found = find_adjacency(state.heap, state.heap.items(address), pending)
        if found is None or self._full():
            return False
        records = self._add(path, "adjacency", found.record)
        links = tables.add_links(path, found.keys, records)
        state.templates.add_table()
        if found.record.kind == plan.K_OBJ:
            tables.table[records, plan.T_ANYWHERE] = 1
        for inner in found.lists:
            self._convert_chunks(registers.DO_ITEMS, records, inner, 1)
            # Its rows are known by number; it isn't the table itself, and may still grow.
            state.heap.slots[inner + tags.C_TABLE] = 0
        state.registers[registers.R_LOOSE] = records + 1
        self._convert_chunks(registers.DO_LINKS, links, address, 2)
        return True

    def _add(self, path: tuple[Step, ...], container: str, shape: Shape, *, pairs: bool = False) -> int:
        if pairs:
            record = "item"
        elif shape.kind == plan.K_OBJ:
            record = self._state.class_name(shape.class_id)
        elif shape.kind == plan.K_DICT:
            record = "dict"
        else:
            record = shape.origin if shape.kind == plan.K_SEQ else "value"
        table = self._state.tables.add(path, container, record, shape, pairs=pairs)
        self._state.templates.add_table()
        return table

    def _full(self) -> bool:
        return len(self._state.tables.schemas) >= MAX_TABLES

    def _no_table(self, tag: int, address: int) -> bool:
        """Remember that a container's items don't make a table: it may be shared, and looked at again."""
        if tag != tags.TUPLE:
            self._state.heap.slots[address + tags.C_TABLE] = -1
        return False

    def _values(self, items: list[tuple[int, int]]) -> list[Any]:
        """Samples as Python values, without the empty slots of a ring."""
        return self._state.heap.samples([item for item in items if item[0] != tags.NONE])

    # --- converting what is on the heap -----------------------------------------------------------------

    def _convert_chunks(self, command: int, table: int, address: int, step: int) -> None:
        """Turn what a container holds into rows, and leave it empty with its table's number."""
        heap, tables = self._state.heap, self._state.tables
        first = tables.num_rows(table)
        for start, count in heap.chunks(address):
            self._convert(command, table, start, count, step)
        slots = heap.slots
        slots[address + tags.C_FIRST] = slots[address + tags.C_LAST] = -1
        heap.tags[address + tags.C_FIRST] = heap.tags[address + tags.C_LAST] = tags.RAW
        slots[address + tags.C_TABLE] = table + 1
        slots[address + tags.C_ROW] = first
        rows = tables.num_rows(table) - first
        slots[address + tags.C_ROWS] = rows
        if command == registers.DO_ITEMS:
            slots[address + tags.C_COUNT] = rows

    def _convert(self, command: int, table: int, start: int, count: int, step: int) -> None:
        """Convert heap slots to rows, handing over full buffers and settling misfits on the way."""
        state = self._state
        while count > 0:
            done = state.convert(command, table, start, count, step)
            start += done
            count -= done
            if count > 0:
                node = state.register(registers.R_NODE)
                if node == -2:
                    raise link_error(state)
                if node < 0:
                    state.tables.flush(table)
                else:
                    self.misfit()

    # --- the stack --------------------------------------------------------------------------------------

    def _refresh_marks(self) -> None:
        """Tell open marks above a list that has become a table so."""
        state = self._state
        for mark in range(state.register(registers.R_MARKS)):
            owner = int(state.marks.height[mark]) - 1
            if owner >= 0 and state.stacks.tag[owner] in _LISTS:
                table = int(state.heap.slots[state.stacks.value[owner] + tags.C_TABLE])
                if table > 0:
                    state.marks.table[mark] = table

    def _path(self, height: int) -> tuple[Step, ...]:
        """Where a value that is still being built will sit in the root object, as far as the stack tells."""
        state = self._state
        stacked = state.stacks.tag
        path: list[Step] = []
        marks = state.marks.height[: state.register(registers.R_MARKS)].tolist()
        while height > 0 and len(path) < _MAX_PATH:
            base = max([mark for mark in marks if mark <= height], default=0)
            if height > base and stacked[height - 1] == tags.OBJ:
                height -= 1
            elif height > base and stacked[height - 1] == tags.TEXT:
                path.append(state.heap.text(int(state.stacks.value[height - 1])))
                height = base - 1 if base > 0 and stacked[base - 1] == tags.DICT else height - 2
            else:
                path.append(height - base)
                height = base - 1
        return tuple(reversed(path))


def _tabular(shape: Shape) -> bool:
    """Whether items of this shape make rows: there is at least one column."""
    return any(leaf.kind not in (plan.K_SKIP, plan.K_NONE) for _, leaf in shape.leaves(()))
