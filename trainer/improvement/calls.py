"""Running an improver to its end, with its bar; and the one call that does it all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from omstore.memory import DEFAULT_BUDGET
from trainer.adapter import GraphWorldModelAdapter
from trainer.improvement.action_values import RolloutModel
from trainer.improvement.config import SoftRolloutPIConfig
from trainer.improvement.improver import SoftRolloutImprover
from trainer.improvement.ranks import Ranks
from trainer.improvement.roots import StatesSource
from trainer.models import OpponentMLP
from trainer.progress import Metrics, Phase, PhaseBar

__all__ = ["run_improver", "soft_rollout_policy_improvement"]


def run_improver(
    improver: SoftRolloutImprover,
    *,
    stream: TextIO | None = None,
    show: bool = True,
    on_update: Callable[[], object] | None = None,
    on_refresh: Callable[[Metrics], object] | None = None,
) -> None:
    """Go on until all root states are used, and show one bar.

    Parameters
    ----------
    improver : SoftRolloutImprover
    stream : text file, optional
        Where the bar goes; by default ``sys.stderr``.
    show : bool
        Whether there is a bar at all; ranks but one have none.
    on_update : callable, optional
        Called after every batch of roots, when the improver's state may be saved: after `on_refresh`, so that what
        it wrote belongs to that state.
    on_refresh : callable, optional
        Called with the metrics of each refresh; also where the bar is off.
    """
    config = improver.config
    with PhaseBar(
        improver.phase,
        config.root_state_samples,
        initial=improver.roots,
        print_every=config.print_every if show else 0,
        stream=stream,
    ) as bar:
        while not improver.finished:
            if improver.step():
                metrics = improver.metrics()
                bar.refresh(metrics)
                if on_refresh is not None:
                    on_refresh(metrics)
            if on_update is not None:
                on_update()


def soft_rollout_policy_improvement(
    learner: OpponentMLP,
    other: OpponentMLP,
    states_source: StatesSource,
    dyn: GraphWorldModelAdapter,
    config: SoftRolloutPIConfig | None = None,
    *,
    phase: Phase | None = None,
    global_before: int = 0,
    global_total: int | None = None,
    threads: int = 2,
    max_ram: int = DEFAULT_BUDGET,
    ranks: Ranks | None = None,
    stream: TextIO | None = None,
    on_refresh: Callable[[Metrics], object] | None = None,
) -> Metrics:
    """Improve a policy by imagined rollouts against a fixed other side.

    Parameters
    ----------
    learner : OpponentMLP
        The focal agent's network, or (``phase.learner == "team"``) the team's; trained in place.
    other : OpponentMLP
        The other side's.
    states_source : StatesSource
        What root states are drawn from, usually the `OMBuffer` of `prepare_om_training_inputs`.
    dyn : GraphWorldModelAdapter
        The one of `prepare_om_training_inputs`.
    config : SoftRolloutPIConfig, optional
    phase : Phase, optional
        By default the focal agent learns, phase 1 of 1.
    global_before, global_total : int
        Root states of the staircase used before, and all; default: this call is all.
    threads : int
        No influence on the result.
    max_ram : int
        Bytes of memory to stay under; no influence on the result. See `RolloutModel`.
    ranks : Ranks, optional
        Processes that share the rollouts.
    stream : text file, optional
        Where the bar goes; by default ``sys.stderr``.
    on_refresh : callable, optional
        Called with the metrics of each refresh.

    Returns
    -------
    dict
        The metrics at the end; `trainer.progress.METRICS` defines them.

    Raises
    ------
    UsageError
        If there are no states to draw, networks don't fit the graph, or training diverges.
    """
    model = RolloutModel(dyn, threads=threads, max_ram=max_ram)
    improver = SoftRolloutImprover(
        learner,
        other,
        states_source,
        model,
        config or SoftRolloutPIConfig(),
        phase=phase,
        global_before=global_before,
        global_total=global_total,
        ranks=ranks,
    )
    show = ranks is None or ranks.rank == 0
    run_improver(improver, stream=stream, show=show, on_refresh=on_refresh)
    return improver.metrics()
