"""Roles found by name, by kind and by order; overrides; what can't be decided is refused with the way out."""

import numpy as np
import pytest

from omstore.errors import BadDataError, UsageError
from omstore.legacy.fields import ColumnRange
from omstore.legacy.mapping import map_graph, map_replay
from omstore.legacy.schema import (
    KEY,
    KEY2,
    VALUE,
    ArrayRef,
    Column,
    Ignored,
    Instance,
    PickleTree,
    TableRef,
    TableSchema,
)

INT, FLOAT, BYTE = np.dtype(np.int64), np.dtype(np.float64), np.dtype(np.uint8)


def column(path, kind="int", shape=()):
    path = path if isinstance(path, tuple) else (path,)
    dtype = {"int": INT, "float": FLOAT, "bool": BYTE, "ints": INT, "bits": BYTE, "floats": FLOAT}[kind]
    return Column(path, "vector" if shape else kind, dtype, shape)


def table(id, path, columns, *, rows=10, record="m.Edge", **more):
    return TableSchema(id, path, more.pop("container", "list"), record, columns, num_rows=rows, **more)


def tree(*tables, root=None):
    fields = {t.path[0]: TableRef(t.id) for t in tables if t.path} | (root or {})
    return PickleTree(Instance("m.Graph", fields) if fields else TableRef(0), list(tables), 4, 100)


def names(mapping, *roles):
    return {role: getattr(mapping, role).name for role in roles if getattr(mapping, role) is not None}


def ranges(limits):
    def range_of(records, ref):
        low, high = limits.get(next(iter(records.column(ref).path), None), (0, 9))
        return ColumnRange(low, high)

    return range_of


NODES = table(0, ("nodes",), [column((), "bits", (6,))], rows=5, record="value")
EDGE_ROLES = ("source", "next_node", "joint_action", "probability", "reward", "done")


@pytest.mark.parametrize(
    "fields",
    [
        "src joint_action dst prob reward done",
        "s a s_next p r terminal",
        "state action next_state probability rewards is_terminal",
        "u actions v prob r dones",
        "from action to p reward done",
        "_src jointAction nextState Prob Reward isTerminal",
        "source action target probability reward done",
    ],
)
def test_names_of_the_table(fields):
    f = fields.split()
    columns = [column(f[0]), column(f[1], "ints", (3,)), column(f[2])]
    columns += [column(f[3], "float"), column(f[4], "floats", (3,)), column(f[5], "bool")]
    roles = ("source", "joint_action", "next_node", "probability", "reward", "done")
    for order in (columns, columns[::-1]):
        found = map_graph(tree(NODES, table(1, ("edges",), order)))
        assert names(found, *EDGE_ROLES) == dict(zip(roles, f, strict=True))
        assert found.nodes.records.schema is NODES
        assert found.num_agents == 3
        assert any(f[0] in line for line in found.describe())


def test_agents_in_dicts_are_put_into_one_order():
    columns = [column("src"), column("dst")]
    columns += [column(("action", 2)), column(("action", 0)), column(("action", 1))]
    columns += [column(("reward", k), "float") for k in (1, 2, 0)]
    found = map_graph(tree(NODES, table(1, ("edges",), columns)))
    assert found.agents == ("0", "1", "2")  # integers ascending
    assert found.joint_action.keys == (0, 1, 2)
    assert found.reward.keys == (0, 1, 2)
    assert [ref.column for ref in found.joint_action.columns] == [3, 4, 2]
    named = [column("src"), column("dst"), column(("action", "fox")), column(("action", "ant"))]
    named += [column(("reward", "ant"), "float"), column(("reward", "fox"), "float")]
    found = map_graph(tree(NODES, table(1, ("edges",), named)))
    assert found.agents == ("fox", "ant")  # names in the order of the record
    assert found.reward.keys == ("fox", "ant")
    other = [*named[:4], column(("reward", "fox"), "float"), column(("reward", "cow"), "float")]
    with pytest.raises(BadDataError, match=r"fox, cow.*fox, ant"):
        map_graph(tree(NODES, table(1, ("edges",), other)))


THREE = ("int", "int", "int")
POSITIONS = {
    "ids, action tuple": (
        ("int", ("ints", 3), "int", "float", ("floats", 3), "bool"),
        {3: (0.1, 1)},
        "0 2 1 3 4 5",
    ),
    "class action in the middle": ((*THREE, "float", "float"), {1: (0, 4), 3: (0, 1)}, "0 2 1 3 4 -"),
    "class action last": (THREE, {2: (0, 4)}, "0 1 2 - - -"),
    "action first": (THREE, {0: (0, 1)}, "1 2 0 - - -"),
    "states and an action tuple": (
        (("bits", 8), ("ints", 2), ("bits", 8), "float"),
        {3: (0.1, 1)},
        "0 2 1 3 - -",
    ),
    "states like actions": (
        (("ints", 3), ("ints", 3), ("ints", 3)),
        {0: (0, 40), 1: (0, 4), 2: (0, 43)},
        "0 2 1 - - -",
    ),
    "a reward beyond 1": (("int", ("ints", 2), "int", "float"), {3: (-1, 5)}, "0 2 1 - 3 -"),
}


def positional(kinds):
    shapes = [(kind, ()) if isinstance(kind, str) else (kind[0], (kind[1],)) for kind in kinds]
    columns = [column(i, kind, shape) for i, (kind, shape) in enumerate(shapes)]
    return table(1, ("edges",), columns, record="tuple", positional=True)


@pytest.mark.parametrize("name", POSITIONS)
def test_records_without_names(name):
    kinds, limits, expected = POSITIONS[name]
    found = map_graph(tree(NODES, positional(kinds)), ranges(limits))
    wanted = {r: p for r, p in zip(EDGE_ROLES, expected.split(), strict=True) if p != "-"}
    assert names(found, *EDGE_ROLES) == wanted


def test_positions_that_cannot_be_told_are_asked_for():
    edges = positional(("int", ("ints", 2), "int", "int", "float"))
    seen = ranges({3: (0, 1), 4: (0, 1)})
    with pytest.raises(BadDataError, match="source=POSITION"):
        map_graph(tree(NODES, positional(("int", "int", "int", "int"))), seen)
    found = map_graph(tree(NODES, edges), seen, overrides={"source": "0", "next_node": "2"})
    assert names(found, *EDGE_ROLES) == {
        "source": "0",
        "next_node": "2",
        "joint_action": "1",
        "done": "3",
        "probability": "4",
    }


def test_bare_tuples_of_numbers_are_taken_apart():
    edges = table(0, (), [column((), "floats", (5,))], record="value")
    seen = [ColumnRange(0, 9), ColumnRange(0, 3), ColumnRange(0, 9), ColumnRange(0.1, 1, True, False)]
    seen.append(ColumnRange(-0.5, 7, True, False))
    found = map_graph(tree(edges), lambda records, ref: seen[ref.start])
    roles = {role: getattr(found, role).columns[0].start for role in EDGE_ROLES[:5]}
    assert roles == {"source": 0, "next_node": 2, "joint_action": 1, "probability": 3, "reward": 4}


def test_an_adjacency_gives_source_and_action_by_its_keys():
    keys = [column((KEY,)), column((KEY2,), "ints", (2,)), column("@first"), column("@count")]
    link = table(0, ("graph",), keys, links_to=1)
    columns = [column(0, "float"), column(1), column(2, "float"), column(3, "bool")]
    records = table(1, ("graph",), columns, record="tuple", container="adjacency", positional=True)
    found = map_graph(tree(link, records), ranges({0: (0.1, 1), 2: (-3, 5)}))
    assert found.source.columns[0].link
    assert found.joint_action.columns[0].link
    wanted = {"next_node": "1", "probability": "0", "reward": "2", "done": "3"}
    assert names(found, *wanted) == wanted
    assert found.nodes is None


def test_records_that_repeat_their_keys_are_not_guessed():
    """The source stands in the key and in the record: it must not be taken for the next node."""
    keys = [column((KEY,)), column((KEY2,), "ints", (2,)), column("@first"), column("@count")]
    link = table(0, ("graph",), keys, links_to=1)
    columns = [column(0), column(1, "ints", (2,)), column(2), column(3, "float")]
    records = table(1, ("graph",), columns, record="tuple", container="adjacency", positional=True)
    with pytest.raises(BadDataError, match="can't be told which field is the next node"):
        map_graph(tree(link, records), ranges({3: (0.1, 1)}))
    found = map_graph(tree(link, records), ranges({3: (0.1, 1)}), overrides={"next_node": "2"})
    assert names(found, "next_node", "probability") == {"next_node": "2", "probability": "3"}
    # a flag or a cost below zero can't be taken for a node
    found = map_graph(tree(link, records), ranges({0: (0, 1), 2: (0, 7), 3: (0.1, 1)}))
    assert names(found, "next_node") == {"next_node": "2"}
    found = map_graph(tree(link, records), ranges({0: (-7, 9), 2: (0, 7), 3: (0.1, 1)}))
    assert names(found, "next_node") == {"next_node": "2"}
    # one key: source and next node by their width, the joint action besides them
    link = table(0, ("graph",), [column((KEY,), "ints", (3,)), *keys[2:]], links_to=1)
    columns = [column(0, "ints", (3,)), column(1, "ints", (2,)), column(2, "ints", (3,))]
    records = table(1, ("graph",), columns, record="tuple", container="adjacency", positional=True)
    with pytest.raises(BadDataError, match="can't be told which field is the next node"):
        map_graph(tree(link, records), ranges({0: (0, 8), 2: (0, 9)}))


def test_no_other_records_are_taken_for_edges_that_were_refused():
    """Three numbers of a state look like (source, joint action, next node)."""
    nodes = table(0, ("states",), [column((), "bits", (3,))], rows=5, record="value")
    edges = table(1, ("edges",), [column((), "floats", (6,))], record="value", rows=20)
    with pytest.raises(BadDataError, match="records of edges have no field names"):
        map_graph(tree(nodes, edges), ranges({None: (-1.5, 9)}))


def test_positions_in_the_graph_are_not_those_of_a_replay_with_names():
    columns = [
        column("obs", "bits", (6,)),
        column("act", "ints", (2,)),
        column("reward"),
        column("next_obs", "bits", (6,)),
    ]
    replay = table(0, ("buffer",), columns, record="m.Transition")
    overrides = {"joint_action": "5", "reward": "2", "done": "1"}
    found = map_replay(tree(replay), overrides=overrides)
    assert names(found, "joint_action", "reward", "done") == {"joint_action": "act", "reward": "reward"}
    found = map_replay(tree(replay), overrides=overrides | {"replay_reward": "2"})
    assert names(found, "reward") == {"reward": "reward"}
    with pytest.raises(UsageError, match="--map done=over"):
        map_replay(tree(replay), overrides={"done": "over"})


def test_several_lists_alike_are_not_taken_for_the_longest():
    """Episodes, or the edges of one node each: the others must not be dropped in silence."""
    columns = [column("obs", "bits", (6,)), column("act", "ints", (2,)), column("next_obs", "bits", (6,))]

    def lists(*paths):
        return [table(i, path, columns, record="dict", rows=5 + i) for i, path in enumerate(paths)]

    for paths in ([(0,), (1,)], [("transitions", 0), ("transitions", 1)], [("train",), ("test",)]):
        with pytest.raises(
            BadDataError, match=r"2 containers hold records alike.*\(5\).*\(6\)\n.*--map transitions"
        ):
            map_replay(tree(*lists(*paths)))
    assert map_replay(tree(*lists(("transitions",), ("test",)))).records.name == "transitions"
    found = map_replay(tree(*lists(("train",), ("test",))), overrides={"transitions": "train"})
    assert found.records.name == "train"
    edge = [column("src"), column("dst"), column("a", "ints", (2,))]
    with pytest.raises(BadDataError, match=r"3 containers hold records alike.*\n.*--map edges"):
        map_graph(tree(*(table(i, (i,), edge) for i in range(3))))


def test_overrides_and_kept_fields():
    columns = [column("a1"), column("b1"), column("act", "ints", (2,)), column("w", "float")]
    edges = table(1, ("stuff",), [*columns, column("n"), column("k")])
    with pytest.raises(BadDataError, match="--map source=NAME"):
        map_graph(tree(NODES, edges))
    found = map_graph(
        tree(NODES, edges),
        ranges({"k": (4, 4)}),
        overrides={"edges": "stuff", "source": "a1", "next_node": "b1", "probability": "w"},
        keep=["n"],
    )
    wanted = {"source": "a1", "next_node": "b1", "probability": "w"}
    assert names(found, *wanted) == wanted
    assert [name for name, _ in found.kept] == ["n"]
    assert [(d.name, d.reason) for d in found.dropped] == [("k", "always 4")]
    with pytest.raises(UsageError, match="zzz"):
        map_graph(tree(NODES, edges), overrides={"source": "zzz"})


def test_what_is_not_stored_is_said():
    columns = [column("src"), column("dst"), column("action", "ints", (2,)), column("visits")]
    edges = table(1, ("edges",), columns, ignored=[Ignored(("info",), "None in every record")])
    found = map_graph(tree(NODES, edges), ranges({}))
    assert {d.name: d.reason for d in found.dropped} == {
        "visits": "not asked for (--keep visits stores it)",
        "info": "None in every record",
    }


ITEM = {"record": "item", "container": "dict"}
NODE_SHAPES = {
    "list": ([column((), "bits", (6,))], {"record": "value"}, None),
    "state to id": ([column((KEY,), "bits", (6,)), column((VALUE,))], ITEM, "(value)"),
    "id to state": ([column((KEY,)), column((VALUE,), "bits", (6,))], ITEM, "(key)"),
    "records": ([column("id"), column("state", "bits", (6,)), column("value", "float")], {}, "id"),
    "id to record": (
        [column((KEY,)), column((VALUE, "state"), "bits", (6,)), column((VALUE, "h"), "float")],
        ITEM,
        "(key)",
    ),
}


@pytest.mark.parametrize("name", NODE_SHAPES)
def test_nodes_in_every_shape(name):
    columns, more, node_id = NODE_SHAPES[name]
    nodes = table(0, ("states",), columns, rows=5, **more)
    edges = table(1, ("edges",), [column("src"), column("dst"), column("a", "ints", (2,))])
    found = map_graph(tree(nodes, edges)).nodes
    assert found.state.width == 6
    assert (found.id.name if found.id else None) == node_id


def test_nodes_in_an_array():
    edges = table(0, ("edges",), [column("src"), column("dst"), column("a", "ints", (2,))])
    found = map_graph(tree(edges, root={"states": ArrayRef(BYTE, (5, 6), False, 100)})).nodes
    assert (found.state.width, found.id, found.records.num_rows) == (6, None, 5)


def replay_columns(*, agents=()):
    def each(name, kind, shape=()):
        return [column((name, a), kind, shape) for a in agents] if agents else [column(name, kind, shape)]

    return [
        *each("obs", "bits", (6,)),
        *(each("actions", "int") if agents else [column("actions", "ints", (2,))]),
        *(each("rewards", "float") if agents else [column("rewards", "floats", (2,))]),
        *each("next_obs", "bits", (6,)),
        column("done", "bool"),
    ]


def test_a_replay_of_dicts_and_its_focal_agent():
    transitions = table(0, (), replay_columns(agents=("cat", "mouse")))
    found = map_replay(tree(transitions))
    assert [name for name, _ in found.observations] == ["cat", "mouse"]
    assert found.focal == 0
    assert found.agents == ("cat", "mouse")
    for focal in ("mouse", "1"):
        assert map_replay(tree(transitions), focal=focal).focal == 1
    with pytest.raises(UsageError, match="cat, mouse"):
        map_replay(tree(transitions), focal="dog")


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({}, (0, 10)),
        ({"position": 3}, (3, 10)),
        ({"pos": 10}, (0, 10)),
        ({"ptr": 4, "size": 10}, (4, 10)),
        ({"capacity": 10, "write_pos": 0}, (0, 10)),
    ],
)
def test_a_ring_begins_at_its_oldest(beside, expected):
    transitions = table(0, ("buffer",), replay_columns())
    found = map_replay(tree(transitions, root=beside))
    assert (found.first, found.count) == expected


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ({}, (0, 10)),
        ({"size": 6, "ptr": 6}, (0, 6)),
        ({"ptr": 3, "full": False}, (0, 3)),
        ({"ptr": 3, "full": True}, (3, 10)),
    ],
)
def test_preallocated_columns_may_be_filled_in_part(beside, expected):
    arrays = {
        "obs": ArrayRef(BYTE, (10, 6), False, 0),
        "next_obs": ArrayRef(BYTE, (10, 6), False, 60),
        "actions": ArrayRef(INT, (10, 2), False, 120),
        "rewards": ArrayRef(FLOAT, (10, 2), False, 280),
        "dones": ArrayRef(np.dtype(bool), (10,), False, 440),
    }
    found = map_replay(PickleTree(arrays | beside, [], 4, 1000))
    assert (found.first, found.count) == expected
    assert found.done.dtype == np.uint8


def test_nothing_like_a_graph():
    with pytest.raises(BadDataError, match="nothing like edges"):
        map_graph(PickleTree({"a": 1}, [], 4, 10))
    with pytest.raises(BadDataError, match="nodes"):
        map_graph(tree(NODES))
