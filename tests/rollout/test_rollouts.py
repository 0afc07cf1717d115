"""Rollouts against a plain reference to the bit, for any encoding, attribute level and legality."""

import numpy as np
import pytest

import omstore
from omstore.errors import UsageError
from omstore.rollout import PolicyTable, RolloutState, RolloutTables, environments, rollout, stream_key
from omstore.rollout.legality import Legality
from omstore.rollout.successors import DictionarySource, FactoredSource, RowSource
from tests.read.made_stores import make_store
from tests.rollout.conftest import ENCODINGS
from tests.rollout.reference import Sides, rollout_returns
from tools.worlds.random_graph import RandomGraph

STORED = [encoding for encoding in ENCODINGS if encoding != "procedural"]


def random_policy(seed, rows, actions, concentration=0.5):
    rng = np.random.default_rng(seed)
    policy = rng.dirichlet(np.full(actions, concentration), rows).astype(np.float32)
    policy[rng.random(policy.shape) < 0.1] = 0.0  # some actions are never played
    policy[:, 0] += 1e-6
    return policy / policy.sum(axis=1, keepdims=True)


def case(graph, learner, roots=6, seed=1, **changes):
    """Arguments of `rollout`, and the two policies."""
    sides = Sides(graph.num_actions, learner)
    rng = np.random.default_rng(seed)
    root = rng.integers(0, graph.num_nodes, roots)
    candidates = np.tile(np.arange(len(sides.learner)), (roots, 1))
    legal = graph.legal(root)[:, sides.joint].any(axis=2)
    candidates[~legal] = -1
    own = random_policy(seed + 1, graph.num_nodes, len(sides.learner))
    theirs = random_policy(seed + 2, graph.num_nodes, len(sides.others))
    arguments = {
        "roots": root,
        "candidates": candidates,
        "first_key": stream_key(7, 0, 3, np.arange(roots)),
        "learner": learner,
        "learner_table": PolicyTable(own),
        "other_table": PolicyTable(theirs),
        "n_rollouts": 5,
        "horizon": 4,
        "discount": 0.9,
        "reward_weights": rng.normal(size=len(graph.agents)),
    } | changes
    return arguments, own, theirs


def reference(graph, arguments, own, theirs):
    """Means and means of squares, from the returns in their order."""
    candidates = arguments["candidates"]
    means, squares = np.zeros(candidates.shape), np.zeros(candidates.shape)
    for r, c in zip(*np.nonzero(candidates >= 0), strict=True):
        returns = rollout_returns(
            graph,
            int(arguments["roots"][r]),
            int(candidates[r, c]),
            int(arguments["first_key"][r]),
            arguments["learner"],
            own,
            theirs,
            **{k: arguments[k] for k in ("n_rollouts", "horizon", "discount", "reward_weights")},
        )
        total = square = 0.0
        for value in returns:
            total += value
            square += value * value
        means[r, c], squares[r, c] = total / len(returns), square / len(returns)
    return means, squares


def check(graph, learner, **changes):
    arguments, own, theirs = case(graph, learner, **changes)
    found = rollout(graph, **arguments)
    expected = reference(graph, arguments, own, theirs)
    assert (arguments["candidates"] >= 0).any()
    assert np.array_equal(found[0], expected[0])
    assert np.array_equal(found[1], expected[1])
    return found


@pytest.mark.parametrize("learner", [(0,), (1,), (2,), (0, 1), (0, 2)])
def test_pursuit_is_the_reference_for_any_learner(pursuit, learner):
    means, _ = check(pursuit("csr"), learner, roots=4, n_rollouts=3)
    assert len(np.unique(means)) > 3


@pytest.mark.parametrize("encoding", STORED)
@pytest.mark.parametrize("learner", [(0,), (1,)])
def test_only_legal_joint_actions_are_drawn(partly_legal, encoding, learner):
    graph = partly_legal(encoding)
    legal = graph.legal(np.arange(graph.num_nodes))
    assert legal.any()
    assert not legal.all()
    assert (~legal.any(axis=1)).sum() >= 1
    check(graph, learner, roots=12, n_rollouts=5, horizon=5)


def test_bits_of_nodes_asked_for_as_they_are_met_make_no_difference(partly_legal):
    for encoding in STORED:
        graph = partly_legal(encoding)
        arguments, *_ = case(graph, (0,), roots=25, n_rollouts=6, horizon=5)
        tables = RolloutTables(graph)
        expected = rollout(tables, **arguments)
        tables.legality = Legality(graph.encoding, table_bytes=0)
        bits, by_node = tables.legality.bits(np.array([3, 1, 3]))
        assert not by_node
        assert bits.shape == (3, 2)
        assert np.array_equal(
            np.unpackbits(bits, axis=1)[:, : graph.num_joint_actions], graph.legal([3, 1, 3])
        )
        assert np.array_equal(rollout(tables, **arguments), expected)


@pytest.mark.parametrize(("reward_level", "done_level"), [
    ("edge", "next_node"), ("row", "edge"), ("node", "row"), ("next_node", "node"), ("graph", "graph")
])  # fmt: skip
@pytest.mark.parametrize("encoding", ["csr", "csr-compressed"])
@pytest.mark.parametrize("coded", [False, True])
def test_attributes_at_any_level(tmp_path, reward_level, done_level, encoding, coded):
    world = RandomGraph(30, (2, 3, 2), illegal=0.3, reward_level=reward_level, done_level=done_level, seed=4)
    levels = {"probability": "edge" if not coded else "outcome", "reward": reward_level, "done": done_level}
    if coded:
        levels |= {name: "outcome" for name in ("reward", "done") if levels[name] in ("edge", "row")}
    made = make_store(tmp_path, world, encoding=encoding, levels=levels)
    graph = omstore.open(made.export).graph
    check(graph, (1,), roots=8, n_rollouts=4, horizon=4)


def test_a_policy_without_mass_on_legal_joint_actions_makes_them_equal(partly_legal):
    graph = partly_legal("csr")
    legal = graph.legal(np.arange(graph.num_nodes)).reshape(-1, 3, 4)
    own, theirs = np.zeros((graph.num_nodes, 3), np.float32), np.zeros((graph.num_nodes, 4), np.float32)
    for node in range(graph.num_nodes):  # certain of an illegal pair where there is one
        mine, o = np.argwhere(~legal[node])[0] if not legal[node].all() else (0, 0)
        own[node, mine] = theirs[node, o] = 1.0
    arguments, *_ = case(
        graph, (0,), roots=25, n_rollouts=4, learner_table=PolicyTable(own), other_table=PolicyTable(theirs)
    )
    found = rollout(graph, **arguments)
    expected = reference(graph, arguments, own, theirs)
    assert np.array_equal(found, expected)


# The same numbers, however they are made


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_gives_the_same_bits(pursuit, encoding):
    arguments, *_ = case(pursuit("csr"), (2,), roots=40, n_rollouts=30, horizon=8)
    expected = rollout(pursuit("csr"), **arguments)
    graph = pursuit(encoding)
    tables = RolloutTables(graph)
    made_for = {"factored": FactoredSource, "dictionary": DictionarySource}
    assert isinstance(tables.source, made_for.get(encoding, RowSource))
    assert tables.legality.always
    assert np.array_equal(rollout(tables, **arguments), expected)
    plain = RolloutTables(graph, compiled=False)
    assert isinstance(plain.source, RowSource)
    assert np.array_equal(rollout(plain, **arguments), expected)


@pytest.mark.parametrize("encoding", STORED)
def test_every_encoding_gives_the_same_bits_with_exceptions_and_illegal_rows(partly_legal, encoding):
    arguments, *_ = case(partly_legal("csr"), (1,), roots=50, n_rollouts=20, horizon=6)
    expected = rollout(partly_legal("csr"), **arguments)
    tables = RolloutTables(partly_legal(encoding))
    assert not tables.legality.always
    assert np.array_equal(rollout(tables, **arguments), expected)
    assert np.array_equal(rollout(RolloutTables(tables.graph, compiled=False), **arguments), expected)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("block", [1, 7, 64, 100_000])
def test_threads_and_blocks_make_no_difference(pursuit, monkeypatch, threads, block):
    graph = pursuit("factored")
    arguments, *_ = case(graph, (0, 1), roots=5, n_rollouts=9)
    expected = rollout(graph, **arguments)
    monkeypatch.setattr(environments, "_BLOCK", block)
    assert np.array_equal(rollout(graph, **arguments, threads=threads), expected)


def test_the_rest_of_the_batch_makes_no_difference(pursuit):
    graph = pursuit("factored")
    arguments, *_ = case(graph, (2,), roots=12)
    means, squares = rollout(graph, **arguments)
    part = [7, 2, 11]
    for order in (slice(None), [4, 1, 0, 3, 2], [3]):
        some = arguments | {
            "roots": arguments["roots"][part],
            "candidates": arguments["candidates"][part][:, order],
            "first_key": arguments["first_key"][part],
        }
        found = rollout(graph, **some)
        assert np.array_equal(found[0], means[part][:, order])
        assert np.array_equal(found[1], squares[part][:, order])


@pytest.mark.parametrize("n_rollouts", [1, 1023, 1024, 1025, 3000])
def test_parts_of_many_rollouts_are_summed_in_order(pursuit, n_rollouts):
    graph = pursuit("factored")
    arguments, *_ = case(graph, (2,), roots=2, n_rollouts=n_rollouts, horizon=2)
    arguments["candidates"] = np.array([[1, -1], [4, 0]])
    means, squares = rollout(graph, **arguments)
    state = RolloutState(graph, **{k: v for k, v in arguments.items() if not k.endswith("_table")})
    while len(state.nodes()):
        state.step(arguments["learner_table"], arguments["other_table"])
    assert np.array_equal(state.result(), (means, squares))
    flat = np.concatenate([block.returns for block in state._blocks]).reshape(4, -1)[:, :n_rollouts]
    assert flat.shape[1] == n_rollouts
    for which, values in ((means, flat), (squares, flat * flat)):
        totals = np.zeros(4)
        for first in range(0, n_rollouts, 1024):
            totals += np.cumsum(values[:, first : first + 1024], axis=1)[:, -1]
        assert np.array_equal(which.reshape(-1), totals / n_rollouts)
    assert means[0, 1] == 0.0 == squares[0, 1]


@pytest.mark.parametrize("encoding", ["factored", "csr"])
def test_steps_with_policies_of_visited_nodes_give_the_same_bits(pursuit, partly_legal, encoding):
    for graph in (pursuit(encoding), partly_legal(encoding)):
        arguments, own, theirs = case(graph, (1,), roots=20, n_rollouts=7, horizon=6)
        expected = rollout(graph, **arguments)
        state = RolloutState(graph, **{k: v for k, v in arguments.items() if not k.endswith("_table")})
        sizes = []
        for step in range(6):
            nodes = state.nodes()
            sizes.append(len(nodes))
            if not len(nodes):
                break
            assert (np.diff(nodes) > 0).all()
            if step == 0:
                assert set(nodes) <= set(arguments["roots"])
            state.step(
                PolicyTable(own[nodes], nodes=nodes) if step else None,
                PolicyTable(theirs[nodes], nodes=nodes),
            )
        assert len(state.nodes()) == 0
        assert np.array_equal(state.result(), expected)
        assert max(sizes) > 5


def test_a_map_of_rows_gives_the_same_bits(pursuit):
    graph = pursuit("factored")
    arguments, own, theirs = case(graph, (1,))
    expected = rollout(graph, **arguments)
    order = np.random.default_rng(0).permutation(graph.num_nodes).astype(np.int32)
    changed = arguments | {
        "learner_table": PolicyTable(own[np.argsort(order)], row_of=order),
        "other_table": PolicyTable(theirs[np.argsort(order)], row_of=order),
    }
    assert np.array_equal(rollout(graph, **changed), expected)


# Refusals


def test_what_does_not_exist_is_refused(pursuit, partly_legal):
    graph = pursuit("factored")
    arguments, own, theirs = case(graph, (2,))

    def refused(match, **changes):
        with pytest.raises(UsageError, match=match):
            rollout(graph, **(arguments | changes))

    refused("root 512 at position 0", roots=np.full(6, 512))
    refused("candidate 5 at position 0", candidates=np.full((6, 2), 5))
    refused("candidate -2", candidates=np.full((6, 2), -2))
    refused("keys were asked for", first_key=stream_key(np.arange(5)))
    refused("each is at least 1", horizon=0)
    refused("each is at least 1", n_rollouts=0)
    refused("threads do no work", threads=0)
    refused("rewards of 3 agents", reward_weights=[1.0])
    refused("the learner's table is of 25", learner_table=PolicyTable(theirs))
    refused("the other side's table is of 5", other_table=PolicyTable(own))
    refused("from the second step on", learner_table=None)
    roots = np.unique(arguments["roots"])
    refused("has no row in the learner's", learner_table=PolicyTable(own[roots], nodes=roots))
    refused("has no row in the other side's", other_table=PolicyTable(theirs[:3]))
    one_step = arguments | {"horizon": 1, "learner_table": None}
    assert np.isfinite(rollout(graph, **one_step)).all()

    graph = partly_legal("csr")
    sides = Sides(graph.num_actions, (0,))
    legal = graph.legal(np.arange(graph.num_nodes))[:, sides.joint].any(axis=2)
    node, candidate = np.argwhere(~legal)[0]
    arguments, *_ = case(graph, (0,), roots=1)
    with pytest.raises(UsageError, match=f"candidate {candidate} of root 0 is part of no legal joint action"):
        rollout(graph, **(arguments | {"roots": [node], "candidates": [[candidate]]}))


def test_no_roots_are_no_work(pursuit):
    graph = pursuit("factored")
    arguments, *_ = case(graph, (2,))
    nothing = arguments | {
        "roots": np.empty(0, int),
        "candidates": np.empty((0, 5), int),
        "first_key": stream_key(np.arange(0)),
    }
    assert rollout(graph, **nothing)[0].shape == (0, 5)
    assert rollout(graph, **(arguments | {"candidates": np.full((6, 3), -1)}))[0].tolist() == [[0.0] * 3] * 6
