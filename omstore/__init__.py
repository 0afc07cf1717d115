"""Out-of-core transition graphs for reinforcement learning.

``omstore.open("exports/pursuit/3")`` opens a store; see :class:`omstore.Store`, :class:`omstore.Graph` and
:class:`omstore.Replay`. Errors are in :mod:`omstore.errors`, rollouts in :mod:`omstore.rollout`, exact
values in :mod:`omstore.exact`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omstore.build import BuildOptions, BuildReport, GraphWriter, create
    from omstore.exact import Backup, Sweeper
    from omstore.format.manifest import Manifest
    from omstore.memory import PeakMemory
    from omstore.model import IndependentModel, Kernel, Outcomes, TransitionModel, load_model
    from omstore.read import (
        Attribute,
        Graph,
        Replay,
        Sample,
        Store,
        Successors,
        SweepChunk,
        Transitions,
    )
    from omstore.read import open_store as open
    from omstore.rollout import PolicyTable, RolloutState, RolloutTables, extend_key, stream_key, uniform

__all__ = [
    "Attribute",
    "Backup",
    "BuildOptions",
    "BuildReport",
    "Graph",
    "GraphWriter",
    "IndependentModel",
    "Kernel",
    "Manifest",
    "Outcomes",
    "PeakMemory",
    "PolicyTable",
    "Replay",
    "RolloutState",
    "RolloutTables",
    "Sample",
    "Store",
    "Successors",
    "SweepChunk",
    "Sweeper",
    "TransitionModel",
    "Transitions",
    "create",
    "extend_key",
    "load_model",
    "open",
    "stream_key",
    "uniform",
]

_ELSEWHERE = {
    "Manifest": ("omstore.format.manifest", "Manifest"),
    "PeakMemory": ("omstore.memory", "PeakMemory"),
    "open": ("omstore.read", "open_store"),
    # not the function `build`: importing the package of that name sets the attribute to itself
    **{name: ("omstore.build", name) for name in ("BuildOptions", "BuildReport", "GraphWriter", "create")},
    **{
        name: ("omstore.model", name)
        for name in ("IndependentModel", "Kernel", "Outcomes", "TransitionModel", "load_model")
    },
    **{name: ("omstore.exact", name) for name in ("Backup", "Sweeper")},
    **{
        name: ("omstore.rollout", name)
        for name in ("PolicyTable", "RolloutState", "RolloutTables", "extend_key", "stream_key", "uniform")
    },
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: numba takes half a second, which `omstore --help` and the modules that only need
    # errors shouldn't wait for.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _ELSEWHERE.get(name, ("omstore.read", name))
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
