"""Make an export in a legacy shape: ``python tools/make_export.py OUT --agents 3 --record slots ...``.

Importable as well: ``write_export(out, ExportSpec(...))`` returns the `Truth`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from tools.exports.spec import CHOICES, ExportSpec
from tools.exports.truth import GraphTruth, ReplayTruth, Truth, load_truth
from tools.exports.write import write_export

__all__ = [
    "CHOICES",
    "FULL_SCALE",
    "ExportSpec",
    "GraphTruth",
    "ReplayTruth",
    "Truth",
    "load_truth",
    "write_export",
]

FULL_SCALE = ExportSpec(agents=3, padded=False, transitions=1_000_000, replay_action="dict")
"""The export of the problem: 10,648,000 edges and a replay of a million, with dicts per agent (1.2 and 1.1
GB)."""


def _options(command: Any) -> Any:
    """One option a field of ExportSpec, with its type and choices."""
    for field in reversed(fields(ExportSpec)):
        name, default = field.name.replace("_", "-"), field.default
        settings: dict[str, Any] = {}
        kind = CHOICES.get(field.name)
        if field.name.startswith("replay_"):
            part = "joint_action" if "action" in field.name else field.name.removeprefix("replay_")
            kind = CHOICES[part]
        if isinstance(default, bool):
            declaration = f"--{name}/--no-{name}"
        elif isinstance(default, tuple):
            element = int if field.name == "num_actions" else click.Choice(["graph", "replay"])
            declaration, settings = f"--{name}", {"multiple": True, "type": element}
        else:
            declaration = f"--{name}"
            settings = {"type": click.Choice(kind) if kind else type(default)}
        command = click.option(declaration, field.name, default=default, show_default=True, **settings)(
            command
        )
    return command


@click.command(context_settings={"show_default": True})
@click.argument("out", type=click.Path(path_type=Path))
@_options
@click.option("--cells", is_flag=True, help="The same as --no-padded: vectors over the 44 free cells.")
def main(out: Path, cells: bool, **options: Any) -> None:
    """Write an export into the folder OUT: wm/ with the pickles, truth/ with the true values."""
    if cells:
        options["padded"] = False
    try:
        spec = ExportSpec(**options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    start = time.perf_counter()
    write_export(out, spec, isolate=True)
    for part in spec.parts:
        size = (out / "wm" / spec.file_name(part)).stat().st_size
        click.echo(f"{out / 'wm' / spec.file_name(part)}: {size:,} bytes", err=True)
    click.echo(f"{time.perf_counter() - start:.1f} s", err=True)


if __name__ == "__main__":
    main()
