"""Ctrl-C and SIGTERM: training ends its update and writes a checkpoint; elsewhere they stop at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

from omstore.terminal import Interrupted

__all__ = ["Interrupted", "Stop"]


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
