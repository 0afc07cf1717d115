"""The `omstore` command and its exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from omstore.cli.build import build_command
from omstore.cli.compact import compact_command
from omstore.cli.convert import convert_command
from omstore.cli.export import export_command
from omstore.cli.output import report_error
from omstore.cli.peek import peek_command
from omstore.cli.stats import stats_command
from omstore.cli.verify import verify_command
from omstore.cli.versions import gc_command, rollback_command, versions_command

__all__ = ["main", "omstore_command"]


class _InOrder(click.Group):
    """Lists the commands in the order in which one meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _show_version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from omstore.format.manifest import SCHEMA_VERSION, TOOL_VERSION

    click.echo(f"omstore {TOOL_VERSION} (store schema {SCHEMA_VERSION})")
    context.exit()


@click.group(
    cls=_InOrder,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="An EXPORT is a folder with wm/ in it, such as exports/pursuit/3; its store lies beside, in "
    "store/. Results go to stdout, progress and messages to stderr. Exit code: 0 fine, 1 an error or "
    "something found wrong, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version, and the schema of the stores it writes, and exit.",
)
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
    for stream in (sys.stdout, sys.stderr):
        # A path or a block character that the terminal's encoding lacks is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = omstore_command.main(
            None if arguments is None else list(arguments), prog_name="omstore", standalone_mode=False
        )
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "omstore"
        report_error(error.format_message(), f"See: {where} --help")
        return error.exit_code
    except click.Abort:
        return 130
    return code if isinstance(code, int) else 0
