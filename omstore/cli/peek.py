"""`omstore peek`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omstore.cli.command import command, max_ram_option
from omstore.cli.mapping_options import mapping_options
from omstore.terminal import Session, columns, short_number

if TYPE_CHECKING:
    from omstore.inspect.peeking import ColumnView, PeekReport, TableView

__all__ = ["peek_command"]

_SMALL = 100
"""Lists of up to this many bare values are left out of the listing (not of the JSON): beside records they
are metadata."""


_LONG = 48
"""Characters of a value that are shown."""


@command(
    "peek",
    short="Show what is in a legacy pickle, without loading it.",
    examples=[
        "omstore peek exports/pursuit/3/wm/env_transition_graph.pkl",
        "omstore peek exports/pursuit/3/wm/D.pkl --focal evader",
        "omstore peek graph.pkl --map next_node=target --json",
    ],
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--as",
    "kind",
    type=click.Choice(["graph", "replay"]),
    show_default="by its name and contents",
    help="What to take the pickle for.",
)
@mapping_options
@max_ram_option
def peek_command(
    session: Session,
    file: Path,
    kind: str | None,
    overrides: dict[str, str],
    keep: tuple[str, ...],
    focal: str | None,
    max_ram: int,
) -> None:
    """Show what is in a legacy pickle, and what plays which part, without loading it.

    Classes, fields, shapes, counts, ranges and the first values; then the mapping that `omstore convert`
    would use. Nothing in the pickle is executed or imported, and memory is bounded, whatever its size; it is
    read once from front to back. Where the mapping can't be inferred, the fields are shown with the --map
    to use.
    """
    from omstore.errors import UsageError
    from omstore.inspect.peeking import peek

    if file.is_dir():
        wm = file / "wm" if (file / "wm").is_dir() else file
        found = sorted(str(p) for p in wm.iterdir() if ".pkl" in p.name or ".pickle" in p.name)
        raise UsageError(
            f"{file} is a folder, and `omstore peek` looks at one pickle",
            f"Give one of: {', '.join(found)}." if found else "Name the file.",
        )
    report = peek(
        file,
        kind=kind,
        overrides=overrides,
        keep=keep,
        focal=focal,
        max_ram=max_ram,
        progress=session.progress,
    )
    session.emit(report.to_dict(), lambda: _write(report))


def _write(report: PeekReport) -> None:
    from omstore.memory import format_bytes

    inside = "" if report.size == report.pickle_bytes else f", {format_bytes(report.pickle_bytes)} inside"
    click.echo(f"{report.path}: pickle protocol {report.protocol}, {format_bytes(report.size)}{inside}")
    for line in report.tree:
        click.echo(f"  {line}")
    if report.classes:
        columns([("classes", "\n".join(report.classes))])
    for table in report.tables:
        if table.num_rows > _SMALL or len(report.tables) == 1 or len(table.columns) > 1:
            click.echo("")
            _write_table(table)
    for note in report.notes:
        click.echo(f"note: {note}")
    click.echo("")
    what = {"graph": "transition graph", "replay": "replay"}[report.kind]
    if report.problem:
        click.echo(f"what plays which part (as a {what}): can't be inferred")
        click.echo(f"  {report.problem}")
        click.echo(f"  {report.hint}")
        return
    click.echo(f"what plays which part (as a {what}):")
    for line in report.mapping:
        click.echo(f"  {line}")
    columns(_agents(report))


def _agents(report: PeekReport) -> list[tuple[str, str]]:
    lines = []
    if report.agents:
        lines.append(("agents", ", ".join(report.agents)))
    if report.num_actions:
        lines.append(("actions", f"{' x '.join(map(str, report.num_actions))} (largest seen + 1)"))
    if report.focal:
        lines.append(("focal", f"{report.focal} (--focal takes another)"))
    return lines


def _write_table(table: TableView) -> None:
    click.echo(f"{table.name}: {table.container} of {table.num_rows:,} {table.record}")
    columns([(column.name, _column(column)) for column in table.columns])
    columns([(name, f"no column: {reason}") for name, reason in table.ignored.items()])


def _column(column: ColumnView) -> str:
    shape = f" x {'x'.join(map(str, column.shape))}" if column.shape else ""
    seen = ""
    if column.minimum is not None:
        seen = f", {short_number(column.minimum)} to {short_number(column.maximum)}"
    # of long vectors one is enough: they look alike at their beginnings
    shown = column.samples[:1] if column.shape and len(str(column.samples[:1])) > _LONG else column.samples
    samples = ", ".join(_sample(value) for value in shown)
    return f"{column.kind} {column.dtype}{shape}{seen}: {samples}"


def _sample(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONG else f"{text[: _LONG - 4]} ..."
