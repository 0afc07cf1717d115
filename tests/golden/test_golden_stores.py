"""Stores published once, kept as they were: they stay readable, and today's are the same to the byte."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

import omstore
from omstore.errors import CorruptStoreError, SchemaVersionError
from omstore.format.cold import ColdArray
from omstore.format.manifest import SCHEMA_VERSION
from omstore.inspect import verify
from omstore.read.arrays import VersionArrays
from tools.make_golden import EXAMPLES, GOLDEN, publish


@dataclass(frozen=True)
class Golden:
    """One committed store."""

    schema: int
    example: Path
    encoding: str

    @property
    def store(self) -> Path:
        return self.example / self.encoding

    @property
    def version(self) -> Path:
        return self.store / "v000001"

    @property
    def about(self) -> dict[str, Any]:
        return json.loads((self.example / "example.json").read_text())

    @property
    def truth(self) -> dict[str, np.ndarray]:
        with np.load(self.example / "truth.npz") as arrays:
            return dict(arrays)


STORES = [
    Golden(int(about.parts[-3]), about.parent, encoding)
    for about in sorted(GOLDEN.glob("*/*/example.json"))
    for encoding in json.loads(about.read_text())["encodings"]
]
every_store = pytest.mark.parametrize(
    "golden", STORES, ids=lambda g: f"{g.schema}-{g.example.name}-{g.encoding}"
)


def same(found: Any, expected: np.ndarray) -> None:
    """Equal to the bit, whatever the integers' width."""
    found = np.asarray(found)
    assert found.shape == expected.shape
    assert found.dtype.kind == expected.dtype.kind or {found.dtype.kind, expected.dtype.kind} == {"i", "u"}
    if found.dtype.kind == "f":
        assert found.tobytes() == expected.tobytes()
    else:
        assert np.array_equal(found, expected)


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """Don't wait for the disk: that what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


def test_this_schema_has_its_golden_stores() -> None:
    assert {g.example.name for g in STORES if g.schema == SCHEMA_VERSION} == set(EXAMPLES)
    assert sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()) < 2 << 20


def check_values(store: omstore.Store, truth: dict[str, np.ndarray], levels: dict[str, str]) -> None:
    """Compare everything that can be read with the truth."""
    graph, replay = store.graph, store.replay
    assert (graph is None) == ("states" not in truth)
    assert (replay is None) == ("replay/node" not in truth)
    if graph is not None:
        check_graph(graph, truth)
        assert {name: a.level for name, a in graph.attributes.items()} == levels
    if replay is not None:
        observed = {name for name in truth if "observations" in name}
        same(replay.nodes, truth["replay/node"])
        same(replay.next_nodes, truth["replay/next_node"])
        same(replay.joint_actions, truth["replay/joint_action"])
        same(replay.states(), truth["replay/state"])
        same(replay.next_states(), truth["replay/next_state"])
        same(replay.rewards(), truth["replay/reward"].astype(float))
        same(replay.done(), truth["replay/done"])
        assert replay.off_graph == np.count_nonzero(
            (truth["replay/node"] < 0) | (truth["replay/next_node"] < 0)
        )
        for agent in replay.agents:
            for name, read in (
                ("observations", replay.observations),
                ("next_observations", replay.next_observations),
            ):
                state = "replay/next_state" if "next" in name else "replay/state"
                key = f"replay/{name}/{agent}"
                same(read(agent), truth[key if key in observed else state])
        assert (replay.kept_names == ("weight",)) == ("replay/weight" in truth)
        for name in replay.kept_names:
            same(replay.kept(name), truth[f"replay/{name}"])


def check_graph(graph: omstore.Graph, truth: dict[str, np.ndarray]) -> None:
    states, nodes = truth["states"], np.arange(len(truth["states"]))
    assert graph.num_nodes == len(nodes)
    same(graph.states(nodes), states)
    same(graph.lookup(states), nodes)
    same(graph.legacy_ids(nodes), truth["legacy_ids"])
    same(graph.nodes_of_legacy(truth["legacy_ids"]), nodes)
    absent = states.copy()
    absent[:, -1] = states.max() if states.max() > 1 else 1 - absent[:, -1]
    known = {tuple(state): node for node, state in enumerate(states.tolist())}
    same(graph.lookup(absent), np.array([known.get(tuple(state), -1) for state in absent.tolist()]))
    edges = {name[6:]: column for name, column in truth.items() if name.startswith("edges/")}
    row = edges["node"] * graph.num_joint_actions + edges["joint_action"]
    outdegree = np.bincount(row, minlength=graph.num_rows)
    same(graph.legal(nodes), (outdegree > 0).reshape(graph.num_nodes, -1))
    kept = sorted(set(edges) - {"node", "joint_action", "next_node", "probability", "reward", "done"})
    batches = [graph.successors(*np.divmod(np.arange(graph.num_rows), graph.num_joint_actions), keep=kept)]
    sweep = [chunk.successors for chunk in graph.sweep(7, keep=kept)]
    for found in (batches, sweep):
        same(np.concatenate([part.outdegree for part in found]), outdegree)
        for name in ("next_node", "probability", "reward", "done"):
            same(np.concatenate([getattr(part, name) for part in found]), edges[name])
        for name in kept:
            same(np.concatenate([part.kept[name] for part in found]), edges[name])
    legal = np.flatnonzero(outdegree)
    drawn = graph.sample(*np.divmod(legal, graph.num_joint_actions), np.random.default_rng(0), keep=kept)
    position = {pair: i for i, pair in enumerate(zip(row.tolist(), edges["next_node"].tolist(), strict=True))}
    at = [position[pair] for pair in zip(legal.tolist(), drawn.next_node.tolist(), strict=True)]
    same(drawn.probability, edges["probability"][at])
    same(drawn.reward, edges["reward"][at])
    for name in kept:
        same(drawn.kept[name], edges[name][at])


@every_store
def test_a_golden_store_gives_the_values_that_were_pickled(golden: Golden) -> None:
    with omstore.open(golden.store) as store:
        check_values(store, golden.truth, golden.about["levels"])
    assert verify(golden.store).ok


@every_store
def test_zarr_reads_the_same_arrays(golden: Golden) -> None:
    group = zarr.open_group(golden.version, mode="r", zarr_format=3)
    with omstore.open(golden.store) as store:
        arrays = VersionArrays(golden.version, store.manifest)
    names = [path[: -len("/zarr.json")] for path in arrays._files if path.endswith("/zarr.json")]
    leaves = [name for name in names if isinstance(group[name], zarr.Array)]
    assert len(leaves) >= 7
    for name in leaves:
        ours = arrays.any(name, rows=None)
        same(ours[:] if isinstance(ours, ColdArray) else ours, group[name][...])


def digests(version: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(version)): path.read_bytes() for path in version.rglob("*") if path.is_file()
    }


@every_store
def test_converting_the_golden_pickles_gives_them_again(golden: Golden, tmp_path: Path) -> None:
    shutil.copytree(golden.example / "wm", tmp_path / "wm")
    about = golden.about
    options = {key: tuple(v) if isinstance(v, list) else v for key, v in about["options"].items()}
    new = publish(tmp_path, options, golden.encoding, about["max_outcomes"]) / "v000001"
    with omstore.open(tmp_path) as store:
        check_values(store, golden.truth, about["levels"])
    assert verify(tmp_path, against=tmp_path).ok
    if golden.schema != SCHEMA_VERSION:
        return
    old, found = digests(golden.version), digests(new)
    assert sorted(old) == sorted(found)
    same_zstd = about["numcodecs"] == numcodecs.__version__  # another zstd may compress the same differently
    for path, data in old.items():
        array, chunk, _ = path.partition("/c/")
        compressed = chunk and b"sharding_indexed" in old[f"{array}/zarr.json"]
        if same_zstd or not (compressed or path == "manifest.json"):
            assert found[path] == data, path


# Damage


def damages(path: Path) -> Iterator[tuple[str, bytes | None]]:
    """What can happen to a file: each with its contents afterwards, None for a file that is gone."""
    data = path.read_bytes()
    yield "gone", None
    for length in {0, len(data) - 1}:
        yield f"cut to {length} bytes", data[:length]
    yield "longer", data + b"\0"
    for position in {len(data) // 3, len(data) - 1}:
        flipped = bytearray(data)
        flipped[position] ^= 0x10
        yield f"a bit flipped in byte {position}", bytes(flipped)


def read_everything(version: Path) -> None:
    """Touch every array of a store through the reading API."""
    with omstore.open(version) as store:
        graph, replay = store.graph, store.replay
        if graph is not None:
            nodes = np.arange(graph.num_nodes)
            graph.lookup(graph.states(nodes))
            graph.nodes_of_legacy(graph.legacy_ids(nodes))
            rows = np.divmod(np.arange(graph.num_rows), graph.num_joint_actions)
            graph.successors(*rows, keep=list(graph.attributes))
            legal = graph.outdegree(*rows) > 0
            graph.sample(rows[0][legal], rows[1][legal], np.random.default_rng(0))
            for _ in graph.sweep(50):
                pass
        if replay is not None:
            for _ in replay.batches(16):
                pass
            for agent in replay.agents:
                replay.observations(agent)
                replay.next_observations(agent)
            for name in replay.kept_names:
                replay.kept(name)


DAMAGED = [
    g for g in STORES if g.schema == SCHEMA_VERSION and (g.example.name == "bits" or g.encoding == "factored")
]


@pytest.mark.parametrize("golden", DAMAGED, ids=lambda g: g.encoding)
def test_damage_to_any_file_is_a_named_error(golden: Golden, tmp_path: Path) -> None:
    version = tmp_path / "store" / "v000001"
    shutil.copytree(golden.store, tmp_path / "store")
    cold = {
        path
        for path in version.rglob("*")
        if "c" in path.parts and b"sharding_indexed" in (array_of(path) / "zarr.json").read_bytes()
    }
    for path in sorted(version.rglob("*")):
        if not path.is_file():
            continue
        name, data = path.relative_to(version).as_posix(), path.read_bytes()
        group = path.name == "zarr.json" and b'"node_type":"group"' in data.replace(b" ", b"")
        for what, damaged in damages(path):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            where = f"{name}: {what}"
            if name == "manifest.json" and same_json(data, damaged):
                continue
            flipped = what.startswith("a bit")
            error = error_of_reading(version.parent)
            if error:
                # What a bit made nonsense of is named by its row or node, and the folder.
                assert (name.partition("/")[0] if flipped else array_name(name)) in error, (where, error)
            # Reading needs no groups; a bit in a hot array or in metadata may show in its digest only.
            if not (group or (flipped and path not in cold and name != "manifest.json")):
                assert error, where
            problems = found_by_verify(version.parent)
            assert any(array_name(name) in problem for problem in problems), (where, problems)
            path.write_bytes(data)
    assert verify(version.parent).ok


def error_of_reading(store: Path) -> str:
    """What reading says is wrong, by an error that is named; empty where nothing is."""
    try:
        read_everything(store)
    except (CorruptStoreError, SchemaVersionError) as error:
        return str(error)
    return ""


def same_json(one: bytes, two: bytes | None) -> bool:
    """Whether it is the same document, written with other white space."""
    try:
        return two is not None and json.loads(one) == json.loads(two)
    except ValueError:
        return False


def found_by_verify(store: Path) -> list[str]:
    """Everything that `verify` says is wrong."""
    try:
        report = verify(store)
    except CorruptStoreError as error:  # there isn't even a manifest
        return [error.message]
    return [problem for check in report.checks for problem in check.problems]


def array_of(path: Path) -> Path:
    """The folder of the array that a chunk belongs to."""
    while path.name != "c":
        path = path.parent
    return path.parent


def array_name(name: str) -> str:
    """A file's array: enough for a message to name."""
    return name.partition("/c/")[0].removesuffix("/zarr.json")
