"""What a publication leaves on disk, in which order it gets there, and what readers see meanwhile."""

import threading
from pathlib import Path

import numpy as np
import pytest
import zarr

from omstore.errors import StoreError, UsageError
from omstore.format import durable
from omstore.format.manifest import read_manifest
from omstore.publish import staging as staging_module
from omstore.publish.staging import STEPS, stage
from omstore.publish.versions import current, resolve


def names(export):
    return sorted(path.name for path in (export / "store").iterdir())


def test_a_publication_is_whole_and_nothing_else_stays(tmp_path, small):
    assert small.publish(tmp_path, 1) == "v000001"
    assert names(tmp_path) == ["CURRENT", "LOCK", "v000001"]
    assert (tmp_path / "store" / "CURRENT").read_bytes() == b"v000001\n"
    assert current(tmp_path) == "v000001"
    assert small.check(resolve(tmp_path)) == 1


def test_any_zarr_tool_opens_a_version(tmp_path, small):
    small.publish(tmp_path, 1)
    group = zarr.open_group(resolve(tmp_path), mode="r")
    assert group.attrs["omstore"]["num_nodes"] == 40
    for name, array in small.arrays(1).items():
        np.testing.assert_array_equal(group[name][...], array)
    assert {name for name, _ in group["nodes"].members()} == {"state", "legacy_id"}


def test_every_file_is_in_the_manifest(tmp_path, small):
    small.publish(tmp_path, 1)
    folder = resolve(tmp_path)
    listed = read_manifest(folder).files
    assert set(listed) == set(small.contents(folder)) - {"manifest.json"}
    assert listed == {name: durable.digest_file(folder / name) for name in listed}


def test_same_input_same_bytes(tmp_path, small):
    small.publish(tmp_path / "a", 1)
    small.publish(tmp_path / "b", 2)
    small.publish(tmp_path / "b", 1)
    assert small.contents(resolve(tmp_path / "a")) == small.contents(resolve(tmp_path / "b"))


def test_files_that_nobody_registered_are_hashed(tmp_path, small):
    with stage(tmp_path) as staging:
        small.fill(staging, 1)
        (staging.path / "notes").mkdir()
        (staging.path / "notes" / "readme.txt").write_text("hello")
        staging.publish(small.manifest(1))
    digest = read_manifest(resolve(tmp_path)).files["notes/readme.txt"]
    assert digest == durable.digest_file(resolve(tmp_path) / "notes" / "readme.txt")


def test_a_file_changed_after_closing_isnt_published(tmp_path, small):
    with stage(tmp_path) as staging:
        small.fill(staging, 1)
        with (staging.path / "nodes/state/c/0/0").open("ab") as file:
            file.write(b"x")
        with pytest.raises(StoreError, match="changed"):
            staging.publish(small.manifest(1))
    assert not (tmp_path / "store").exists()


def test_old_versions_go_with_the_next_publication_but_one(tmp_path, small):
    expected = [["v000001"], ["v000001", "v000002"], ["v000002", "v000003"], ["v000003", "v000004"]]
    for seed, left in enumerate(expected):
        small.publish(tmp_path, seed)
        assert names(tmp_path) == ["CURRENT", "LOCK", *left]
        assert small.check(resolve(tmp_path)) == seed


def fail_in_the_body(export, small, error):
    with stage(export) as staging:
        small.fill(staging, 2)
        raise error


def test_leaving_without_publishing_leaves_nothing(tmp_path, small):
    with stage(tmp_path / "new" / "export") as staging:
        small.fill(staging, 1)
        assert staging.path.is_dir()
        assert staging.path.parent.parent == tmp_path / "new" / "export" / "store"
    assert list(tmp_path.iterdir()) == []
    small.publish(tmp_path, 1)
    for error in (KeyboardInterrupt, SystemExit, ZeroDivisionError):
        with pytest.raises(error):
            fail_in_the_body(tmp_path, small, error)
        assert names(tmp_path) == ["CURRENT", "LOCK", "v000001"]
    assert small.check(resolve(tmp_path)) == 1


@pytest.mark.parametrize("step", STEPS)
def test_interrupted_at_a_step(tmp_path, small, monkeypatch, step):
    small.publish(tmp_path, 1)
    small.publish(tmp_path, 2)

    def interrupt(name):
        if name == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(staging_module, "_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        small.publish(tmp_path, 3)
    monkeypatch.undo()
    published = STEPS.index(step) >= STEPS.index("published")
    assert current(tmp_path) == ("v000003" if published else "v000002")
    assert small.check(resolve(tmp_path)) == (3 if published else 2)
    if not published:
        assert names(tmp_path) == ["CURRENT", "LOCK", "v000001", "v000002"]
    small.publish(tmp_path, 4)
    assert small.check(resolve(tmp_path)) == 4
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_everything_is_flushed_before_it_is_named(tmp_path, small, monkeypatch):
    """A power cut keeps only what was fsynced: so files and folders first, and each rename before the
    next.
    """
    flushed = set()
    fsync = durable._fsync

    def record(descriptor):
        flushed.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    seen = []

    def check(step):
        seen.append(step)
        store = tmp_path / "store"
        (folder,) = store.glob(".staging-*")
        if step == "rename":
            everything = {folder / "version", *(folder / "version").rglob("*"), folder / "renamed"}
            assert {str(path) for path in everything} <= flushed
            assert (folder / "version" / "manifest.json").exists()
        if step == "manifest":
            assert not (folder / "version" / "manifest.json").exists()
            everything = {folder / "version", *(folder / "version").rglob("*")}
            assert {str(path) for path in everything} <= flushed
        if step in ("current", "published"):
            assert str(store) in flushed
        if step == "published":
            assert any("CURRENT-" in path for path in flushed)
        if step in ("rename", "current"):
            flushed.discard(str(store))
        if step == "manifest":
            flushed.discard(str(folder / "version"))

    monkeypatch.setattr(durable, "_fsync", record)
    monkeypatch.setattr(staging_module, "_step", check)
    small.publish(tmp_path, 1)
    assert tuple(seen) == STEPS


def test_readers_see_whole_versions_while_others_are_published(tmp_path, small):
    small.publish(tmp_path, 0)
    done = threading.Event()
    problems, seen = [], set()

    def read():
        while not done.is_set():
            name = current(tmp_path)
            try:
                seen.add(small.check(tmp_path / "store" / name))
            except Exception as error:
                # Only a reader that slept through two publications may find its version gone.
                if int(current(tmp_path)[1:]) < int(name[1:]) + 2:
                    problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for seed in range(1, 13):
        small.publish(tmp_path, seed)
    done.set()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(seen) > 3


def test_what_is_open_stays_readable_when_its_version_is_deleted(tmp_path, small):
    from omstore.format.cold import ColdArray
    from omstore.format.hot import map_hot

    small.publish(tmp_path, 1)
    folder = resolve(tmp_path)
    hot, cold = map_hot(folder / "rows/next_node"), ColdArray(folder / "replay/reward")
    small.publish(tmp_path, 2)
    small.publish(tmp_path, 3)
    assert not folder.exists()
    np.testing.assert_array_equal(hot, small.arrays(1)["rows/next_node"])
    np.testing.assert_array_equal(cold[:], small.arrays(1)["replay/reward"])


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../b"])
def test_arrays_stay_inside(tmp_path, name):
    with stage(tmp_path) as staging, pytest.raises(UsageError, match="name of an array"):
        staging.hot(name, "uint8")


def test_a_staging_folder_is_published_once(tmp_path, small, monkeypatch):
    with stage(tmp_path) as staging:
        small.fill(staging, 1)
        staging.publish(small.manifest(1))
        with pytest.raises(UsageError, match="already"):
            staging.publish(small.manifest(1))


def test_the_working_folder_may_change(tmp_path, small, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with stage(Path("export")) as staging:
        monkeypatch.chdir(tmp_path / "elsewhere")
        small.fill(staging, 1)
        staging.publish(small.manifest(1))
    assert small.check(resolve(tmp_path / "export")) == 1


def test_a_version_deleted_while_current_was_read_is_looked_up_again(tmp_path, small, monkeypatch):
    """As when a reader sleeps between reading CURRENT and looking at the folder, and others publish twice."""
    small.publish(tmp_path, 1)
    real, asked = Path.is_dir, []

    def is_dir(path, *arguments, **options):
        if path.name.startswith("v0") and not asked:
            asked.append(path)
            monkeypatch.setattr(Path, "is_dir", real)
            for seed in (2, 3):
                small.publish(tmp_path, seed)
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert current(tmp_path) == "v000003"
    assert not asked[0].exists()
