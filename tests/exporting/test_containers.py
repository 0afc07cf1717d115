"""Zip and tar files written in any order of their members, against the standard library's readers."""

from __future__ import annotations

import itertools
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omstore.errors import CorruptStoreError, UsageError
from omstore.exporting import containers
from omstore.exporting.containers import Container, Member, TarContainer, ZipContainer, _tar_head

KINDS = (ZipContainer, TarContainer)


def read(kind: type[Container], path: Path) -> dict[str, bytes]:
    if kind is ZipContainer:  # not `is_zipfile`, which takes a tar for one that holds the end of one
        with zipfile.ZipFile(path) as zipped:
            assert zipped.testzip() is None
            return {name: zipped.read(name) for name in zipped.namelist()}
    with tarfile.open(path) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def write(kind: type[Container], path: Path, contents: dict[str, bytes], piece: int) -> None:
    """Write all members at the same time, a piece of each in turn."""
    path.write_bytes(b"")
    with kind(path, [Member(name, len(data)) for name, data in contents.items()]) as file:
        pieces = {
            name: [data[i : i + piece] for i in range(0, len(data), piece)] for name, data in contents.items()
        }
        for parts in itertools.zip_longest(*pieces.values()):
            for name, part in zip(contents, parts, strict=True):
                if part is not None:
                    file[name].write(part)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zip64", [containers._ZIP64, 100])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_members_come_back(
    tmp_path_factory: pytest.TempPathFactory, kind: type[Container], zip64: int, data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.sampled_from(["a", "b/c.bin", "ä", "e" * 120]), unique=True, max_size=4))
    contents = {name: data.draw(st.binary(max_size=1300)) for name in names}
    path = tmp_path_factory.mktemp("container") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(containers, "_ZIP64", zip64)
        patch.setattr(containers, "_BUFFER", 70)
        patch.setattr(containers, "_WINDOW", 256)
        write(kind, path, contents, data.draw(st.integers(1, 200)))
    assert read(kind, path) == contents


def test_long_zip_members_have_64_bit_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Members of 4 GiB and more without writing them: only sizes and places go into the fields.
    size = (1 << 32) + 10
    path = tmp_path / "long.zip"
    path.touch()
    monkeypatch.setattr(containers, "require_room", lambda path, needed: None)
    with ZipContainer(path, [Member("a", 3), Member("long", size), Member("z", 5)]) as file:
        file["a"].write(b"abc")
        file["z"].write(b"after")
        long = file["long"]
        long.written, long._flushed = size, size  # a hole
    with zipfile.ZipFile(path) as zipped:
        assert [(entry.filename, entry.file_size) for entry in zipped.infolist()] == [
            ("a", 3),
            ("long", size),
            ("z", 5),
        ]
        assert zipped.read("z") == b"after"
        assert zipped.read("a") == b"abc"
        with zipped.open("long") as member:
            assert member.read(10) == bytes(10)


@pytest.mark.parametrize("size", [0, 511, (8 << 30) - 1, 8 << 30, 1 << 45])
def test_tar_heads_hold_long_sizes(size: int) -> None:
    entry = tarfile.TarInfo.frombuf(_tar_head("rewards/x", size), "utf-8", "strict")
    assert (entry.name, entry.size) == ("rewards/x", size)


@pytest.mark.parametrize("kind", KINDS)
def test_members_are_as_long_as_planned(tmp_path: Path, kind: type[Container]) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(CorruptStoreError, match="holds more"), kind(path, [Member("a", 3)]) as file:
        file["a"].write(np.zeros(1, np.int32))
    with (
        pytest.raises(CorruptStoreError, match=r"holds less .*\(2 of 3 bytes\)"),
        kind(path, [Member("a", 3)]) as file,
    ):
        file["a"].write(b"ab")
    with pytest.raises(UsageError, match="same name"):
        kind(path, [Member("a", 3), Member("a", 4)])
