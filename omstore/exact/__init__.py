"""Exact values: one backup of all nodes of a graph at a time, or one step of mass on them, by the shortest way through
its rows; compiled."""

from __future__ import annotations

from omstore.exact.backup import Backup, NodePolicy, Policy
from omstore.exact.pusher import Pusher
from omstore.exact.sweeper import Sweeper

__all__ = ["Backup", "NodePolicy", "Policy", "Pusher", "Sweeper"]
