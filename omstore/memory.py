"""Memory budgets, and what the process really uses.

A budget bounds *anonymous* memory. Pages of mapped files count in RSS, and with one process in USS as
well, yet the kernel drops them when it needs room; so the two are always reported apart.
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from omstore.errors import UsageError

__all__ = ["DEFAULT_BUDGET", "MemoryUse", "PeakMemory", "format_bytes", "memory_use", "parse_bytes"]

DEFAULT_BUDGET = 512 << 20
"""Bytes of anonymous memory an operation may use unless told otherwise (``--max-ram``)."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)


def parse_bytes(text: str | int) -> int:
    """Read a size such as ``512M``, ``1.5 GiB`` or ``1048576``; units are powers of 1024.

    Raises
    ------
    UsageError
        If the text isn't a size.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} isn't a size", "Write it as 512M, 1.5G or a number of bytes.")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def format_bytes(count: float) -> str:
    """Write a number of bytes for people: ``17 B``, ``1.4 MiB``, ``15.9 GiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or abs(size) >= 100 else f"{size:.1f} {unit}"


@dataclass(frozen=True)
class MemoryUse:
    """Resident memory of this process in bytes, by what backs it."""

    anonymous: int
    file_backed: int


def memory_use() -> MemoryUse:
    """Read RssAnon and RssFile + RssShmem of this process from ``/proc/self/status``.

    Where there is none (not Linux), the memory unique to the process counts as anonymous, as psutil tells it.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        process = psutil.Process()
        own = process.memory_full_info().uss
        return MemoryUse(own, max(0, process.memory_info().rss - own))
    sizes = {"RssAnon": 0, "RssFile": 0, "RssShmem": 0}
    for line in status.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) << 10
    return MemoryUse(sizes["RssAnon"], sizes["RssFile"] + sizes["RssShmem"])


class PeakMemory:
    """Sample this process's memory from a thread, and keep the highest of each kind.

    The kernel keeps a peak of the whole RSS only, so the anonymous peak has to be sampled; it is for
    reports, not a proof.
    """

    def __init__(self, interval: float = 0.02) -> None:
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="omstore-memory", daemon=True)
        self.anonymous = 0
        self.file_backed = 0

    def sample(self) -> None:
        """Take one sample now."""
        use = memory_use()
        self.anonymous = max(self.anonymous, use.anonymous)
        self.file_backed = max(self.file_backed, use.file_backed)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.sample()

    def __enter__(self) -> PeakMemory:
        self.sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()
