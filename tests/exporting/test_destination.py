"""An export is there as a whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from omstore.errors import CorruptStoreError, DiskFullError, StoreNotFoundError, UsageError
from omstore.exporting import FORMATS, export_graph
from omstore.exporting.destination import destination
from tests.read.made_stores import Made

TO = pytest.mark.parametrize("to", FORMATS)


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_exists_is_replaced_only_when_asked(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "graph.npz"
    out.write_text("mine")
    with pytest.raises(UsageError, match=r"graph.npz exists already.*\n.*--force"):
        export_graph(made.export, out, "npz")
    assert out.read_text() == "mine"
    export_graph(made.export, out, "npz", force=True)
    assert out.read_bytes()[:2] == b"PK"
    export_graph(made.export, tmp_path / "tables", "parquet")
    with pytest.raises(UsageError, match="exists already"):
        export_graph(made.export, tmp_path / "tables", "parquet")
    export_graph(made.export, tmp_path / "tables", "parquet", force=True)
    assert listed(tmp_path / "tables") == ["edges.parquet", "nodes.parquet"]
    assert listed(tmp_path) == ["graph.npz", "tables"]


def test_a_folder_that_holds_something_else_is_never_replaced(made: Made, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "thesis.tex").touch()
    with pytest.raises(UsageError, match=r"holds thesis\.tex"):
        export_graph(made.export, tmp_path / "tables", "parquet", force=True)
    with pytest.raises(UsageError, match="is a folder, and a file"):
        export_graph(made.export, tmp_path / "tables", "npz", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file, and a folder"):
        export_graph(made.export, tmp_path / "file", "parquet", force=True)
    assert listed(tmp_path / "tables") == ["thesis.tex"]


@TO
def test_a_full_disk_leaves_nothing(
    made: Made, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "graph"

    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.pwrite", full)
    monkeypatch.setattr("omstore.exporting.parquet.durable._sync_range", full)
    with pytest.raises(DiskFullError, match="full while writing"):
        export_graph(made.export, out, to)
    assert listed(tmp_path) == []


def test_what_does_not_fit_is_refused_beforehand(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs(tmp_path)
    values = [*real[:4], 1, *real[5:]]
    monkeypatch.setattr("os.statvfs", lambda path: os.statvfs_result(values))
    monkeypatch.setattr("os.pwrite", lambda *arguments: pytest.fail("nothing is to be written"))
    with pytest.raises(DiskFullError, match=r"4\.0 KiB free, and the export takes [\d.]+ KiB"):
        export_graph(made.export, tmp_path / "graph.npz", "npz")
    assert listed(tmp_path) == []


@TO
def test_an_interruption_leaves_nothing_and_the_old_file(
    made: Made, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "graph"
    export_graph(made.export, out, to)
    before = listed(tmp_path)
    stamp = out.stat()

    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("omstore.read.graph.Graph.packed_states", stop)
    monkeypatch.setattr("omstore.read.graph.Graph.states", stop)
    with pytest.raises(KeyboardInterrupt):
        export_graph(made.export, out, to, force=True)
    assert listed(tmp_path) == before
    assert (out.stat().st_ino, out.stat().st_mtime_ns) == (stamp.st_ino, stamp.st_mtime_ns)


@TO
def test_what_a_killed_export_left_is_written_over(made: Made, tmp_path: Path, to: str) -> None:
    part = tmp_path / ".graph.part"
    if to == "parquet":
        part.mkdir()
        (part / "edges.parquet").write_bytes(b"half")
    else:
        part.write_bytes(b"x" * 1_000_000)
    export_graph(made.export, tmp_path / "graph", to)
    export_graph(made.export, tmp_path / "other", to)
    assert listed(tmp_path) == ["graph", "other"]
    first, second = tmp_path / "graph", tmp_path / "other"
    if to == "parquet":
        first, second = first / "edges.parquet", second / "edges.parquet"
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("folder", [(), ("a",)])
def test_two_exports_to_one_place_do_not_mix(tmp_path: Path, folder: tuple[str, ...]) -> None:
    with destination(tmp_path / "graph", folder=folder) as part:
        (part / "a" if folder else part).write_text("first")
        with (
            pytest.raises(UsageError, match="another process is writing"),
            destination(tmp_path / "graph", folder=folder),
        ):
            pytest.fail("two at once")
    assert listed(tmp_path) == ["graph"]
    assert (tmp_path / "graph" / "a" if folder else tmp_path / "graph").read_text() == "first"


def test_a_file_renamed_while_its_lock_was_waited_for_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, part = tmp_path / "graph", tmp_path / ".graph.part"
    part.write_text("of the first export")
    lock = fcntl.flock
    renamed = []

    def flock(descriptor: int, operation: int) -> None:
        if not renamed:  # the first export finishes between our open() and our flock()
            renamed.append(part.rename(tmp_path / "finished"))
        lock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", flock)
    with destination(out) as mine:
        mine.write_text("of the second")
    assert (tmp_path / "finished").read_text() == "of the first export"
    assert out.read_text() == "of the second"


def test_it_is_not_overwritten_when_it_appears_meanwhile(tmp_path: Path) -> None:
    def write() -> None:
        with destination(tmp_path / "graph") as part:
            part.write_text("new")
            (tmp_path / "graph").write_text("somebody else's")

    with pytest.raises(UsageError, match="exists already"):
        write()
    assert (tmp_path / "graph").read_text() == "somebody else's"
    assert listed(tmp_path) == ["graph"]


def test_places_that_cannot_be_written(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"no folder .*nowhere\n.*mkdir -p"):
        export_graph(made.export, tmp_path / "nowhere" / "graph.npz", "npz")

    real = os.open

    def forbidden(path: Path, *arguments: int) -> int:
        if Path(path).name.endswith(".part"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments)

    monkeypatch.setattr("os.open", forbidden)
    with pytest.raises(UsageError, match=r"cannot write .*graph\.npz: Permission denied"):
        export_graph(made.export, tmp_path / "graph.npz", "npz")


def test_errors_before_anything_is_written(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"no export format 'csv'\n.*npz, scipy, parquet, umb"):
        export_graph(made.export, tmp_path / "graph.csv", "csv")
    with pytest.raises(StoreNotFoundError):
        export_graph(tmp_path, tmp_path / "graph.npz", "npz")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"needs pyarrow.*\n.*pip install 'omstore\[parquet\]'"):
        export_graph(made.export, tmp_path / "tables", "parquet")
    assert listed(tmp_path) == []


def test_a_store_that_holds_less_than_it_says(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omstore.read.graph import Graph

    whole = Graph.sweep

    def short(self: Graph, *arguments: object, **options: object) -> object:
        return list(whole(self, 10))[:-1]

    monkeypatch.setattr(Graph, "sweep", short)
    with pytest.raises((CorruptStoreError, KeyError)):
        export_graph(made.export, tmp_path / "graph.npz", "npz")
    assert listed(tmp_path) == []
