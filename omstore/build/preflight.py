"""Before a build writes anything: how many edges there will be, what they will take, and whether that fits.

Kernels give edges exactly, in closed form or node by node; any other model is asked for a sample of rows. What
is cheap is predicted here; the encodings' own forecasts, from a sample of real rows, follow once the nodes
are staged, and are checked against the disk and the budget once more before rows are written.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omstore.build.options import BuildOptions
from omstore.encode import Forecast
from omstore.errors import DiskFullError, MemoryBudgetError, OmstoreError
from omstore.format.states import StateCodec
from omstore.memory import format_bytes
from omstore.model.checks import Answers
from omstore.model.kernel_rows import KernelRows
from omstore.model.model_rows import ModelRows
from omstore.model.numbering import Numbering, ProductNumbering
from omstore.model.protocol import IndependentModel, TransitionModel
from omstore.rows.encoding import next_node_dtype, outcome_dtype

__all__ = ["Preflight", "find_problem", "preflight"]

_SAMPLED = 1 << 12
_COUNTED_NODES = 1 << 26
_BASE_MEMORY = 96 << 20
"""Python, numpy and the compiled code: what a build has before it begins."""


@dataclass(frozen=True)
class Preflight:
    """What a build is predicted to take.

    Attributes
    ----------
    num_nodes : int
        -1 where it shows only when states are explored.
    num_edges : int
        -1 where unknown.
    edges_error : float
        Standard error of `num_edges`; 0 where it is exact.
    node_bytes : int
        Of states, index and attributes of nodes.
    anonymous : int
        Bytes of anonymous memory that the nodes take, whatever the row encoding.
    forecasts : tuple of Forecast
        Of the row encodings, as far as they can be told before the nodes are there.
    free_bytes : int
        Of the disk.
    folder : Path
        On it.
    """

    num_nodes: int
    num_edges: int
    edges_error: float
    node_bytes: int
    anonymous: int
    forecasts: tuple[Forecast, ...]
    free_bytes: int
    folder: Path


def preflight(model: TransitionModel, export: Path, options: BuildOptions) -> Preflight:
    """Predict what a build takes; writes nothing.

    Parameters
    ----------
    model : TransitionModel
    export : Path
        On the disk to be written.
    options : BuildOptions
    """
    folder = Path(export).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    explored = model.initial_states() is not None
    independent = isinstance(model, IndependentModel) and not explored
    num_nodes = -1 if explored else model.space.count
    if explored:
        return Preflight(-1, -1, 0.0, 0, _BASE_MEMORY, (), free, folder)
    numbering = ProductNumbering(model.space, [np.arange(size) for size in model.space.sizes])
    width = Answers(model).vectors(model.space.states(np.zeros(1, np.int64))).shape[1]
    codec = StateCodec(width, model.component_bits or (1 if independent else 8))
    node_bytes = num_nodes * (codec.packed_bytes + 12 + 3)  # 8 bytes / 0.7 of index; codes, own codes, done
    anonymous = _BASE_MEMORY + 12 * min(num_nodes, 1 << 40)
    if isinstance(model, IndependentModel):
        num_edges, error = _count_kernels(model, numbering)
        num_outcomes, size = _kernel_sizes(model, numbering)
        forecasts = _forecast_kernels(num_nodes, model.num_joint_actions, num_edges, num_outcomes, size)
    else:
        num_edges, error = _sample_rows(model, numbering)
        forecasts = _forecast_asked(num_nodes, model.num_joint_actions, num_edges, error)
    return Preflight(num_nodes, num_edges, error, node_bytes, anonymous, forecasts, free, folder)


def _count_kernels(model: IndependentModel, numbering: Numbering) -> tuple[int, float]:
    """Edges: in closed form, else node by node, else from a sample of nodes."""
    known = model.count_edges()
    if known is not None:
        return known, 0.0
    rows = KernelRows(model, numbering, num_edges=0)
    answers = Answers(model)
    num_nodes = numbering.num_nodes
    if num_nodes <= _COUNTED_NODES:
        return rows.count_edges(), 0.0
    nodes = np.random.default_rng(0).integers(0, num_nodes, _SAMPLED)
    counts = rows.count_nodes(nodes, answers.absorbing(numbering.states(nodes)).view(np.uint8))
    return _extrapolate(counts, num_nodes)


def _extrapolate(counts: np.ndarray, total: int) -> tuple[int, float]:
    """The sum over `total` items of which `counts` are a random sample, and its standard error."""
    error = total * float(counts.std(ddof=1)) / math.sqrt(len(counts))
    return round(total * float(counts.mean())), error


def _kernel_sizes(model: IndependentModel, numbering: Numbering) -> tuple[int, int]:
    """Outcomes, and bytes of the kernels as ``factored`` stores them."""
    rows = KernelRows(model, numbering, num_edges=0)
    entries = sum(len(part.next_state) for part in rows.parts)
    pairs = sum(len(part.offsets) for part in rows.parts)
    combinations = 0 if rows.combination is None else len(rows.combination)
    return rows.size.num_outcomes, 8 * pairs + 16 * entries + 4 * combinations


def _csr_bytes(num_nodes: int, num_rows: int, num_edges: int, num_outcomes: int) -> int:
    code = 0 if num_outcomes == 1 else outcome_dtype(num_outcomes).itemsize
    return 8 * num_rows + num_edges * (next_node_dtype(num_nodes).itemsize + code)


def _forecast_kernels(
    num_nodes: int, num_joint_actions: int, num_edges: int, num_outcomes: int, kernel_bytes: int
) -> tuple[Forecast, ...]:
    csr = _csr_bytes(num_nodes, num_nodes * num_joint_actions, num_edges, num_outcomes)
    factored = kernel_bytes + 8 * (num_nodes + 1) + num_nodes + 8 * num_joint_actions
    proven = min(num_edges, 10_000_000 * max(1, num_edges // max(1, num_nodes * num_joint_actions)))
    return (
        _exact("csr", csr, num_edges * 1.5e-9 + csr / (400 << 20)),
        _exact("factored", factored, num_nodes * 1e-6 + proven * 3e-9),
        _exact("procedural", 4096, num_nodes * 1e-6),
    )


def _forecast_asked(
    num_nodes: int, num_joint_actions: int, num_edges: int, error: float
) -> tuple[Forecast, ...]:
    csr = _csr_bytes(num_nodes, num_nodes * num_joint_actions, num_edges, 2)
    return (
        _exact("csr", csr, num_edges * 2e-6, spread=error / max(1, num_edges)),
        _exact("procedural", 16 * num_nodes, num_edges * 1e-6),
    )


def _exact(encoding: str, nbytes: int, seconds: float, spread: float = 0.0) -> Forecast:
    low, high = int(nbytes * (1 - 2 * spread)), int(nbytes * (1 + 2 * spread))
    return Forecast(encoding, nbytes=nbytes, low=low, high=high, anonymous=32 << 20, seconds=seconds)


def _sample_rows(model: TransitionModel, numbering: Numbering) -> tuple[int, float]:
    """Ask for random rows, and extrapolate their outdegrees."""
    num_rows = numbering.num_nodes * model.num_joint_actions
    rows = ModelRows(model, numbering, num_edges=0)
    if num_rows <= _SAMPLED:
        return int(rows.bounds(np.arange(num_rows))[0][-1]), 0.0
    drawn = np.random.default_rng(0).integers(0, num_rows, _SAMPLED)
    return _extrapolate(np.diff(rows.bounds(drawn)[0]), num_rows)


def find_problem(predicted: Preflight, options: BuildOptions) -> OmstoreError | None:
    """Return the error to refuse a build with: the numbers, and what would fit; None where it fits."""
    free, nodes = predicted.free_bytes, predicted.node_bytes
    if nodes > free:
        return DiskFullError(
            f"the {predicted.num_nodes:,} nodes alone need {format_bytes(nodes)} (states and index), and "
            f"{predicted.folder} has {format_bytes(free)} left",
            "Free some disk space, or build fewer agents.",
        )
    if predicted.anonymous > options.max_ram:
        return MemoryBudgetError(
            f"the {predicted.num_nodes:,} nodes need {format_bytes(predicted.anonymous)} of memory while they "
            f"are built, and the budget is {format_bytes(options.max_ram)}",
            f"Raise --max-ram to {format_bytes(predicted.anonymous)}.",
        )
    wanted = _wanted(predicted.forecasts, options.rows)
    if wanted is None or nodes + wanted.nbytes <= free:
        return None
    fitting = [other for other in predicted.forecasts if nodes + other.nbytes <= free]
    way_out = "Free some disk space."
    if fitting:
        best = next((f for f in fitting if f.encoding == "factored"), fitting[0])
        way_out = (
            f"Use --rows {best.encoding}, predicted {format_bytes(best.nbytes)}, or free some disk space."
        )
    error = f" +- {predicted.edges_error:,.0f}" if predicted.edges_error else ""
    return DiskFullError(
        f"{predicted.num_edges:,}{error} edges are predicted to take {format_bytes(wanted.nbytes)} as "
        f"{wanted.encoding}, and {predicted.folder} has {format_bytes(free)} left",
        way_out,
    )


def _wanted(forecasts: Sequence[Forecast], rows: str) -> Forecast | None:
    by_name = {forecast.encoding: forecast for forecast in forecasts}
    if rows != "auto":
        return by_name.get(rows)
    return by_name.get("factored") or by_name.get("csr")  # rows that are asked for are sorted as csr first
