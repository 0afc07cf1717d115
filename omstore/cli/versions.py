"""`omstore versions`, `omstore gc`, `omstore rollback`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omstore.cli.command import command
from omstore.terminal import Session, table

if TYPE_CHECKING:
    from omstore.publish.versions import Removed, VersionInfo

__all__ = ["gc_command", "rollback_command", "versions_command"]


@command(
    "versions",
    short="List a store's versions.",
    examples=["omstore versions exports/pursuit/3"],
    compiles=False,
)
@click.argument("export", type=click.Path(path_type=Path))
def versions_command(session: Session, export: Path) -> None:
    """List the published versions of an export's store, oldest first, and which is live."""
    from omstore.inspect.exports import require_export
    from omstore.inspect.plain import plain
    from omstore.publish.versions import find_store, versions

    require_export(export, "versions", needs="store")
    found = versions(export)
    document: dict[str, Any] = {"store": str(find_store(export)), "versions": plain(found)}
    session.emit(document, lambda: _write_versions(export, found))


def _write_versions(export: Path, found: list[VersionInfo]) -> None:
    from omstore.memory import format_bytes

    if not found:
        click.echo(f"{export} has no versions yet")
        return
    rows = []
    for info in found:
        counts = info.counts
        rows.append(
            (
                f"{info.name}{' (live)' if info.is_current else ''}",
                f"{info.published:%Y-%m-%d %H:%M}" if info.published is not None else "-",
                format_bytes(info.size),
                f"{counts.num_nodes:,}" if counts is not None else "-",
                f"{counts.num_edges:,}" if counts is not None else "-",
                f"{counts.num_transitions:,}" if counts is not None else "-",
                info.encoding or "-",
            )
        )
    table(("version", "published (UTC)", "size", "nodes", "edges", "transitions", "rows"), rows)
    for info in found:
        if info.problem:
            click.echo(f"  {info.name}: {info.problem}")


@command(
    "gc",
    short="Delete old versions, and what killed writers left.",
    examples=["omstore gc exports/pursuit/3", "omstore gc exports/pursuit/3 --keep 2 --dry-run"],
    compiles=False,
)
@click.argument("export", type=click.Path(path_type=Path))
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=1,
    help="How many versions stay: the live one, and the newest others.",
)
@click.option("--dry-run", is_flag=True, show_default=False, help="Only say what would be deleted.")
def gc_command(session: Session, export: Path, keep: int, dry_run: bool) -> None:
    """Delete versions that aren't needed any more, and what killed writers left behind.

    The live version always stays. Readers that have a version open keep reading it.
    """
    from omstore.inspect.exports import require_export
    from omstore.publish.versions import gc

    require_export(export, "gc", needs="store")
    removed = gc(export, keep, dry_run)
    document = {"removed": list(removed.names), "size": removed.size, "dry_run": dry_run}
    session.emit(document, lambda: _write_removed(removed, dry_run))


def _write_removed(removed: Removed, dry_run: bool) -> None:
    from omstore.memory import format_bytes

    if not removed.names:
        click.echo("nothing to delete")
        return
    verb = "would delete" if dry_run else "deleted"
    click.echo(f"{verb} {', '.join(removed.names)} ({format_bytes(removed.size)})")


@command(
    "rollback",
    short="Make an earlier version the live one.",
    examples=["omstore rollback exports/pursuit/3", "omstore rollback exports/pursuit/3 --to v000001"],
    compiles=False,
)
@click.argument("export", type=click.Path(path_type=Path))
@click.option(
    "--to",
    metavar="V",
    show_default="the newest before the live one",
    help="Version to make live, such as v000001 or 1.",
)
def rollback_command(session: Session, export: Path, to: str | None) -> None:
    """Make another version the live one, atomically; nothing is deleted."""
    from omstore.inspect.exports import require_export
    from omstore.publish.versions import rollback

    require_export(export, "rollback", needs="store")
    name = rollback(export, to)
    session.emit({"live": name}, lambda: click.echo(f"{export}: {name} is live"))
