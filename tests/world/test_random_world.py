"""The random graph and the walks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.worlds.pursuit import Pursuit
from tools.worlds.random_graph import LEVELS, RandomGraph
from tools.worlds.thinned import Thinned
from tools.worlds.walk import behaviour_table, joint_behaviour, walk
from tools.worlds.world import decode_joint_actions, encode_joint_actions, ragged_positions


def all_rows(world):
    nodes, joint = np.divmod(np.arange(world.num_nodes * world.num_joint_actions), world.num_joint_actions)
    return nodes, joint, world.successors(nodes, joint)


@settings(deadline=None)
@given(
    nodes=st.integers(1, 20),
    actions=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    width=st.sampled_from([5, 8, 13, 40]),
    duplicates=st.booleans(),
    seed=st.integers(0, 5),
)
def test_a_random_graph_is_a_valid_graph(nodes, actions, width, duplicates, seed):
    world = RandomGraph(nodes, actions, width=width, duplicates=duplicates, seed=seed)
    _, _, rows = all_rows(world)
    outdegree = np.diff(rows.offsets)
    assert rows.next_node.size == world.num_edges == outdegree.sum()
    sums = np.bincount(rows.row_of_edge, weights=rows.probability, minlength=outdegree.size)
    np.testing.assert_allclose(sums, outdegree > 0, atol=1e-12)
    assert (outdegree.reshape(nodes, -1) > 0).any(axis=1).all()
    np.testing.assert_array_equal(world.legal(np.arange(nodes)), outdegree.reshape(nodes, -1) > 0)
    assert len(np.unique(world.vectors(np.arange(nodes)), axis=0)) == nodes
    again = RandomGraph(nodes, actions, width=width, duplicates=duplicates, seed=seed)
    np.testing.assert_array_equal(all_rows(again)[2].reward, rows.reward)


@pytest.mark.parametrize("level", LEVELS)
def test_rewards_are_a_function_of_their_level(level):
    world = RandomGraph(15, (2, 2), reward_level=level, seed=3)
    nodes, _, rows = all_rows(world)
    row = rows.row_of_edge
    key = {
        "graph": row * 0,
        "next_node": rows.next_node,
        "node": nodes[row],
        "row": row,
        "edge": np.arange(row.size),
    }[level]
    values = {}
    for k, reward in zip(key, rows.reward.tolist(), strict=True):
        assert values.setdefault(k, reward) == reward
    assert len({tuple(v) for v in values.values()}) > 1 or level == "graph"


def test_joint_actions_are_mixed_radix_agent_0_first():
    assert encode_joint_actions(np.array([[2, 1, 3]]), (3, 2, 4)).tolist() == [2 * 8 + 1 * 4 + 3]
    codes = np.arange(24)
    np.testing.assert_array_equal(
        encode_joint_actions(decode_joint_actions(codes, (3, 2, 4)), (3, 2, 4)), codes
    )


def test_ragged_positions_by_hand():
    assert ragged_positions(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert ragged_positions(np.array([], np.int64), np.array([], np.int64)).tolist() == []


@pytest.mark.parametrize(
    "world", [Pursuit(2, 0.1), RandomGraph(9, (2, 3), seed=1)], ids=["pursuit", "random"]
)
def test_every_step_of_a_walk_is_an_edge(world):
    rng = np.random.default_rng(2)
    steps = walk(world, 700, behaviour_table(world, "skewed", 1), rng)
    assert steps.node.shape == (700,)
    rows = world.successors(steps.node, steps.joint_action)
    for t in range(700):
        edges = slice(rows.offsets[t], rows.offsets[t + 1])
        found = [
            k
            for k, r, d in zip(
                rows.next_node[edges], rows.reward[edges].tolist(), rows.done[edges], strict=True
            )
            if (k, r, d) == (steps.next_node[t], steps.reward[t].tolist(), steps.done[t])
        ]
        assert found
    within = np.flatnonzero(~steps.done[:60])
    np.testing.assert_array_equal(steps.node[within + 1], steps.next_node[within])
    assert not world.absorbing(steps.node).any()


def test_a_walk_follows_the_behaviour_and_the_probabilities():
    world = Pursuit(2, 0.1)
    table = behaviour_table(world, "skewed", 4)
    steps = walk(world, 60_000, table, np.random.default_rng(0))
    probability = joint_behaviour(world, table, steps.node)
    np.testing.assert_allclose(probability.sum(axis=1), 1)
    expected = probability.sum(axis=0)
    counts = np.bincount(steps.joint_action, minlength=25)
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected.max())
    # the slip: given both meant to move, both got through 0.81 of the time, and more where outcomes merge
    most_likely = np.maximum.reduceat(
        (rows := world.successors(steps.node, steps.joint_action)).probability, rows.offsets[:-1]
    )
    reached = rows.next_node == steps.next_node[rows.row_of_edge]
    hit = reached & (rows.probability == most_likely[rows.row_of_edge])
    assert abs(hit.sum() - most_likely.sum()) < 5 * np.sqrt(most_likely.sum())


def test_only_legal_joint_actions_are_drawn():
    world = RandomGraph(10, (3, 2), illegal=0.7, seed=2)
    steps = walk(world, 3_000, behaviour_table(world, "uniform", 0), np.random.default_rng(1))
    assert world.legal(steps.node)[np.arange(3_000), steps.joint_action].all()


def test_a_thinned_world_keeps_every_node_and_joint_action():
    world, full = Thinned(Pursuit(2, 0.1), 10), Pursuit(2, 0.1)
    nodes, joint, rows = all_rows(world)
    legal = np.diff(rows.offsets) > 0
    np.testing.assert_array_equal(legal.reshape(1936, 25), world.legal(np.arange(1936)))
    assert set(legal.reshape(1936, 25).sum(axis=1)) == {2, 3}
    assert legal.reshape(1936, 25).any(axis=0).all()
    expected = full.successors(nodes[legal], joint[legal])
    np.testing.assert_array_equal(rows.next_node, expected.next_node)
    np.testing.assert_array_equal(rows.offsets[:-1][legal], expected.offsets[:-1])
    steps = walk(world, 2_000, behaviour_table(world, "uniform", 0), np.random.default_rng(1))
    assert ((steps.node + steps.joint_action) % 10 == 0).all()
    with pytest.raises(ValueError, match="legal row"):
        Thinned(Pursuit(2), 26)


def test_an_unknown_behaviour_is_named():
    with pytest.raises(ValueError, match="uniform, skewed"):
        behaviour_table(Pursuit(2), "clever", 0)
