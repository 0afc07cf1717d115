"""One exact Bellman sweep, the best of all joint actions at every node, in several encodings beside each other.

    python tools/bench/bench_sweep.py                                    # 3 agents, slip 0.1: 415,886,464 edges; builds 2 stores
    python tools/bench/bench_sweep.py --exports A B --threads 2          # stores that exist
    python tools/bench/bench_sweep.py --agents 4 --rows factored --respond --steps 20

A csr store is swept twice: as the product does, from the mapped files, whose pages are given back; and by the shortest
compiled loop we know of over the same arrays in memory, without a check. All results are compared. Then Storm is given the
graph (needs the extra ``check``, 18 GiB of free memory, 7 GB of disk and five minutes; ``--no-storm`` leaves it out), its sweep
timed, and its largest probabilities of a done node within 20 steps compared with ours at every node. Times are of this
machine as it is: a neighbour slows two threads first, so ratios within one run are what counts. Factored sweeps are made
several times in a row, as they are when values are computed: a pass over gigabytes leaves nothing of theirs in a cache.

``--steps`` then computes a best response over as many steps in a process of its own, inside a memory cgroup of
``--limit``, which counts page cache.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

import omstore
from omstore.compiled import kernel
from omstore.exact import Backup, Sweeper
from omstore.memory import PeakMemory, parse_bytes
from omstore.rows import CsrRows
from tools.bench.limits import run_limited
from tools.bench.stores import stores
from tools.bench.timing import alternate, verdict

MOST_BYTES = {3: 300 << 20, 4: 2 << 30}
IN_MEMORY = "csr in memory"
IN_A_ROW = 8

Floats = NDArray[np.float64]
Call = tuple[Callable[[], None], Floats]
"""Makes a sweep; where it writes."""


@kernel
def sweep_csr(
    first: Any, stop: Any, joint: Any, offsets: Any, next_node: Any, outcome: Any, probability: Any,
    table: Any, plain: Any, base: Any, marked: Any, out: Any,
) -> None:  # fmt: skip
    """Write the best row of nodes; arrays as in `omstore.exact.edge_kernels`."""
    for node in range(first, stop):
        gain, start = table, 0.0
        if marked.size and marked[node]:
            gain, start = plain, base[node]
        best = -np.inf
        for row in range(node * joint, node * joint + joint):
            total = 0.0
            for edge in range(offsets[row], offsets[row + 1]):
                total += probability[outcome[edge]] * gain[next_node[edge]]
            best = max(best, start + total)
        out[node] = best


def backup_of(graph: omstore.Graph, respond: bool) -> Backup:
    """Return what is backed up: random values, and the evader's reward."""
    agents = len(graph.agents)
    values = np.random.default_rng(0).random(graph.num_nodes)
    backup = Backup(values, np.eye(agents)[-1], np.empty(graph.num_nodes), 0.95)
    if respond:
        count = graph.num_joint_actions // graph.num_actions[-1]
        uniform = np.broadcast_to(1 / count, (graph.num_nodes, count))
        backup = Backup(values, backup.weights, backup.out, 0.95, own_side=[agents - 1], other=uniform)
    return backup


def sweep_of(graph: omstore.Graph, threads: int, respond: bool) -> Call:
    """Return a sweep of the product's."""
    sweeper, backup = Sweeper(graph, threads=threads), backup_of(graph, respond)
    return lambda: sweeper.sweep([backup]), backup.out


def sweep_in_memory(graph: omstore.Graph, threads: int) -> Call:
    """Return a sweep over csr rows copied to memory: 5 bytes an edge here."""
    from omstore.exact.gains import Terms, Valuation

    rows = graph.encoding
    assert isinstance(rows, CsrRows)
    backup = backup_of(graph, False)
    out = np.empty(graph.num_nodes)
    gains = Terms(graph).gains(Valuation(backup.values, np.asarray(backup.weights), backup.discount))
    arrays = [np.array(rows._offsets), np.array(rows._next_node), np.array(rows._outcome)]
    arrays += [np.asarray(graph.attribute("probability").values, np.float64)]
    arrays += [gains.table, gains.plain, gains.base, gains.marked]
    bounds = np.linspace(0, graph.num_nodes, 4 * threads + 1).astype(int).tolist()
    arguments: list[Any] = [graph.num_joint_actions, *arrays, out]

    def run(first: int, stop: int) -> None:
        sweep_csr(first, stop, *arguments)

    def sweep() -> None:
        with ThreadPoolExecutor(threads) as executor:
            list(executor.map(run, bounds[:-1], bounds[1:]))

    return sweep, out


def respond_over(export: Path, steps: int, threads: int) -> None:
    """Compute the evader's best response to uniform pursuers over some steps, and print its mean."""
    from trainer.exact import ExactModel

    graph = omstore.open(export).graph
    assert graph is not None
    with PeakMemory() as memory:
        model = ExactModel(graph, len(graph.agents) - 1, threads=threads)
        found = model.best_response(model.uniform("team"), horizon=steps, discount=0.95)
    print(
        f"best response over {steps} steps, {graph.num_edges:,} edges: mean {found.values.mean():.9f}; anonymous "
        f"memory at its peak {memory.anonymous / 2**20:.0f} MiB"
    )


def respond_inside(export: Path, steps: int, threads: int, limit: int) -> bool:
    """Do that in a process of its own under a limit; returns whether it got through."""
    command = [sys.executable, __file__, "--exports", str(export), "--threads", str(threads)]
    run = run_limited([*command, "--steps", str(steps), "--inside"], limit, capture=True)
    print((run.stdout + run.stderr).strip())
    print(f"  {run.describe()}")
    return run.returncode == 0 and not run.killed_for_memory


def repeated(call: Callable[[], None], times: int) -> Callable[[], None]:
    """Return what makes some calls in a row."""

    def run() -> None:
        for _ in range(times):
            call()

    return run


def compare(exports: dict[str, Path], graphs: dict[str, omstore.Graph], given: argparse.Namespace) -> bool:
    """Time sweeps beside each other, compare their results, and print; returns whether all claims hold."""
    calls = {name: sweep_of(graph, given.threads, given.respond) for name, graph in graphs.items()}
    with PeakMemory() as memory:
        for call, _ in calls.values():
            call()
    if "csr" in graphs and not given.respond:
        calls[IN_MEMORY] = sweep_in_memory(graphs["csr"], given.threads)
    times = {name: IN_A_ROW if name == "factored" else 1 for name in calls}
    seconds = alternate(
        {name: repeated(call, times[name]) for name, (call, _) in calls.items()}, given.rounds
    )
    edges = next(iter(graphs.values())).num_edges
    for name in calls:
        seconds[name] /= times[name]
        speed = edges / seconds[name] / 1e9
        print(f"{name:15} {seconds[name] * 1e3:9.1f} ms a sweep, {speed:9.2f} billion edges/s")
    holds = True
    if {"factored", IN_MEMORY} <= set(seconds):
        ratio = seconds[IN_MEMORY] / seconds["factored"]
        holds &= verdict("sweep, factored over the fastest csr", ratio, 15)
    limit = MOST_BYTES.get(len(next(iter(graphs.values())).agents), 2 << 30)
    holds &= verdict(f"{limit >> 20} MiB over anonymous memory", limit / memory.anonymous, 1)
    print(f"anonymous memory at its peak: {memory.anonymous / 2**20:.0f} MiB, libraries included")
    first, *others = (out for _, out in calls.values())
    if any(np.abs(first - other).max() > 1e-12 for other in others):
        print("FAILS: the encodings' results differ")
        holds = False
    if "factored" in graphs and not (given.respond or given.no_storm):
        holds &= beside_storm(exports["factored"], graphs["factored"], seconds["factored"], given)
    return holds


def beside_storm(export: Path, graph: omstore.Graph, seconds: float, given: argparse.Namespace) -> bool:
    """Time Storm on a store's graph, compare, and print; returns whether all claims hold."""
    # Loads torch, which the memory measured above isn't to count.
    from tools.bench.storm import run_storm, why_not

    reason = why_not(graph)
    if reason:
        print(f"Storm wasn't run: {reason}")
        return True
    with tempfile.TemporaryDirectory() as folder:
        storm = run_storm(export, graph, Path(folder), 3, given.threads)
    print(
        f"{'Storm':15} {storm.sweep_seconds * 1e3:9.1f} ms a sweep; {storm.export_seconds:.0f} s to write the graph, "
        f"{storm.load_seconds:.0f} s to load it; anonymous memory at its peak {storm.anonymous / 2**30:.1f} GiB"
    )
    if storm.difference > 1e-9:
        print(f"FAILS: Storm's values differ by {storm.difference:.1e}")
    else:
        print(
            f"Storm's probabilities of a done node within 20 steps differ by at most {storm.difference:.1e}"
        )
    holds = verdict("sweep, factored over Storm's", storm.sweep_seconds / seconds, 30)
    return holds and storm.difference <= 1e-9


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
    parser.add_argument("--no-storm", action="store_true", help="don't run Storm")
    parser.add_argument("--steps", type=int, help="a best response over as many steps besides")
    parser.add_argument("--limit", default="2G", help="memory for that  [default: 2G]")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        respond_over(given.exports[0], given.steps, given.threads)
        return
    with tempfile.TemporaryDirectory() as folder:
        opened = list(stores(given.exports, given.rows, given.agents, Path(folder)))
        exports = {graph.encoding.name: export for export, graph in opened}
        holds = compare(exports, {graph.encoding.name: graph for _, graph in opened}, given)
        if given.steps:
            holds &= respond_inside(opened[0][0], given.steps, given.threads, parse_bytes(given.limit))
    sys.exit(not holds)


if __name__ == "__main__":
    main()
