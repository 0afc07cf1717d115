"""What isn't a graph or a replay is refused: which record, which field, what was expected; and nothing is
left behind."""

import os
import pickle
import threading
import time

import numpy as np
import pytest

import omstore
from omstore.convert import ConvertOptions, convert, nodes, pipeline, replay, sources
from omstore.errors import BadDataError, DiskFullError, ExportNotFoundError, LegacyError, UsageError


def good_graph():
    states = [(i, 5 - i) for i in range(4)]
    edges = []
    for s in range(4):
        for a in ((0, 0), (0, 1), (1, 0), (1, 1)):
            for k in (1, 2):
                edges.append(
                    {
                        "src": s,
                        "action": a,
                        "dst": (s + k) % 4,
                        "prob": 0.5,
                        "reward": (1.0, -1.0),
                        "done": k == 1,
                    }
                )
    return {"nodes": states, "edges": edges}


def good_replay():
    return [
        {
            "obs": np.array([i % 4, 5 - i % 4]),
            "action": (1, i % 2),
            "reward": (0.0, float(i)),
            "next_obs": np.array([(i + 1) % 4, 5 - (i + 1) % 4]),
            "done": False,
        }
        for i in range(12)
    ]


def write(folder, graph=None, replay=None):
    (folder / "wm").mkdir(parents=True, exist_ok=True)
    for name, root in (("env_transition_graph.pkl", graph), ("D.pkl", replay)):
        if root is not None:
            (folder / "wm" / name).write_bytes(pickle.dumps(root))
    return folder


def left(folder):
    """What a store's folder holds besides the lock."""
    store = folder / "store"
    return sorted(p.name for p in store.iterdir() if p.name != "LOCK") if store.exists() else []


def refused(folder, *parts, options=None, kind=BadDataError):
    with pytest.raises(kind) as caught:
        convert(folder, options)
    text = str(caught.value)
    for part in parts:
        assert part in text, text
    assert left(folder) == []
    return caught.value


def test_the_good_ones_are_converted(tmp_path):
    report = convert(write(tmp_path, good_graph(), good_replay()))
    assert (report.num_nodes, report.num_edges, report.num_transitions, report.off_graph) == (4, 32, 12, 0)
    assert report.to_dict()["off_graph_share"] == 0


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda g: g["edges"][7].update(prob=0.4), ["record 6", "sum to 0.9", "1 (within 1e-6)"]),
        (lambda g: g["edges"][7].update(prob=-0.5), ["record 7", "probability", "-0.5", "0 to 1"]),
        (lambda g: g["edges"][7].update(prob=1.5), ["record 7", "1.5"]),
        (lambda g: g["edges"][7].update(prob=float("nan")), ["record 7", "nan"]),
        (lambda g: g["edges"][9].update(dst=4), ["record 9", "next node", "dst", "4", "0 to 3"]),
        (lambda g: g["edges"][9].update(src=-1), ["record 9", "source", "-1"]),
        (lambda g: g["edges"][3].update(action=(0, -1)), ["record 3", "joint action", "-1"]),
        (
            lambda g: g["edges"][5].update(reward=(float("nan"), 0.0)),
            ["record 5", "reward", "--allow-nonfinite"],
        ),
        (lambda g: g["edges"][5].update(reward=(float("inf"), 0.0)), ["record 5", "inf"]),
        (lambda g: g["nodes"].__setitem__(3, (1, 4)), ["records 1 and 3", "same state"]),
        (lambda g: g["nodes"].__setitem__(2, (-1, 4)), ["record 2", "component 0 is -1"]),
        (lambda g: g["nodes"].__setitem__(2, (0.5, 4)), ["record 2", "component 0 is 0.5"]),
        (lambda g: [e.pop("dst") for e in g["edges"]], ["next_node", "--map next_node=NAME"]),
        (
            lambda g: [e.update(reward=(1.0, 2.0, 3.0)) for e in g["edges"]],
            ["reward", "3 numbers", "2 agents"],
        ),
    ],
)
def test_a_graph_that_is_off(tmp_path, change, parts):
    graph = good_graph()
    change(graph)
    refused(write(tmp_path, graph), *parts)


def test_duplicate_ids_and_states_in_dicts(tmp_path):
    graph = good_graph()
    graph["nodes"] = {10 * i: (7, 7) for i in range(4)}
    for edge in graph["edges"]:
        edge["src"], edge["dst"] = 10 * edge["src"], 10 * edge["dst"]
    refused(write(tmp_path, graph), "same state")
    graph["nodes"] = {(i, i): 0 for i in range(4)}
    refused(write(tmp_path, graph), "two nodes have the id 0", "--map node_id")


def test_nonfinite_rewards_are_taken_when_asked_for(tmp_path):
    graph = good_graph()
    graph["edges"][5]["reward"] = (float("nan"), float("-inf"))
    convert(write(tmp_path, graph), ConvertOptions(allow_nonfinite=True))
    with omstore.open(tmp_path) as store:
        reward = store.graph.successors([0], [2]).reward
    assert np.isnan(reward[:, 0]).sum() == 1
    assert np.isneginf(reward[:, 1]).sum() == 1


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (
            lambda r: [t.update(obs=np.zeros(3, int), next_obs=np.zeros(3, int)) for t in r],
            ["3 components", "have 2"],
        ),
        (lambda r: [t.update(action=(0, 1, 1)) for t in r], ["2 agents", "3"]),
        (lambda r: r[4].update(action=(0, -2)), ["record 4", "-2"]),
        (lambda r: r[4].update(reward=(0.0, float("nan"))), ["record 4", "reward"]),
        (lambda r: [t.pop("next_obs") for t in r], ["next_observation", "--map"]),
    ],
)
def test_a_replay_that_is_off(tmp_path, change, parts):
    transitions = good_replay()
    change(transitions)
    refused(write(tmp_path, good_graph(), transitions), *parts)


def test_agents_must_agree(tmp_path):
    graph, transitions = good_graph(), good_replay()
    for edge in graph["edges"]:
        edge["action"] = dict(zip(("cat", "mouse"), edge["action"], strict=True))
        edge["reward"] = dict(zip(("cat", "mouse"), edge["reward"], strict=True))
    for t in transitions:
        t["action"] = dict(zip(("cat", "dog"), t["action"], strict=True))
        t["reward"] = dict(zip(("cat", "dog"), t["reward"], strict=True))
    refused(write(tmp_path, graph, transitions), "cat, mouse", "cat, dog")


def test_empty_and_missing(tmp_path):
    with pytest.raises(ExportNotFoundError, match="no folder"):
        convert(tmp_path / "nowhere")
    with pytest.raises(ExportNotFoundError, match="env_transition_graph"):
        convert(tmp_path)
    refused(write(tmp_path, {"nodes": [], "edges": []}), kind=LegacyError)


def test_options_that_name_nothing(tmp_path):
    folder = write(tmp_path, good_graph(), good_replay())
    for options in (
        {"map": {"probability": "nope"}},
        {"map": {"edges": "nope"}},
        {"actions": (2, 2, 2)},
        {"map": {"ring_position": "nope"}},
        {"keep": ("nope",)},
        {"keep": ("reward",)},
    ):
        refused(folder, options=ConvertOptions(**options), kind=UsageError)
    for bad in ({"rows": "zip"}, {"map": {"x": "y"}}, {"max_ram": 1}, {"actions": (0,)}):
        with pytest.raises(UsageError):
            ConvertOptions(**bad)


def test_more_rows_than_the_disk_holds_are_refused_at_once(tmp_path):
    refused(
        write(tmp_path, good_graph()),
        "joint actions",
        options=ConvertOptions(actions=(2**25, 2**25)),
        kind=DiskFullError,
    )


def test_transitions_off_the_graph_are_counted_and_kept(tmp_path):
    transitions = good_replay()
    transitions[3]["obs"] = np.array([300, 2])  # wider than any component in the graph
    transitions[5]["next_obs"] = np.array([0, 0])
    report = convert(write(tmp_path, good_graph(), transitions))
    assert report.off_graph == 2
    assert any("2 of 12" in note for note in report.notes)
    with omstore.open(tmp_path) as store:
        assert store.replay.nodes[3] == -1
        assert store.replay.next_nodes[5] == -1
        assert store.replay.states()[3].tolist() == [300, 2]
        assert (store.replay.nodes == -1).sum() == 1


def test_a_dry_run_publishes_nothing_and_tells_the_size(tmp_path):
    folder = write(tmp_path, good_graph(), good_replay())
    before = sorted(p.name for p in folder.rglob("*"))
    dry = convert(folder, ConvertOptions(dry_run=True))
    assert sorted(p.name for p in folder.rglob("*")) == before
    real = convert(folder)
    assert dry.version is None
    assert real.version == "v000001"
    assert dry.store_bytes == real.store_bytes > 0


@pytest.mark.parametrize("where", ["read", "nodes", "edges", "replay"])
def test_an_interruption_leaves_nothing(tmp_path, monkeypatch, where):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    module, name = {
        "read": (pipeline, "map_export"),
        "nodes": (nodes, "build_index"),
        "edges": (pipeline, "build_edges"),
        "replay": (replay, "check_finite"),
    }[where]
    monkeypatch.setattr(module, name, interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(write(tmp_path, good_graph(), good_replay()))
    assert left(tmp_path) == []


def test_both_readers_stop_when_interrupted(tmp_path, monkeypatch):
    stopped = []

    def endless(path, sink, *, cancel, **kwargs):
        assert cancel.wait(20)
        stopped.append(path.name)
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "read_pickle", endless)
    folder = write(tmp_path, good_graph(), good_replay())
    threading.Timer(0.3, lambda: os.kill(os.getpid(), 2)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        convert(folder)
    assert time.monotonic() - begin < 10
    assert sorted(stopped) == ["D.pkl", "env_transition_graph.pkl"]
    assert not [t for t in threading.enumerate() if t.name.startswith("omstore-read")]
    assert left(tmp_path) == []


def test_an_error_in_one_reader_stops_the_other(tmp_path, monkeypatch):
    def read(path, sink, *, cancel, **kwargs):
        if path.name == "D.pkl":
            raise BadDataError("odd")
        assert cancel.wait(20)
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "read_pickle", read)
    refused(write(tmp_path, good_graph(), good_replay()), "odd")


def test_an_adjacency_with_lists_of_its_records_beside_it_is_refused(tmp_path):
    """So many records that the heap is full before the dict is complete; then a list of its values is like any other."""
    records = 4_000
    edges = [
        {"joint_action": 0, "next_node": (i + 1) % records, "weights": [float(i)] * 250}
        for i in range(records)
    ]
    graph = {"graph": {i: [edge] for i, edge in enumerate(edges)}, "some": [dict(edge) for edge in edges[:5]]}
    folder = write(tmp_path, graph)
    refused(folder, "graph", "other lists of such records", "without them")
