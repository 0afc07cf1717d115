"""The manifest file: exact, deterministic, and distrusted when read."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from omstore.errors import CorruptStoreError, SchemaVersionError, UsageError
from omstore.format.durable import FileDigest
from omstore.format.manifest import TOOL_VERSION, Counts, Manifest, Source, read_manifest, write_manifest
from omstore.format.states import StateCodec


def example(**changes):
    fields = {
        "counts": Counts(85184, 125, 10648000, 415886464, 1000000),
        "agents": ("pursuer_0", "pursuer_1", "evader"),
        "num_actions": (5, 5, 5),
        "state": StateCodec(147, 1),
        "rows": {"encoding": "csr", "why": "measured", "largest_difference": math.ulp(0.1)},
        "attributes": {"probability": {"level": "outcome", "path": "outcomes/probability"}},
        "replay": {"kept": []},
        "sources": (Source("wm/D.pkl", 123, "ab" * 32),),
        "options": {"rows": "auto"},
        "notes": ("täglich",),
        "files": {"nodes/state/c/0/0": FileDigest(3, "cd" * 32)},
    }
    return Manifest(**(fields | changes))


def test_round_trip_is_exact(tmp_path):
    manifest = example()
    digest = write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert digest.size == (tmp_path / "manifest.json").stat().st_size
    assert manifest.tool_version == TOOL_VERSION


def test_the_order_of_keys_doesnt_matter(tmp_path):
    (tmp_path / "b").mkdir()
    one = write_manifest(tmp_path, example(options={"a": 1, "b": 2}))
    two = write_manifest(tmp_path / "b", example(options={"b": 2, "a": 1}))
    assert one == two


def test_the_package_and_the_checkout_agree_on_the_version():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'\nversion = "{TOOL_VERSION}"\n' in project


@pytest.mark.parametrize("value", [math.nan, math.inf, np.int64(3), {1, 2}])
def test_what_has_no_exact_json_is_refused(tmp_path, value):
    with pytest.raises(UsageError, match="JSON"):
        write_manifest(tmp_path, example(options={"x": value}))
    assert list(tmp_path.iterdir()) == []


def test_counts_that_contradict_are_refused():
    with pytest.raises(UsageError, match="joint actions"):
        example(counts=Counts(2, 3, 7, 1))
    with pytest.raises(UsageError, match="agents"):
        example(num_actions=(5, 5))


@pytest.mark.parametrize("schema", [0, 3, 99])
def test_another_schema_says_so(tmp_path, schema):
    document = {"schema_version": schema}  # whatever else a newer schema may hold
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(SchemaVersionError, match=f"schema {schema}"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("key", sorted(set(example().to_dict())))
@pytest.mark.parametrize("value", ["missing", None, 3.5, "x", [None], {"x": None}])
def test_missing_or_wrong_values_are_named_errors(tmp_path, key, value):
    document = example().to_dict()
    if value == "missing":
        del document[key]
    else:
        document[key] = value
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    free_form = {"rows", "replay", "options"}
    if (key == "tool_version" and value == "x") or (key in free_form and isinstance(value, dict)):
        read_manifest(tmp_path)
        return
    with pytest.raises(CorruptStoreError, match=r"manifest\.json"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("path", ["/etc/passwd", "../other", "a/../../b"])
def test_paths_cant_leave_the_version(tmp_path, path):
    document = example().to_dict()
    document["files"] = {path: {"size": 1, "sha256": "00"}}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(CorruptStoreError, match="leaves"):
        read_manifest(tmp_path)


def test_unknown_keys_are_passed_over(tmp_path):
    document = example().to_dict() | {"later": 1}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    assert read_manifest(tmp_path) == example()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"schema_version": true}', '{"schema_version": "1"}'])
def test_broken_files_are_named_errors(tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(CorruptStoreError, match=r"manifest\.json"):
        read_manifest(tmp_path)
    with pytest.raises(CorruptStoreError, match="missing"):
        read_manifest(tmp_path / "nowhere")


def test_a_change_that_leaves_good_json_is_found(tmp_path):
    write_manifest(tmp_path, example())
    path = tmp_path / "manifest.json"
    text = path.read_text()
    for old, new in (('"num_edges": ', '"num_edges": 1'), ('"width": ', '"width": 1')):
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(CorruptStoreError, match=r"manifest\.json has other contents"):
            read_manifest(tmp_path)
    path.write_text(text.replace("\n", " "))  # the same document
    assert read_manifest(tmp_path) == example()
