"""Progress of long operations, on stderr: bars on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Protocol, TextIO

from tqdm import tqdm

__all__ = ["Progress", "Task", "for_stream", "silent", "timed"]

LINE_INTERVAL = 10.0
"""Seconds between two lines of a task where there is no terminal: a job's log stays short."""


class Task(Protocol):
    """One thing being done, counted in `unit`; a context manager that ends it."""

    def update(self, n: int) -> None:
        """Count `n` more."""

    def set(self, n: int, total: int | None = None) -> None:
        """Set the count to `n`; and the total, where it became known only now."""

    def __enter__(self) -> Task: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Progress(Protocol):
    """Where progress is shown. Tasks may run at once in several threads."""

    def task(self, name: str, total: int | None, unit: str) -> Task:
        """Begin a task of `total` units (None: unknown); `unit` such as ``edges`` or ``B`` (bytes)."""

    def message(self, text: str) -> None:
        """Show a line of text."""


def silent() -> Progress:
    """Give a progress that shows nothing."""
    return _Silent()


def for_stream(stream: TextIO | None = None, quiet: bool = False) -> Progress:
    """Give bars where `stream` is a terminal, else lines; nothing when `quiet`.

    Parameters
    ----------
    stream : text file, optional
        By default ``sys.stderr``.
    quiet : bool
        Show nothing.
    """
    if quiet:
        return silent()
    target = sys.stderr if stream is None else stream
    return _Bars(target) if target.isatty() else _Lines(target)


@contextlib.contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Write the wall time that the context takes to ``seconds[stage]``, unless it fails."""
    begin = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - begin


class _Counter:
    """What all tasks share: a count, kept under a lock, and a show when it changed."""

    def __init__(self, name: str, total: int | None, unit: str) -> None:
        self.name = name
        self.total = total
        self.unit = unit
        self.done = 0
        self.lock = threading.Lock()

    def update(self, n: int) -> None:
        with self.lock:
            self.done += n
            self.show()

    def set(self, n: int, total: int | None = None) -> None:
        with self.lock:
            self.done = n
            self.total = self.total if total is None else total
            self.show()

    def show(self) -> None:
        pass

    def end(self, failed: bool) -> None:
        pass

    def __enter__(self) -> Task:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self.lock:
            self.end(kind is not None)


class _Silent:
    def task(self, name: str, total: int | None, unit: str) -> Task:
        return _Counter(name, total, unit)

    def message(self, text: str) -> None:
        pass


class _Bar(tqdm):  # type: ignore[type-arg,unused-ignore,misc]
    # No monitor thread, and no lock shared between processes: workers are forked while bars are shown.
    monitor_interval = 0


_Bar.set_lock(threading.RLock())


class _BarTask(_Counter):
    def __init__(self, name: str, total: int | None, unit: str, stream: TextIO) -> None:
        super().__init__(name, total, unit)
        self._bar = _Bar(
            desc=name,
            total=total,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=True,
            unit_divisor=1024 if unit == "B" else 1000,
            file=stream,
            dynamic_ncols=True,
        )

    def show(self) -> None:
        self._bar.total = self.total
        self._bar.update(self.done - self._bar.n)

    def end(self, failed: bool) -> None:
        self._bar.close()


class _Bars:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def task(self, name: str, total: int | None, unit: str) -> Task:
        return _BarTask(name, total, unit, self._stream)

    def message(self, text: str) -> None:
        _Bar.write(text, file=self._stream)
        self._stream.flush()


class _Lines:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def task(self, name: str, total: int | None, unit: str) -> Task:
        return _LineTask(name, total, unit, self)

    def message(self, text: str) -> None:
        with self._lock:
            self._stream.write(f"{text}\n")
            self._stream.flush()


class _LineTask(_Counter):
    def __init__(self, name: str, total: int | None, unit: str, lines: _Lines) -> None:
        super().__init__(name, total, unit)
        self._lines = lines
        self._began = self._shown = time.monotonic()

    def show(self) -> None:
        now = time.monotonic()
        if now - self._shown < LINE_INTERVAL:
            return
        self._shown = now
        elapsed = now - self._began
        rate = self.done / elapsed
        parts = [f"{self.name}: {self._count(self.done)}"]
        if self.total:
            done = self._count(self.done).removesuffix(f" {self.unit}")
            percent = 100 * self.done / self.total
            parts = [f"{self.name}: {done} of {self._count(self.total)} ({percent:.0f}%)"]
        parts.append(f"{self._count(rate)}/s")
        if self.total and rate > 0:
            parts.append(f"{format_seconds(max(0, self.total - self.done) / rate)} left")
        self._lines.message(", ".join(parts))

    def end(self, failed: bool) -> None:
        elapsed = time.monotonic() - self._began
        state = "stopped after" if failed else "done in"
        rate = f", {self._count(self.done / elapsed)}/s" if elapsed >= 0.1 else ""
        self._lines.message(f"{self.name}: {self._count(self.done)}, {state} {format_seconds(elapsed)}{rate}")

    def _count(self, value: float) -> str:
        if self.unit == "B":
            size, unit = value, "B"
            for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
                if size < 1024 or unit == "TiB":
                    break
                size /= 1024
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        return f"{value:,.0f} {self.unit}"


def format_seconds(seconds: float) -> str:
    """Write a duration for people: ``3.2 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
