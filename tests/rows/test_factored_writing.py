"""Writing the factored encoding: the same bytes always, what is refused, what damage does."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omstore.errors import CorruptStoreError, NotFactoredError, OmstoreError, ProofError, UsageError
from omstore.publish.staging import Staging, stage
from omstore.rows import FactoredRows, GraphSize, Probabilities, open_rows
from omstore.rows.factored import Component, Factoring
from omstore.rows.factored_writer import write_factored
from omstore.rows.proof import prove
from omstore.rows.ranges import chunk_rows, node_ranges
from tests.rows.factored_reference import World, random_world


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Staging]:
    with stage(tmp_path / "export") as staging:
        yield staging


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def written(world: World, folder: Path, **options: Any) -> tuple[dict[str, bytes], dict[str, Any]]:
    with stage(folder) as staging:
        description, size = write_factored(
            world.csr(), world.factoring, staging, **({"max_exceptions": 1.0} | options)
        )
        assert size == world.size
        return files(staging.path), description


@pytest.mark.parametrize("shuffled", [False, True])
def test_the_bytes_depend_on_the_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffled: bool
) -> None:
    world = random_world(1, sizes=(6, 7), exceptions=0.1, missing=0.2, shuffled=shuffled)
    expected = written(world, tmp_path / "0", threads=1)
    monkeypatch.setattr("omstore.rows.factored_writer.node_ranges", partial(node_ranges, range_edges=64))
    monkeypatch.setattr("omstore.rows.factored_writer.chunk_rows", partial(chunk_rows, chunk_edges=40))
    monkeypatch.setattr("omstore.rows.factored_writer._PIECE", 5)
    monkeypatch.setattr("omstore.rows.factored_writer._BATCH_ROWS", 13)
    monkeypatch.setattr("omstore.rows.factored_writer._BATCH_EDGES", 1 << 10)
    assert written(world, tmp_path / "1", threads=3) == expected
    assert written(world, tmp_path / "2", threads=1, budget=64 << 20) == expected
    named = np.array(world.exceptional())
    assert written(world, tmp_path / "3", threads=2, exceptional_nodes=named) == expected


def test_more_nodes_may_be_named_than_are_exceptional(tmp_path: Path) -> None:
    world = random_world(2, exceptions=0.05)
    expected = written(world, tmp_path / "0")
    assert written(world, tmp_path / "1", exceptional_nodes=np.arange(world.num_nodes)) == expected


def test_nodes_that_were_not_named_are_missed(staging: Staging) -> None:
    world = random_world(2, exceptions=0.3)
    named = np.array(world.exceptional()[:1])
    with pytest.raises(ProofError, match="the source has"):
        world.write(staging, exceptional_nodes=named)


def test_what_is_written_is_proven(staging: Staging) -> None:
    world = random_world(3, exceptions=0.2)
    opened = world.write(staging)
    proof = prove(world.csr(), opened)
    assert (proof.num_rows, proof.num_edges, proof.largest_difference) == (
        len(world.rows),
        world.size.num_edges,
        0,
    )
    world.rows[5] = [(0, 0)] if world.rows[5] != [(0, 0)] else []
    with pytest.raises(ProofError):
        prove(world.csr(), opened)


def test_codes_are_mapped(staging: Staging) -> None:
    world = random_world(4, exceptions=0.2)
    values = len(world.values)
    turned = replace(world, rows=[[(n, values - 1 - c) for n, c in row] for row in world.rows])
    turned.rows = [sorted(row) for row in turned.rows]
    code_map = np.arange(values)[::-1]
    description, size = write_factored(
        turned.csr(), world.factoring, staging, code_map=code_map, max_exceptions=1.0
    )
    opened = open_rows(staging.path, description, size)
    edges = opened.gather(np.arange(len(world.rows)))
    assert edges.outcome is not None
    for row, expected in enumerate(world.rows):
        if len({node for node, _ in expected}) == len(expected):
            part = slice(edges.offsets[row], edges.offsets[row + 1])
            pairs = zip(edges.next_node[part].tolist(), edges.outcome[part].tolist(), strict=True)
            assert list(pairs) == expected


def test_nodes_without_a_common_row_keep_all_of_theirs(staging: Staging) -> None:
    # Of node 0 most rows differ, so the one that doesn't is kept as well; of node 1 one row differs.
    world = random_world(5, sizes=(3, 3), num_actions=(2, 2), empty=0.0)
    for row in (0, 1, 3, 6):
        world.rows[row] = [(4, 0)]
    assert world.exceptional() == [0, 1]
    description, _ = write_factored(world.csr(), world.factoring, staging)
    assert description["exceptions"]["rows"] == 5
    patterns = np.frombuffer(
        (staging.path / "rows/exceptions/block_pattern/c/0/0").read_bytes(), np.uint32
    ).reshape(2, 4)
    assert (patterns == (1 << 32) - 1).tolist() == [[False] * 4, [True, True, False, True]]


def test_too_many_exceptions_are_refused(staging: Staging) -> None:
    world = random_world(6, exceptions=0.8)
    with pytest.raises(NotFactoredError, match=rf"more than \d+ of {len(world.rows)} rows \(25%\)"):
        world.write(staging, max_exceptions=0.25)


def test_a_factoring_of_another_graph_is_refused(staging: Staging) -> None:
    world = random_world(7)
    components = list(world.factoring.components)
    first = components[0]
    wrong: list[tuple[Factoring, str]] = [
        (replace(world.factoring, components=components[:1]), "joint actions"),
        (replace(world.factoring, components=[]), "0 components"),
        (replace(world.factoring, components=[replace(first, size=2), components[1]]), "offsets"),
        (replace(world.factoring, components=[replace(first, agent=3), components[1]]), "agents"),
        (replace(world.factoring, components=[replace(first, agent=None), components[1]]), "nobody"),
        (replace(world.factoring, components=[*components, one_state(1, 2)]), "numbers of actions"),
        (replace(world.factoring, components=[*components, one_state(None, 1, size=2)]), "product numbers"),
        (replace(world.factoring, combination=np.zeros(3, np.int64)), "combinations"),
        (replace(world.factoring, combination=world.factoring.combination + 100), "outcome code"),
        (
            replace(world.factoring, components=[changed(first, "next_state", 99), components[1]]),
            "next state",
        ),
        (replace(world.factoring, components=[changed(first, "probability", 0.9), components[1]]), "sum"),
        (replace(world.factoring, components=[changed(first, "outcome_class", 99), components[1]]), "class"),
        (replace(world.factoring, product=np.zeros(world.num_nodes, np.int64)), "same product number"),
        (replace(world.factoring, product=np.arange(1, world.num_nodes + 1)), "product number isn't within"),
        (replace(world.factoring, product=np.arange(3)), "3 product numbers"),
    ]
    for number, (factoring, message) in enumerate(wrong):
        with pytest.raises(UsageError, match=message):
            write_factored(world.csr(), factoring, staging, prefix=f"rows{number}")
    with pytest.raises(UsageError, match="ascend"):
        write_factored(
            world.csr(), world.factoring, staging, prefix="last", exceptional_nodes=np.array([3, 3])
        )


def one_state(agent: int | None, num_actions: int, size: int = 1) -> Component:
    pairs = size * num_actions
    return Component(
        agent,
        size,
        num_actions,
        np.arange(pairs + 1),
        np.repeat(np.arange(size), num_actions),
        np.ones(pairs),
        np.zeros(pairs, np.int64),
        1,
    )


def changed(component: Component, name: str, value: Any) -> Component:
    values = getattr(component, name).copy()
    values[-1] = value
    return replace(component, **{name: values})


def test_components_share_next_states_ascending() -> None:
    # Next states fall from pair to pair, yet not within one: that is fine.
    component = Component(
        0, 2, 1, np.array([0, 1, 2]), np.array([1, 0]), np.ones(2), np.zeros(2, np.int64), 1
    )
    rows = FactoredRows(
        GraphSize(2, 1, 2, 1), Factoring([component], np.zeros(1, np.int64)), np.array([0, 1, 2], np.uint64)
    )
    assert rows.gather(np.array([1, 0])).next_node.tolist() == [0, 1]


# Damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], GraphSize, World]:
    """A version with product numbers and exceptions, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("whole")
    world = random_world(8, sizes=(4, 5), missing=0.2, shuffled=True, exceptions=0.15)
    with stage(folder / "export") as staging:
        description, size = write_factored(world.csr(), world.factoring, staging, max_exceptions=1.0)
        shutil.copytree(staging.path / "rows", folder / "copy" / "rows")
    return folder / "copy", description, size, world


def read_everything(folder: Path, description: dict[str, Any], size: GraphSize, world: World) -> None:
    opened = open_rows(folder, description, size)
    rows = np.arange(size.num_rows)
    for call in (
        lambda: opened.gather(rows, edges=True),
        lambda: opened.outdegree(rows),
        lambda: list(opened.sweep(0, size.num_rows, 7)),
        lambda: opened.sample(rows, np.full(len(rows), 0.5), Probabilities("outcome", world.values)),
        lambda: [opened.matches(chunk) for chunk in world.csr().sweep(0, size.num_rows, 7)],
        lambda: list(opened.sweep(size.num_rows // 2, size.num_rows, 50)),
    ):
        with contextlib.suppress(CorruptStoreError, UsageError):  # a row may have become illegal
            call()


ARRAYS = [
    "kernel_offsets",
    "kernel_next",
    "kernel_class",
    "kernel_probability",
    "combination",
    "product",
    "node_at",
    "first_edge",
    "exceptions/block",
    "exceptions/block_pattern",
    "exceptions/pattern_offsets",
    "exceptions/delta",
    "exceptions/pattern_list",
    "exceptions/list_offsets",
    "exceptions/list_code",
]


def array_file(folder: Path, name: str) -> Path:
    chunks = folder / "rows" / name / "c"
    return next(path for path in chunks.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("value", [0, 255, 127])
def test_damage_is_named_or_harmless(
    tmp_path: Path, whole: tuple[Path, dict[str, Any], GraphSize, World], name: str, value: int
) -> None:
    source, description, size, world = whole
    shutil.copytree(source, tmp_path / "copy")
    path = array_file(tmp_path / "copy", name)
    data = bytearray(path.read_bytes())
    for place in np.random.default_rng(value).integers(0, len(data), 12):
        broken = bytearray(data)
        broken[int(place)] = value
        path.write_bytes(broken)
        with contextlib.suppress(CorruptStoreError):
            read_everything(tmp_path / "copy", description, size, world)


@pytest.mark.parametrize("name", ["product", "node_at", "first_edge"])
def test_verify_finds_any_other_element(
    tmp_path: Path, whole: tuple[Path, dict[str, Any], GraphSize, World], name: str
) -> None:
    source, description, size, _ = whole
    open_rows(source, description, size).verify()
    shutil.copytree(source, tmp_path / "copy")
    path = array_file(tmp_path / "copy", name)
    width = 8 if name == "first_edge" else 4
    data = path.read_bytes()
    for place in range(0, len(data), width):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CorruptStoreError):
            open_rows(tmp_path / "copy", description, size).verify()


@pytest.mark.parametrize("name", ARRAYS)
def test_a_truncated_file_is_named(
    tmp_path: Path, whole: tuple[Path, dict[str, Any], GraphSize, World], name: str
) -> None:
    source, description, size, _ = whole
    shutil.copytree(source, tmp_path / "copy")
    path = array_file(tmp_path / "copy", name)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptStoreError, match=name):
        open_rows(tmp_path / "copy", description, size)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("components"),
        lambda d: d["components"][0].pop("size"),
        lambda d: d["components"][0].update(size=3),
        lambda d: d["components"][0].update(size="four"),
        lambda d: d["components"][0].update(num_classes=1),
        lambda d: d["components"][0].update(agent=1),
        lambda d: d["components"].pop(),
        lambda d: d["components"].append(dict(d["components"][0])),
        lambda d: d.update(product=False),
        lambda d: d.update(combined=False),
    ],
)
def test_another_description_is_refused(
    whole: tuple[Path, dict[str, Any], GraphSize, World], change: Callable[[dict[str, Any]], object]
) -> None:
    source, description, size, _ = whole
    wrong = {**description, "components": [dict(part) for part in description["components"]]}
    change(wrong)
    with pytest.raises(OmstoreError):
        open_rows(source, wrong, size)


def test_kernels_that_make_other_probabilities_are_found(staging: Staging) -> None:
    world = random_world(9, exceptions=0.1)
    opened = world.write(staging)
    opened.check_probabilities(Probabilities("outcome", world.values))
    assert world.factoring.combination is not None
    for code in set(world.factoring.combination.tolist()) - set(np.flatnonzero(world.values == 0).tolist()):
        table = world.values.copy()
        table[code] *= 1 + 1e-6
        with pytest.raises(CorruptStoreError, match=f"outcome code {code} of probability"):
            opened.check_probabilities(Probabilities("outcome", table))


# 64 bits


@pytest.mark.parametrize("states", [180, 200, 260])
def test_more_rows_and_edges_than_32_bits_count(tmp_path: Path, states: int) -> None:
    # Two agents on circles step by their action or one further: in local state s under action a to (s + a) or
    # (s + a + 1) modulo `states`. Every row has 4 edges; there are fewer than 2^31 rows, more, and more than 2^32.
    actions = 256
    shift = (np.arange(states)[:, None] + np.arange(actions)) % states
    pairs = np.sort(np.stack((shift, (shift + 1) % states), axis=-1), axis=-1)
    component = Component(
        0,
        states,
        actions,
        np.arange(states * actions + 1) * 2,
        pairs.reshape(-1).astype(np.int64),
        np.full(pairs.size, 0.5),
        np.zeros(pairs.size, np.int64),
        1,
    )
    nodes, joint = states**2, actions**2
    size = GraphSize(nodes, joint, 4 * nodes * joint, 1)
    assert (size.num_rows >> 31, size.num_rows >> 32) == {180: (0, 0), 200: (1, 0), 260: (2, 1)}[states]
    first_edge = np.arange(nodes + 1, dtype=np.uint64) * np.uint64(4 * joint)
    factoring = Factoring([component, replace(component, agent=1)], np.zeros(1, np.int64))
    rows = FactoredRows(size, factoring, first_edge)
    rng = np.random.default_rng(states)
    near = [(1 << 31) + d for d in (-1, 0, 1)] + [(1 << 32) + d for d in (-1, 0, 1)]
    batch = np.array([r for r in near if r < size.num_rows] + [size.num_rows - 1])
    batch = np.concatenate((batch, batch // 4, rng.integers(0, size.num_rows, 500)))
    node, action = batch // joint, batch % joint
    x, y = (node // states + action // actions) % states, (node % states + action % actions) % states
    expected = [
        sorted(((a + i) % states) * states + (b + j) % states for i in (0, 1) for j in (0, 1))
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    edges = rows.gather(batch, edges=True)
    assert edges.next_node.reshape(-1, 4).tolist() == expected
    assert edges.edge is not None
    assert edges.edge.tolist() == (batch[:, None] * 4 + np.arange(4)).reshape(-1).tolist()
    assert (rows.outdegree(batch) == 4).all()
    uniforms = rng.random(len(batch))
    drawn = rows.sample(batch, uniforms, Probabilities("graph", np.array([0.25])))
    place = np.floor(uniforms * 4).astype(np.int64)
    assert np.array_equal(drawn.edge, batch * 4 + place)
    assert np.array_equal(drawn.next_node, edges.next_node.reshape(-1, 4)[np.arange(len(batch)), place])
    for start in {size.num_rows - 3, min(size.num_rows - 3, (1 << 31) - 2), min(size.num_rows, 1 << 32) - 3}:
        chunk = next(iter(rows.sweep(start, start + 3, 3)))
        assert (chunk.first_row, chunk.first_edge) == (start, 4 * start)
        assert chunk.next_node.tolist() == rows.gather(np.arange(start, start + 3)).next_node.tolist()
        assert rows.matches(chunk) == -1
    rows.verify()
    first_edge[7] += 1
    with pytest.raises(CorruptStoreError, match="first_edge: element 7"):
        FactoredRows(size, factoring, first_edge).verify()
