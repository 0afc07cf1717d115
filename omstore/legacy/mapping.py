"""Which table and field of a legacy pickle plays which role; shown by ``omstore peek``, overridden with
``--map``."""

from omstore.legacy.graph_mapping import map_graph
from omstore.legacy.mapped import MAP_FIELDS, Dropped, GraphMapping, NodesMapping, ReplayMapping
from omstore.legacy.replay_mapping import map_replay

__all__ = [
    "MAP_FIELDS",
    "Dropped",
    "GraphMapping",
    "NodesMapping",
    "ReplayMapping",
    "map_graph",
    "map_replay",
]
