"""Exact values: one backup of all nodes of a graph at a time, compiled, by the shortest way through its rows."""

from __future__ import annotations

from omstore.exact.backup import Backup, NodePolicy, Policy
from omstore.exact.sweeper import Sweeper

__all__ = ["Backup", "NodePolicy", "Policy", "Sweeper"]
