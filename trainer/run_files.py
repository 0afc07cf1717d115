"""What a run writes into an export's ``om/`` on its way: checkpoints, metrics, times."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainer.checkpoint import CheckpointClock, Checkpoints
from trainer.config import TrainConfig
from trainer.metrics import MetricsFile, TensorBoard, TimingFile
from trainer.progress import Metrics

__all__ = ["RunFiles"]

Message = Callable[[str], None]


class RunFiles:
    """The files of a run; only rank 0 writes, the others go through the same motions.

    Parameters
    ----------
    om : Path
    config : TrainConfig
    writes : bool
        Whether this process writes.

    Attributes
    ----------
    checkpoints : Checkpoints
    timing : TimingFile
    """

    def __init__(self, om: Path, config: TrainConfig, writes: bool) -> None:
        self.om = om
        self.writes = writes
        self.checkpoints = Checkpoints(om / "checkpoints")
        self.timing = TimingFile(om / "timing.jsonl" if writes else None)
        self._tensorboard = config.tensorboard
        self._metrics = MetricsFile(om / "metrics.jsonl")
        self._clock = CheckpointClock(config.checkpoint_updates, config.checkpoint_seconds)
        self._board: TensorBoard | None = None

    @property
    def metrics_bytes(self) -> int:
        """Bytes of ``metrics.jsonl`` so far."""
        return self._metrics.size

    def forget(self) -> None:
        """Delete what an earlier run wrote, but for its artifact."""
        if not self.writes:
            return
        self.checkpoints.clear()
        for name in ("metrics.jsonl", "timing.jsonl"):
            (self.om / name).unlink(missing_ok=True)
        shutil.rmtree(self.om / "tensorboard", ignore_errors=True)

    def newest(self, message: Message) -> bytes | None:
        """Return the newest checkpoint that isn't damaged; None if there is none, or another rank reads it.

        Raises
        ------
        UsageError
            If all checkpoints are damaged.
        """
        return (self.checkpoints.newest(message) or b"") if self.writes else None

    def open(self, metrics_bytes: int, steps: Mapping[str, int], message: Message) -> None:
        """Open the metrics where a checkpoint left them.

        Parameters
        ----------
        metrics_bytes : int
            Bytes to keep of ``metrics.jsonl``; 0 in a new run.
        steps : mapping of str to int
            Where TensorBoard's stages are, see `TensorBoard`.
        message : callable
            Told if bytes are missing.
        """
        if not self.writes:
            return
        missing = self._metrics.open(metrics_bytes)
        if missing:
            message(
                f"note: {self._metrics.path} lacks {missing:,} bytes of metrics written before the checkpoint"
            )
        if self._tensorboard:
            self._board = TensorBoard(self.om / "tensorboard", steps)

    def write(self, stage: str, metrics: Metrics) -> None:
        """Append the metrics of a refresh.

        Raises
        ------
        UsageError
            If one isn't finite.
        """
        self._metrics.write(metrics)
        if self._board is not None:
            self._board.write(stage, metrics)

    def is_due(self, update: int) -> bool:
        """Whether it is time for a checkpoint."""
        return self._clock.due(update)

    def checkpoint(self, stage: str, update: int, document: Callable[[], dict[str, Any]]) -> None:
        """Write a checkpoint of what `document` returns; the metrics before it are on the disk first.

        Raises
        ------
        DiskFullError
            If there is no room.
        """
        if self.writes:
            self._metrics.flush()
            self.checkpoints.write(update, document())
            self.timing.write("checkpoint", stage, update)
        self._clock.restart(update)

    def begin(self, event: str, stage: str, update: int) -> None:
        """Note that training begins, now."""
        self._clock.restart(update)
        self.timing.write(event, stage, update)

    def close(self) -> None:
        """Close what is written."""
        self._metrics.close()
        if self._board is not None:
            self._board.close()
