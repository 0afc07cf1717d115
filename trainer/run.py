"""The main job: level 0, then the staircase, with checkpoints and metrics, to the artifact."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from omstore.errors import StoreNotFoundError
from omstore.memory import PeakMemory
from omstore.progress import Progress, silent
from trainer.artifact import ARTIFACT
from trainer.config import TrainConfig
from trainer.distributed import joined
from trainer.files import training_lock
from trainer.progress import Metrics
from trainer.stages import TrainingRun
from trainer.stopping import Stop

__all__ = ["TrainReport", "train"]


@dataclass(frozen=True)
class TrainReport:
    """What a run came to.

    Attributes
    ----------
    export : str
    artifact : str
        The file made.
    device : str
    rank, ranks : int
        Which process this is, of how many; only rank 0 wrote.
    updates : int
        Of level 0 and of the staircase, those of earlier processes included; batches without a valid root count.
    resumed_from : int or None
        Updates there were when this process began; None: it began at the beginning.
    seconds : float
        This process's training, preparation included.
    updates_per_second : float or None
        Of the staircase, in this process; None if it made none.
    level0 : dict
        What level 0 came to; see `Level0Report`.
    phases : list of dict
        The metrics at the end of each phase.
    peak_anonymous, peak_file_backed : int
        Bytes, sampled in this process.
    notes : tuple of str
        Remarks for people.
    """

    export: str
    artifact: str
    device: str
    rank: int
    ranks: int
    updates: int
    resumed_from: int | None
    seconds: float
    updates_per_second: float | None
    level0: dict[str, Any]
    phases: list[Metrics]
    peak_anonymous: int
    peak_file_backed: int
    notes: tuple[str, ...] = ()


def train(
    export: str | Path,
    config: TrainConfig | None = None,
    *,
    fresh: bool = False,
    progress: Progress | None = None,
    stream: TextIO | None = None,
    stop: Stop | None = None,
) -> TrainReport:
    """Train the opponent model of an export, or go on with it: level 0, the staircase, ``om/iop_stack.pt``.

    Equal stores, settings that decide and kinds of machine give equal weights and metrics, to the bit, however often the
    run was killed and went on, on any number of ranks and threads. Files are in the export's ``om/``: see
    ``docs/training.md``.

    Parameters
    ----------
    export : path
        An export's folder, with a store.
    config : TrainConfig, optional
    fresh : bool
        Start over; the checkpoints and metrics of an earlier run are deleted, its artifact is replaced at the end.
    progress : Progress, optional
        Where messages and progress go; None shows none.
    stream : text file, optional
        Where the bars of the staircase go; None shows none.
    stop : Stop, optional
        Asks to stop: a checkpoint is written then.

    Returns
    -------
    TrainReport

    Raises
    ------
    UsageError
        If it can't go on from the last checkpoint: other settings, another store, all checkpoints damaged; or
        training diverges.
    StoreNotFoundError
        If there is no store, or a part of it is missing.
    WriterBusyError
        If another process trains there.
    MemoryBudgetError, DiskFullError
        If memory or disk don't do.
    Interrupted
        If `stop` asked for it; a checkpoint was written.
    """
    config = config or TrainConfig()
    with joined(config.device) as (processes, device), PeakMemory() as memory, contextlib.ExitStack() as held:
        first = processes.rank == 0
        om = Path(export) / "om"
        if first:
            _check_export(Path(export))
            held.enter_context(training_lock(om))
        run = TrainingRun(
            Path(export),
            config,
            processes,
            device,
            progress if progress is not None and first else silent(),
            stream if stream is not None and first else _Nowhere(),
            stop or Stop(),
        )
        held.enter_context(contextlib.closing(run))
        run.begin(fresh)
        run.go()
        memory.sample()
        return _report(run, memory)


def _check_export(export: Path) -> None:
    if not export.is_dir():
        raise StoreNotFoundError(
            f"{export} isn't a folder", "Give an export's folder, such as exports/pursuit/3."
        )


class _Nowhere(io.TextIOBase):
    """A stream that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)

    def isatty(self) -> bool:
        return False


def _report(run: TrainingRun, memory: PeakMemory) -> TrainReport:
    return TrainReport(
        export=str(run.export),
        artifact=str(run.om / ARTIFACT),
        device=str(run.device),
        rank=run.processes.rank,
        ranks=run.processes.size,
        updates=run.update,
        resumed_from=run.resumed_from,
        seconds=run.files.timing.seconds,
        updates_per_second=run.updates_per_second,
        level0=run.position.level0,
        phases=run.position.phases,
        peak_anonymous=memory.anonymous,
        peak_file_backed=memory.file_backed,
        notes=run.inputs.notes,
    )
