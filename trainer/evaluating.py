"""Evaluate an export's policies exactly: what `omtrain evaluate` does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import omstore
from omstore import PeakMemory, RolloutTables
from omstore.errors import MemoryBudgetError, StoreNotFoundError, UsageError
from omstore.exact import Pusher
from omstore.memory import DEFAULT_BUDGET, format_bytes
from omstore.progress import Progress, silent
from trainer.adapter import GraphWorldModelAdapter
from trainer.artifact import ARTIFACT, Stack, load_stack, store_identity
from trainer.config import TrainConfig
from trainer.exact.evaluation import (
    Horizon,
    PairValues,
    Summary,
    evaluate_pair,
    evaluate_reach,
)
from trainer.exact.model import ExactModel
from trainer.exact.named import NamedPolicies, Networks
from trainer.exact.reaching import Reached, done_nodes
from trainer.exact.values import write_values
from trainer.exact.visiting import visits
from trainer.focal_agent import choose_focal_agent
from trainer.joint_actions import find_agent
from trainer.tables import PolicyTabulator

__all__ = ["EvaluateOptions", "EvaluateReport", "evaluate"]

_MOST_EDGES = 500_000_000
"""Edges gone through for visits that weren't asked for: a minute or so."""

_SWEEPS_WITHOUT_END = 100


@dataclass(frozen=True)
class EvaluateOptions:
    """What to evaluate.

    Attributes
    ----------
    agent, team : str or None
        Policies by name (`NamedPolicies.find`). None: the trained ones, of the team the highest level; uniform ones
        where nothing was trained.
    focal_agent : int, str or None
        None: that of the artifact, else what training would take (`choose_focal_agent`).
    horizon : int or None
        Steps of returns. None: those that training used, else 10.
    converge : bool
        No end instead: to within `tolerance`.
    discount : float or None
        None: that which training used, else 0.95.
    tolerance : float
        Of returns without an end.
    within : int
        Steps of captures.
    reach_tolerance : float
        Of captures without a number of steps.
    max_sweeps : int
        Over all rows, for each of these.
    captures, levels : bool
        Whether to compute how likely captures are, and a table over all levels.
    visits : bool or None
        Whether to compute how often nodes are visited. None: unless edges have to be gone through (not where factored
        rows are contracted, nor with a dictionary) and these are more than 500 million, steps counted.
    goal : path or None
        A (N,) bool array in a .npy file: nodes that count as captures. None: those entered with done.
    write : bool
        Whether to write the values of every node to ``om/values/``.
    version : str or None
        Of the store.
    max_ram : int
        Bytes of memory to stay under.
    threads : int
    allow_model_import : bool
        See `omstore.open`.
    """

    agent: str | None = None
    team: str | None = None
    focal_agent: int | str | None = None
    horizon: int | None = None
    converge: bool = False
    discount: float | None = None
    tolerance: float = 1e-9
    within: int = 20
    reach_tolerance: float = 1e-6
    max_sweeps: int = 1000
    captures: bool = True
    visits: bool | None = None
    levels: bool = True
    goal: str | None = None
    write: bool = True
    version: str | None = None
    max_ram: int = DEFAULT_BUDGET
    threads: int = 2
    allow_model_import: bool = False


@dataclass(frozen=True)
class EvaluateReport:
    """What an evaluation found.

    Attributes
    ----------
    document : dict
        Everything, ready to be written as JSON.
    arrays : mapping of str to (N, ...) array
        Values of every node.
    values : Path or None
        Where they were written.
    """

    document: dict[str, Any]
    arrays: dict[str, NDArray[Any]] = field(repr=False)
    values: Path | None


def evaluate(
    export: str | Path, options: EvaluateOptions | None = None, *, progress: Progress | None = None
) -> EvaluateReport:
    """Say exactly how good an export's policies are, on its stored graph.

    Parameters
    ----------
    export : path
        An export's folder, with a store; its ``om/iop_stack.pt`` is used where there is one.
    options : EvaluateOptions, optional
    progress : Progress, optional
        Where messages go; None: nowhere.

    Returns
    -------
    EvaluateReport
        ``trainer.open_values(export)`` gives the values of every node later.

    Raises
    ------
    StoreNotFoundError
        If there is no store, or no graph in it.
    UsageError
        If there is no such policy or agent, or a number makes no sense.
    MemoryBudgetError
        If policies or values don't fit.
    """
    chosen = options or EvaluateOptions()
    with PeakMemory() as memory:
        found = _Evaluation(Path(export), chosen, progress or silent()).run()
        memory.sample()
        found.document["peak_anonymous"] = memory.anonymous
        found.document["peak_file_backed"] = memory.file_backed
        return found


class _Evaluation:
    """One evaluation, step by step."""

    def __init__(self, export: Path, options: EvaluateOptions, progress: Progress) -> None:
        self.export = export
        self.options = options
        self.say: Callable[[str], object] = progress.message
        self.store = omstore.open(
            export, version=options.version, allow_model_import=options.allow_model_import
        )
        if self.store.graph is None:
            raise StoreNotFoundError(
                f"{self.store.path} has a replay but no graph",
                f"Make it from the pickle (omstore convert {export}) or from a model (omstore build).",
            )
        self.graph = self.store.graph
        artifact = export / "om" / ARTIFACT
        self.stack: Stack | None = load_stack(artifact) if artifact.is_file() else None
        if self.stack is not None:
            trained_on = self.stack.document["store"]["digest"]
            if trained_on != store_identity(self.store)["digest"]:
                self.say(f"note: {artifact} was trained on another store than {self.store.path}")
        _check_memory(self.graph, options.max_ram)
        self.model = ExactModel(self.graph, self._focal_agent(), threads=options.threads)
        dyn = GraphWorldModelAdapter(self.graph, focal_agent=self.model.focal_agent)
        tabulator = PolicyTabulator(dyn, RolloutTables(self.graph), threads=options.threads)
        networks = None if self.stack is None else Networks.of_stack(self.stack)
        left = options.max_ram - _bytes_of_values(self.graph)
        self.policies = NamedPolicies(self.model, tabulator, networks, max_ram=left)
        self.horizon = self._horizon()
        replay = self.store.replay
        self.summary = Summary(self.graph.num_nodes, None if replay is None else replay.nodes)

    def run(self) -> EvaluateReport:
        """Compute what was asked for, and write it."""
        trained = self.stack is not None
        levels = len(self.policies.networks.levels) if self.policies.networks is not None else 0
        agent = self.policies.find(self.options.agent or ("agent" if trained else "uniform"), "agent")
        team = self.policies.find(
            self.options.team or (f"level{levels - 1}" if trained else "uniform"), "team"
        )
        self.say(f"{agent.name} against {team.name}: returns and best responses")
        pair = evaluate_pair(self.model, agent, team, self.horizon, self.summary, every_agent=True)
        arrays = dict(pair.arrays)
        document: dict[str, Any] = {
            "export": str(self.export),
            "store": store_identity(self.store),
            "agents": list(self.graph.agents),
            "focal_agent": self.model.focal_agent,
            "roots": self.summary.num_roots,
            "horizon": self.horizon.steps,
            "discount": self.horizon.discount,
            "pair": _pair(pair),
        }
        if self.options.captures:
            self.say("captures")
            document["captures"] = self._captures(agent, team, arrays)
        if self._counts_visits():
            self.say("visits")
            document["visits"] = self._visits(agent, team, arrays)
        if self.options.levels and levels:
            document["levels"] = []
            for level in range(levels):
                self.say(f"{agent.name} against level {level}")
                other = self.policies.find(f"level{level}", "team")
                found = evaluate_pair(self.model, agent, other, self.horizon, self.summary)
                document["levels"].append({"level": level, **_pair(found)})
        document["phases"] = _phases(self.export / "om" / "metrics.jsonl")
        path = None
        if self.options.write:
            folder = self.export / "om" / "values"
            path = write_values(folder, "evaluation", arrays, document)
            document["values"] = str(path)
        return EvaluateReport(document, arrays, path)

    def _counts_visits(self) -> bool:
        if self.options.visits is not None:
            return self.options.visits
        if Pusher(self.graph, [self.model.focal_agent]).method in ("factored", "dictionary"):
            return True
        edges = self.graph.num_edges * (self.horizon.steps or _SWEEPS_WITHOUT_END)
        if edges > _MOST_EDGES:
            self.say(f"visits are left out: {edges:,} edges to go through; --visits asks for them")
        return edges <= _MOST_EDGES

    def _captures(self, agent: Any, team: Any, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        options = self.options
        goal = done_nodes(self.model) if options.goal is None else _read_goal(options.goal, self.graph)
        found = evaluate_reach(
            self.model,
            agent,
            team,
            goal=goal,
            within=options.within,
            tolerance=options.reach_tolerance,
            max_sweeps=options.max_sweeps,
        )
        for name, each in found.items():
            arrays[name] = each.values
        return {
            "goal": options.goal or "done",
            "goal_nodes": int(goal.sum()),
            "within": options.within,
            **{name: self._reached(each) for name, each in found.items()},
        }

    def _reached(self, found: Reached) -> dict[str, Any]:
        lower, upper = self.summary.of(found.lower), self.summary.of(found.upper)
        return {
            **asdict(self.summary.of(found.values, found.error)),
            "lower": {"roots": lower.roots, "nodes": lower.nodes},
            "upper": {"roots": upper.roots, "nodes": upper.nodes},
            "sweeps": found.sweeps,
        }

    def _visits(self, agent: Any, team: Any, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
        weights = self.summary.weights
        found = visits(
            self.model,
            agent.probabilities,
            team.probabilities,
            start=weights,
            horizon=self.horizon.steps,
            discount=self.horizon.discount,
            tolerance=self.horizon.tolerance,
        )
        arrays["visits"] = found.frequency
        reached = found.frequency > 0
        return {
            "from": "nodes" if weights is None else "roots",
            "visits": float(found.frequency.sum()),
            "nodes_visited": int(np.count_nonzero(reached)),
            "going_on": found.going_on,
            "error": found.error,
            "most_visited": [
                {"node": int(node), "frequency": float(found.frequency[node])}
                for node in np.argsort(-found.frequency, kind="stable")[:5]
            ],
        }

    def _focal_agent(self) -> int:
        given = self.options.focal_agent
        if given is not None:
            if isinstance(given, str) and given.isdecimal() and given not in self.graph.agents:
                given = int(given)
            return find_agent(self.graph.agents, given)
        if self.stack is not None:
            return int(self.stack.document["focal_agent"])
        return choose_focal_agent(self.store).number

    def _horizon(self) -> Horizon:
        options, defaults = self.options, TrainConfig()
        trained = {} if self.stack is None else self.stack.document["config"]
        discount = options.discount
        if discount is None:
            discount = float(trained.get("discount", defaults.discount))
        steps = options.horizon
        if steps is None:
            steps = int(trained.get("horizon", defaults.horizon))
        if options.converge and options.horizon is not None:
            raise UsageError("a horizon, and none to converge to: give one of them")
        return Horizon(None if options.converge else steps, discount, options.tolerance)


def _pair(found: PairValues) -> dict[str, Any]:
    document = asdict(replace(found, arrays={}))
    del document["arrays"]
    return document


def _bytes_of_values(graph: omstore.Graph) -> int:
    """At the peak: two best responses and each agent's return, before and after a step and when they are done; or
    these done, and captures; best actions, a goal, and what a sweep takes."""
    return (24 * (2 + len(graph.agents)) + 96) * graph.num_nodes


def _check_memory(graph: omstore.Graph, max_ram: int) -> None:
    size = _bytes_of_values(graph)
    if 2 * size > max_ram:
        raise MemoryBudgetError(
            f"values of {graph.num_nodes:,} nodes take {format_bytes(size)}, more than half of {format_bytes(max_ram)}",
            f"Allow more with --max-ram {format_bytes(2 * size)}.",
        )


def _read_goal(path: str, graph: omstore.Graph) -> NDArray[np.bool_]:
    try:
        goal = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} can't be read: {error}", "Write it with numpy.save: (nodes,) bool."
        ) from error
    if goal.shape != (graph.num_nodes,) or goal.dtype != np.bool_:
        raise UsageError(
            f"{path} holds {goal.dtype} of shape {goal.shape}; a goal is bool of ({graph.num_nodes},)",
            "True for the nodes to reach, in the order of the store's nodes.",
        )
    return np.asarray(goal)


def _phases(metrics: Path) -> list[dict[str, Any]]:
    """Return what training with --evaluate found after each phase."""
    if not metrics.is_file():
        return []
    found = []
    for line in metrics.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # being written, or cut off: what is whole counts
        if isinstance(entry, dict) and entry.get("stage") == "exact":
            found.append(entry)
    return found
