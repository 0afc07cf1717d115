"""How fast each encoding answers, measured on a small graph of sampled rows: for people, never for the choice.

The sampled nodes and all their next nodes make a graph of their own, numbered as they ascend, so that each encoder
does with it what it would do with the whole: positions are those of the whole graph. It lies in the cache, so what
is measured is the work and not the disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.encode.sampling import sample_nodes
from omstore.encode.survey import bare_factored
from omstore.errors import CorruptStoreError, UsageError
from omstore.publish.scratch import ScratchArrays
from omstore.rows import CsrRows, Edges, GraphSize, Probabilities, RowEncoding, open_rows, row_writer
from omstore.rows.dictionary_writer import write_dictionary
from omstore.rows.encoding import next_node_dtype, outcome_dtype
from omstore.rows.factored import Factoring

__all__ = ["Speed", "measure_speeds"]

_EDGES = 1 << 16
_ROWS = 1 << 20
_PRODUCTS = 1 << 24
"""Product numbers beyond which factored rows aren't measured: where each stands would take the most memory."""
_DRAWN = 1 << 13
_REPEATS = 3


@dataclass(frozen=True)
class Speed:
    """Million rows a second, gathered and sampled in random order by one thread."""

    gather: float
    sample: float


@dataclass(frozen=True)
class _SmallGraph:
    """A part of a graph as a graph of its own.

    Attributes
    ----------
    rows : CsrRows
    nodes : (n,) int64
        What its nodes are in the whole graph, ascending.
    legal : (m,) int64
        Its rows with successors.
    mean : float
        Edges of a legal row.
    """

    rows: CsrRows
    nodes: NDArray[np.int64]
    legal: NDArray[np.int64]

    @property
    def mean(self) -> float:
        return self.rows.size.num_edges / len(self.legal)


def measure_speeds(
    source: RowEncoding,
    probabilities: Probabilities,
    scratch: Path,
    *,
    positions: NDArray[Any] | None = None,
    num_positions: int | None = None,
    factoring: Factoring | None = None,
) -> dict[str, Speed]:
    """Encode a few of a graph's rows in every encoding, and measure how fast they are read back.

    Parameters
    ----------
    source : RowEncoding
    probabilities : Probabilities
        Of its edges: a constant or by outcome.
    scratch : Path
        Folder for the encodings; emptied afterwards.
    positions, num_positions, factoring
        What the dictionary and the factored encoding are given; factored rows are made from the factoring
        of the whole graph, without exceptions.

    Returns
    -------
    dict of str to Speed
        Of the encodings that could be measured; memory: some 2^16 edges, and 4 bytes for each product number up
        to 2^24.
    """
    if probabilities.level not in ("graph", "outcome"):
        return {}
    small = _small_graph(source)
    if small is None:
        return {}
    size = small.rows.size
    arrays = ScratchArrays(scratch)
    speeds: dict[str, Speed] = {}

    def dictionary(staging: Any) -> Any:
        placed = small.nodes.astype(np.uint64) if positions is None else positions[small.nodes]
        return write_dictionary(
            small.rows,
            staging,
            positions=placed,
            num_positions=num_positions or source.size.num_nodes,
            threads=1,
        )

    def explicit(name: str) -> Callable[[Any], Any]:
        def write(staging: Any) -> Any:
            writer = row_writer(name, staging, size.num_nodes, size.num_joint_actions, size.num_outcomes)
            for chunk in small.rows.sweep(0, size.num_rows, 1 << 16):
                writer.append(np.diff(chunk.offsets), chunk.next_node, chunk.outcome)
            return writer.finish()

        return write

    makers: dict[str, Callable[[Any], Any]] = {
        "csr": explicit("csr"),
        "csr-compressed": explicit("csr-compressed"),
        "dictionary": dictionary,
    }
    try:
        for name, make in makers.items():
            part = ScratchArrays(scratch / name)
            description, written = make(part)
            part.close()
            rows = open_rows(part.path, description, written)
            speeds[name] = _measure(rows, small.legal, small.mean, probabilities)
    finally:
        arrays.remove()
    if factoring is not None and factoring.num_products <= _PRODUCTS:
        legal = small.nodes[small.legal // size.num_joint_actions] * size.num_joint_actions
        legal += small.legal % size.num_joint_actions
        rows = bare_factored(source.size, factoring)
        makes = Probabilities("rows", np.empty(0)) if factoring.combination is None else probabilities
        # Rows that don't factor may be illegal in the factoring, or lead to states that aren't nodes.
        with contextlib.suppress(CorruptStoreError, UsageError):
            speeds["factored"] = _measure(rows, legal, small.mean, makes)
    return speeds


def _small_graph(source: RowEncoding) -> _SmallGraph | None:
    """Cut a small graph out of a large one; None where even a node's rows are too many."""
    size = source.size
    edges = _EDGES
    while edges:
        sample = sample_nodes(size, seed=1, edges=edges)
        sampled = np.concatenate([np.arange(first, stop) for first, stop in sample.ranges])
        numbers = (sampled[:, None] * size.num_joint_actions + np.arange(size.num_joint_actions)).reshape(-1)
        if int(source.outdegree(numbers).sum()) <= 8 * _EDGES:
            found = source.gather(numbers)
            nodes = np.union1d(sampled, found.next_node)
            if len(nodes) * size.num_joint_actions <= _ROWS:
                return _numbered_anew(size, sampled, nodes, found)
        edges //= 4
    return None


def _numbered_anew(
    size: GraphSize, sampled: NDArray[np.int64], nodes: NDArray[np.int64], found: Edges
) -> _SmallGraph | None:
    actions = size.num_joint_actions
    outdegree = np.zeros((len(nodes), actions), np.int64)
    outdegree[np.searchsorted(nodes, sampled)] = np.diff(found.offsets).reshape(-1, actions)
    offsets = np.zeros(len(nodes) * actions + 1, np.uint64)
    np.cumsum(outdegree.reshape(-1), out=offsets[1:].view(np.int64))
    legal = np.flatnonzero(outdegree.reshape(-1))
    if not len(legal):
        return None
    own = GraphSize(len(nodes), actions, len(found.next_node), size.num_outcomes)
    next_node = np.searchsorted(nodes, found.next_node).astype(next_node_dtype(len(nodes)))
    codes = None
    if size.num_outcomes > 1 and found.outcome is not None:
        codes = found.outcome.astype(outcome_dtype(size.num_outcomes))
    return _SmallGraph(CsrRows(own, offsets, next_node, codes), nodes, legal)


def _measure(rows: RowEncoding, legal: NDArray[np.int64], mean: float, probabilities: Probabilities) -> Speed:
    """Measure one encoding on rows that have `mean` edges: the best of a few runs each."""
    rng = np.random.default_rng(0)
    gathered = rng.choice(legal, max(1, int(_DRAWN / max(1.0, mean / 8))))
    drawn = rng.choice(legal, _DRAWN)
    uniforms = rng.random(_DRAWN)
    return Speed(
        len(gathered) / min(_times(lambda: rows.gather(gathered))) / 1e6,
        len(drawn) / min(_times(lambda: rows.sample(drawn, uniforms, probabilities))) / 1e6,
    )


def _times(work: Callable[[], object]) -> Iterator[float]:
    work()  # compiling, and tables made at the first draw, don't count
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        work()
        yield time.perf_counter() - begin
