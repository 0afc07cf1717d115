"""`omstore convert`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omstore.cli.command import command, max_ram_option
from omstore.cli.forecasts import proof_line, rows_option, write_forecasts
from omstore.cli.mapping_options import mapping_options
from omstore.terminal import Session, columns, percent

if TYPE_CHECKING:
    from omstore.convert import ConvertReport
    from omstore.memory import PeakMemory
    from omstore.progress import Progress

__all__ = ["convert_command"]


def _parse_actions(
    context: click.Context, option: click.Parameter, text: str | None
) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(count) for count in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} isn't a list of numbers such as 5,5,5") from None


@command(
    "convert",
    short="Convert an export's pickles into its store.",
    examples=[
        "omstore convert exports/pursuit/3",
        "omstore convert exports/pursuit/3 --max-ram 256M --rows csr-compressed",
        "omstore convert exports/pursuit/3 --map next_node=dst --keep visits --dry-run",
    ],
)
@click.argument("export", type=click.Path(path_type=Path))
@rows_option
@mapping_options
@click.option(
    "--actions",
    metavar="N,N,...",
    callback=_parse_actions,
    show_default="largest seen + 1",
    help="Number of actions of each agent, agent 0 first, such as 5,5,5.",
)
@click.option(
    "--allow-nonfinite",
    is_flag=True,
    show_default=False,
    help="Take NaN and infinities in rewards and kept fields instead of refusing them.",
)
@max_ram_option
@click.option(
    "--dry-run",
    is_flag=True,
    show_default=False,
    help="Do all the work, forecast every row encoding, report, and publish nothing.",
)
def convert_command(
    session: Session,
    export: Path,
    rows: str,
    overrides: dict[str, str],
    keep: tuple[str, ...],
    focal: str | None,
    actions: tuple[int, ...] | None,
    allow_nonfinite: bool,
    max_ram: int,
    dry_run: bool,
) -> None:
    """Convert an export's pickles into a new version of its store, and publish it.

    Reads EXPORT/wm/env_transition_graph.pkl and EXPORT/wm/D.pkl (or either; .gz, .zst and .xz as well) in
    bounded memory, executing nothing in them, and publishes to EXPORT/store/. The version that was live
    before stays beside the new one. Stopped at any moment, it leaves nothing half-made.
    """
    from omstore.convert import ConvertOptions, convert
    from omstore.inspect.exports import require_export
    from omstore.memory import PeakMemory

    require_export(export, "convert", needs="pickles")
    options = ConvertOptions(
        max_ram=max_ram,
        rows=rows,
        map=overrides,
        keep=keep,
        focal=focal,
        actions=actions,
        allow_nonfinite=allow_nonfinite,
        dry_run=dry_run,
    )
    before = _live(export)
    session.interrupted_note = lambda: _what_is_left(export, before)
    with PeakMemory() as peak:
        report = convert(export, options, _TasksOnly(session.progress))
    document = {
        "export": str(export),
        **report.to_dict(),
        "peak_anonymous": peak.anonymous,
        "peak_file_backed": peak.file_backed,
    }
    session.emit(document, lambda: _write(export, report, peak, session))


class _TasksOnly:
    """Shows tasks but no messages: conversion's are the notes that the report ends with."""

    def __init__(self, progress: Progress) -> None:
        self.task = progress.task

    def message(self, text: str) -> None:
        pass


def _live(export: Path) -> str | None:
    from omstore.errors import StoreError
    from omstore.publish.versions import current

    try:
        return current(export)
    except StoreError:
        return None


def _what_is_left(export: Path, before: str | None) -> str:
    now = _live(export)
    if now != before:
        return f"{now} was published already, and is whole"
    return "nothing was published, and nothing is left behind"


def _write(export: Path, report: ConvertReport, peak: PeakMemory, session: Session) -> None:
    from omstore.memory import format_bytes

    if report.version is None:
        click.echo(f"{export} could be converted (dry run: nothing was published)")
    else:
        click.echo(f"{export} converted: {report.version} is live")
    lines = [("nodes", f"{report.num_nodes:,}")] if report.num_nodes else []
    each = " x ".join(map(str, report.num_actions))
    if report.num_nodes:
        lines += [
            ("joint actions", f"{report.num_joint_actions:,} ({each}: {', '.join(report.agents)})"),
            ("edges", f"{report.num_edges:,} in {report.num_legal_rows:,} legal rows"),
            ("rows", f"{report.encoding} ({report.encoding_reason})"),
            *proof_line(report.proof),
            ("attributes", ", ".join(f"{name} by {level}" for name, level in report.attributes.items())),
        ]
    if report.num_transitions:
        off = ""
        if report.num_nodes:
            off = f", {percent(report.off_graph_share)} off the graph ({report.off_graph:,})"
        lines.append(("transitions", f"{report.num_transitions:,}{off}"))
    if report.notes:
        lines.append(("notes", "\n".join(report.notes)))
    lines += [
        ("bytes", _bytes(report)),
        (
            "memory",
            f"{format_bytes(peak.anonymous)} anonymous, {format_bytes(peak.file_backed)} file-backed "
            "at the peak",
        ),
        ("time", _seconds(report.seconds)),
    ]
    columns(lines)
    write_forecasts(report.forecasts, report.encoding, err=not report.dry_run, quiet=session.quiet)
    if report.version is not None and not session.quiet:
        click.echo(f"next: omstore stats {export}")


def _bytes(report: ConvertReport) -> str:
    from omstore.memory import format_bytes

    ratio = report.source_bytes / report.store_bytes if report.store_bytes else 0.0
    size = f"{format_bytes(report.store_bytes)} from {format_bytes(report.source_bytes)} of pickles"
    if ratio >= 1:
        return f"{size}, {ratio:.1f} times smaller"
    return f"{size}, {1 / ratio:.1f} times larger (they are compressed as a whole)" if ratio else size


def _seconds(seconds: dict[str, Any]) -> str:
    stages = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if value >= 0.05)
    return f"{sum(seconds.values()):.1f} s" + (f" ({stages})" if stages else "")
