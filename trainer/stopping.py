"""Ctrl-C and SIGTERM: training ends its update and writes a checkpoint; elsewhere they stop at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

__all__ = ["Interrupted", "Stop", "signals"]

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


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


class Stop:
    """Asks a run to stop.

    Attributes
    ----------
    number : int or None
        Of the signal that asked; None: nothing did.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._deferring = False

    def request(self, number: int = signal.SIGINT) -> None:
        """Ask to stop: at the next moment that a checkpoint can be written, else, and the second time, at once.

        Raises
        ------
        Interrupted
            Where it is at once.
        """
        if not self._deferring or self.number is not None:
            raise Interrupted(number)
        self.number = number

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """In this block whoever runs looks at `number` itself, after every update."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False


@contextlib.contextmanager
def signals(stop: Stop) -> Iterator[None]:
    """Turn signals to stop into requests while the context lasts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        stop.request(number)

    before: dict[int, Any] = {}
    for each in NAMES:
        if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup has it
            before[each] = signal.signal(each, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
