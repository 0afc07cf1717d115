"""The stages of a run: level 0, then the staircase, with checkpoints and metrics on the way, to the artifact."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from omstore.errors import UsageError
from omstore.progress import Progress
from trainer.artifact import ARTIFACT, save_stack
from trainer.beginning import begin
from trainer.checkpoint import from_bytes
from trainer.config import TrainConfig
from trainer.distributed import Processes
from trainer.exact.phases import PhaseEvaluator
from trainer.improvement import RolloutModel
from trainer.level0_training import Level0Trainer
from trainer.progress import Metrics
from trainer.run_files import RunFiles
from trainer.saved_run import Position, check_settings, check_store, saved_run
from trainer.staircase import Staircase, StaircaseConfig
from trainer.stopping import Interrupted, Stop

__all__ = ["TrainingRun"]


class TrainingRun:
    """One run: where it begins, the two stages, the checkpoints between.

    Parameters
    ----------
    export : Path
    config : TrainConfig
    processes : Processes
    device : torch.device
    progress : Progress
        Where messages and the bars of level 0 go.
    stream : text file
        Where the bars of the staircase go.
    stop : Stop

    Attributes
    ----------
    inputs : OMTrainingInputs
        What it trains on, once it began.
    files : RunFiles
    position : Position
    resumed_from : int or None
        Updates there were when this process began; None: it began at the beginning.
    """

    def __init__(
        self,
        export: Path,
        config: TrainConfig,
        processes: Processes,
        device: torch.device,
        progress: Progress,
        stream: Any,
        stop: Stop,
    ) -> None:
        self.export = export
        self.config = config
        self.processes = processes
        self.device = device
        self.progress = progress
        self.stream = stream
        self.stop = stop
        self.om = export / "om"
        self.files = RunFiles(self.om, config, processes.rank == 0)
        self.position = Position()
        self.level0: Level0Trainer | None = None
        self.staircase: Staircase | None = None
        self.evaluator: PhaseEvaluator | None = None
        self.resumed_from: int | None = None
        self._staircase_began: tuple[float, int] | None = None

    def close(self) -> None:
        """Close what is written."""
        self.files.close()

    # -- beginning

    def begin(self, fresh: bool) -> None:
        """Find where to go on, load the data, and be ready to."""
        message = self.progress.message
        if fresh:
            self.files.forget()
        data = self.processes.from_first(self.files.newest(message))
        saved = from_bytes(data) if data else None
        version = self.config.store_version
        if saved is not None:
            check_settings(saved, self.config, self.files.checkpoints.folder)
            if saved["device"] != self.device.type:
                message(
                    f"begun on {saved['device']}, going on on {self.device.type}: from here on the last bits differ "
                    "from what an uninterrupted run gives"
                )
            version = saved["store"]["version"] if version is None else version
        found = begin(self.export, self.config, self.device, self.progress, version)
        self.inputs, self.store = found.inputs, found.store
        self.opponent, self.agent = found.opponent, found.agent
        if saved is not None:
            check_store(saved, self.store, self.inputs.store.path, self.om)
            self._restore(saved)
        else:
            self.level0 = self._level0_trainer()
        self.files.open(0 if saved is None else int(saved["metrics_bytes"]), self._steps(), message)
        self.files.begin("started" if saved is None else "resumed", self.position.stage, self.update)

    def _restore(self, saved: dict[str, Any]) -> None:
        self.position = Position.of(saved)
        if self.position.stage == "level0":
            self.level0 = self._level0_trainer()
            self.level0.load_state_dict(saved["training"])
        else:
            self.staircase = self._make_staircase()
            self.staircase.load_state_dict(saved["training"])
        self.resumed_from = self.update
        where = "level 0" if self.staircase is None else self.staircase.phase.label
        ending = ", which was the last" if self._finished else f", in {where}"
        self.progress.message(
            f"going on from {self.files.checkpoints.folder} after {self.update:,} of {self.total:,} updates{ending}; "
            "--fresh starts over"
        )

    def _steps(self) -> dict[str, int]:
        """Where each stage is, in what TensorBoard draws it over."""
        if self.staircase is not None:
            return {"staircase": self.staircase.improver.metrics()["global"]}
        return {"level0": 0 if self.level0 is None else self.level0.updates, "staircase": 0}

    def _level0_trainer(self) -> Level0Trainer:
        return Level0Trainer(self.opponent.level(0), self.inputs.buffer, self.config.level0())

    @property
    def _stairs(self) -> StaircaseConfig:
        dyn = self.inputs.dyn
        return self.config.staircase(
            agent_numbers=dyn.num_nodes * dyn.actions.num_focal,
            team_numbers=dyn.num_nodes * dyn.actions.num_team,
        )

    def _make_staircase(self) -> Staircase:
        config = self.config
        model = RolloutModel(self.inputs.dyn, threads=config.threads, max_ram=config.max_ram)
        return Staircase(
            self.opponent,
            self.agent,
            self.inputs.buffer,
            model,
            self._stairs,
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
        stairs = self._stairs
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
            self._staircase_began = (self.files.timing.seconds, self.update)
            self.staircase.run(
                stream=self.stream, on_update=self._after_update, on_refresh=self._refresh_staircase
            )
            if self.update > 0 and not done_before:
                self._checkpoint()
        if not self.files.writes:
            return
        path = self.om / ARTIFACT
        if done_before and path.exists():
            self.progress.message(f"{path} is there, from this very run; nothing was left to train")
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
        self.files.timing.write("finished", self.position.stage, self.update)

    def _train_level0(self, trainer: Level0Trainer) -> None:
        interval = -(-trainer.num_updates // 10)
        with self.progress.task("level 0", trainer.num_updates, "updates") as task:
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
        self.position = Position("staircase", asdict(trainer.report()))
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
        if metrics["roots"] == metrics["roots_total"] and self.config.evaluate and self.files.writes:
            self._evaluate(metrics)

    def _evaluate(self, metrics: Metrics) -> None:
        """Write what the policies are worth at the end of a phase; those of all ranks are the same."""
        assert self.staircase is not None
        phase = self.staircase.phase
        self.progress.message(f"evaluating phase {phase.number} of {phase.phases}")
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
        self.files.write("exact", found)

    def _say_if_nothing_to_learn(self, metrics: Metrics) -> None:
        if metrics["q_best"] is None or metrics["q_error"] != 0 or metrics["q_best"] != metrics["q_mean"]:
            return
        assert self.staircase is not None
        why = ""
        if metrics["learner"] == "team":
            why = "; the members' rewards may cancel out in their mean: choose another --focal-agent"
        what = (
            "rollout of the last batch returned"
            if metrics["imagined_steps"]
            else "action of the last batch is worth"
        )
        self.progress.message(
            f"note: {self.staircase.phase.label}: every {what} {metrics['q_mean']:g}, so there was nothing to learn{why}"
        )

    def _refresh(self, metrics: Metrics) -> None:
        self.processes.check_equal(self._weights(), f"{metrics['stage']}, after {self.update:,} updates")
        self.files.write(metrics["stage"], metrics)
        self.files.timing.write("refresh", metrics["stage"], self.update)

    def _weights(self) -> Iterator[torch.Tensor]:
        yield from self.opponent.parameters()
        yield from self.agent.parameters()

    # -- checkpoints

    def _after_update(self) -> None:
        stopping = self.processes.anywhere(self.stop.number is not None)
        if stopping or self.files.is_due(self.update):
            self._checkpoint()
        if stopping:
            self.files.timing.write("stopped", self.position.stage, self.update)
            raise Interrupted(self.stop.number if self.stop.number is not None else 15)

    def _checkpoint(self) -> None:
        self.files.checkpoint(self.position.stage, self.update, self._saved)

    def _saved(self) -> dict[str, Any]:
        stage: Level0Trainer | Staircase | None = self.level0 or self.staircase
        assert stage is not None
        return saved_run(
            self.config,
            self.store,
            self.device.type,
            self.position,
            metrics_bytes=self.files.metrics_bytes,
            training=stage.state_dict(),
        )

    @property
    def updates_per_second(self) -> float | None:
        """Updates of the staircase a second, in this process; None if it made none."""
        if self._staircase_began is None:
            return None
        began, update = self._staircase_began
        seconds = self.files.timing.seconds - began
        return (self.update - update) / seconds if self.update > update and seconds > 0 else None
