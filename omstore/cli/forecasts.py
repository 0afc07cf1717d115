"""What `--rows` offers, and how forecasts of the row encodings look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from omstore.terminal import short_number, table

__all__ = ["proof_line", "rows_option", "write_forecasts"]


def rows_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--rows``: the row encoding."""
    return click.option(
        "--rows",
        type=click.Choice(["auto", "csr", "csr-compressed", "dictionary", "factored"]),
        default="auto",
        help="Row encoding. csr: memory-mapped, for any graph. csr-compressed: many times smaller, slow to read "
        "at random. dictionary: rows that repeat, once each. factored: a kernel for each agent, where agents "
        "move independently. auto: forecasts all of them from a sample of the rows, chooses by size and "
        "structure, and says why.",
    )(function)


def proof_line(proof: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Give the line that says what was proven; none where nothing was."""
    if not proof:
        return []
    off = proof["largest_difference_ulp"]
    exact = "to the bit" if off == 0 else f"probabilities within {off} ulp"
    return [("proof", f"{proof['edges']:,} edges of {proof['rows']:,} rows are those of the source, {exact}")]


def write_forecasts(
    forecasts: Sequence[Mapping[str, Any]], chosen: str, *, err: bool = False, quiet: bool = False
) -> None:
    """Write forecasts as a table, on stderr with `err`: then they are a message, and `quiet` leaves them out."""
    from omstore.memory import format_bytes

    if not forecasts or (err and quiet):
        return
    lines = []
    for forecast in forecasts:
        name = f"{forecast['encoding']}{' (chosen)' if forecast['encoding'] == chosen else ''}"
        if not forecast["possible"]:
            lines.append((name, "-", "-", "-", "-", "-", "-"))
            continue
        low, high = forecast["low"], forecast["high"]
        spread = "exact" if low == high else f"{format_bytes(low)} - {format_bytes(high)}"
        seconds = forecast["seconds"]
        lines.append(
            (
                name,
                format_bytes(forecast["nbytes"]),
                spread,
                format_bytes(forecast["anonymous"]),
                "-" if seconds is None else f"{seconds:.1f}",
                short_number(None if forecast["gather"] is None else round(forecast["gather"], 2)),
                short_number(None if forecast["sample"] is None else round(forecast["sample"], 2)),
            )
        )
    click.echo("\nrow encodings, forecast from a sample", err=err)
    header = ("encoding", "rows", "at least - at most", "memory", "seconds", "M gathered/s", "M sampled/s")
    table(header, lines, err=err)
    for forecast in forecasts:
        if not forecast["possible"]:
            click.echo(f"  {forecast['encoding']} is impossible: {forecast['problem']}", err=err)
