"""`omstore build`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omstore.cli.command import command, max_ram_option
from omstore.cli.forecasts import proof_line, write_forecasts
from omstore.terminal import Session, columns

if TYPE_CHECKING:
    from omstore.build import BuildReport

__all__ = ["build_command"]


def _parse_setting(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{text!r} isn't NAME=VALUE")
        try:
            parameters[name] = json.loads(value)
        except ValueError:
            parameters[name] = value  # a word needs no quotes
    return parameters


@command(
    "build",
    short="Build a store from a transition model.",
    examples=[
        "omstore build pursuit --agents 3 --slip 0.1 exports/pursuit/3",
        "omstore build pursuit --agents 4 --slip 0.1 exports/pursuit/4 --dry-run --json",
        "omstore build my_module:make_model exports/mine/1 --set size=9 --transitions 100000",
    ],
)
@click.argument("model")
@click.argument("export", type=click.Path(path_type=Path))
@click.option(
    "--agents", type=int, show_default="the model's", help="Number of agents: short for --set agents=N."
)
@click.option(
    "--slip",
    type=float,
    show_default="the model's",
    help="Probability that a move is replaced by another: short for --set slip=P.",
)
@click.option(
    "--grid",
    type=click.Path(path_type=Path),
    show_default="7x7, five walls",
    help="Text file with the map, a line a row, # for walls and . for free cells.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parse_setting,
    show_default="none",
    help="Parameter of the model, as JSON or a word; may be given several times.",
)
@click.option(
    "--rows",
    type=click.Choice(["auto", "csr", "csr-compressed", "dictionary", "factored", "procedural"]),
    default="auto",
    help="Row encoding. csr: memory-mapped, for any graph. csr-compressed: many times smaller, slow to read "
    "at random. dictionary: rows that repeat, once each. factored: a kernel for each agent, where agents move "
    "independently. procedural: no rows are stored, the model answers. auto: factored for independent agents, "
    "else chosen by size and structure from a sample of the rows.",
)
@click.option(
    "--transitions",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Transitions of a replay to simulate, by uniformly random actions.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="S", help="Seed of the replay.")
@click.option(
    "--horizon",
    type=click.IntRange(min=1),
    default=100,
    metavar="N",
    help="Steps after which an episode of the replay ends at the latest.",
)
@max_ram_option
@click.option(
    "--dry-run",
    is_flag=True,
    show_default=False,
    help="Predict edges, bytes, memory and seconds of each row encoding, and publish nothing.",
)
def build_command(
    session: Session,
    model: str,
    export: Path,
    agents: int | None,
    slip: float | None,
    grid: Path | None,
    settings: dict[str, Any],
    rows: str,
    transitions: int,
    seed: int,
    horizon: int,
    max_ram: int,
    dry_run: bool,
) -> None:
    """Build the graph of a transition model into a new version of an export's store, and publish it.

    MODEL is built in (pursuit), or module:factory, or path/to/file.py:factory: then the module or file is
    imported, and so executed. What doesn't fit the disk or --max-ram is refused before anything is written.
    Every edge of what was written is compared with the model before EXPORT/store/ shows it.
    """
    from omstore.build import BuildOptions, build
    from omstore.errors import UsageError
    from omstore.model import load_model
    from omstore.model.pursuit import read_grid

    options = BuildOptions(
        max_ram=max_ram,
        rows=rows,
        transitions=transitions,
        seed=seed,
        horizon=horizon,
        dry_run=dry_run,
    )
    parameters = dict(settings)
    short = {"agents": agents, "slip": slip, "grid": None if grid is None else list(read_grid(grid))}
    for name, value in short.items():
        if value is not None:
            if name in parameters:
                raise UsageError(f"{name} was given twice, by --{name} and by --set {name}=")
            parameters[name] = value
    made = load_model(model, parameters)
    before = _live(export)
    session.interrupted_note = lambda: _what_is_left(export, before)
    report = build(made, export, options, session.progress)
    session.emit({"export": str(export), **report.to_dict()}, lambda: _write(export, report, session))


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


def _write(export: Path, report: BuildReport, session: Session) -> None:
    from omstore.memory import format_bytes

    name = f"{report.model}{_shown(report.parameters)}"
    if report.version is None:
        verdict = f"doesn't fit {export}" if report.problem else f"could be built into {export}"
        click.echo(f"{name} {verdict} (dry run: nothing was published)")
        if report.problem:
            click.echo(report.problem)
    else:
        click.echo(f"{name} built into {export}: {report.version} is live")
    each = " x ".join(map(str, report.num_actions))
    error = f" +- {report.edges_error:,.0f} (from a sample of rows)" if report.edges_error else ""
    lines = []
    if report.num_nodes >= 0:
        absorbing = f", {report.num_absorbing:,} absorbing" if report.num_absorbing else ""
        lines.append(("nodes", f"{report.num_nodes:,}{absorbing}"))
    lines.append(("joint actions", f"{report.num_joint_actions:,} ({each}: {', '.join(report.agents)})"))
    if report.num_edges >= 0:
        lines.append(("edges", f"{report.num_edges:,}{error}"))
    if report.encoding:
        lines.append(("rows", f"{report.encoding} ({report.encoding_reason})"))
    lines += proof_line(report.proof)
    if report.attributes:
        lines.append(("attributes", ", ".join(f"{n} by {level}" for n, level in report.attributes.items())))
    if report.num_transitions:
        lines.append(("transitions", f"{report.num_transitions:,}, simulated"))
    if report.notes:
        lines.append(("notes", "\n".join(report.notes)))
    if report.version is not None:
        lines.append(("bytes", format_bytes(report.store_bytes)))
        lines.append(("memory", f"{format_bytes(report.peak_anonymous)} anonymous at the peak"))
    elif report.num_nodes >= 0:
        lines.append(("nodes take", f"{format_bytes(report.node_bytes)} (states, index, attributes)"))
        lines.append(("disk", f"{format_bytes(report.free_bytes)} left"))
    if report.seconds:
        stages = ", ".join(f"{name} {value:.1f}" for name, value in report.seconds.items() if value >= 0.05)
        lines.append(("time", f"{sum(report.seconds.values()):.1f} s" + (f" ({stages})" if stages else "")))
    columns(lines)
    write_forecasts(report.forecasts, report.encoding, err=not report.dry_run, quiet=session.quiet)
    if report.version is not None and not session.quiet:
        click.echo(f"next: omstore stats {export}")


def _shown(parameters: dict[str, Any]) -> str:
    known = [f"{name}={value}" for name, value in parameters.items() if name != "grid"]
    return f" ({', '.join(known)})" if known else ""
