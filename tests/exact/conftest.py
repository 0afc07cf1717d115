from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import omstore
from omstore.build import BuildOptions, build
from omstore.model import load_model

GRID = ["...", ".#.", "..."]


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Don't wait for the disk: that what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def pursuit(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., omstore.Graph]:
    """Slipping agents on a ring of eight cells, or on the whole grid, in an encoding."""
    graphs: dict[object, omstore.Graph] = {}

    def get(encoding: str, agents: int = 3, ring: bool = True) -> omstore.Graph:
        key = encoding, agents, ring
        if key not in graphs:
            export = tmp_path_factory.mktemp(encoding)
            parameters: dict[str, object] = {"agents": agents, "slip": 0.1}
            if ring:
                parameters["grid"] = GRID
            build(load_model("pursuit", parameters), export, BuildOptions(rows=encoding))
            graph = omstore.open(export).graph
            assert graph is not None
            assert graph.encoding.name == encoding
            graphs[key] = graph
        return graphs[key]

    return get


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
