"""Successors and samples from mapped rows, beside the same kernels on the same rows in memory.

    python tools/bench/bench_rows.py --scale 0.1

The graph is shaped as 3-agent pursuit with slip (``--scale 1``: 85,184 nodes, 10,648,000 rows, about 290
million edges, 1.5 GB). Batches of 100,000 rows, warm cache. csr-compressed is shown as well.
"""

from __future__ import annotations

import argparse
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
from omstore.rows import CsrRows, RowEncoding
from tools.bench.synthetic import write_synthetic
from tools.bench.timing import alternate, verdict

CLAIM = 0.8  # of the speed in memory


def open_graph(export: Path) -> omstore.Graph:
    """Open the graph of a store that has one."""
    graph = omstore.open(export).graph
    assert graph is not None
    return graph


def in_memory(graph: omstore.Graph) -> omstore.Graph:
    """Make the same graph on copies of the arrays in memory, so that only where they lie differs."""
    rows: Any = graph._rows
    assert isinstance(rows, CsrRows)
    copy = open_graph(Path(graph.__reduce__()[1][0]))
    copy._rows = CsrRows(rows.size, rows._offsets.copy(), rows._next_node.copy(), rows._outcome.copy())
    return copy


def warm(rows: RowEncoding) -> None:
    """Read all rows once, so that they are in the page cache and mapped."""
    for array in ("_offsets", "_next_node", "_outcome"):
        int(getattr(rows, array).view(np.uint8)[:: 1 << 12].sum())


def compare(name: str, calls: dict[str, Callable[[], object]], batch: int, rounds: int) -> float:
    """Print the times of one way to read, and return the ratio mapped : memory of the speeds."""
    seconds = alternate(calls, rounds)
    print(name)
    for way, value in seconds.items():
        print(f"  {way:16} {value * 1e3:9.1f} ms  {batch / value / 1e6:6.2f} million rows/s")
    return seconds["memory"] / seconds["mapped"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 1 where a claim fails."""
    parser = argparse.ArgumentParser(description="Read mapped rows, beside the same rows in memory.")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    held = True
    with tempfile.TemporaryDirectory(prefix="omstore-bench-") as name:
        num_nodes = max(1, int(85_184 * options.scale))
        graphs: dict[str, omstore.Graph] = {}
        for encoding in ("csr", "csr-compressed"):
            write_synthetic(Path(name) / encoding, num_nodes, encoding=encoding)
            graphs[encoding] = open_graph(Path(name) / encoding)
        graphs["memory"] = in_memory(graphs["csr"])
        graphs["mapped"] = graphs.pop("csr")
        warm(graphs["mapped"]._rows)
        warm(graphs["memory"]._rows)
        ways = {way: graphs[way] for way in ("memory", "mapped", "csr-compressed")}
        print(f"{graphs['mapped']!r}: {graphs['mapped']._rows.nbytes()}")
        print(f"{graphs['csr-compressed']!r}: {graphs['csr-compressed']._rows.nbytes()}")
        rng = np.random.default_rng(0)
        rows = rng.integers(0, num_nodes * 125, options.batch)
        for order, batch in (("random", rows), ("sorted", np.sort(rows))):
            held &= measure(ways, order, batch, options.rounds)
    return 0 if held else 1


def measure(ways: dict[str, omstore.Graph], order: str, rows: NDArray[np.int64], rounds: int) -> bool:
    """Time one batch of rows in every way."""
    nodes, actions = rows // 125, rows % 125
    first = ways["memory"].successors(nodes, actions)
    for graph in ways.values():
        assert np.array_equal(graph.successors(nodes, actions).next_node, first.next_node)
    edges = int(first.offsets[-1])
    held = True
    readings: dict[str, Callable[[omstore.Graph], object]] = {
        f"next nodes and codes ({edges:,} edges)": lambda graph: graph._rows.gather(rows),
        "successors with probability, reward, done": lambda graph: graph.successors(nodes, actions),
        "one sampled successor": lambda graph: graph.sample(nodes, actions, np.random.default_rng(1)),
    }
    for reading, read in readings.items():
        calls: dict[str, Callable[[], object]] = {way: partial(read, graph) for way, graph in ways.items()}
        ratio = compare(f"{order} rows, {reading}", calls, len(rows), rounds)
        held &= verdict(f"speed of mapped rows, of that in memory ({order})", ratio, CLAIM)
    return held


if __name__ == "__main__":
    raise SystemExit(main())
