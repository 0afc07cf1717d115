"""Storm beside omstore: its sweep over a store's graph, its memory, and its values."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

import omstore
from omstore.exporting import export_graph
from omstore.memory import format_bytes
from tools.bench.limits import run_limited
from trainer.exact import ExactModel, done_nodes, reach

__all__ = ["StormRun", "run_storm", "why_not"]

_STEPS = 20
_BYTES_AN_EDGE = 44
"""At Storm's peak, while it reads the file: 40.5 measured."""

_PROGRAM = Path(__file__).resolve().parents[1] / "storm_values.py"


@dataclass(frozen=True)
class StormRun:
    """What Storm took, and how far its values are from ours.

    Attributes
    ----------
    export_seconds, load_seconds, sweep_seconds : float
        Seconds to write the graph for it, to read that, and of a sweep.
    anonymous : int
        Bytes of memory at its peak.
    difference : float
        Largest, over all nodes, between its and our largest probability of a done node within 20 steps.
    """

    export_seconds: float
    load_seconds: float
    sweep_seconds: float
    anonymous: int
    difference: float


def why_not(graph: omstore.Graph) -> str:
    """Say why Storm can't be run on a graph here; empty where it can."""
    if importlib.util.find_spec("stormpy") is None:
        return "stormpy isn't installed (pip install 'omstore[check]')"
    needed, free = _BYTES_AN_EDGE * graph.num_edges, psutil.virtual_memory().available
    if needed > free:
        return f"it needs {format_bytes(needed)} of memory, {format_bytes(free)} are free"
    return ""


def run_storm(export: Path, graph: omstore.Graph, folder: Path, rounds: int, threads: int) -> StormRun:
    """Give a store's graph, whose done nodes are absorbing, to Storm in a process of its own, and time a sweep there.

    Parameters
    ----------
    export : Path
    graph : Graph
        Of the export, opened.
    folder : Path
        For the file, of some 16 bytes an edge.
    rounds : int
    threads : int
        For our own values. Storm uses one.
    """
    model = ExactModel(graph, len(graph.agents) - 1, threads=threads)
    umb, goal, values = folder / "graph.umb", folder / "goal.npy", folder / "values.npz"
    written = export_graph(export, umb, "umb", rewards=False)
    np.save(goal, done_nodes(model))
    command = [sys.executable, str(_PROGRAM), str(umb), str(goal), str(values)]
    limit = int(0.9 * psutil.virtual_memory().total)
    run = run_limited([*command, "--most", str(_STEPS), "--rounds", str(rounds)], limit, capture=True)
    if run.returncode or run.killed_for_memory:
        sys.exit(f"Storm: {run.describe()}\n{run.stderr}")
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["edges"] == graph.num_edges
    ours = reach(model, choice="most", horizon=_STEPS).values
    with np.load(values) as storms:
        difference = float(np.abs(storms[f"most{_STEPS}"] - ours).max())
    umb.unlink()
    return StormRun(
        written.seconds, report["load_seconds"], report["sweep_seconds"], run.peak_anonymous, difference
    )
