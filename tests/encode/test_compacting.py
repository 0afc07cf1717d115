"""`compact`: another encoding of a published version, equal to it in everything that can be read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omstore
from omstore.convert import ConvertOptions, convert
from omstore.encode.compact import compact
from omstore.errors import CorruptStoreError, StoreNotFoundError, UsageError
from omstore.inspect import verify
from tools.exports.spec import ExportSpec
from tools.make_export import write_export

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """Don't wait for the disk: that what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def pursuit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pursuit world of two agents as csr; not to be changed."""
    export = tmp_path_factory.mktemp("compact") / "pursuit"
    write_export(export, ExportSpec(agents=2, slip=0.1, transitions=500, off_graph=7))
    convert(export, ConvertOptions(rows="csr"))
    return export


@pytest.fixture
def fresh(pursuit: Path, tmp_path: Path) -> Path:
    shutil.copytree(pursuit, tmp_path / "export")
    return tmp_path / "export"


def edges(export: Path, keep: tuple[str, ...] = ()) -> dict[str, Any]:
    """Everything that can be read of a graph's edges."""
    graph = omstore.open(export).graph
    assert graph is not None
    rows = np.arange(graph.num_rows)
    found = graph.successors(rows // graph.num_joint_actions, rows % graph.num_joint_actions, keep=keep)
    return {
        **{n: getattr(found, n) for n in ("offsets", "next_node", "probability", "reward", "done")},
        **found.kept,
    }


def same(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert one.keys() == two.keys()
    for name, values in one.items():
        assert values.tobytes() == two[name].tobytes(), name


def test_from_one_encoding_to_the_next_and_back(fresh: Path) -> None:
    expected = edges(fresh)
    before = json.loads((fresh / "store" / "v000001" / "manifest.json").read_text())
    for number, rows in enumerate(["factored", "csr-compressed", "dictionary", "csr", "auto"], start=2):
        report = compact(fresh, rows=rows)
        assert report.version == f"v{number:06d}"
        assert report.from_version == f"v{number - 1:06d}"
        assert report.encoding == ("factored" if rows == "auto" else rows)
        assert report.proof == {"rows": 48_400, "edges": 571_152, "largest_difference_ulp": 0}
        same(edges(fresh), expected)
        manifest = json.loads((fresh / "store" / report.version / "manifest.json").read_text())
        for key in ("counts", "agents", "num_actions", "state", "replay", "sources", "notes"):
            assert manifest[key] == before[key]
        assert manifest["options"]["compact"] == {"from": report.from_version, "rows": rows}
        assert {**manifest["options"], "compact": None} == {**before["options"], "compact": None}
        copied = [path for path in before["files"] if path.startswith(("index/", "replay/", "nodes/state"))]
        assert len(copied) > 10
        assert all(manifest["files"][path] == before["files"][path] for path in copied)
    assert verify(fresh, against=fresh).ok


def test_compacting_gives_what_converting_gives(fresh: Path, tmp_path: Path) -> None:
    compact(fresh, rows="factored")
    converted = tmp_path / "converted"
    shutil.copytree(fresh / "wm", converted / "wm")
    convert(converted, ConvertOptions(rows="factored"))
    one, two = (
        json.loads((version / "manifest.json").read_text())["files"]
        for version in (fresh / "store" / "v000002", converted / "store" / "v000001")
    )
    assert {path: entry for path, entry in one.items() if "/c/" in path} == {
        path: entry for path, entry in two.items() if "/c/" in path
    }


def test_a_dry_run_forecasts_and_leaves_nothing(fresh: Path) -> None:
    before = sorted(fresh.rglob("*"))
    report = compact(fresh, dry_run=True)
    assert sorted(fresh.rglob("*")) == before
    assert (report.version, report.encoding, report.dry_run) == (None, "factored", True)
    assert [forecast["encoding"] for forecast in report.forecasts] == [
        "csr", "csr-compressed", "dictionary", "factored",
    ]  # fmt: skip
    assert report.store_bytes < report.bytes_before / 5
    written = compact(fresh)
    assert report.store_bytes == pytest.approx(written.store_bytes, rel=0.1)
    json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("example", ["bits", "integers", "graph-only"])
@pytest.mark.parametrize("rows", ["auto", "csr", "csr-compressed", "dictionary"])
def test_stores_of_schema_1_at_every_level(tmp_path: Path, example: str, rows: str) -> None:
    keep = {"bits": ("build", "danger", "region", "cost", "visits")}.get(example, ())
    for encoding in ("csr", "csr-compressed"):
        export = tmp_path / encoding
        shutil.copytree(GOLDEN / "1" / example / encoding, export / "store")
        expected = edges(export, keep)
        report = compact(export, rows=rows)
        same(edges(export, keep), expected)
        found = verify(export)
        assert found.ok, found
        assert report.attributes["done"] in ("graph", "next_node")
        manifest = json.loads((export / "store" / "v000002" / "manifest.json").read_text())
        assert manifest["schema_version"] == 2


def test_damage_is_not_published_anew(fresh: Path) -> None:
    version = fresh / "store" / "v000001"
    for name in (
        "rows/outcome/c/0",
        "rows/next_node/c/0",
        "nodes/state/c/0/0",
        "index/slots/c/0",
        "outcomes/reward/c/0/0",
    ):
        path = version / name
        data = path.read_bytes()
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 1
        path.write_bytes(bytes(flipped))
        with pytest.raises(CorruptStoreError, match=name):
            compact(fresh, rows="csr")
        path.write_bytes(data)
    assert [path.name for path in sorted((fresh / "store").glob("v*"))] == ["v000001"]
    assert not list((fresh / "store").glob(".staging*"))


def test_what_has_no_rows_or_no_store_is_refused(tmp_path: Path, fresh: Path) -> None:
    shutil.copytree(GOLDEN / "1" / "replay-only" / "csr", tmp_path / "replay" / "store")
    with pytest.raises(UsageError, match="replay only"):
        compact(tmp_path / "replay")
    with pytest.raises(StoreNotFoundError):
        compact(tmp_path / "nothing")
    with pytest.raises(UsageError, match="no row encoding 'frob'"):
        compact(fresh, rows="frob")
