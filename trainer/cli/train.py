"""``omtrain train``: flags made from the settings of `TrainConfig`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omstore.memory import format_bytes
from omstore.progress import format_seconds
from omstore.terminal import columns
from trainer.cli.command import Session, command
from trainer.config import TrainConfig, read_settings, settings
from trainer.setting import Setting, shown

if TYPE_CHECKING:
    from trainer.run import TrainReport

__all__ = ["train_command"]


def _option(setting: Setting) -> click.Option:
    default = format_bytes(setting.default) if setting.name == "max_ram" else shown(setting.default)
    kind = f"{setting.unit}; " if setting.kind is not bool and setting.unit != "word" else ""
    declaration = f"{setting.flag}/--no-{setting.flag[2:]}" if setting.kind is bool else setting.flag
    return click.Option(
        [declaration, setting.name],
        help=f"{setting.help} [{kind}default: {default}]",
        default=None,
        metavar=None if setting.kind is bool else "|".join(setting.choices) or _metavar(setting),
    )


def _metavar(setting: Setting) -> str:
    if setting.name == "max_ram":
        return "SIZE"
    return {int: "N", float: "X"}.get(setting.kind, "TEXT")


@command(
    "train",
    short="Train an export's opponent model, or go on with it.",
    examples=(
        "omtrain exports/pursuit/3",
        "omtrain exports/pursuit/3 --config run.toml --seed 1 --fresh",
        "omtrain exports/pursuit/3 --agent-root-state-samples 768000 --team-root-state-samples 1152000",
        "torchrun --nproc-per-node 2 -m trainer.cli exports/pursuit/3",
    ),
    params=[_option(setting) for setting in settings()],
)
@click.argument("export")
@click.option(
    "--config",
    metavar="FILE",
    help="TOML file of settings, `name = value` a line, named as the flags are with _ for -; flags win over it.",
)
@click.option(
    "--fresh", is_flag=True, help="Start over; deletes the checkpoints and metrics of an earlier run."
)
def train_command(session: Session, export: str, config: str | None, fresh: bool, **flags: Any) -> int:
    """Train the opponent model of EXPORT: level 0 on its replay, then the staircase in its graph.

    Writes om/iop_stack.pt, om/metrics.jsonl, om/timing.jsonl and om/checkpoints/. Goes on by itself from the last
    checkpoint of an earlier run, and then gives the same numbers as if nothing had stopped it.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    chosen = TrainConfig.from_mapping({} if config is None else read_settings(config), given, where="flags")
    again = shlex.join(["omtrain", export, *(["--config", config] if config else []), *_as_flags(given)])
    session.interrupted_note = lambda: _going_on(Path(export), again)
    from trainer.run import train

    report = train(
        export,
        chosen,
        fresh=fresh,
        progress=session.progress,
        stream=None if session.quiet else sys.stderr,
        stop=session.stop,
    )
    if report.rank == 0:
        session.emit(asdict(report), lambda: _write(report))
    return 0


def _going_on(export: Path, again: str) -> str:
    if any((export / "om" / "checkpoints").glob("checkpoint-*.pt")):
        return f"go on from the last checkpoint with: {again}"
    return f"there is no checkpoint yet; begin with: {again}"


def _as_flags(given: dict[str, Any]) -> list[str]:
    parts = []
    for setting in settings():
        if setting.name in given:
            value = given[setting.name]
            if setting.kind is bool:
                parts.append(setting.flag if value else f"--no-{setting.flag[2:]}")
            else:
                parts += [setting.flag, str(value)]
    return parts


def _write(report: TrainReport) -> None:
    click.echo(f"{report.export} trained: {report.artifact}")
    held_out = report.level0["held_out_loss"]
    rows = [
        (
            "level 0",
            f"cross-entropy {report.level0['loss']:.4f} in the last epoch"
            + ("" if held_out is None else f", {held_out:.4f} held out"),
        )
    ]
    for phase in report.phases:
        against = f"opp=L{phase['level']}" if phase["learner"] == "agent" else f"level=L{phase['level']}"
        value = phase["q_policy"]
        rows.append(
            (
                f"phase {phase['phase']}/{phase['phases']}",
                f"{phase['learner']} {against}: {phase['local']:,} updates"
                + ("" if value is None else f", policy's value {value:+.4f}, entropy {phase['entropy']:.4f}"),
            )
        )
    rate = (
        "" if report.updates_per_second is None else f", {report.updates_per_second:.1f} staircase updates/s"
    )
    resumed = "" if report.resumed_from is None else f", {report.resumed_from:,} of them before"
    ranks = "" if report.ranks == 1 else f", {report.ranks} ranks"
    rows += [
        ("updates", f"{report.updates:,}{resumed}"),
        ("time", f"{format_seconds(report.seconds)}{rate} ({report.device}{ranks})"),
        (
            "memory",
            f"{format_bytes(report.peak_anonymous)} anonymous, {format_bytes(report.peak_file_backed)} file-backed "
            "at the peak",
        ),
    ]
    columns(rows)
    click.echo(f"next: omtrain show {report.export}")
