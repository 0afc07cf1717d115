"""A store's graph as files that other tools read: npz, scipy, Parquet, UMB; streamed in bounded memory."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omstore.exporting.run import FORMATS, ExportReport, export_graph

__all__ = ["FORMATS", "ExportReport", "export_graph"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line lists its commands without loading the reader.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module("omstore.exporting.run"), name)
    globals()[name] = value
    return value
