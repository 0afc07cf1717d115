"""Checkpoints: whole, few, due when they should be, found when damaged."""

import errno
import hashlib

import pytest
import torch

from omstore.errors import DiskFullError, UsageError
from trainer import files
from trainer.checkpoint import CheckpointClock, Checkpoints, from_bytes, to_bytes
from trainer.files import write_atomically


def document(number):
    return {"number": number, "weights": torch.arange(5) * number, "none": None, "list": [1.5, "a"]}


class TestCheckpoints:
    def test_back_as_written(self, tmp_path):
        kept = Checkpoints(tmp_path / "checkpoints")
        path = kept.write(7, document(3))
        found = from_bytes(kept.newest(pytest.fail))
        assert torch.equal(found["weights"], torch.arange(5) * 3)
        assert (found["number"], found["none"], found["list"]) == (3, None, [1.5, "a"])
        assert hashlib.sha256(path.read_bytes()).hexdigest().startswith(path.stem.split("-")[2])

    def test_plain_torch_load_reads_them(self, tmp_path):
        path = Checkpoints(tmp_path).write(1, document(2))
        assert torch.load(path, weights_only=True)["number"] == 2

    def test_the_newest_two_stay(self, tmp_path):
        kept = Checkpoints(tmp_path)
        for update in (1, 2, 10, 9_999_999_999):
            kept.write(update, document(update))
        assert [path.name[11:21] for path in kept.paths()] == ["9999999999", "0000000010"]

    @pytest.mark.parametrize("harm", ["cut", "flip", "empty"])
    def test_damage_is_said_and_the_one_before_taken(self, tmp_path, harm):
        kept = Checkpoints(tmp_path)
        kept.write(1, document(1))
        newest = kept.write(2, document(2))
        data = newest.read_bytes()
        newest.write_bytes(
            {"cut": data[:-1], "flip": data[:99] + bytes([data[99] ^ 1]) + data[100:], "empty": b""}[harm]
        )
        said = []
        assert from_bytes(kept.newest(said.append))["number"] == 1
        assert len(said) == 1
        assert newest.name in said[0]

    def test_all_damaged(self, tmp_path):
        kept = Checkpoints(tmp_path)
        kept.write(1, document(1)).write_bytes(b"x")
        with pytest.raises(UsageError, match="all checkpoints") as error:
            kept.newest(lambda text: None)
        assert "--fresh" in error.value.hint

    def test_none(self, tmp_path):
        assert Checkpoints(tmp_path / "nothing").newest(pytest.fail) is None

    def test_half_written_ones_are_not_looked_at(self, tmp_path):
        kept = Checkpoints(tmp_path)
        kept.write(1, document(1))
        (tmp_path / ".checkpoint-0000000002-0123456789abcdef.pt.partial").write_bytes(b"half")
        assert from_bytes(kept.newest(pytest.fail))["number"] == 1
        kept.clear()
        assert not tmp_path.exists() or list(tmp_path.iterdir()) == []

    def test_nothing_is_executed(self, tmp_path):
        with pytest.raises(Exception, match=r"weights_only|Weights only"):
            from_bytes(to_bytes({"evil": print}))


class TestAtomicFiles:
    def test_flushed_before_it_is_renamed_and_the_folder_after(self, tmp_path, monkeypatch):
        seen = []
        monkeypatch.setattr(files, "_fsync", lambda descriptor: seen.append((tmp_path / "a").exists()))
        write_atomically(tmp_path / "a", b"1")
        assert seen == [False, True]

    def test_a_full_disk_leaves_the_old_file(self, tmp_path, monkeypatch):
        path = tmp_path / "a"
        path.write_bytes(b"old")

        def full(descriptor):
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(files, "_fsync", full)
        with pytest.raises(DiskFullError, match=r"The disk is full while writing .*a; 3 B were needed"):
            write_atomically(path, b"new")
        assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
        assert path.read_bytes() == b"old"


class TestClock:
    def test_after_updates(self):
        clock = CheckpointClock(3, 1e9, now=lambda: 0.0)
        assert [clock.due(update) for update in range(5)] == [False, False, False, True, True]
        clock.restart(3)
        assert [clock.due(update) for update in (5, 6)] == [False, True]

    def test_after_seconds(self):
        time = [0.0]
        clock = CheckpointClock(10**9, 5.0, now=lambda: time[0])
        time[0] = 4.9
        assert not clock.due(1)
        time[0] = 5.0
        assert clock.due(1)
        clock.restart(1)
        assert not clock.due(2)

    def test_never_twice_for_the_same_update(self):
        clock = CheckpointClock(1, 0.0, now=lambda: 0.0)
        clock.restart(4)
        assert not clock.due(4)
