"""Small graphs, buffers and networks for policy improvement, and what an update is, in plain PyTorch and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import omstore
from omstore.build import BuildOptions, build
from omstore.model import load_model
from tests.rollout.reference import Sides, rollout_returns
from tests.trainer.made_exports import make_export
from trainer.adapter import GraphWorldModelAdapter
from trainer.buffer import OMBuffer
from trainer.improvement import RolloutModel, SoftRolloutPIConfig
from trainer.models import OpponentMLP
from trainer.tables import Side

GRID = ["...", ".#.", "..."]
"""A ring of eight cells: 512 states of three agents."""


def build_pursuit(export: Path, rows: str = "factored", *, agents: int = 3) -> omstore.Graph:
    """Slipping agents on the ring; all joint actions are legal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        world = load_model("pursuit", {"agents": agents, "slip": 0.1, "grid": GRID})
        build(world, export, BuildOptions(rows=rows))
    graph = omstore.open(export).graph
    assert graph is not None
    return graph


def build_random(export: Path, nodes: int = 150) -> omstore.Graph:
    """A random graph of agents with 2, 3 and 4 actions; some joint actions are illegal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        made = make_export(export, transitions=0, nodes=nodes)
    graph = made.open().graph
    assert graph is not None
    return graph


def worlds_in(folder_of: Callable[[str], Path]) -> Callable[[str], World]:
    """Return what makes a world once: ``random``, or pursuit in a row encoding; `folder_of` a name makes its folder."""

    @cache
    def get(name: str) -> World:
        export = folder_of(name) / "export"
        # the evader of pursuit: rewards of a pursuer and the evader would cancel out in a team
        graph = build_random(export, 60) if name == "random" else build_pursuit(export, name)
        return World.of(graph, focal=1 if name == "random" else 2)

    return get


def buffer_of(dyn: GraphWorldModelAdapter, nodes: Sequence[int] | NDArray[np.int64]) -> OMBuffer:
    """Samples at some nodes, -1 for a state that isn't in the graph."""
    given = np.asarray(nodes)
    bits = dyn.graph.component_bits == 1
    buffer = OMBuffer(
        len(given),
        dyn.state_width,
        num_actions=dyn.actions.num_team,
        state_dtype=None if bits else np.uint8,
    )
    states = dyn.states(np.maximum(given, 0))
    states[given < 0] = 0
    buffer.add(states, np.zeros(len(given), np.int64))
    buffer.graph_state_idx = given
    return buffer


@dataclass
class World:
    """A graph, seen by a focal agent, with networks of both sides and samples at random nodes."""

    dyn: GraphWorldModelAdapter
    agent: OpponentMLP
    team: OpponentMLP
    buffer: OMBuffer

    @classmethod
    def of(cls, graph: omstore.Graph, focal: int = 0, *, samples: int = 60, seed: int = 3) -> World:
        dyn = GraphWorldModelAdapter(graph, focal_agent=focal)
        width = graph.state_width
        agent = sharp(OpponentMLP(width, dyn.actions.num_focal, 16, seed=seed))
        team = sharp(OpponentMLP(width, dyn.actions.num_team, 16, seed=seed + 1))
        nodes = np.random.default_rng(seed).integers(0, graph.num_nodes, samples)
        return cls(dyn, agent, team, buffer_of(dyn, nodes))

    def sides(self, learner: Side) -> tuple[OpponentMLP, OpponentMLP]:
        """The learner's network and the other side's."""
        return (self.agent, self.team) if learner == "agent" else (self.team, self.agent)

    def model(self, threads: int = 2, max_ram: int = 512 << 20) -> RolloutModel:
        return RolloutModel(self.dyn, threads=threads, max_ram=max_ram)


def sharp(network: OpponentMLP) -> OpponentMLP:
    """Make a fresh network's policy far from uniform."""
    with torch.no_grad():
        network.head.weight *= 20
    return network


def policy(dyn: GraphWorldModelAdapter, network: OpponentMLP, side: Side) -> NDArray[np.float32]:
    """(N, actions) probabilities at all nodes, a node at a time; illegal actions, told by the successors of their
    rows, have 0."""
    members = members_of(dyn, side)
    sides = Sides(dyn.graph.num_actions, members)
    table = np.zeros((dyn.num_nodes, network.num_actions), np.float32)
    for node in range(dyn.num_nodes):
        rows = np.arange(dyn.graph.num_joint_actions)
        outdegree = dyn.graph.successors(np.full(len(rows), node), rows).outdegree
        legal = (outdegree[sides.joint] > 0).any(axis=1)
        state = torch.from_numpy(dyn.graph.states([node])).float()
        with torch.no_grad():
            logits = network(state)[0]
        if legal.any():
            table[node, legal] = torch.softmax(logits[torch.from_numpy(legal)], 0).numpy()
    return table


def members_of(dyn: GraphWorldModelAdapter, side: Side) -> list[int]:
    others = [agent for agent in range(len(dyn.graph.agents)) if agent != dyn.focal_agent]
    return [dyn.focal_agent] if side == "agent" else others


def reward_weights(dyn: GraphWorldModelAdapter, side: Side) -> list[float]:
    members = members_of(dyn, side)
    return [1 / len(members) if agent in members else 0.0 for agent in range(len(dyn.graph.agents))]


def reference_values(
    dyn: GraphWorldModelAdapter,
    learner: OpponentMLP,
    other: OpponentMLP,
    side: Side,
    roots: Sequence[int],
    keys: Sequence[int],
    config: SoftRolloutPIConfig,
) -> NDArray[np.float64]:
    """(v, actions) mean returns, one environment at a time; NaN for illegal actions."""
    own = policy(dyn, learner, side)
    theirs = policy(dyn, other, "team" if side == "agent" else "agent")
    values = np.full((len(roots), learner.num_actions), np.nan)
    for i, (root, key) in enumerate(zip(roots, keys, strict=True)):
        for action in np.flatnonzero(own[root] > 0):
            returns = rollout_returns(
                dyn.graph,
                int(root),
                int(action),
                int(key),
                members_of(dyn, side),
                own,
                theirs,
                n_rollouts=config.n_rollouts,
                horizon=config.horizon,
                discount=config.discount,
                reward_weights=reward_weights(dyn, side),
            )
            values[i, action] = sum(returns) / len(returns)
    return values


def reference_loss(
    learner: OpponentMLP, states: torch.Tensor, values: NDArray[np.float64], config: SoftRolloutPIConfig
) -> dict[str, torch.Tensor]:
    """The objective in float64, a root at a time: values are NaN for illegal actions, the rest evaluated."""
    policy_ce, entropy = [], []
    for state, q in zip(states.double(), values, strict=True):
        legal = ~torch.from_numpy(np.isnan(q))
        weights = torch.exp(torch.from_numpy(q)[legal] / config.temperature)
        target = weights / weights.sum()
        logits = learner(state[None])[0, legal]
        log_policy = logits - torch.log(torch.exp(logits).sum())
        policy_ce.append(-(target * log_policy).sum())
        entropy.append(-(torch.exp(log_policy) * log_policy).sum())
    ce, h = torch.stack(policy_ce).mean(), torch.stack(entropy).mean()
    return {"policy_ce": ce, "entropy": h, "objective": ce - config.entropy_coef * h}


def weights_of(network: OpponentMLP) -> list[NDArray[np.float32]]:
    return [parameter.detach().numpy().copy() for parameter in network.parameters()]


def equal_weights(first: OpponentMLP, second: OpponentMLP) -> bool:
    """Whether to the bit."""
    return all(np.array_equal(a, b) for a, b in zip(weights_of(first), weights_of(second), strict=True))


def small_config(**changes: Any) -> SoftRolloutPIConfig:
    settings = {
        "root_state_samples": 40, "batch": 16, "n_rollouts": 3, "horizon": 4, "temperature": 0.1,
        "discount": 0.9, "seed": 5, "print_every": 0, "lr": 0.01, "lr_decay": 0.0,
    }  # fmt: skip
    return SoftRolloutPIConfig(**{**settings, **changes})
