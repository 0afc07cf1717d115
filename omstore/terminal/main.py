"""A command line run to its exit code, wrong usage included."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import click

from omstore.terminal.output import report_error

__all__ = ["run_command_line", "version_option"]


def run_command_line(command: click.Command, name: str, arguments: Sequence[str] | None) -> int:
    """Run a command line.

    Parameters
    ----------
    command : click.Command
    name : str
        Of the program, for messages.
    arguments : sequence of str or None
        None: those of the process.

    Returns
    -------
    int
        The exit code: that of the command; 2 after wrong usage.
    """
    for stream in (sys.stdout, sys.stderr):
        # A path or a block character that the terminal's encoding lacks is no reason to fail.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = command.main(
            None if arguments is None else list(arguments), prog_name=name, standalone_mode=False
        )
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else name
        report_error(error.format_message(), f"See: {where} --help")
        return error.exit_code
    except click.Abort:
        return 130
    return code if isinstance(code, int) else 0


def version_option(
    text: Callable[[], str], sentence: str
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Add ``--version`` to a command line.

    Parameters
    ----------
    text : callable
        Gives the line to show; called when asked for.
    sentence : str
        What the option does, for the help.
    """

    def show(context: click.Context, option: click.Parameter, wanted: bool) -> None:
        if not wanted or context.resilient_parsing:
            return
        click.echo(text())
        context.exit()

    return click.option(
        "--version", is_flag=True, is_eager=True, expose_value=False, callback=show, help=sentence
    )
