"""Writing the dictionary encoding: one pass over the rows, by several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, UsageError
from omstore.format.hot import drop_pages
from omstore.memory import DEFAULT_BUDGET
from omstore.rows import dictionary_checks
from omstore.rows.collecting import PatternCollector, PatternCounts, PatternMemory, merge_collectors
from omstore.rows.encoding import GraphSize, RowChunk, RowEncoding, next_node_dtype, outcome_dtype
from omstore.rows.ranges import Ticker, chunk_rows, node_ranges, over_ranges
from omstore.rows.write import Staging

__all__ = ["DictionaryStaging", "collect_patterns", "recode", "write_dictionary"]

_PIECE = 1 << 20  # nodes at a time


class DictionaryStaging(Staging, Protocol):
    """What writing a dictionary needs of a version in the making."""

    def create_hot(self, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
        """Make a hot array of zeros, mapped and writable, to be filled in any order until publishing."""
        ...


def write_dictionary(
    source: RowEncoding,
    staging: DictionaryStaging,
    *,
    positions: NDArray[np.uint64] | None = None,
    num_positions: int | None = None,
    num_outcomes: int | None = None,
    code_map: NDArray[Any] | None = None,
    threads: int = 2,
    budget: int = DEFAULT_BUDGET,
    tick: Ticker = lambda n: None,
    prefix: str = "rows",
) -> tuple[dict[str, Any], GraphSize]:
    """Store every distinct row of a graph once.

    The rows are read once, in ranges of nodes; every row is compared in full with the pattern it is stored
    as. Patterns, lists and blocks are numbered by first appearance: the bytes don't depend on the threads,
    nor on the budget.

    Parameters
    ----------
    source : RowEncoding
    staging : DictionaryStaging
        Where the arrays are written; they are whole, and may be mapped, when this returns.
    positions : (N,) uint64, optional
        Where each node stands, ascending; by default positions are nodes.
    num_positions : int, optional
        Positions in all; needed with `positions`.
    num_outcomes : int, optional
        K of what is written; the source's by default.
    code_map : (source's K,) integers, optional
        The outcome code to write for each of the source's; by default they are written as they are.
    threads : int
    budget : int
        Bytes of anonymous memory; the patterns may take three quarters.
    tick : callable
        Told the number of edges read.
    prefix : str
        Where in the version.

    Returns
    -------
    description : dict
        ``manifest.rows``.
    size : GraphSize

    Raises
    ------
    MemoryBudgetError
        Where the distinct rows don't fit the budget, with the numbers.
    UsageError
        Where positions don't ascend or aren't within `num_positions`.
    CorruptStoreError
        Where the source is damaged.
    """
    outcomes = source.size.num_outcomes if num_outcomes is None else num_outcomes
    size = replace(source.size, num_outcomes=outcomes)
    placed = positions is not None
    if placed and num_positions is None:
        raise UsageError("positions were given without their number")
    held = None if positions is None else _write_positions(positions, num_positions or 0, staging, prefix)
    block = staging.create_hot(f"{prefix}/block", np.uint32, (size.num_nodes,))
    first_edge = staging.create_hot(f"{prefix}/first_edge", np.uint64, (size.num_nodes + 1,))
    memory = PatternMemory(budget * 3 // 4)
    collectors = [
        PatternCollector(
            size.num_nodes,
            size.num_joint_actions,
            outcomes,
            positions=held,
            num_positions=num_positions if placed else None,
            memory=memory,
        )
        for _ in range(max(1, threads))
    ]
    taken: list[list[tuple[int, int]]] = [[] for _ in collectors]
    actions, step = size.num_joint_actions, chunk_rows(size)
    lock = threading.Lock()

    def collect(thread: int, first: int, stop: int) -> None:
        taken[thread].append((first, stop))
        done = first
        for chunk in source.sweep(first * actions, stop * actions, step):
            blocks = collectors[thread].add(recode(chunk, code_map, outcomes))
            block[done : done + len(blocks)] = blocks
            done += len(blocks)
            _number(chunk, actions, first_edge)
            with lock:
                tick(int(chunk.offsets[-1]))

    over_ranges(node_ranges(size), collect, threads)
    merged = merge_collectors(collectors)
    if merged.counts.num_edges != size.num_edges:
        raise CorruptStoreError(f"{merged.counts.num_edges:,} edges were read instead of {size.num_edges:,}")
    first_edge[size.num_nodes] = size.num_edges
    merged.write(staging, prefix)
    for collector, ranges in enumerate(taken):
        for first, stop in ranges:
            for begin in range(first, stop, _PIECE):
                part = block[begin : min(begin + _PIECE, stop)]
                part[:] = merged.blocks_of(collector, part, 0, 0)
    counts = merged.counts
    merged.release()
    description: dict[str, Any] = {
        "encoding": "dictionary",
        "num_outcomes": outcomes,
        "num_patterns": counts.num_patterns,
        "num_blocks": counts.num_blocks,
        "num_lists": counts.num_lists,
    }
    if placed:
        description["num_positions"] = num_positions
    return description, size


def collect_patterns(
    source: RowEncoding,
    ranges: Iterable[tuple[int, int]],
    *,
    positions: NDArray[np.uint64] | None = None,
    num_positions: int | None = None,
    num_outcomes: int | None = None,
    code_map: NDArray[Any] | None = None,
    budget: int = DEFAULT_BUDGET,
) -> list[PatternCounts]:
    """Count what the dictionary of some nodes' rows would hold, writing nothing.

    Parameters
    ----------
    source : RowEncoding
    ranges : iterable of (first node, stop node)
        In any order.
    positions, num_positions, num_outcomes, code_map, budget
        As in :func:`write_dictionary`.

    Returns
    -------
    list of PatternCounts
        After each range, of all until then: how they grow tells what the whole graph would take.

    Raises
    ------
    MemoryBudgetError
        Where the distinct rows don't fit the budget.
    """
    outcomes = source.size.num_outcomes if num_outcomes is None else num_outcomes
    actions, step = source.size.num_joint_actions, chunk_rows(source.size)
    collector = PatternCollector(
        source.size.num_nodes,
        actions,
        outcomes,
        positions=positions,
        num_positions=num_positions if positions is not None else None,
        memory=PatternMemory(budget * 3 // 4),
    )
    counts = []
    for first, stop in ranges:
        for chunk in source.sweep(first * actions, stop * actions, step):
            collector.add(recode(chunk, code_map, outcomes))
        counts.append(collector.counts())
    return counts


def recode(chunk: RowChunk, code_map: NDArray[Any] | None, num_outcomes: int) -> RowChunk:
    """Give a chunk with the outcome codes of another table.

    Parameters
    ----------
    chunk : RowChunk
    code_map : (source's K,) integers, or None
        The new code of each; None: they are the same.
    num_outcomes : int
        The new K; with 1 the chunk has no codes.

    Raises
    ------
    CorruptStoreError
        If the chunk has a code that isn't in the map.
    """
    if num_outcomes == 1:
        return chunk if chunk.outcome is None else replace(chunk, outcome=None)
    dtype = outcome_dtype(num_outcomes)
    if chunk.outcome is None:  # there was one outcome only
        code = 0 if code_map is None else code_map[0]
        return replace(chunk, outcome=np.full(len(chunk.next_node), code, dtype))
    if code_map is None:
        return chunk
    table = as_input(code_map, dtype)
    if chunk.outcome.dtype.itemsize > 1 or len(table) < 1 << 8:
        highest = int(chunk.outcome.max()) if len(chunk.outcome) else 0
        if len(chunk.outcome) and highest >= len(table):
            raise CorruptStoreError(f"outcome code {highest} isn't within 0 to {len(table) - 1:,}")
    return replace(chunk, outcome=table[chunk.outcome])


def _number(chunk: RowChunk, actions: int, first_edge: NDArray[np.uint64]) -> None:
    """Enter the first edges of the nodes that begin in a chunk."""
    begin = -chunk.first_row % actions
    starts = chunk.offsets[:-1][begin::actions]
    node = (chunk.first_row + begin) // actions
    first_edge[node : node + len(starts)] = (starts + chunk.first_edge).astype(np.uint64)


def _write_positions(
    positions: NDArray[np.uint64], num_positions: int, staging: DictionaryStaging, prefix: str
) -> NDArray[Any]:
    """Write where nodes stand, and which node stands where; give the first, mapped."""
    num_nodes = len(positions)
    held = staging.create_hot(f"{prefix}/position", next_node_dtype(num_positions), (num_nodes,))
    node_at = staging.create_hot(f"{prefix}/node_at", next_node_dtype(num_nodes), (num_positions,))
    for first in range(0, num_positions, _PIECE):
        node_at[first : first + _PIECE] = num_nodes
    last = -1
    for first in range(0, num_nodes, _PIECE):
        part = np.ascontiguousarray(positions[first : first + _PIECE], np.uint64)
        wrong = dictionary_checks.fill_nodes(part, first, node_at)
        if wrong >= 0 or int(part[0]) <= last:
            raise UsageError(
                f"the position of node {first + max(wrong, 0)} isn't larger than the one before, or isn't "
                f"within 0 to {num_positions - 1:,}"
            )
        last = int(part[-1])
        held[first : first + len(part)] = part
    drop_pages(node_at)
    return held
