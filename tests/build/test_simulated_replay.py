"""Simulated replays: every transition is one of the graph's, episodes hang together, actions are uniform."""

import numpy as np
import pytest

import omstore
from omstore.build import BuildOptions, build
from omstore.build.simulate import simulate
from omstore.errors import ModelError
from omstore.model import Pursuit, TransitionModel, load_model
from omstore.model.numbering import ProductNumbering
from omstore.model.rows import ProceduralRows
from tests.model.small_worlds import Drift


@pytest.mark.parametrize(
    "model", [load_model("pursuit", {"agents": 2, "slip": 0.1}), Drift()], ids=["pursuit", "drift"]
)
def test_transitions_are_the_graphs(tmp_path, model):
    count, horizon = 3000, 20
    build(model, tmp_path, BuildOptions(transitions=count, seed=5, horizon=horizon))
    with omstore.open(tmp_path) as store:
        graph, replay = store.graph, store.replay
        assert len(replay) == count
        assert replay.off_graph == 0
        found = graph.successors(replay.nodes, replay.joint_actions)
        row = np.repeat(np.arange(count), np.diff(found.offsets))
        hit = found.next_node == replay.next_nodes[row]
        hit &= (found.reward == replay.rewards()[row]).all(axis=1) & (found.done == replay.done()[row])
        assert len(np.unique(row[hit])) == count
        assert np.array_equal(graph.lookup(replay.states()), replay.nodes)
        assert np.array_equal(graph.lookup(replay.next_states()), replay.next_nodes)
        # An episode goes on where it was, unless it is done or as long as may be.
        ends = np.flatnonzero((replay.nodes[1:] != replay.next_nodes[:-1]) | (replay.done()[:-1] == 1)) + 1
        lengths = np.diff(np.concatenate(([0], ends)))
        assert lengths.max() <= horizon or model.initial_states() is not None
        cut = ends[replay.done()[ends - 1] == 0]
        assert set(np.diff(np.concatenate(([0], ends)))[np.isin(ends, cut)].tolist()) <= {horizon}
        assert store.manifest.replay["simulated"] == {"seed": 5, "horizon": horizon, "policy": "uniform"}


def pursuit_rows():
    model = Pursuit(2, 0.1)
    return ProceduralRows(model, ProductNumbering(model.space, [np.arange(44)] * 2))


def drawn(count, seed):
    steps = list(simulate(pursuit_rows(), count, seed=seed))
    return np.concatenate([part.node for part in steps]), np.concatenate(
        [part.joint_action for part in steps]
    )


def test_seeds():
    nodes, actions = drawn(2000, 1)
    assert len(nodes) == 2000
    again = drawn(2000, 1)
    assert np.array_equal(nodes, again[0])
    assert np.array_equal(actions, again[1])
    assert not np.array_equal(nodes, drawn(2000, 2)[0])
    longer = drawn(5000, 1)
    assert np.array_equal(longer[0][:2000], nodes)  # a longer replay begins with the shorter one


def test_actions_are_uniform_and_nobody_begins_absorbed():
    nodes, actions = drawn(50_000, 3)
    counts = np.bincount(actions, minlength=25)
    chi_squared = float(((counts - 2000) ** 2 / 2000).sum())
    assert chi_squared < 60  # 24 degrees of freedom: beyond 60 once in 10,000
    assert not (nodes // 44 == nodes % 44).any()


def test_illegal_actions_are_never_taken():
    model = Drift(4)
    rows = ProceduralRows(
        model, ProductNumbering(model.space, [np.arange(s) for s in model.sizes]), count_now=False
    )
    for part in simulate(rows, 2000, seed=0, horizon=30):
        states = model.space.states(part.node)
        illegal = (states[:, 1] == 0) & (part.joint_action % 3 == 2) & ~model.absorbing(states)
        assert not illegal.any()


class Trap(TransitionModel):
    agents, num_actions, sizes = ("a",), (2,), (3,)

    def __init__(self, absorbs):
        self.absorbs = absorbs

    def absorbing(self, states):
        return np.full(len(states), self.absorbs)

    def legal(self, states):
        return np.zeros((len(states), 2), bool)


@pytest.mark.parametrize(
    ("absorbs", "message"), [(True, "were all absorbing"), (False, "no legal joint action")]
)
def test_where_no_episode_can_be(absorbs, message):
    rows = ProceduralRows(Trap(absorbs), ProductNumbering(Trap(True).space, [np.arange(3)]))
    with pytest.raises(ModelError, match=message):
        next(simulate(rows, 10))
