"""What an export should look like: one frozen dataclass that says all of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from tools.worlds.pursuit import Pursuit
from tools.worlds.random_graph import RandomGraph
from tools.worlds.thinned import Thinned
from tools.worlds.world import World

__all__ = ["CHOICES", "NAMES", "ExportSpec", "make_world"]

_ROLES = [
    "nodes",
    "edges",
    "transitions",
    "src",
    "action",
    "dst",
    "prob",
    "reward",
    "done",
    "obs",
    "replay_action",
    "replay_reward",
    "next_obs",
]
_NAME_LISTS = {
    "plain": "nodes edges transitions src joint_action dst prob reward done obs actions rewards next_obs",
    "short": "states transitions data s a s_next p r terminal s a r s_next",
    "long": "states edges memory state action next_state probability rewards is_terminal "
    "state action rewards next_state",
    "arrows": "nodes edges transitions from actions target prob r dones "
    "observation joint_action reward next_observation",
}
NAMES: dict[str, dict[str, str]] = {
    name: dict(zip(_ROLES, text.split(), strict=True)) for name, text in _NAME_LISTS.items()
}
"""Naming sets: role -> the name of the field that plays it. ``arrows`` has a keyword for a name, so it is
for dicts only."""

CHOICES: dict[str, tuple[str, ...]] = {
    "world": ("pursuit", "random"),
    "record": (
        *("dataclass", "slots", "frozen", "frozen-slots", "inherited"),
        *("namedtuple", "plain", "tuple", "dict"),
    ),
    "graph": ("object", "dict", "edge-list", "adjacency", "adjacency2"),
    "nodes": (
        *("list-array", "list-tuple", "list-bytes", "array"),
        *("dict-state-id", "dict-id-state", "absent"),
    ),
    "ids": ("contiguous", "shuffled", "sparse"),
    "endpoints": ("id", "tuple", "bytes", "array"),
    "joint_action": ("tuple", "list", "array", "dict", "class"),
    "reward": ("scalar", "tuple", "array", "dict", "none"),
    "names": tuple(NAMES),
    "compress": ("none", "gzip", "zstd", "xz"),
    "observations": ("dict", "vector"),
    "replay": ("list", "tuple", "deque", "object", "ring", "columns"),
    "state_dtype": ("uint8", "bool", "int64", "float32"),
    "behaviour": ("uniform", "skewed"),
}
"""The values that each option takes."""


@dataclass(frozen=True)
class ExportSpec:
    """Everything that decides an export's bytes.

    Attributes
    ----------
    world, agents, slip, blocking, padded, fraction, seed
        The world: the pursuit world, or a small random graph (see `tools.worlds.random_graph`).
        ``fraction=1/k`` keeps all nodes and every k-th row, so the rest are illegal; transitions are
        thinned alike.
    num_nodes, num_actions, width, duplicates, reward_level, done_level
        Of the random graph only.
    record, names, protocol, compress, suffix
        Of both files. `suffix` adds ``.gz``, ``.zst`` or ``.xz`` to the names of compressed files.
    graph, nodes, ids, endpoints, joint_action, reward, done, prob, shuffle, redundant_keys
        Of the graph. `ids`: legacy node ids are the world's numbers, a permutation of them, or have gaps.
        `redundant_keys`: records of an adjacency repeat what its keys say.
    extra, kept
        ``info`` (always None) and ``kind`` (always "model") in every record; ``visits``, an integer that
        varies, in every edge.
    numpy_scalars, share
        Scalars as numpy scalars; joint actions, rewards and states as shared objects, so that the pickle's
        memo matters.
    replay, transitions, observations, egocentric, replay_record, replay_action, replay_reward, off_graph,
    state_dtype, torch
        Of the replay, where `None` means as in the graph. `egocentric`: agent i sees the state with its own
        part first, so that observations differ; agent 0 sees the state. `off_graph`: so many transitions
        have states that are in no graph. `state_dtype` is for vectors in arrays, in the graph as well;
        `torch` makes observations tensors.
    behaviour
        What the agents did while the replay was collected.
    parts
        Which files to write: any of ``graph`` and ``replay``.
    """

    world: str = "pursuit"
    agents: int = 2
    slip: float = 0.0
    blocking: bool = False
    padded: bool = True
    fraction: float = 1.0
    seed: int = 0
    num_nodes: int = 12
    num_actions: tuple[int, ...] = (3, 2)
    width: int = 13
    duplicates: bool = False
    reward_level: str = "edge"
    done_level: str = "next_node"
    record: str = "dataclass"
    names: str = "plain"
    protocol: int = 4
    compress: str = "none"
    suffix: bool = False
    graph: str = "object"
    nodes: str = "list-array"
    ids: str = "contiguous"
    endpoints: str = "id"
    joint_action: str = "tuple"
    reward: str = "dict"
    done: bool = True
    prob: bool = True
    shuffle: bool = False
    redundant_keys: bool = False
    extra: bool = False
    kept: bool = False
    numpy_scalars: bool = False
    share: bool = False
    replay: str = "list"
    transitions: int = 200
    observations: str = "dict"
    egocentric: bool = False
    replay_record: str | None = None
    replay_action: str | None = None
    replay_reward: str | None = None
    off_graph: int = 0
    state_dtype: str = "uint8"
    torch: bool = False
    behaviour: str = "uniform"
    parts: tuple[str, ...] = ("graph", "replay")

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name in ("replay_record", "replay_action", "replay_reward"):
            value, choices = getattr(self, name), CHOICES["joint_action" if "action" in name else name[7:]]
            if value is not None and value not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not {value!r}")
        if self.graph == "edge-list" and self.nodes != "absent":
            raise ValueError("a bare edge list has no nodes: say nodes='absent'")
        if self.ids == "sparse" and not (self.nodes.startswith("dict") or self.nodes == "absent"):
            raise ValueError("ids with gaps need nodes as a dict, or absent")
        if self.names == "arrows" and {self.record, self.replay_record or self.record} - {"dict", "tuple"}:
            raise ValueError("'from' can't be an attribute: naming set 'arrows' is for dicts and tuples")
        if not 2 <= self.protocol <= 5:
            raise ValueError(f"the protocol is 2 to 5, not {self.protocol}")
        if self.fraction != 1 and self.world != "pursuit":
            raise ValueError("only the pursuit world can be thinned")

    @property
    def field_names(self) -> dict[str, str]:
        """Role -> name."""
        return NAMES[self.names]

    def in_replay(self, name: str) -> str:
        """The record, action or reward shape that the replay has."""
        own: str | None = getattr(self, f"replay_{name}")
        return own if own is not None else getattr(self, "joint_action" if name == "action" else name)

    def file_name(self, part: str) -> str:
        """Name under ``wm/`` of the graph's or the replay's file."""
        ending = (
            {"none": "", "gzip": ".gz", "zstd": ".zst", "xz": ".xz"}[self.compress] if self.suffix else ""
        )
        return {"graph": "env_transition_graph.pkl", "replay": "D.pkl"}[part] + ending

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> ExportSpec:
        """Read what `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        tuples = {f.name for f in fields(cls) if str(f.type).startswith("tuple")}
        for name in tuples & values.keys():
            values[name] = tuple(values[name])
        return cls(**values)


def make_world(spec: ExportSpec) -> World:
    """Build the world that `spec` describes."""
    if spec.world == "random":
        return RandomGraph(
            spec.num_nodes,
            spec.num_actions,
            width=spec.width,
            duplicates=spec.duplicates,
            reward_level=spec.reward_level,
            done_level=spec.done_level,
            seed=spec.seed,
        )
    world = Pursuit(spec.agents, spec.slip, blocking=spec.blocking, padded=spec.padded)
    return world if spec.fraction == 1 else Thinned(world, round(1 / spec.fraction))
