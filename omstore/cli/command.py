"""What all commands share: --json, --quiet, --debug, errors, signals, progress."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import click

from omstore.cli.output import print_json, report_error
from omstore.errors import OmstoreError

__all__ = ["Interrupted", "Session", "allow_model_import_option", "command", "max_ram_option"]

_STOPPING = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


class Interrupted(KeyboardInterrupt):
    """A signal asked the command to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


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
    def progress(self) -> Any:
        """Where progress is shown; loads what shows it."""
        from omstore.progress import for_stream

        return for_stream(sys.stderr, quiet=self.quiet)

    def emit(self, document: Any, write: Callable[[], None]) -> None:
        """Write a result: the document as JSON where that was asked for, else by `write`."""
        if self.json:
            print_json(document)
        else:
            write()


def command(
    name: str, *, short: str, examples: Sequence[str], compiles: bool = True
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
    compiles : bool
        Whether compiled kernels are used, so that compiling them (once a machine) is announced.
    """

    def decorate(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def run(json: bool, quiet: bool, debug: bool, **options: Any) -> None:
            session = Session(json, quiet, debug)
            code = _guarded(session, compiles, lambda: function(session, **options))
            click.get_current_context().exit(code)

        shown = "\n".join(f"  {example}" for example in examples)
        made = click.command(
            name,
            short_help=short,
            help=f"{inspect.cleandoc(function.__doc__ or '')}\n\n\b\nExamples:\n{shown}",
            context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
        )(run)
        made.params += [
            click.Option(
                ["--json"], is_flag=True, help="Write the result as one JSON document.", show_default=False
            ),
            click.Option(
                ["-q", "--quiet"],
                is_flag=True,
                help="Show no progress and no messages; errors still.",
                show_default=False,
            ),
            click.Option(
                ["--debug"], is_flag=True, help="Show the traceback of an error.", show_default=False
            ),
        ]
        return made

    return decorate


def _guarded(session: Session, compiles: bool, body: Callable[[], Any]) -> int:
    """Run a command's body; give the exit code."""
    try:
        with _signals(), _announced(session) if compiles else contextlib.nullcontext():
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
    except OmstoreError as error:
        if session.debug:
            traceback.print_exc()
        report_error(error.message, error.hint)
        return error.exit_code
    except KeyboardInterrupt as error:
        if session.debug:
            traceback.print_exc()
        number = error.number if isinstance(error, Interrupted) else signal.SIGINT
        click.echo(f"stopped by {_STOPPING[signal.Signals(number)]}: {session.interrupted_note()}", err=True)
        return 128 + number
    except OSError as error:
        if session.debug:
            traceback.print_exc()
        report_error(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    except Exception as error:
        if session.debug:
            traceback.print_exc()
        text = " ".join(str(error).split())
        report_error(
            f"{type(error).__name__}: {text}" if text else type(error).__name__,
            "" if session.debug else "This wasn't expected: run again with --debug for the traceback.",
        )
        return 1


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Turn signals to stop into an exception, once: what follows it is clean-up and isn't interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for each in _STOPPING:
        if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup has it
            before[each] = signal.signal(each, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _announced(session: Session) -> Iterator[None]:
    """Say so when kernels are being compiled."""
    from omstore.compiling import announce_compiling

    with announce_compiling(session.progress.message):
        yield


def allow_model_import_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--allow-model-import``: for stores whose rows a model answers."""
    return click.option(
        "--allow-model-import",
        is_flag=True,
        show_default=False,
        help="Import, and so execute, the model that a store with procedural rows names. Other stores execute "
        "nothing.",
    )(function)


def max_ram_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--max-ram``: bytes of anonymous memory."""

    def parse(context: click.Context, option: click.Parameter, text: str) -> int:
        from omstore.memory import parse_bytes

        try:
            return parse_bytes(text)
        except OmstoreError as error:
            raise click.BadParameter(f"{error.message}. {error.hint}") from error

    return click.option(
        "--max-ram",
        default="512M",
        metavar="SIZE",
        callback=parse,
        help="Anonymous memory to use, such as 512M or 2G (units of 1024). Pages of mapped files come on "
        "top, and are the kernel's to drop.",
    )(function)
