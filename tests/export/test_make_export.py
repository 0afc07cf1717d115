"""Exports read back by `pickle.load` and plain Python, and compared with their truth and their world."""

import gzip
import lzma
import pickle
import pickletools
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.exports.records import edge_roles, legacy_classes, transition_roles
from tools.exports.spec import CHOICES, NAMES, make_world
from tools.make_export import ExportSpec, load_truth, main, write_export


def unpickle(out, spec, part):
    path = out / "wm" / spec.file_name(part)
    data = path.read_bytes()
    if spec.compress == "zstd":
        from backports import zstd

        data = zstd.decompress(data)
    data = {"gzip": gzip.decompress, "xz": lzma.decompress}.get(spec.compress, bytes)(data)
    assert data[:2] == b"\x80" + bytes([spec.protocol])
    with legacy_classes(spec):
        return pickle.loads(data)


def field(record, name, roles, names):
    if isinstance(record, dict):
        return record[name]
    if type(record) is tuple:
        return record[[names.get(role, role) for role in roles].index(name)]
    return getattr(record, name)


def part_of(container, name):
    return container[name] if isinstance(container, dict) else getattr(container, name)


def vector(value):
    """A state in any shape -> its bits as a tuple."""
    return tuple(int(x) for x in value)


def joint_action(value, shape, agents):
    if shape == "class":
        return int(value)
    actions = [value[a] for a in agents] if shape == "dict" else list(value)
    assert {"tuple": tuple, "list": list, "array": np.ndarray, "dict": dict}[shape] is type(value)
    return tuple(int(a) for a in actions)


def numbers(value, shape, agents):
    if shape == "scalar":
        return [float(value)]
    return [float(value[a]) for a in agents] if shape == "dict" else [float(v) for v in value]


def digits(code, num_actions):
    """Mixed radix by hand, agent 0 most significant."""
    out = []
    for radix in reversed(num_actions):
        out.append(code % radix)
        code //= radix
    return tuple(reversed(out))


def read_graph(spec, root, truth):
    """-> ({legacy id: bits} or None, [(src key, action, dst key, prob, reward, done, visits)])"""
    names, roles, agents = spec.field_names, edge_roles(spec), truth.agents
    bare = spec.graph == "edge-list" or (spec.nodes == "absent" and "adjacency" in spec.graph)
    edges = root if bare else part_of(root, names["edges"])
    nodes = None
    if spec.nodes != "absent":
        held = part_of(root, names["nodes"])
        if spec.nodes == "dict-state-id":
            nodes = {i: vector(s) for s, i in held.items()}
        elif spec.nodes == "dict-id-state":
            nodes = {i: vector(s) for i, s in held.items()}
        else:
            assert isinstance(held, np.ndarray) == (spec.nodes == "array")
            nodes = {i: vector(s) for i, s in enumerate(held)}
    if spec.graph == "adjacency":
        found = [(key, None, record) for key, records in edges.items() for record in records]
    elif spec.graph == "adjacency2":
        found = [(k, a, r) for k, inner in edges.items() for a, records in inner.items() for r in records]
    else:
        found = [(None, None, record) for record in edges]

    def end(value):
        return int(value) if spec.endpoints == "id" else vector(value)

    out = []
    for key, inner, record in found:
        get = lambda role, record=record: field(record, names.get(role, role), roles, names)  # noqa: E731
        src = end(get("src") if "src" in roles else key)
        if "action" in roles:
            action = joint_action(get("action"), spec.joint_action, agents)
        else:
            action = int(inner) if spec.joint_action == "class" else tuple(int(a) for a in inner)
        out.append(
            (
                src,
                action,
                end(get("dst")),
                float(get("prob")) if spec.prob else 1.0,
                [] if spec.reward == "none" else numbers(get("reward"), spec.reward, agents),
                bool(get("done")) if spec.done else False,
                int(get("visits")) if spec.kept else 0,
            )
        )
        if spec.extra:
            assert (get("info"), get("kind")) == (None, "model")
    return nodes, out


def check_graph(spec, out, truth):
    nodes, edges = read_graph(spec, unpickle(out, spec, "graph"), truth)
    t = truth.graph
    bits = {i: vector(s) for i, s in zip(t.node_id.tolist(), t.states, strict=True)}
    if nodes is not None:
        assert nodes == bits
    key = (lambda i: i) if spec.endpoints == "id" else bits.__getitem__
    code = (lambda c: c) if spec.joint_action == "class" else (lambda c: digits(c, truth.num_actions))
    expected = [
        (key(s), code(a), key(d), p, r, bool(e), v)
        for s, a, d, p, r, e, v in zip(
            *(column.tolist() for column in (t.src, t.joint_action, t.dst, t.probability, t.reward)),
            *(t.done.tolist(), t.visits.tolist()),
            strict=True,
        )
    ]
    assert edges == expected


def check_truth_is_the_world(spec, truth):
    """The truth's edges as a set are the world's, under the renumbering that the states give."""
    world, t = make_world(spec), truth.graph
    node_of = {vector(s): k for k, s in enumerate(world.vectors(np.arange(world.num_nodes)))}
    world_node = {i: node_of[vector(s)] for i, s in zip(t.node_id.tolist(), t.states, strict=True)}
    nodes = np.repeat(np.arange(world.num_nodes), world.num_joint_actions)
    joint = np.tile(np.arange(world.num_joint_actions), world.num_nodes)
    rows = world.successors(nodes, joint)
    src, action = nodes[rows.row_of_edge], joint[rows.row_of_edge]
    expected = sorted(zip(src, action, rows.next_node, rows.reward[:, 0], rows.probability, strict=True))
    found = sorted(
        (world_node[s], a, world_node[d], r, p)
        for s, a, d, r, p in zip(
            t.src.tolist(), t.joint_action, t.dst.tolist(), t.reward[:, 0], t.probability, strict=True
        )
    )
    assert found == expected


def check_replay(spec, out, truth):
    root, t = unpickle(out, spec, "replay"), truth.replay
    names, roles, agents = spec.field_names, transition_roles(spec), truth.agents
    action, reward = spec.in_replay("action"), spec.in_replay("reward")
    if spec.replay == "ring":
        assert root.position == t.oldest == t.node.size // 3
        assert root.capacity == t.node.size
    records = part_of(root, names["transitions"]) if spec.replay in ("object", "ring") else root
    assert len(records) == t.node.size
    for i, record in enumerate(records):
        get = lambda role, record=record: field(record, names.get(role, role), roles, names)  # noqa: E731
        for role, states in (("obs", t.state), ("next_obs", t.next_state)):
            seen = get(role)
            if spec.observations == "vector":
                assert vector(seen) == vector(states[i])
                continue
            assert list(seen) == list(agents)
            part = states.shape[1] // len(agents)
            for k, agent in enumerate(agents):
                turn = k * part if spec.egocentric else 0
                assert vector(seen[agent]) == vector(states[i][turn:]) + vector(states[i][:turn])
        expected = (
            t.joint_action[i] if action == "class" else digits(int(t.joint_action[i]), truth.num_actions)
        )
        assert joint_action(get("replay_action"), action, agents) == expected
        if reward != "none":
            assert numbers(get("replay_reward"), reward, agents) == t.reward[i].tolist()
        assert bool(get("done")) == t.done[i]


def check_walk(spec, truth):
    """In time order, a transition starts where the one before ended; and every one is an edge."""
    t, g = truth.replay, truth.graph
    bits = {i: vector(s) for i, s in zip(g.node_id.tolist(), g.states, strict=True)}
    edges = set(zip(g.src.tolist(), g.joint_action.tolist(), g.dst.tolist(), strict=True))
    inside = t.node >= 0
    assert (~inside).sum() == spec.off_graph
    for i in np.flatnonzero(inside).tolist():
        assert vector(t.state[i]) == bits[t.node[i]]
        assert vector(t.next_state[i]) == bits[t.next_node[i]]
        assert (t.node[i], t.joint_action[i], t.next_node[i]) in edges
    for i in np.flatnonzero(~inside).tolist():
        assert vector(t.state[i]) not in bits.values()
        assert vector(t.next_state[i]) not in bits.values()


def check(out, spec):
    truth = write_export(out, spec)
    check_graph(spec, out, truth)
    if spec.reward != "none" and spec.prob:
        check_truth_is_the_world(spec, truth)
    check_replay(spec, out, truth)
    check_walk(spec, truth)
    assert not any(name.startswith("pursuit_legacy") for name in sys.modules)
    assert load_truth(out).spec == spec
    return truth


VARIED = [
    "record", "names", "protocol", "graph", "nodes", "endpoints", "joint_action", "reward",
    "compress", "observations", "replay", "state_dtype",
]  # fmt: skip


@st.composite
def specs(draw):
    values = {"protocol": draw(st.integers(2, 5)), "world": "random", "transitions": draw(st.integers(1, 30))}
    for name in VARIED:
        if name != "protocol":
            values[name] = draw(st.sampled_from(CHOICES[name]))
    if values["replay"] == "columns":
        values["replay"] = "list"  # has a test of its own
    if values["graph"] == "edge-list":
        values["nodes"] = "absent"
    ids = ["contiguous", "shuffled", "sparse"]
    values["ids"] = draw(
        st.sampled_from(ids if "dict" in values["nodes"] or values["nodes"] == "absent" else ids[:2])
    )
    if values["names"] == "arrows" and values["record"] not in ("dict", "tuple"):
        values["names"] = "plain"
    flags = (
        "done",
        "prob",
        "shuffle",
        "redundant_keys",
        "extra",
        "kept",
        "numpy_scalars",
        "share",
        "egocentric",
    )
    values |= {flag: draw(st.booleans()) for flag in flags}
    values |= {
        "off_graph": draw(st.integers(0, min(3, values["transitions"]))),
        "seed": draw(st.integers(0, 9)),
    }
    values |= {"replay_action": draw(st.sampled_from([None, "dict", "class"]))}
    return ExportSpec(**values, num_actions=draw(st.sampled_from([(3, 2), (2,), (2, 2, 2)])))


@settings(max_examples=100, deadline=None)
@given(spec=specs())
def test_any_shape_holds_its_truth(spec, tmp_path_factory):
    check(tmp_path_factory.mktemp("export"), spec)


def test_shared_lists_beside_keys_that_are_tuples(tmp_path):
    shapes = {"graph": "adjacency2", "joint_action": "list", "redundant_keys": True}
    check(tmp_path, ExportSpec(world="random", share=True, **shapes))


@pytest.mark.parametrize("record", CHOICES["record"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_every_record_with_every_name_set(tmp_path, record, protocol):
    for names in NAMES if record in ("dict", "tuple") else [n for n in NAMES if n != "arrows"]:
        check(tmp_path / names, ExportSpec(world="random", record=record, protocol=protocol, names=names))


def test_pursuit_with_slip(tmp_path):
    spec = ExportSpec(agents=2, slip=0.1, fraction=0.1, transitions=500, nodes="array")
    truth = check(tmp_path, spec)
    assert truth.graph.node_id.size == 1936
    assert truth.replay.node.size == 50
    assert truth.agents == ("pursuer_0", "evader")


@pytest.mark.parametrize("observations", ["dict", "vector"])
@pytest.mark.parametrize("shape", ["class", "dict", "array"])
def test_columns(tmp_path, observations, shape):
    spec = ExportSpec(
        world="random", replay="columns", observations=observations, egocentric=True,
        replay_action=shape, replay_reward={"class": "scalar"}.get(shape, shape),
    )  # fmt: skip
    truth = write_export(tmp_path, spec)
    root, t = unpickle(tmp_path, spec, "replay"), truth.replay
    by_agent = {
        name: [digits(c, (3, 2))[i] for c in t.joint_action.tolist()] for i, name in enumerate(truth.agents)
    }
    if shape == "class":
        np.testing.assert_array_equal(root["actions"], t.joint_action)
        np.testing.assert_array_equal(root["rewards"], t.reward[:, 0])
    for i, name in enumerate(truth.agents):
        if shape != "class":
            step = name if shape == "dict" else (slice(None), i)
            assert root["actions"][step].tolist() == by_agent[name]
            np.testing.assert_array_equal(root["rewards"][step], t.reward[:, i])
        if observations == "dict":
            np.testing.assert_array_equal(root["obs"][name], np.roll(t.state, -6 * i, axis=1))
    if observations == "vector":
        np.testing.assert_array_equal(root["next_obs"], t.next_state)
    np.testing.assert_array_equal(root["done"], t.done)


def test_torch_observations(tmp_path):
    torch = pytest.importorskip("torch")
    spec = ExportSpec(world="random", torch=True, state_dtype="float32", transitions=20)
    truth = check(tmp_path, spec)
    first = unpickle(tmp_path, spec, "replay")[0].obs["agent_1"]
    assert isinstance(first, torch.Tensor)
    assert first.dtype == torch.float32
    assert first.tolist() == truth.replay.state[0].tolist()


def test_sharing_means_the_memo(tmp_path):
    def fetches(share):
        spec = ExportSpec(world="random", share=share, nodes="list-tuple", endpoints="tuple")
        out = tmp_path / str(share)
        write_export(out, spec)
        edges = unpickle(out, spec, "graph").edges
        gets = [o.name for o, _, _ in pickletools.genops((out / "wm" / spec.file_name("graph")).read_bytes())]
        return edges, sum("GET" in name for name in gets)

    shared, shared_gets = fetches(True)
    own, own_gets = fetches(False)
    same = [e for e in shared if e.joint_action == shared[0].joint_action]
    assert all(e.joint_action is same[0].joint_action for e in same)
    assert len({id(e.joint_action) for e in own}) == len(own)
    assert len({id(e.src) for e in shared}) == 12
    # unshared tuples of equal content still are separate objects in the file
    assert shared_gets > own_gets


def test_the_same_spec_gives_the_same_bytes(tmp_path):
    spec = ExportSpec(world="random", compress="gzip", suffix=True, shuffle=True, behaviour="skewed")
    for name in ("a", "b"):
        write_export(tmp_path / name, spec)
    for file in ("env_transition_graph.pkl.gz", "D.pkl.gz"):
        assert (tmp_path / "a/wm" / file).read_bytes() == (tmp_path / "b/wm" / file).read_bytes()


def test_classes_are_not_importable_afterwards(tmp_path):
    write_export(tmp_path, ExportSpec(world="random"))
    with (
        pytest.raises(ModuleNotFoundError, match="pursuit_legacy"),
        (tmp_path / "wm/D.pkl").open("rb") as file,
    ):
        pickle.load(file)


def test_command_line(tmp_path):
    out = tmp_path / "e"
    arguments = [
        str(out),
        "--world",
        "random",
        "--record",
        "slots",
        "--transitions",
        "7",
        "--no-done",
        "--cells",
    ]
    result = CliRunner().invoke(main, [*arguments, "--num-actions", "2", "--num-actions", "3"])
    assert result.exit_code == 0, result.output
    truth = load_truth(out)
    assert truth.spec == ExportSpec(
        world="random", record="slots", transitions=7, done=False, padded=False, num_actions=(2, 3)
    )
    check_graph(truth.spec, out, truth)
    assert CliRunner().invoke(main, [str(out), "--graph", "edge-list"]).exit_code == 2
    only = CliRunner().invoke(main, [str(tmp_path / "f"), "--world", "random", "--parts", "replay"])
    assert only.exit_code == 0, only.output
    assert [p.name for p in (tmp_path / "f/wm").iterdir()] == ["D.pkl"]
    assert load_truth(tmp_path / "f").graph is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"graph": "edge-list"}, "absent"),
        ({"ids": "sparse"}, "dict"),
        ({"names": "arrows"}, "from"),
        ({"protocol": 6}, "2 to 5"),
        ({"record": "bag"}, "record is one of"),
        ({"replay_action": "bag"}, "replay_action is one of"),
        ({"world": "random", "fraction": 0.1}, "thinned"),
    ],
)
def test_impossible_specs_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ExportSpec(**values)
