"""Says so when numba compiles kernels, which takes up to a minute the first time on a machine."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from numba.core import event

__all__ = ["announce_compiling"]

_PATIENCE = 1.0
"""Seconds of compiling, taken together, that pass unannounced: one small kernel isn't worth a line."""


class _Listener(event.Listener):  # type: ignore[misc,unused-ignore]
    # numba triggers this event when it really compiles, not when it loads machine code from its cache.
    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._timer: threading.Timer | None = None
        self._depth = 0
        self._began = 0.0
        self._spent = 0.0
        self._said = False

    def on_start(self, event: Any) -> None:
        self._depth += 1
        if self._depth == 1 and not self._said:
            self._began = time.monotonic()
            self._timer = threading.Timer(max(0.0, _PATIENCE - self._spent), self._announce)
            self._timer.daemon = True
            self._timer.start()

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._spent += time.monotonic() - self._began
            self.stop()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _announce(self) -> None:
        if not self._said:
            self._said = True
            self._say("compiling kernels, once per machine; this may take a minute ...")


@contextlib.contextmanager
def announce_compiling(say: Callable[[str], object]) -> Iterator[None]:
    """Call `say` with a line, at most once, when kernels take more than a second to compile."""
    listener = _Listener(say)
    with event.install_listener("numba:compile", listener):
        try:
            yield
        finally:
            listener.stop()
