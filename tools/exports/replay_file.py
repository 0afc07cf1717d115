"""The object that ``D.pkl`` holds, in each of its legacy shapes."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Any

from tools.exports.records import LegacyClasses, transition_roles
from tools.exports.spec import ExportSpec
from tools.exports.truth import ReplayTruth
from tools.exports.values import ValueMaker, observe
from tools.worlds.world import World, decode_joint_actions

__all__ = ["replay_object"]

CHUNK = 1 << 16
"""Records whose columns become Python values at a time; the records all stay in memory, as the group's
did."""


def replay_object(spec: ExportSpec, world: World, truth: ReplayTruth, classes: LegacyClasses) -> Any:
    """Build the object that the replay's file holds."""
    values = ValueMaker(spec, world)
    if spec.replay == "columns":
        return _replay_columns(spec, world, truth)
    records = list(_transition_records(spec, truth, values, classes))
    if spec.replay in ("list", "tuple", "deque"):
        return {"list": list, "tuple": tuple, "deque": collections.deque}[spec.replay](records)
    name, size = spec.field_names["transitions"], len(records)
    if spec.replay == "object":
        return classes.replay(**{name: records, "capacity": 2 * size, "agents": list(world.agents)})
    return classes.replay(**{name: records, "capacity": size, "position": int(truth.oldest), "size": size})


def _transition_records(
    spec: ExportSpec, truth: ReplayTruth, values: ValueMaker, classes: LegacyClasses
) -> Iterator[Any]:
    roles = transition_roles(spec)
    action, reward = spec.in_replay("action"), spec.in_replay("reward")
    for first in range(0, truth.node.size, CHUNK):
        part = slice(first, first + CHUNK)
        count = truth.node[part].size
        made: dict[str, Iterable[Any]] = {
            "obs": values.observations(truth.state[part]),
            "replay_action": values.joint_actions(action, truth.joint_action[part]),
            "replay_reward": () if reward == "none" else values.rewards(reward, truth.reward[part]),
            "next_obs": values.observations(truth.next_state[part]),
            "done": values.scalars(truth.done[part]),
            "info": [None] * count,
            "kind": ["model"] * count,
        }
        yield from map(classes.transition, *(made[role] for role in roles))


def _replay_columns(spec: ExportSpec, world: World, truth: ReplayTruth) -> dict[str, Any]:
    """A dict of arrays; per agent where the records would have had dicts."""
    names, agents = spec.field_names, world.agents

    def observed(states: Any) -> Any:
        vectors = states.astype(spec.state_dtype)
        if spec.observations == "vector":
            return vectors
        turned = (
            observe(vectors, i, len(agents)) if spec.egocentric else vectors for i in range(len(agents))
        )
        return dict(zip(agents, turned, strict=True))

    actions = decode_joint_actions(truth.joint_action, world.num_actions)
    action_shape, reward_shape = spec.in_replay("action"), spec.in_replay("reward")
    by_agent = {agent: actions[:, i].copy() for i, agent in enumerate(agents)}
    columns: dict[str, Any] = {
        names["obs"]: observed(truth.state),
        names["replay_action"]: {"class": truth.joint_action, "dict": by_agent}.get(action_shape, actions),
        names["next_obs"]: observed(truth.next_state),
        names["done"]: truth.done,
    }
    if reward_shape != "none":
        held: Any = truth.reward[:, 0] if reward_shape == "scalar" else truth.reward
        if reward_shape == "dict":
            held = {agent: truth.reward[:, i].copy() for i, agent in enumerate(agents)}
        columns[names["replay_reward"]] = held
    return columns
