"""A sample of the rows, looked at once: how patterns grow, how edges compress, what factors.

Ranges of nodes spread over the graph are swept. Their rows' patterns are collected as the dictionary would
collect them; a part of the edges is compressed; rows are compared with the factoring, where one was found.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.encode.growth import Growth, SampledPatterns
from omstore.encode.sampling import NodeSample, sample_nodes
from omstore.publish.scratch import ScratchArrays
from omstore.rows import GraphSize, RowChunk, RowEncoding
from omstore.rows.compressed import delta_dtype
from omstore.rows.encoding import next_node_dtype, outcome_dtype
from omstore.rows.factored import FactoredRows, Factoring
from omstore.rows.ranges import chunk_rows
from omstore.rows.write import CHUNK_EDGES, DELTA_LEVEL

__all__ = ["COMPRESSED_EDGES", "Survey", "bare_factored", "survey_rows"]

Ticker = Callable[[int], object]

COMPRESSED_EDGES = 1 << 21
"""Edges of a sample that are compressed."""


@dataclass
class Survey:
    """What was seen of a sample of rows.

    Attributes
    ----------
    sample : NodeSample
    size : GraphSize
        Of the whole graph.
    num_rows, num_edges, num_legal_rows : int
        In the sample.
    uniform : int or None
        Outdegree of every row seen.
    patterns, blocks : Growth or None
        Bytes of the dictionary's patterns and of its blocks; None where they weren't looked at.
    pattern_share : float
        Share of the graph that they were collected from, 0 to 1: less than the sample's where there were too
        many, and then they are taken to grow in proportion.
    num_patterns : int
    pattern_memory : int
        Bytes that collecting them took.
    factoring : Factoring or None
        That rows were compared with.
    exceptions : Growth or None
        Bytes of the patterns and blocks of what doesn't factor; None without a factoring.
    num_exception_blocks : int
        Distinct lists of a node's rows among them.
    too_many_exceptions : bool
        Whether there were too many to collect.
    num_exceptional, num_exceptional_rows, num_interacting_rows : int
        Nodes with a row that doesn't factor, such rows, and those of them that lead elsewhere: not the rows
        of absorbing states.
    delta_bytes, code_bytes, outdegree_bytes : float
        Compressed, of an edge, an edge and a row.
    seconds : dict of str to float
        An edge's, of: ``sweep``, ``collect``, ``compress``, ``compare``; as they were in the second half.
    """

    sample: NodeSample
    size: GraphSize
    num_rows: int = 0
    num_edges: int = 0
    num_legal_rows: int = 0
    uniform: int | None = None
    patterns: Growth | None = None
    blocks: Growth | None = None
    pattern_share: float = 1.0
    num_patterns: int = 0
    pattern_memory: int = 0
    factoring: Factoring | None = None
    exceptions: Growth | None = None
    num_exception_blocks: int = 0
    too_many_exceptions: bool = False
    num_exceptional: int = 0
    num_exceptional_rows: int = 0
    num_interacting_rows: int = 0
    delta_bytes: float = 0.0
    code_bytes: float = 0.0
    outdegree_bytes: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)


def survey_rows(
    source: RowEncoding,
    scratch: Path,
    *,
    positions: NDArray[Any] | None = None,
    num_positions: int | None = None,
    dictionary: bool = True,
    compressed: bool = True,
    factoring: Factoring | None = None,
    seed: int = 0,
    edges: int | None = None,
    tick: Ticker = lambda n: None,
) -> Survey:
    """Sweep a sample of the rows, and see what the encodings would make of them.

    Parameters
    ----------
    source : RowEncoding
    scratch : Path
        Folder for what is compressed; emptied afterwards.
    positions, num_positions
        Where nodes stand, as the dictionary is given them.
    dictionary, compressed : bool
        Whether to look at these encodings.
    factoring : Factoring, optional
        To compare the rows with.
    seed, edges : int
        Of the sample; see `sample_nodes`.
    tick : callable
        Called with numbers of edges read.

    Notes
    -----
    Memory: at most 24 MiB of patterns, chunks of 2^17 edges, the compressor's buffers.
    """
    size = source.size
    sample = sample_nodes(size, seed=seed) if edges is None else sample_nodes(size, seed=seed, edges=edges)
    survey = Survey(sample, size)
    run = _Run(source, survey, ScratchArrays(scratch))
    if dictionary:
        run.patterns.begin(positions, num_positions)
    if factoring is not None:
        run.begin_comparing(factoring)
    try:
        for number, part in enumerate(sample.quarters()):
            if number == 2:
                run.restart_clocks()
            for first, stop in part:
                for chunk in run.chunks(first, stop):
                    run.look(chunk, compressed)
                    tick(len(chunk.next_node))
            run.note_growth()
        run.finish()
    finally:
        run.arrays.remove()
    return survey


def bare_factored(size: GraphSize, factoring: Factoring) -> FactoredRows:
    """Make factored rows of a factoring alone: without exceptions, and edges numbered from 0 in every node.

    Enough to compare rows with, and to see how fast rows are made. Memory: 8 bytes a node, untouched; and 4 to
    8 for each product number where product numbers aren't nodes.
    """
    node_at, ordered = None, True
    if factoring.product is not None:
        product = np.asarray(factoring.product)
        node_at = np.full(factoring.num_products, len(product), next_node_dtype(len(product) + 1))
        node_at[product] = np.arange(len(product))
        ordered = bool((product[1:] > product[:-1]).all())
    if factoring.combination is None:  # probabilities are multiplied, not coded
        size = replace(size, num_outcomes=1)
    none = np.zeros(size.num_nodes + 1, np.uint64)
    return FactoredRows(size, factoring, none, node_at=node_at, ordered=ordered)


class _Run:
    """The state of one survey."""

    def __init__(self, source: RowEncoding, survey: Survey, arrays: ScratchArrays) -> None:
        self.source = source
        self.survey = survey
        self.arrays = arrays
        self.patterns = SampledPatterns(source.size)
        self.exceptions = SampledPatterns(source.size)
        self.factored: FactoredRows | None = None
        self._last_exceptional = -1
        self._clocked = 0, 0  # edges, and edges collected, when clocks were started
        self._outdegrees: set[int] = set()
        self._seconds = {"sweep": 0.0, "collect": 0.0, "compress": 0.0, "compare": 0.0}
        self._compressed_edges = self._compressed_rows = 0
        codes = outcome_dtype(source.size.num_outcomes)
        self._delta = arrays.cold(
            "delta", delta_dtype(source.size.num_nodes), chunk_rows=CHUNK_EDGES, level=DELTA_LEVEL
        )
        self._code = arrays.cold("code", codes, chunk_rows=CHUNK_EDGES, shuffle=True)
        self._outdegree = arrays.cold("outdegree", np.uint32, chunk_rows=CHUNK_EDGES)

    def begin_comparing(self, factoring: Factoring) -> None:
        self.survey.factoring = factoring
        self.factored = bare_factored(self.source.size, factoring)
        self.exceptions.begin()

    def chunks(self, first: int, stop: int) -> Iterator[RowChunk]:
        """Sweep nodes, measuring what that takes."""
        size = self.source.size
        rows = chunk_rows(size)
        sweep = self.source.sweep(first * size.num_joint_actions, stop * size.num_joint_actions, rows)
        while True:
            begin = time.perf_counter()
            chunk = next(sweep, None)
            self._seconds["sweep"] += time.perf_counter() - begin
            if chunk is None:
                return
            yield chunk

    def look(self, chunk: RowChunk, compressed: bool) -> None:
        """Count, collect and compress the rows of a chunk."""
        survey = self.survey
        outdegree = np.diff(chunk.offsets)
        if len(self._outdegrees) < 2:
            self._outdegrees |= {int(outdegree.min()), int(outdegree.max())}
        survey.num_rows += len(outdegree)
        survey.num_edges += len(chunk.next_node)
        survey.num_legal_rows += int(np.count_nonzero(outdegree))
        with self._timed("collect"):
            self.patterns.add(chunk)
        if self.factored is not None:
            with self._timed("compare"):
                self._compare(chunk, self.factored)
        if compressed and self._compressed_edges < COMPRESSED_EDGES:
            with self._timed("compress"):
                self._compress(chunk, outdegree)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - begin

    def _compare(self, chunk: RowChunk, factored: FactoredRows) -> None:
        survey = self.survey
        coded = factored.size.num_outcomes > 1
        differ = factored.find_different(chunk if coded else replace(chunk, outcome=None))
        if not len(differ):
            return
        keep = np.zeros(len(chunk.offsets) - 1, np.uint8)
        keep[differ] = 1
        self.exceptions.add(chunk, keep)
        at = (chunk.first_row + differ) // self.source.size.num_joint_actions
        alone = np.flatnonzero(np.diff(chunk.offsets)[differ] == 1)
        loops = chunk.next_node[chunk.offsets[:-1][differ[alone]]] == at[alone]
        survey.num_interacting_rows += len(differ) - int(np.count_nonzero(loops))
        nodes = np.unique(at)
        survey.num_exceptional_rows += len(differ)
        survey.num_exceptional += len(nodes) - int(nodes[0] == self._last_exceptional)
        self._last_exceptional = int(nodes[-1])

    def _compress(self, chunk: RowChunk, outdegree: NDArray[np.int64]) -> None:
        size = self.source.size
        rows = np.arange(chunk.first_row, chunk.first_row + len(outdegree)) // size.num_joint_actions
        deltas = chunk.next_node.astype(np.int64) - np.repeat(rows, outdegree)
        self._delta.append(deltas.astype(self._delta.dtype))
        self._outdegree.append(outdegree.astype(np.uint32))
        if chunk.outcome is not None:
            self._code.append(chunk.outcome.astype(self._code.dtype))
        self._compressed_edges += len(deltas)
        self._compressed_rows += len(outdegree)

    def restart_clocks(self) -> None:
        """Forget how long things took so far: kernels were loaded, and most patterns were new."""
        self._seconds |= {"sweep": 0.0, "collect": 0.0, "compare": 0.0}
        self._clocked = self.survey.num_edges, self.patterns.num_edges

    def note_growth(self) -> None:
        """Remember how much there is of everything after a part of the sample."""
        self.patterns.note_growth()
        self.exceptions.note_growth()

    def finish(self) -> None:
        survey = self.survey
        survey.pattern_memory = self.patterns.used
        survey.num_patterns = self.patterns.num_patterns
        found = self.patterns.growth()
        if found is not None:
            survey.patterns, survey.blocks = found
            survey.pattern_share = survey.sample.share
            if self.patterns.overflowed:
                survey.pattern_share = self.patterns.num_edges / max(1, survey.size.num_edges)
        survey.num_exception_blocks = self.exceptions.num_blocks
        survey.too_many_exceptions = self.exceptions.overflowed
        found = self.exceptions.growth()
        if found is not None:
            parts = [(g.quarter, g.half, g.whole) for g in found]
            survey.exceptions = Growth(*(sum(pair) for pair in zip(*parts, strict=True)))
        if len(self._outdegrees) == 1:
            survey.uniform = self._outdegrees.pop()
        self.arrays.close()
        if self._compressed_edges:
            survey.delta_bytes = self.arrays.nbytes("delta/c") / self._compressed_edges
            survey.code_bytes = self.arrays.nbytes("code/c") / self._compressed_edges
            survey.outdegree_bytes = self.arrays.nbytes("outdegree/c") / self._compressed_rows
        before, collected = self._clocked
        counted = {"compress": self._compressed_edges, "collect": self.patterns.num_edges - collected}
        for name, seconds in self._seconds.items():
            number = counted.get(name, survey.num_edges - before)
            survey.seconds[name] = seconds / number if number else 0.0
