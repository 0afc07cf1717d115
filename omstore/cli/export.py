"""`omstore export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from omstore.cli.command import allow_model_import_option, command, max_ram_option
from omstore.terminal import Session, columns

if TYPE_CHECKING:
    from omstore.exporting import ExportReport

__all__ = ["export_command"]

_FORMATS = ("npz", "scipy", "parquet", "umb")
# `omstore.exporting.FORMATS`, which would load the reader


@command(
    "export",
    short="Write the graph in a format other tools read.",
    examples=[
        "omstore export exports/pursuit/3 --to npz graph.npz",
        "omstore export exports/pursuit/3 --to umb graph.umb",
        "omstore export exports/pursuit/3 --to parquet tables",
    ],
)
@click.argument("export", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--to",
    required=True,
    type=click.Choice(_FORMATS),
    help="What to write. npz: for numpy.load. scipy: for scipy.sparse.load_npz. parquet: a folder with a table of edges and "
    "one of nodes (needs the extra 'parquet'). umb: for Storm, PRISM and Modest.",
)
@click.option("--version", metavar="V", show_default="the live one", help="Version, such as v000001 or 1.")
@click.option(
    "--no-rewards",
    is_flag=True,
    help="Leave rewards out, which take 8 bytes an edge for each agent: more than half of a umb or npz file.",
    show_default=False,
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.", show_default=False)
@allow_model_import_option
@max_ram_option
def export_command(
    session: Session,
    export: Path,
    out: Path,
    to: str,
    version: str | None,
    no_rewards: bool,
    force: bool,
    allow_model_import: bool,
    max_ram: int,
) -> None:
    """Write a store's whole graph to OUT, with states, probabilities, rewards and done.

    Rows are read once, front to back, whatever their encoding, in bounded memory. OUT appears as a whole or
    not at all, and the same store gives the same bytes. Rows are numbered node * A + joint action; agent 0's
    action is the most significant digit of a joint action.
    """
    from omstore.exporting import export_graph
    from omstore.inspect.exports import require_export

    require_export(export, "export", needs="store")
    session.interrupted_note = lambda: f"{out} is as it was"
    report = export_graph(
        export,
        out,
        to,
        version=version,
        rewards=not no_rewards,
        force=force,
        allow_model_import=allow_model_import,
        max_ram=max_ram,
        progress=session.progress,
    )
    session.emit(report.to_dict(), lambda: _write(report))


def _write(report: ExportReport) -> None:
    from omstore.memory import format_bytes
    from omstore.progress import format_seconds

    click.echo(f"{report.path}: {report.format} of {report.version}")
    lines = [
        ("nodes", f"{report.num_nodes:,}"),
        ("rows", f"{report.num_rows:,}"),
        ("edges", f"{report.num_edges:,}"),
        ("size", format_bytes(report.size)),
        ("time", format_seconds(report.seconds)),
    ]
    columns(lines + [("note", note) for note in report.notes])
