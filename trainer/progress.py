"""What a phase of the staircase shows: its label, the bar's postfix, when both are refreshed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, TextIO

from tqdm import tqdm

__all__ = ["METRICS", "Metrics", "Phase", "PhaseBar", "is_due", "postfix", "refresh_interval"]

Metrics = dict[str, Any]
"""The metrics of a refresh by name: numbers, words, and None for what isn't known."""

METRICS: Mapping[str, str] = {
    "phase": "Number of the phase in the staircase, from 1.",
    "phases": "Phases of the staircase.",
    "learner": "Who learns: agent (the focal agent) or team.",
    "level": "In agent phases the level of the team played against; in team phases the level being trained.",
    "local": "Successful updates of this phase: those whose batch had a valid root.",
    "local_total": "Updates of this phase at most: ceil(root_state_samples / batch).",
    "global": "Root states used over the whole staircase.",
    "global_total": "Root states of the whole staircase.",
    "roots": "Root states used in this phase, those that aren't in the graph included.",
    "roots_total": "root_state_samples of this phase.",
    "valid": "Roots of the last batch that survived the graph filter.",
    "requested": "Roots of the last batch that were drawn.",
    "policy_ce": "Cross-entropy in nats from the rollout-induced soft target to the current logits, mean over the valid "
    "roots of the last batch that had any, before its update. Here and below None if there was no such batch.",
    "entropy": "Entropy in nats of the current masked policy, mean over the same roots.",
    "objective": "policy_ce - entropy_coef * entropy, which the update lowers.",
    "target_entropy": "Entropy in nats of the soft target, mean over the same roots: the lowest that policy_ce can be.",
    "q_mean": "Mean of the estimated action values of the same roots.",
    "q_best": "The highest estimated action value of a root, mean over the same roots.",
    "q_policy": "The policy's mean of the estimated action values of a root, mean over the same roots.",
    "q_error": "Standard error of an estimated action value, root mean square over the same roots; None with one "
    "rollout, 0 of exact action values.",
    "imagined_steps": "Steps of imagined rollouts in this phase at most: evaluated actions x n_rollouts x horizon; "
    "0 where action values are exact.",
}
"""What each metric of policy improvement means."""


@dataclass(frozen=True)
class Phase:
    """A phase of the staircase.

    Attributes
    ----------
    number, phases : int
        Which of how many, from 1.
    learner : {"agent", "team"}
        Who learns.
    level : int
        In agent phases the level of the team played against; in team phases the level being trained.
    """

    number: int = 1
    phases: int = 1
    learner: Literal["agent", "team"] = "agent"
    level: int = 0

    @property
    def label(self) -> str:
        """Such as ``soft-rollout-PI 1/4 | agent opp=L0`` or ``soft-rollout-PI 2/4 | team level=L1``."""
        what = "opp" if self.learner == "agent" else "level"
        return f"soft-rollout-PI {self.number}/{self.phases} | {self.learner} {what}=L{self.level}"


def refresh_interval(print_every: int, root_state_samples: int) -> int:
    """Return how many root states lie between two refreshes: at least a tenth of all."""
    return max(print_every, -(-root_state_samples // 10))


def is_due(before: int, now: int, print_every: int, root_state_samples: int) -> bool:
    """Whether to refresh after root states `before + 1` to `now`: if they contain a multiple of the interval, or the
    last one of the phase."""
    interval = refresh_interval(print_every, root_state_samples)
    return now // interval > before // interval or before < root_state_samples <= now


def postfix(metrics: Metrics) -> str:
    """Write what stands behind the bar.

    Parameters
    ----------
    metrics : dict
        See `METRICS`.

    Returns
    -------
    str
        Such as ``local=300/3000 global=76800/3840000 (2.0%) roots=76800/768000 valid=256/256 policy_ce=0.6862
        entropy=0.6930 objective=0.6827``.
    """
    percent = 100 * metrics["global"] / metrics["global_total"]
    losses = " ".join(
        f"{name}={'nan' if metrics[name] is None else format(metrics[name], '.4f')}"
        for name in ("policy_ce", "entropy", "objective")
    )
    return (
        f"local={metrics['local']}/{metrics['local_total']} "
        f"global={metrics['global']}/{metrics['global_total']} ({percent:.1f}%) "
        f"roots={metrics['roots']}/{metrics['roots_total']} "
        f"valid={metrics['valid']}/{metrics['requested']} {losses}"
    )


class _Bar(tqdm):  # type: ignore[type-arg,unused-ignore,misc]
    monitor_interval = 0  # no thread that redraws: refreshes are sparse on purpose


_Bar.set_lock(threading.RLock())  # none shared between processes, which takes a semaphore of the system


class PhaseBar:
    """One bar for one phase; elsewhere than on a terminal a line a refresh.

    Parameters
    ----------
    phase : Phase
    total : int
        root_state_samples of the phase.
    initial : int
        Root states used before, where a phase goes on.
    print_every : int
        0 shows nothing.
    stream : text file, optional
        By default ``sys.stderr``.
    """

    def __init__(
        self,
        phase: Phase,
        total: int,
        *,
        initial: int = 0,
        print_every: int = 1,
        stream: TextIO | None = None,
    ) -> None:
        self._label = phase.label
        self._stream = sys.stderr if stream is None else stream
        self._shown = print_every > 0
        self._bar: Any = None
        if self._shown and self._stream.isatty():
            self._bar = _Bar(
                desc=phase.label,
                total=total,
                initial=initial,
                unit=" roots",
                file=self._stream,
                dynamic_ncols=True,
            )

    def refresh(self, metrics: Metrics) -> None:
        """Show where the phase stands."""
        if self._bar is not None:
            self._bar.n = metrics["roots"]
            self._bar.set_postfix_str(postfix(metrics), refresh=False)
            self._bar.refresh()
        elif self._shown:
            self._stream.write(f"{self._label}: {postfix(metrics)}\n")
            self._stream.flush()

    def __enter__(self) -> PhaseBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
