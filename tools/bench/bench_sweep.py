"""One exact Bellman sweep, the best of all joint actions at every node, in several encodings beside each other.

    python tools/bench/bench_sweep.py                                    # 3 agents, slip 0.1: 415,886,464 edges; builds 2 stores
    python tools/bench/bench_sweep.py --exports A B --threads 2          # stores that exist
    python tools/bench/bench_sweep.py --agents 4 --rows factored --respond

All results are compared. Storm's sweep is a figure measured once (stormpy 2.0.0, the same graph, the same kind of
machine), not measured in this run. Times are of this machine as it is: a neighbour slows two threads first, so ratios
within one run are what counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

import omstore
from omstore.build import BuildOptions, build
from omstore.exact import Backup, Sweeper
from omstore.memory import PeakMemory
from omstore.model import load_model
from tools.bench.timing import alternate, verdict

STORM_SECONDS = 0.476
"""Of a sweep over the graph of 415,886,464 edges."""

STORM_EDGES = 415_886_464
MOST_BYTES = {3: 300 << 20, 4: 2 << 30}


def sweep_of(graph: omstore.Graph, threads: int, respond: bool) -> tuple[Callable[[], None], np.ndarray]:
    """Return a call that makes a sweep, and where it writes."""
    agents = len(graph.agents)
    values = np.random.default_rng(0).random(graph.num_nodes)
    out = np.empty(graph.num_nodes)
    backup = Backup(values, np.eye(agents)[-1], out, 0.95)
    if respond:
        count = graph.num_joint_actions // graph.num_actions[-1]
        uniform = np.broadcast_to(1 / count, (graph.num_nodes, count))
        backup = Backup(values, np.eye(agents)[-1], out, 0.95, own_side=[agents - 1], other=uniform)
    sweeper = Sweeper(graph, threads=threads)
    return lambda: sweeper.sweep([backup]), out


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=["factored", "csr"])
    parser.add_argument("--exports", nargs="+", type=Path, help="stores that exist, instead of building some")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--respond", action="store_true", help="the evader's best response to uniform pursuers"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        exports = given.exports or [Path(folder) / rows for rows in given.rows]
        calls, found, graphs = {}, {}, {}
        for export in exports:
            if not given.exports:
                model = load_model("pursuit", {"agents": given.agents, "slip": 0.1})
                build(model, export, BuildOptions(rows=export.name))
            graph = omstore.open(export).graph
            assert graph is not None
            name = graph.encoding.name
            graphs[name] = graph
            calls[name], found[name] = sweep_of(graph, given.threads, given.respond)
        with PeakMemory() as memory:
            seconds = alternate(calls, given.rounds)
    for name, took in seconds.items():
        edges = graphs[name].num_edges
        print(f"{name:15} {took * 1e3:9.1f} ms a sweep, {edges / took / 1e9:9.2f} billion edges/s")
    holds = True
    if {"factored", "csr"} <= set(seconds):
        holds &= verdict("sweep, factored over csr", seconds["csr"] / seconds["factored"], 15)
    if "factored" in seconds and not given.respond and graphs["factored"].num_edges == STORM_EDGES:
        holds &= verdict("sweep, factored over Storm's figure", STORM_SECONDS / seconds["factored"], 30)
    limit = MOST_BYTES.get(len(next(iter(graphs.values())).agents), 2 << 30)
    holds &= verdict(f"{limit >> 20} MiB over anonymous memory", limit / memory.anonymous, 1)
    print(
        f"anonymous memory at its peak: {memory.anonymous / 2**20:.0f} MiB, this process's libraries included"
    )
    values = list(found.values())
    if any(np.abs(values[0] - other).max() > 1e-12 for other in values[1:]):
        sys.exit("the encodings' results differ")
    sys.exit(not holds)


if __name__ == "__main__":
    main()
