"""Finding, listing, deleting versions, and going back to one."""

import datetime
import os

import pytest

from omstore.errors import CorruptStoreError, SchemaVersionError, StoreNotFoundError, UsageError
from omstore.publish.versions import current, gc, resolve, rollback, versions


@pytest.fixture
def export(tmp_path, small):
    small.publish(tmp_path, 1)
    small.publish(tmp_path, 2)
    return tmp_path


def names(export):
    return sorted(path.name for path in (export / "store").glob("*"))


def test_resolve_takes_export_store_or_version(export, monkeypatch):
    store = export / "store"
    assert resolve(export) == resolve(store) == resolve(store / "v000002") == store / "v000002"
    for version in (1, "1", "v1", "v000001", "000001"):
        assert resolve(export, version) == store / "v000001"
    assert resolve(store / "v000001") == resolve(store / "v000001", 1) == store / "v000001"
    with pytest.raises(UsageError, match="asked for"):
        resolve(store / "v000001", 2)
    monkeypatch.chdir(store / "v000001")
    assert resolve(".").samefile(store / "v000001")
    assert current(".") == "v000002"


@pytest.mark.parametrize("version", ["latest", "", "v", 0, -1, "1.5", "../v000001"])
def test_what_isnt_a_version(export, version):
    with pytest.raises(UsageError, match="version"):
        resolve(export, version)


def test_nothing_there(export, tmp_path):
    with pytest.raises(StoreNotFoundError, match="v000007") as caught:
        resolve(export, 7)
    assert "v000001, v000002" in caught.value.hint
    with pytest.raises(StoreNotFoundError, match="no folder"):
        resolve(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreNotFoundError, match="no store") as caught:
        resolve(tmp_path / "empty")
    assert "omstore convert" in caught.value.hint
    (tmp_path / "empty" / "store").mkdir()
    with pytest.raises(StoreNotFoundError, match="Nothing is published"):
        resolve(tmp_path / "empty")
    assert current(tmp_path / "empty") is None
    assert versions(tmp_path / "empty") == []
    assert gc(tmp_path / "empty").names == ()


@pytest.mark.parametrize("content", [b"", b"v000002", b"v000002\n"])
def test_current_with_or_without_newline(export, content):
    (export / "store" / "CURRENT").write_bytes(content)
    if content:
        assert current(export) == "v000002"
    else:
        with pytest.raises(CorruptStoreError, match="CURRENT"):
            current(export)


@pytest.mark.parametrize(
    "content", [b"garbage\n", b"../v000002\n", b"v000009\n", b"\xff" * 9, b"v000002\n" * 99]
)
def test_garbage_in_current_is_a_named_error_and_can_be_mended(export, small, content):
    (export / "store" / "CURRENT").write_bytes(content)
    for read in (current, resolve, gc):
        with pytest.raises(CorruptStoreError, match="CURRENT") as caught:
            read(export)
        assert "rollback" in caught.value.hint
    assert [info.is_current for info in versions(export)] == [False, False]
    assert resolve(export, 2).name == "v000002"
    assert rollback(export, to=2) == "v000002"
    assert current(export) == "v000002"
    (export / "store" / "CURRENT").write_bytes(content)
    assert small.publish(export, 3) == "v000003"
    assert small.check(resolve(export)) == 3
    assert "v000002" in names(export)


def test_without_current(export):
    (export / "store" / "CURRENT").unlink()
    assert current(export) is None
    with pytest.raises(StoreNotFoundError) as caught:
        resolve(export)
    assert caught.value.hint == "omstore rollback --to v000002"
    with pytest.raises(StoreNotFoundError, match="all would be deleted"):
        gc(export)
    assert rollback(export) == "v000002"


def test_a_version_without_manifest(export):
    (export / "store" / "v000002" / "manifest.json").unlink()
    with pytest.raises(CorruptStoreError, match=r"manifest\.json is missing"):
        resolve(export)
    with pytest.raises(CorruptStoreError, match=r"manifest\.json is missing"):
        rollback(export, 2)
    assert [info.problem for info in versions(export)] == ["", "it has no manifest"]


def test_listing(export, small):
    before, after = versions(export)
    assert (before.name, before.is_current, after.name, after.is_current) == (
        "v000001",
        False,
        "v000002",
        True,
    )
    assert after.counts == small.manifest(2).counts
    assert after.encoding == "csr"
    assert after.size == sum(len(content) for content in small.contents(resolve(export)).values())
    now = datetime.datetime.now(datetime.UTC)
    assert now - datetime.timedelta(minutes=10) < before.published <= after.published <= now
    (export / "store" / "v000001" / "manifest.json").write_text('{"schema_version": 9}')
    assert "schema 9" in versions(export)[0].problem


def test_rollback_and_forward(export, small):
    assert rollback(export) == "v000001"
    assert current(export) == "v000001"
    assert small.check(resolve(export)) == 1
    with pytest.raises(StoreNotFoundError, match="older than v000001"):
        rollback(export)
    assert rollback(export, "v2") == "v000002"
    with pytest.raises(StoreNotFoundError):
        rollback(export, 9)
    assert current(export) == "v000002"
    assert names(export) == ["CURRENT", "LOCK", "v000001", "v000002"]


def test_rollback_refuses_a_truncated_version(export):
    os.truncate(export / "store" / "v000001" / "rows/next_node/c/0", 100)
    with pytest.raises(CorruptStoreError, match="100 bytes instead of 320"):
        rollback(export)
    assert current(export) == "v000002"


def test_rollback_to_a_newer_schema_is_allowed(export):
    (export / "store" / "v000001" / "manifest.json").write_text('{"schema_version": 9}')
    assert rollback(export) == "v000001"
    from omstore.format.manifest import read_manifest

    with pytest.raises(SchemaVersionError):
        read_manifest(resolve(export))


def test_after_a_rollback_publishing_keeps_what_readers_may_have_open(export, small):
    rollback(export)  # v1 is live, v2 was until now
    assert small.publish(export, 3) == "v000003"
    assert names(export) == ["CURRENT", "LOCK", "v000001", "v000002", "v000003"]
    assert small.publish(export, 4) == "v000004"
    assert names(export) == ["CURRENT", "LOCK", "v000003", "v000004"]


def test_gc_keeps_what_it_is_told(export, small):
    rollback(export)
    small.publish(export, 3)
    would = gc(export, dry_run=True)
    assert would.names == ("v000001", "v000002")
    assert would.size == sum(info.size for info in versions(export)[:2])
    assert len(versions(export)) == 3
    assert gc(export, keep=2).names == ("v000001",)
    assert gc(export, keep=2).names == ()
    assert gc(export).names == ("v000002",)
    assert names(export) == ["CURRENT", "LOCK", "v000003"]
    with pytest.raises(UsageError, match="keep=0"):
        gc(export, keep=0)


def test_a_number_never_comes_to_mean_other_contents(export, small):
    rollback(export)
    assert gc(export).names == ("v000002",)
    assert small.publish(export, 3) == "v000003"


def test_gc_removes_what_a_dead_writer_left(export, small):
    dead = export / "store" / ".staging-1-abcd"
    (dead / "version" / "rows").mkdir(parents=True)
    (dead / "scratch").mkdir()
    (dead / "scratch" / "spool").write_bytes(bytes(1000))
    # It had put its version in place, and died before naming it in CURRENT.
    small.publish(export / "other", 3)
    (export / "other" / "store" / "v000001").rename(export / "store" / "v000003")
    (dead / "renamed").write_text("v000003")
    removed = gc(export, keep=2, dry_run=True)
    assert removed.names == (".staging-1-abcd", "v000003")
    assert removed.size > 1000
    assert gc(export, keep=2) == removed
    assert names(export) == ["CURRENT", "LOCK", "v000001", "v000002"]


def test_a_published_version_is_never_taken_for_a_leftover(export):
    dead = export / "store" / ".staging-1-abcd"
    dead.mkdir()
    (dead / "renamed").write_text("v000002")  # died after naming it in CURRENT
    rollback(export)
    assert names(export) == ["CURRENT", "LOCK", "v000001", "v000002"]


def test_many_versions_sort_by_number(export):
    (export / "store" / "v000002").rename(export / "store" / "v999999")
    (export / "store" / "v000001").rename(export / "store" / "v1000000")
    (export / "store" / "CURRENT").write_text("v1000000\n")
    assert [info.name for info in versions(export)] == ["v999999", "v1000000"]
    assert rollback(export) == "v999999"
