"""The replay: transitions oldest first, as columns, with the node of every state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.convert.actions import ActionSpace
from omstore.convert.nodes import NodeTable
from omstore.convert.records import RecordReader
from omstore.convert.resolve import (
    NodeResolver,
    StateNodes,
    check_finite,
    check_reward,
    pack_states,
    per_agent,
)
from omstore.errors import BadDataError
from omstore.format.states import StateCodec
from omstore.legacy.fields import ColumnRef, Field
from omstore.legacy.mapping import ReplayMapping
from omstore.publish.staging import Staging

__all__ = ["ReplayResult", "TransitionChunk", "TransitionStream", "per_agent_observations", "write_replay"]


@dataclass(frozen=True)
class TransitionChunk:
    """Consecutive transitions, oldest first.

    Attributes
    ----------
    first : int
        Number of the first transition.
    node, next_node : (n,) int64
        -1 where the state isn't in the graph.
    joint_action : (n,) int64
    state, next_state : (n, Wb) uint8
        The focal agent's observations, packed.
    reward : (n, agents) float64
        Zeros where the export has none.
    done : (n,) uint8
        Zeros where the export has none.
    observations, next_observations : dict of agent to (n, w) array
        Of the agents asked for.
    kept : dict of name to (n, k) array
    """

    first: int
    node: NDArray[np.int64]
    next_node: NDArray[np.int64]
    joint_action: NDArray[np.int64]
    state: NDArray[np.uint8]
    next_state: NDArray[np.uint8]
    reward: NDArray[np.float64]
    done: NDArray[np.uint8]
    observations: dict[str, NDArray[Any]]
    next_observations: dict[str, NDArray[Any]]
    kept: dict[str, NDArray[Any]]


def per_agent_observations(mapping: ReplayMapping, width: int | None) -> ReplayMapping:
    """Split one observation that holds all agents' vectors, where W tells that it does.

    Parameters
    ----------
    width : int or None
        W of the graph; None without one.
    """
    (name, whole), *others = mapping.observations
    count = mapping.num_agents
    if others or name or width is None or count is None or count < 2 or whole.width != count * width:
        return mapping
    agents = mapping.agents or tuple(map(str, range(count)))

    def split(where: Field) -> tuple[tuple[str, Field], ...]:
        if len(where.columns) != 1:
            return (("", where),)
        ref = where.columns[0]
        return tuple(
            (
                agent,
                Field(
                    f"{where.name}.{agent}",
                    (ColumnRef(ref.column, ref.start + i * width, ref.start + (i + 1) * width),),
                    (),
                    where.dtype,
                ),
            )
            for i, agent in enumerate(agents)
        )

    return replace(
        mapping, observations=split(whole), next_observations=split(mapping.next_observations[0][1])
    )


class TransitionStream:
    """The transitions of an export, resolved and checked, oldest first, as often as wanted.

    Parameters
    ----------
    reader : RecordReader
        Of the transitions.
    mapping : ReplayMapping
    codec : StateCodec
        How states are packed.
    nodes : NodeResolver or None
        Finds the nodes of states; None without a graph.
    actions : ActionSpace
    where : str
        File name for errors.
    allow_nonfinite : bool
    """

    def __init__(
        self,
        reader: RecordReader,
        mapping: ReplayMapping,
        codec: StateCodec,
        nodes: NodeResolver | None,
        actions: ActionSpace,
        where: str,
        allow_nonfinite: bool = False,
    ) -> None:
        self.reader = reader
        self.mapping = mapping
        self.codec = codec
        self.nodes = nodes
        self.actions = actions
        self.num_transitions = mapping.count
        self._where = f"{where}: {mapping.records.name}"
        self._allow_nonfinite = allow_nonfinite
        self._num_agents = len(actions.num_actions)
        check_reward(mapping.reward, self._num_agents, self._where)

    def chunks(
        self, agents: tuple[str, ...] = (), next_agents: tuple[str, ...] = ()
    ) -> Iterator[TransitionChunk]:
        """Go through the transitions, with the observations of some agents besides the focal one's.

        Raises
        ------
        BadDataError
            Naming the first record with a joint action out of range or a number that isn't finite.
        """
        mapping = self.mapping
        seen, seen_next = dict(mapping.observations), dict(mapping.next_observations)
        fields = [mapping.observations[mapping.focal][1], mapping.next_observations[mapping.focal][1]]
        fields += [mapping.joint_action]
        fields += [where for where in (mapping.reward, mapping.done) if where is not None]
        fields += [seen[a] for a in agents] + [seen_next[a] for a in next_agents]
        fields += [where for _, where in mapping.kept]
        done_so_far = 0
        for start, stop in self._ranges():
            for first, values in self.reader.chunks(fields, start, stop):
                rest = iter(values)
                state, node = self._state(next(rest))
                next_state, next_node = self._state(next(rest))
                joint_action = self.actions.encode(next(rest), self._where, first)
                if mapping.reward is not None:
                    reward = per_agent(self._finite(next(rest), first, mapping.reward), self._num_agents)
                else:
                    reward = np.zeros((len(node), self._num_agents))
                if mapping.done is not None:
                    done = (next(rest)[:, 0] != 0).astype(np.uint8)
                else:
                    done = np.zeros(len(node), np.uint8)
                observations = {a: self._finite(next(rest), first, seen[a]) for a in agents}
                next_observations = {a: self._finite(next(rest), first, seen_next[a]) for a in next_agents}
                kept = {name: self._finite(next(rest), first, where) for name, where in mapping.kept}
                yield TransitionChunk(
                    done_so_far,
                    node,
                    next_node,
                    joint_action,
                    state,
                    next_state,
                    reward,
                    done,
                    observations,
                    next_observations,
                    kept,
                )
                done_so_far += len(node)

    def _ranges(self) -> list[tuple[int, int]]:
        first, count = self.mapping.first, self.mapping.count
        return [(first, count), (0, first)] if first else [(0, count)]

    def _state(self, values: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        packed, _ = pack_states(self.codec, values)
        if self.nodes is None:
            return packed, np.full(len(packed), -1, np.int64)
        return packed, self.nodes.resolve(values)

    def _finite(self, values: NDArray[Any], first: int, where: Field) -> NDArray[Any]:
        if values.dtype.kind == "f" and not self._allow_nonfinite:
            check_finite(values, self._where, first, where.name)
        return values


@dataclass
class ReplayResult:
    """What `write_replay` wrote: ``manifest.replay``, and counts for the report."""

    replay: dict[str, Any]
    num_transitions: int
    off_graph: int
    notes: list[str] = field(default_factory=list)


def write_replay(
    stream: TransitionStream,
    graph: NodeTable | None,
    staging: Staging,
    tick: Callable[[int], object] = lambda n: None,
) -> ReplayResult:
    """Write ``replay/`` into staging.

    Observations of other agents are written only where they differ somewhere from the focal agent's.

    Parameters
    ----------
    stream : TransitionStream
    graph : NodeTable or None
        Only to check that states are as wide as the graph's.
    staging : Staging
    tick : callable
        Called with numbers of transitions done; in total once their number.

    Raises
    ------
    BadDataError
        If the states aren't as wide as the graph's, or a record isn't right (see `TransitionStream`).
    """
    mapping = stream.mapping
    focal_name, focal = mapping.observations[mapping.focal]
    for what, where in (
        ("observations", focal),
        ("next observations", mapping.next_observations[mapping.focal][1]),
    ):
        if where.width != stream.codec.width:
            raise BadDataError(
                f"{mapping.records.name}: {what} ({where.name}) have {where.width} components, where the "
                f"{'graph' if graph else 'observation'}'s states have {stream.codec.width}",
                "If another agent's observation or another field is the state, say so with --focal AGENT or "
                "--map observation=NAME --map next_observation=NAME.",
            )
    others = _that_differ(stream.reader, mapping, mapping.observations)
    next_others = _that_differ(stream.reader, mapping, mapping.next_observations)
    observed = {f"observations/{agent}": where for agent, where in others.items()}
    observed |= {f"next_observations/{agent}": where for agent, where in next_others.items()}
    dtypes = {name: _smallest(stream.reader, where) for name, where in observed.items()}
    actions = np.min_scalar_type(max(0, stream.actions.num_joint_actions - 1))
    writers = _writers(stream, staging, actions, observed, dtypes)
    off_graph = 0
    for chunk in stream.chunks(tuple(others), tuple(next_others)):
        off_graph += int(np.count_nonzero((chunk.node < 0) | (chunk.next_node < 0)))
        for name in ("node", "next_node", "joint_action", "state", "next_state", "reward", "done"):
            if name in writers:
                values = getattr(chunk, name)
                writers[name].append(
                    values.astype(writers[name].dtype, copy=False) if name == "joint_action" else values
                )
        seen = {f"observations/{agent}": values for agent, values in chunk.observations.items()}
        seen |= {f"next_observations/{agent}": values for agent, values in chunk.next_observations.items()}
        for name, values in seen.items():
            writers[name].append(values.astype(dtypes[name], copy=False))
        for name, where in mapping.kept:
            values = chunk.kept[name]
            writers[f"kept/{name}"].append(values[:, 0] if where.width == 1 else values)
        tick(len(chunk.node))
    for writer in writers.values():
        writer.close()
    described: dict[str, Any] = {
        "off_graph": off_graph,
        "focal": focal_name if focal_name else None,
        "reward": mapping.reward is not None,
        "done": mapping.done is not None,
        "observations": sorted(others),
        "next_observations": sorted(next_others),
        "observed_agents": [name for name, _ in mapping.observations if name],
        "kept": {name: {"dtype": where.dtype.name, "width": where.width} for name, where in mapping.kept},
    }
    result = ReplayResult(described, stream.num_transitions, off_graph)
    for name, absent in (("reward", mapping.reward is None), ("done", mapping.done is None)):
        if absent:
            result.notes.append(f"the transitions have no {name}: taken as 0")
    if mapping.reward is not None and mapping.reward.width < len(stream.actions.num_actions):
        result.notes.append("the reward is one number: it is stored as every agent's")
    return result


def _writers(
    stream: TransitionStream,
    staging: Staging,
    actions: np.dtype[Any],
    observed: dict[str, Field],
    dtypes: dict[str, np.dtype[Any]],
) -> dict[str, Any]:
    mapping, packed = stream.mapping, stream.codec.packed_bytes
    writers: dict[str, Any] = {
        "node": staging.hot("replay/node", np.int64),
        "next_node": staging.hot("replay/next_node", np.int64),
        "joint_action": staging.hot("replay/joint_action", actions),
        "state": staging.cold("replay/state", np.uint8, (packed,)),
        "next_state": staging.cold("replay/next_state", np.uint8, (packed,)),
        "reward": staging.cold("replay/reward", np.float64, (len(stream.actions.num_actions),), shuffle=True),
        "done": staging.cold("replay/done", np.uint8),
    }
    for name, where in observed.items():
        writers[name] = staging.cold(f"replay/{name}", dtypes[name], (where.width,))
    for name, where in mapping.kept:
        writers[f"kept/{name}"] = staging.cold(
            f"replay/kept/{name}", where.dtype, () if where.width == 1 else (where.width,)
        )
    return writers


def _smallest(reader: RecordReader, where: Field) -> np.dtype[Any]:
    """Choose what another agent's observations are stored as: small unsigned integers where they are such."""
    seen = reader.extent(where)
    if reader.num_rows and seen.whole and seen.finite and seen.minimum >= 0 and seen.maximum < 2**32:
        return np.min_scalar_type(int(seen.maximum))
    return where.dtype


def _that_differ(
    reader: RecordReader, mapping: ReplayMapping, observations: tuple[tuple[str, Field], ...]
) -> dict[str, Field]:
    """List the agents whose observations aren't the focal agent's everywhere."""
    _, focal = observations[mapping.focal]
    differ: dict[str, Field] = {}
    unsure: dict[str, Field] = {}
    for i, (agent, where) in enumerate(observations):
        if i == mapping.focal or reader.known_same(where, focal):
            continue
        (differ if where.width != focal.width else unsure)[agent] = where
    if unsure:
        for _, values in reader.chunks([focal, *unsure.values()], 0, mapping.count):
            for agent, other in zip(list(unsure), values[1:], strict=True):
                if agent not in differ and not np.array_equal(other, values[0]):
                    differ[agent] = unsure[agent]
            if len(differ) == len(observations) - 1:
                break
    return {agent: where for agent, where in observations if agent in differ}


def state_resolver(graph: NodeTable) -> NodeResolver:
    """Make what finds the nodes of a replay's states."""
    return StateNodes(graph.codec, graph.index)
