"""The metrics of a run: one JSON object a refresh, the same whatever interrupted the run; times apart."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from omstore.errors import UsageError
from omstore.memory import memory_use
from trainer import files

__all__ = ["LEVEL0_METRICS", "TIMING", "MetricsFile", "TensorBoard", "TimingFile"]

LEVEL0_METRICS: Mapping[str, str] = {
    "update": "Optimizer updates of level 0 so far.",
    "updates_total": "Updates of level 0: level0_epochs * ceil(training samples / level0_batch).",
    "epoch": "Epoch of the last update, from 0.",
    "loss": "Mean cross-entropy in nats over that epoch so far, each batch before its update.",
    "held_out_loss": "Cross-entropy in nats on the samples that are never trained on; None if there are none.",
}
"""What each metric of level 0 means."""

TIMING: Mapping[str, str] = {
    "time": "Local time with its offset from UTC.",
    "event": "started, resumed, refresh, checkpoint, stopped or finished.",
    "stage": "level0 or staircase.",
    "update": "Updates of both stages so far; batches without a valid root count.",
    "seconds": "Since this process began to train.",
    "updates_per_second": "Of this process, since it began to train.",
    "anonymous": "Anonymous memory now, bytes.",
    "file_backed": "Resident pages of mapped files now, bytes.",
}
"""What each field of ``om/timing.jsonl`` means."""


class MetricsFile:
    """``om/metrics.jsonl``: a line a refresh, with nothing in it that depends on when or how fast.

    A run that goes on cuts the file back to where its checkpoint was written. So the file of a run that was killed and
    resumed equals that of one that wasn't, to the bit.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] | None = None

    def open(self, size: int) -> int:
        """Begin to write after the first `size` bytes; what follows them is cut off.

        Returns
        -------
        int
            Bytes that are missing: more than 0 if somebody shortened the file.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab")
        there = self._file.tell()
        self._file.truncate(min(size, there))
        self._file.seek(0, os.SEEK_END)
        return max(0, size - there)

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return 0 if self._file is None else self._file.tell()

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Append a line.

        Raises
        ------
        UsageError
            If a metric isn't finite.
        """
        for name, value in metrics.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(
                    f"{name} is {value}: training diverged",
                    "Lower lr (level0_lr for level 0), or raise temperature.",
                )
        if self._file is not None:
            self._file.write((json.dumps(metrics, allow_nan=False) + "\n").encode())

    def flush(self) -> None:
        """Flush what was written to the disk: before a checkpoint says how long the file is."""
        if self._file is not None:
            self._file.flush()
            files._fsync(self._file.fileno())

    def close(self) -> None:
        """Flush and close."""
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None


class TimingFile:
    """``om/timing.jsonl``: when, how fast and in how much memory; appended by every process that trains.

    Parameters
    ----------
    path : Path or None
        None writes nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._began = time.monotonic()
        self._first_update: int | None = None

    @property
    def seconds(self) -> float:
        """Since this was made."""
        return time.monotonic() - self._began

    def write(self, event: str, stage: str, update: int) -> None:
        """Append a line, flushed so that others see it."""
        if self._first_update is None:
            self._first_update = update
        if self._path is None:
            return
        use = memory_use()
        seconds = self.seconds
        line = {
            "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            "event": event,
            "stage": stage,
            "update": update,
            "seconds": round(seconds, 3),
            "updates_per_second": round((update - self._first_update) / seconds, 3) if seconds > 0 else 0.0,
            "anonymous": use.anonymous,
            "file_backed": use.file_backed,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


class TensorBoard:
    """The metrics for TensorBoard, in a folder a stage; x is updates for level 0, root states for the staircase.

    Parameters
    ----------
    folder : Path
    steps : mapping
        The x of each stage where a run goes on: what was written beyond it is hidden.

    Raises
    ------
    UsageError
        If the tensorboard package isn't there.
    """

    def __init__(self, folder: Path, steps: Mapping[str, int]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError(
                f"--tensorboard: {error}", "Install it with: pip install 'omstore[tensorboard]'"
            ) from error
        self._make: Any = SummaryWriter
        self._folder = folder
        self._steps = dict(steps)
        self._writers: dict[str, Any] = {}

    def write(self, stage: str, metrics: Mapping[str, Any]) -> None:
        """Write the numbers among the metrics of a refresh."""
        step = int(metrics["update"] if stage == "level0" else metrics["global"])
        writer = self._writers.get(stage)
        if writer is None:
            # purge_step hides that step itself as well
            purge = self._steps[stage] + 1 if self._steps.get(stage) else None
            writer = self._writers[stage] = self._make(str(self._folder / stage), purge_step=purge)
        for name, value in metrics.items():
            if isinstance(value, int | float):
                writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is buffered."""
        for writer in self._writers.values():
            writer.close()
