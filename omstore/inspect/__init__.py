"""Reading a store or a pickle and reporting on it: peek, stats, verify. Reports are frozen dataclasses."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omstore.inspect.checks import Check
    from omstore.inspect.exports import require_export
    from omstore.inspect.peeking import PeekReport, peek
    from omstore.inspect.summary import StatsReport, stats
    from omstore.inspect.verification import VerifyReport, verify

__all__ = ["Check", "PeekReport", "StatsReport", "VerifyReport", "peek", "require_export", "stats", "verify"]

_ELSEWHERE = {
    "Check": "checks",
    "PeekReport": "peeking",
    "StatsReport": "summary",
    "VerifyReport": "verification",
    "peek": "peeking",
    "require_export": "exports",
    "stats": "summary",
    "verify": "verification",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: `omstore versions` needn't wait for the pickle reader's kernels.
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"omstore.inspect.{_ELSEWHERE[name]}"), name)
    globals()[name] = value
    return value
