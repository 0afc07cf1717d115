"""The lazy reading API: a store's graph and replay, batched and bounded."""

from omstore.read.attributes import Attribute
from omstore.read.graph import Graph, Sample, Successors, SweepChunk
from omstore.read.replay import Replay, Transitions
from omstore.read.store import Store, open_store

__all__ = [
    "Attribute",
    "Graph",
    "Replay",
    "Sample",
    "Store",
    "Successors",
    "SweepChunk",
    "Transitions",
    "open_store",
]
