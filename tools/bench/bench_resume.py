"""Training killed at random moments and resumed gives, to the bit, what it gives undisturbed.

    python tools/bench/bench_resume.py --kills 20

A pursuit world of two agents is built and trained once undisturbed. Then trainings are killed (SIGKILL, with all they
started) at random moments and run again, killed again or not; whenever one ends, its weights and metrics must equal the
undisturbed one's, and a new one begins, until there were enough kills.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

RESULTS = ("iop_stack.pt", "metrics.jsonl")
SETTINGS = (
    "--level0-epochs=2", "--level0-batch=128", "--agent-root-state-samples=20000", "--team-root-state-samples=20000",
    "--batch=256", "--n-rollouts=8", "--checkpoint-updates=7", "--quiet",
)  # fmt: skip


class Trainings:
    """One training of one export, run as often as wanted.

    Parameters
    ----------
    export : Path
        With a store.
    options : sequence of str
        Settings of `omtrain`.
    ranks : int
        Above 1: by `torchrun`.
    """

    def __init__(self, export: Path, options: tuple[str, ...], ranks: int) -> None:
        self.export = export
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
            if ranks > 1
            else []
        )
        self.command = [sys.executable, *launcher, "-m", "trainer.cli", str(export), *options]
        self.finish()  # kernels get compiled
        self.reset()
        start = time.perf_counter()
        self.finish()
        self.seconds = time.perf_counter() - start
        self.reference = self.results()
        events = self.events()
        self.training_seconds = float(str(events[-1]["seconds"])) - float(str(events[0]["seconds"]))

    def results(self) -> dict[str, bytes]:
        """What must be the same."""
        return {name: (self.export / "om" / name).read_bytes() for name in RESULTS}

    def reset(self) -> None:
        """Forget the training."""
        shutil.rmtree(self.export / "om", ignore_errors=True)

    def finish(self) -> None:
        """Train to the end; it must succeed."""
        done = subprocess.run(self.command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"training failed with {done.returncode}:\n{done.stderr}")

    def kill_after(self, seconds: float, *, once_training: bool) -> bool:
        """Train and kill after some seconds, of training or altogether; whether it still ran then."""
        before = len(self.events())
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(
                self.command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )
            while once_training and process.poll() is None and len(self.events()) == before:
                time.sleep(0.01)
            try:
                process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return True
            if process.returncode:
                errors.seek(0)
                raise click.ClickException(
                    f"training failed with {process.returncode}:\n{errors.read().decode()}"
                )
        return False

    def events(self) -> list[dict[str, object]]:
        """The lines of timing.jsonl."""
        path = self.export / "om" / "timing.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def check(self) -> None:
        """The training, which has ended, gave what it gives undisturbed."""
        for name, data in self.results().items():
            if data != self.reference[name]:
                raise click.ClickException(f"{name} isn't that of the undisturbed training, in {self.export}")


def kill_repeatedly(trainings: Trainings, kills: int, rng: random.Random) -> Counter[str]:
    """Kill until there were enough kills; count where they struck."""
    struck: Counter[str] = Counter()
    trainings.reset()
    while struck.total() < kills:
        before = len(trainings.events())
        # most moments while it trains, some while it starts
        training = rng.random() < 0.8
        longest = trainings.training_seconds if training else trainings.seconds - trainings.training_seconds
        if trainings.kill_after(rng.uniform(0.0, longest), once_training=training):
            new = trainings.events()[before:]
            struck[str(new[-1]["stage"]) if new else "starting"] += 1
        else:
            trainings.check()
            trainings.reset()
    trainings.finish()
    trainings.check()
    return struck


@click.command()
@click.option("--kills", default=20, show_default=True, help="Times to kill.")
@click.option("--seed", default=0, show_default=True)
@click.option("--ranks", default=1, show_default=True, help="Processes that train together.")
@click.option("--option", "options", multiple=True, help="Passed on to `omtrain`.")
def main(kills: int, seed: int, ranks: int, options: tuple[str, ...]) -> None:
    """Kill trainings at random moments, and compare what comes of them."""
    with tempfile.TemporaryDirectory(prefix="omstore-resume-") as folder:
        export = Path(folder) / "pursuit" / "2"
        build = [sys.executable, "-m", "omstore.cli", "build", "pursuit", "--agents", "2", "--slip", "0.1"]
        subprocess.run(
            [*build, "--transitions", "20000", "-q", str(export)], check=True, stdout=subprocess.DEVNULL
        )
        trainings = Trainings(export, (*SETTINGS, *options), ranks)
        last = trainings.events()[-1]
        click.echo(
            f"undisturbed: {last['update']} updates, {trainings.seconds:.1f} s, "
            f"{trainings.training_seconds:.1f} of them training"
        )
        struck = kill_repeatedly(trainings, kills, random.Random(seed))
        places = ", ".join(f"{count} in {stage}" for stage, count in sorted(struck.items()))
        click.echo(
            f"{kills} kills ({places}): weights and metrics equal the undisturbed training's to the bit"
        )


if __name__ == "__main__":
    main()
