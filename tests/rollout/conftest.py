from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.build import BuildOptions, build
from omstore.model import load_model
from tests.encode.factored_world import FactoredWorld, random_part

ENCODINGS = ["csr", "csr-compressed", "dictionary", "factored", "procedural"]
GRID = ["...", ".#.", "..."]


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Don't wait for the disk: that what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def pursuit(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], omstore.Graph]:
    """Three slipping agents on a ring of eight cells, in an encoding."""
    graphs: dict[str, omstore.Graph] = {}

    def get(encoding: str) -> omstore.Graph:
        if encoding not in graphs:
            export = tmp_path_factory.mktemp(encoding)
            build(
                load_model("pursuit", {"agents": 3, "slip": 0.1, "grid": GRID}),
                export,
                BuildOptions(rows=encoding),
            )
            graph = omstore.open(export).graph
            assert graph is not None
            assert graph.encoding.name == encoding
            graphs[encoding] = graph
        return graphs[encoding]

    return get


@pytest.fixture(scope="session")
def pursuit_pair(tmp_path_factory: pytest.TempPathFactory) -> omstore.Graph:
    """Two slipping agents on the whole grid, factored."""
    export = tmp_path_factory.mktemp("pair")
    build(load_model("pursuit", {"agents": 2, "slip": 0.1}), export, BuildOptions(rows="factored"))
    graph = omstore.open(export).graph
    assert graph is not None
    assert graph.num_nodes == 1936
    return graph


def partly_legal_world() -> FactoredWorld:
    """Two agents' components and one that nobody moves; illegal pairs; rows that don't factor, one of them legal
    where its components aren't, and one illegal where they are."""
    rng = np.random.default_rng(11)
    parts = [random_part(rng, 0, 5, 3, 0.7), random_part(rng, 1, 4, 4, 0.7), random_part(rng, None, 3, 1)]
    world = FactoredWorld(parts, (3, 4))
    rows = world.rows()
    illegal = next(r for r, row in enumerate(rows) if not row)
    legal = [r for r, row in enumerate(rows) if len(row) > 2]
    world.exceptions[divmod(illegal, 12)] = [(0, 0.25), (7, 0.75)]
    world.exceptions[divmod(legal[40], 12)] = [(3, 0.5), (9, 0.125), (20, 0.375)]
    world.exceptions[divmod(legal[77], 12)] = []
    for joint in range(12):
        world.exceptions[50, joint] = []
    return world


@pytest.fixture(scope="session")
def partly_legal(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], omstore.Graph]:
    """`partly_legal_world` with rewards of next nodes and some that are done, streamed into an encoding."""
    graphs: dict[str, omstore.Graph] = {}
    world = partly_legal_world()
    rows = world.rows()

    def get(encoding: str) -> omstore.Graph:
        if encoding not in graphs:
            graphs[encoding] = _streamed(tmp_path_factory.mktemp(encoding), encoding)
        return graphs[encoding]

    def _streamed(export: Path, encoding: str) -> omstore.Graph:
        edges = [edge for row in rows for edge in row]
        next_node = np.array([node for node, _ in edges])
        values = np.round(np.random.default_rng(2).normal(size=(7, 2)), 2)
        with omstore.create(
            export, agents=["a", "b"], num_actions=[3, 4], state_width=world.codec.width, rows=encoding
        ) as writer:
            writer.add_nodes(world.codec.unpack(world.packed))
            writer.add_rows(
                np.arange(len(rows)) // 12,
                np.arange(len(rows)) % 12,
                [len(row) for row in rows],
                next_nodes=next_node,
                probability=np.array([p for _, p in edges]),
                reward=values[next_node % 7],
                done=next_node % 9 == 4,
            )
        graph = omstore.open(export).graph
        assert graph is not None
        assert graph.encoding.name == encoding
        return graph

    return get
