"""What `omtrain` learns by its defaults, measured against what is known exactly.

    python tools/bench/bench_learning.py                      # 2 agents, slip 0.1, 5 seeds
    python tools/bench/bench_learning.py --agents 3 --seeds 2 --export bench-data/chased   # 3 agents; kept for next time
    python tools/bench/bench_learning.py --agents 3 --seeds 1 --sharpness 0    # a replay of uniformly random play

A replay is made by a team that chases the focal agent, the evader (`tools.worlds.chase`), whose policy is known. Level 0
learns from it; its cross-entropy is compared with the team's entropy, both summed over team actions exactly, in the
states of transitions that it hasn't seen. Then the focal agent improves against level 0, agent phase 1 of the staircase;
its value against level 0 is computed by backward induction, beside those of uniform play and of the best response, as a
mean over the replay's states: over the horizon it trained for, where the best response may play otherwise at every
step. The same is printed against the team itself, which it never met. Last the team becomes level 1, by team phase 2, and
its return against that focal agent is placed between level 0's and that of the team's best response, in the same way. All
settings are `omtrain`'s defaults.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

import omstore
from omstore import RolloutTables
from tools.bench.timing import verdict
from tools.worlds.chase import Chase
from tools.worlds.pursuit import Pursuit
from tools.worlds.walk import walk
from trainer.config import TrainConfig
from trainer.exact import ExactModel, Problem
from trainer.improvement import soft_rollout_policy_improvement
from trainer.improvement.dead_units import wake_dead_units
from trainer.models import ImaginedOpponent, OpponentMLP
from trainer.prepare import OMTrainingInputs, prepare_om_training_inputs
from trainer.progress import Phase
from trainer.staircase import StaircaseConfig
from trainer.tables import PolicyTabulator, Side

WITHIN = 0.01
"""Of the team's entropy: what level 0's cross-entropy may exceed it by."""
REACHED = 0.9
"""Of the way from uniform play to the best response, that the focal agent goes."""
TEAM_REACHED = 0.8
"""Of the way from level 0 to the best response, that level 1 of the team goes."""

_HELD_OUT_SEED = 10**6


@dataclass(frozen=True)
class Known:
    """The team that made the replay, in held-out states.

    Attributes
    ----------
    nodes : (n,) int64
        Of the store; distinct.
    share : (n,) float64
        How often each occurs; sums to 1.
    team : (n, team actions) float64
    """

    nodes: NDArray[np.int64]
    share: NDArray[np.float64]
    team: NDArray[np.float64]

    def cross_entropy(self, other: NDArray[np.float64]) -> float:
        """Mean cross-entropy in nats from the team's policy to another, (n, team actions)."""
        return float(-(self.share @ (self.team * np.log(np.maximum(other, 1e-300))).sum(axis=1)))


def make_export(folder: Path, world: Pursuit, chase: Chase, transitions: int, seed: int) -> None:
    """Stream the world's rows and a replay into a store."""
    with omstore.create(
        folder, agents=world.agents, num_actions=world.num_actions, state_width=world.width
    ) as writer:
        numbers = writer.add_nodes(world.vectors(np.arange(world.num_nodes)))
        step = max(1, (1 << 16) // world.num_joint_actions)
        for first in range(0, world.num_nodes, step):
            nodes = np.arange(first, min(first + step, world.num_nodes)).repeat(world.num_joint_actions)
            actions = np.tile(np.arange(world.num_joint_actions), len(nodes) // world.num_joint_actions)
            found = world.successors(nodes, actions)
            writer.add_rows(
                numbers[nodes],
                actions,
                offsets=found.offsets,
                next_nodes=numbers[found.next_node],
                probability=found.probability,
                reward=found.reward,
                done=found.done,
            )
        steps = walk(world, transitions, chase, np.random.default_rng(seed))
        for first in range(0, transitions, 1 << 16):
            part = slice(first, first + (1 << 16))
            writer.add_transitions(
                world.vectors(steps.node[part]),
                steps.joint_action[part],
                world.vectors(steps.next_node[part]),
                steps.reward[part],
                steps.done[part],
            )


def held_out(graph: omstore.Graph, world: Pursuit, chase: Chase, transitions: int) -> Known:
    """Walk again, with other random numbers."""
    steps = walk(world, transitions, chase, np.random.default_rng(_HELD_OUT_SEED))
    states, count = np.unique(steps.node, return_counts=True)
    nodes = graph.lookup(world.vectors(states))
    order = np.argsort(nodes)
    return Known(nodes[order], count[order] / count.sum(), chase.team(states[order]))


@dataclass(frozen=True)
class Learned:
    """What one seed came to: level 0's cross-entropy beyond the team's entropy, as a fraction of that; and how far the
    focal agent goes from uniform play to the best response to level 0, and the team from level 0 to the best response to
    that focal agent."""

    excess: float
    way: float
    team_way: float


class Bench:
    """An export, and the team that made its replay."""

    def __init__(self, inputs: OMTrainingInputs, world: Pursuit, chase: Chase, transitions: int) -> None:
        self.inputs = inputs
        self.known = held_out(inputs.graph, world, chase, transitions)
        self.tabulator = PolicyTabulator(inputs.dyn, RolloutTables(inputs.graph))
        self.exact = ExactModel(inputs.graph, inputs.focal_agent)
        number = np.arange(world.num_nodes)
        self.team = np.empty((world.num_nodes, inputs.dyn.actions.num_team))
        self.team[inputs.graph.lookup(world.vectors(number))] = chase.team(number)

    def learn(self, config: TrainConfig) -> Learned:
        """Train level 0, the focal agent against it, and level 1 against that, as `omtrain` does."""
        opponent, excess = self._level0(config)
        dyn, buffer = self.inputs.dyn, self.inputs.buffer
        agent = OpponentMLP(dyn.state_width, dyn.actions.num_focal, config.hidden, seed=config.seed + 1000)
        stairs = config.staircase(
            agent_numbers=dyn.num_nodes * dyn.actions.num_focal,
            team_numbers=dyn.num_nodes * dyn.actions.num_team,
        )
        first, second = stairs.phases[:2]
        self._improve(config, stairs, first, agent, opponent.level(0))
        own = self.tabulator.probabilities(agent, "agent").numpy()
        level0 = self.tabulator.probabilities(opponent.level(0), "team").numpy()
        uniform = self.exact.uniform("agent")
        way = self._way(config, "agent", (uniform, level0), (own, level0), "agent phase 1, against level 0")
        self._way(config, "agent", (uniform, self.team), (own, self.team), "the same against the team itself")
        raised = opponent.add_level()
        wake_dead_units(raised, buffer, seed=config.seed, phase=second.number)
        self._improve(config, stairs, second, raised, agent)
        level1 = self.tabulator.probabilities(raised, "team").numpy()
        team_way = self._way(config, "team", (own, level0), (own, level1), "team phase 2, against that agent")
        return Learned(excess, way, team_way)

    def _improve(
        self,
        config: TrainConfig,
        stairs: StaircaseConfig,
        phase: Phase,
        learner: OpponentMLP,
        other: OpponentMLP,
    ) -> None:
        settings = replace(stairs.of_phase(phase), print_every=0)
        start, busy = time.perf_counter(), time.process_time()
        metrics = soft_rollout_policy_improvement(
            learner, other, self.inputs.buffer, self.inputs.dyn, settings, phase=phase
        )
        print(
            f"seed {config.seed}: {phase.learner} phase {phase.number}, values by {settings.action_values}: "
            f"{metrics['local']} updates, {metrics['imagined_steps']:,} imagined steps, {time.perf_counter() - start:.0f} s "
            f"({time.process_time() - busy:.0f} s of processors)",
            flush=True,
        )

    def _level0(self, config: TrainConfig) -> tuple[ImaginedOpponent, float]:
        dyn = self.inputs.dyn
        start = time.perf_counter()
        opponent = ImaginedOpponent(dyn.state_width, dyn.actions.num_team, config.hidden, seed=config.seed)
        report = opponent.fit_level0(self.inputs.buffer, config.level0())
        spent = time.perf_counter() - start
        table = self.tabulator.probabilities(opponent.level(0), "team", self.known.nodes)
        reached = self.known.cross_entropy(table.numpy().astype(np.float64))
        entropy = self.known.cross_entropy(self.known.team)
        print(
            f"seed {config.seed}: level 0: entropy {entropy:.4f}, cross-entropy {reached:.4f} nats "
            f"(+{100 * (reached / entropy - 1):.2f}%; by the buffer's held-out samples {report.held_out_loss:.4f}), "
            f"{report.updates} updates, {spent:.0f} s"
        )
        return opponent, reached / entropy - 1

    def _way(
        self,
        config: TrainConfig,
        side: Side,
        begins: tuple[NDArray[Any], NDArray[Any]],
        ends: tuple[NDArray[Any], NDArray[Any]],
        what: str,
    ) -> float:
        """Where a side's return lies between that of the first pair of policies, the agent's and the team's, and that of
        its best response to the other side's."""
        responds = (None, ends[1]) if side == "agent" else (ends[0], None)
        solved = self.exact.solve(
            [Problem(*begins, side), Problem(*ends, side), Problem(*responds)],
            horizon=config.horizon,
            discount=config.discount,
        )
        nodes = self.inputs.buffer.graph_state_idx
        begin, value, best = (float(solution.values[nodes].mean()) for solution in solved)
        way = (value - begin) / (best - begin)
        print(
            f"seed {config.seed}: {what}: from {begin:.4f} ({'uniform play' if side == 'agent' else 'level 0'}) to "
            f"{value:.4f}; best response {best:.4f}: {100 * way:.1f}% of the way",
            flush=True,
        )
        return way


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 1 where a claim fails."""
    parser = argparse.ArgumentParser(description="What training learns, against what is known exactly.")
    parser.add_argument("--agents", type=int, default=2)
    parser.add_argument("--slip", type=float, default=0.1)
    parser.add_argument("--sharpness", type=float, default=1.0, help="nats a step nearer, of the team")
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--root-states", type=int, default=TrainConfig.agent_root_state_samples)
    parser.add_argument("--export", type=Path, help="keep the export here, and use it if it is there")
    options = parser.parse_args(arguments)
    world = Pursuit(options.agents, options.slip)
    focal = options.agents - 1
    chase = Chase(world, focal, options.sharpness)
    learned = []
    with tempfile.TemporaryDirectory(prefix="omstore-bench-") as name:
        export = options.export or Path(name) / "export"
        if not (export / "store").exists():
            make_export(export, world, chase, options.transitions, seed=0)
        inputs = prepare_om_training_inputs(export, focal_agent=focal)
        print(f"{inputs.graph!r}, {len(inputs.buffer):,} transitions")
        bench = Bench(inputs, world, chase, max(10_000, options.transitions // 5))
        for seed in range(options.seeds):
            learned.append(bench.learn(TrainConfig(seed=seed, agent_root_state_samples=options.root_states)))
    # the worst of all seeds
    holds = verdict(
        "entropy / cross-entropy of level 0", 1 / (1 + max(each.excess for each in learned)), 1 / (1 + WITHIN)
    )
    holds &= verdict("way to the best response, agent", min(each.way for each in learned), REACHED)
    holds &= verdict("way to the best response, team", min(each.team_way for each in learned), TEAM_REACHED)
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
