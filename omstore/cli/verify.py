"""`omstore verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from omstore.cli.command import allow_model_import_option, command, max_ram_option
from omstore.terminal import Session, can_encode

if TYPE_CHECKING:
    from omstore.inspect.verification import VerifyReport

__all__ = ["verify_command"]

_ITSELF = "the same export"


@command(
    "verify",
    short="Check a store, and compare it with its pickles.",
    examples=[
        "omstore verify exports/pursuit/3",
        "omstore verify exports/pursuit/3 --against",
        "omstore verify exports/pursuit/3 --version 1 --against backup/pursuit/3/wm/D.pkl",
    ],
)
@click.argument("export", type=click.Path(path_type=Path))
@click.option("--version", metavar="V", show_default="the live one", help="Version, such as v000001 or 1.")
@click.option(
    "--against",
    is_flag=False,
    flag_value=_ITSELF,
    metavar="[PATH]",
    show_default="not compared",
    help="Read the pickles again and compare every edge and transition. PATH is an export or one of its "
    "pickles; without PATH (then put --against last) the export itself. Takes about as long as converting.",
)
@allow_model_import_option
@max_ram_option
def verify_command(
    session: Session,
    export: Path,
    version: str | None,
    against: str | None,
    allow_model_import: bool,
    max_ram: int,
) -> int:
    """Check that a version is whole and makes sense, and that it holds what the pickles hold.

    Files: sizes and digests. Contents: rows, next nodes and codes in range, probabilities that sum to 1,
    states sorted and distinct, the index finds every node, legacy ids both ways, the replay at the nodes of
    its states. With --against, every record of the pickles must have a stored edge or transition of its own,
    equal in everything. Exit code 1 when anything is wrong.
    """
    from omstore.inspect.exports import require_export
    from omstore.inspect.verification import verify

    require_export(export, "verify", needs="store")
    source = None
    if against is not None:
        source = _export_of(export) if against == _ITSELF else Path(against)
    report = verify(
        export,
        version,
        against=source,
        allow_model_import=allow_model_import,
        max_ram=max_ram,
        progress=session.progress,
    )
    session.emit(report.to_dict(), lambda: _write(export, report))
    return 0 if report.ok else 1


def _export_of(path: Path) -> Path:
    """Give the export of a path that may be its store or a version of it."""
    from omstore.publish.versions import find_store

    return find_store(path).parent


def _write(export: Path, report: VerifyReport) -> None:
    click.echo(f"{export} {report.version}")
    good, bad = ("✓", "✗") if can_encode("✓✗") else ("ok", "WRONG")
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        mark = bad if check.num_problems else good
        click.echo(f"  {mark} {check.name:<{width}}  {check.looked_at} ({check.seconds:.1f} s)")
        for problem in check.problems:
            click.echo(f"      {problem}")
        more = check.num_problems - len(check.problems)
        if more > 0:
            click.echo(f"      ... and {more:,} more")
    for note in report.notes:
        click.echo(f"  note: {note}")
    compared = f", compared with {report.against}" if report.against is not None else ""
    if report.ok:
        click.echo(f"all is well{compared} ({report.seconds:.1f} s)")
    else:
        click.echo(f"{report.num_problems:,} problems{compared} ({report.seconds:.1f} s)")
