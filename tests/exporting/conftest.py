"""Stores to export: a random graph in two encodings, with illegal rows, dead ends and a kept field, and the
sample export."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omstore.convert import convert
from tests.read.made_stores import Made, make_store
from tools.worlds.random_graph import RandomGraph
from tools.worlds.world import Successors

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "pursuit" / "2"


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """Don't wait for the disk: that what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


class DeadEnds(RandomGraph):
    """A random graph in which every fifth node has no successors at all."""

    def successors(self, nodes: np.ndarray, joint_actions: np.ndarray) -> Successors:
        found = super().successors(nodes, joint_actions)
        dead = np.asarray(nodes) % 5 == 2
        gone = dead[found.row_of_edge]
        outdegree = np.where(dead, 0, np.diff(found.offsets))
        return Successors(
            np.concatenate(([0], np.cumsum(outdegree))),
            found.next_node[~gone],
            found.probability[~gone],
            found.reward[~gone],
            found.done[~gone],
        )


@pytest.fixture(scope="session", params=["csr", "csr-compressed"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A random graph with illegal rows, dead ends and a kept field of odd shape."""
    world = DeadEnds(42, (3, 2), width=13, max_outdegree=5, seed=3)
    export = tmp_path_factory.mktemp("made") / "export"
    return make_store(export, world, encoding=request.param, kept="row", transitions=20)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample export, converted: pursuit with two agents and slip."""
    export = tmp_path_factory.mktemp("sample") / "pursuit" / "2"
    shutil.copytree(SAMPLE / "wm", export / "wm")
    convert(export)
    return export


@pytest.fixture(scope="session")
def everything(made: Made) -> Successors:
    """What the world says of all rows, in the store's numbers."""
    width = made.world.num_joint_actions
    rows = np.arange(made.world.num_nodes * width)
    return made.truth(rows // width, rows % width)
