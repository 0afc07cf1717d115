"""Time several ways to do the same thing beside each other, on a machine that is never quiet."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["alternate", "verdict"]


def alternate(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Run every call once to warm up, then all of them in turn, `rounds` times; median seconds of each.

    In turn, so that a slow minute of the machine slows all of them: ratios of the medians hold, times may
    not.
    """
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            gc.collect()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def verdict(claim: str, value: float, at_least: float) -> bool:
    """Print whether a claim holds, and return it."""
    holds = value >= at_least
    print(f"{'holds' if holds else 'FAILS'}: {claim}: {value:.2f} (at least {at_least:g})")
    return holds
