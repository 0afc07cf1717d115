"""Opening, closing, pickling, forking; and stores that are damaged."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omstore
from omstore.errors import CorruptStoreError, SchemaVersionError, StoreNotFoundError, UsageError
from tests.read.made_stores import Made, make_store
from tools.worlds.random_graph import RandomGraph


def answers(graph: omstore.Graph) -> list[Any]:
    found = graph.successors([0, 3, 7], [1, 0, 5])
    return [found.next_node.tolist(), found.reward.tolist(), graph.lookup(graph.states([4, 2])).tolist()]


def test_open_takes_an_export_a_store_or_a_version(tiny_store: Made) -> None:
    with omstore.open(tiny_store.export) as store:
        assert store.version == "v000001"
        assert store.manifest.counts.num_nodes == 40
        expected = answers(store.graph)
    for path, version in ((store.path, None), (store.path.parent, 1), (str(tiny_store.export), "v000001")):
        assert answers(omstore.open(path, version).graph) == expected
    with pytest.raises(StoreNotFoundError):
        omstore.open(tiny_store.export, 7)
    with pytest.raises(StoreNotFoundError):
        omstore.open(tiny_store.export / "nowhere")


def test_a_closed_store_says_so_and_its_graph_goes_on(tiny_store: Made) -> None:
    with omstore.open(tiny_store.export) as store:
        graph = store.graph
    expected = answers(omstore.open(tiny_store.export).graph)
    assert answers(graph) == expected
    with pytest.raises(UsageError, match="is closed"):
        _ = store.graph
    with pytest.raises(UsageError, match="is closed"):
        _ = store.replay


def test_pickles_are_path_and_version(tiny_store: Made) -> None:
    store = omstore.open(tiny_store.export)
    for thing in (store, store.graph, store.replay):
        data = pickle.dumps(thing)
        assert len(data) < 600
        assert type(pickle.loads(data)) is type(thing)
    assert answers(pickle.loads(pickle.dumps(store.graph))) == answers(store.graph)
    assert np.array_equal(pickle.loads(pickle.dumps(store.replay)).states(), store.replay.states())


def test_a_pickle_names_the_version_not_the_live_one(tmp_path: Path) -> None:
    made = make_store(tmp_path / "export", RandomGraph(6, seed=1))
    store = omstore.open(made.export)
    data = pickle.dumps(store)
    make_store(tmp_path / "export", RandomGraph(9, seed=2))
    assert omstore.open(made.export).graph.num_nodes == 9
    assert pickle.loads(data).graph.num_nodes == 6
    assert answers_small(store) == answers_small(pickle.loads(data))


def answers_small(store: omstore.Store) -> list[Any]:
    return [chunk.successors.next_node.tolist() for chunk in store.graph.sweep(4)]


def test_an_open_store_outlives_its_files(tiny_store: Made, tmp_path: Path) -> None:
    shutil.copytree(tiny_store.export, tmp_path / "copy")
    store = omstore.open(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy")
    fresh = omstore.open(tiny_store.export)
    assert answers(store.graph) == answers(fresh.graph)
    assert np.array_equal(store.replay.states(), fresh.replay.states())


def _answer(store: omstore.Store, queue: Any) -> None:
    queue.put((answers(store.graph), store.replay.states([3, 299, 70]).tolist()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_other_processes_read_the_same(tiny_store: Made, method: str) -> None:
    store = omstore.open(tiny_store.export)
    expected = (answers(store.graph), store.replay.states([3, 299, 70]).tolist())
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_answer, args=(store, queue))
    process.start()
    assert queue.get(timeout=60) == expected
    process.join()
    assert process.exitcode == 0


def version_of(made: Made, tmp_path: Path) -> Path:
    shutil.copytree(made.export, tmp_path / "copy")
    return tmp_path / "copy/store/v000001"


def test_every_missing_truncated_or_longer_file_is_named(tiny_store: Made, tmp_path: Path) -> None:
    folder = version_of(tiny_store, tmp_path)
    arrays = [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]
    groups = {path.parent for path in arrays if path.name == "zarr.json" and b'"group"' in path.read_bytes()}
    tried = 0
    for path in arrays:
        if path.name == "zarr.json" and path.parent in groups and path.parent.name != "rows":
            continue  # groups are for zarr tools; reading doesn't need them
        data = path.read_bytes()
        for damage in (None, data[:-1], data + b"x"):
            path.unlink()
            if damage is not None:
                path.write_bytes(damage)
            with pytest.raises(CorruptStoreError, match=str(path.relative_to(folder))):
                omstore.open(folder)
            path.write_bytes(data)
            tried += 1
    assert tried > 60
    omstore.open(folder)


def test_a_foreign_array_is_refused(tiny_store: Made, tmp_path: Path) -> None:
    folder = version_of(tiny_store, tmp_path)
    other = make_store(tmp_path / "other", RandomGraph(41, (3, 2), width=13)).export / "store/v000001"
    shutil.rmtree(folder / "nodes/state")
    shutil.copytree(other / "nodes/state", folder / "nodes/state")
    with pytest.raises(CorruptStoreError, match="nodes/state"):
        omstore.open(folder)


def changed_manifest(folder: Path, change: Any) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("manifest_sha256")  # whoever edited it signed nothing
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m: m.update(schema_version=99), SchemaVersionError, "99"),
        (lambda m: m["rows"].update(encoding="unheard-of"), SchemaVersionError, "unheard-of"),
        (lambda m: m["attributes"].pop("done"), CorruptStoreError, "no attribute 'done'"),
        (lambda m: m["attributes"]["done"].update(level="planet"), CorruptStoreError, "'planet'"),
        (lambda m: m["attributes"]["done"].update(level="row"), CorruptStoreError, "outcomes/done"),
        (lambda m: m["attributes"]["done"].update(path="nodes/none"), CorruptStoreError, "nodes/none"),
        (lambda m: m.update(num_actions=[2, 2]), CorruptStoreError, "joint actions"),
        (lambda m: m["state"].update(width=99), CorruptStoreError, "nodes/state"),
        (lambda m: m["counts"].update(num_transitions=301), CorruptStoreError, "replay/"),
        (lambda m: m["counts"].update(num_nodes=41, num_rows=246), CorruptStoreError, "rows/"),
    ],
)
def test_a_manifest_that_does_not_fit(
    tiny_store: Made, tmp_path: Path, change: Any, error: type[Exception], message: str
) -> None:
    folder = version_of(tiny_store, tmp_path)
    changed_manifest(folder, change)
    with pytest.raises(error, match=message):
        omstore.open(folder)


def test_opening_reads_nothing_of_the_arrays(tmp_path: Path) -> None:
    world = RandomGraph(4000, (5, 5), width=40, max_outdegree=6)
    made = make_store(tmp_path / "export", world)
    omstore.open(made.export)
    start = time.perf_counter()
    for _ in range(10):
        omstore.open(made.export)
    assert (time.perf_counter() - start) / 10 < 0.05
    code = (
        "import omstore, sys; from omstore.memory import memory_use; store = omstore.open(sys.argv[1]);"
        "before = memory_use(); stores = [omstore.open(sys.argv[1]) for _ in range(20)];"
        "after = memory_use();"
        "print(after.anonymous - before.anonymous, after.file_backed - before.file_backed)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(made.export)], capture_output=True, text=True, check=True
    )
    anonymous, file_backed = map(int, done.stdout.split())
    assert anonymous < 20 << 20
    assert file_backed < 4 << 20, "20 stores of 5 MB each were mapped; none of it was to be read"


def test_importing_omstore_loads_no_numba() -> None:
    code = "import sys, omstore, omstore.errors; assert not {'numba', 'zarr', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(omstore.__all__) <= set(dir(omstore))
    with pytest.raises(AttributeError):
        _ = omstore.nothing
