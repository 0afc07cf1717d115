"""Building the graphs that were never a pickle: time, bytes on disk, and that a small node suffices.

    python tools/bench/bench_build.py --runs 3
    python tools/bench/bench_build.py --agents 4 --limit 1G --encodings factored

In one run, each in a fresh process: the edges enumerated once by the model's own compiled code (nothing
written, nothing compared; on one thread and on two), and ``omstore build pursuit`` inside a memory cgroup
for each row encoding, every edge proven. Then the store is read: lookup, successors, sample, and ``omstore
stats``, in the same cgroup. Compiling is done before (README: 26 s of CPU, once).
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

import omstore
from omstore.memory import format_bytes, parse_bytes
from omstore.model import load_model
from omstore.model.rows import model_rows
from tools.bench.limits import LimitedRun, omstore_program, run_limited

__all__ = ["enumerate_edges", "read_store"]

MEGABYTES = {"csr-compressed": 40, "dictionary": 20, "factored": 5}
"""Of the whole store of 3 agents at most, in 10^6 bytes."""
WITHIN = {"dictionary": 2.0, "factored": 2.0}
"""Times the enumeration at most."""


def enumerate_edges(agents: int, slip: float, threads: int) -> dict[str, float]:
    """Enumerate all edges once into buffers that are thrown away; seconds, and edges as a check."""
    rows = model_rows(load_model("pursuit", {"agents": agents, "slip": slip}))
    count = [0] * threads
    bounds = np.linspace(0, rows.size.num_nodes, threads + 1).astype(np.int64) * rows.size.num_joint_actions

    def sweep(part: int, first: int, last: int) -> None:
        for chunk in rows.sweep(first, last, 1 << 12):
            count[part] += len(chunk.next_node)

    sweep(0, 0, 1 << 12)  # compiled, before the clock runs
    count[0] = 0
    start = time.perf_counter()
    workers = [
        threading.Thread(target=sweep, args=(part, int(bounds[part]), int(bounds[part + 1])))
        for part in range(threads)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"seconds": time.perf_counter() - start, "edges": sum(count)}


def read_store(export: Path, batch: int = 200_000) -> dict[str, float]:
    """Read at random places in every way; million rows (or states) a second."""
    graph = omstore.open(export).graph
    assert graph is not None
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, graph.num_nodes, batch)
    actions = rng.integers(0, graph.num_joint_actions, batch)
    states = graph.states(nodes)
    few = slice(0, batch // 20)  # hundreds of successors each
    rates = {}
    for name, count, call in (
        ("lookup", batch, lambda: graph.lookup(states)),
        ("successors", batch // 20, lambda: graph.successors(nodes[few], actions[few])),
        ("sample", batch, lambda: graph.sample(nodes, actions, np.random.default_rng(1))),
    ):
        call()
        start = time.perf_counter()
        call()
        rates[name] = count / (time.perf_counter() - start) / 1e6
    assert np.array_equal(graph.lookup(states), nodes)
    found = graph.successors(nodes[few], actions[few])
    sums = np.add.reduceat(found.probability, found.offsets[:-1])
    assert np.allclose(sums, 1.0, atol=1e-12)
    return rates


def _own(*arguments: str, limit: int = 0) -> tuple[LimitedRun, Any]:
    """Run this script in a fresh process, for its JSON."""
    run = run_limited([sys.executable, __file__, *arguments], limit, capture=True)
    if run.returncode:
        raise click.ClickException(f"{' '.join(arguments)}: {run.describe()}\n{run.stderr}")
    return run, json.loads(run.stdout)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@click.command()
@click.option("--agents", default=3, show_default=True)
@click.option("--slip", default=0.1, show_default=True)
@click.option("--limit", default="512M", show_default=True, help="The cgroup's limit.")
@click.option("--runs", default=3, show_default=True, help="Times each is run; medians are reported.")
@click.option("--encodings", default="csr-compressed,dictionary,factored", show_default=True)
@click.option("--enumerate", "enumerate_threads", type=int, hidden=True)
@click.option("--read", type=click.Path(path_type=Path), hidden=True)
def main(
    agents: int,
    slip: float,
    limit: str,
    runs: int,
    encodings: str,
    enumerate_threads: int | None,
    read: Path | None,
) -> None:
    """Measure `omstore build pursuit` against enumerating its edges."""
    if enumerate_threads is not None:
        click.echo(json.dumps(enumerate_edges(agents, slip, enumerate_threads)))
        return
    if read is not None:
        click.echo(json.dumps(read_store(read)))
        return
    world = ["--agents", str(agents), "--slip", str(slip)]
    held = True
    with tempfile.TemporaryDirectory(prefix="omstore-bench-") as name:
        for encoding in encodings.split(","):
            _build(["--agents", "2", "--slip", str(slip)], Path(name) / "warm", encoding, 0)
        enumerated: dict[int, list[float]] = {1: [], 2: []}
        builds: dict[str, list[float]] = {encoding: [] for encoding in encodings.split(",")}
        for number in range(1, runs + 1):
            if agents <= 3:
                for threads, seconds in enumerated.items():
                    _, result = _own(*world, "--enumerate", str(threads))
                    click.echo(f"run {number}: {result['edges']:,} edges enumerated, {threads} threads: "
                               f"{result['seconds']:.2f} s")  # fmt: skip
                    seconds.append(result["seconds"])
            for encoding, times in builds.items():
                export = Path(name) / encoding
                run, report = _build(world, export, encoding, parse_bytes(limit))
                work = sum(report["seconds"].values())
                times.append(work)
                click.echo(
                    f"run {number}: omstore build --rows {encoding}: {report['num_edges']:,} edges, "
                    f"{report['proof']['edges']:,} proven, {format_bytes(_size(export))} on disk, "
                    f"{work:.2f} s of work; whole process {run.describe()}"
                )
        for encoding, times in builds.items():
            held &= _report(encoding, times, enumerated, Path(name) / encoding if agents == 3 else None)
            run, rates = _own("--read", str(Path(name) / encoding), limit=parse_bytes(limit))
            said = ", ".join(f"{what} {rate:.2f}" for what, rate in rates.items())
            click.echo(f"{encoding}, million a second at random: {said}; {run.describe()}")
            run = run_limited([*omstore_program(), "stats", str(Path(name) / encoding)], parse_bytes(limit),
                              capture=True)  # fmt: skip
            click.echo(f"{encoding}: omstore stats: {run.describe()}")
            held &= run.returncode == 0
    if not held:
        raise click.ClickException("a claim fails: see above")


def _build(world: list[str], export: Path, encoding: str, limit: int) -> tuple[LimitedRun, Any]:
    shutil.rmtree(export, ignore_errors=True)
    command = [*omstore_program(), "build", "pursuit", *world, str(export), "--rows", encoding, "--json"]
    run = run_limited(command, limit, capture=True)
    if run.returncode:
        raise click.ClickException(f"{' '.join(command)}: {run.describe()}\n{run.stderr}")
    return run, json.loads(run.stdout)


def _report(
    encoding: str, times: list[float], enumerated: dict[int, list[float]], export: Path | None
) -> bool:
    held = True
    work = statistics.median(times)
    for threads, seconds in enumerated.items():
        if seconds:
            ratio = work / statistics.median(seconds)
            click.echo(f"{encoding}: {ratio:.2f} times the enumeration on {threads} threads")
    if enumerated[1] and encoding in WITHIN:
        held &= work <= WITHIN[encoding] * statistics.median(enumerated[1])
    if export is not None:
        size = _size(export)
        click.echo(f"{encoding}: {size / 1e6:.2f} MB on disk (at most {MEGABYTES.get(encoding, 1e9)})")
        held &= size <= MEGABYTES.get(encoding, 1e9) * 1e6
    return held


if __name__ == "__main__":
    main()
