"""Values on disk: what was written is read, by zarr too; replaced whole; damage is named."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import zarr

import trainer
from omstore.errors import CorruptStoreError, StoreNotFoundError, UsageError
from trainer.exact import open_values, write_values


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch):
    monkeypatch.setattr("trainer.files._fsync", lambda descriptor: None)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {"agent_return": rng.random(1000), "best": np.arange(1000), "zero": np.zeros((1000, 2))}


@pytest.fixture
def written(tmp_path, arrays):
    return write_values(tmp_path / "om" / "values", "evaluation", arrays, {"discount": 0.9})


def test_what_was_written_is_read_lazily(tmp_path, written, arrays):
    found = trainer.open_values(tmp_path)
    assert found.document == {"discount": 0.9}
    assert list(found) == list(arrays)
    for name, values in arrays.items():
        assert isinstance(found[name], np.memmap)
        assert not found[name].flags.writeable
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name][10:20], values[10:20])
        assert np.array_equal(found[name], values)
    assert found[("agent_return")][[7, 3]].tolist() == arrays["agent_return"][[7, 3]].tolist()
    with pytest.raises(UsageError, match="has no values 'other'"):
        found["other"]


def test_zarr_reads_it(written, arrays):
    folder = written.parent / json.loads(written.read_text())["folder"]
    group = zarr.open_group(folder, mode="r")
    for name, values in arrays.items():
        assert np.array_equal(group[name][...], values)
        assert (folder / name / "c").is_dir()


def test_replaced_as_a_whole(tmp_path, written, arrays):
    folder = written.parent
    old = trainer.open_values(tmp_path)["agent_return"]
    write_values(folder, "other", {"x": np.ones(3)}, {})
    write_values(folder, "evaluation", {"agent_return": np.ones(5)}, {"discount": 1.0})
    found = open_values(tmp_path)
    assert list(found) == ["agent_return"]
    assert found["agent_return"].tolist() == [1.0] * 5
    assert np.array_equal(old, arrays["agent_return"])  # whoever had it open still reads it
    assert open_values(tmp_path, "other")["x"].tolist() == [1.0] * 3
    assert sorted(path.name.partition("-")[0] for path in folder.iterdir()) == [
        "evaluation",
        "evaluation.json",
        "other",
        "other.json",
    ]


def test_a_failure_leaves_what_was_there(tmp_path, written, arrays, monkeypatch):
    before = sorted(written.parent.iterdir())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainer.files.write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        write_values(written.parent, "evaluation", {"agent_return": np.ones(5)}, {})
    assert np.array_equal(open_values(tmp_path)["agent_return"], arrays["agent_return"])
    monkeypatch.undo()
    monkeypatch.setattr("trainer.files._fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_values(written.parent, "evaluation", {"agent_return": np.ones(6)}, {})
    assert np.array_equal(open_values(tmp_path)["agent_return"], arrays["agent_return"])
    assert not [path for path in written.parent.iterdir() if "partial" in path.name]
    assert set(before) <= set(written.parent.iterdir())


def test_equal_values_twice(tmp_path, written, arrays):
    names = sorted(path.name for path in written.parent.iterdir())
    write_values(written.parent, "evaluation", arrays, {"discount": 0.8})
    assert sorted(path.name for path in written.parent.iterdir()) == names
    assert open_values(tmp_path).document == {"discount": 0.8}


def test_what_is_damaged_is_named(tmp_path, written):
    folder = written.parent / json.loads(written.read_text())["folder"]
    file = folder / "best" / "c" / "0"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(CorruptStoreError, match=r"best/c/0 has 7,992 bytes, not 8,000"):
        open_values(tmp_path)
    file.unlink()
    with pytest.raises(CorruptStoreError, match=r"best/c/0 isn't there"):
        open_values(tmp_path)
    shutil.rmtree(folder)
    with pytest.raises(CorruptStoreError, match="isn't there"):
        open_values(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{", "isn't JSON"),
        (lambda text: "[]", "describes no"),
        (lambda text: text.replace('"folder": "', '"folder": "../'), "folder elsewhere"),
        (lambda text: text.replace('"shape"', '"size"'), "is damaged"),
        (lambda text: text.replace('"<f8"', '"|O"'), "of object"),
    ],
)
def test_a_json_that_is_none_of_ours(tmp_path, written, change, message):
    written.write_text(change(written.read_text()))
    with pytest.raises(CorruptStoreError, match=message):
        open_values(tmp_path)


def test_nothing_there_and_names(tmp_path):
    with pytest.raises(StoreNotFoundError, match="omtrain evaluate"):
        open_values(tmp_path)
    with pytest.raises(UsageError, match="no name for values"):
        write_values(tmp_path, "../x", {"a": np.ones(2)}, {})
