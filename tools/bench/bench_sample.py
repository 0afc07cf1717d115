"""Sampling successors in random order from dictionary and factored rows, beside the same on an in-memory CSR.

    python tools/bench/bench_sample.py                # 3 agents, slip 0.1: 415,886,464 edges, 6 GB of memory
    python tools/bench/bench_sample.py --agents 2

One thread, batches of random rows, equal uniform numbers; what is asked for is the next node and its
probability. The baselines hold every edge in memory: a compiled kernel that scans a row's probabilities
(inverse CDF), and an adapter as reinforcement-learning code writes it, a Python dict from (node, joint
action) to lists (of as many rows as are drawn: all of them would take 100 GB). `csr` is omstore's own
encoding over the same arrays in memory.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

import omstore
from omstore.build import BuildOptions, build
from omstore.compiled import kernel
from omstore.model import load_model
from omstore.rows import CsrRows, Probabilities, RowEncoding
from tools.bench.timing import alternate, verdict

CLAIMS = {"dictionary": 2.5, "factored": 5.0}


@kernel
def scan_rows(
    offsets: Any, next_node: Any, probability: Any, rows: Any, uniforms: Any, out_node: Any, out_chance: Any
) -> None:
    """The baseline: one edge of each row, where the running sum of its probabilities passes the number."""
    for i in range(rows.size):
        start, stop = offsets[rows[i]], offsets[rows[i] + 1]
        u = uniforms[i]
        reached = 0.0
        chosen = stop - 1
        for edge in range(start, stop):
            reached += probability[edge]
            if u < reached:
                chosen = edge
                break
        out_node[i] = next_node[chosen]
        out_chance[i] = probability[chosen]


def in_memory(rows: RowEncoding, table: NDArray[np.float64]) -> tuple[Any, Any, Any, Any]:
    """Decode all rows: offsets int64, next nodes uint32, codes, probabilities float32 (as 2-store.md has)."""
    size = rows.size
    offsets = np.zeros(size.num_rows + 1, np.int64)
    next_node = np.empty(size.num_edges, np.uint32)
    code = np.empty(size.num_edges, np.uint8 if size.num_outcomes <= 256 else np.uint16)
    probability = np.empty(size.num_edges, np.float32)
    narrow = table.astype(np.float32)
    for chunk in rows.sweep(0, size.num_rows, 1 << 14):
        first, last = chunk.first_edge, chunk.first_edge + len(chunk.next_node)
        offsets[chunk.first_row + 1 : chunk.first_row + len(chunk.offsets)] = chunk.offsets[1:] + first
        next_node[first:last] = chunk.next_node
        code[first:last] = 0 if chunk.outcome is None else chunk.outcome
        probability[first:last] = narrow[code[first:last]]
    return offsets, next_node, code, probability


class DictAdapter:
    """What the old code had: successors in a dict of lists; one row at a time, as it was called."""

    def __init__(self, graph: omstore.Graph, rows: NDArray[np.int64]) -> None:
        actions = graph.num_joint_actions
        found = graph.successors(rows // actions, rows % actions)
        self.rows: dict[tuple[int, int], tuple[list[int], list[float]]] = {}
        for i, row in enumerate(rows.tolist()):
            part = slice(int(found.offsets[i]), int(found.offsets[i + 1]))
            cumulative = list(itertools.accumulate(found.probability[part].tolist()))
            self.rows[divmod(row, actions)] = (found.next_node[part].tolist(), cumulative)

    def sample(self, pairs: list[tuple[int, int]], uniforms: list[float]) -> list[int]:
        """Draw one next node of each row."""
        drawn = []
        for pair, u in zip(pairs, uniforms, strict=True):
            nodes, cumulative = self.rows[pair]
            drawn.append(nodes[min(bisect.bisect_right(cumulative, u), len(nodes) - 1)])
        return drawn


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 1 where a claim fails."""
    parser = argparse.ArgumentParser(description="Sample successors, beside an in-memory CSR and a dict.")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--slip", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    model = load_model("pursuit", {"agents": options.agents, "slip": options.slip})
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="omstore-bench-") as name:
        graphs = {}
        for encoding in CLAIMS:
            build(model, Path(name) / encoding, BuildOptions(rows=encoding))
            graph = omstore.open(Path(name) / encoding).graph
            assert graph is not None
            graphs[encoding] = graph
        graph = graphs["factored"]
        table = np.asarray(graph.attribute("probability").values)
        offsets, next_node, code, probability = in_memory(graph.encoding, table)
        csr = CsrRows(graph.encoding.size, offsets.view(np.uint64), next_node, code)
        held = sum(array.nbytes for array in (offsets, next_node, probability))
        print(f"{graph!r}: in memory {held / 1e9:.1f} GB")
        rows = rng.integers(0, graph.num_rows, options.batch)
        uniforms = rng.random(options.batch)
        few = rows[:100_000]
        adapter = DictAdapter(graph, few)
        pairs = [divmod(row, graph.num_joint_actions) for row in few.tolist()]
        numbers = uniforms[: len(few)].tolist()
        out_node, out_chance = np.empty(len(rows), np.int64), np.empty(len(rows), np.float64)
        by_code = Probabilities("outcome", table)
        calls: dict[str, Callable[[], object]] = {
            "dict of lists": lambda: adapter.sample(pairs, numbers),
            "CSR in memory": lambda: scan_rows(
                offsets, next_node, probability, rows, uniforms, out_node, out_chance
            ),
            "csr": lambda: csr.sample(rows, uniforms, by_code),
        }
        for encoding, one in graphs.items():
            calls[encoding] = partial(one.encoding.sample, rows, uniforms, by_code)
        expected = csr.sample(rows, uniforms, by_code)
        for encoding, one in graphs.items():
            drawn = one.encoding.sample(rows, uniforms, by_code)
            differ = int(np.count_nonzero(drawn.next_node != expected.next_node))
            print(f"{encoding}: {differ} of {len(rows):,} draws differ from csr's")
            assert differ <= len(rows) * 1e-6
        seconds = alternate(calls, options.rounds)
    rates = {}
    for way, value in seconds.items():
        count = len(few) if way == "dict of lists" else len(rows)
        rates[way] = count / value / 1e6
        print(f"  {way:16} {rates[way]:8.2f} million rows/s")
    holds = True
    for encoding, least in CLAIMS.items():
        holds &= verdict(
            f"speed of {encoding}, of that of a CSR in memory",
            rates[encoding] / rates["CSR in memory"],
            least,
        )
        print(f"  and {rates[encoding] / rates['dict of lists']:.0f} times the dict of lists")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
