"""The memory limit: it must bite, and what it reports must be what the process used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bench.limits import make_group, run_limited

HOG = (
    "import sys; b = bytearray({mib} << 20); b[::4096] = b'x' * len(b[::4096]); import time; time.sleep(0.3)"
)
MIB = 1 << 20


def hog(mib):
    return [sys.executable, "-c", HOG.format(mib=mib)]


@pytest.fixture(scope="module")
def cgroup():
    group = make_group()
    if group is None:
        pytest.skip("no memory cgroup can be made here")
    group.remove()
    assert not group.folder.exists()


def test_a_process_that_takes_too_much_is_killed_and_reported(cgroup):
    run = run_limited(hog(300), 100 * MIB)
    assert run.killed_for_memory
    assert run.returncode == -9
    assert 90 * MIB < run.peak_group <= 100 * MIB
    assert "KILLED FOR MEMORY" in run.describe()


def test_a_process_within_the_limit_ends_well_and_is_measured(cgroup):
    run = run_limited(hog(60), 150 * MIB)
    assert (run.returncode, run.killed_for_memory) == (0, False)
    assert 60 * MIB < run.peak_anonymous < 90 * MIB
    assert 60 * MIB < run.peak_group < 150 * MIB
    assert run.seconds > 0.3


def test_page_cache_counts_in_the_group_but_not_as_anonymous(cgroup, tmp_path):
    code = f"f = open({str(tmp_path / 'f')!r}, 'wb')\n"
    code += "for _ in range(80): f.write(b'x' * (1 << 20))\nimport time; time.sleep(0.2)"
    run = run_limited([sys.executable, "-c", code], 200 * MIB)
    assert run.peak_group > 75 * MIB
    assert run.peak_anonymous < 40 * MIB


def test_children_count(cgroup):
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HOG.format(mib=50)!r}])"
    assert run_limited([sys.executable, "-c", code], 200 * MIB).peak_anonymous > 50 * MIB
    assert run_limited([sys.executable, "-c", code], use_cgroup=False).peak_anonymous > 50 * MIB


def test_rlimit_makes_allocations_fail():
    run = run_limited(hog(300), 100 * MIB, use_cgroup=False, capture=True)
    assert run.mechanism == "rlimit"
    assert run.returncode == 1
    assert "MemoryError" in run.stderr
    assert run_limited(hog(30), 100 * MIB, use_cgroup=False).returncode == 0


def test_output_and_exit_code_are_the_commands(tmp_path):
    code = "import os, sys; print(os.getcwd()); print('e', file=sys.stderr); sys.exit(3)"
    run = run_limited([sys.executable, "-c", code], capture=True, cwd=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (3, f"{tmp_path}\n", "e\n")


def test_a_timeout_kills():
    run = run_limited([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)
    assert run.returncode == -9
    assert run.seconds < 10
    assert not run.killed_for_memory


def test_command_line():
    script = str(Path(__file__).parents[2] / "tools" / "bench" / "limits.py")
    done = subprocess.run(
        [
            sys.executable,
            script,
            "--limit",
            "400M",
            "--json",
            "--",
            sys.executable,
            "-c",
            "raise SystemExit(4)",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    report = json.loads(done.stdout)
    assert report["limit"] == 400 * MIB
    assert report["returncode"] == 4
