"""Reading a store or a pickle and reporting on it: peek, stats, verify. Reports are frozen dataclasses."""

from omstore.inspect.exports import require_export
from omstore.inspect.peeking import PeekReport, peek
from omstore.inspect.summary import StatsReport, stats
from omstore.inspect.verification import Check, VerifyReport, verify

__all__ = ["Check", "PeekReport", "StatsReport", "VerifyReport", "peek", "require_export", "stats", "verify"]
