"""What there is to say of two policies on a graph, exactly: returns, best responses, captures, visits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trainer.exact.model import ExactModel
from trainer.exact.named import NamedPolicy
from trainer.exact.problems import Problem
from trainer.exact.reaching import Reached, reach
from trainer.tables import Side

__all__ = ["Horizon", "Means", "PairValues", "Summary", "evaluate_pair", "evaluate_reach"]


@dataclass(frozen=True)
class Horizon:
    """How far returns look.

    Attributes
    ----------
    steps : int or None
        None: no end, to within `tolerance`.
    discount : float
    tolerance : float
        Of values without an end.
    """

    steps: int | None
    discount: float
    tolerance: float = 1e-9


@dataclass(frozen=True)
class Means:
    """A value of every node in a few numbers.

    Attributes
    ----------
    roots : float or None
        Mean over the replay's root states that are in the graph, each as often as it is there; None without any.
    nodes : float
        Mean over all nodes.
    error : float
        Most that either may be from the truth; of exact sums over a number of steps 0.
    """

    roots: float | None
    nodes: float
    error: float = 0.0


class Summary:
    """Takes means of values: over the replay's root states and over all nodes.

    Parameters
    ----------
    num_nodes : int
    roots : (R,) int64 or None
        Nodes of the replay's states; -1 where one isn't in the graph.
    """

    def __init__(self, num_nodes: int, roots: NDArray[np.int64] | None) -> None:
        counts = np.zeros(num_nodes, np.int64)
        step = 1 << 20
        for first in range(0, 0 if roots is None else len(roots), step):
            assert roots is not None
            piece = roots[first : first + step]
            counts += np.bincount(piece[piece >= 0], minlength=num_nodes)
        self.num_roots = int(counts.sum())
        self._counts = counts

    @property
    def weights(self) -> NDArray[np.float64] | None:
        """(N,) share of each node in the root states; None without any."""
        return self._counts / self.num_roots if self.num_roots else None

    def of(self, values: NDArray[np.float64], error: float = 0.0) -> Means:
        """Take the means of values, (N,)."""
        roots = float(np.dot(self._counts, values)) / self.num_roots if self.num_roots else None
        return Means(roots, float(values.mean()), float(error))

    @staticmethod
    def gain(responds: Means, plays: Means) -> Means:
        """Return what a best response gains."""
        roots = None
        if responds.roots is not None and plays.roots is not None:
            roots = responds.roots - plays.roots
        return Means(roots, responds.nodes - plays.nodes, responds.error + plays.error)


@dataclass(frozen=True)
class PairValues:
    """The focal agent's policy against the team's.

    Attributes
    ----------
    agent, team : str
        What the policies are called.
    agent_return, team_return : Means
        Expected discounted return of the focal agent; mean of those of the team's members.
    agent_best, team_best : Means
        The same for a best response to the other's policy.
    agent_gain, team_gain : Means
        How much better a best response is than the policy. `agent_gain` says how exploitable the team is by the focal
        agent, `team_gain` how exploitable the focal agent is by the team.
    returns : mapping of str to Means
        Expected discounted return of each agent, by name; empty where it wasn't asked for.
    arrays : mapping of str to (N,) array
        Values of every node, by the same names, and ``return_NAME`` of agents.
    sweeps : int
        Over all rows.
    """

    agent: str
    team: str
    agent_return: Means
    team_return: Means
    agent_best: Means
    team_best: Means
    agent_gain: Means
    team_gain: Means
    returns: Mapping[str, Means] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    sweeps: int = 0


def evaluate_pair(
    model: ExactModel,
    agent: NamedPolicy,
    team: NamedPolicy,
    horizon: Horizon,
    summary: Summary,
    *,
    every_agent: bool = False,
) -> PairValues:
    """Compute returns and best responses of two policies.

    Parameters
    ----------
    model : ExactModel
    agent, team : NamedPolicy
        Of the focal agent, and of the team.
    horizon : Horizon
    summary : Summary
    every_agent : bool
        Return of each agent besides.

    Returns
    -------
    PairValues
        Memory: 16 bytes a node for each best response and each return, and 24 more.
    """
    mine, theirs = agent.probabilities, team.probabilities
    names = model.graph.agents if every_agent else ()
    counted: list[Side | int] = list(range(len(names))) if every_agent else ["agent", "team"]
    found = model.solve(
        [Problem(None, theirs), Problem(mine, None), *(Problem(mine, theirs, whose) for whose in counted)],
        horizon=horizon.steps,
        discount=horizon.discount,
        tolerance=horizon.tolerance,
    )
    best, returns = found[:2], found[2:]
    plays = {"agent_return": returns[0].values, "team_return": returns[-1].values}
    if every_agent:  # sums of rewards have sums of returns
        plays["agent_return"] = returns[model.focal_agent].values
        others = [each.values for number, each in enumerate(returns) if number != model.focal_agent]
        plays["team_return"] = np.add.reduce(others) / len(others)
    means = {name: summary.of(values, returns[0].error) for name, values in plays.items()}
    means |= {
        f"{side}_best": summary.of(best[k].values, best[k].error) for k, side in enumerate(("agent", "team"))
    }
    arrays: dict[str, NDArray[Any]] = {**plays, "agent_best": best[0].values, "team_best": best[1].values}
    if every_agent:
        arrays |= {f"return_{name}": each.values for name, each in zip(names, returns, strict=True)}
    for key, each in (("agent_best_action", best[0]), ("team_best_action", best[1])):
        assert each.actions is not None
        arrays[key] = each.actions
    return PairValues(
        agent=agent.name,
        team=team.name,
        **means,
        agent_gain=summary.gain(means["agent_best"], means["agent_return"]),
        team_gain=summary.gain(means["team_best"], means["team_return"]),
        returns={name: summary.of(arrays[f"return_{name}"], returns[0].error) for name in names},
        arrays=arrays,
        sweeps=found[0].sweeps,
    )


def evaluate_reach(
    model: ExactModel,
    agent: NamedPolicy,
    team: NamedPolicy,
    *,
    goal: NDArray[np.bool_],
    within: int,
    tolerance: float,
    max_sweeps: int,
) -> dict[str, Reached]:
    """Compute how likely the goal is reached: by the policies, at most, at least; within some steps, and ever.

    Returns
    -------
    dict of str to Reached
        ``capture_within``, ``capture_ever``, and the same with ``_most`` and ``_least`` behind, where one player
        chooses all joint actions.
    """
    found = {}
    choices: tuple[tuple[str, Literal["policies", "most", "least"]], ...] = (
        ("", "policies"),
        ("_most", "most"),
        ("_least", "least"),
    )
    for ending, choice in choices:
        for name, steps in (("capture_within", within), ("capture_ever", None)):
            found[name + ending] = reach(
                model,
                choice=choice,
                agent=agent.probabilities if choice == "policies" else None,
                team=team.probabilities if choice == "policies" else None,
                goal=goal,
                horizon=steps,
                tolerance=tolerance,
                max_sweeps=max_sweeps,
            )
    return found
