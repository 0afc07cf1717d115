"""Policy tables and sides, against counting by hand."""

import numpy as np
import pytest

from omstore.compiled import as_input
from omstore.errors import UsageError
from omstore.rollout import PolicyTable, Sides, uniform
from omstore.rollout.action_kernels import draw_actions
from tests.rollout.reference import Sides as PlainSides


@pytest.mark.parametrize("actions", [1, 2, 5, 8, 9, 25, 63, 64, 65, 125, 200])
def test_draws_are_counts_of_cumulative_probabilities(actions):
    rng = np.random.default_rng(actions)
    probabilities = rng.dirichlet(np.full(actions, 0.3), 50)
    probabilities[:, rng.random(actions) < 0.3] = 0.0
    probabilities[:, 0] += 1e-3
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    probabilities = probabilities.astype(np.float32)
    table = PolicyTable(probabilities)
    one = PolicyTable(np.ones((50, 1), np.float32))
    count = 5000
    keys = rng.integers(0, 1 << 62, count).astype(np.uint64)
    nodes = rng.integers(0, 50, count)
    out_node, out_action, out_uniform = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count)
    sides = [(t.cumulative, t.stride, t.nodes, t.row_of) for t in (one, table)]  # the other side draws
    status = draw_actions(
        4, count, np.arange(count, dtype=np.int32), keys, nodes, as_input(np.zeros(count), np.int64), 1,
        as_input(np.zeros(1), np.int32), as_input(np.arange(actions), np.int32), *sides[0], *sides[1],
        out_node, out_action, out_uniform,
    )  # fmt: skip
    assert status[0] == 0
    numbers = uniform(keys, 12)
    assert np.array_equal(out_uniform, uniform(keys, 14))
    sums = np.cumsum(probabilities.astype(np.float64), axis=1).astype(np.float32).astype(np.float64)
    for k in range(0, count, 7):
        p = probabilities[nodes[k]]
        expected = min(int((sums[nodes[k]] <= numbers[k]).sum()), int(np.flatnonzero(p)[-1]))
        assert out_action[k] == expected
        assert p[expected] > 0


def test_probabilities_come_back_and_rounding_goes_to_the_last_positive():
    table = PolicyTable(np.array([[0.25, 0.0, 0.75, 0.0], [0.0, 1.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.3999]]))
    assert table.probabilities()[:2].tolist() == [[0.25, 0.0, 0.75, 0.0], [0.0, 1.0, 0.0, 0.0]]
    assert table.probabilities()[2].sum() == 1.0
    assert np.allclose(table.probabilities(np.array([2])), [[0.1, 0.2, 0.3, 0.4]], atol=1e-7)
    assert table.cumulative.reshape(3, 8)[0].tolist() == [0.25, 0.25, 2, 2, 2, 2, 2, 2]


def test_rows_are_found_by_node_by_list_and_by_map():
    p = np.full((3, 2), 0.5, np.float32)
    assert PolicyTable(p).rows(np.array([0, 2, 3])).tolist() == [0, 2, -1]
    assert PolicyTable(p, nodes=[4, 7, 9]).rows(np.array([4, 9, 5, 10, 0])).tolist() == [0, 2, -1, -1, -1]
    rows = np.array([-1, 2, 0], np.int32)
    assert PolicyTable(p, row_of=rows).rows(np.array([2, 1, 0])).tolist() == [0, 2, -1]
    assert PolicyTable(p[:0], nodes=[]).rows(np.array([1])).tolist() == [-1]


def test_memory_is_used_again():
    first = PolicyTable(np.full((4, 3), 1 / 3, np.float32))
    again = PolicyTable(np.tile([0.5, 0.5, 0.0], (4, 1)), out=first)
    assert np.shares_memory(first.cumulative, again.cumulative)
    assert again.probabilities().tolist() == [[0.5, 0.5, 0.0]] * 4
    with pytest.raises(UsageError, match="doesn't fit"):
        PolicyTable(np.full((5, 3), 1 / 3), out=first)


@pytest.mark.parametrize("row", [[0.5, 0.4], [0.5, 0.6], [1.5, -0.5], [np.nan, 1.0], [np.inf, 0.0]])
def test_what_is_no_distribution_is_refused(row):
    with pytest.raises(UsageError, match="row 1 of the policy"):
        PolicyTable(np.array([[0.5, 0.5], row]))


def test_shapes_are_checked():
    p = np.full((2, 2), 0.5)
    for arguments in ({"nodes": [3, 3]}, {"nodes": [1]}, {"row_of": np.array([0, 2], np.int32)}):
        with pytest.raises(UsageError):
            PolicyTable(p, **arguments)
    with pytest.raises(UsageError):
        PolicyTable(p[0])
    with pytest.raises(UsageError):
        PolicyTable(np.ones((2, 1), np.int64))


@pytest.mark.parametrize("learner", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_sides_make_the_joint_action(learner):
    sides, plain = Sides.of((3, 2, 4), learner), PlainSides((3, 2, 4), learner)
    assert np.array_equal(np.add.outer(sides.learner_joint, sides.other_joint), plain.joint)


@pytest.mark.parametrize("learner", [(), (3,), (1, 0), (1, 1), (-1,)])
def test_a_learner_is_agents_in_order(learner):
    with pytest.raises(UsageError, match="agents 0 to 2"):
        Sides.of((3, 2, 4), learner)
