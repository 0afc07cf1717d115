"""The lazy reading API: a store's graph and replay, batched and bounded."""

from omstore.read.attributes import Attribute
from omstore.read.graph import Graph
from omstore.read.replay import Replay, Transitions
from omstore.read.store import Store, open_store
from omstore.read.successors import Sample, Successors, SweepChunk

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
