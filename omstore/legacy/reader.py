"""Read a legacy pickle in bounded memory: two passes over the mapped bytes, tables to a sink, a small tree
back.

Nothing in the pickle is imported or executed. Memory is bounded by the row buffers (2 MiB a table), the
heap of values still needed, and 32 bytes for every distinct object that the pickle shares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from omstore.legacy.discovery import Discovery
from omstore.legacy.machine import registers
from omstore.legacy.names import plays_a_part
from omstore.legacy.refusals import machine_error
from omstore.legacy.scan import Scan, scan
from omstore.legacy.schema import PickleTree, Sink, Step, TableSchema
from omstore.legacy.source import PickleSource
from omstore.legacy.state import State
from omstore.legacy.tree import Tree
from omstore.memory import DEFAULT_BUDGET

__all__ = ["DiscardRows", "read_pickle"]

_STEP: Final = 32 << 20


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
        Says of a field's path whether a change of its shape is an error; other fields are left out, with a
        note, when their shape changes. By default the fields whose names play a part.
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
        size = source.size

        def report(reached: int) -> None:
            if progress is not None:
                progress(reached, 2 * size)

        passed = scan(
            source.data,
            source.name,
            budget=budget // 3,
            cancel=cancel,
            progress=report,
            release=source.release,
        )
        state = State(source.data, source.name, passed, sink, budget)
        discovery = Discovery(state, required or plays_a_part)
        _run(state, discovery, source, passed, cancel, report)
        root = Tree(state, discovery).root()
        tables = state.tables
        tables.flush_all()
        for schema in tables.schemas:
            schema.num_rows = tables.num_rows(schema.id)
        notes = []
        if passed.stop < size:
            notes.append(f"{size - passed.stop:,} bytes follow the pickle's end and were not read")
        return PickleTree(root, tables.schemas, passed.protocol, size, notes)


def _run(
    state: State,
    discovery: Discovery,
    source: PickleSource,
    passed: Scan,
    cancel: threading.Event | None,
    report: Callable[[int], None],
) -> None:
    """Pass 2: run the machine to STOP, and do what it asks for on the way."""
    released = 0
    while (event := state.run(min(passed.stop, released + _STEP))) != registers.EV_STOP:
        _handle(event, state, discovery)
        if event == registers.EV_LIMIT:
            report(source.size + state.offset)
        if state.offset - released >= _STEP:
            source.release(released, state.offset)
            released = state.offset
        if cancel is not None and cancel.is_set():
            raise KeyboardInterrupt


def _handle(event: int, state: State, discovery: Discovery) -> None:
    """What the machine stopped for."""
    if event == registers.EV_FLUSH:
        state.tables.flush(state.register(registers.R_TABLE))
    elif event == registers.EV_LEARN:
        begin, end = state.register(registers.R_ADDRESS), state.register(registers.R_VALUE)
        state.learn(state.register(registers.R_TABLE), begin, end)
    elif event == registers.EV_COLLECT:
        need = state.register(registers.R_ADDRESS)
        discovery.look_for_adjacency()
        state.collect(need)
    elif event == registers.EV_STACK:
        state.grow_stack()
    elif event == registers.EV_MARKS:
        state.grow_marks()
    elif event == registers.EV_GLOBAL:
        state.add_global()
    elif event == registers.EV_BIG:
        discovery.big_container()
    elif event == registers.EV_OVERFLOW:
        discovery.overflow()
    elif event == registers.EV_MISFIT:
        discovery.misfit()
    elif event == registers.EV_ERROR:
        raise machine_error(state)
