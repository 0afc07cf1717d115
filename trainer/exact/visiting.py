"""How often nodes are visited when two policies are played."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omstore.errors import UsageError
from omstore.exact import Pusher
from trainer.exact.model import ExactModel
from trainer.exact.problems import Policy

__all__ = ["Visits", "visits"]

_MOST_SWEEPS = 100_000


@dataclass(frozen=True)
class Visits:
    """Expected numbers of visits.

    Attributes
    ----------
    frequency : (N,) float64
        Expected discounted number of visits of each node in an episode: a visit after t steps counts ``discount **
        t``. The root counts, and so does the node where an episode is done.
    going_on : float
        Probability that an episode still goes on after the last step that was counted.
    sweeps : int
    error : float
        Most that the sum of all frequencies may be below that of an endless horizon, where that was asked for; else 0.
    """

    frequency: NDArray[np.float64]
    going_on: float
    sweeps: int
    error: float = 0.0


def visits(
    model: ExactModel,
    agent: Policy,
    team: Policy,
    *,
    start: NDArray[np.float64] | None = None,
    horizon: int | None,
    discount: float = 1.0,
    tolerance: float = 1e-9,
) -> Visits:
    """Compute how often each node is visited.

    Parameters
    ----------
    model : ExactModel
    agent, team : Policy
    start : (N,) float64, optional
        How likely episodes begin at each node. Default: at all alike.
    horizon : int or None
        Steps. None: no end; goes on until what is left out is at most `tolerance` visits.
    discount : float
        0 to 1; below 1 without an end.
    tolerance : float

    Returns
    -------
    Visits
        Memory: 64 bytes a node, and some megabytes a thread; see `omstore.exact.Pusher` for the way through the rows.

    Raises
    ------
    UsageError
        If a policy has another shape, the start is no distribution, or a number makes no sense.
    """
    if (horizon is not None and horizon < 0) or not 0 <= discount <= 1:
        raise UsageError(f"a horizon of {horizon} steps is at least 0; a discount of {discount} is 0 to 1")
    if horizon is None and (not discount < 1 or not tolerance > 0):
        raise UsageError(f"without an end discount is below 1, not {discount}, and tolerance above 0")
    policies = model.steps.checked(agent, "agent"), model.steps.checked(team, "team")
    pusher = Pusher(model.graph, [model.focal_agent], threads=model.threads)
    mass = _begin(model.graph.num_nodes, start)
    frequency = mass.copy()
    factor, sweeps, left = 1.0, 0, 1.0
    while sweeps < (_MOST_SWEEPS if horizon is None else horizon):
        visited, mass = pusher.push(mass, *policies)
        sweeps += 1
        factor *= discount
        visited *= factor
        frequency += visited
        left = float(mass.sum())
        if left == 0.0 or (horizon is None and _behind(left, factor, discount) <= tolerance):
            break
    error = _behind(left, factor, discount) if horizon is None else 0.0
    return Visits(frequency, left, sweeps, error)


def _behind(left: float, factor: float, discount: float) -> float:
    """Return how many discounted visits are still to come at most: `left` go on for ever."""
    return left * factor * discount / (1 - discount)


def _begin(nodes: int, start: NDArray[np.float64] | None) -> NDArray[np.float64]:
    if start is None:
        return np.full(nodes, 1 / nodes)
    if start.shape != (nodes,) or not (start >= 0).all() or abs(float(start.sum()) - 1) > 1e-9:
        raise UsageError(
            f"episodes begin at nodes by probabilities of shape ({nodes},) that sum to 1, not {start.shape} that sum to "
            f"{float(start.sum())}"
        )
    return start.astype(np.float64)
