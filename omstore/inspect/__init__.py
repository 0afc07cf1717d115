"""Reading a store or a pickle and reporting on it: peek, stats, verify. Reports are frozen dataclasses."""

from omstore.inspect.exports import require_export
from omstore.inspect.peek import PeekReport, peek
from omstore.inspect.stats import StatsReport, stats
from omstore.inspect.verify import Check, VerifyReport, verify

__all__ = ["Check", "PeekReport", "StatsReport", "VerifyReport", "peek", "require_export", "stats", "verify"]
