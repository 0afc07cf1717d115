"""Sweeps over damaged files: an error that says where, never a crash, and never values that nobody wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.errors import CorruptStoreError
from omstore.exact import Backup, Pusher, Sweeper
from tests.exact.dense import joint_table
from tests.rollout.conftest import partly_legal  # noqa: F401 - a fixture


def everything(export: Path) -> list[np.ndarray]:
    """All that a sweep can do, on two threads."""
    graph = omstore.open(export).graph
    assert graph is not None
    count, last = graph.num_nodes, len(graph.agents) - 1
    values = np.linspace(0, 1, count)
    own, other = (np.full((count, n), 1 / n) for n in joint_table(graph.num_actions, [last]).shape)
    out = np.full((6, count), np.nan)
    weights = np.ones(len(graph.agents))
    Sweeper(graph).sweep(
        [
            Backup(values, weights, out[0]),
            Backup(values, weights, out[1], minimise=True),
            Backup(values, weights, out[2], actions=np.empty(count, np.int64)),
            Backup(values, weights, out[3], own_side=[last], own=own, other=other),
            Backup(values, [], out[4], own_side=[last], other=other, ends=False),
        ]
    )
    out[5] = Pusher(graph, [last]).push(values, own, other)[0]
    assert not np.isnan(out).any()
    return list(out)


@pytest.fixture
def copied(pursuit, partly_legal, tmp_path):  # noqa: F811
    """A copy of a store that may be damaged."""

    def copy(world: str, encoding: str) -> Path:
        graph = (pursuit if world == "pursuit" else partly_legal)(encoding)
        export = tmp_path / f"{world}-{encoding}"
        shutil.copytree(graph.__reduce__()[1][0], export / "store")
        return export

    return copy


def arrays_of(export: Path) -> dict[str, Path]:
    """Raw arrays by name."""
    (version,) = (export / "store").glob("v*")
    found = {}
    for part in ("rows", "nodes/attributes", "outcomes"):
        for description in sorted((version / part).rglob("zarr.json")):
            chunk = description.parent / "c"
            depth = len(json.loads(description.read_text()).get("shape", ()))
            file = chunk / "/".join("0" * depth)
            if chunk.is_dir() and file.is_file():
                found[str(description.parent.relative_to(version))] = file
    return found


@pytest.mark.parametrize(
    ("world", "encoding", "array", "dtype", "value", "message"),
    [
        ("pursuit", "dictionary", "rows/block", "u4", 1 << 31, "block or pattern"),
        ("pursuit", "dictionary", "rows/delta", "i4", 1 << 30, "is damaged"),
        ("pursuit", "dictionary", "rows/pattern_list", "u4", 1 << 31, "list of codes isn't there"),
        ("pursuit", "factored", "rows/exceptions/block", "u1", 255, "names a block that doesn't exist"),
        ("pursuit", "factored", "rows/exceptions/block_pattern", "u4", 7, "pattern that doesn't exist"),
        ("pursuit", "factored", "rows/exceptions/delta", "i4", 1 << 30, "a next node doesn't exist"),
        ("pursuit", "csr", "rows/next_node", "u4", 1 << 31, "a next node doesn't exist"),
        ("pursuit", "csr", "rows/outcome", "u1", 255, "outcome code isn't in the table"),
        ("pursuit", "csr", "rows/offsets", "u8", 1 << 60, "offsets"),
        ("pursuit", "factored", "nodes/attributes/reward", "u1", 255, "has a code"),
        ("partly", "factored", "rows/exceptions/list_code", "u1", 255, "damaged"),
    ],
)
def test_what_is_damaged_is_said(copied, world, encoding, array, dtype, value, message):
    export = copied(world, encoding)
    mapped = np.memmap(arrays_of(export)[array], dtype, "r+")
    mapped[:] = value
    mapped.flush()
    with pytest.raises(CorruptStoreError, match=message):
        everything(export)


@pytest.mark.parametrize(
    ("world", "encoding"),
    [("pursuit", name) for name in ("csr", "csr-compressed", "dictionary", "factored")]
    + [("partly", name) for name in ("csr", "dictionary", "factored")],
)
def test_bytes_here_and_there(copied, world, encoding):
    """A few bytes of each array: what still makes sense gives values of every node, else it is said."""
    export = copied(world, encoding)
    rng = np.random.default_rng(5)
    whole = everything(export)
    said = 0
    for file in arrays_of(export).values():
        data = file.read_bytes()
        for damage in range(6):
            damaged = np.frombuffer(data, np.uint8).copy()
            where = rng.integers(len(data), size=1 + 3 * damage)
            damaged[where] = (0, 255, *rng.integers(0, 256, 4))[damage]
            file.write_bytes(damaged.tobytes())
            try:
                found = everything(export)
            except CorruptStoreError:
                said += 1
            else:
                assert all(len(values) == len(whole[0]) for values in found)
        file.write_bytes(data)
    assert said > 10
    assert all(np.array_equal(a, b) for a, b in zip(everything(export), whole, strict=True))


@pytest.fixture(scope="module")
def even(tmp_path_factory) -> Path:
    """Two agents on rings of four cells who always move: of 16 states the 8 whose cells differ by 0 or 2 exist."""
    export = tmp_path_factory.mktemp("even")
    states = [(a, b) for a in range(4) for b in range(4) if (a + b) % 2 == 0]
    number = {state: node for node, state in enumerate(states)}
    moves = [[(1, 1.0)], [(1, 0.5), (3, 0.5)]]
    degrees, follows, chances = [], [], []
    for a, b in states:
        for joint in range(4):
            row = sorted(
                (number[(a + i) % 4, (b + j) % 4], p * q)
                for i, p in moves[joint // 2]
                for j, q in moves[joint % 2]
            )
            degrees.append(len(row))
            follows += [node for node, _ in row]
            chances += [chance for _, chance in row]
    with omstore.create(
        export, agents=["a", "b"], num_actions=[2, 2], state_width=8, rows="factored"
    ) as writer:
        writer.add_nodes(
            np.array([np.concatenate((np.eye(4)[a], np.eye(4)[b])) for a, b in states], np.uint8)
        )
        writer.add_rows(
            np.repeat(np.arange(8), 4),
            np.tile(np.arange(4), 8),
            degrees,
            next_nodes=np.array(follows),
            probability=np.array(chances),
            reward=np.array(follows)[:, None] * [1.0, -1.0],
            done=np.zeros(len(follows), bool),
        )
    return export


def test_states_that_arent_there(even, tmp_path):
    graph = omstore.open(even).graph
    assert graph.encoding.name == "factored"
    assert graph.encoding.factoring.num_products == 16
    expected = everything(even)
    assert np.isfinite(expected).all()
    values = np.linspace(0, 1, 8)
    for node in range(8):
        found = graph.successors(np.full(4, node), np.arange(4))
        gains = found.probability * (values[found.next_node] + found.reward.sum(axis=1))
        assert expected[0][node] == pytest.approx(np.add.reduceat(gains, found.offsets[:-1]).max(), abs=1e-14)
    # a kernel that leads elsewhere, with the same numbers otherwise
    shutil.copytree(even / "store", tmp_path / "store")
    file = arrays_of(tmp_path)["rows/kernel_next"]
    nexts = np.fromfile(file, "u4")
    assert nexts[0] in (1, 3)
    nexts[0] = 0
    nexts.tofile(file)
    count = graph.num_nodes
    damaged = omstore.open(tmp_path).graph
    half, out = np.full((count, 2), 0.5), np.empty(count)
    for backup in (
        Backup(values, [], out),
        Backup(values, [], out, minimise=True),
        Backup(values, [], out, actions=np.empty(count, np.int64)),
        Backup(values, [], out, own_side=[0], other=half),
        Backup(values, [], out, own_side=[1], own=half, other=half),
        Backup(values, [], np.empty((count, 2)), own_side=[1], other=half),
    ):
        with pytest.raises(CorruptStoreError, match="a next node doesn't exist"):
            Sweeper(damaged).sweep([backup])
    with pytest.raises(CorruptStoreError, match="a state that isn't in the graph"):
        Pusher(damaged, [0]).push(values, half, half)
