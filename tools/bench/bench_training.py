"""Updates per second of soft rollout policy improvement, beside two ways in which it was, or would be, written.

    python tools/bench/bench_training.py                      # (b) on 3 agents, slip 0.1: 5 GB of memory
    python tools/bench/bench_training.py --agents 2           # (b) on 2 agents: seconds

An update is 512 roots x 5 candidates x 8 rollouts x horizon 10 and one step of Adam; networks of 128-128.

(a) The old way, on a graph that is small enough for it: an object for each edge, found through dicts, one
environment after the other; both networks evaluated at every step (in one batch, which is kind to it).
(b) PyTorch on the whole graph as CSR in memory, all environments together; both networks evaluated at every step;
actions and successors drawn by `torch.multinomial`. Also as quick as we could write it: drawn by cumulative sums and
a binary search; and so that environments that are done leave the batch, which makes less work the sooner episodes end.

All ways estimate the action values of the same roots; they must agree within sampling error.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

from omstore.build import BuildOptions, build
from omstore.model import load_model
from tools.bench.timing import alternate, verdict
from trainer.adam import Adam
from trainer.adapter import GraphWorldModelAdapter
from trainer.improvement import ActionValues, RolloutModel, Roots, SoftRolloutImprover, SoftRolloutPIConfig
from trainer.improvement.objective import objective, soft_target
from trainer.models import OpponentMLP
from trainer.prepare import prepare_om_training_inputs

CLAIMS = {"objects": 50.0, "CSR": 20.0}

HIDDEN = 128
"""Units in each hidden layer."""
SMALL_GRID = ("...", ".#.", "...")
"""Of three agents: 512 nodes and 760,192 edges with slip 0.1, of which as many objects fit into memory."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Edge:
    """What an unpickled graph consists of."""

    source: int
    joint_action: tuple[int, ...]
    target: int
    probability: float
    reward: tuple[float, ...]
    done: bool


class EdgeObjects:
    """(a): edges by (node, joint action) in a dict, states by node in another."""

    def __init__(self, dyn: GraphWorldModelAdapter) -> None:
        self.dyn = dyn
        graph = dyn.graph
        self.outgoing: dict[tuple[int, tuple[int, ...]], list[Edge]] = {}
        for chunk in graph.sweep(1 << 12):
            found = chunk.successors
            rows = np.repeat(chunk.rows, found.outdegree)
            joint = graph.decode_joint(rows % graph.num_joint_actions)
            for i, row in enumerate(rows.tolist()):
                edge = Edge(
                    row // graph.num_joint_actions, tuple(joint[i].tolist()), int(found.next_node[i]),
                    float(found.probability[i]), tuple(found.reward[i].tolist()), bool(found.done[i]),
                )  # fmt: skip
                self.outgoing.setdefault((edge.source, edge.joint_action), []).append(edge)
        self.state = {
            node: torch.from_numpy(graph.states([node])[0]).float() for node in range(graph.num_nodes)
        }

    def rollouts(
        self, roots: Roots, learner: OpponentMLP, other: OpponentMLP, config: SoftRolloutPIConfig
    ) -> Floats:
        """(v * C, n_rollouts) returns."""
        focal = self.dyn.focal_agent
        graph = self.dyn.graph
        node = np.repeat(roots.node, roots.candidates.shape[1] * config.n_rollouts).tolist()
        first = np.repeat(roots.candidates.reshape(-1), config.n_rollouts).tolist()
        total, power = [0.0] * len(node), 1.0
        alive = list(range(len(node)))
        for step in range(config.horizon):
            states = torch.stack([self.state[node[i]] for i in alive])
            with torch.no_grad():
                theirs = torch.multinomial(torch.softmax(other(states), 1), 1)[:, 0].tolist()
                own = torch.multinomial(torch.softmax(learner(states), 1), 1)[:, 0].tolist()
            if step == 0:
                own = first
            going = []
            for k, i in enumerate(alive):
                joint = graph_joint(graph.num_actions, focal, own[k], theirs[k])
                edges = self.outgoing[node[i], joint]
                edge = random.choices(edges, [each.probability for each in edges])[0]
                total[i] += power * edge.reward[focal]
                node[i] = edge.target
                if not edge.done:
                    going.append(i)
            alive = going
            power *= config.discount
            if not alive:
                break
        return np.array(total).reshape(-1, config.n_rollouts)


def graph_joint(num_actions: tuple[int, ...], focal: int, own: int, team: int) -> tuple[int, ...]:
    """The joint action as a tuple of an own action and a team action."""
    actions = []
    for agent in reversed(range(len(num_actions))):
        if agent == focal:
            actions.append(own)
        else:
            team, action = divmod(team, num_actions[agent])
            actions.append(action)
    return tuple(reversed(actions))


class TorchCsr:
    """(b): the graph in tensors. 8 bytes an edge, and 8 a row.

    `multinomial`: whether that draws, rather than cumulative sums. `leaves_out`: whether environments that are done
    are taken out of the batch, rather than masked.
    """

    multinomial = True
    leaves_out = False

    def __init__(self, dyn: GraphWorldModelAdapter) -> None:
        self.dyn = dyn
        graph = dyn.graph
        self.offsets = torch.zeros(graph.num_rows + 1, dtype=torch.int64)
        self.next_node = torch.empty(graph.num_edges, dtype=torch.int32)
        self.probability = torch.empty(graph.num_edges, dtype=torch.float32)
        self.reward = torch.zeros(
            graph.num_nodes
        )  # of pursuit: a function of the next node, outside absorbing ones
        self.done = torch.zeros(graph.num_nodes, dtype=torch.bool)
        edges = 0
        for chunk in graph.sweep(1 << 14):
            found = chunk.successors
            part = slice(edges, edges + len(found.next_node))
            rows = slice(chunk.first_row + 1, chunk.first_row + len(found.offsets))
            self.offsets.numpy()[rows] = edges + found.offsets[1:]
            self.next_node.numpy()[part] = found.next_node
            self.probability.numpy()[part] = found.probability
            moved = np.repeat(chunk.rows // graph.num_joint_actions, found.outdegree) != found.next_node
            self.done.numpy()[found.next_node] |= found.done
            entered = found.next_node[moved]
            self.reward.numpy()[entered] = found.reward[moved, dyn.focal_agent]
            edges = part.stop
        self.states = torch.from_numpy(graph.states(np.arange(graph.num_nodes)))
        self.joint = torch.from_numpy(
            dyn.actions.join(np.arange(dyn.actions.num_focal)[:, None], np.arange(dyn.actions.num_team))
        )

    @torch.no_grad()
    def rollouts(
        self, roots: Roots, learner: OpponentMLP, other: OpponentMLP, config: SoftRolloutPIConfig
    ) -> Floats:
        """(v * C, n_rollouts) returns."""
        per_root = roots.candidates.shape[1] * config.n_rollouts
        node = torch.from_numpy(roots.node).repeat_interleave(per_root)
        first = torch.from_numpy(roots.candidates).reshape(-1).repeat_interleave(config.n_rollouts)
        total = torch.zeros(len(node))
        at, alive = torch.arange(len(node)), torch.ones(len(node), dtype=torch.bool)
        power = 1.0
        for step in range(config.horizon):
            states = self.states[node].float()
            draw = _draw_multinomial if self.multinomial else _draw
            theirs = draw(other(states))
            own = first if step == 0 else draw(learner(states))
            node = self._move(node * len(self.joint.view(-1)) + self.joint[own, theirs])
            if self.leaves_out:
                total[at] += power * self.reward[node]
                going = ~self.done[node]
                node, at = node[going], at[going]
            else:
                total += power * self.reward[node] * alive
                alive &= ~self.done[node]
            power *= config.discount
        return total.double().numpy().reshape(-1, config.n_rollouts)

    def _move(self, rows: Tensor) -> Tensor:
        start = self.offsets[rows]
        degree = self.offsets[rows + 1] - start
        if self.multinomial:
            place = torch.arange(int(degree.max()))
            edges = start[:, None] + place
            chance = self.probability[edges.clamp_max(len(self.probability) - 1)]
            chosen = torch.multinomial(chance * (place < degree[:, None]), 1)[:, 0]
            return self.next_node[start + chosen].long()
        ends = torch.cumsum(degree, 0)
        begin = ends - degree
        edges = torch.arange(int(ends[-1])) + torch.repeat_interleave(start - begin, degree)
        sums = torch.cumsum(self.probability[edges].double(), 0)
        before = torch.where(begin > 0, sums[begin - 1], 0.0)
        wanted = before + torch.rand(len(rows), dtype=torch.float64) * (sums[ends - 1] - before)
        chosen = torch.searchsorted(sums, wanted, right=True)
        return self.next_node[edges[torch.minimum(chosen, ends - 1)]].long()


def _draw(logits: Tensor) -> Tensor:
    sums = torch.cumsum(torch.softmax(logits, 1), 1)
    chosen = torch.searchsorted(sums, torch.rand(len(logits), 1) * sums[:, -1:], right=True)[:, 0]
    return chosen.clamp_max(logits.shape[1] - 1)


def _draw_multinomial(logits: Tensor) -> Tensor:
    return torch.multinomial(torch.softmax(logits, 1), 1)[:, 0]


class Training:
    """A small training run of ours, and the same updates in another way."""

    def __init__(self, export: Path, focal: int, threads: int) -> None:
        inputs = prepare_om_training_inputs(export, focal_agent=focal)
        self.dyn = inputs.dyn
        width = self.dyn.state_width
        self.config = SoftRolloutPIConfig(
            root_state_samples=512 * 10_000, batch=512, n_rollouts=8, horizon=10, print_every=0
        )
        self.other = OpponentMLP(width, self.dyn.actions.num_team, HIDDEN, seed=1)
        self.model = RolloutModel(self.dyn, threads=threads)
        self.learner = OpponentMLP(width, self.dyn.actions.num_focal, HIDDEN, seed=2)
        self.improver = SoftRolloutImprover(self.learner, self.other, inputs.buffer, self.model, self.config)

    def updates_by(self, way: EdgeObjects | TorchCsr) -> Callable[[], object]:
        """The same update, its action values estimated in another way."""
        learner = OpponentMLP(self.dyn.state_width, self.dyn.actions.num_focal, HIDDEN, seed=2)
        optimizer = Adam(learner.parameters(), self.config.lr)

        def update() -> None:
            roots = self.improver.draw()
            values = torch.from_numpy(way.rollouts(roots, learner, self.other, self.config).mean(axis=1))
            everything = torch.ones(len(roots.node), learner.num_actions, dtype=torch.bool)
            target = soft_target(values.reshape(everything.shape), everything, self.config.softness)
            logits = learner(torch.from_numpy(self.dyn.states(roots.node)).float())
            loss = objective(logits, target, everything, everything, self.config.entropy_coef)
            optimizer.zero_grad()
            loss.value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return update

    def agrees(self, name: str, way: EdgeObjects | TorchCsr) -> bool:
        """Compare action values of one batch of roots with ours."""
        roots = self.improver.draw()
        learner = OpponentMLP(self.dyn.state_width, self.dyn.actions.num_focal, HIDDEN, seed=3)
        ours = ActionValues(self.model, "agent", self.other, self.config).estimate(learner, roots)
        theirs = way.rollouts(roots, learner, self.other, self.config)
        count = self.config.n_rollouts
        difference = theirs.mean(axis=1) - ours.mean.reshape(-1)
        variance = ours.square.reshape(-1) - ours.mean.reshape(-1) ** 2 + theirs.var(axis=1)
        errors = variance / (
            count - 1
        )  # of the difference of two means, each with its own estimate of variance
        z = float(difference.sum() / np.sqrt(errors.sum()))
        spread = float((difference**2).sum() / errors.sum())
        print(
            f"  {name}: mean action value {theirs.mean():.4f}, ours {ours.mean.mean():.4f}: {z:+.2f} standard errors; "
            f"squared differences are {spread:.3f} of what sampling makes of them"
        )
        return abs(z) < 4 and abs(spread - 1) < 0.15


def compare(name: str, training: Training, way: EdgeObjects | TorchCsr, rounds: int, updates: int) -> bool:
    """Time a way beside ours; ours makes some updates for each of the other's."""
    assert training.model.tables.legality.always

    def ours() -> None:
        for _ in range(updates):
            training.improver.step()

    holds = training.agrees(name, way)
    calls = {"omtrain": ours, name: training.updates_by(way)}
    if isinstance(way, TorchCsr):
        sums, shorter = copy.copy(way), copy.copy(way)
        sums.multinomial = shorter.multinomial = False
        shorter.leaves_out = True
        for title, variant in (("CSR, by sums", sums), ("CSR, shorter", shorter)):
            holds &= training.agrees(title, variant)
            calls[title] = training.updates_by(variant)
    if not holds:
        print("FAILS: the results differ")
    seconds = alternate(calls, rounds)
    own = seconds["omtrain"] = seconds["omtrain"] / updates
    for each, value in seconds.items():
        print(
            f"  {each:12} {1 / value:8.2f} updates/s ({1000 * value:8.1f} ms, {value / own:6.1f} times ours)"
        )
    return holds & verdict(f"speed beside {name}", seconds[name] / own, CLAIMS[name])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 1 where a claim fails."""
    parser = argparse.ArgumentParser(description="Updates a second, beside other ways of training.")
    parser.add_argument("--agents", type=int, default=3)
    parser.add_argument("--slip", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--threads",
        type=int,
        default=2,
        help="of all ways; torch's wait for each other where other programs run",
    )
    parser.add_argument("--ways", default="objects,CSR", help="which to measure beside ours")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    print(f"load {os.getloadavg()[0]:.1f}, {options.threads} threads")
    small = {"agents": 3, "slip": options.slip, "grid": list(SMALL_GRID)}
    large = {"agents": options.agents, "slip": options.slip}
    worlds: list[tuple[str, dict[str, Any], Callable[[GraphWorldModelAdapter], Any]]] = [
        ("objects", small, EdgeObjects), ("CSR", large, TorchCsr),
    ]  # fmt: skip
    holds = True
    with tempfile.TemporaryDirectory(prefix="omstore-bench-") as folder:
        for name, parameters, way in (world for world in worlds if world[0] in options.ways.split(",")):
            export = Path(folder) / name
            build(load_model("pursuit", parameters), export, BuildOptions(transitions=50_000))
            training = Training(export, parameters["agents"] - 1, options.threads)
            print(f"{training.dyn.graph!r}")
            holds &= compare(name, training, way(training.dyn), options.rounds, updates=10)
            print(f"  load {os.getloadavg()[0]:.1f}")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
