"""What each row encoding would take: bytes, memory, seconds, predicted from a survey of the rows.

Bytes depend on the graph alone, so that a choice by them is always the same; seconds and speeds are for people.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from omstore.encode.survey import COMPRESSED_EDGES, Survey
from omstore.rows.encoding import next_node_dtype, outcome_dtype
from omstore.rows.factored_files import block_dtype

__all__ = [
    "ENCODINGS",
    "Forecast",
    "forecast_compressed",
    "forecast_csr",
    "forecast_dictionary",
    "forecast_factored",
]

ENCODINGS = ("csr", "csr-compressed", "dictionary", "factored")
"""What `--rows` may ask for, besides ``auto``."""

_FEW = 0.01
"""Of all rows: what may not factor, absorbing states left aside, for a graph to count as factored. Where agents
interact more often than that, rows that repeat are the better description."""
_THREADS = 2
"""That rows are read by while they are collected, compared and proven."""
_BASE_MEMORY = 32 << 20
"""Anonymous bytes of an encoder beside its tables: chunks, buffers, the compressor."""


@dataclass(frozen=True)
class Forecast:
    """What one encoding is predicted to take.

    Attributes
    ----------
    encoding : str
    possible : bool
    problem : str
        Why it isn't possible.
    nbytes, low, high : int
        Of ``rows/`` on disk: expected, at least, at most.
    anonymous : int
        Bytes of anonymous memory to build it.
    seconds : float or None
        To build and prove it, on this machine; None where it wasn't measured.
    gather, sample : float or None
        Million rows a second, gathered and sampled at random; None where it wasn't measured.
    about : str
        The structure that was found.
    few_exceptions : bool
        Of factored: whether rows that don't factor are few, absorbing states left aside.
    """

    encoding: str
    possible: bool = True
    problem: str = ""
    nbytes: int = 0
    low: int = 0
    high: int = 0
    anonymous: int = 0
    seconds: float | None = None
    gather: float | None = None
    sample: float | None = None
    about: str = ""
    few_exceptions: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return asdict(self)


def forecast_csr(survey: Survey) -> Forecast:
    """Predict csr: exact, but for offsets that aren't needed where every row has the same outdegree."""
    size = survey.size
    edge_bytes = next_node_dtype(size.num_nodes).itemsize
    if size.num_outcomes > 1:
        edge_bytes += outcome_dtype(size.num_outcomes).itemsize
    offsets = 0 if _is_uniform(survey) else 8 * (size.num_rows + 1)
    nbytes = offsets + edge_bytes * size.num_edges
    written = nbytes / (400 << 20)  # a disk of the usual kind, and the digest
    return Forecast(
        "csr", nbytes=nbytes, low=nbytes, high=nbytes, anonymous=_BASE_MEMORY,
        seconds=size.num_edges * survey.seconds["sweep"] + written,
    )  # fmt: skip


def forecast_compressed(survey: Survey) -> Forecast:
    """Predict csr-compressed from the edges that were compressed."""
    size = survey.size
    nbytes = int(size.num_edges * (survey.delta_bytes + survey.code_bytes))
    if not _is_uniform(survey):
        nbytes += int(size.num_rows * survey.outdegree_bytes) + 8 * (size.num_rows >> 18)
    spread = 0.0 if survey.sample.whole and size.num_edges <= COMPRESSED_EDGES else 0.5
    per_edge = 2 * survey.seconds["sweep"] + survey.seconds["compress"]
    return Forecast(
        "csr-compressed", nbytes=nbytes, low=int(nbytes * (1 - spread)), high=int(nbytes * (1 + spread)),
        anonymous=_BASE_MEMORY + (16 << 20), seconds=size.num_edges * per_edge,
    )  # fmt: skip


def forecast_dictionary(survey: Survey, num_positions: int | None) -> Forecast:
    """Predict the dictionary from the growth of its patterns; `num_positions` where nodes have positions."""
    size = survey.size
    assert survey.patterns is not None  # whoever surveyed without them has nothing to predict
    assert survey.blocks is not None
    by_node = 4 + 8
    fixed = size.num_nodes * by_node + 8
    if num_positions is not None:
        fixed += next_node_dtype(num_positions).itemsize * size.num_nodes
        fixed += next_node_dtype(size.num_nodes).itemsize * num_positions
    share = survey.pattern_share
    grown = [growth.extrapolate(share) for growth in (survey.patterns, survey.blocks)]
    nbytes, low, high = (fixed + int(sum(growth[i] for growth in grown)) for i in range(3))
    tables = survey.patterns.whole + survey.blocks.whole
    factor = (nbytes - fixed) / tables if tables else 1.0
    anonymous = _BASE_MEMORY + int(3 * survey.pattern_memory * factor) + 4 * size.num_nodes
    per_edge = (2 * survey.seconds["sweep"] + 2 * survey.seconds["collect"]) / _THREADS
    return Forecast(
        "dictionary", nbytes=nbytes, low=low, high=high, anonymous=anonymous,
        seconds=size.num_edges * per_edge,
    )  # fmt: skip


def forecast_factored(survey: Survey) -> Forecast:
    """Predict factored: the kernels are known, what doesn't factor is extrapolated."""
    size, factoring = survey.size, survey.factoring
    assert factoring is not None  # whoever found none has nothing to predict
    entries = sum(len(component.next_state) for component in factoring.components)
    pairs = sum(component.num_pairs for component in factoring.components)
    fixed = 8 * (pairs + 1) + 12 * entries + 8 * (size.num_nodes + 1)
    if factoring.combination is not None:
        fixed += 4 * (entries + len(factoring.combination))
    if factoring.product is not None:
        fixed += next_node_dtype(factoring.num_products).itemsize * size.num_nodes
        fixed += next_node_dtype(size.num_nodes + 1).itemsize * factoring.num_products
    share = survey.num_exceptional_rows / max(1, survey.num_rows)
    interacting = survey.num_interacting_rows / max(1, survey.num_rows)
    about = f"{len(factoring.components)} components; {100 * share:.3g} % of the rows are exceptions"
    if share:
        about += f", {100 * interacting:.3g} % not counting those that only stay"
    if survey.exceptions is None or survey.too_many_exceptions:
        return Forecast(
            "factored", False, f"too many distinct rows don't factor ({100 * share:.3g} %)", about=about
        )
    tables = survey.exceptions.extrapolate(survey.sample.share)
    by_node = 0
    if survey.num_exceptional_rows:
        by_node = size.num_nodes * block_dtype(survey.num_exception_blocks).itemsize
    nbytes, low, high = (int(fixed + by_node + part) for part in tables)
    per_edge = (2 * survey.seconds["sweep"] + 2 * survey.seconds["compare"]) / _THREADS
    return Forecast(
        "factored", nbytes=nbytes, low=low, high=high,
        anonymous=_BASE_MEMORY + int(3 * tables[0]) + 4 * size.num_nodes,
        seconds=size.num_edges * per_edge, about=about, few_exceptions=interacting <= _FEW,
    )  # fmt: skip


def _is_uniform(survey: Survey) -> bool:
    return survey.uniform is not None and survey.uniform * survey.size.num_rows == survey.size.num_edges
