"""Exact values of policies over a horizon, and best responses, by sweeps over a graph's rows."""

from __future__ import annotations

from trainer.exact.model import ExactModel
from trainer.exact.problems import Policy, Problem, Solution

__all__ = ["ExactModel", "Policy", "Problem", "Solution"]
