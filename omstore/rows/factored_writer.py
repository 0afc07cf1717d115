"""Writing the factored encoding: rows compared with a factoring, and those that differ kept as patterns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import CorruptStoreError, NotFactoredError, ProofError, UsageError
from omstore.memory import DEFAULT_BUDGET
from omstore.rows.collecting import MergedPatterns, PatternCollector, PatternMemory, merge_collectors
from omstore.rows.dictionary_writer import DictionaryStaging, recode
from omstore.rows.encoding import GraphSize, RowChunk, RowEncoding, next_node_dtype
from omstore.rows.factored import FactoredRows
from omstore.rows.factored_files import block_dtype, write_components
from omstore.rows.factored_tables import Factoring, find_bad_kernel, find_problem
from omstore.rows.ranges import Ticker, chunk_rows, node_ranges, over_ranges

__all__ = ["write_factored"]

_PIECE = 1 << 20  # nodes, or product numbers, at a time
_BATCH_ROWS = 1 << 14  # of exceptional nodes looked at by a thread at a time
_BATCH_EDGES = 1 << 19  # of them gathered at a time: 10 MiB a thread
_MOST_PROBABILITIES = 1 << 16  # distinct ones among exceptions, in product mode
_HINT = "Use --rows dictionary, or --rows auto."


def write_factored(
    source: RowEncoding,
    factoring: Factoring,
    staging: DictionaryStaging,
    *,
    exceptional_nodes: NDArray[np.int64] | None = None,
    code_map: NDArray[Any] | None = None,
    num_outcomes: int | None = None,
    probabilities: NDArray[np.float64] | None = None,
    max_exceptions: float = 0.5,
    threads: int = 2,
    budget: int = DEFAULT_BUDGET,
    tick: Ticker = lambda n: None,
    prefix: str = "rows",
) -> tuple[dict[str, Any], GraphSize]:
    """Store the kernels of a factoring, and the rows that they don't make.

    Every row of the source is compared with the factoring (or those of the nodes named only); a row that
    differs becomes an exception, so what is written is lossless whatever the factoring. The bytes don't
    depend on the threads, nor on the budget.

    Parameters
    ----------
    source : RowEncoding
    factoring : Factoring
        Its codes are those to be written.
    staging : DictionaryStaging
        Where the arrays are written; they are whole, and may be mapped, when this returns.
    exceptional_nodes : (m,) int64, optional
        Ascending: the only nodes with rows that may differ; no other row is read. By default all are.
    code_map : (source's K,) integers, optional
        The outcome code to write for each of the source's; by default they are written as they are.
    num_outcomes : int, optional
        K of what is written; the source's by default.
    probabilities : (source's K,) float64, optional
        In product mode (no combination), where the source doesn't give probabilities as an attribute of its
        chunks: those of its codes. A row whose probabilities aren't the products, to 4 ulp, is an exception.
    max_exceptions : float
        Share of the rows that may be exceptions, unless the nodes are named.
    threads : int
    budget : int
        Bytes of anonymous memory; the exceptions' patterns may take half. Beside them, 20 bytes for each
        exceptional node.
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
    UsageError
        If the factoring or the nodes aren't those of this graph.
    NotFactoredError
        If more rows than `max_exceptions` differ, or exceptions have too many distinct probabilities.
    MemoryBudgetError
        If the exceptions' patterns don't fit.
    ProofError
        If the nodes named weren't all that are exceptional, as far as the number of edges tells.
    CorruptStoreError
        If the source is damaged.
    """
    outcomes = source.size.num_outcomes if num_outcomes is None else num_outcomes
    if factoring.combination is None:
        outcomes = 1
    size = replace(source.size, num_outcomes=outcomes)
    problem = find_problem(factoring, size) or find_bad_kernel(factoring)
    if problem:
        raise UsageError(f"the factoring isn't one of this graph: {problem}")
    description = {"encoding": "factored", "num_outcomes": outcomes}
    description |= write_components(factoring, outcomes, staging, prefix)
    made = _write_products(size, factoring, staging, prefix)
    description |= {"product": factoring.product is not None, "sorted": made.ordered}
    reader = _Reader(source, made, code_map, outcomes, probabilities)
    if exceptional_nodes is None:
        nodes = _find_exceptional(reader, max_exceptions, threads, tick)
    else:
        nodes = _checked_nodes(exceptional_nodes, size)
    found = _Exceptions(reader, nodes, threads, budget)
    if exceptional_nodes is not None:
        tick(int(found.edges.sum()))
    total = _write_first_edges(made, nodes, found.edges, staging, prefix)
    if total != source.size.num_edges:
        raise ProofError(
            f"the components make {total:,} edges with the exceptional nodes named, but the source has "
            f"{source.size.num_edges:,}",
            "Name all nodes with rows that the components don't make, or none.",
        )
    if found.num_rows:
        description["exceptions"] = found.write(staging, prefix)
    return description, replace(size, num_edges=total)


def _write_products(
    size: GraphSize, factoring: Factoring, staging: DictionaryStaging, prefix: str
) -> FactoredRows:
    """Write product numbers and the way back; give the rows that the components make, without exceptions."""
    no_edges = np.zeros(size.num_nodes + 1, np.uint64)  # never touched, so that it takes no memory
    if factoring.product is None:
        return FactoredRows(size, factoring, no_edges)
    num_products, num_nodes = factoring.num_products, size.num_nodes
    if len(factoring.product) != num_nodes:
        raise UsageError(f"there are {len(factoring.product):,} product numbers of {num_nodes:,} nodes")
    product = staging.create_hot(f"{prefix}/product", next_node_dtype(num_products), (num_nodes,))
    node_at = staging.create_hot(f"{prefix}/node_at", next_node_dtype(num_nodes + 1), (num_products,))
    for first in range(0, num_products, _PIECE):
        node_at[first : first + _PIECE] = num_nodes
    ordered, before = True, -1
    for first in range(0, num_nodes, _PIECE):
        numbers = np.asarray(factoring.product[first : first + _PIECE], np.int64)
        if numbers.min() < 0 or numbers.max() >= num_products:
            raise UsageError(f"a product number isn't within 0 to {num_products - 1:,}")
        ordered = ordered and bool((np.diff(numbers, prepend=before) > 0).all())
        before = int(numbers[-1])
        product[first : first + len(numbers)] = numbers
        node_at[numbers] = np.arange(first, first + len(numbers))
    for first in range(0, num_nodes, _PIECE):
        numbers = product[first : first + _PIECE]
        if (node_at[numbers] != np.arange(first, first + len(numbers))).any():
            raise UsageError("two nodes have the same product number")
    return FactoredRows(size, replace(factoring, product=product), no_edges, node_at=node_at, ordered=ordered)


class _Reader:
    """Reads rows of the source in the terms of what is written, and compares them with the components."""

    def __init__(
        self,
        source: RowEncoding,
        made: FactoredRows,
        code_map: NDArray[Any] | None,
        num_outcomes: int,
        probabilities: NDArray[np.float64] | None,
    ) -> None:
        self.source = source
        self.made = made
        self.size = made.size
        self.multiplied = made.combination is None
        self._code_map = code_map
        self._num_outcomes = num_outcomes
        self._probabilities = probabilities

    def sweep(self, first: int, stop: int) -> Iterator[tuple[RowChunk, NDArray[np.int64]]]:
        """Go through the rows of nodes; chunks, and the positions of rows that differ."""
        actions = self.size.num_joint_actions
        for chunk in self.source.sweep(first * actions, stop * actions, chunk_rows(self.source.size)):
            yield self._compared(chunk, None)

    def gather(self, rows: NDArray[np.int64]) -> tuple[RowChunk, NDArray[np.int64]]:
        """Read rows as a chunk, and the positions of those that differ."""
        edges = self.source.gather(rows)
        nodes = edges.next_node.astype(next_node_dtype(self.size.num_nodes))
        return self._compared(RowChunk(0, 0, edges.offsets, nodes, edges.outcome, edges.attributes), rows)

    def _compared(
        self, chunk: RowChunk, rows: NDArray[np.int64] | None
    ) -> tuple[RowChunk, NDArray[np.int64]]:
        expected = self._chances(chunk) if self.multiplied else None
        recoded = recode(chunk, self._code_map, self._num_outcomes)
        if expected is not None:
            recoded = replace(recoded, attributes={"probability": expected})
        return recoded, self.made.find_different(recoded, rows, probabilities=expected)

    def _chances(self, chunk: RowChunk) -> NDArray[np.float64]:
        if "probability" in chunk.attributes:
            return np.asarray(chunk.attributes["probability"], np.float64)
        if self._probabilities is None:
            raise UsageError("probabilities are products, but the source gives none to compare them with")
        codes = np.zeros(len(chunk.next_node), np.uint8) if chunk.outcome is None else chunk.outcome
        chances: NDArray[np.float64] = np.asarray(self._probabilities, np.float64)[codes]
        return chances


def _find_exceptional(
    reader: _Reader, max_exceptions: float, threads: int, tick: Ticker
) -> NDArray[np.int64]:
    """Compare every row with what the components make; the nodes of rows that differ, ascending."""
    size = reader.source.size
    most = int(max_exceptions * size.num_rows)
    found: dict[int, list[NDArray[np.int64]]] = {}
    counts = {"rows": 0, "edges": 0}
    lock = threading.Lock()

    def find(thread: int, first: int, stop: int) -> None:
        nodes: list[NDArray[np.int64]] = []
        for chunk, differ in reader.sweep(first, stop):
            nodes.append(np.unique((chunk.first_row + differ) // size.num_joint_actions))
            with lock:
                counts["rows"] += len(differ)
                counts["edges"] += int(chunk.offsets[-1])
                tick(int(chunk.offsets[-1]))
                if counts["rows"] > most:
                    raise NotFactoredError(
                        f"more than {most:,} of {size.num_rows:,} rows ({max_exceptions:.0%}) aren't what "
                        f"{len(reader.made.components)} independent components make",
                        _HINT,
                    )
        with lock:
            found[first] = nodes

    over_ranges(node_ranges(size), find, threads)
    if counts["edges"] != size.num_edges:
        raise CorruptStoreError(f"{counts['edges']:,} edges were read instead of {size.num_edges:,}")
    parts = [part for first in sorted(found) for part in found[first]]
    # A node's rows may have come in two chunks.
    return np.unique(np.concatenate([np.empty(0, np.int64), *parts]))


def _checked_nodes(nodes: NDArray[np.int64], size: GraphSize) -> NDArray[np.int64]:
    nodes = np.asarray(nodes, np.int64)
    if len(nodes) and not (nodes[0] >= 0 and nodes[-1] < size.num_nodes and (np.diff(nodes) > 0).all()):
        raise UsageError(f"exceptional nodes must ascend within 0 to {size.num_nodes - 1:,}")
    return nodes


class _Exceptions:
    """The rows of some nodes that the components don't make, as patterns.

    Attributes
    ----------
    num_rows : int
        Rows that are exceptions.
    edges : (m,) int64
        Of each node, all of its rows together.
    """

    def __init__(self, reader: _Reader, nodes: NDArray[np.int64], threads: int, budget: int) -> None:
        self._reader = reader
        self._nodes = nodes
        self.edges = np.zeros(len(nodes), np.int64)
        self._blocks = np.zeros(len(nodes), np.uint32)
        self._values: NDArray[np.float64] | None = None
        self.num_rows = 0
        actions, num_nodes = reader.size.num_joint_actions, reader.size.num_nodes
        step = max(1, _BATCH_ROWS // actions)
        ranges = [(first, min(first + step, len(nodes))) for first in range(0, len(nodes), step)]
        outcomes = reader.size.num_outcomes
        if reader.multiplied and ranges:
            self._values = self._find_values(ranges, threads)
            outcomes = len(self._values)
        memory = PatternMemory(budget // 2)
        # The collector takes consecutive nodes, so the exceptional ones are numbered one by one, from N on, and
        # their next nodes moved along: differences stay as they are.
        collectors = [
            PatternCollector(3 * num_nodes, actions, outcomes, num_positions=num_nodes, memory=memory)
            for _ in range(max(1, threads))
        ]
        taken: list[list[tuple[int, int]]] = [[] for _ in collectors]
        lock = threading.Lock()

        def collect(thread: int, first: int, stop: int) -> None:
            taken[thread].append((first, stop))
            done = first
            kept = 0
            for chunk, rows, differ in self._batches(first, stop):
                keep = _kept_rows(rows // actions, differ)
                kept += int(np.count_nonzero(keep))
                counts = np.diff(chunk.offsets)
                own = rows // actions
                sums = np.bincount(own - own[0], counts).astype(np.int64)  # exact below 2^53
                self.edges[own[0] : own[-1] + 1] += sums
                shift = num_nodes + own - nodes[own]
                moved = chunk.next_node.astype(np.int64) + np.repeat(shift, counts)
                first_row = num_nodes * actions + int(rows[0])
                moved_chunk = RowChunk(first_row, 0, chunk.offsets, moved, self._codes(chunk, keep))
                blocks = collectors[thread].add(moved_chunk, keep)
                self._blocks[done : done + len(blocks)] = blocks
                done += len(blocks)
            with lock:
                self.num_rows += kept

        over_ranges(ranges, collect, threads)
        self._merged: MergedPatterns = merge_collectors(collectors)
        for collector, own_ranges in enumerate(taken):
            for first, stop in own_ranges:
                self._blocks[first:stop] = self._merged.blocks_of(collector, self._blocks[first:stop], 0, 1)

    def write(self, staging: DictionaryStaging, prefix: str) -> dict[str, int]:
        """Write the patterns and every node's block; return what the manifest says of them."""
        apart, num_nodes = f"{prefix}/exceptions", self._reader.size.num_nodes
        self._merged.write(staging, apart)
        counts = self._merged.counts
        with staging.hot(f"{apart}/block", block_dtype(counts.num_blocks)) as writer:
            for first in range(0, num_nodes, _PIECE):
                stop = min(first + _PIECE, num_nodes)
                begin, end = np.searchsorted(self._nodes, [first, stop])
                blocks = np.zeros(stop - first, block_dtype(counts.num_blocks))
                blocks[self._nodes[begin:end] - first] = self._blocks[begin:end]
                writer.append(blocks)
        if self._values is not None:
            staging.write_hot(f"{apart}/probability", self._values)
        self._merged.release()
        return {
            "nodes": int(np.count_nonzero(self._blocks)),
            "rows": self.num_rows,
            "patterns": counts.num_patterns,
            "blocks": counts.num_blocks,
        }

    def _batches(
        self, first: int, stop: int
    ) -> Iterator[tuple[RowChunk, NDArray[np.int64], NDArray[np.int64]]]:
        """Read the rows of exceptional nodes first..stop-1, a bounded number of edges at a time.

        Rows are numbered as if there were no other nodes.
        """
        actions = self._reader.size.num_joint_actions
        numbers = np.arange(first * actions, stop * actions)
        rows = (self._nodes[first:stop, None] * actions + np.arange(actions)).reshape(-1)
        ends = np.cumsum(self._reader.source.outdegree(rows))
        begin = done = 0
        while begin < len(rows):
            end = max(begin + 1, int(np.searchsorted(ends, done + _BATCH_EDGES, side="right")))
            # Whole nodes where one fits, so that what is kept of a node depends on none of its neighbours.
            if end // actions > begin // actions:
                end -= end % actions
            chunk, differ = self._reader.gather(rows[begin:end])
            yield chunk, numbers[begin:end], differ
            begin, done = end, int(ends[end - 1])

    def _find_values(self, ranges: list[tuple[int, int]], threads: int) -> NDArray[np.float64]:
        """Find the distinct probabilities of exceptions, ascending."""
        values: set[float] = set()
        lock = threading.Lock()

        def find(thread: int, first: int, stop: int) -> None:
            for chunk, rows, differ in self._batches(first, stop):
                kept = _kept_rows(rows // self._reader.size.num_joint_actions, differ) > 0
                own = np.unique(chunk.attributes["probability"][np.repeat(kept, np.diff(chunk.offsets))])
                with lock:
                    values.update(own.tolist())
                    if len(values) > _MOST_PROBABILITIES:
                        raise NotFactoredError(
                            f"rows that don't factor have more than {_MOST_PROBABILITIES:,} distinct "
                            "probabilities",
                            "Use --rows csr-compressed.",
                        )

        over_ranges(ranges, find, threads)
        return np.array(sorted(values) or [1.0])  # exceptions without edges have none

    def _codes(self, chunk: RowChunk, keep: NDArray[np.uint8]) -> NDArray[Any] | None:
        """Outcome codes; in product mode, places in the table of the exceptions' probabilities."""
        if self._values is None:
            return chunk.outcome
        if len(self._values) == 1:
            return None
        codes = np.searchsorted(self._values, chunk.attributes["probability"])
        return np.minimum(codes, len(self._values) - 1)  # of rows that factor any will do


def _kept_rows(nodes: NDArray[np.int64], differ: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Which rows to keep as patterns: those that differ, and where these are most of a node's, all of it.

    A node without a row that factors has its rows' first edges in a table. (In an absorbing state, a joint
    action under which nobody moves factors, but the others don't.)
    """
    place = nodes - nodes[0]
    counts = np.bincount(place)
    exceptional = np.bincount(place[differ], minlength=len(counts))
    keep: NDArray[np.uint8] = (2 * exceptional > counts)[place].astype(np.uint8)
    keep[differ] = 1
    return keep


def _write_first_edges(
    made: FactoredRows,
    nodes: NDArray[np.int64],
    edges: NDArray[np.int64],
    staging: DictionaryStaging,
    prefix: str,
) -> int:
    """Write the number of each node's first edge; return how many edges there are."""
    num_nodes = made.size.num_nodes
    total = 0
    with staging.hot(f"{prefix}/first_edge", np.uint64) as writer:
        for first in range(0, num_nodes, _PIECE):
            stop = min(first + _PIECE, num_nodes)
            counts = made.node_edges(first, stop)
            begin, end = np.searchsorted(nodes, [first, stop])
            counts[nodes[begin:end] - first] = edges[begin:end]
            ends = np.cumsum(counts)
            writer.append((total + ends - counts).astype(np.uint64))
            total += int(ends[-1])
        writer.append(np.array([total], np.uint64))
    return total
