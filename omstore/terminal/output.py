"""How results and messages look: two columns, bars, numbers for people, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

__all__ = ["bar", "can_encode", "columns", "percent", "print_json", "report_error", "short_number", "table"]

_BLOCKS = " ▏▎▍▌▋▊▉█"


def report_error(message: str, hint: str = "") -> None:
    """Write an error and the next step to stderr."""
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def print_json(document: Any) -> None:
    """Write a result as JSON to stdout: one document, indented, keys in the order of the report."""
    click.echo(json.dumps(document, indent=2, allow_nan=False))


def can_encode(text: str) -> bool:
    """Whether stdout's encoding has all characters of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def columns(rows: Iterable[tuple[str, str]], indent: int = 2) -> None:
    """Write names and values below each other, the values aligned; further lines of a value as well."""
    pairs = list(rows)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        first, *more = value.split("\n")
        click.echo(f"{' ' * indent}{name:<{width}}  {first}".rstrip())
        for line in more:
            click.echo(f"{' ' * (indent + width + 2)}{line}")


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 2, *, err: bool = False
) -> None:
    """Write a table, to stderr with `err`; the first column is text, the others are numbers on the right."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    for line in lines:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        click.echo((" " * indent + "  ".join(cells)).rstrip(), err=err)


def bar(share: float, width: int) -> str:
    """Draw a share of 0 to 1 as a bar of at most `width` characters: in eighths of blocks, or #."""
    share = min(1.0, max(0.0, share))
    if not can_encode(_BLOCKS):
        return "#" * max(round(share * width), 1 if share > 0 else 0)
    eighths = max(round(share * width * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + _BLOCKS[eighths % 8].strip()


def percent(share: float) -> str:
    """Write a share of 0 to 1: ``12.3 %``; never 0 or 100 for what isn't quite."""
    value = 100 * share
    if 0 < value < 0.05:
        return "<0.1 %"
    if 99.95 <= value < 100:
        return ">99.9 %"
    return f"{value:.0f} %" if value in (0, 100) else f"{value:.1f} %"


def short_number(value: float | None) -> str:
    """Write a number in at most six digits; a dash for none."""
    return "-" if value is None else f"{value:.6g}"
