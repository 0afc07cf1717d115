"""The `omstore` command and its exit codes."""

from __future__ import annotations

from collections.abc import Sequence

import click

from omstore.cli.build import build_command
from omstore.cli.compact import compact_command
from omstore.cli.convert import convert_command
from omstore.cli.export import export_command
from omstore.cli.peek import peek_command
from omstore.cli.stats import stats_command
from omstore.cli.verify import verify_command
from omstore.cli.versions import gc_command, rollback_command, versions_command
from omstore.terminal import run_command_line, version_option

__all__ = ["main", "omstore_command"]


class _InOrder(click.Group):
    """Lists the commands in the order in which one meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _version() -> str:
    from omstore.format.manifest import SCHEMA_VERSION, TOOL_VERSION

    return f"omstore {TOOL_VERSION} (store schema {SCHEMA_VERSION})"


@click.group(
    cls=_InOrder,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="An EXPORT is a folder with wm/ in it, such as exports/pursuit/3; its store lies beside, in "
    "store/. Results go to stdout, progress and messages to stderr. Exit code: 0 fine, 1 an error or "
    "something found wrong, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.",
)
@version_option(_version, "Show the version, and the schema of the stores it writes, and exit.")
def omstore_command() -> None:
    """Turn legacy pickles into out-of-core transition-graph stores, and look into them.

    \b
    Examples:
      omstore peek exports/pursuit/3/wm/env_transition_graph.pkl
      omstore convert exports/pursuit/3
      omstore stats exports/pursuit/3
    """


for _command in (
    peek_command,
    convert_command,
    build_command,
    stats_command,
    verify_command,
    compact_command,
    export_command,
    versions_command,
    gc_command,
    rollback_command,
):
    omstore_command.add_command(_command)


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
    return run_command_line(omstore_command, "omstore", arguments)
