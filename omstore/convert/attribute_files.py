"""Where attributes are while edges are sorted, and what they are when they have been."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.convert.attributes import AttributeSpec, AttributeSurvey
from omstore.convert.resolve import EdgeStream
from omstore.convert.rowsort import SortedEdges
from omstore.read.arrays import AnyArray
from omstore.read.attributes import Attribute

__all__ = [
    "AttributeColumn",
    "absent_attributes",
    "attribute_specs",
    "node_attributes",
    "positions",
    "row_or_edge_appender",
]


def attribute_specs(stream: EdgeStream) -> list[AttributeSpec]:
    """List the attributes that the export's edges have, in the order that outcomes are sorted by."""
    mapping = stream.mapping
    specs = []
    if mapping.probability is not None:
        specs.append(AttributeSpec("probability", np.dtype(np.float64), 1, scalar=True, hoist=False))
    if mapping.reward is not None:
        num_agents = len(stream.actions.num_actions)
        specs.append(AttributeSpec("reward", np.dtype(np.float64), num_agents, scalar=False, hoist=True))
    if mapping.done is not None:
        specs.append(AttributeSpec("done", np.dtype(np.uint8), 1, scalar=True, hoist=True))
    for name, where in mapping.kept:
        specs.append(AttributeSpec(name, where.dtype, where.width, scalar=where.width == 1, hoist=True))
    return specs


@dataclass(frozen=True)
class AttributeColumn:
    """Where an attribute's words are while edges are sorted: in the combination that the code tells, or in
    the record."""

    spec: AttributeSpec
    kind: str
    at: int

    def of(self, records: NDArray[Any], words: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take the attribute's words of dealt records; `words` are those of the combinations."""
        part = slice(self.at, self.at + self.spec.width)
        found: NDArray[np.int64] = (
            words[:, part][records["code"]] if self.kind == "code" else records["raw"][:, part]
        )
        return found


def positions(specs: list[AttributeSpec]) -> Iterator[tuple[AttributeSpec, int, str]]:
    """Go through attributes whose words lie side by side: each with its first column and its name."""
    at = 0
    for spec in specs:
        yield spec, at, spec.name
        at += spec.width


def row_or_edge_appender(
    writer: Any, spec: AttributeSpec, *, by_row: bool
) -> Callable[[SortedEdges, slice], None]:
    """Make what appends an attribute of sorted edges to its array, an item an edge or a row."""

    def append(edges: SortedEdges, part: slice) -> None:
        words = np.ascontiguousarray(edges.raw[:, part])
        if not by_row:
            writer.append(spec.values(words))
            return
        legal = np.flatnonzero(np.diff(edges.offsets))
        rows = np.zeros((len(edges.offsets) - 1, spec.width), np.int64)
        rows[legal] = words[edges.offsets[:-1][legal]]
        writer.append(spec.values(rows))

    return append


def node_attributes(
    specs: Iterable[AttributeSpec],
    levels: Mapping[str, str],
    surveys: Mapping[str, AttributeSurvey],
    kept: list[AttributeSpec],
    table: NDArray[np.int64],
    arrays: Callable[[str], AnyArray],
) -> list[Attribute]:
    """Put together the attributes that the export's edges have, each at its level.

    Parameters
    ----------
    kept : list of AttributeSpec
        Those at level ``outcome``, in the order of the table's columns.
    table : (K, C) int64
        Words of the distinct outcomes.
    arrays : callable
        Opens an attribute that was written beside the rows, by its name.
    """
    found = []
    at = {name: start for _, start, name in positions(kept)}
    for spec in specs:
        name, level = spec.name, levels[spec.name]
        values: AnyArray
        if level == "graph":
            values = spec.values(surveys[name].constant())
        elif level == "outcome":
            values = spec.values(table[:, at[name] : at[name] + spec.width])
        elif level in ("next_node", "node"):
            values = spec.values(surveys[name].node_words())
        else:
            values = arrays(name)
        found.append(Attribute(name, level, values))
    return found


def absent_attributes(stream: EdgeStream) -> tuple[list[Attribute], list[str]]:
    """Give what an export without probabilities, rewards or done flags means: 1, 0 and false.

    Returns
    -------
    attributes : list of Attribute
    notes : list of str
    """
    found, notes = [], []
    num_agents = len(stream.actions.num_actions)
    present = {spec.name for spec in attribute_specs(stream)}
    for spec, value in (
        (AttributeSpec("probability", np.dtype(np.float64), 1, scalar=True, hoist=False), 1),
        (AttributeSpec("reward", np.dtype(np.float64), num_agents, scalar=False, hoist=True), 0),
        (AttributeSpec("done", np.dtype(np.uint8), 1, scalar=True, hoist=True), 0),
    ):
        if spec.name not in present:
            found.append(Attribute(spec.name, "graph", np.full((1, *spec.item_shape), value, spec.dtype)))
            notes.append(f"the edges have no {spec.name}: taken as {value}")
    reward = stream.mapping.reward
    if reward is not None and reward.width < num_agents:
        notes.append("the reward is one number: it is stored as every agent's")
    return found, notes
