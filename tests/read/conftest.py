from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.read.made_stores import Made, make_store
from tools.worlds.random_graph import RandomGraph


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Don't wait for the disk: that what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", params=["csr", "csr-compressed"])
def tiny_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A random graph with illegal rows and a replay of which some states aren't in the graph."""
    world = RandomGraph(40, (3, 2), width=13, max_outdegree=5, seed=3)
    export = tmp_path_factory.mktemp("tiny") / "export"
    return make_store(export, world, encoding=request.param, transitions=300, chunk_rows=64)
