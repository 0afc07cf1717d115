"""Exports of random worlds in random shapes: pickled, converted, and read back edge by edge."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from omstore.convert import ConvertOptions, convert
from omstore.convert import edges as edges_module
from omstore.errors import BadDataError
from tests.endtoend.compare import check_store, digests
from tools.exports.records import edge_roles, transition_roles
from tools.exports.spec import CHOICES, ExportSpec
from tools.make_export import write_export
from tools.worlds.random_graph import LEVELS

POSITIONAL = ("tuple", "namedtuple", "frozen-slots")
"""Records whose fields have no names in the pickle."""


@pytest.fixture(scope="module", autouse=True)
def quick_disk() -> Iterator[None]:
    """Don't wait for the disk: that what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


def choose(name: str) -> st.SearchStrategy[str]:
    return st.sampled_from(CHOICES[name])


@st.composite
def specs(draw: st.DrawFn) -> ExportSpec:
    """Every shape that is a graph at all; see `ExportSpec` for what excludes what."""
    shape: dict[str, Any] = {name: draw(choose(name)) for name in CHOICES if name != "world"}
    shape |= {f"replay_{name}": draw(choose(name)) for name in ("record", "reward")}
    shape["replay_action"] = draw(choose("joint_action"))
    for name in ("done", "shuffle", "redundant_keys", "extra", "kept", "numpy_scalars", "share"):
        shape[name] = draw(st.booleans())
    shape |= {name: draw(st.booleans()) for name in ("duplicates", "egocentric", "suffix")}
    if shape["graph"] == "edge-list":
        shape["nodes"] = "absent"
    if shape["nodes"] == "absent" and shape["endpoints"] == "id":
        shape["endpoints"] = "tuple"
    if shape["ids"] == "sparse" and not (shape["nodes"].startswith("dict") or shape["nodes"] == "absent"):
        shape["ids"] = "shuffled"
    if shape["names"] == "arrows" and {shape["record"], shape["replay_record"]} - {"dict", "tuple"}:
        shape["names"] = "long"
    if shape["record"] in POSITIONAL:
        shape["kept"] = False
    transitions = draw(st.sampled_from([1, 2, 30, 100]))
    if shape["replay"] == "tuple":
        transitions = max(2, transitions)  # a tuple of one value isn't taken for records
    width = draw(st.integers(3, 20))
    num_nodes = draw(st.integers(1, min(40, 2**width - 1)))
    return ExportSpec(
        world="random",
        num_nodes=num_nodes,
        num_actions=draw(st.sampled_from([(3, 2), (2, 2, 2), (4, 1)])),
        width=width,
        reward_level=draw(st.sampled_from(LEVELS)),
        done_level=draw(st.sampled_from(LEVELS)),
        protocol=draw(st.integers(2, 5)),
        seed=draw(st.integers(0, 1000)),
        transitions=transitions,
        off_graph=draw(st.sampled_from([0, 0, 3])),
        **shape,
    )


def positions(spec: ExportSpec) -> dict[str, str]:
    """``--map`` for records without names; what it says of the graph's isn't to be taken for the replay's."""
    roles = {"src": "source", "action": "joint_action", "dst": "next_node", "prob": "probability"}
    replay_roles = {"obs": "observation", "next_obs": "next_observation"}
    replay_roles |= {"replay_action": "replay_joint_action", "done": "replay_done"}
    found: dict[str, str] = {}
    if spec.record in POSITIONAL:
        for position, role in enumerate(edge_roles(spec)):
            if role not in ("info", "kind", "visits"):
                found[roles.get(role, role)] = str(position)
    named = spec.in_replay("record") not in POSITIONAL or spec.replay == "columns"
    for position, role in enumerate(transition_roles(spec)):
        if role not in ("info", "kind"):
            found[replay_roles.get(role, role)] = spec.field_names[role] if named else str(position)
    return found


def converted(folder: Path, spec: ExportSpec, **options: Any) -> None:
    """Convert; records without names may need to be told apart by ``--map``, but are never mistaken."""
    keep = ("visits",) if spec.kept else ()
    asked = {"actions": spec.num_actions, "keep": keep, **options}
    try:
        convert(folder, ConvertOptions(**asked))
    except BadDataError as error:
        # Of two unnamed integers the larger is taken for the node: wrong where there are more actions than nodes.
        small = spec.record in POSITIONAL and spec.num_nodes <= math.prod(spec.num_actions)
        if "no field names" not in error.message and not (small and "is no node" in error.message):
            raise
        convert(folder, ConvertOptions(**asked, map=positions(spec)))


ROWS_TRIED_IN_SEVERAL_REGIONS = ExportSpec(
    world="random", seed=30, duplicates=True, done_level="edge", shuffle=True
)

ONE_NODE = ExportSpec(
    world="random",
    num_nodes=1,
    width=3,
    reward_level="graph",
    done_level="graph",
    record="frozen-slots",
    protocol=2,
    graph="adjacency",
    joint_action="class",
    reward="scalar",
    done=False,
    transitions=1,
    replay_record="dataclass",
    replay_action="tuple",
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(spec=specs())
@example(spec=ROWS_TRIED_IN_SEVERAL_REGIONS)
@example(spec=ONE_NODE)
def test_a_random_export_is_converted_exactly(
    tmp_path_factory: pytest.TempPathFactory, spec: ExportSpec
) -> None:
    folder = tmp_path_factory.mktemp("export")
    truth = write_export(folder, spec)
    for encoding in ("csr", "csr-compressed", "dictionary", "auto"):
        converted(folder, spec, rows=encoding)
        check_store(folder, truth, ids=spec.nodes != "absent", kept=spec.kept)
        expected = digests(folder)
        shutil.rmtree(folder / "store")
        with pytest.MonkeyPatch.context() as patch:
            make_budgets_tiny(patch)
            converted(folder, spec, rows=encoding, max_ram=64 << 20)
        assert digests(folder) == expected
    shutil.rmtree(folder)


def make_budgets_tiny(patch: pytest.MonkeyPatch) -> None:
    """Have a graph of a few hundred edges go through as many regions and runs as one that doesn't fit."""
    plan = edges_module.EdgePlan

    class TinyPlan(plan):
        def __init__(self, counted: Any, num_joint_actions: int, edge_bytes: int, budget: int) -> None:
            super().__init__(counted, num_joint_actions, edge_bytes, 4_000)

    patch.setattr(edges_module, "EdgePlan", TinyPlan)
    patch.setattr("omstore.convert.keysort._MIN_BUDGET", 2000)
