"""Nothing half-written is ever shown: kill conversions at random moments, and fill the disk at many sizes.

    python tools/bench/bench_kill.py --kills 200

After every SIGKILL, ``CURRENT`` names a version whose every byte equals an undisturbed run's, or there is
none (the one before, when there was one); the next run succeeds and gives the same bytes. On a disk that
fills up, nothing is published and nothing left behind.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

from tools.bench.limits import omstore_program
from tools.make_export import ExportSpec, write_export

__all__ = ["Trials", "contents", "leftovers"]


def contents(version: Path) -> dict[str, str]:
    """Digest of every file of a version, by its name in it."""
    files = sorted(path for path in version.rglob("*") if path.is_file())
    return {str(p.relative_to(version)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def live(export: Path) -> Path | None:
    """The folder that CURRENT names; None where there is no CURRENT."""
    current = export / "store" / "CURRENT"
    return export / "store" / current.read_text().strip() if current.exists() else None


def leftovers(export: Path) -> list[str]:
    """What a failed run must not leave in the store: anything but the lock."""
    store = export / "store"
    return sorted(p.name for p in store.iterdir() if p.name != "LOCK") if store.exists() else []


def _open(export: Path) -> object:
    import omstore

    return omstore.open(export)


class Trials:
    """Disturbed conversions of one small export.

    Parameters
    ----------
    export : Path
        Converted undisturbed once, to learn the bytes and the time.
    options : sequence of str
        Passed on to `omstore convert`.
    program, reader
        What converts, and what must be able to open the result (tests put others in their place).
    """

    def __init__(
        self,
        export: Path,
        options: Sequence[str] = (),
        program: Sequence[str] = (*omstore_program(), "convert"),
        reader: Callable[[Path], object] = _open,
    ):
        self.export = export
        self.command = [*program, str(export), *options]
        self.reader = reader
        self.run()  # kernels get compiled
        self.reset()
        self.seconds, self.until_staging = self._time()
        version = live(export)
        if version is None:
            raise click.ClickException("an undisturbed conversion published nothing")
        self.reference = contents(version)

    def reset(self) -> None:
        """Delete the store."""
        shutil.rmtree(self.export / "store", ignore_errors=True)

    def start(self) -> subprocess.Popen[bytes]:
        """Start a conversion in a process group of its own."""
        return subprocess.Popen(
            self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def run(self) -> None:
        """Convert undisturbed; it must succeed."""
        done = subprocess.run(self.command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"a conversion failed with {done.returncode}:\n{done.stderr}")

    def _time(self) -> tuple[float, float]:
        """(seconds of a whole run, seconds until it starts to write)."""
        start = time.perf_counter()
        process = self.start()
        staging = 0.0
        while process.poll() is None:
            if not staging and leftovers(self.export):
                staging = time.perf_counter() - start
            time.sleep(0.001)
        return time.perf_counter() - start, staging

    def kill_once(self, delay: float) -> bool:
        """Start a conversion, kill it and all it started after `delay` seconds; return whether it still
        ran."""
        process = self.start()
        try:
            process.wait(timeout=delay)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return True
        return False

    def check_live(self, *, must_exist: bool) -> None:
        """CURRENT names a whole version or, unless `must_exist`, is absent."""
        version = live(self.export)
        if version is None:
            if must_exist:
                raise click.ClickException("CURRENT is gone, though a version had been published")
            return
        if contents(version) != self.reference:
            raise click.ClickException(f"{version} isn't what an undisturbed run publishes")
        self.reader(self.export)  # and the library agrees

    def kill_trial(self, rng: random.Random, *, replace: bool) -> str:
        """One trial; `replace`: over a version published before. Returns what the kill left behind."""
        if not replace or live(self.export) is None:
            self.reset()
        had = live(self.export) is not None
        # most moments while it writes, some while it starts, a few too late
        first = self.until_staging if rng.random() < 0.8 else 0.0
        killed = self.kill_once(rng.uniform(first, self.seconds * 1.05))
        self.check_live(must_exist=had)
        published = live(self.export) is not None
        found = f"{'killed' if killed else 'finished'}, {'live version' if published else 'no version'}"
        if any(name.startswith(".staging") for name in leftovers(self.export)):
            found += ", staging left"
        self.run()
        self.check_live(must_exist=True)
        if any(name.startswith(".staging") for name in leftovers(self.export)):
            raise click.ClickException("the next run didn't clear what the killed one left")
        return found

    def full_disk_trial(self, size: int) -> bool:
        """Convert on a disk of `size` bytes; return whether it fitted. Nothing may be left where it
        didn't."""
        with _small_disk(size) as disk:
            (disk / "wm").symlink_to((self.export / "wm").resolve())
            command = [str(disk) if part == str(self.export) else part for part in self.command]
            env = {**os.environ, "TMPDIR": str(disk)}
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            if done.returncode == 0:
                version = live(disk)
                if version is None or contents(version) != self.reference:
                    raise click.ClickException(f"on a disk of {size:,} bytes it published something else")
                return True
            if done.returncode < 0 or "Traceback" in done.stderr:
                raise click.ClickException(f"a full disk ended in:\n{done.stderr}")
            left = leftovers(disk) + sorted(p.name for p in disk.iterdir() if p.name not in ("wm", "store"))
            if left:
                raise click.ClickException(f"a full disk of {size:,} bytes left {left}")
            return False


@contextmanager
def _small_disk(size: int) -> Iterator[Path]:
    """A tmpfs of `size` bytes; needs the right to mount."""
    with tempfile.TemporaryDirectory(prefix="omstore-disk-") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        subprocess.run(mount, check=True, capture_output=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", folder], check=True)


def _can_mount() -> bool:
    try:
        with _small_disk(1 << 20):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@click.command()
@click.option("--kills", default=200, show_default=True, help="Conversions to kill.")
@click.option("--disks", default=40, show_default=True, help="Sizes of disk to fill.")
@click.option("--seed", default=0, show_default=True)
@click.option("--option", "options", multiple=True, help="Passed on to `omstore convert`.")
def main(kills: int, disks: int, seed: int, options: tuple[str, ...]) -> None:
    """Disturb conversions of a small export in every way that must not matter."""
    with tempfile.TemporaryDirectory(prefix="omstore-kill-") as folder:
        export = Path(folder) / "export"
        write_export(export, ExportSpec(agents=2, transitions=2000, extra=True))
        trials = Trials(export, options)
        click.echo(
            f"undisturbed: {trials.seconds:.2f} s, writes from {trials.until_staging:.2f} s on, "
            f"{len(trials.reference)} files"
        )
        rng = random.Random(seed)
        found: dict[str, int] = {}
        for number in range(kills):
            outcome = trials.kill_trial(rng, replace=number % 2 == 1)
            found[outcome] = found.get(outcome, 0) + 1
        for outcome, count in sorted(found.items()):
            click.echo(f"{count:5d} times: {outcome}")
        click.echo(f"{kills} kills: every live version was whole, every next run gave the same bytes")
        _fill_disks(trials, disks)


def _fill_disks(trials: Trials, disks: int) -> None:
    if not _can_mount():
        click.echo("full disks: skipped, this user can't mount a tmpfs")
        return
    version = live(trials.export)
    total = sum(p.stat().st_size for p in version.rglob("*") if p.is_file()) if version else 0
    # from nothing to what surely holds the store and everything on the way to it
    sizes = [max(65536, int(8 * total * (k / disks) ** 2)) for k in range(1, disks + 1)]
    fitted = [trials.full_disk_trial(size) for size in sizes]
    if not (any(fitted) and not all(fitted)):
        raise click.ClickException("the sizes tried were all too small or all large enough")
    click.echo(
        f"{disks - sum(fitted)} full disks: nothing published, nothing left; {sum(fitted)} large enough"
    )


if __name__ == "__main__":
    main()
