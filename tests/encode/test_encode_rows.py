"""Rows encoded, read back and proven; the same bytes whatever the budget; nothing published that isn't proven."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omstore.encode import ENCODINGS, EncodedRows, RowsToEncode, encode_rows
from omstore.errors import DiskFullError, MemoryBudgetError, ProofError, UsageError
from omstore.format.manifest import Counts, Manifest
from omstore.format.states import StateCodec
from omstore.index import build_index
from omstore.publish.staging import Staging, stage
from omstore.publish.versions import current
from omstore.read import Graph, open_store
from omstore.read.attributes import Attribute
from omstore.rows import CsrRows, GraphSize
from tools.worlds.pursuit import Pursuit


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """Don't wait for the disk: that what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


@dataclass(frozen=True)
class Enumerated:
    """The pursuit world with two agents, edge by edge, in the order of the store."""

    world: Pursuit
    given: RowsToEncode
    offsets: np.ndarray
    next_node: np.ndarray
    probability: np.ndarray
    reward: np.ndarray
    done: np.ndarray


@pytest.fixture(scope="module")
def pursuit() -> Enumerated:
    world = Pursuit(2, 0.1)
    codec = StateCodec(world.width, 1)
    packed = codec.pack(world.vectors(np.arange(world.num_nodes)))
    order = np.lexsort(packed.T[::-1])
    rows = np.arange(world.num_nodes * world.num_joint_actions)
    found = world.successors(order[rows // world.num_joint_actions], rows % world.num_joint_actions)
    next_node = np.argsort(order)[found.next_node]
    by_row = np.lexsort((next_node, found.row_of_edge))
    next_node, probability = next_node[by_row], found.probability[by_row]
    reward, done = found.reward[by_row], found.done[by_row]
    columns = np.column_stack([probability, reward, done])
    table, codes = np.unique(columns, axis=0, return_inverse=True)
    size = GraphSize(world.num_nodes, world.num_joint_actions, len(next_node), len(table))
    source = CsrRows(
        size, found.offsets.astype(np.uint64), next_node.astype(np.uint32), codes.reshape(-1).astype(np.uint8)
    )
    attributes = (
        Attribute("probability", "outcome", table[:, 0].copy()),
        Attribute("reward", "outcome", table[:, 1:3].copy()),
        Attribute("done", "outcome", table[:, 3].astype(np.uint8)),
    )
    given = RowsToEncode(source, attributes, packed[order], codec, world.num_actions)
    return Enumerated(world, given, found.offsets, next_node, probability, reward, done)


def publish(export: Path, given: RowsToEncode, rows: str, **options: Any) -> EncodedRows:
    """Publish a version with nodes, index and encoded rows."""
    with stage(export) as staging:
        encoded = encode_rows(given, staging, rows=rows, **options)
        finish(staging, given, encoded)
    return encoded


def finish(staging: Staging, given: RowsToEncode, encoded: EncodedRows) -> None:
    size = given.source.size
    staging.write_hot("nodes/state", given.packed)
    slots = staging.hot("index/slots", np.uint64)
    build_index(given.packed, slots)
    counts = Counts(size.num_nodes, size.num_joint_actions, size.num_rows, size.num_edges)
    agents = tuple(map(str, range(len(given.num_actions))))
    manifest = Manifest(
        counts, agents, tuple(given.num_actions), given.codec, encoded.rows, encoded.attributes
    )
    staging.publish(manifest)


def graph_of(export: Path) -> Graph:
    graph = open_store(export).graph
    assert graph is not None
    return graph


def digests(export: Path) -> dict[str, str]:
    version = export / "store" / current(export)
    return {
        str(path.relative_to(version)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in version.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("rows", ["auto", *ENCODINGS])
def test_every_encoding_gives_the_edges_that_were_encoded(
    pursuit: Enumerated, tmp_path: Path, rows: str
) -> None:
    encoded = publish(tmp_path, pursuit.given, rows)
    assert encoded.encoding == ("factored" if rows == "auto" else rows)
    assert encoded.rows["proof"] == {"rows": 48_400, "edges": 571_152, "largest_difference_ulp": 0}
    assert pursuit.world.num_edges == 571_152
    levels = {"probability": "outcome", "reward": "next_node_unless_node", "done": "next_node"}
    assert encoded.levels == levels
    graph = graph_of(tmp_path)
    assert (graph.encoding.name, graph.num_edges) == (encoded.encoding, 571_152)
    numbers = np.arange(graph.num_rows)
    found = graph.successors(numbers // 25, numbers % 25)
    for name in ("offsets", "next_node", "probability", "reward", "done"):
        assert np.array_equal(getattr(found, name), getattr(pursuit, name)), name
    reward = graph.attribute("reward")
    assert reward.own is not None
    # of the 44 absorbing states those that are entered have a value of their own: staying in them pays nothing
    assert np.count_nonzero(reward.own) == 44


def test_the_same_bytes_whatever_the_budget_and_the_threads(pursuit: Enumerated, tmp_path: Path) -> None:
    for rows in ("dictionary", "factored"):
        found = []
        for number, (budget, threads) in enumerate([(512 << 20, 2), (128 << 20, 1)]):
            export = tmp_path / f"{rows}-{number}"
            publish(export, pursuit.given, rows, budget=budget, threads=threads)
            found.append(digests(export))
        assert found[0] == found[1]


def test_forecasts_come_with_what_is_chosen(pursuit: Enumerated, tmp_path: Path) -> None:
    with stage(tmp_path) as staging:
        encoded = encode_rows(pursuit.given, staging, dry_run=True)
        assert not list(staging.path.iterdir())
    assert [forecast.encoding for forecast in encoded.forecasts] == list(ENCODINGS)
    assert (encoded.rows, encoded.attributes, encoded.proof) == ({}, {}, {})
    assert encoded.encoding == "factored"
    assert "2 components" in encoded.reason
    assert "0 % not counting" in encoded.reason
    sizes = {forecast.encoding: forecast.nbytes for forecast in encoded.forecasts}
    for name in ENCODINGS:
        publish(tmp_path / name, pursuit.given, name)
        version = tmp_path / name / "store" / "v000001" / "rows"
        files = [p for p in version.rglob("*") if p.is_file() and p.name != "zarr.json"]
        written = sum(path.stat().st_size for path in files)
        # compressed edges repeat less in a sample's parts than in one piece
        assert sizes[name] == pytest.approx(written, rel=0.25 if name == "csr-compressed" else 0.1), name


def test_rows_that_differ_from_the_source_are_not_published(
    pursuit: Enumerated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omstore.encode import encode as module

    def careless(source: Any, staging: Any, **options: Any) -> Any:
        inner = source.source if hasattr(source, "source") else source
        moved = np.array(inner._next_node)
        moved[1000] = moved[1000] + 1 if moved[1000] + 1 < moved[1001] else moved[1000]
        moved[5000] += 1
        damaged = CsrRows(inner.size, inner._offsets, moved, inner._outcome)
        return original(type(source)(damaged, source.code_map, source.size.num_outcomes), staging, **options)

    original = module.write_dictionary
    monkeypatch.setattr(module, "write_dictionary", careless)
    with pytest.raises(ProofError, match="row"):
        publish(tmp_path, pursuit.given, "dictionary")
    assert not list((tmp_path / "store").glob("v*"))


def test_what_does_not_fit_names_the_encoding_that_does(
    pursuit: Enumerated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(total=1 << 30, used=0, free=300_000)
    monkeypatch.setattr("omstore.encode.choose.shutil.disk_usage", lambda folder: free)
    with pytest.raises(DiskFullError, match=r"as csr, and .* has 293 KiB left") as caught:
        publish(tmp_path, pursuit.given, "csr")
    assert "--rows csr-compressed, predicted" in caught.value.hint
    assert not list((tmp_path / "store").glob("v*"))


def test_a_reward_hoisted_wrongly_is_never_published(
    pursuit: Enumerated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(source: Any, attributes: Any, tick: Any) -> Any:
        found = original(source, attributes, tick)
        wrong = []
        for attribute in found.attributes:
            own = attribute.own
            if own is not None:
                own = own.copy()
                own[np.flatnonzero(own)[20]] = 0  # one absorbing state of 44 pays for staying
            wrong.append(replace(attribute, own=own))
        return replace(found, attributes=tuple(wrong))

    module = sys.modules["omstore.encode.encode"]
    original = module.hoist
    monkeypatch.setattr(module, "hoist", careless)
    with pytest.raises(ProofError, match="reward as written"):
        publish(tmp_path, pursuit.given, "dictionary")
    assert not list((tmp_path / "store").glob("v*"))


def test_what_does_not_factor_says_why(pursuit: Enumerated, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    size = replace(pursuit.given.source.size, num_edges=48_400, num_outcomes=1)
    source = CsrRows(size, None, rng.integers(0, 1936, 48_400).astype(np.uint32), None, 1)
    attributes = (
        Attribute("probability", "graph", np.ones(1)),
        Attribute("reward", "edge", rng.normal(size=(48_400, 2))),
        Attribute("done", "graph", np.zeros(1, np.uint8)),
    )
    given = replace(pursuit.given, source=source, attributes=attributes)
    with pytest.raises(UsageError, match=r"--rows factored is impossible.*independently"):
        publish(tmp_path, given, "factored")
    encoded = publish(tmp_path, given, "auto")
    assert encoded.encoding == "csr"
    assert "independently" in encoded.reason
    graph = graph_of(tmp_path)
    found = graph.successors(np.arange(48_400) // 25, np.arange(48_400) % 25)
    assert np.array_equal(found.reward, attributes[1].values)
    compressed = publish(tmp_path, given, "csr-compressed")
    assert compressed.attributes["reward"]["path"] == "rows/attributes/reward"
    assert np.array_equal(graph_of(tmp_path).successors([7], [3]).reward, attributes[1].values[[7 * 25 + 3]])


def test_rewards_that_differ_from_edge_to_edge_do_not_factor(pursuit: Enumerated, tmp_path: Path) -> None:
    source, size = pursuit.given.source, pursuit.given.source.size
    codes = np.arange(size.num_edges, dtype=np.int64) % 3
    varied = CsrRows(
        replace(size, num_outcomes=3),
        source._offsets,
        source._next_node,
        codes.astype(np.uint8),  # type: ignore[attr-defined]
    )
    attributes = (
        Attribute("probability", "graph", np.ones(1)),
        Attribute("reward", "outcome", np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]])),
        Attribute("done", "graph", np.zeros(1, np.uint8)),
    )
    given = replace(pursuit.given, source=varied, attributes=attributes)
    with stage(tmp_path) as staging, pytest.raises(UsageError, match="reward differ"):
        encode_rows(given, staging, rows="factored")


def test_what_needs_more_memory_than_the_budget_is_refused(pursuit: Enumerated, tmp_path: Path) -> None:
    with stage(tmp_path) as staging:
        with pytest.raises(MemoryBudgetError, match=r"csr-compressed.*budget is 33.0 MiB") as refused:
            encode_rows(pursuit.given, staging, rows="csr-compressed", budget=33 << 20, all_forecasts=True)
        assert "--rows factored" in refused.value.hint
        assert not list(staging.path.iterdir())


def test_random_rows_are_proven_where_all_are_too_many(pursuit: Enumerated, tmp_path: Path) -> None:
    encoded = publish(tmp_path, pursuit.given, "dictionary", proof_rows=3000)
    assert encoded.proof["rows"] == 3000
    assert 3000 < encoded.proof["edges"] < 3000 * 25
