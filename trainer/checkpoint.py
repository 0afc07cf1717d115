"""Checkpoints: where a training run stands, written whole, the newest two kept."""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from omstore.errors import UsageError
from trainer.files import write_atomically

__all__ = ["KEPT", "CheckpointClock", "Checkpoints", "from_bytes", "to_bytes"]

KEPT = 2
"""Checkpoints kept: the newest, and the one before in case that one is damaged."""

_NAME = re.compile(r"checkpoint-(\d{10})-([0-9a-f]{16})\.pt")


def to_bytes(document: Any) -> bytes:
    """Return what `torch.save` writes of plain dicts, lists, numbers, words and tensors."""
    buffer = io.BytesIO()
    torch.save(document, buffer)
    return buffer.getvalue()


def from_bytes(data: bytes) -> Any:
    """Return what `to_bytes` was given, tensors on the CPU; executes nothing."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


class Checkpoints:
    """The checkpoints of an export's training, ``om/checkpoints/checkpoint-UPDATE-DIGEST.pt``.

    The name holds the first 16 hex digits of the sha256 of the file, so damage is noticed. Plain `torch.load` opens one.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, update: int, document: dict[str, Any]) -> Path:
        """Write a checkpoint, and delete all but the newest `KEPT`.

        Raises
        ------
        DiskFullError
            If there is no room; earlier checkpoints are still there.
        """
        data = to_bytes(document)
        path = self.folder / f"checkpoint-{update:010d}-{hashlib.sha256(data).hexdigest()[:16]}.pt"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        for old in self.paths()[KEPT:]:
            old.unlink(missing_ok=True)
        return path

    def paths(self) -> list[Path]:
        """Return the checkpoints there are, newest first."""
        found = [path for path in self.folder.glob("checkpoint-*.pt") if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: path.name, reverse=True)

    def newest(self, say: Callable[[str], object]) -> bytes | None:
        """Return the bytes of the newest checkpoint that is whole; None if there is none.

        Parameters
        ----------
        say : callable
            Told of damaged ones.

        Raises
        ------
        UsageError
            If all are damaged.
        """
        paths = self.paths()
        for path in paths:
            data = path.read_bytes()
            match = _NAME.fullmatch(path.name)
            if match is not None and hashlib.sha256(data).hexdigest()[:16] == match[2]:
                return data
            say(f"{path} is damaged: its bytes aren't those that were written; trying the one before")
        if paths:
            raise UsageError(
                f"all checkpoints in {self.folder} are damaged",
                "Start over with --fresh, or put back a copy.",
            )
        return None

    def clear(self) -> None:
        """Delete all checkpoints, and what a killed run left half-written."""
        for path in [*self.paths(), *self._partial()]:
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _partial(self) -> Iterator[Path]:
        return self.folder.glob(".checkpoint-*.partial")


class CheckpointClock:
    """Says when a checkpoint is due: after some updates, or some seconds, whichever comes first.

    Time decides when one is written, never what is in it.

    Parameters
    ----------
    updates : int
    seconds : float
    now : callable
        A clock in seconds.
    """

    def __init__(self, updates: int, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._updates = updates
        self._seconds = seconds
        self._now = now
        self.restart(0)

    def restart(self, update: int) -> None:
        """Count anew: a checkpoint was written after `update` updates."""
        self._last_update = update
        self._last_time = self._now()

    def due(self, update: int) -> bool:
        """Whether one should be written after `update` updates."""
        return (
            update - self._last_update >= self._updates or self._now() - self._last_time >= self._seconds
        ) and update > self._last_update
