"""Random walks: the replay data an exporter would have collected, made by a known stochastic behaviour."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.worlds.world import Floats, Ints, World, decode_joint_actions

__all__ = ["BEHAVIOURS", "Walk", "behaviour_table", "joint_behaviour", "walk"]

BEHAVIOURS = ("uniform", "skewed")


@dataclass(frozen=True)
class Walk:
    """T transitions as columns: node, joint_action, next_node (T,) int64, reward (T, agents) float64, done
    (T,) bool."""

    node: Ints
    joint_action: Ints
    next_node: Ints
    reward: Floats
    done: NDArray[np.bool_]


def behaviour_table(world: World, behaviour: str, seed: int) -> Floats:
    """(agents, places, most actions) probabilities of each agent's actions by what it looks at.

    ``uniform``: every action of an agent alike. ``skewed``: softmax of normal logits, drawn once from the
    seed.
    """
    if behaviour not in BEHAVIOURS:
        raise ValueError(f"behaviours are {', '.join(BEHAVIOURS)}, not {behaviour}")
    table = np.zeros((len(world.agents), world.num_places, max(world.num_actions)))
    rng = np.random.default_rng([seed, 1])
    for agent, count in enumerate(world.num_actions):
        logits = rng.normal(scale=1.5, size=(world.num_places, count)) * (behaviour == "skewed")
        table[agent, :, :count] = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return table


def joint_behaviour(world: World, table: Floats, nodes: Ints) -> Floats:
    """(B, A) probabilities of the joint actions in each node: agents independent, restricted to legal joint
    actions.

    Costs B * A * 16 bytes.
    """
    places = world.places(nodes)
    actions = decode_joint_actions(np.arange(world.num_joint_actions), world.num_actions)
    joint = world.legal(nodes).astype(np.float64)
    for agent in range(len(world.agents)):
        joint *= table[agent][places[:, agent]][:, actions[:, agent]]
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


def walk(
    world: World, length: int, table: Floats | Callable[[Ints], Floats], rng: np.random.Generator
) -> Walk:
    """Walk `length` steps in all by a behaviour table, or by what gives (B, A) probabilities of joint actions for (B,)
    nodes; restarting in a random node that isn't absorbing after every ``done``.

    Several walkers go side by side, so that a million steps take seconds; the transitions of a walker stay
    together.
    """
    walkers = int(np.clip(length // 64, 1, 1000))
    steps = -(-length // walkers)
    node = np.empty((walkers, steps), np.int64)
    joint_action, next_node = np.empty_like(node), np.empty_like(node)
    reward = np.empty((walkers, steps, len(world.agents)))
    done = np.empty((walkers, steps), np.bool_)
    current = _starts(world, walkers, rng)
    for step in range(steps):
        joint = table(current) if callable(table) else joint_behaviour(world, table, current)
        chosen = _draw(joint, rng)
        rows = world.successors(current, chosen)
        # one successor a row: the first whose running sum passes a uniform number
        before = np.cumsum(rows.probability) - rows.probability
        within = before - before[rows.offsets[:-1]][rows.row_of_edge] + rows.probability
        passed = within < rng.random(walkers)[rows.row_of_edge]
        edge = np.minimum(
            rows.offsets[:-1] + np.bincount(rows.row_of_edge[passed], minlength=walkers), rows.offsets[1:] - 1
        )
        node[:, step], joint_action[:, step], next_node[:, step] = current, chosen, rows.next_node[edge]
        reward[:, step], done[:, step] = rows.reward[edge], rows.done[edge]
        current = np.where(rows.done[edge], _starts(world, walkers, rng), rows.next_node[edge])
    return Walk(
        node.reshape(-1)[:length],
        joint_action.reshape(-1)[:length],
        next_node.reshape(-1)[:length],
        reward.reshape(-1, len(world.agents))[:length],
        done.reshape(-1)[:length],
    )


def _draw(probabilities: Floats, rng: np.random.Generator) -> Ints:
    """(B, A) -> (B,) one column a row; a column of probability 0 is never drawn."""
    running = np.cumsum(probabilities, axis=1)
    return np.asarray((running <= rng.random(len(running))[:, None] * running[:, -1:]).sum(axis=1), np.int64)


def _starts(world: World, count: int, rng: np.random.Generator) -> Ints:
    nodes = rng.integers(0, world.num_nodes, count)
    while (absorbing := world.absorbing(nodes)).any():
        nodes[absorbing] = rng.integers(0, world.num_nodes, int(absorbing.sum()))
    return nodes
