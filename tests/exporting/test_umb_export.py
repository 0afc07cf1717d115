"""UMB exports as umbi reads them, and as Storm computes with them."""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import umbi.umb

import omstore
from omstore.exporting import export_graph
from omstore.exporting.containers import Member, TarContainer
from omstore.exporting.umb import _reward_names, _write_valuations
from omstore.format.states import StateCodec
from tests.read.made_stores import Made, make_store
from tools.worlds.pursuit import GRID, WALLS
from tools.worlds.random_graph import RandomGraph
from tools.worlds.world import Successors

REFERENCE = Path(__file__).resolve().parents[1] / "data" / "storm_pursuit2_slip.npz"


def test_umbi_reads_the_graph(made: Made, everything: Successors, tmp_path: Path) -> None:
    report = export_graph(made.export, tmp_path / "graph.umb", "umb")
    umb = umbi.umb.read(tmp_path / "graph.umb", strict=True)  # strict: no file that the index doesn't name
    umb.validate()
    world = made.world
    width = world.num_joint_actions
    outdegree = np.diff(everything.offsets).reshape(-1, width)
    choices, branches = [], []  # by node: (action, [(target, probability, rewards)])
    for node in range(world.num_nodes):
        for action in range(width):
            row = node * width + action
            if outdegree[node, action]:
                choices.append((node, action))
                branches.append(range(everything.offsets[row], everything.offsets[row + 1]))
        if not outdegree[node].any():
            choices.append((node, width))
            branches.append([-1])
    dead = int((~outdegree.any(axis=1)).sum())
    assert dead > 3
    first_choice = np.searchsorted([node for node, _ in choices], np.arange(world.num_nodes + 1))
    assert umb.state_to_choices == first_choice.tolist()
    assert umb.choice_to_choice_action == [action for _, action in choices]
    assert umb.choice_to_branches == np.cumsum([0, *map(len, branches)]).tolist()
    edges = [edge for part in branches for edge in part]
    back = [node for (node, _), part in zip(choices, branches, strict=True) for _ in part]
    expected = [everything.next_node[e] if e >= 0 else n for e, n in zip(edges, back, strict=True)]
    assert umb.branch_to_target == expected
    assert umb.branch_to_probability == [everything.probability[e] if e >= 0 else 1.0 for e in edges]
    for agent, name in enumerate(_reward_names(world.agents)):
        values = umb.annotations["rewards"][name]["branches"]
        assert values == [everything.reward[e, agent] if e >= 0 else 0.0 for e in edges]
        assert umb.index.annotations["rewards"][name].alias == world.agents[agent]
    entered = np.zeros(world.num_nodes, bool)
    entered[everything.next_node[everything.done]] = True
    assert umb.annotations["aps"]["done"]["states"] == entered.tolist()
    vectors = [[state[f"x{i}"] for i in range(world.width)] for state in umb.valuations["states"]]
    assert np.array_equal(np.array(vectors, int), world.vectors(made.order))
    assert all(umb.state_is_initial)
    names = umb.choice_action_to_string
    assert names == ["0,0", "0,1", "1,0", "1,1", "2,0", "2,1", "none"]
    assert umb.state_to_player == [0] * world.num_nodes
    assert report.notes[0].startswith(f"{dead} nodes without a legal row")
    assert any("colour" in note for note in report.notes)


@pytest.mark.parametrize("level", ["row", "node"])
def test_rewards_that_know_no_successor_go_to_the_choices(tmp_path: Path, level: str) -> None:
    class ByRow(RandomGraph):
        def successors(self, nodes: np.ndarray, joint_actions: np.ndarray) -> Successors:
            found = super().successors(nodes, joint_actions)
            source = nodes if level == "node" else nodes * self.num_joint_actions + joint_actions
            number = np.asarray(source, float)[found.row_of_edge]
            reward = np.stack([number, -2 * number], axis=1)
            return Successors(found.offsets, found.next_node, found.probability, reward, found.done)

    world = ByRow(30, (3, 2), width=11, max_outdegree=4, seed=5)
    made = make_store(tmp_path / "export", world, levels={"reward": level})
    export_graph(made.export, tmp_path / "graph.umb", "umb")
    umb = umbi.umb.read(tmp_path / "graph.umb", strict=True)
    graph = omstore.open(made.export).graph
    assert graph is not None
    for choice in range(0, len(umb.choice_to_choice_action), 7):
        node = int(np.searchsorted(umb.state_to_choices, choice, side="right")) - 1
        found = graph.successors([node], [umb.choice_to_choice_action[choice]])
        for agent, name in enumerate(_reward_names(world.agents)):
            assert umb.annotations["rewards"][name]["choices"][choice] == found.reward[0, agent]


def test_rewards_can_be_left_out(made: Made, tmp_path: Path) -> None:
    umbs = []
    for rewards in (True, False):
        export_graph(made.export, tmp_path / f"{rewards}.umb", "umb", rewards=rewards)
        umbs.append(umbi.umb.read(tmp_path / f"{rewards}.umb", strict=True))
    whole, less = umbs
    less.validate()
    assert not less.annotations.get("rewards")
    for name in ("state_to_choices", "choice_to_branches", "branch_to_target", "branch_to_probability"):
        assert getattr(whole, name) == getattr(less, name)
    assert whole.annotations["aps"]["done"]["states"] == less.annotations["aps"]["done"]["states"]


def test_wide_components_are_little_endian_numbers(tmp_path: Path) -> None:
    states = np.array([[1, 300, 65535], [7, 0, 256]], np.uint16)
    source = SimpleNamespace(
        codec=StateCodec(3, 16),
        graph=SimpleNamespace(states=lambda nodes: states[nodes]),
        nodes=lambda bytes_each: iter([np.array([0]), np.array([1])]),
    )
    name = "valuations/states/valuations.bin"
    (tmp_path / "x.tar").touch()
    with TarContainer(tmp_path / "x.tar", [Member(name, states.nbytes)]) as file:
        _write_valuations(source, file)  # type: ignore[arg-type]
    with tarfile.open(tmp_path / "x.tar") as tar:
        member = tar.extractfile(name)
        assert member is not None
        assert np.frombuffer(member.read(), "<u2").tolist() == states.reshape(-1).tolist()


def test_names_of_rewards_are_distinct_and_plain() -> None:
    assert _reward_names(("Évader", "a/b", "a b", "A_B", "")) == [
        "_vader",
        "a_b",
        "a_b_2",
        "a_b_3",
        "agent_4",
    ]


@pytest.fixture(scope="module")
def stormpy():
    return pytest.importorskip("stormpy", reason="the extra 'check' isn't installed")


@pytest.fixture(scope="module")
def storm_model(stormpy, sample, tmp_path_factory):
    path = tmp_path_factory.mktemp("storm") / "pursuit2.umb"
    export_graph(sample, path, "umb")
    return stormpy.build_model_from_umb(str(path))


def values(stormpy, model, formula):
    (formula,) = stormpy.parse_properties(formula)
    return np.array(stormpy.model_checking(model, formula, only_initial_states=False).get_value_vector())


def cells_number(graph) -> np.ndarray:
    """The reference's number of each node: c0 * 44 + c1."""
    bits = graph.states(np.arange(graph.num_nodes)).reshape(-1, 2, GRID * GRID)
    free = [
        row * GRID + column for row in range(GRID) for column in range(GRID) if (row, column) not in WALLS
    ]
    cells = np.searchsorted(free, bits.argmax(axis=2))
    return cells[:, 0] * len(free) + cells[:, 1]


@pytest.mark.parametrize(
    ("formula", "name", "within"),
    [
        ('Pmax=? [F<=20 "done"]', "pmax20", 1e-9),
        ('Pmin=? [F<=20 "done"]', "pmin20", 1e-9),
        ('Pmax=? [F "done"]', "pmax_inf", 1e-5),  # Storm iterates to a relative 1e-6
    ],
)
def test_storm_computes_what_it_computed_from_prism_text(stormpy, storm_model, sample, formula, name, within):
    graph = omstore.open(sample).graph
    with np.load(REFERENCE) as reference:
        expected = reference[name][cells_number(graph)]
    assert np.abs(values(stormpy, storm_model, formula) - expected).max() < within


def test_storm_knows_the_graph_and_its_rewards(stormpy, storm_model, sample):
    graph = omstore.open(sample).graph
    assert str(storm_model.model_type) == "ModelType.MDP"
    counts = (storm_model.nr_states, storm_model.nr_choices, storm_model.nr_transitions)
    assert counts == (graph.num_nodes, graph.num_rows, graph.num_edges)
    assert set(storm_model.reward_models) == {"pursuer_0", "evader"}
    # two steps of value iteration of our own, over the store
    expected = np.zeros(graph.num_nodes)
    for _ in range(2):
        total = np.empty(graph.num_rows)
        for chunk in graph.sweep(4096):
            found = chunk.successors
            worth = found.probability * (found.reward[:, 0] + expected[found.next_node])
            total[chunk.rows] = np.add.reduceat(worth, found.offsets[:-1])
        expected = total.reshape(graph.num_nodes, -1).max(axis=1)
    found = values(stormpy, storm_model, 'R{"pursuer_0"}max=? [C<=2]')
    assert np.abs(found - expected).max() < 1e-12


def test_storm_reads_dead_ends(stormpy, made, everything, tmp_path):
    export_graph(made.export, tmp_path / "graph.umb", "umb")
    model = stormpy.build_model_from_umb(str(tmp_path / "graph.umb"))
    legal = np.diff(everything.offsets).reshape(made.world.num_nodes, -1) > 0
    assert model.nr_choices == legal.sum() + (~legal.any(axis=1)).sum()
    chance = values(stormpy, model, 'Pmax=? [F<=1 "done"]')
    done = np.zeros(made.world.num_nodes)
    done[everything.next_node[everything.done]] = 1
    rows = np.zeros(legal.size)
    np.add.at(rows, everything.row_of_edge, everything.probability * done[everything.next_node])
    expected = np.maximum(done, rows.reshape(legal.shape).max(axis=1))
    assert np.abs(chance - expected).max() < 1e-12
