"""Ctrl-C, SIGTERM and SIGHUP: how a command learns that it is to stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

__all__ = ["Interrupted", "signal_name", "signals", "stop_once"]

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


class Interrupted(KeyboardInterrupt):
    """Something asked to stop.

    Parameters
    ----------
    number : int
        Of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def signal_name(number: int) -> str:
    """Return what people call a signal to stop."""
    return _NAMES[signal.Signals(number)]


def stop_once(number: int) -> None:
    """Stop, once: what follows is clean-up, and isn't interrupted by further signals.

    Raises
    ------
    Interrupted
        Always.
    """
    for each in _NAMES:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)


@contextlib.contextmanager
def signals(handle: Callable[[int], object] = stop_once) -> Iterator[None]:
    """Hand signals to stop to a function while the context lasts.

    Does nothing outside the main thread, where Python delivers no signals, and leaves signals alone that are ignored,
    as ``nohup`` has it.

    Parameters
    ----------
    handle : callable
        Gets the number of the signal, and may raise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        handle(number)

    before: dict[int, Any] = {}
    for each in _NAMES:
        if signal.getsignal(each) is not signal.SIG_IGN:
            before[each] = signal.signal(each, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
