"""The kill bench must notice a converter that publishes badly, and pass one that publishes well."""

import random
import sys

import click
import pytest

from tools.bench.bench_kill import Trials, _can_mount, contents, leftovers, live

GOOD = """
import os, shutil, sys, time
from pathlib import Path
export = Path(sys.argv[1]); store = export / "store"; store.mkdir(exist_ok=True)
for old in store.glob(".staging*"): shutil.rmtree(old) if old.is_dir() else old.unlink()
staging = store / ".staging-1"; staging.mkdir()
try:
    for i in range(6):
        (staging / f"f{i}").write_bytes(bytes([i]) * 40_000); time.sleep(0.01)
except OSError:
    shutil.rmtree(staging); sys.exit(1)
version = store / "v000001"
if version.exists(): shutil.rmtree(staging)
else: staging.rename(version)
current = store / ".staging-current"; current.write_text("v000001\\n"); current.replace(store / "CURRENT")
"""
IN_PLACE = """
import sys, time
from pathlib import Path
store = Path(sys.argv[1]) / "store"; version = store / "v000001"; version.mkdir(parents=True, exist_ok=True)
(store / "CURRENT").write_text("v000001")
for i in range(6):
    (version / f"f{i}").write_bytes(bytes([i]) * 40_000); time.sleep(0.01)
"""
BAD = {
    "current first": GOOD.replace("staging = ", "(store / 'CURRENT').write_text('v000001'); staging = ", 1),
    "in place": IN_PLACE,
    "litters": GOOD.replace("shutil.rmtree(staging); sys.exit(1)", "sys.exit(1)"),
    "traceback": GOOD.replace("shutil.rmtree(staging); sys.exit(1)", "shutil.rmtree(staging); raise"),
}


def trials(tmp_path, code):
    export = tmp_path / "export"
    (export / "wm").mkdir(parents=True)
    (tmp_path / "convert.py").write_text(code)
    return Trials(export, program=[sys.executable, str(tmp_path / "convert.py")], reader=lambda path: None)


def run_kills(made, count=12):
    rng = random.Random(1)
    return [made.kill_trial(rng, replace=i % 2 == 1) for i in range(count)]


def test_an_atomic_converter_passes(tmp_path):
    made = trials(tmp_path, GOOD)
    assert len(made.reference) == 6
    found = run_kills(made)
    assert any(outcome.startswith("killed") for outcome in found)
    assert live(made.export).name == "v000001"
    assert contents(live(made.export)) == made.reference
    assert leftovers(made.export) == ["CURRENT", "v000001"]


@pytest.mark.parametrize("fault", ["current first", "in place"])
def test_one_that_shows_a_half_written_version_is_caught(tmp_path, fault):
    made = trials(tmp_path, BAD[fault])
    with pytest.raises(click.ClickException, match="isn't what an undisturbed run"):
        run_kills(made, 30)


def test_full_disks(tmp_path):
    if not _can_mount():
        pytest.skip("this user can't mount a tmpfs")
    made = trials(tmp_path, GOOD)
    assert [made.full_disk_trial(size) for size in (65536, 150_000, 1_000_000)] == [False, False, True]
    for fault, message in (("litters", "left"), ("traceback", "Traceback")):
        made = trials(tmp_path / fault, BAD[fault])
        with pytest.raises(click.ClickException, match=message):
            made.full_disk_trial(100_000)
