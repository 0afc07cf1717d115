"""A command made of a function: --json, --quiet and --debug, progress, and what it raises as messages and exit codes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from omstore.errors import OmstoreError
from omstore.terminal.output import print_json, report_error
from omstore.terminal.signals import Interrupted, signal_name, signals, stop_once

if TYPE_CHECKING:
    from omstore.progress import Progress

__all__ = ["Session", "command"]


@dataclass
class Session:
    """How a command was asked to talk.

    Attributes
    ----------
    json : bool
        Results as JSON.
    quiet : bool
        No progress and no messages.
    debug : bool
        Tracebacks.
    interrupted_note : callable
        Says what an interruption left; a command may put its own here.
    """

    json: bool = False
    quiet: bool = False
    debug: bool = False
    interrupted_note: Callable[[], str] = field(default=lambda: "nothing was changed")

    @functools.cached_property
    def progress(self) -> Progress:
        """Where progress is shown; loads what shows it."""
        from omstore.progress import for_stream

        return for_stream(sys.stderr, quiet=self.quiet)

    @property
    def speaks(self) -> bool:
        """Whether this process says that it was interrupted: of several that run a command together, one."""
        return True

    def on_signal(self, number: int) -> None:
        """Do what a signal to stop asks for: by default, stop at once."""
        stop_once(number)

    def emit(self, document: Any, write: Callable[[], None]) -> None:
        """Write a result: the document as JSON where that was asked for, else by `write`."""
        if self.json:
            print_json(document)
        else:
            write()


def command(
    name: str,
    *,
    short: str,
    examples: Sequence[str],
    params: Sequence[click.Parameter] = (),
    compiles: bool = True,
    session: Callable[[bool, bool, bool], Session] = Session,
    context: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function; the one decorator that all commands use.

    Adds ``--json``, ``--quiet`` and ``--debug``, appends the examples to the help, and turns what the
    function raises into messages and exit codes. The function gets a `Session` first and may return an exit
    code.

    Parameters
    ----------
    name : str
    short : str
        What it does, in at most 60 characters, for the list of commands.
    examples : sequence of str
        Command lines.
    params : sequence of click.Parameter
        Options made from data, after those of decorators.
    compiles : bool
        Whether compiled kernels are used, so that compiling them (once a machine) is announced.
    session : callable
        Makes the session of ``--json``, ``--quiet`` and ``--debug``.
    context : mapping, optional
        Further settings of the command's `click.Context`.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(json: bool, quiet: bool, debug: bool, **options: Any) -> None:
            asked = session(json, quiet, debug)
            code = _guarded(asked, compiles, lambda: function(asked, **options))
            click.get_current_context().exit(code)

        shown = "\n".join(f"  {example}" for example in examples)
        made = click.command(
            name,
            short_help=short,
            help=f"{inspect.cleandoc(function.__doc__ or '')}\n\n\b\nExamples:\n{shown}",
            context_settings={"help_option_names": ["-h", "--help"], **(context or {})},
        )(run)
        made.params += [
            *params,
            _flag(["--json"], "Write the result as one JSON document."),
            _flag(["-q", "--quiet"], "Show no progress and no messages; errors still."),
            _flag(["--debug"], "Show the traceback of an error."),
        ]
        return made

    return decorate


def _flag(names: list[str], sentence: str) -> click.Option:
    return click.Option(names, is_flag=True, help=sentence, show_default=False)


def _guarded(session: Session, compiles: bool, body: Callable[[], Any]) -> int:
    """Run a command's body; give the exit code."""
    try:
        with signals(session.on_signal), _announced(session) if compiles else contextlib.nullcontext():
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
        if session.speaks:
            click.echo(f"stopped by {signal_name(number)}: {session.interrupted_note()}", err=True)
        return 128 + number
    except Exception as error:
        if session.debug:
            traceback.print_exc()
        return _explained(error, session.debug)


def _explained(error: Exception, debug: bool) -> int:
    """Write what went wrong; give the exit code."""
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


@contextlib.contextmanager
def _announced(session: Session) -> Iterator[None]:
    """Say so when kernels are being compiled."""
    from omstore.compiling import announce_compiling

    with announce_compiling(session.progress.message):
        yield
