"""The pursuit model against the numbers of its table, and row by row against the world of tools/."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omstore.errors import ModelError
from omstore.model import Pursuit, load_model
from omstore.model.kernel_rows import KernelRows
from omstore.model.numbering import ProductNumbering
from omstore.model.pursuit import GRID, read_grid
from tools.worlds.pursuit import Pursuit as World

TABLE = [  # agents, states, absorbing, edges without slip, edges with slip 0.1
    (2, 1_936, 44, 48_400, 571_152),
    (3, 85_184, 5_720, 10_648_000, 415_886_464),
    (4, 3_748_096, 490_072, 2_342_560_000, 295_281_320_704),
]


def ascending(model):
    return ProductNumbering(model.space, [np.arange(size) for size in model.sizes])


@pytest.mark.parametrize(("agents", "states", "absorbing", "certain", "slipping"), TABLE)
def test_counts_are_those_of_the_table(agents, states, absorbing, certain, slipping):
    for slip, edges in ((0.0, certain), (0.1, slipping)):
        model = Pursuit(agents, slip)
        assert model.space.count == states
        assert model.count_edges() == edges
    rows = KernelRows(model, ascending(model))  # counted node by node, not in closed form
    assert rows.size.num_edges == slipping
    assert (
        sum(int(rows.absorbing(i, min(i + 10**5, states)).sum()) for i in range(0, states, 10**5))
        == absorbing
    )


def test_the_kernel_has_764_outcomes():
    kernel = Pursuit(2, 0.1).kernel(0)
    assert len(kernel.next_state) == 764
    sums = np.add.reduceat(kernel.probability, kernel.offsets[:-1])
    np.testing.assert_allclose(sums, 1.0, rtol=1e-15)


@pytest.mark.parametrize("slip", [0.0, 0.1, 0.37, 1.0])
def test_every_row_of_two_agents_is_the_worlds(slip):
    model, world = Pursuit(2, slip), World(2, slip)
    rows = KernelRows(model, ascending(model))
    everything = np.arange(rows.size.num_rows)
    found = rows.gather(everything, edges=True)
    truth = world.successors(everything // 25, everything % 25)
    assert np.array_equal(found.offsets, truth.offsets)
    assert np.array_equal(found.next_node, truth.next_node)
    probability = rows.probabilities[0 if found.outcome is None else found.outcome]
    assert np.array_equal(np.broadcast_to(probability, len(found.next_node)), truth.probability)  # to the bit
    assert np.array_equal(found.edge, np.arange(len(found.next_node)))
    states = model.space.states(np.arange(1936))
    reward = model.reward(states)[truth.next_node]
    reward[np.repeat(model.absorbing(states)[everything // 25], np.diff(truth.offsets))] = 0
    assert np.array_equal(reward, truth.reward)
    assert np.array_equal(model.absorbing(states)[truth.next_node], truth.done)
    assert np.array_equal(model.vectors(states), world.vectors(np.arange(1936)))


@given(seed=st.integers(0, 2**32 - 1), agents=st.sampled_from([3, 4]))
@settings(max_examples=10, deadline=None)
def test_rows_of_more_agents_are_the_worlds(seed, agents):
    model, world = Pursuit(agents, 0.1), World(agents, 0.1)
    rows = KernelRows(model, ascending(model), num_edges=model.count_edges())
    batch = np.random.default_rng(seed).integers(0, rows.size.num_rows, 60)
    found = rows.gather(batch, edges=False)
    truth = world.successors(batch // 5**agents, batch % 5**agents)
    assert np.array_equal(found.offsets, truth.offsets)
    assert np.array_equal(found.next_node, truth.next_node)
    assert np.array_equal(rows.probabilities[found.outcome], truth.probability)


def test_agents_are_named_and_the_last_is_the_evader():
    model = Pursuit(3)
    assert model.agents == World(3).agents == ("pursuer_0", "pursuer_1", "evader")
    assert model.num_actions == (5, 5, 5)
    assert model.num_joint_actions == 125


def test_a_grid_from_a_file(tmp_path):
    path = tmp_path / "map.txt"
    path.write_text("\n..#\n...\n\n")
    grid = read_grid(path)
    assert grid == ("..#", "...")
    model = load_model("pursuit", {"agents": 2, "grid": list(grid)})
    assert model.sizes == (5, 5)
    assert model.vectors(np.array([[0, 4]])).tolist() == [[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]]
    assert model.origin.parameters == {"agents": 2, "slip": 0.0, "grid": ["..#", "..."]}
    # By hand: cell 1 is (0, 1), with a wall to the east and the border to the north.
    moves = [int(model.kernel(0).next_state[1 * 5 + action]) for action in range(5)]
    assert moves == [1, 1, 3, 1, 0]


def test_the_default_grid_has_five_walls():
    walls = {(r, c) for r, c in itertools.product(range(7), range(7)) if GRID[r][c] == "#"}
    assert walls == {(0, 4), (1, 1), (4, 2), (5, 2), (6, 6)}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"agents": 1}, "at least 2 agents"),
        ({"agents": "three"}, "at least 2 agents"),
        ({"slip": 1.5}, "slip is a probability"),
        ({"grid": ["..", "."]}, "rows have 2, 1 characters"),
        ({"grid": ["x."]}, "'x'"),
        ({"grid": ["##"]}, "no free cell"),
        ({"speed": 3}, "doesn't take these parameters"),
    ],
)
def test_what_makes_no_pursuit(parameters, message):
    with pytest.raises(ModelError, match=message):
        load_model("pursuit", parameters)


def test_a_grid_that_cannot_be_read(tmp_path):
    with pytest.raises(ModelError, match="can't be read"):
        read_grid(tmp_path / "missing.txt")
