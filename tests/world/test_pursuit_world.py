"""The exact world against the counts known of it, and against an enumeration that shares no code with it."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest

from tools.worlds.pursuit import Pursuit

TABLE = [  # agents, states, absorbing, edges without slip, edges with slip 0.1
    (2, 1_936, 44, 48_400, 571_152),
    (3, 85_184, 5_720, 10_648_000, 415_886_464),
    (4, 3_748_096, 490_072, 2_342_560_000, 295_281_320_704),
]
MAP = ["....#..", ".#.....", ".......", ".......", "..#....", "..#....", "......#"]
STEPS = [(0, 0), (-1, 0), (1, 0), (0, 1), (0, -1)]
FREE = [(r, c) for r in range(7) for c in range(7) if MAP[r][c] == "."]


def move(cell, action):
    r, c = cell[0] + STEPS[action][0], cell[1] + STEPS[action][1]
    return (r, c) if 0 <= r < 7 and 0 <= c < 7 and MAP[r][c] == "." else cell


def one_agent(cell, action, slip):
    outcome = defaultdict(float)
    if action == 0:
        outcome[cell] = 1.0
        return outcome
    for other in range(5):
        probability = 1 - slip if other == action else slip / 4
        if probability:
            outcome[move(cell, other)] += probability
    return outcome


def slow_successors(cells, actions, slip):
    """{next cells: probability}, the obvious way."""
    if len(set(cells)) < len(cells):
        return {cells: 1.0}
    result = defaultdict(float)
    for combination in itertools.product(
        *(one_agent(c, a, slip).items() for c, a in zip(cells, actions, strict=True))
    ):
        result[tuple(c for c, _ in combination)] += math.prod(p for _, p in combination)
    return result


def slow_reward(cells, next_cells):
    n = len(cells)
    if len(set(cells)) < n:
        return [0.0] * n
    caught = next_cells[-1] in next_cells[:-1]
    return [1.0 if caught else -0.01] * (n - 1) + [-1.0 if caught else 0.01]


@pytest.mark.parametrize(("agents", "states", "absorbing", "edges", "slip_edges"), TABLE)
def test_closed_form_counts(agents, states, absorbing, edges, slip_edges):
    still, slippery = Pursuit(agents), Pursuit(agents, 0.1)
    assert (still.num_nodes, still.num_absorbing) == (states, absorbing)
    assert still.num_edges == edges
    assert slippery.num_edges == slip_edges
    assert slippery.kernel_cells.size == 764
    assert still.width == 49 * agents
    assert Pursuit(agents, padded=False).width == 44 * agents


@pytest.mark.parametrize("slip", [0.0, 0.1])
def test_two_agents_by_enumeration(slip):
    world = Pursuit(2, slip)
    states = list(itertools.product(FREE, repeat=2))
    nodes = np.repeat(np.arange(world.num_nodes), world.num_joint_actions)
    rows = world.successors(nodes, np.tile(np.arange(world.num_joint_actions), world.num_nodes))
    number = {state: i for i, state in enumerate(states)}
    expected = []  # (next node, probability, reward, done) in the promised order
    for cells in states:
        for actions in itertools.product(range(5), repeat=2):
            outcomes = slow_successors(cells, actions, slip)
            expected += sorted(
                (number[s], p, slow_reward(cells, s), s[0] == s[1]) for s, p in outcomes.items()
            )
    next_node, probability, reward, done = zip(*expected, strict=True)
    assert len(expected) == rows.next_node.size == world.num_edges
    np.testing.assert_array_equal(rows.next_node, next_node)
    np.testing.assert_allclose(rows.probability, probability, rtol=1e-14)
    np.testing.assert_array_equal(rows.reward, reward)
    np.testing.assert_array_equal(rows.done, done)
    if slip == 0:
        assert (np.diff(rows.offsets) == 1).all()


def test_three_agents_at_random():
    rng = np.random.default_rng(5)
    world = Pursuit(3, 0.1)
    states = list(itertools.product(FREE, repeat=3))
    nodes = rng.integers(0, world.num_nodes, 60)
    joint = rng.integers(0, 125, 60)
    rows = world.successors(nodes, joint)
    for b, (node, code) in enumerate(zip(nodes, joint, strict=True)):
        cells, actions = states[node], (code // 25, code // 5 % 5, code % 5)
        expected = slow_successors(cells, actions, 0.1)
        found = slice(rows.offsets[b], rows.offsets[b + 1])
        got = {states[k]: p for k, p in zip(rows.next_node[found], rows.probability[found], strict=True)}
        assert got == pytest.approx(dict(expected), rel=1e-14)
        assert rows.reward[found].tolist() == [slow_reward(cells, states[k]) for k in rows.next_node[found]]
        assert (rows.row_of_edge[found] == b).all()


def test_probabilities_are_fortieths_and_sum_to_one():
    world = Pursuit(3, 0.1)
    rows = world.successors(np.arange(0, 85_184, 97), np.arange(0, 85_184, 97) % 125)
    sums = np.add.reduceat(rows.probability, rows.offsets[:-1])
    np.testing.assert_allclose(sums, 1, rtol=1e-13)
    assert set(np.round(world.kernel_probabilities * 40, 9)) <= set(range(1, 41))


def test_vectors_are_one_hot_over_the_grid():
    world = Pursuit(2)
    node = world.nodes_of(np.array([[0, 43]]))  # the first and the last free cell: (0, 0) and (6, 5)
    assert np.flatnonzero(world.vectors(node)[0]).tolist() == [0, 49 + 6 * 7 + 5]
    assert np.flatnonzero(Pursuit(2, padded=False).vectors(node)[0]).tolist() == [0, 87]
    vectors = world.vectors(np.arange(world.num_nodes))
    assert len(np.unique(vectors, axis=0)) == world.num_nodes
    assert (vectors.sum(axis=1) == 2).all()
    np.testing.assert_array_equal(world.nodes_of(world.cells_of(np.arange(1936))), np.arange(1936))


def test_blocking_pursuers_never_share_a_cell():
    world = Pursuit(3, 0.1, blocking=True)
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, world.num_nodes, 2_000)
    nodes = nodes[~world.absorbing(nodes)]
    rows = world.successors(nodes, rng.integers(0, 125, nodes.size))
    cells = world.cells_of(rows.next_node)
    assert (cells[:, 0] != cells[:, 1]).all()
    np.testing.assert_allclose(np.add.reduceat(rows.probability, rows.offsets[:-1]), 1, rtol=1e-13)
    inner = np.diff(rows.next_node)[np.diff(rows.row_of_edge) == 0]
    assert (inner > 0).all()  # merged, and ascending
    # by hand: pursuers in (2, 0) and (2, 1), evader far off; the first moves E and finds the second's cell
    # held
    plain = Pursuit(3, blocking=True)
    a, b, c = (FREE.index(cell) for cell in [(2, 0), (2, 1), (6, 5)])
    moved = plain.successors(plain.nodes_of(np.array([[a, b, c]])), np.array([3 * 25]))
    assert plain.cells_of(moved.next_node).tolist() == [[a, b, c]]
    with pytest.raises(ValueError, match="closed form"):
        _ = plain.num_edges


def test_bad_arguments():
    with pytest.raises(ValueError, match="at least 2"):
        Pursuit(1)
    with pytest.raises(ValueError, match="probability"):
        Pursuit(2, 1.5)


def test_capture_probabilities_equal_storms():
    """Pmax of a capture within k steps, all agents steered together, computed by the model checker Storm
    2.0."""
    world = Pursuit(2, 0.1)
    nodes = np.repeat(np.arange(1936), 25)
    rows = world.successors(nodes, np.tile(np.arange(25), 1936))
    cells = world.cells_of(np.arange(1936))
    captured = cells[:, 0] == cells[:, 1]
    value = captured.astype(float)
    means = [value.mean()]
    for _ in range(5):
        expected = np.add.reduceat(rows.probability * value[rows.next_node], rows.offsets[:-1])
        value = np.where(captured, 1, expected.reshape(1936, 25).max(axis=1))
        means.append(value.mean())
    storm = {1: 0.17635201446280993, 2: 0.4112949117865445, 3: 0.6565771227364029, 5: 0.9451583974999092}
    assert {k: means[k] for k in storm} == pytest.approx(storm, rel=1e-14)
    at = [1, 4, 777, 1934]
    storm_at = [0.9999681043592834, 0.9164764572178712, 0.9986509288048445, 0.9999587270105973]
    np.testing.assert_allclose(value[at], storm_at, rtol=1e-14)
