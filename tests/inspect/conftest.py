"""Small converted exports, and damage done to their stores behind the digests' back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from omstore.convert import ConvertOptions, convert
from omstore.format.durable import digest_file
from tools.exports.spec import ExportSpec
from tools.make_export import write_export


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """Don't wait for the disk: that what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


SPEC = {
    "world": "random",
    "num_nodes": 40,
    "transitions": 300,
    "off_graph": 9,
    "kept": True,
    "duplicates": True,
    "shuffle": True,
    "ids": "sparse",
    "nodes": "dict-id-state",
    "egocentric": True,
    "state_dtype": "uint8",
}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A random graph with parallel edges, kept fields, ids with gaps, and states off the graph: converted."""
    export = tmp_path_factory.mktemp("made") / "export"
    write_export(export, ExportSpec(**SPEC))
    convert(export, ConvertOptions(keep=("visits",)))
    return export


@pytest.fixture
def copy(made, tmp_path):
    """A copy of it that may be damaged."""
    export = tmp_path / "export"
    shutil.copytree(made, export)
    return export


@pytest.fixture
def tamper(copy) -> Callable[..., Path]:
    """Give a function that changes a hot array of the copy and has the manifest agree with the change."""
    folder = copy / "store" / "v000001"

    def change(name: str, dtype: str, edit: Callable[[np.ndarray], object]) -> Path:
        file = next(path for path in (folder / name / "c").rglob("*") if path.is_file())
        values = np.fromfile(file, dtype)
        edit(values)
        values.tofile(file)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest.pop("manifest_sha256", None)
        key = file.relative_to(folder).as_posix()
        manifest["files"][key]["sha256"] = digest_file(file).sha256
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return copy

    return change
