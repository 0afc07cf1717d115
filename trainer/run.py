"""The main job: level 0, then the staircase, with checkpoints and metrics, to the artifact."""

from __future__ import annotations

import contextlib
import io
import math
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

import omstore
from omstore.errors import StoreNotFoundError, UsageError
from omstore.memory import PeakMemory
from omstore.progress import Progress, silent
from trainer.artifact import ARTIFACT, save_stack, store_identity
from trainer.checkpoint import CheckpointClock, Checkpoints, from_bytes
from trainer.config import TrainConfig
from trainer.distributed import Processes, joined
from trainer.exact.phases import PhaseEvaluator
from trainer.files import training_lock
from trainer.improvement import RolloutModel
from trainer.level0_training import Level0Trainer
from trainer.metrics import MetricsFile, TensorBoard, TimingFile
from trainer.models import ImaginedOpponent, OpponentMLP
from trainer.prepare import OMTrainingInputs, prepare_om_training_inputs
from trainer.progress import Metrics
from trainer.staircase import Staircase
from trainer.stopping import Interrupted, Stop

__all__ = ["TrainReport", "train"]

_SCHEMA = 1
_AGENT_WEIGHTS = 0xA6E27
"""Word of the key from which the agent's first weights are seeded: they aren't those of the opponent model."""


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
        run = _Run(
            Path(export),
            config,
            processes,
            device,
            _Shown(
                progress if progress is not None and first else silent(),
                stream if stream is not None and first else _Nowhere(),
            ),
            stop or Stop(),
        )
        held.enter_context(contextlib.closing(run))
        run.begin(fresh)
        run.go()
        memory.sample()
        return run.report(memory)


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


@dataclass(frozen=True)
class _Shown:
    progress: Progress
    stream: Any


@dataclass
class _Position:
    """How far a run is, and what it came to so far: what a checkpoint holds beside weights."""

    stage: str = "level0"
    level0: dict[str, Any] = field(default_factory=dict)
    phases: list[Metrics] = field(default_factory=list)


class _Run:
    """One run: what it needs, what it writes, the two stages."""

    def __init__(
        self,
        export: Path,
        config: TrainConfig,
        processes: Processes,
        device: torch.device,
        shown: _Shown,
        stop: Stop,
    ) -> None:
        self.export = export
        self.config = config
        self.processes = processes
        self.device = device
        self.shown = shown
        self.stop = stop
        self.writes = processes.rank == 0
        om = export / "om"
        self.om = om
        self.checkpoints = Checkpoints(om / "checkpoints")
        self.metrics = MetricsFile(om / "metrics.jsonl")
        self.timing = TimingFile(om / "timing.jsonl" if self.writes else None)
        self.clock = CheckpointClock(config.checkpoint_updates, config.checkpoint_seconds)
        self.board: TensorBoard | None = None
        self.position = _Position()
        self.level0: Level0Trainer | None = None
        self.staircase: Staircase | None = None
        self.evaluator: PhaseEvaluator | None = None
        self.resumed_from: int | None = None
        self._staircase_began: tuple[float, int] | None = None

    def close(self) -> None:
        """Close what is written."""
        self.metrics.close()
        if self.board is not None:
            self.board.close()

    # -- beginning

    def begin(self, fresh: bool) -> None:
        """Find where to go on, load the data, and be ready to."""
        if self.writes and fresh:
            self._forget()
        data = (self.checkpoints.newest(self.shown.progress.message) or b"") if self.writes else None
        data = self.processes.from_first(data)
        saved = from_bytes(data) if data else None
        if saved is not None:
            self._check_settings(saved)
        self.inputs = self._prepare(saved)
        self._make_networks()
        if saved is not None:
            self._restore(saved)
        else:
            self.level0 = self._level0_trainer()
        if self.writes:
            self._open_files(0 if saved is None else int(saved["metrics_bytes"]))
        self.clock.restart(self.update)
        self.timing.write("started" if saved is None else "resumed", self.position.stage, self.update)

    def _forget(self) -> None:
        self.checkpoints.clear()
        for name in ("metrics.jsonl", "timing.jsonl"):
            (self.om / name).unlink(missing_ok=True)
        shutil.rmtree(self.om / "tensorboard", ignore_errors=True)

    def _check_settings(self, saved: dict[str, Any]) -> None:
        if saved["schema"] != _SCHEMA:
            raise UsageError(
                f"the checkpoints in {self.checkpoints.folder} are of schema {saved['schema']}, not {_SCHEMA}",
                "Go on with the version that wrote them, or start over with --fresh.",
            )
        differences = self.config.differences(saved["config"])
        if differences:
            raise UsageError(
                f"{self.om} holds a run with other settings: {'; '.join(differences)}",
                "Give the same settings to go on, or start over with --fresh.",
            )
        if saved["device"] != self.device.type:
            self.shown.progress.message(
                f"begun on {saved['device']}, going on on {self.device.type}: from here on the last bits differ from "
                "what an uninterrupted run gives"
            )

    def _prepare(self, saved: dict[str, Any] | None) -> OMTrainingInputs:
        config = self.config
        version = config.store_version
        if version is None and saved is not None:
            version = saved["store"]["version"]
        with self.shown.progress.task("loading the replay", config.capacity, "transitions") as task:
            inputs = prepare_om_training_inputs(
                self.export,
                focal_agent=_agent(config.focal_agent),
                capacity=config.capacity,
                strict=config.strict,
                representation=config.representation,
                legal_cache=config.legal_cache,
                max_ram=config.max_ram,
                version=version,
                allow_model_import=config.allow_model_import,
                tick=task.update,
            )
        for note in inputs.notes:
            self.shown.progress.message(f"note: {note}")
        self.store = store_identity(inputs.store)
        if saved is not None and saved["store"]["digest"] != self.store["digest"]:
            raise UsageError(
                f"{self.om} holds a run on another store: its {saved['store']['version']} had the digest "
                f"{saved['store']['digest'][:16]}, {inputs.store.path} has {self.store['digest'][:16]}",
                "Put the earlier store back, or start over with --fresh.",
            )
        return inputs

    def _make_networks(self) -> None:
        dyn, config = self.inputs.dyn, self.config
        self.opponent = ImaginedOpponent(
            dyn.state_width, dyn.actions.num_team, config.hidden, seed=config.seed
        ).to(self.device)
        seed = int(omstore.stream_key(config.seed, _AGENT_WEIGHTS))
        self.agent = OpponentMLP(dyn.state_width, dyn.actions.num_focal, config.hidden, seed=seed).to(
            self.device
        )

    def _restore(self, saved: dict[str, Any]) -> None:
        self.position = _Position(saved["stage"], saved["level0"], saved["phases"])
        if self.position.stage == "level0":
            self.level0 = self._level0_trainer()
            self.level0.load_state_dict(saved["training"])
        else:
            self.staircase = self._make_staircase()
            self.staircase.load_state_dict(saved["training"])
        self.resumed_from = self.update
        where = "level 0" if self.staircase is None else self.staircase.phase.label
        ending = ", which was the last" if self._finished else f", in {where}"
        self.shown.progress.message(
            f"going on from {self.checkpoints.folder} after {self.update:,} of {self.total:,} updates{ending}; "
            "--fresh starts over"
        )

    def _open_files(self, metrics_bytes: int) -> None:
        missing = self.metrics.open(metrics_bytes)
        if missing:
            self.shown.progress.message(
                f"note: {self.metrics.path} lacks {missing:,} bytes of metrics written before the checkpoint"
            )
        if self.config.tensorboard:
            steps = {"level0": 0 if self.level0 is None else self.level0.updates, "staircase": 0}
            if self.staircase is not None:
                steps = {"staircase": self.staircase.improver.metrics()["global"]}
            self.board = TensorBoard(self.om / "tensorboard", steps)

    def _level0_trainer(self) -> Level0Trainer:
        return Level0Trainer(self.opponent.level(0), self.inputs.buffer, self.config.level0())

    def _make_staircase(self) -> Staircase:
        config = self.config
        model = RolloutModel(self.inputs.dyn, threads=config.threads, max_ram=config.max_ram)
        return Staircase(
            self.opponent,
            self.agent,
            self.inputs.buffer,
            model,
            config.staircase(),
            ranks=self.processes,
        )

    # -- how far it is

    @property
    def update(self) -> int:
        """Updates so far: of level 0, and batches of the staircase."""
        if self.staircase is None:
            return 0 if self.level0 is None else self.level0.updates
        improver = self.staircase.improver
        before = sum(
            self._batches(self.staircase.config.budget(phase))
            for phase in self.staircase.config.phases[: self.staircase.phase.number - 1]
        )
        return int(self.position.level0["updates"]) + before + self._batches(improver.roots)

    @property
    def total(self) -> int:
        """Updates of the whole run."""
        level0 = self.level0.num_updates if self.level0 is not None else int(self.position.level0["updates"])
        stairs = self.config.staircase()
        return level0 + sum(self._batches(stairs.budget(phase)) for phase in stairs.phases)

    @property
    def _finished(self) -> bool:
        return self.staircase is not None and self.staircase.finished

    def _batches(self, roots: int) -> int:
        return -(-roots // self.config.batch)

    # -- the two stages

    def go(self) -> None:
        """Train to the end, and write the artifact."""
        done_before = self._finished
        with self.stop.deferred():
            if self.level0 is not None:
                self._train_level0(self.level0)
            assert self.staircase is not None
            self._staircase_began = (self.timing.seconds, self.update)
            self.staircase.run(
                stream=self.shown.stream, on_update=self._after_update, on_refresh=self._refresh_staircase
            )
            if self.update > 0 and not done_before:
                self._checkpoint()
        if not self.writes:
            return
        path = self.om / ARTIFACT
        if done_before and path.exists():
            self.shown.progress.message(f"{path} is there, from this very run; nothing was left to train")
            return
        save_stack(
            path,
            self.opponent,
            self.agent,
            store=self.inputs.store,
            focal_agent=self.inputs.focal_agent,
            config=self.config.deciding(),
            level0=self.position.level0,
            training={"updates": self.update, "phases": self.position.phases},
        )
        self.timing.write("finished", self.position.stage, self.update)

    def _train_level0(self, trainer: Level0Trainer) -> None:
        interval = -(-trainer.num_updates // 10)
        with self.shown.progress.task("level 0", trainer.num_updates, "updates") as task:
            task.set(trainer.updates)
            while not trainer.finished:
                loss = trainer.step()
                if not math.isfinite(loss):
                    raise UsageError(
                        f"level 0: the cross-entropy is {loss} after {trainer.updates} updates",
                        "Its training diverged: lower level0_lr.",
                    )
                task.update(1)
                if trainer.updates % interval == 0 or trainer.finished:
                    self._refresh_level0(trainer)
                if not trainer.finished:
                    self._after_update()
        self.position = _Position("staircase", asdict(trainer.report()))
        self.level0 = None  # its orders of samples are 8 bytes each
        self.staircase = self._make_staircase()
        self._after_update()

    def _refresh_level0(self, trainer: Level0Trainer) -> None:
        self._refresh(
            {
                "stage": "level0",
                "update": trainer.updates,
                "updates_total": trainer.num_updates,
                "epoch": trainer.epoch,
                "loss": trainer.loss,
                "held_out_loss": trainer.evaluate() if len(trainer.held_out) else None,
            }
        )

    def _refresh_staircase(self, metrics: Metrics) -> None:
        if metrics["roots"] == metrics["roots_total"]:
            self.position.phases.append(dict(metrics))
            self._say_if_nothing_to_learn(metrics)
        self._refresh({"stage": "staircase", **metrics})
        if metrics["roots"] == metrics["roots_total"] and self.config.evaluate and self.writes:
            self._evaluate(metrics)

    def _evaluate(self, metrics: Metrics) -> None:
        """Write what the policies are worth at the end of a phase; those of all ranks are the same."""
        assert self.staircase is not None
        phase = self.staircase.phase
        self.shown.progress.message(f"evaluating phase {phase.number} of {phase.phases}")
        if self.evaluator is None:
            self.evaluator = PhaseEvaluator(
                self.inputs,
                self.staircase.tabulator,
                self.config.horizon,
                self.config.discount,
                threads=self.config.threads,
                max_ram=self.config.max_ram,
            )
        found = {
            "stage": "exact",
            **self.evaluator.evaluate(phase, self.opponent, self.agent),
            "global": metrics["global"],
        }
        self.metrics.write(found)
        if self.board is not None:
            self.board.write("exact", found)

    def _say_if_nothing_to_learn(self, metrics: Metrics) -> None:
        if metrics["q_best"] is None or metrics["q_error"] != 0 or metrics["q_best"] != metrics["q_mean"]:
            return
        assert self.staircase is not None
        why = ""
        if metrics["learner"] == "team":
            why = "; the members' rewards may cancel out in their mean: choose another --focal-agent"
        self.shown.progress.message(
            f"note: {self.staircase.phase.label}: every rollout of the last batch returned {metrics['q_mean']:g}, so "
            f"there was nothing to learn{why}"
        )

    def _refresh(self, metrics: Metrics) -> None:
        self.processes.check_equal(self._weights(), f"{metrics['stage']}, after {self.update:,} updates")
        self.metrics.write(metrics)
        if self.board is not None:
            self.board.write(metrics["stage"], metrics)
        self.timing.write("refresh", metrics["stage"], self.update)

    def _weights(self) -> Iterator[torch.Tensor]:
        yield from self.opponent.parameters()
        yield from self.agent.parameters()

    # -- checkpoints

    def _after_update(self) -> None:
        stopping = self.processes.anywhere(self.stop.number is not None)
        if stopping or self.clock.due(self.update):
            self._checkpoint()
        if stopping:
            self.timing.write("stopped", self.position.stage, self.update)
            raise Interrupted(self.stop.number if self.stop.number is not None else 15)

    def _checkpoint(self) -> None:
        if self.writes:
            self.metrics.flush()
            stage: Level0Trainer | Staircase | None = self.level0 or self.staircase
            assert stage is not None
            self.checkpoints.write(
                self.update,
                {
                    "schema": _SCHEMA,
                    "config": self.config.to_dict(),
                    "store": self.store,
                    "device": self.device.type,
                    "metrics_bytes": self.metrics.size,
                    **asdict(self.position),
                    "training": stage.state_dict(),
                },
            )
            self.timing.write("checkpoint", self.position.stage, self.update)
        self.clock.restart(self.update)

    # -- the end

    def report(self, memory: PeakMemory) -> TrainReport:
        """Say what it came to."""
        seconds = self.timing.seconds
        rate = None
        if self._staircase_began is not None:
            began, update = self._staircase_began
            if self.update > update and seconds > began:
                rate = (self.update - update) / (seconds - began)
        return TrainReport(
            export=str(self.export),
            artifact=str(self.om / ARTIFACT),
            device=str(self.device),
            rank=self.processes.rank,
            ranks=self.processes.size,
            updates=self.update,
            resumed_from=self.resumed_from,
            seconds=seconds,
            updates_per_second=rate,
            level0=self.position.level0,
            phases=self.position.phases,
            peak_anonymous=memory.anonymous,
            peak_file_backed=memory.file_backed,
            notes=self.inputs.notes,
        )


def _agent(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text
