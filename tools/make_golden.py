"""Write the golden stores: ``python tools/make_golden.py`` fills ``tests/golden/<schema version>/``.

Each example is a small export with its legacy pickles, the store of it in each row encoding as the omstore
of the day publishes it, and ``truth.npz``: what must be read from it, worked out here from the values that
were pickled and never read back from the store. They are committed, and stay when the schema moves on: a
newer omstore must give the same answers.

Run it once for a new schema version. An example that is there already is left alone.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numcodecs
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # when run as a script

from omstore.convert import ConvertOptions, attributes, convert
from omstore.format.manifest import SCHEMA_VERSION

__all__ = ["EXAMPLES", "GOLDEN", "few_outcomes", "publish"]

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden"
MODULE = "golden_legacy"
Edge = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Example:
    """What is pickled, how it is converted, and what must be read.

    Attributes
    ----------
    pickles : dict of str to object
        File name in ``wm/`` -> what it holds.
    options : dict
        Of `ConvertOptions`, without the row encoding.
    encodings : tuple of str
    max_outcomes : int
        Distinct outcomes beyond which attributes go to the edges: 65,536, or less to have it happen in a
        small store.
    truth : dict of str to array
        What must be read; see the functions that make it.
    levels : dict of str to str
        Where each attribute must be stored.
    """

    pickles: dict[str, Any]
    options: dict[str, Any]
    encodings: tuple[str, ...]
    max_outcomes: int
    truth: dict[str, NDArray[Any]]
    levels: dict[str, str]


@contextmanager
def few_outcomes(limit: int) -> Iterator[None]:
    """Have attributes go to the edges beyond `limit` distinct outcomes instead of 65,536."""
    before = attributes.MAX_OUTCOMES
    attributes.MAX_OUTCOMES = limit
    try:
        yield
    finally:
        attributes.MAX_OUTCOMES = before


def publish(export: Path, options: dict[str, Any], encoding: str, max_outcomes: int) -> Path:
    """Convert an export, and return the folder of its store."""
    with few_outcomes(max_outcomes):
        convert(export, ConvertOptions(**options, rows=encoding))
    return export / "store"


@contextmanager
def _classes(**fields: str) -> Iterator[Callable[..., Any]]:
    """Dataclasses in a module that is gone afterwards, as the exporters' classes are: names of fields."""
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    made = {name: dataclasses.make_dataclass(name, names.split()) for name, names in fields.items()}
    for name, cls in made.items():
        cls.__module__ = MODULE
        setattr(module, name, cls)
    try:
        yield lambda name, *values: made[name](*values)
    finally:
        del sys.modules[MODULE]


def _graph_truth(
    states: Sequence[tuple[int, ...]], ids: list[int], edges: list[Edge]
) -> dict[str, NDArray[Any]]:
    """What must be read of a graph: nodes sorted by state, edges by node, joint action, next node.

    `ids` are the legacy ids of `states`; an edge's ``src`` and ``dst`` are such, its ``joint`` is the joint
    action's number.
    """
    order = sorted(range(len(states)), key=lambda i: states[i])
    node = {ids[i]: rank for rank, i in enumerate(order)}
    names = [name for name in edges[0] if name not in ("src", "dst", "joint", "action")]
    rows = sorted(
        (node[edge["src"]], edge["joint"], node[edge["dst"]], *(_plain(edge[name]) for name in names))
        for edge in edges
    )
    columns = dict(zip(["node", "joint_action", "next_node", *names], zip(*rows, strict=True), strict=True))
    return {
        "states": np.array([states[i] for i in order]),
        "legacy_ids": np.array([ids[i] for i in order]),
        **{f"edges/{name}": np.array(column) for name, column in columns.items()},
    }


def _plain(value: Any) -> Any:
    """Lists for arrays, so that edges can be sorted."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def _replay_truth(
    transitions: list[dict[str, Any]], node: dict[tuple[int, ...], int]
) -> dict[str, NDArray[Any]]:
    """What must be read of a replay, oldest transition first; `node` numbers the states of the graph."""
    truth = {f"replay/{name}": np.array([t[name] for t in transitions]) for name in transitions[0]}
    for name, states in (("node", "state"), ("next_node", "next_state")):
        truth[f"replay/{name}"] = np.array([node.get(tuple(t[states]), -1) for t in transitions])
    return truth


def _bits() -> Example:
    """States of bits, dataclass edges with dicts per agent, illegal rows, every level but the edge; a ring
    with observations of the other agent that differ, states off the graph and a kept field.
    """
    rng = np.random.default_rng(1)
    agents, num_nodes, width = ("cat", "mouse"), 24, 11
    states = [
        tuple(int(b) for b in f"{code:0{width}b}") for code in rng.permutation(2**width)[:num_nodes].tolist()
    ]
    ids = (7 + 3 * rng.permutation(num_nodes)).tolist()
    edges: list[Edge] = []
    for s in range(num_nodes):
        for joint in range(6):
            if (s + joint) % 5 == 0:
                continue  # illegal
            targets = sorted(rng.choice(num_nodes, int(rng.choice([1, 2, 4, 8, 16])), replace=False).tolist())
            for t in targets:
                edges.append(
                    {
                        "src": ids[s],
                        "dst": ids[t],
                        "joint": joint,
                        "action": dict(zip(agents, divmod(joint, 2), strict=True)),
                        "probability": 1.0 / len(targets),
                        "reward": [[-0.0, 1.5, 1e-300][(s + t) % 3], -1.0],
                        "done": t % 4 == 0,
                        "build": 42,
                        "danger": [t / 8, -t / 8],
                        "region": s // 3,
                        "cost": [s, 10 * joint],
                        "visits": int(rng.integers(9)),
                    }
                )
    edges = [edges[i] for i in rng.permutation(len(edges))]
    keep = ("build", "danger", "region", "cost", "visits")
    transitions: list[dict[str, Any]] = []
    for t in range(70):
        at, to = int(rng.integers(num_nodes)), int(rng.integers(num_nodes))
        state, next_state = list(states[at]), list(states[to])
        if t % 9 == 4:  # not in the graph
            state = next(
                v for v in iter(lambda: rng.integers(0, 2, width).tolist(), None) if tuple(v) not in states
            )
        transitions.append(
            {
                "state": state,
                "next_state": next_state,
                "joint_action": int(rng.integers(6)),
                "reward": [float(rng.normal()), float(t)],
                "done": t % 7 == 0,
                "observations/mouse": [3 * bit for bit in reversed(state)],
                "next_observations/mouse": [3 * bit for bit in reversed(next_state)],
                "weight": float(rng.random()),
            }
        )
    with _classes(
        Edge="src joint_action dst prob reward done " + " ".join(keep) + " info",
        Graph="nodes edges",
        Transition="obs action reward next_obs done weight",
        Ring="data position size",
    ) as make:
        nodes = {i: np.array(state, np.uint8) for i, state in zip(ids, states, strict=True)}
        records = [
            make(
                "Edge", e["src"], e["action"], e["dst"], e["probability"],
                dict(zip(agents, e["reward"], strict=True)), e["done"],
                *(bytes(e[name]) if name == "cost" else e[name] for name in keep), None,
            )
            for e in edges
        ]  # fmt: skip
        replay = [
            make(
                "Transition",
                {"cat": np.array(t["state"], np.uint8), "mouse": np.array(t["observations/mouse"], np.uint8)},
                dict(zip(agents, divmod(t["joint_action"], 2), strict=True)),
                dict(zip(agents, t["reward"], strict=True)),
                {
                    "cat": np.array(t["next_state"], np.uint8),
                    "mouse": np.array(t["next_observations/mouse"], np.uint8),
                },
                t["done"], t["weight"],
            )
            for t in transitions
        ]  # fmt: skip
        ring = make("Ring", replay[-20:] + replay[:-20], 20, len(replay))  # the oldest stands at 20
        pickles = {
            "env_transition_graph.pkl": pickle.dumps(make("Graph", nodes, records), 4),
            "D.pkl": pickle.dumps(ring, 4),
        }
    graph = _graph_truth(states, ids, edges)
    node = {tuple(state): rank for rank, state in enumerate(graph["states"].tolist())}
    levels = {"probability": "outcome", "reward": "outcome", "done": "next_node", "build": "graph"}
    levels |= {"danger": "next_node", "region": "node", "cost": "row", "visits": "outcome"}
    truth = graph | _replay_truth(transitions, node)
    encodings = ("csr", "csr-compressed", "dictionary")
    return Example(pickles, {"keep": (*keep, "weight")}, encodings, 1 << 16, truth, levels)


def _integers() -> Example:
    """States of 16-bit components as tuples, a bare list of edges, more distinct rewards than codes."""
    rng = np.random.default_rng(2)
    states = [(int(x), int(y)) for x, y in rng.integers(0, 1000, (30, 2))]
    edges: list[Edge] = [
        {
            "src": s,
            "dst": (s + k * (1 + joint)) % len(states),
            "joint": joint,
            "action": divmod(joint, 2),
            "probability": [0.25, 0.75][k],
            "reward": rng.normal(size=2).tolist(),
            "done": False,
        }
        for s in range(len(states))
        for joint in range(4)
        for k in range(2)
    ]
    records = [
        {
            "s": states[e["src"]],
            "a": e["action"],
            "s_next": states[e["dst"]],
            "p": e["probability"],
            "r": tuple(e["reward"]),
        }
        for e in edges
    ]
    transitions: list[dict[str, Any]] = [
        {
            "state": list(states[i % 30]),
            "next_state": [60_000 if i == 3 else 5, 6] if i % 10 == 3 else list(states[(i * 7) % 30]),
            "joint_action": i % 4,
            "reward": [0.5 * i, -i],
            "done": i % 5 == 4,
        }
        for i in range(40)
    ]
    replay = [
        {"s": tuple(t["state"]), "a": divmod(t["joint_action"], 2), "r": tuple(t["reward"]),
         "s_next": tuple(t["next_state"]), "done": t["done"]}
        for t in transitions
    ]  # fmt: skip
    graph = _graph_truth(states, list(range(len(states))), edges)
    node = {tuple(state): rank for rank, state in enumerate(graph["states"].tolist())}
    graph["legacy_ids"] = np.arange(
        len(states)
    )  # the nodes come from the edges' states: their ids are their ranks
    levels = {"probability": "outcome", "reward": "edge", "done": "graph"}
    pickles = {"env_transition_graph.pkl": pickle.dumps(records, 2), "D.pkl": pickle.dumps(replay, 5)}
    truth = graph | _replay_truth(transitions, node)
    return Example(pickles, {}, ("csr", "csr-compressed", "dictionary"), 64, truth, levels)


def _graph_only() -> Example:
    """No replay; 8-bit components, two levels of adjacency, one successor a row and one outcome: neither
    offsets nor codes.
    """
    states = [(i * i % 251, i, 0) for i in range(20)]
    edges: list[Edge] = []
    adjacency: dict[int, dict[tuple[int, int], list[Any]]] = {}
    for s in range(20):
        for joint in range(9):
            t = (s * 3 + joint) % 20
            edges.append(
                {
                    "src": s,
                    "dst": t,
                    "joint": joint,
                    "probability": 1.0,
                    "reward": [float(t), -float(t)],
                    "done": t == 0,
                }
            )
            adjacency.setdefault(s, {})[divmod(joint, 3)] = [
                {"next_state": t, "reward": (float(t), -float(t)), "done": t == 0}
            ]
    root = {"states": [np.array(state, np.int64) for state in states], "adjacency": adjacency}
    levels = {"probability": "graph", "reward": "next_node", "done": "next_node"}
    truth = _graph_truth(states, list(range(20)), edges)
    return Example(
        {"env_transition_graph.pkl": pickle.dumps(root, 4)},
        {},
        ("csr", "csr-compressed"),
        1 << 16,
        truth,
        levels,
    )


def _catch() -> Example:
    """Two agents on a path of seven cells with a wall, slipping, until one has caught the other: rows that factor
    but for the absorbing states', and a reward that those states have of their own.
    """
    cells, places = (0, 1, 2, 4, 5, 6), 7
    numbers = [(a, b) for a in cells for b in cells]
    states = [
        tuple(int(i == a) for i in range(places)) + tuple(int(i == b) for i in range(places))
        for a, b in numbers
    ]
    ids = [100 - i for i in range(len(states))]

    def outcomes(cell: int, action: int) -> dict[int, float]:
        """Stay, left, right; a move fails one time in four."""
        target = cell + (0, -1, 1)[action]
        if target not in cells:
            target = cell
        return {cell: 1.0} if target == cell else {target: 0.75, cell: 0.25}

    edges: list[Edge] = []
    for s, (a, b) in enumerate(numbers):
        for joint in range(9):
            first, second = divmod(joint, 3)
            product = {
                (x, y): p * q for x, p in outcomes(a, first).items() for y, q in outcomes(b, second).items()
            }
            for (x, y), p in ({(a, b): 1.0} if a == b else product).items():
                pay = 0.0 if a == b else 1.0 if x == y else -0.125
                edges.append(
                    {
                        "src": ids[s],
                        "dst": ids[numbers.index((x, y))],
                        "joint": joint,
                        "action": (first, second),
                        "probability": p,
                        "reward": [pay, -pay],
                        "done": x == y,
                    }
                )
    records = [
        (e["src"], e["action"], e["dst"], e["probability"], tuple(e["reward"]), e["done"]) for e in edges
    ]
    names = ("src", "action", "dst", "prob", "reward", "done")
    root = {
        "nodes": {i: np.array(state, np.uint8) for i, state in zip(ids, states, strict=True)},
        "edges": [dict(zip(names, record, strict=True)) for record in records],
    }
    truth = _graph_truth(states, ids, edges)
    levels = {"probability": "outcome", "reward": "next_node_unless_node", "done": "next_node"}
    pickles = {"env_transition_graph.pkl": pickle.dumps(root, 4)}
    return Example(pickles, {}, ("dictionary", "factored"), 1 << 16, truth, levels)


def _replay_only() -> Example:
    """No graph; a dict of column arrays, 32-bit components."""
    rng = np.random.default_rng(4)
    columns = {
        "observations": rng.integers(0, 100_000, (50, 4)),
        "next_observations": rng.integers(0, 100_000, (50, 4)),
        "actions": rng.integers(0, [3, 4, 5], (50, 3)),
        "rewards": rng.normal(size=(50, 3)),
        "dones": rng.random(50) < 0.2,
    }
    actions = columns["actions"]
    counts = actions.max(axis=0) + 1
    joint = (actions[:, 0] * counts[1] + actions[:, 1]) * counts[2] + actions[:, 2]
    truth = {
        "replay/state": columns["observations"],
        "replay/next_state": columns["next_observations"],
        "replay/joint_action": joint,
        "replay/reward": columns["rewards"],
        "replay/done": columns["dones"],
        "replay/node": np.full(50, -1),
        "replay/next_node": np.full(50, -1),
    }
    return Example({"D.pkl": pickle.dumps(columns, 4)}, {}, ("csr",), 1 << 16, truth, {})


EXAMPLES: dict[str, Callable[[], Example]] = {
    "bits": _bits,
    "integers": _integers,
    "graph-only": _graph_only,
    "catch": _catch,
    "replay-only": _replay_only,
}
"""Name -> what makes it."""


def write_example(folder: Path, example: Example) -> None:
    """Write an example's pickles, truth and stores into `folder`."""
    (folder / "wm").mkdir(parents=True)
    for name, data in example.pickles.items():
        (folder / "wm" / name).write_bytes(data)
    np.savez_compressed(folder / "truth.npz", **example.truth)  # type: ignore[arg-type]
    about = {
        "options": example.options,
        "encodings": example.encodings,
        "max_outcomes": example.max_outcomes,
        "levels": example.levels,
        "numcodecs": numcodecs.__version__,
    }
    (folder / "example.json").write_text(json.dumps(about, indent=1) + "\n")
    for encoding in example.encodings:
        store = publish(folder, example.options, encoding, example.max_outcomes)
        (store / "LOCK").unlink(missing_ok=True)
        shutil.move(store, folder / encoding)


@click.command()
def main() -> None:
    """Write the examples of this schema version that aren't there yet."""
    for name, make in EXAMPLES.items():
        folder = GOLDEN / str(SCHEMA_VERSION) / name
        if folder.exists():
            click.echo(f"{folder} is there", err=True)
        else:
            write_example(folder, make())
            click.echo(f"{folder} written", err=True)


if __name__ == "__main__":
    main()
