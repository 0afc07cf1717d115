"""The `omtrain` command and its exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from omstore.terminal import run_command_line, version_option
from trainer.cli.evaluate import evaluate_command
from trainer.cli.show import show_command
from trainer.cli.train import train_command

__all__ = ["main", "omtrain_command"]


class _TrainUnlessNamed(click.Group):
    """``omtrain EXPORT`` is short for ``omtrain train EXPORT``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help", "--version"):
            args = ["train", *args]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _version() -> str:
    from importlib.metadata import version

    return f"omtrain {version('omstore')}"


@click.group(
    cls=_TrainUnlessNamed,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="An EXPORT is a folder such as exports/pursuit/3, with a store in store/; what training makes goes to om/. "
    "Results go to stdout, progress and messages to stderr. Exit code: 0 fine, 1 an error, 2 wrong usage, "
    "130 Ctrl-C, 143 SIGTERM (both after a checkpoint was written).",
)
@version_option(_version, "Show the version and exit.")
def omtrain_command() -> None:
    """Train an opponent model that streams from a store.

    `omtrain EXPORT` is short for `omtrain train EXPORT`.

    \b
    Examples:
      omtrain exports/pursuit/3
      omtrain exports/pursuit/3 --agent-root-state-samples 768000 --max-ram 512M
      omtrain show exports/pursuit/3
      omtrain evaluate exports/pursuit/3
    """


for _command in (train_command, show_command, evaluate_command):
    omtrain_command.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the process.

    Returns
    -------
    int
        The exit code.
    """
    return run_command_line(omtrain_command, "omtrain", arguments)
