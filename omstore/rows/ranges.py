"""Going through the rows of a graph in ranges of nodes, by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from omstore.rows.encoding import GraphSize

__all__ = ["Ticker", "chunk_rows", "node_ranges", "over_ranges"]

Ticker = Callable[[int], object]
"""Told how many edges were done."""

RANGE_EDGES = 1 << 23
"""Edges of a range: a second's work at most, so that threads end together."""

CHUNK_EDGES = 1 << 19
"""Edges of a chunk: a few MiB, which the last level of caches holds; calls from Python are few (measured)."""


def node_ranges(size: GraphSize, range_edges: int = RANGE_EDGES) -> Iterator[tuple[int, int]]:
    """Cut all nodes into ranges of about `range_edges` edges, were the edges spread evenly."""
    edges_per_node = max(1, size.num_edges // max(1, size.num_nodes), size.num_joint_actions)
    step = max(1, range_edges // edges_per_node)
    for first in range(0, size.num_nodes, step):
        yield first, min(first + step, size.num_nodes)


def chunk_rows(size: GraphSize, chunk_edges: int = CHUNK_EDGES) -> int:
    """Return how many rows have about `chunk_edges` edges, were the edges spread evenly.

    Whole nodes, where at least one has as few.
    """
    rows = max(1, chunk_edges * size.num_rows // max(1, size.num_edges, size.num_rows))
    return rows - rows % size.num_joint_actions if rows > size.num_joint_actions else rows


def over_ranges(
    ranges: Iterator[tuple[int, int]] | Sequence[tuple[int, int]],
    work: Callable[[int, int, int], object],
    threads: int,
) -> None:
    """Call ``work(thread, first, stop)`` for every range, each thread taking the next one in order.

    After an exception no more ranges are begun, and that of the first range that failed is raised: the same
    one whatever the number of threads.
    """
    remaining = iter(ranges)
    lock = threading.Lock()
    failures: list[tuple[int, BaseException]] = []

    def take() -> tuple[int, int] | None:
        with lock:
            return None if failures else next(remaining, None)

    def run(thread: int) -> None:
        while (taken := take()) is not None:
            try:
                work(thread, *taken)
            except BaseException as error:
                with lock:
                    failures.append((taken[0], error))

    if threads <= 1:
        run(0)
    else:
        with ThreadPoolExecutor(threads, thread_name_prefix="rows") as pool:
            for future in [pool.submit(run, thread) for thread in range(threads)]:
                future.result()
    if failures:
        raise min(failures, key=lambda failure: failure[0])[1]
