"""A million rollouts against exact action values, and how long each takes.

    python tools/bench/bench_rollouts.py

Two agents, and three; slip 0.1; random networks as policies. The values of every
action of 20 roots are estimated by 10,000 rollouts each, as the focal agent's and as the team's, and computed by
sweeps over the rows (`trainer.exact`). An estimate that is off by its standard error on average has a mean square
of 1; the mean over all estimates must be within 3 standard errors of 0, and none beyond 4.5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when run as a script

import omstore
from omstore import RolloutTables, stream_key
from omstore.build import BuildOptions, build
from omstore.model import load_model
from omstore.rollout import rollout
from tools.bench.timing import verdict
from trainer.adapter import GraphWorldModelAdapter
from trainer.exact import ExactModel
from trainer.models import OpponentMLP
from trainer.tables import PolicyTabulator, Side

HORIZON, DISCOUNT = 10, 0.95
SHARPER = 8.0
"""Factor on the logits of random networks, which are nearly uniform else."""


def check(graph: omstore.Graph, side: Side, roots: int, rollouts: int) -> bool:
    """Estimate and compute the values of all actions of some roots."""
    focal = len(graph.agents) - 1
    dyn = GraphWorldModelAdapter(graph, focal_agent=focal)
    tables = RolloutTables(graph)
    tabulator = PolicyTabulator(dyn, tables)
    policies = {}
    sides: tuple[tuple[Side, int], ...] = (("agent", dyn.actions.num_focal), ("team", dyn.actions.num_team))
    for seed, (name, count) in enumerate(sides):
        network = OpponentMLP(graph.state_width, count, seed=seed)
        network.head.weight.data *= SHARPER
        policies[name] = tabulator.table(network, name)
    start = time.perf_counter()
    exact = ExactModel(graph, focal).action_values(
        policies["agent"], policies["team"], side=side, horizon=HORIZON, discount=DISCOUNT
    )
    swept = time.perf_counter() - start
    chosen = np.random.default_rng(0).integers(0, graph.num_nodes, roots)
    members = [focal] if side == "agent" else [agent for agent in range(len(graph.agents)) if agent != focal]
    weights = np.zeros(len(graph.agents))
    weights[members] = 1 / len(members)
    count = exact.shape[1]
    start = time.perf_counter()
    means, squares = rollout(
        tables,
        chosen,
        np.tile(np.arange(count), (roots, 1)),
        stream_key(7, np.arange(roots)),
        learner=members,
        learner_table=policies[side],
        other_table=policies["team" if side == "agent" else "agent"],
        n_rollouts=rollouts,
        horizon=HORIZON,
        discount=DISCOUNT,
        reward_weights=weights,
    )
    seconds = time.perf_counter() - start
    error = np.sqrt(np.maximum(squares - means**2, 0.0) / (rollouts - 1))
    uncertain = error > 1e-9
    off = (means - exact[chosen])[uncertain]
    z = off / error[uncertain]
    bias, bias_error = off.mean(), np.sqrt((error[uncertain] ** 2).sum()) / len(off)
    print(
        f"  {side}: {means.size * rollouts:,} rollouts of {roots} roots x {count} actions in {seconds:.1f} s, exact "
        f"values in {swept:.1f} s: bias {bias:+.2e}, its standard error {bias_error:.1e}; mean square "
        f"{(z**2).mean():.3f}, largest {np.abs(z).max():.2f} standard errors"
    )
    certain = bool((np.abs(means - exact[chosen])[~uncertain] < 1e-8).all())
    holds = verdict("3 standard errors / bias", 3 * bias_error / abs(bias), 1.0)
    return holds & certain & bool(np.abs(z).max() < 4.5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 1 where a claim fails."""
    parser = argparse.ArgumentParser(description="A million rollouts against exact action values.")
    parser.add_argument("--rollouts", type=int, default=1_000_000, help="about that many in all")
    options = parser.parse_args(arguments)
    holds = True
    with tempfile.TemporaryDirectory(prefix="omstore-bench-") as folder:
        for agents in (2, 3):
            export = Path(folder) / str(agents)
            model = load_model("pursuit", {"agents": agents, "slip": 0.1})
            build(model, export, BuildOptions(rows="factored"))
            graph = omstore.open(export).graph
            assert graph is not None
            print(repr(graph))
            for side, actions in (("agent", 5), ("team", graph.num_joint_actions // 5)):
                rollouts = max(2, options.rollouts // (20 * actions))
                holds &= check(graph, side, 20, rollouts)  # type: ignore[arg-type]
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
