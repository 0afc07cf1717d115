"""Level 0 and a full four-phase staircase inside a memory cgroup, beside the memory of `import torch` alone.

    python tools/bench/bench_training_memory.py                # 512M: deterministic, and 415,886,464 edges
    python tools/bench/bench_training_memory.py --agents 4     # 1G: 3,748,096 nodes, rows factored
    python tools/bench/bench_training_memory.py --export exports/pursuit/3 --limit 512M

The cgroup counts page cache. Stores are built here, with a replay of uniformly random play; all settings of `omtrain`
are the defaults, but for how long it trains: root states, epochs and rollouts, whose environments are advanced a block
at a time. Memory doesn't depend on that.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

from omstore.build import BuildOptions, build
from omstore.memory import format_bytes, parse_bytes
from omstore.model import load_model
from tools.bench.limits import LimitedRun, run_limited


def omtrain_program() -> list[str]:
    """Arguments that run the `omtrain` command of this very Python."""
    root = str(Path(__file__).resolve().parents[2])
    start = f"import sys; sys.path.insert(0, {root!r}); from trainer.cli import main; main()"
    return [sys.executable, "-c", start]


def make_store(folder: Path, agents: int, slip: float, rows: str, transitions: int) -> Path:
    """Build a store with a replay."""
    export = folder / f"{agents}-{slip}-{rows}"
    model = load_model("pursuit", {"agents": agents, "slip": slip})
    build(model, export, BuildOptions(rows=rows, transitions=transitions))
    return export


def train_in(export: Path, limit: int, max_ram: str, samples: int, epochs: int, rollouts: int) -> LimitedRun:
    """Train in a cgroup of its own."""
    return run_limited(
        [*omtrain_program(), "train", str(export), "--fresh", "--quiet", "--max-ram", max_ram,
         "--agent-root-state-samples", str(samples), "--team-root-state-samples", str(samples),
         "--level0-epochs", str(epochs), "--n-rollouts", str(rollouts)],
        limit,
        capture=True,
    )  # fmt: skip


@click.command()
@click.option("--agents", default=3, show_default=True)
@click.option("--limit", help="The cgroup's limit.  [default: 512M, with 4 agents 1G]")
@click.option("--max-ram", help="What omtrain is told.  [default: as its own, with 4 agents 1G]")
@click.option(
    "--export", type=click.Path(path_type=Path), help="Train this one instead; it must have a replay."
)
@click.option("--transitions", default=1_000_000, show_default=True)
@click.option("--root-states", default=20_480, show_default=True, help="Of each of the four phases.")
@click.option("--epochs", default=1, show_default=True, help="Of level 0.")
@click.option("--rollouts", default=8, show_default=True, help="Of each candidate action.")
def main(
    agents: int,
    limit: str | None,
    max_ram: str | None,
    export: Path | None,
    transitions: int,
    root_states: int,
    epochs: int,
    rollouts: int,
) -> None:
    """Train inside a memory cgroup."""
    most = parse_bytes(limit or ("512M" if agents <= 3 else "1G"))
    told = max_ram or ("512M" if agents <= 3 else "1G")
    alone = run_limited([sys.executable, "-c", "import torch"], 0)
    click.echo(f"import torch: {alone.describe()}")
    held = True
    with tempfile.TemporaryDirectory(prefix="omstore-bench-") as name:
        folder = Path(name)
        if export is not None:
            exports = [export]
        elif agents == 3:
            exports = [make_store(folder, 3, 0.0, "csr", transitions),
                       make_store(folder, 3, 0.1, "factored", transitions)]  # fmt: skip
        else:
            exports = [make_store(folder, agents, 0.1, "factored", transitions)]
        for each in exports:
            run = train_in(each, most, told, root_states, epochs, rollouts)
            click.echo(f"{each.name}: {run.describe()}; {format_bytes(run.peak_anonymous - alone.peak_anonymous)} "
                       "anonymous beyond torch's")  # fmt: skip
            if run.stdout:
                click.echo("  " + run.stdout.strip().replace("\n", "\n  "))
            if run.returncode:
                click.echo(run.stderr)
                held = False
            held &= (each / "om" / "iop_stack.pt").exists()
    if not held:
        raise click.ClickException("training didn't get through: see above")


if __name__ == "__main__":
    main()
