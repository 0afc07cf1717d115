"""A model's rows: compiled products against `successors` asked row by row, through the one interface."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omstore.errors import UsageError
from omstore.model import Pursuit
from omstore.model.checks import checked_model
from omstore.model.kernel_rows import KernelRows
from omstore.model.model_rows import ModelRows
from omstore.model.numbering import ListedNumbering, ProductNumbering
from omstore.model.rows import ProceduralRows
from omstore.rows import Probabilities
from tests.model.small_worlds import Drift, ManyProbabilities, Weather

BY_ROWS = Probabilities("rows", np.empty(0))
KINDS = ("ascending", "descending", "permuted", "listed")


def numbering_of(model, kind, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "listed":
        numbers = rng.permutation(model.space.count)
        return ListedNumbering(
            model.space, numbers.astype(np.uint64), np.arange(len(numbers)), np.argsort(numbers)
        )
    orders = {
        "ascending": lambda size: np.arange(size),
        "descending": lambda size: np.arange(size)[::-1],
        "permuted": rng.permutation,
    }
    return ProductNumbering(model.space, [orders[kind](size) for size in model.sizes])


def rows_by_hand(model, numbering):
    """Every row as a list of (next node, probability), from the kernels' definition."""
    rows = []
    for node in range(numbering.num_nodes):
        state = numbering.states(np.array([node]))[0]
        for joint in itertools.product(*map(range, model.num_actions)):
            if model.absorb and state[0] == 2 and state[2] == 3:
                rows.append([(node, 1.0)])
                continue
            choices = []
            for component, mover in enumerate(model.movers):
                kernel = model.kernel(component)
                pair = state[component] * model.kernel_num_actions(component)
                pair += 0 if mover is None else joint[mover]
                part = slice(kernel.offsets[pair], kernel.offsets[pair + 1])
                choices.append(list(zip(kernel.next_state[part], kernel.probability[part], strict=True)))
            found = []
            for outcome in itertools.product(*choices):
                probability = outcome[0][1]
                for _, factor in outcome[1:]:
                    probability = probability * factor
                number = model.space.numbers(np.array([[s for s, _ in outcome]]))
                found.append((int(numbering.nodes(number)[0]), float(probability)))
            rows.append(sorted(found))
    return rows


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 1000), absorb=st.booleans())
@settings(max_examples=8, deadline=None)
def test_products_of_kernels_by_hand(kind, seed, absorb):
    model = checked_model(Weather(seed, absorb))
    numbering = numbering_of(model, kind, seed)
    truth = rows_by_hand(model, numbering)
    rows = ProceduralRows(model, numbering)
    assert rows.kernels is not None
    assert rows.size.num_edges == sum(map(len, truth))
    batch = np.random.default_rng(seed).permutation(len(truth))
    found = rows.gather(batch, edges=True)
    firsts = np.cumsum([0, *map(len, truth)])
    for i, row in enumerate(batch.tolist()):
        part = slice(found.offsets[i], found.offsets[i + 1])
        codes = np.zeros(len(truth[row]), int) if found.outcome is None else found.outcome[part]
        assert list(zip(found.next_node[part], rows.probabilities[codes], strict=True)) == truth[row]
        assert found.edge[part].tolist() == list(range(firsts[row], firsts[row + 1]))
    assert rows.outdegree(batch).tolist() == [len(truth[row]) for row in batch]
    rows.verify(chunk_rows=13)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("start", "stop", "chunk"), [(0, 144, 7), (5, 100, 11), (37, 38, 1), (144, 144, 5)])
def test_sweeps_of_kernels_and_of_successors_agree(kind, start, stop, chunk):
    model = checked_model(Weather(3))
    numbering = numbering_of(model, kind)
    kernels, asked = KernelRows(model, numbering), ModelRows(model, numbering)
    assert kernels.size.num_edges == asked.size.num_edges
    seen = 0
    for mine, other in zip(kernels.sweep(start, stop, chunk), asked.sweep(start, stop, chunk), strict=True):
        assert (mine.first_row, mine.first_edge) == (other.first_row, other.first_edge)
        assert np.array_equal(mine.offsets, other.offsets)
        assert np.array_equal(mine.next_node, other.next_node)
        assert np.array_equal(kernels.probabilities[mine.outcome], other.attributes["probability"])
        seen += len(mine.offsets) - 1
    assert seen == stop - start


@pytest.mark.parametrize("kind", ["ascending", "listed"])
def test_more_products_than_codes_are_multiplied_anew(kind):
    model = checked_model(ManyProbabilities())
    numbering = numbering_of(model, kind)
    rows, asked = ProceduralRows(model, numbering), ModelRows(model, numbering, num_edges=0)
    assert len(rows.probabilities) == 0
    batch = np.random.default_rng(1).integers(0, rows.size.num_rows, 200)
    mine, other = rows.gather(batch), asked.gather(batch, edges=False)
    assert mine.outcome is None
    assert np.array_equal(mine.next_node, other.next_node)
    assert np.array_equal(mine.attributes["probability"], other.attributes["probability"])
    uniforms = np.random.default_rng(2).random(200)
    drawn, expected = rows.sample(batch, uniforms, BY_ROWS), asked.sample(batch, uniforms, BY_ROWS)
    assert np.array_equal(drawn.next_node, expected.next_node)
    assert np.array_equal(drawn.probability, expected.probability)


@pytest.mark.parametrize("kind", KINDS)
def test_draws_invert_the_running_sum(kind):
    model = checked_model(Weather(5))
    rows = ProceduralRows(model, numbering_of(model, kind))
    legal = np.flatnonzero(rows.outdegree(np.arange(rows.size.num_rows)))
    rng = np.random.default_rng(0)
    batch, uniforms = rng.choice(legal, 300), rng.random(300)
    uniforms[:2] = 0.0, np.nextafter(1.0, 0.0)
    drawn, edges = rows.sample(batch, uniforms, BY_ROWS), rows.gather(batch)
    for i in range(300):
        part = slice(edges.offsets[i], edges.offsets[i + 1])
        probabilities = rows.probabilities[edges.outcome[part]].tolist()
        reached, chosen = 0.0, len(probabilities) - 1
        for k, probability in enumerate(probabilities):
            reached += probability
            if uniforms[i] < reached:
                chosen = k
                break
        assert drawn.next_node[i] == edges.next_node[part][chosen]
        assert drawn.probability[i] == probabilities[chosen]
        assert rows.probabilities[drawn.outcome[i]] == probabilities[chosen]


@pytest.mark.parametrize("model", [Weather(1), Drift()], ids=["kernels", "asked"])
def test_rows_out_of_range_and_illegal_rows(model):
    rows = ProceduralRows(checked_model(model), numbering_of(model, "ascending"))
    for row in (-1, rows.size.num_rows):
        with pytest.raises(UsageError, match="position 1 of the batch"):
            rows.gather(np.array([0, row]))
        with pytest.raises(UsageError, match="isn't within"):
            rows.sample(np.array([row]), np.array([0.5]), BY_ROWS)
    illegal = np.flatnonzero(rows.outdegree(np.arange(rows.size.num_rows)) == 0)
    assert len(illegal)
    assert len(rows.gather(illegal[:3]).next_node) == 0
    with pytest.raises(UsageError, match="no successors"):
        rows.sample(illegal[:1], np.array([0.5]), BY_ROWS)


def test_two_threads_sweep_at_once():
    from concurrent.futures import ThreadPoolExecutor

    model = Pursuit(2, 0.1)
    rows = ProceduralRows(model, numbering_of(model, "descending"))

    def digest(bounds):
        return [
            (
                chunk.first_edge,
                int(chunk.next_node.sum(dtype=np.int64)),
                int(chunk.outcome.sum(dtype=np.int64)),
            )
            for chunk in rows.sweep(*bounds, 500)
        ]

    ranges = [(0, 20_000), (20_000, 48_400), (1, 47_000), (333, 30_000)]
    alone = [digest(bounds) for bounds in ranges]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(digest, ranges)) == alone


def test_nodes_of_a_listed_numbering_and_back():
    model = Weather()
    number = np.array([3, 17, 5, 20], np.uint64)
    order = np.argsort(number)
    numbering = ListedNumbering(model.space, number, number[order], order)
    assert numbering.nodes(np.arange(24)).tolist() == [
        {3: 0, 17: 1, 5: 2, 20: 3}.get(n, -1) for n in range(24)
    ]
    assert numbering.numbers(np.array([2, 0])).tolist() == [5, 3]


def test_an_order_must_be_a_permutation():
    with pytest.raises(UsageError, match="permutation"):
        ProductNumbering(Weather().space, [np.zeros(3), np.arange(2), np.arange(4)])
