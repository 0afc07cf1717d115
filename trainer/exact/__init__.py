"""Exact values of policies, best responses, captures and visits, by sweeps over a graph's rows."""

from __future__ import annotations

from trainer.exact.evaluation import Horizon, Means, PairValues, Summary, evaluate_pair
from trainer.exact.model import ExactModel
from trainer.exact.named import NamedPolicies, NamedPolicy, Networks
from trainer.exact.problems import Policy, Problem, Solution
from trainer.exact.reaching import Reached, done_nodes, reach
from trainer.exact.values import StoredValues, open_values, write_values
from trainer.exact.visiting import Visits, visits

__all__ = [
    "ExactModel",
    "Horizon",
    "Means",
    "NamedPolicies",
    "NamedPolicy",
    "Networks",
    "PairValues",
    "Policy",
    "Problem",
    "Reached",
    "Solution",
    "StoredValues",
    "Summary",
    "Visits",
    "done_nodes",
    "evaluate_pair",
    "open_values",
    "reach",
    "visits",
    "write_values",
]
