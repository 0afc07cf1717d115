"""Which row encoding, why, and whether it fits: by predicted bytes and structure, never by time."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omstore.encode.forecast import ENCODINGS, Forecast
from omstore.errors import DiskFullError, MemoryBudgetError, UsageError
from omstore.memory import format_bytes

__all__ = ["CSR_LIMIT", "Choice", "check_encoding", "check_fits", "choose"]

CSR_LIMIT = 1 << 30
"""Rows up to this many bytes are stored uncompressed by ``auto``: they are read several times faster, and
the page cache of the smallest usual job still holds a good part of them."""

_WORTH = 0.5
"""Of the bytes of csr: what a dictionary may take at most to be chosen."""


@dataclass(frozen=True)
class Choice:
    """A row encoding, and in one sentence why."""

    encoding: str
    reason: str


def check_encoding(rows: str) -> None:
    """Raise UsageError unless `rows` is ``auto`` or the name of an encoding."""
    if rows != "auto" and rows not in ENCODINGS:
        raise UsageError(
            f"there is no row encoding {rows!r}", f"Choose one of: auto, {', '.join(ENCODINGS)}."
        )


def choose(rows: str, forecasts: Mapping[str, Forecast]) -> Choice:
    """Choose a row encoding.

    ``auto`` takes factored where a factoring was found, its exceptions are few, and it isn't larger than the
    dictionary; else the dictionary where
    it takes at most half the bytes of csr even if its patterns go on growing as they did; else csr up to
    1 GiB, else csr-compressed.

    Parameters
    ----------
    rows : str
        ``auto``, or the encoding that was asked for.
    forecasts : mapping of str to Forecast
        By encoding.

    Raises
    ------
    UsageError
        If the encoding asked for is impossible; says why.
    """
    check_encoding(rows)
    if rows != "auto":
        forecast = forecasts.get(rows)
        if forecast is not None and not forecast.possible:
            raise UsageError(
                f"--rows {rows} is impossible for this graph: {forecast.problem}",
                "Use --rows auto, which takes the best of those that are possible.",
            )
        return Choice(rows, "asked for")
    csr, factored, dictionary = (forecasts[name] for name in ("csr", "factored", "dictionary"))
    plain = format_bytes(csr.nbytes)
    if not csr.possible:
        if not factored.possible:
            raise UsageError(f"the rows can't be encoded: {csr.problem}; and {factored.problem}")
        return Choice("factored", f"{factored.about}; {csr.problem}")
    smaller = not dictionary.possible or factored.nbytes <= dictionary.high
    if factored.possible and factored.few_exceptions and smaller:
        return Choice("factored", f"agents move independently: {factored.about}; csr would take {plain}")
    why_not = f"not factored: {factored.problem or factored.about}"
    if factored.possible and factored.few_exceptions:
        why_not = f"factored would take {_sizes(factored)}"
    if dictionary.possible and dictionary.high <= _WORTH * csr.nbytes:
        return Choice("dictionary", f"rows repeat: {_sizes(dictionary)} predicted, {plain} in csr; {why_not}")
    repeats = f"a dictionary would take {_sizes(dictionary)}" if dictionary.possible else dictionary.problem
    if csr.nbytes <= CSR_LIMIT:
        limit = format_bytes(CSR_LIMIT)
        return Choice("csr", f"{plain} uncompressed, at most {limit}; {repeats}; {why_not}")
    limit = format_bytes(CSR_LIMIT)
    return Choice("csr-compressed", f"{plain} uncompressed, more than {limit}; {repeats}; {why_not}")


def check_fits(
    forecast: Forecast, forecasts: Mapping[str, Forecast], folder: Path, budget: int, *, other_bytes: int = 0
) -> None:
    """Refuse an encoding that fits neither the disk nor the budget, naming one that does.

    Parameters
    ----------
    forecast : Forecast
        Of the encoding chosen.
    forecasts : mapping of str to Forecast
    folder : Path
        On the disk to be written.
    budget : int
        Bytes of anonymous memory.
    other_bytes : int
        That the rest of the version still takes on this disk.

    Raises
    ------
    DiskFullError, MemoryBudgetError
    """
    free = shutil.disk_usage(folder).free

    def fits(candidate: Forecast) -> bool:
        disk = candidate.nbytes + other_bytes <= free
        return candidate.possible and disk and candidate.anonymous <= budget

    if fits(forecast):
        return
    others = [other for other in forecasts.values() if fits(other)]
    best = min(others, key=lambda other: other.nbytes, default=None)
    way_out = "" if best is None else f"Use --rows {best.encoding}, predicted {format_bytes(best.nbytes)}"
    if forecast.nbytes + other_bytes > free:
        raise DiskFullError(
            f"the rows are predicted to take {_sizes(forecast)} as {forecast.encoding}, "
            f"and {folder} has {format_bytes(free)} left",
            f"{way_out}, or free some disk space." if way_out else "Free some disk space.",
        )
    raise MemoryBudgetError(
        f"--rows {forecast.encoding} is predicted to need {format_bytes(forecast.anonymous)} of memory, "
        f"and the budget is {format_bytes(budget)}",
        f"{way_out}, or raise --max-ram to {format_bytes(forecast.anonymous)}."
        if way_out
        else f"Raise --max-ram to {format_bytes(forecast.anonymous)}.",
    )


def _sizes(forecast: Forecast) -> str:
    expected = format_bytes(forecast.nbytes)
    if forecast.low == forecast.high:
        return expected
    return f"{expected} ({format_bytes(forecast.low)} to {format_bytes(forecast.high)})"
