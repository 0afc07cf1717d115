"""`omstore compact`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from omstore.cli.command import command, max_ram_option
from omstore.cli.forecasts import proof_line, rows_option, write_forecasts
from omstore.terminal import Session, columns

if TYPE_CHECKING:
    from omstore.encode.compact import CompactReport

__all__ = ["compact_command"]


@command(
    "compact",
    short="Encode a store's rows anew, as a new version.",
    examples=[
        "omstore compact exports/pursuit/3",
        "omstore compact exports/pursuit/3 --dry-run --json",
        "omstore compact exports/pursuit/3 --rows csr",
    ],
)
@click.argument("export", type=click.Path(path_type=Path))
@rows_option
@max_ram_option
@click.option(
    "--dry-run",
    is_flag=True,
    show_default=False,
    help="Forecast every row encoding and choose, and publish nothing.",
)
def compact_command(session: Session, export: Path, rows: str, max_ram: int, dry_run: bool) -> None:
    """Encode the rows of an export's live version in another row encoding, and publish that as a new version.

    Nodes, index and replay are copied. Every edge of the new version is compared with the old one's before
    it is published; the old one stays beside it.
    """
    from omstore.encode.compact import compact
    from omstore.inspect.exports import require_export

    require_export(export, "compact", needs="store")
    session.interrupted_note = lambda: "the live version is unchanged, unless a new one was published already"
    report = compact(export, rows=rows, max_ram=max_ram, dry_run=dry_run, progress=session.progress)
    session.emit({"export": str(export), **report.to_dict()}, lambda: _write(export, report, session))


def _write(export: Path, report: CompactReport, session: Session) -> None:
    from omstore.memory import format_bytes

    if report.version is None:
        click.echo(f"{export} could be compacted (dry run: nothing was published)")
    else:
        click.echo(f"{export} compacted: {report.version} is live")
    size = f"{format_bytes(report.store_bytes)} from {format_bytes(report.bytes_before)}"
    columns(
        [
            ("from", f"{report.from_version}, rows as {report.encoding_before}"),
            ("rows", f"{report.encoding} ({report.encoding_reason})"),
            *proof_line(report.proof),
            ("attributes", ", ".join(f"{name} by {level}" for name, level in report.attributes.items())),
            ("bytes", f"{size}{' (predicted)' if report.dry_run else ''}"),
            ("memory", f"{format_bytes(report.peak_anonymous)} anonymous at the peak"),
            ("time", f"{sum(report.seconds.values()):.1f} s"),
        ]
    )
    write_forecasts(report.forecasts, report.encoding, err=not report.dry_run, quiet=session.quiet)
