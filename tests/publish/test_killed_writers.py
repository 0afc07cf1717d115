"""A writer killed (SIGKILL) at every single change it makes to the disk, and a disk that refuses each of
them.
"""

import errno
import gc
import itertools
import os
import shutil
import signal
import sys
import traceback

import pytest

from omstore.errors import DiskFullError, PublishError
from omstore.format import durable
from omstore.publish import staging as staging_module
from omstore.publish.staging import STEPS
from omstore.publish.versions import current, resolve

# Python warns of forks beside other threads (zarr's idle one); the child doesn't use it.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "shutil.rmtree"}


def is_change(event, arguments):
    if event == "open":
        return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR))
    return event in CHANGES


def in_child(work, at_change=None, fault=None):
    """Run `work` in a forked child, where `fault` strikes before change number `at_change`; gives its exit
    status.

    The audit events of the interpreter tell of every file that is made, renamed or deleted, also by code that
    doesn't know of any test.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    gc.disable()  # collecting would copy every page shared with the parent
    count = 0

    def hook(event, arguments):
        nonlocal count
        if is_change(event, arguments):
            count += 1
            if count == at_change:
                fault(arguments[0])

    try:
        if fault is not None:
            sys.addaudithook(hook)
        work()
        os._exit(0)
    except (DiskFullError, PublishError) as error:
        os._exit(3 if isinstance(error, DiskFullError) else 4)
    except BaseException:
        traceback.print_exc()
        os._exit(99)


def kill(path):
    os.kill(os.getpid(), signal.SIGKILL)


def full(path):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def forbidden(path):
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)


def entries(export):
    store = export / "store"
    return sorted(path.name for path in store.iterdir()) if store.exists() else []


@pytest.fixture
def exports(tmp_path, small, monkeypatch):
    """Give a function that makes a new export with so many versions published, of seeds 0, 1, ..."""
    # What a killed process has written is there, fsynced or not; so don't wait for the disk.
    monkeypatch.setattr(durable, "_fsync", lambda descriptor: None)
    number = itertools.count()

    def make(before):
        template = tmp_path / f"template{before}"
        if not template.exists():
            template.mkdir()
            for seed in range(before):
                small.publish(template, seed)
        export = tmp_path / f"export{next(number)}"
        if before:
            shutil.copytree(template, export)
        return export

    return make


@pytest.mark.parametrize("before", [0, 2])
def test_killed_at_every_change(tmp_path, small, exports, before):
    small.publish(tmp_path / "reference", 78)
    reference = small.contents(resolve(tmp_path / "reference"))
    outcomes = []
    for at_change in range(1, 1000):
        export = exports(before)
        status = in_child(lambda export=export: small.publish(export, 77), at_change, kill)
        assert status in (0, -signal.SIGKILL)

        # Whatever is called a version is whole, live or not.
        whole = {folder.name: small.check(folder) for folder in (export / "store").glob("v*")}
        live = current(export) if (export / "store").exists() else None
        if live is None:
            assert before == 0
            outcomes.append("none")
        else:
            assert whole[live] in ((before - 1, 77) if before else (77,))
            outcomes.append("new" if whole[live] == 77 else "old")

        published = before + 1 + (outcomes[-1] == "new")
        assert small.publish(export, 78) == f"v{published:06d}" == current(export)
        left = [f"v{number:06d}" for number in range(max(1, published - 1), published + 1)]
        assert entries(export) == ["CURRENT", "LOCK", *left]
        assert small.contents(resolve(export)) == reference
        if status == 0:
            break
    # It was killed before and after the moment of publication, and that is one moment.
    assert outcomes == sorted(outcomes, key=["none", "old", "new"].index)
    assert outcomes.count("old" if before else "none") > 20
    assert outcomes.count("new") > 3


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_a_step(tmp_path, small, step):
    small.publish(tmp_path, 1)

    def publish():
        staging_module._step = lambda name: kill(name) if name == step else None
        small.publish(tmp_path, 2)

    assert in_child(publish) == -signal.SIGKILL
    assert small.check(resolve(tmp_path)) == (2 if STEPS.index(step) >= STEPS.index("published") else 1)
    small.publish(tmp_path, 3)
    assert small.check(resolve(tmp_path)) == 3
    assert not [name for name in entries(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize(("before", "fault", "expected"), [(0, forbidden, 4), (2, full, 3)])
def test_refused_at_every_change(small, exports, before, fault, expected):
    """One refused change: the named error and nothing left behind, or (where it only tidied up) success."""
    statuses = []
    for at_change in range(1, 1000):
        export = exports(before)
        names = entries(export)
        status = in_child(lambda export=export: small.publish(export, 77), at_change, fault)
        statuses.append(status)
        assert status in (0, expected)
        if status == 0:
            assert small.check(resolve(export)) == 77
        elif before:
            assert entries(export) == names
            assert small.check(resolve(export)) == before - 1
        else:
            assert not export.exists()
        small.publish(export, 78)
        assert small.check(resolve(export)) == 78
        assert not [name for name in entries(export) if name.startswith(".")]
        if statuses[-12:] == [0] * 12:
            break
    assert statuses.count(expected) > 20
