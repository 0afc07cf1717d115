"""``omtrain show``: what a trained stack holds."""

from __future__ import annotations

from typing import Any

import click

from omstore.terminal import columns
from trainer.cli.command import Session, command
from trainer.setting import shown

__all__ = ["show_command"]


@command(
    "show",
    compiles=False,
    short="Say what a trained om/iop_stack.pt holds.",
    examples=(
        "omtrain show exports/pursuit/3",
        "omtrain show exports/pursuit/3/om/iop_stack.pt --json",
    ),
)
@click.argument("path", metavar="EXPORT|FILE")
def show_command(session: Session, path: str) -> int:
    """Say what the om/iop_stack.pt of an export, or a FILE, holds: levels, agents, settings, store, results."""
    from trainer.artifact import artifact_path, load_stack

    file = artifact_path(path)
    stack = load_stack(file)
    parameters = {
        "level": sum(p.numel() for p in stack.opponent.level(0).parameters()),
        "agent": sum(p.numel() for p in stack.agent.parameters()),
    }
    document = {"file": str(file), **stack.document, "parameters": parameters}
    session.emit(document, lambda: _write(document))
    return 0


def _write(document: dict[str, Any]) -> None:
    agents, focal = document["agents"], document["focal_agent"]
    store = document["store"]
    click.echo(
        f"{document['file']}: an opponent model of {document['levels']} levels, and the agent's policy"
    )
    rows = [
        ("focal agent", f"{agents[focal]} (number {focal}), {document['num_actions'][focal]} actions"),
        ("team", f"{', '.join(document['team'])}; {document['num_team_actions']} team actions"),
        ("states", f"{document['state_width']} components"),
        (
            "networks",
            f"{document['config']['hidden']} hidden units twice; {document['parameters']['level']:,} parameters a "
            f"level, {document['parameters']['agent']:,} the agent",
        ),
        (
            "store",
            f"{store['version']}, {store['num_nodes']:,} nodes, {store['num_transitions']:,} transitions, "
            f"digest {store['digest'][:16]}",
        ),
        ("level 0", _level0(document["level0"])),
    ]
    for phase in document["training"]["phases"]:
        rows.append((f"phase {phase['phase']}/{phase['phases']}", _phase(phase)))
    columns(rows)
    click.echo("settings")
    columns((name, shown(value)) for name, value in document["config"].items())


def _level0(found: dict[str, Any]) -> str:
    held_out = found["held_out_loss"]
    return (
        f"{found['updates']:,} updates on {found['samples']:,} samples, cross-entropy {found['loss']:.4f}"
        + ("" if held_out is None else f", {held_out:.4f} on {found['held_out_samples']:,} held out")
    )


def _phase(phase: dict[str, Any]) -> str:
    text = f"{phase['learner']} {'opp' if phase['learner'] == 'agent' else 'level'}=L{phase['level']}: "
    text += f"{phase['local']:,} updates, {phase['roots']:,} root states"
    if phase["policy_ce"] is not None:
        text += f", policy_ce {phase['policy_ce']:.4f}, entropy {phase['entropy']:.4f}, value {phase['q_policy']:+.4f}"
    return text
