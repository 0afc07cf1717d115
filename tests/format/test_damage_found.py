"""Comparing a version's folder with its manifest: every kind of damage is found, and nothing else."""

import os
from pathlib import Path

import numpy as np
import pytest

from omstore.errors import CorruptStoreError
from omstore.format import durable
from omstore.format.durable import FileDigest, digest_file
from omstore.format.groups import write_groups
from omstore.format.hot import HotWriter, write_hot
from omstore.format.manifest import Counts, Manifest, write_manifest
from omstore.format.states import StateCodec
from omstore.format.verify import check_sizes, find_damage, version_files


@pytest.fixture
def version(tmp_path):
    write_hot(tmp_path / "nodes" / "state", np.arange(100))
    write_hot(tmp_path / "nodes" / "deeper" / "x", np.ones((3, 3)))
    write_groups(tmp_path)
    files = {name: digest_file(tmp_path / name) for name in version_files(tmp_path)}
    manifest = Manifest(Counts(1, 1, 1, 1), ("a",), (1,), StateCodec(1, 1), {"encoding": "csr"}, files=files)
    write_manifest(tmp_path, manifest)
    return tmp_path, manifest


def test_files_and_groups(version):
    folder, manifest = version
    assert sorted(version_files(folder)) == [
        "nodes/deeper/x/c/0/0",
        "nodes/deeper/x/zarr.json",
        "nodes/deeper/zarr.json",
        "nodes/state/c/0",
        "nodes/state/zarr.json",
        "nodes/zarr.json",
        "zarr.json",
    ]
    read = []
    assert list(find_damage(folder, manifest, read.append)) == []
    assert sum(read) == sum(digest.size for digest in manifest.files.values())
    check_sizes(folder, manifest)


def missing(path: Path):
    path.unlink()


def shorter(path: Path):
    os.truncate(path, 10)


def flipped(path: Path):
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message", "by_size"),
    [(missing, "missing", True), (shorter, "10 bytes instead of 800", True), (flipped, "sha256", False)],
)
def test_damage_is_found(version, damage, message, by_size):
    folder, manifest = version
    damage(folder / "nodes/state/c/0")
    ((path, problem),) = find_damage(folder, manifest)
    assert path == "nodes/state/c/0"
    assert message in problem
    if by_size:
        with pytest.raises(CorruptStoreError, match=f"nodes/state/c/0 .*{message}"):
            check_sizes(folder, manifest)
    else:
        check_sizes(folder, manifest)


def test_a_foreign_file_is_found(version):
    folder, manifest = version
    (folder / "nodes" / ".nfs0001").write_text("")
    assert list(find_damage(folder, manifest)) == [("nodes/.nfs0001", "isn't in the manifest")]


@pytest.mark.parametrize("how", ["fdatasync", "unsupported"])
def test_writing_without_ranged_writeback(tmp_path, monkeypatch, how):
    import ctypes
    import errno

    def unsupported(*arguments):
        ctypes.set_errno(errno.ENOSYS)
        return -1

    monkeypatch.setattr(durable, "_sync_file_range", None if how == "fdatasync" else unsupported)
    array = np.arange(5_000_000)
    with HotWriter(tmp_path / "a", np.int64) as writer:
        writer.append(array)
    assert writer.files[writer.path] == digest_file(writer.path)


def test_a_failed_writeback_isnt_passed_over(tmp_path, monkeypatch):
    import ctypes
    import errno

    from omstore.errors import DiskFullError

    def full(*arguments):
        ctypes.set_errno(errno.ENOSPC)
        return -1

    monkeypatch.setattr(durable, "_sync_file_range", full)
    writer = HotWriter(tmp_path / "a", np.int64)
    with pytest.raises(DiskFullError, match=r"8\.0 MiB were needed"):
        writer.append(np.arange(5_000_000))
    writer.abandon()


def test_digests_are_known_ones(tmp_path):
    path = tmp_path / "abc"
    digest = durable.write_file(path, b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest == digest_file(path) == FileDigest(3, known)
