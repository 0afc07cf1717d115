"""What `omtrain`'s commands share: --json, --quiet, --debug, errors as two lines, exit codes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from omstore.errors import OmstoreError
from omstore.progress import Progress, for_stream
from trainer.stopping import NAMES, Interrupted, Stop, signals

__all__ = ["Session", "columns", "command", "report_error"]


@dataclass
class Session:
    """How a command was asked to talk.

    Attributes
    ----------
    json, quiet, debug : bool
        Results as JSON; no progress and no messages; tracebacks.
    stop : Stop
        Told of signals.
    interrupted_note : callable
        Says how to go on after an interruption.
    """

    json: bool = False
    quiet: bool = False
    debug: bool = False
    stop: Stop = field(default_factory=Stop)
    interrupted_note: Callable[[], str] = lambda: "nothing was changed"

    @functools.cached_property
    def progress(self) -> Progress:
        """Where progress is shown."""
        return for_stream(sys.stderr, quiet=self.quiet)

    def emit(self, document: Any, write: Callable[[], None]) -> None:
        """Write a result: the document as JSON where that was asked for, else by `write`."""
        if self.json:
            click.echo(json.dumps(document, indent=2, allow_nan=False))
        else:
            write()


def command(
    name: str, *, short: str, examples: Sequence[str], params: Sequence[click.Parameter] = ()
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function, which gets a `Session` first.

    Parameters
    ----------
    name : str
    short : str
        What it does, for the list of commands.
    examples : sequence of str
        Command lines.
    params : sequence of click.Parameter
        Options made from data, after those of decorators.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(json: bool, quiet: bool, debug: bool, **options: Any) -> None:
            session = Session(json, quiet, debug)
            click.get_current_context().exit(_guarded(session, lambda: function(session, **options)))

        shown = "\n".join(f"  {example}" for example in examples)
        made = click.command(
            name,
            short_help=short,
            help=f"{inspect.cleandoc(function.__doc__ or '')}\n\n\b\nExamples:\n{shown}",
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
        )(run)
        made.params += [
            *params,
            click.Option(["--json"], is_flag=True, help="Write the result as one JSON document."),
            click.Option(
                ["-q", "--quiet"], is_flag=True, help="Show no progress and no messages; errors still."
            ),
            click.Option(["--debug"], is_flag=True, help="Show the traceback of an error."),
        ]
        return made

    return decorate


def _guarded(session: Session, body: Callable[[], Any]) -> int:
    """Run a command's body; give the exit code."""
    try:
        with signals(session.stop):
            code = body()
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (click.ClickException, click.exceptions.Exit):
        raise
    except BrokenPipeError:
        # The reader (`head`) has enough. Python flushes stdout once more at exit: let that go nowhere.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as error:
        if session.debug:
            traceback.print_exc()
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        if os.environ.get("RANK", "0") == "0":  # of the processes that torchrun started one speaks
            click.echo(f"stopped by {NAMES[signal.Signals(number)]}: {session.interrupted_note()}", err=True)
        return 128 + number
    except Exception as error:
        if session.debug:
            traceback.print_exc()
        return _explained(error, session.debug)


def _explained(error: Exception, debug: bool) -> int:
    if isinstance(error, OmstoreError):
        report_error(error.message, error.hint)
        return error.exit_code
    if isinstance(error, OSError):
        report_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    text = " ".join(str(error).split())
    report_error(
        f"{type(error).__name__}: {text}" if text else type(error).__name__,
        "" if debug else "This wasn't expected: run again with --debug for the traceback.",
    )
    return 1


def report_error(message: str, hint: str = "") -> None:
    """Write an error and the next step to stderr."""
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def columns(rows: Iterable[tuple[str, str]], indent: int = 2) -> None:
    """Write names and values below each other, the values aligned."""
    pairs = list(rows)
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        click.echo(f"{' ' * indent}{name:<{width}}  {value}".rstrip())
