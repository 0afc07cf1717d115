"""The writer API against a random world: any order, any pieces, nothing published on an exception."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import omstore
from omstore.errors import BadDataError, UsageError, WriterBusyError
from tools.worlds.random_graph import LEVELS, RandomGraph


def edges_of(successors):
    columns = (successors.next_node, successors.probability, successors.reward, successors.done)
    return [
        (int(node), float(p), tuple(r), bool(d))
        for node, p, r, d in zip(*(column.tolist() for column in columns), strict=True)
    ]


def stream(writer, world, order, pieces, *, nodes_last=False, transitions=0):
    if not nodes_last:
        writer.add_nodes(world.vectors(np.arange(world.num_nodes)))
    for part in np.array_split(order, pieces):
        found = world.successors(part // world.num_joint_actions, part % world.num_joint_actions)
        writer.add_rows(
            part // world.num_joint_actions,
            part % world.num_joint_actions,
            np.diff(found.offsets),
            next_nodes=found.next_node,
            probability=found.probability,
            reward=found.reward,
            done=found.done,
        )
    if nodes_last:
        for first in range(0, world.num_nodes, 3):
            writer.add_nodes(world.vectors(np.arange(first, min(first + 3, world.num_nodes))))
    if transitions:
        at = np.arange(transitions) % world.num_nodes
        writer.add_transitions(
            world.vectors(at), at % world.num_joint_actions, world.vectors(at[::-1]), at * 0.5
        )


def compare(graph, world):
    nodes = graph.nodes_of_legacy(np.arange(world.num_nodes))
    assert np.array_equal(graph.lookup(world.vectors(np.arange(world.num_nodes))), nodes)
    edges = 0
    for node in range(world.num_nodes):
        for joint in range(world.num_joint_actions):
            truth = edges_of(world.successors(np.array([node]), np.array([joint])))
            truth = sorted((int(nodes[edge[0]]), *edge[1:]) for edge in truth)
            assert sorted(edges_of(graph.successors([nodes[node]], [joint]))) == truth
            edges += len(truth)
    assert edges == graph.num_edges


@given(
    seed=st.integers(0, 1000),
    level=st.sampled_from(LEVELS),
    nodes_last=st.booleans(),
    pieces=st.integers(1, 9),
)
@settings(max_examples=12, deadline=None)
def test_rows_in_any_order_and_pieces(tmp_path_factory, seed, level, nodes_last, pieces):
    export = tmp_path_factory.mktemp("writer")
    world = RandomGraph(9, (3, 2), reward_level=level, seed=seed)
    order = np.random.default_rng(seed).permutation(world.num_nodes * world.num_joint_actions)
    with omstore.create(
        export, agents=world.agents, num_actions=world.num_actions, state_width=world.width
    ) as writer:
        stream(writer, world, order, pieces, nodes_last=nodes_last, transitions=7)
    assert writer.report.version == "v000001"
    with omstore.open(export) as store:
        compare(store.graph, world)
        replay = store.replay
        assert np.array_equal(replay.states(), world.vectors(np.arange(7) % 9))
        assert np.array_equal(replay.nodes, store.graph.lookup(replay.states()))
        assert replay.rewards()[:, 1].tolist() == [i * 0.5 for i in range(7)]


@pytest.mark.parametrize("rows", ["csr", "csr-compressed", "dictionary"])
def test_encodings(tmp_path, rows):
    world = RandomGraph(12, (2, 2), seed=3)
    with omstore.create(
        tmp_path, agents=world.agents, num_actions=world.num_actions, state_width=world.width, rows=rows
    ) as writer:
        stream(writer, world, np.arange(48), 2)
    with omstore.open(tmp_path) as store:
        assert store.graph.encoding.name == rows
        compare(store.graph, world)


def test_what_is_written_does_not_depend_on_the_order(tmp_path):
    world = RandomGraph(12, (2, 2), seed=5)
    stores = []
    for name, order, pieces in (("one", np.arange(48), 1), ("other", np.arange(48)[::-1], 11)):
        with omstore.create(
            tmp_path / name, agents=world.agents, num_actions=world.num_actions, state_width=world.width
        ) as writer:
            stream(writer, world, order, pieces)
        folder = tmp_path / name / "store" / "v000001"
        stores.append({str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
    assert stores[0] == stores[1]


def tiny(tmp_path, **given):
    options = {"agents": ["a", "b"], "num_actions": [2, 3], "state_width": 4} | given
    return omstore.create(tmp_path, **options)


def test_columns_left_out_and_actions_by_agent(tmp_path):
    with tiny(tmp_path) as writer:
        nodes = writer.add_nodes([[0, 0, 0, 1], [0, 0, 1, 0]])
        assert nodes.tolist() == [0, 1]
        assert writer.add_nodes([[7, 0, 0, 0]]).tolist() == [2]
        writer.add_rows([0, 1, 2], [[0, 0], [1, 2], [1, 0]], next_nodes=[1, 2, 2])
    with omstore.open(tmp_path) as store:
        graph = store.graph
        nodes = graph.nodes_of_legacy([0, 1, 2])
        assert graph.states(nodes).tolist() == [[0, 0, 0, 1], [0, 0, 1, 0], [7, 0, 0, 0]]
        found = graph.successors(nodes, graph.encode_joint([[0, 0], [1, 2], [1, 0]]))
        assert np.array_equal(found.next_node, nodes[[1, 2, 2]])
        assert found.probability.tolist() == [1, 1, 1]
        assert not found.done.any()
        assert not found.reward.any()
        assert graph.legal(nodes).sum(axis=1).tolist() == [1, 1, 1]


def test_states_of_one_number_are_not_taken_for_node_numbers(tmp_path):
    with tiny(tmp_path, state_width=1) as writer:
        writer.add_nodes([[300], [5], [1]])
        writer.add_rows(
            [0, 1, 2], [0, 0, 0], offsets=[0, 1, 2, 4], next_nodes=[1, 2, 0, 1], probability=[1, 1, 0.5, 0.5]
        )
    graph = omstore.open(tmp_path).graph
    assert graph.states([0, 1, 2]).tolist() == [[1], [5], [300]]
    assert graph.nodes_of_legacy([0, 1, 2]).tolist() == [2, 1, 0]
    assert graph.successors([2, 1, 0], [0, 0, 0]).next_node.tolist() == [1, 0, 1, 2]


def test_a_replay_alone(tmp_path):
    with tiny(tmp_path) as writer:
        writer.add_transitions([[0, 1, 0, 1]], [[1, 1]], [[1, 1, 0, 1]], done=[True])
    with omstore.open(tmp_path) as store:
        assert store.graph is None
        assert store.replay.joint_actions.tolist() == [4]
        assert store.replay.done().tolist() == [True]


def test_an_exception_publishes_nothing(tmp_path):
    with tiny(tmp_path) as writer:
        writer.add_nodes([[0, 0, 0, 1]])
        writer.add_rows([0], [0], next_nodes=[0])

    def fail():
        with tiny(tmp_path) as writer:
            writer.add_nodes([[0, 0, 1, 1]])
            raise KeyError("exporter's own")

    with pytest.raises(KeyError):
        fail()
    assert [path.name for path in (tmp_path / "store").glob("v*")] == ["v000001"]
    assert not [path for path in (tmp_path / "store").iterdir() if path.name.startswith(".")]


def test_one_writer_at_a_time(tmp_path):
    with tiny(tmp_path) as writer:
        writer.add_transitions([[0] * 4], [0], [[0] * 4])
        with pytest.raises(WriterBusyError):
            tiny(tmp_path).__enter__()


def row(**change):
    given = {"nodes": [0], "joint_actions": [0], "next_nodes": [0]} | change
    return lambda writer: writer.add_rows(given.pop("nodes"), given.pop("joint_actions"), **given)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda w: w.add_nodes([[0, 1]]), r"shape \(batch, 4\)"),
        (lambda w: w.add_nodes([[0, 0.5, 0, 0]]), "whole numbers"),
        (lambda w: w.add_nodes([["x"] * 4]), "must be numbers"),
        (row(next_nodes=[0, 1]), "1 rows of 1 successors were given with 2 next nodes"),
        (row(outdegree=[-1]), "rows of -1 successors"),
        (row(outdegree=[1], offsets=[0, 1]), "no outdegree besides"),
        (row(offsets=[1, 2]), "from 0 on"),
        (row(joint_actions=[6]), r"joint action \(6\)"),
        (row(joint_actions=[[1, 3]]), r"joint action \(1, 3\)"),
        (row(joint_actions=[[1, 1, 1]]), "joint actions of shape"),
        (row(joint_actions=[0.5]), "joint actions must be integers"),
        (row(nodes=[0.0]), "nodes must be one-dimensional integers"),
        (row(probability=[1.0, 1.0]), "probability has shape"),
        (row(reward=[[1.0, 2.0, 3.0]]), "reward has shape"),
        (row(done=["no"]), "done must be numbers"),
        (
            lambda w: (row(probability=[1.0])(w), row()(w)),
            "with probability before, and now with next nodes only",
        ),
        (
            lambda w: w.add_transitions([[0] * 4], [0], [[0] * 4] * 2),
            "1 states were given with 2 next states",
        ),
    ],
)
def test_what_is_off_is_said_at_once(tmp_path, act, message):
    with pytest.raises(UsageError, match=message), tiny(tmp_path) as writer:
        act(writer)
    assert not list((tmp_path / "store").glob("v*"))


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda w: None, UsageError, "nothing was added"),
        (lambda w: w.add_nodes([[0] * 4]), UsageError, "no rows"),
        (lambda w: row()(w), UsageError, "nothing was added|no nodes"),
        (lambda w: (w.add_nodes([[0] * 4]), row(next_nodes=[1])(w)), BadDataError, "next_node is no node: 1"),
        (lambda w: (w.add_nodes([[0] * 4] * 2), row()(w)), BadDataError, "the same state"),
        (lambda w: (w.add_nodes([[0, 0, 0, -1]]), row()(w)), BadDataError, "component 3 is -1"),
        (lambda w: (w.add_nodes([[0] * 4]), row(probability=[0.9])(w)), BadDataError, "sum to 0.9"),
        (lambda w: (w.add_nodes([[0] * 4]), row(reward=[np.nan])(w)), BadDataError, "finite"),
    ],
)
def test_what_is_off_in_the_end(tmp_path, act, error, message):
    with pytest.raises(error, match=message) as raised, tiny(tmp_path) as writer:
        act(writer)
    assert "--" not in getattr(raised.value, "hint", "")  # a writer has no command line
    assert not list((tmp_path / "store").glob("v*"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"agents": []}, "agents"),
        ({"num_actions": [2]}, "actions"),
        ({"num_actions": [2, 0]}, "at least 1"),
        ({"state_width": 0}, "at least one component"),
        ({"rows": "best"}, "no row encoding"),
    ],
)
def test_a_writer_that_cannot_be(tmp_path, given, message):
    with pytest.raises(UsageError, match=message):
        tiny(tmp_path, **given)


def test_a_writer_that_is_not_open(tmp_path):
    with pytest.raises(UsageError, match="isn't open"):
        tiny(tmp_path).add_nodes([[0] * 4])
    with pytest.raises(UsageError, match="isn't open"):
        row()(tiny(tmp_path))
