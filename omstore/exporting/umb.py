"""UMB files, which the probabilistic model checkers Storm, PRISM and Modest read.

A tar of ``index.json`` and little-endian arrays. The layout is that of umbi 0.2.5 and of what stormpy 2.0
accepts (format version 0.1). The graph is an MDP: one player chooses the joint action.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.exporting.columns import Source
from omstore.exporting.containers import Member, TarContainer
from omstore.exporting.kernels import mark_done
from omstore.format.manifest import TOOL_VERSION
from omstore.read import SweepChunk
from omstore.read.actions import decode_joint

__all__ = ["write_umb"]

_DOUBLE = {"type": "double", "size": 64}
_BOOL = {"type": "bool", "size": 1}
_STEP = 1 << 16
_NAMED_ACTIONS = 1 << 20
"""Joint actions above which they get no names, only numbers."""
_DONE = "annotations/aps/done/states/values.bin"
_ACTIONS = "actions/choices"


@dataclass(frozen=True)
class Choices:
    """How many choices and branches the file has.

    Attributes
    ----------
    choices : int
        Legal rows, and one for each dead end.
    branches : int
        Edges, and one for each dead end.
    dead_ends : int
        Nodes without any legal row.
    """

    choices: int
    branches: int
    dead_ends: int


def write_umb(source: Source, path: Path) -> tuple[str, ...]:
    """Write a graph as a UMB file.

    States are nodes, in their order; all are initial, so that values are computed for every one. Choices are
    the legal rows, their action the joint action (named by its agents' actions, such as ``0,3``). The state
    vectors are the states' valuations, variables ``x0``, ``x1``, .... Each agent's reward is a reward model
    of its name, by branch, or by choice where it is no function of the successor. The label ``done`` marks
    nodes that an edge leads to with done. A node without any legal row gets one choice, named ``none``, that
    leads back to it without reward: Storm reads no state without a choice.

    Parameters
    ----------
    source : Source
    path : Path
        An existing file that is written over.

    Returns
    -------
    tuple of str
        What isn't in the file as it is in the graph.

    Notes
    -----
    Rows are swept twice: for the number of choices their outdegrees, then all of them.
    """
    graph = source.graph
    choices = _count_choices(source)
    rewards = dict(zip(_reward_names(graph.agents), graph.agents, strict=True)) if source.rewards else {}
    by_choice = graph.attributes["reward"].level in ("graph", "node", "row")
    index = json.dumps(_index(source, choices, rewards, by_choice), indent=1).encode()
    names = _action_names(source, choices)
    reward_files = [
        f"annotations/rewards/{name}/{'choices' if by_choice else 'branches'}/values.bin" for name in rewards
    ]
    members = _members(source, choices, len(index), names, reward_files, by_choice)
    with TarContainer(path, members) as file:
        file["index.json"].write(index)
        _write_constant(file, "state-is-initial.bin", 0xFF, graph.num_nodes)
        _write_zeros(file, "state-to-player.bin")
        if names is not None:
            for name, data in names.items():
                file[name].write(data)
        _write_valuations(source, file)
        done = _mapped_bits(path, file, _DONE)
        _write_rows(source, file, done.view(np.ndarray), reward_files, by_choice)
        done.flush()
    return _notes(source, choices)


def _count_choices(source: Source) -> Choices:
    """Count legal rows and dead ends; memory: 16 bytes for each row of a step."""
    graph = source.graph
    width = graph.num_joint_actions
    legal = dead_ends = 0
    with source.progress.task("counting choices", graph.num_nodes, "nodes") as task:
        for nodes in source.nodes(16 * width):
            rows = np.arange(nodes[0] * width, (nodes[-1] + 1) * width)
            found = (graph.encoding.outdegree(rows) > 0).reshape(len(nodes), width).sum(axis=1)
            legal += int(found.sum())
            dead_ends += int(np.count_nonzero(found == 0))
            task.update(len(nodes))
    return Choices(legal + dead_ends, graph.num_edges + dead_ends, dead_ends)


def _members(
    source: Source,
    choices: Choices,
    index_size: int,
    names: dict[str, bytes] | None,
    reward_files: list[str],
    by_choice: bool,
) -> list[Member]:
    nodes = source.graph.num_nodes
    flags = -(-nodes // 64) * 8  # bits, filled up to 8 bytes
    return [
        Member("index.json", index_size),
        Member("state-is-initial.bin", flags),
        Member("state-to-choices.bin", 8 * (nodes + 1)),
        Member("state-to-player.bin", 4 * nodes),
        Member("choice-to-branches.bin", 8 * (choices.choices + 1)),
        Member("branch-to-target.bin", 8 * choices.branches),
        Member("branch-to-probability.bin", 8 * choices.branches),
        Member(f"{_ACTIONS}/values.bin", 4 * choices.choices),
        *(Member(name, len(data)) for name, data in (names or {}).items()),
        Member(_DONE, flags),
        *(Member(name, 8 * (choices.choices if by_choice else choices.branches)) for name in reward_files),
        Member("valuations/states/valuations.bin", nodes * _valuation_bytes(source)),
    ]


def _index(source: Source, choices: Choices, rewards: dict[str, str], by_choice: bool) -> dict[str, Any]:
    graph, codec = source.graph, source.codec
    kind = _BOOL if codec.component_bits == 1 else {"type": "uint", "size": codec.component_bits}
    variables: list[dict[str, Any]] = [
        {"name": f"x{i}", "type": kind, "is-optional": False} for i in range(codec.width)
    ]
    unused = 8 * _valuation_bytes(source) - codec.width * codec.component_bits
    if unused:
        variables.append({"padding": unused})
    applies = "choices" if by_choice else "branches"
    return {
        "format-version": 0,
        "format-revision": 1,
        "file-data": {"tool": "omstore", "tool-version": TOOL_VERSION},
        "model-data": {"description": f"a transition graph of the agents {', '.join(graph.agents)}"},
        "transition-system": {
            "time": "discrete",
            "#players": 1,
            "#states": graph.num_nodes,
            "#initial-states": graph.num_nodes,
            "#choices": choices.choices,
            "#choice-actions": graph.num_joint_actions + (choices.dead_ends > 0),
            "#branches": choices.branches,
            "#branch-actions": 0,
            "#observations": 0,
            "branch-probability-type": _DOUBLE,
        },
        "annotations": {
            "aps": {"done": {"applies-to": ["states"], "type": _BOOL}},
            "rewards": {
                name: {
                    "alias": agent,
                    "description": f"reward of {agent}",
                    "applies-to": [applies],
                    "type": _DOUBLE,
                }
                for name, agent in rewards.items()
            },
        },
        "valuations": {"states": {"unique": True, "classes": [{"variables": variables}]}},
    }


def _reward_names(agents: tuple[str, ...]) -> list[str]:
    """Give each agent a name that can be part of a path, distinct from the others'."""
    names: list[str] = []
    for number, agent in enumerate(agents):
        name = re.sub(r"[^a-z0-9_-]", "_", agent.lower()) or f"agent_{number}"
        names.append(name if name not in names else f"{name}_{number}")
    return names


def _action_names(source: Source, choices: Choices) -> dict[str, bytes] | None:
    """Make the files with the actions' names; None where there are too many to name."""
    graph = source.graph
    if graph.num_joint_actions > _NAMED_ACTIONS:
        return None
    actions = decode_joint(np.arange(graph.num_joint_actions), graph.num_actions).tolist()
    texts = [",".join(map(str, action)).encode() for action in actions]
    texts += [b"none"] * (choices.dead_ends > 0)
    ends = np.cumsum([0, *map(len, texts)]).astype("<u8")
    return {
        f"{_ACTIONS}/string-mapping.bin": ends.tobytes(),
        f"{_ACTIONS}/strings.bin": b"".join(texts),
    }


def _valuation_bytes(source: Source) -> int:
    return (source.codec.width * source.codec.component_bits + 7) // 8


def _write_valuations(source: Source, file: TarContainer) -> None:
    graph, codec = source.graph, source.codec
    out = file["valuations/states/valuations.bin"]
    for nodes in source.nodes(codec.width * codec.dtype.itemsize):
        states = graph.states(nodes)
        if codec.component_bits == 1:
            out.write(np.packbits(states, axis=1, bitorder="little"))
        else:
            out.write(states.astype(codec.dtype.newbyteorder("<")))


def _write_zeros(file: TarContainer, name: str) -> None:
    stream = file[name]
    while stream.written < stream.size:
        stream.write(bytes(min(_STEP, stream.size - stream.written)))


def _write_constant(file: TarContainer, name: str, byte: int, bits: int) -> None:
    """Set the first `bits` bits of a file to one, the rest to zero."""
    stream = file[name]
    whole, rest = divmod(bits, 8)
    while stream.written < whole:
        stream.write(bytes([byte]) * min(_STEP, whole - stream.written))
    if rest:
        stream.write(bytes([(1 << rest) - 1]))
    _write_zeros(file, name)


def _mapped_bits(path: Path, file: TarContainer, name: str) -> np.memmap[Any, np.dtype[np.uint8]]:
    """Map a member's bytes in place: bits that are set in any order, without memory of their own.

    Its room is written first: through a map, a disk that fills up would be a SIGBUS, not an error.
    """
    _write_zeros(file, name)
    stream = file[name]
    stream.flush()
    bits: np.memmap[Any, np.dtype[np.uint8]] = np.memmap(
        path, np.uint8, "r+", offset=stream.start, shape=(stream.size,)
    )
    return bits


def _write_rows(
    source: Source, file: TarContainer, done: NDArray[np.uint8], reward_files: list[str], by_choice: bool
) -> None:
    graph = source.graph
    width = graph.num_joint_actions
    choice = branch = 0
    state_to_choices = file["state-to-choices.bin"]
    choice_to_branches = file["choice-to-branches.bin"]
    legal_before = 0  # of the node whose rows were cut by the end of a chunk
    for chunk in source.sweep():
        found = chunk.successors
        mark_done(as_input(found.next_node, np.int64), as_input(found.done.view(np.uint8), np.uint8), done)
        rows, legal_before = _with_dead_ends(chunk, width, legal_before)
        legal = np.flatnonzero(np.diff(rows.offsets))
        numbers = chunk.first_row + np.arange(len(rows.offsets) - 1)
        firsts = np.flatnonzero(numbers % width == 0)
        state_to_choices.write((choice + np.searchsorted(legal, firsts)).astype("<u8"))
        choice_to_branches.write((branch + rows.offsets[legal]).astype("<u8"))
        actions = numbers[legal] % width
        actions[rows.dead[legal]] = width
        file[f"{_ACTIONS}/values.bin"].write(actions.astype("<u4"))
        file["branch-to-target.bin"].write(rows.next_node.astype("<u8"))
        file["branch-to-probability.bin"].write(rows.probability.astype("<f8"))
        reward = rows.reward[rows.offsets[legal]] if by_choice else rows.reward
        for agent, name in enumerate(reward_files):
            file[name].write(np.ascontiguousarray(reward[:, agent], "<f8"))
        choice += len(legal)
        branch += int(rows.offsets[-1])
    state_to_choices.write(np.array([choice], "<u8"))
    choice_to_branches.write(np.array([branch], "<u8"))


@dataclass(frozen=True)
class _Rows:
    """The rows of a chunk, the last row of each dead end with an edge back to it; `dead` flags those."""

    offsets: NDArray[np.int64]
    next_node: NDArray[Any]
    probability: NDArray[np.float64]
    reward: NDArray[np.float64]
    dead: NDArray[np.bool_]


def _with_dead_ends(chunk: SweepChunk, width: int, legal_before: int) -> tuple[_Rows, int]:
    """Give dead ends a way back, and the legal rows so far of the node that the chunk's end cuts."""
    found = chunk.successors
    offsets = found.offsets
    count = len(offsets) - 1
    legal = np.diff(offsets) > 0
    sums = np.concatenate(([0], np.cumsum(legal)))
    ends = np.flatnonzero((chunk.first_row + np.arange(count)) % width == width - 1)
    legal_of = np.diff(sums[ends + 1], prepend=-legal_before)
    dead_rows = ends[legal_of == 0]
    dead = np.zeros(count, np.bool_)
    dead[dead_rows] = True
    after = int(sums[-1] - (sums[ends[-1] + 1] if len(ends) else -legal_before))
    if not len(dead_rows):
        return _Rows(offsets, found.next_node, found.probability, found.reward, dead), after
    at = offsets[dead_rows]
    nodes = (chunk.first_row + dead_rows) // width
    added = np.concatenate(([0], np.cumsum(dead)))
    return _Rows(
        offsets + added,
        np.insert(found.next_node, at, nodes),
        np.insert(found.probability, at, 1.0),
        np.insert(found.reward, at, 0.0, axis=0),
        dead,
    ), after


def _notes(source: Source, choices: Choices) -> tuple[str, ...]:
    graph = source.graph
    notes = []
    if choices.dead_ends:
        notes.append(
            f"{choices.dead_ends:,} nodes without a legal row got a choice 'none' that leads back to them"
        )
    level = graph.attributes["done"].level
    if level not in ("graph", "next_node"):
        notes.append(
            f"done is stored by {level}, not by next node: the label 'done' marks each node that some edge "
            "leads to with done"
        )
    kept = [name for name in graph.attributes if name not in ("probability", "reward", "done")]
    if kept:
        notes.append(f"kept fields aren't in the file: {', '.join(kept)}")
    return tuple(notes)
