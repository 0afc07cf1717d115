"""What converting the full-scale export costs, against loading it: time, memory, and that the memory is flat.

    python tools/bench/bench_convert.py --export bench-data/full --tenth bench-data/tenth --runs 3

In one run, each in a fresh process: `pickle.load` of both files with the collector on and the classes
importable, as training did; and ``omstore convert`` inside a memory cgroup of 512 MiB, on the full export
and on one ten times smaller. Then ``omstore verify --against`` compares the store with the pickles. All
with the files in the page cache, but counted where the cgroup counts it.
"""

from __future__ import annotations

import json
import pickle
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

from omstore.memory import format_bytes, parse_bytes
from tools.bench.limits import LimitedRun, omstore_program, run_limited
from tools.exports.records import legacy_classes
from tools.exports.spec import ExportSpec
from tools.make_export import write_export

__all__ = ["convert", "load_pickles"]


def load_pickles(export: Path) -> None:
    """The baseline: load both files and keep both, as the old training did; prints its own seconds as
    JSON."""
    spec = ExportSpec.from_json((export / "truth" / "spec.json").read_text())
    seconds, kept = {}, []
    with legacy_classes(spec):
        for part in ("graph", "replay"):
            start = time.perf_counter()
            with (export / "wm" / spec.file_name(part)).open("rb") as file:
                kept.append(pickle.load(file))
            seconds[part] = time.perf_counter() - start
    click.echo(json.dumps(seconds))


def convert(export: Path, limit: int, options: Sequence[str] = ()) -> LimitedRun:
    """Convert `export` from scratch under `limit` bytes (its store is deleted before)."""
    shutil.rmtree(export / "store", ignore_errors=True)
    return run_limited([*omstore_program(), "convert", str(export), *options], limit)


def _warm_up(options: Sequence[str]) -> None:
    """Let numba compile and cache every kernel that a conversion calls."""
    with tempfile.TemporaryDirectory() as folder:
        spec = ExportSpec(agents=3, padded=False, fraction=1 / 125, transitions=25_000, replay_action="dict")
        write_export(folder, spec)
        run = convert(Path(folder), 0, options)
        if run.returncode:
            raise click.ClickException(f"the warm-up conversion failed: {run.describe()}")


def _read_once(export: Path) -> None:
    """Read the pickles once, so that every run finds them in the page cache alike."""
    for path in (export / "wm").iterdir():
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


@click.command()
@click.option(
    "--export", type=click.Path(path_type=Path, exists=True), required=True, help="The full export."
)
@click.option("--tenth", type=click.Path(path_type=Path, exists=True), help="One ten times smaller.")
@click.option("--runs", default=3, show_default=True, help="Times each is run; medians are reported.")
@click.option("--limit", default="512M", show_default=True, help="The cgroup's limit.")
@click.option(
    "--option", "options", multiple=True, help="Passed on to `omstore convert`, such as --option=--rows=csr."
)
@click.option(
    "--baseline/--no-baseline", default=True, help="Also load the pickles (needs 16 GiB at full scale)."
)
@click.option("--verify/--no-verify", default=True, help="Also compare the store with the pickles.")
@click.option("--load", is_flag=True, hidden=True)
def main(
    export: Path,
    tenth: Path | None,
    runs: int,
    limit: str,
    options: tuple[str, ...],
    baseline: bool,
    verify: bool,
    load: bool,
) -> None:
    """Measure the conversion against `pickle.load`, and its memory at two sizes."""
    if load:
        load_pickles(export)
        return
    _warm_up(options)
    bound, failed = parse_bytes(limit), False
    full: list[LimitedRun] = []
    small: list[LimitedRun] = []
    loads: list[float] = []
    for number in range(1, runs + 1):
        _read_once(export)
        if baseline:
            run = run_limited([sys.executable, __file__, "--export", str(export), "--load"], capture=True)
            said = (run.stdout + run.stderr).strip()
            click.echo(f"run {number}: pickle.load, both files: {run.describe()} {said}")
            failed |= run.returncode != 0
            if run.returncode == 0:
                loads.append(sum(json.loads(run.stdout).values()))
            _read_once(export)
        for name, folder, results in (("full", export, full), ("tenth", tenth, small)):
            if folder is None:
                continue
            run = convert(folder, bound, options)
            click.echo(f"run {number}: omstore convert, {name}: {run.describe()}")
            failed |= run.returncode != 0
            results.append(run)
    _report(full, small, loads)
    if verify:
        run = run_limited([*omstore_program(), "verify", str(export), "--against"], bound)
        click.echo(f"omstore verify --against: {run.describe()}")
        failed |= run.returncode != 0
    if failed:
        raise click.ClickException("not every command ended well: see above")


def _report(full: list[LimitedRun], small: list[LimitedRun], loads: list[float]) -> None:
    ours = statistics.median(run.seconds for run in full)
    click.echo(f"convert, whole process: median {ours:.1f} s")
    if loads:
        theirs = statistics.median(loads)
        click.echo(f"pickle.load alone: median {theirs:.1f} s; convert takes {ours / theirs:.2f} of it")
    peak = max(run.peak_anonymous for run in full)
    line = f"peak anonymous memory: full {format_bytes(peak)}"
    if small:
        tenth_peak = max(run.peak_anonymous for run in small)
        line += f", tenth {format_bytes(tenth_peak)}, ratio {peak / tenth_peak:.2f}"
    click.echo(line)


if __name__ == "__main__":
    main()
