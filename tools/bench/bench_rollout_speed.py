"""Rollouts of one training update: 512 roots x 5 candidates x 8 rollouts x horizon 10, tabulated random policies.

    python tools/bench/bench_rollout_speed.py                                  # 3 agents, slip 0.1, built for it
    python tools/bench/bench_rollout_speed.py --agents 2 --rows factored
    python tools/bench/bench_rollout_speed.py --export exports/pursuit/3

Steps are those really made: an episode that is done early makes fewer. The results of all encodings are compared
to the bit. A machine that does something else at the same time shows in the times of two threads first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

import omstore
from omstore import PolicyTable, RolloutState, RolloutTables, stream_key
from omstore.rollout import rollout
from tools.bench.stores import stores

ROOTS, ROLLOUTS, HORIZON, REPEATS = 512, 8, 10, 20


def count_steps(tables: RolloutTables, arguments: dict[str, object], tables_of: list[PolicyTable]) -> int:
    """Count the steps that environments make."""
    state = RolloutState(tables, **arguments)  # type: ignore[arg-type]
    steps = 0
    while len(state.nodes()):
        steps += sum(block.count for block in state._blocks)
        state.step(*tables_of)
    return steps


def measure(graph: omstore.Graph) -> tuple[bytes, str]:
    """Roll out with one thread and two; give the result's bytes and a line."""
    tables = RolloutTables(graph)
    rng = np.random.default_rng(1)
    learner = len(graph.agents) - 1
    own = graph.num_actions[learner]
    theirs = graph.num_joint_actions // own
    policies = [
        PolicyTable(rng.dirichlet(np.ones(count), graph.num_nodes).astype(np.float32))
        for count in (own, theirs)
    ]
    arguments: dict[str, object] = {
        "roots": rng.integers(0, graph.num_nodes, ROOTS),
        "candidates": np.tile(np.arange(own), (ROOTS, 1)),
        "first_key": stream_key(0, 0, 0, np.arange(ROOTS)),
        "learner": [learner],
        "n_rollouts": ROLLOUTS,
        "horizon": HORIZON,
        "discount": 0.95,
        "reward_weights": np.eye(len(graph.agents))[learner],
    }
    steps = count_steps(tables, arguments, policies)
    words = []
    for threads in (1, 2):
        best = np.inf
        for _ in range(REPEATS):
            begin = time.perf_counter()
            found = rollout(
                tables,
                learner_table=policies[0],
                other_table=policies[1],
                threads=threads,
                **arguments,  # type: ignore[arg-type]
            )
            best = min(best, time.perf_counter() - begin)
        words.append(f"{threads} thread{'s' if threads > 1 else ''} {best * 1e3:6.1f} ms")
        words.append(f"{steps / best / 1e6:5.1f} million steps/s")
    return found[0].tobytes(), f"{graph.encoding.name:15} {steps:,} steps  " + "  ".join(words)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=["factored", "dictionary"])
    parser.add_argument("--export", type=Path, help="a store that exists, instead of building some")
    given = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        exports = [given.export] if given.export else None
        for _, graph in stores(exports, given.rows, given.agents, Path(folder)):
            result, line = measure(graph)
            results.append(result)
            print(line)
    if len(set(results)) > 1:
        sys.exit("the encodings' results differ")


if __name__ == "__main__":
    main()
