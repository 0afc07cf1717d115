"""Run a command under a memory limit, and say what it used.

    python tools/bench/limits.py --limit 512M -- omstore convert exports/pursuit/3

Where a memory cgroup can be made (version 1 or 2), it is used as a SLURM node would: it counts anonymous
memory, page cache and the kernel's own, and the out-of-memory killer strikes at the limit. Otherwise
RLIMIT_DATA bounds private writable memory, and allocations fail.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

from omstore.memory import format_bytes, parse_bytes

__all__ = ["LimitedRun", "MemoryGroup", "make_group", "omstore_program", "run_limited"]

CGROUPS = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 40
"""Bytes: both versions take a number, while their words for no limit differ and aren't taken everywhere."""


@dataclass(frozen=True)
class LimitedRun:
    """What became of a command, all sizes in bytes.

    Attributes
    ----------
    returncode : int
        Negative: the signal that ended it.
    seconds : float
        Wall time, start of the process included.
    limit : int
        0: none.
    mechanism : str
        ``cgroup-v1``, ``cgroup-v2``, ``rlimit`` or ``none``.
    peak_group : int
        Highest use the cgroup counted, page cache included; 0 without a cgroup.
    peak_anonymous, peak_file : int
        Highest RssAnon, and RssFile + RssShmem, of the process and its descendants together; sampled.
    killed_for_memory : bool
        Whether the out-of-memory killer struck in the cgroup.
    stdout, stderr : str
        What it wrote, where it was captured.
    """

    returncode: int
    seconds: float
    limit: int
    mechanism: str
    peak_group: int
    peak_anonymous: int
    peak_file: int
    killed_for_memory: bool
    stdout: str = ""
    stderr: str = ""

    def describe(self) -> str:
        """One line for people."""
        parts = [f"{self.seconds:.1f} s", f"exit {self.returncode}"]
        if self.killed_for_memory:
            parts.append("KILLED FOR MEMORY")
        parts.append(f"anonymous {format_bytes(self.peak_anonymous)}, file {format_bytes(self.peak_file)}")
        if self.peak_group:
            of = f" of {format_bytes(self.limit)}" if self.limit else ""
            parts.append(f"cgroup {format_bytes(self.peak_group)}{of}")
        return "; ".join(parts) + f" [{self.mechanism}]"


def omstore_program() -> list[str]:
    """Arguments that run the `omstore` command of this very Python and checkout, whatever PATH says."""
    beside = Path(sys.executable).with_name("omstore")
    if beside.exists():
        return [str(beside)]
    root = str(Path(__file__).resolve().parents[2])  # not installed
    return [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {root!r}); from omstore.cli import main; main()",
    ]


class MemoryGroup:
    """A memory cgroup of our own, removed at the end.

    Parameters
    ----------
    folder : Path
        The cgroup's folder, made already.
    version : int
        1 or 2.
    """

    def __init__(self, folder: Path, version: int):
        self.folder = folder
        self.version = version
        self.procs = folder / "cgroup.procs"

    def limit(self, limit: int) -> None:
        """Bound memory, and swap as well where it is counted; 0 for no limit that matters."""
        if self.version == 2:
            (self.folder / "memory.max").write_text(str(limit or UNLIMITED))
            swap = self.folder / "memory.swap.max"
            if swap.exists() and limit:
                swap.write_text("0")
            return
        (self.folder / "memory.limit_in_bytes").write_text(str(limit or UNLIMITED))
        both = self.folder / "memory.memsw.limit_in_bytes"
        if both.exists() and limit:
            both.write_text(str(limit))

    def peak(self) -> int:
        """Highest use so far in bytes."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        path = self.folder / name
        return int(path.read_text()) if path.exists() else 0

    def kills(self) -> int:
        """How many processes the out-of-memory killer ended in it."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        for line in (self.folder / name).read_text().splitlines():
            word, _, count = line.partition(" ")
            if word == "oom_kill":
                return int(count)
        return 0

    def pids(self) -> list[int]:
        """Processes inside."""
        return [int(pid) for pid in self.procs.read_text().split()]

    def remove(self) -> None:
        """End what is left inside (only our own command's descendants are), and remove the cgroup."""
        for _ in range(100):
            for pid in self.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            try:
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.02)


def make_group() -> MemoryGroup | None:
    """Make a memory cgroup below this process's own, or None where that isn't allowed."""
    for version, parent in _parents():
        folder = parent / f"omstore-bench-{os.getpid()}-{time.monotonic_ns()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        group = MemoryGroup(folder, version)
        try:
            group.limit(0)
        except OSError:  # version 2 without the memory controller for children
            folder.rmdir()
            continue
        return group
    return None


def _parents() -> Iterator[tuple[int, Path]]:
    """Cgroups below which ours may be made, the nearest first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield 1, CGROUPS / "memory" / path.lstrip("/")
            yield 1, CGROUPS / "memory"
        elif not controllers and (CGROUPS / "cgroup.controllers").exists():
            # a cgroup with processes of its own can't hand controllers to children, so its parent may have to
            own = CGROUPS / path.lstrip("/")
            for parent in (own, own.parent):
                if parent.is_relative_to(CGROUPS):
                    yield 2, parent


@contextmanager
def _group(wanted: bool) -> Iterator[MemoryGroup | None]:
    group = make_group() if wanted else None
    try:
        yield group
    finally:
        if group is not None:
            group.remove()


def run_limited(
    command: Sequence[str],
    limit: int = 0,
    *,
    use_cgroup: bool = True,
    capture: bool = False,
    timeout: float | None = None,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    interval: float = 0.05,
) -> LimitedRun:
    """Run `command` to its end under `limit` bytes of memory (0: only measure).

    Parameters
    ----------
    command : sequence of str
    limit : int
    use_cgroup : bool
        If false, or where no cgroup can be made, RLIMIT_DATA is the limit.
    capture : bool
        Keep stdout and stderr, else they are ours.
    timeout : float, optional
        Seconds after which the command is killed (its return code is then -9).
    interval : float
        Seconds between samples of the processes' memory; a shorter peak may be missed, but not by the cgroup.
    """
    with _group(use_cgroup) as group:
        # A shell enters the group (or lowers the limit) and becomes the command: nothing of ours runs
        # between fork and exec.
        script, mechanism = 'exec "$@"', "none"
        if group is not None:
            group.limit(limit)
            script, mechanism = f'echo $$ > "{group.procs}" && exec "$@"', f"cgroup-v{group.version}"
        elif limit:
            script, mechanism = f'ulimit -d {limit >> 10} && exec "$@"', "rlimit"
        pipe = subprocess.PIPE if capture else None
        start = time.perf_counter()
        process = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *command],
            stdout=pipe, stderr=pipe, cwd=cwd, env=env, text=True,
        )  # fmt: skip
        peaks, outputs = _watch(process, group, start, timeout, interval, capture)
        return LimitedRun(
            process.returncode,
            time.perf_counter() - start,
            limit,
            mechanism,
            group.peak() if group else 0,
            *peaks,
            bool(group and group.kills()),
            *outputs,
        )


def _watch(
    process: subprocess.Popen[str],
    group: MemoryGroup | None,
    start: float,
    timeout: float | None,
    interval: float,
    capture: bool,
) -> tuple[tuple[int, int], tuple[str, str]]:
    """Sample memory until the process ends; return the peaks (anonymous, file-backed) and its output."""
    anonymous = file_backed = 0
    outputs = ("", "")
    while True:
        used = [_resident(pid) for pid in (group.pids() if group else _descendants(process.pid))]
        anonymous = max(anonymous, sum(a for a, _ in used))
        file_backed = max(file_backed, sum(f for _, f in used))
        if timeout is not None and time.perf_counter() - start > timeout:
            process.kill()
        try:
            if capture:
                out, err = process.communicate(timeout=interval)
                outputs = (out or "", err or "")
            else:
                process.wait(timeout=interval)
        except subprocess.TimeoutExpired:
            continue
        return (anonymous, file_backed), outputs


def _descendants(pid: int) -> list[int]:
    """`pid` and all processes below it."""
    found, waiting = [], [pid]
    while waiting:
        current = waiting.pop()
        found.append(current)
        for children in Path(f"/proc/{current}/task").glob("*/children"):
            try:
                waiting += [int(child) for child in children.read_text().split()]
            except OSError:
                continue  # the thread has ended
    return found


def _resident(pid: int) -> tuple[int, int]:
    """(RssAnon, RssFile + RssShmem) in bytes; zeros when the process has ended."""
    sizes = {"RssAnon": 0, "RssFile": 0, "RssShmem": 0}
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) << 10
    return sizes["RssAnon"], sizes["RssFile"] + sizes["RssShmem"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the command's own exit code, 137 when it was killed for memory."""
    parser = argparse.ArgumentParser(description="Run a command under a memory limit, and say what it used.")
    parser.add_argument("--limit", default="0", help="such as 512M; 0 only measures")
    parser.add_argument(
        "--rlimit", action="store_true", help="use RLIMIT_DATA even where a cgroup can be made"
    )
    parser.add_argument("--timeout", type=float, help="seconds")
    parser.add_argument("--json", action="store_true", help="report as JSON on stdout")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command")
    run = run_limited(
        command, parse_bytes(options.limit), use_cgroup=not options.rlimit, timeout=options.timeout
    )
    report: dict[str, Any] = asdict(run)
    print(
        json.dumps(report) if options.json else run.describe(),
        file=sys.stdout if options.json else sys.stderr,
    )
    return 137 if run.killed_for_memory else run.returncode & 0xFF


if __name__ == "__main__":
    raise SystemExit(main())
