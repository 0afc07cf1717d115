"""Disks that fill up or can't be written: real small ones where we may mount them, and refused writes
anywhere.
"""

import errno
import os

import numpy as np
import pytest

from omstore.errors import DiskFullError, PublishError
from omstore.format import durable
from omstore.publish.staging import stage
from omstore.publish.versions import current, gc, resolve, rollback, versions


def names(export):
    store = export / "store"
    return sorted(path.name for path in store.iterdir()) if store.exists() else []


def test_a_disk_of_every_size(small_disk, small):
    """From too small for anything to large enough, by 4 KiB: either nothing is left behind, or it is
    published.
    """
    outcomes = []
    for pages in range(2, 60):
        disk = small_disk(f"size={4 * pages}k")
        try:
            small.publish(disk / "export", 1)
        except DiskFullError as error:
            outcomes.append(str(error))
            assert list(disk.iterdir()) == []
        else:
            assert small.check(resolve(disk / "export")) == 1
            break
    else:
        pytest.fail("even the largest disk was too small")
    assert len(outcomes) > 5
    assert all(str(disk) in message and "disk is full" in message for message in outcomes)


def test_the_live_version_survives_a_full_disk(small_disk, small):
    disk = small_disk("size=400k")
    small.publish(disk, 1)
    with pytest.raises(DiskFullError, match="needed") as caught, stage(disk) as staging:
        staging.write_hot("rows/large", np.zeros(10_000_000))
    assert "omstore gc" in caught.value.hint
    assert names(disk) == ["CURRENT", "LOCK", "v000001"]
    with pytest.raises(DiskFullError), stage(disk) as staging:
        staging.create_hot("rows/large", np.float64, (10_000_000,))  # reserved at once: never a SIGBUS
    with pytest.raises(DiskFullError), stage(disk) as staging:
        (staging.scratch / "spool").write_bytes(bytes(1_000_000))  # by others' means, in scratch
    assert names(disk) == ["CURRENT", "LOCK", "v000001"]
    assert small.check(resolve(disk)) == 1
    small.publish(disk, 3)
    assert small.check(resolve(disk)) == 3


def test_gc_makes_room_on_a_full_disk(small_disk, small):
    disk = small_disk("size=4m")
    small.publish(disk, 1)
    small.publish(disk, 2)
    with pytest.raises(OSError, match="No space"):
        (disk / "ballast").write_bytes(bytes(8 << 20))
    with pytest.raises(DiskFullError):
        small.publish(disk, 3)
    assert gc(disk).names == ("v000001",)
    assert names(disk) == ["CURRENT", "LOCK", "v000002"]


def test_readers_work_and_writers_fail_on_a_read_only_mount(small_disk, small):
    disk = small_disk("size=4m")
    small.publish(disk, 1)
    small.publish(disk, 2)
    small_disk("size=4m,ro")
    try:
        assert current(disk) == "v000002"
        assert small.check(resolve(disk)) == 2
        assert small.check(resolve(disk, 1)) == 1
        assert [info.name for info in versions(disk)] == ["v000001", "v000002"]
        for write in (
            lambda: small.publish(disk, 3),
            lambda: small.publish(disk / "other", 3),
            lambda: gc(disk),
            lambda: rollback(disk),
        ):
            with pytest.raises(PublishError, match="Read-only") as caught:
                write()
            assert "permission" in caught.value.hint
    finally:
        small_disk("size=4m,rw")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["_write", "_fsync", "_fallocate"])
def test_every_refused_write(tmp_path, small, monkeypatch, call, code):
    small.publish(tmp_path, 1)
    original = getattr(durable, call)
    expected = DiskFullError if code in (errno.ENOSPC, errno.EDQUOT) else PublishError
    refused = 0
    for at in range(1, 500):
        calls = 0

        def refuse(*arguments, at=at):
            nonlocal calls
            calls += 1
            if calls == at:
                raise OSError(code, os.strerror(code))
            return original(*arguments)

        monkeypatch.setattr(durable, call, refuse)
        try:
            small.publish(tmp_path, 2)
        except expected:
            refused += 1
        except PublishError:
            pass  # only the very last fsync comes after the moment of publication, seen below
        else:
            break
        finally:
            monkeypatch.undo()
        if current(tmp_path) == "v000002":
            assert call == "_fsync"
            break  # the very last one comes after the moment of publication
        assert names(tmp_path) == ["CURRENT", "LOCK", "v000001"]
        assert small.check(resolve(tmp_path)) == 1
    assert small.check(resolve(tmp_path)) == 2
    assert refused >= (1 if call == "_fallocate" else 10)


def test_short_writes_are_continued(tmp_path, small, monkeypatch):
    monkeypatch.setattr(durable, "_write", lambda descriptor, view: os.write(descriptor, view[:7]))
    small.publish(tmp_path, 1)
    assert small.check(resolve(tmp_path)) == 1


def test_errors_of_other_files_pass_through(tmp_path):
    with pytest.raises(PermissionError), stage(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied", "wm/D.pkl")
    with pytest.raises(FileNotFoundError), stage(tmp_path):
        (tmp_path / "missing").read_bytes()
    with pytest.raises(PublishError), stage(tmp_path) as staging:
        raise PermissionError(errno.EACCES, "Permission denied", str(staging.path / "x"))


def test_a_store_that_is_a_file(tmp_path):
    (tmp_path / "store").write_text("")
    with pytest.raises(PublishError, match="in the way"), stage(tmp_path):
        pass
