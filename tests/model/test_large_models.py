"""Models with more than 2^32 nodes and rows: nothing of their size is held, numbers stay whole."""

import numpy as np
import pytest

from omstore.model import IndependentModel, Kernel
from omstore.model.checks import checked_model
from omstore.model.model_rows import ModelRows
from omstore.model.numbering import ProductNumbering
from omstore.model.rows import ProceduralRows, model_rows
from omstore.rows import Probabilities


class Rings(IndependentModel):
    """A walker on each of several rings: it stays, or goes on, or sometimes goes on by mistake."""

    def __init__(self, *sizes):
        self.sizes = sizes
        self.agents = tuple(f"walker_{i}" for i in range(len(sizes)))
        self.num_actions = (2,) * len(sizes)

    def kernel(self, component):
        size = self.sizes[component]
        here = np.arange(size)
        following = np.stack([here, here, (here + 1) % size], axis=1)  # stay; else stay or go on
        probability = np.tile([1.0, 0.25, 0.75], size)
        offsets = np.concatenate(((3 * here[:, None] + [0, 1]).reshape(-1), [3 * size]))
        return Kernel(offsets, following.reshape(-1), probability)

    def count_edges(self):
        per_value = 3  # of both actions
        return int(np.prod([per_value * size for size in self.sizes], dtype=object))


@pytest.mark.parametrize("sizes", [(1 << 17, 1 << 8, 1 << 8), (5, 1 << 16, 1 << 16)], ids=["joined", "apart"])
def test_rows_beyond_32_bits(sizes):
    model = checked_model(Rings(*sizes))
    num_nodes = int(np.prod(sizes, dtype=object))
    assert num_nodes > 1 << 32
    numbering = ProductNumbering(model.space, [np.arange(size) for size in sizes])
    rows = ProceduralRows(model, numbering, num_edges=model.count_edges())
    asked = ModelRows(model, numbering, num_edges=model.count_edges())
    assert rows.size.num_rows == num_nodes * 8
    nodes = np.array(
        [0, 1, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, (1 << 32) + 1, num_nodes - 2, num_nodes - 1]
    )
    batch = (nodes[:, None] * 8 + np.arange(8)).reshape(-1)
    mine, truth = rows.gather(batch), asked.gather(batch, edges=False)
    assert np.array_equal(mine.next_node, truth.next_node)
    assert int(mine.next_node.max()) > 1 << 32
    assert np.array_equal(rows.probabilities[mine.outcome], truth.attributes["probability"])
    uniforms = np.random.default_rng(0).random(len(batch))
    by_rows = Probabilities("rows", np.empty(0))
    drawn, expected = (each.sample(batch, uniforms, by_rows) for each in (rows, asked))
    assert np.array_equal(drawn.next_node, expected.next_node)


def test_edges_counted_node_by_node_are_the_closed_form():
    model = checked_model(Rings(40, 50, 60))
    closed = model.count_edges()
    assert closed == 40 * 50 * 60 * 27
    model.count_edges = lambda: None
    assert model_rows(model).size.num_edges == closed


def test_numbers_of_edges_beyond_32_bits():
    model = checked_model(Rings(180, 64, 2, 2, 2, 2, 2, 2))  # 737,280 nodes of 256 rows, 6,561 edges each
    rows = model_rows(model)
    assert rows.size.num_edges == 737_280 * 6_561 > 1 << 32
    nodes = np.array(
        [(1 << 31) // 6561, (1 << 31) // 6561 + 1, (1 << 32) // 6561, (1 << 32) // 6561 + 1, 737_279]
    )
    found = rows.gather(nodes * 256 + 37, edges=True)
    before = int(rows.outdegree(nodes[0] * 256 + np.arange(37)).sum())
    assert found.edge[found.offsets[:-1]].tolist() == [node * 6561 + before for node in nodes.tolist()]
    (last,) = rows.sweep(737_279 * 256 + 255, 737_280 * 256, 1)
    assert last.first_edge + len(last.next_node) == rows.size.num_edges
