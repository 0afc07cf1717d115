"""Backups and steps of visits under policies: rows by the way of their encoding, beside the same rows edge by edge.

    python tools/bench/bench_policies.py                    # 3 agents, slip 0.1, dictionary and factored: builds 2 stores
    python tools/bench/bench_policies.py --exports A B      # stores that exist

For each store: a return (both sides by policies), a best response of either side, one player's best, and a step of
visits. "edge by edge" goes through all edges of the same store, as csr rows are gone through. Results are compared.
Times are of this machine as it is; ratios within one run are what counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

import omstore
from omstore.exact import Backup, Pusher, Sweeper
from tools.bench.stores import stores
from tools.bench.timing import alternate, verdict

Floats = NDArray[np.float64]
Calls = dict[str, tuple[Callable[[], object], list[Floats]]]
_WAYS = "own way", "edge by edge"
AT_LEAST = {"dictionary": 10.0, "factored": 40.0}
"""Times faster than edge by edge, in everything, where rows have many edges."""

FEW_EDGES, AT_LEAST_THEN = 2, 1.5
"""Edges a row, and the same where rows have no more."""


def calls_of(graph: omstore.Graph, threads: int) -> Calls:
    """Return what is timed, and where each writes; random policies of the last agent and of all others."""
    rng, nodes, last = np.random.default_rng(0), graph.num_nodes, len(graph.agents) - 1
    own = rng.random((nodes, graph.num_actions[last]), np.float32)
    other = rng.random((nodes, graph.num_joint_actions // graph.num_actions[last]), np.float32)
    values, weights = rng.random(nodes), np.eye(last + 1)[last]
    sweeper, pusher = Sweeper(graph, threads=threads), Pusher(graph, [last], threads=threads)
    outs = np.empty((5, nodes))
    team = list(range(last))
    backups = {
        "return": Backup(values, weights, outs[0], 0.95, own_side=[last], own=own, other=other),
        "response": Backup(values, weights, outs[1], 0.95, own_side=[last], other=other),
        "team's response": Backup(values, weights, outs[2], 0.95, own_side=team, other=own),
        "one player": Backup(values, weights, outs[3], 0.95),
    }

    def sweep(backup: Backup) -> Callable[[], object]:
        return lambda: sweeper.sweep([backup])

    def push() -> None:
        outs[4], _ = pusher.push(values, own, other)

    calls: Calls = {name: (sweep(backup), [backup.out]) for name, backup in backups.items()}
    calls["visits"] = push, [outs[4]]
    return calls


def along_edges(graph: omstore.Graph, threads: int) -> Calls:
    """Return the same, edge by edge."""
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731 - no source but that of edges
    with (
        mock.patch("omstore.exact.factored.FactoredSource.of", nothing),
        mock.patch("omstore.exact.dictionary.DictionarySource.of", nothing),
    ):
        calls = calls_of(graph, threads)
        for call, _ in calls.values():
            call()  # chooses how rows are gone through, once
    return calls


def compare(graph: omstore.Graph, given: argparse.Namespace) -> bool:
    """Time both ways in turn, compare their results, and print; returns whether all claims hold."""
    print(f"{graph.encoding.name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges")
    ways = calls_of(graph, given.threads), along_edges(graph, given.threads)
    few = graph.num_edges <= FEW_EDGES * graph.num_nodes * graph.num_joint_actions
    at_least = AT_LEAST_THEN if few else AT_LEAST[graph.encoding.name]
    holds = True
    for name in ways[0]:
        seconds = alternate(
            {way: calls[name][0] for way, calls in zip(_WAYS, ways, strict=True)}, given.rounds
        )
        own, edges = (calls[name][1][0] for calls in ways)
        ratio = seconds["edge by edge"] / seconds["own way"]
        print(
            f"  {name:16} {seconds['own way'] * 1e3:9.1f} ms, edge by edge {seconds['edge by edge'] * 1e3:9.1f} ms: "
            f"{ratio:.1f} times"
        )
        holds &= verdict(f"{graph.encoding.name}, {name}", ratio, at_least)
        if np.abs(own - edges).max() > 1e-12:
            print(f"FAILS: {name}: results differ by {np.abs(own - edges).max()}")
            holds = False
    return holds


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=sorted(AT_LEAST), default=["dictionary", "factored"])
    parser.add_argument("--exports", nargs="+", type=Path, help="stores that exist, instead of building some")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    holds = True
    with tempfile.TemporaryDirectory() as folder:
        for _, graph in stores(given.exports, given.rows, given.agents, Path(folder)):
            holds &= compare(graph, given)
    sys.exit(not holds)


if __name__ == "__main__":
    main()
