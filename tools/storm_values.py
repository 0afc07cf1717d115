"""Probabilities of having reached a goal after some steps, by Storm, on a graph too large for Storm's own formula.

    omstore export exports/pursuit/3 --to umb --no-rewards graph.umb
    python tools/storm_values.py graph.umb goal.npy values.npz --most 1 20 --least 20 --rounds 3

``goal.npy`` has a bool for each node. Goal nodes must be absorbing: then the probability of being at one after k steps, Storm's
``R{"goal"}max=? [I=k]`` with a state reward of 1 there, is that of having reached one, ``Pmax=? [F<=k "goal"]``. Storm answers
the latter by first splitting the states and copying the part of the matrix that is left; the former it iterates over the
matrix as it stands, in half the memory. `values.npz` gets float64 arrays ``most1``, ``most20``, ``least20`` by node.

Prints JSON: seconds to load, and of a sweep: the median over the rounds of what I=1+n takes longer than I=1, divided by n, so
that neither loading nor preparing counts. Needs the extra ``check``. Run it under `tools/bench/limits.py`: 415,886,464
edges take 16 GiB.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SWEEPS = 20
OPTIMUM = {"most": "max", "least": "min"}


class Model:
    """Storm's model of a UMB file.

    Parameters
    ----------
    path : Path
    goal : (N,) bool
        Absorbing nodes.
    """

    def __init__(self, path: Path, goal: NDArray[np.bool_]):
        import stormpy
        import stormpy.models

        self._stormpy = stormpy
        self._model = stormpy.build_model_from_umb(str(path))
        if self._model.nr_states != len(goal):
            sys.exit(f"{path} has {self._model.nr_states:,} states, the goal {len(goal):,} nodes")
        # a reward model of our own: one in the file would take 8 bytes a branch there, and more in memory
        rewards = stormpy.models.SparseRewardModel[float](goal.astype(float).tolist())
        self._model.add_reward_model("goal", rewards)

    @property
    def num_edges(self) -> int:
        """Branches."""
        return int(self._model.nr_transitions)

    def reached(self, choice: str, steps: int) -> tuple[NDArray[np.float64], float]:
        """Return (N,) probabilities after `steps`, by a player who wants the ``most`` or the ``least``, and the seconds."""
        formula = f'R{{"goal"}}{OPTIMUM[choice]}=? [I={steps}]'
        (parsed,) = self._stormpy.parse_properties(formula)
        start = time.perf_counter()
        found = self._stormpy.model_checking(self._model, parsed, only_initial_states=False)
        seconds = time.perf_counter() - start
        return np.array(found.get_value_vector()), seconds


def main() -> None:
    """Compute."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graph", type=Path)
    parser.add_argument("goal", type=Path)
    parser.add_argument("values", type=Path)
    parser.add_argument("--most", nargs="*", type=int, default=[], metavar="STEPS")
    parser.add_argument("--least", nargs="*", type=int, default=[], metavar="STEPS")
    parser.add_argument("--rounds", type=int, default=0, help="of timing a sweep  [default: none]")
    given = parser.parse_args()
    start = time.perf_counter()
    model = Model(given.graph, np.load(given.goal))
    report: dict[str, Any] = {"edges": model.num_edges, "load_seconds": time.perf_counter() - start}
    arrays = {
        f"{choice}{steps}": model.reached(choice, steps)[0]
        for choice in OPTIMUM
        for steps in getattr(given, choice)
    }
    np.savez(given.values, allow_pickle=False, **arrays)
    if given.rounds:
        longer = [
            model.reached("most", 1 + SWEEPS)[1] - model.reached("most", 1)[1] for _ in range(given.rounds)
        ]
        report["sweep_seconds"] = statistics.median(longer) / SWEEPS
    print(json.dumps(report))


if __name__ == "__main__":
    main()
