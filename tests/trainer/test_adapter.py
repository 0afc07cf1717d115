"""The adapter: masks against the world's own, whatever the cache holds."""

from __future__ import annotations

import pickle
import threading
import tracemalloc
from typing import Any

import numpy as np
import pytest

import omstore
from omstore.errors import CorruptStoreError, UsageError
from tests.trainer.made_exports import NUM_ACTIONS, MadeExport, make_export
from tools.worlds.random_graph import RandomGraph
from trainer.adapter import GraphWorldModelAdapter

CAPS = (0, 1, 2, 7, 40, 100_000)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeExport:
    return make_export(tmp_path_factory.mktemp("adapter") / "export", transitions=0)


def graph_of(made: MadeExport) -> omstore.Graph:
    graph = made.open().graph
    assert graph is not None
    return graph


def world_nodes(made: MadeExport, nodes: np.ndarray) -> np.ndarray:
    """The world's numbers of the store's nodes."""
    return graph_of(made).legacy_ids(nodes)


class Reading:
    """A graph that notes whose legal masks are read."""

    def __init__(self, graph: omstore.Graph) -> None:
        self._graph = graph
        self.read: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def legal(self, nodes: np.ndarray) -> np.ndarray:
        self.read.append(np.asarray(nodes).tolist())
        return self._graph.legal(nodes)


def counting(made: MadeExport, cap: int) -> tuple[GraphWorldModelAdapter, Reading]:
    graph = Reading(graph_of(made))
    return GraphWorldModelAdapter(graph, cap), graph  # type: ignore[arg-type]


@pytest.mark.parametrize("focal", [0, 1, 2])
@pytest.mark.parametrize("cap", CAPS)
def test_masks_are_the_worlds_whatever_the_cap(made: MadeExport, cap: int, focal: int) -> None:
    adapter = GraphWorldModelAdapter(graph_of(made), cap, focal_agent=focal)
    rng = np.random.default_rng(cap)
    for count in (1, 3, 40, 100, 0):
        nodes = rng.integers(0, 40, count)
        joint = made.world.legal(world_nodes(made, nodes))
        by_agents = joint.reshape(count, *NUM_ACTIONS)
        others = tuple(1 + agent for agent in range(3) if agent != focal)
        assert np.array_equal(adapter.legal_joint(nodes), joint)
        assert np.array_equal(adapter.legal_focal(nodes), by_agents.any(axis=others))
        assert np.array_equal(
            adapter.legal_team(nodes), by_agents.any(axis=1 + focal).reshape(count, 24 // NUM_ACTIONS[focal])
        )
        assert adapter.num_kept <= cap


def test_some_team_action_is_illegal_only_without_any_partner(made: MadeExport) -> None:
    """The masks above are not all true."""
    adapter = GraphWorldModelAdapter(graph_of(made), focal_agent=0)
    everyone = np.arange(40)
    for mask in (adapter.legal_joint(everyone), adapter.legal_team(everyone)):
        assert not mask.all()
        assert mask.any(axis=1).all()


def test_those_used_last_are_kept(made: MadeExport) -> None:
    adapter, graph = counting(made, 2)
    for nodes in ([0], [1], [0], [2], [0], [1]):  # 2 drives out 1, not 0, which was used since
        adapter.legal_joint(np.array(nodes))
    assert graph.read == [[0], [1], [2], [1]]
    graph.read.clear()
    adapter.legal_team(np.array([5, 5, 0, 6, 7]))
    assert graph.read == [[5, 6, 7]], "each once, and not what is kept"
    graph.read.clear()
    adapter.legal_focal(np.array([6, 7]))
    assert graph.read == [], "the newest of a batch larger than the cap"
    assert adapter.num_kept == 2


def test_the_one_used_longest_ago_goes_first(made: MadeExport) -> None:
    """Against a list in order of use, over batches of all sizes."""
    adapter, graph = counting(made, 10)
    rng = np.random.default_rng(8)
    in_order: list[int] = []
    for _ in range(200):
        nodes = rng.integers(0, 40, rng.choice([1, 2, 30])).tolist()
        graph.read.clear()
        adapter.legal_joint(nodes)
        missing = sorted(set(nodes) - set(in_order))
        assert graph.read == ([missing] if missing else [])
        for node in nodes:
            if node in in_order:
                in_order.remove(node)
            in_order.append(node)
        in_order = in_order[-10:]


def test_a_cap_of_none_and_of_one(made: MadeExport) -> None:
    adapter, graph = counting(made, 0)
    for _ in range(2):
        adapter.legal_joint(np.array([3, 3]))
    assert graph.read == [[3], [3]]
    assert adapter.num_kept == 0
    adapter, graph = counting(made, 1)
    for nodes in ([3], [3], [4], [3]):
        adapter.legal_joint(np.array(nodes))
    assert graph.read == [[3], [4], [3]]


def test_memory_is_bounded_by_the_cap() -> None:
    """A procedural stand-in of 200,000 nodes: only masks are asked for."""
    world = RandomGraph(2, NUM_ACTIONS, width=13, seed=1)

    class Large:
        agents, num_actions, num_joint_actions, state_width = world.agents, NUM_ACTIONS, 24, 13
        num_nodes = 200_000

        def legal(self, nodes: np.ndarray) -> np.ndarray:
            return (nodes[:, None] >> np.arange(24)) & 1 == 1

        def successors(self, nodes: np.ndarray, joint_actions: np.ndarray) -> omstore.Successors:
            none = np.zeros(len(nodes) + 1, np.int64)
            empty = np.empty(0)
            return omstore.Successors(none, none[:0], empty, np.empty((0, 3)), empty.astype(bool))

    adapter = GraphWorldModelAdapter(Large(), 1000)  # type: ignore[arg-type]
    adapter.legal_team(np.arange(5000))
    tracemalloc.start()
    try:
        for first in range(0, 200_000, 5000):
            adapter.legal_team(np.arange(first, first + 5000))
        current, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert adapter.num_kept == 1000
    assert current < 1000 * (3 + 16) + 5000  # 24 bits, a node, and when it was used
    assert np.array_equal(adapter.legal_joint(np.array([199_999, 3])), Large().legal(np.array([199_999, 3])))


def test_threads_share_it(made: MadeExport) -> None:
    adapter = GraphWorldModelAdapter(graph_of(made), 5)
    expected = made.world.legal(world_nodes(made, np.arange(40)))
    wrong: list[int] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            nodes = rng.integers(0, 40, 6)
            if not np.array_equal(adapter.legal_joint(nodes), expected[nodes]):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert adapter.num_kept == 5


def test_the_graph_by_nodes(made: MadeExport) -> None:
    adapter = GraphWorldModelAdapter(graph_of(made))
    nodes = np.arange(40)
    states = made.world.vectors(world_nodes(made, nodes))
    assert np.array_equal(adapter.states(nodes), states)
    assert np.array_equal(adapter.lookup(states), nodes)
    joint = adapter.legal_joint(nodes).argmax(axis=1)
    found = adapter.successors(nodes, joint)
    truth = made.world.successors(world_nodes(made, nodes), joint)
    assert np.array_equal(found.offsets, truth.offsets)
    assert np.allclose(np.sort(found.probability), np.sort(truth.probability))
    one, other = (adapter.sample(nodes, joint, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(one.next_node, other.next_node)
    for node in nodes.tolist():
        row = slice(found.offsets[node], found.offsets[node + 1])
        assert one.next_node[node] in found.next_node[row]
    own, team = adapter.actions.split(joint)
    assert np.array_equal(adapter.actions.join(own, team), joint)


def test_it_pickles_without_its_cache(made: MadeExport) -> None:
    adapter = GraphWorldModelAdapter(graph_of(made), 7, focal_agent="agent_2")
    adapter.legal_joint(np.arange(5))
    again = pickle.loads(pickle.dumps(adapter))
    assert (again.legal_cache, again.focal_agent, again.num_kept) == (7, 2, 0)
    assert np.array_equal(again.legal_team(np.arange(5)), adapter.legal_team(np.arange(5)))


def test_what_is_refused(made: MadeExport) -> None:
    graph = graph_of(made)
    with pytest.raises(UsageError, match="-1"):
        GraphWorldModelAdapter(graph, -1)
    with pytest.raises(UsageError, match="no agent 3"):
        GraphWorldModelAdapter(graph, focal_agent=3)
    adapter = GraphWorldModelAdapter(graph)
    for nodes in ([0, 40], [0, -1]):
        with pytest.raises(UsageError, match=f"node {nodes[1]} at position 1 of the batch"):
            adapter.legal_joint(nodes)
    with pytest.raises(UsageError, match="integers"):
        adapter.legal_joint(np.zeros(2))


def test_rows_that_make_no_graph_are_found_at_once(made: MadeExport) -> None:
    class Damaged(Reading):
        factor, agents_rewarded = 1.0, 3

        def successors(self, nodes: np.ndarray, joint_actions: np.ndarray) -> omstore.Successors:
            found = self._graph.successors(nodes, joint_actions)
            return omstore.Successors(
                found.offsets,
                found.next_node,
                found.probability * self.factor,
                found.reward[:, : self.agents_rewarded],
                found.done,
            )

    graph = Damaged(graph_of(made))
    GraphWorldModelAdapter(graph)  # type: ignore[arg-type]
    graph.factor = 0.9
    with pytest.raises(CorruptStoreError, match=r"sum to 0\.9"):
        GraphWorldModelAdapter(graph)  # type: ignore[arg-type]
    graph.factor, graph.agents_rewarded = 1.0, 2
    with pytest.raises(CorruptStoreError, match="for 3 agents"):
        GraphWorldModelAdapter(graph)  # type: ignore[arg-type]
