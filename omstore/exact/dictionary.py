"""Dictionary rows backed up by pattern: nothing is decoded, and gains are looked up by position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.exact import pattern_kernels
from omstore.exact.gains import Gains, Terms, Valuation
from omstore.exact.orders import check_places
from omstore.exact.row_source import Block, RowSource
from omstore.read.graph import Graph
from omstore.rows import DictionaryRows

__all__ = ["DictionarySource"]

_CHUNK_ROWS = 1 << 16
"""Rows whose returns are held at a time: 512 KiB."""


class DictionarySource(RowSource):
    """Goes through the patterns of each node. Memory: the gains, 8 bytes a position."""

    name = "dictionary"

    def __init__(self, graph: Graph, terms: Terms, encoding: DictionaryRows) -> None:
        super().__init__(graph, terms)
        self._encoding = encoding
        self._probability = as_input(np.asarray(graph.attribute("probability").values), np.float64)

    @classmethod
    def of(cls, graph: Graph, terms: Terms) -> DictionarySource | None:
        """Return the source for a graph, or None where its edges have to be looked at.

        Raises
        ------
        CorruptStoreError
            If positions, patterns or lists are damaged; they are checked here, once.
        """
        encoding = graph.encoding
        if not isinstance(encoding, DictionaryRows) or not terms.by_next_node:
            return None
        if graph.attribute("probability").level not in ("graph", "outcome"):
            return None
        encoding.table.verify()
        if encoding.table.placed:
            wrong = check_places(encoding.position, encoding.table.node_at)
            if wrong >= 0:
                raise CorruptStoreError(
                    f"rows/position: node {wrong} isn't what rows/node_at leads back to",
                    "Convert or build the store again.",
                )
        source = cls(graph, terms, encoding)
        # One probability for all codes: they mean something else then.
        return source if len(source._probability) == encoding.size.num_outcomes else None

    def gains(self, valuation: Valuation) -> Gains:
        """Lay gains out by position."""
        position = self._encoding.position
        return self.terms.gains(
            valuation, self._encoding.table.num_positions, position if position.size else None
        )

    def visit(self, first: int, stop: int, gains: Sequence[Gains]) -> Iterator[Block]:
        """Go through nodes; see :class:`RowSource`."""
        encoding, table, joint = self._encoding, self._encoding.table, self.num_joint_actions
        step = max(1, _CHUNK_ROWS // joint)
        rows = [np.empty(min(step, stop - first) * joint) for _ in gains]
        for begin in range(first, stop, step):
            end = min(begin + step, stop)
            for gain, out in zip(gains, rows, strict=True):
                status, row = pattern_kernels.back_up_patterns(
                    begin,
                    end,
                    joint,
                    self.graph.num_nodes,
                    encoding.position,
                    table.node_at,
                    encoding.block,
                    encoding.block_pattern,
                    table.pattern_offsets,
                    table.delta,
                    table.pattern_list,
                    table.list_offsets,
                    table.list_code,
                    self._probability,
                    gain.table,
                    gain.plain,
                    gain.base,
                    gain.marked,
                    out,
                )
                if status != pattern_kernels.OK:
                    reason = "a next node" if status == pattern_kernels.BAD_NODE else "its block or pattern"
                    raise CorruptStoreError(
                        f"rows: row {row} (node {row // joint}, joint action {row % joint}) is damaged: "
                        f"{reason} doesn't exist",
                        "Convert or build the store again.",
                    )
            yield self._block(
                begin * joint, (end - begin) * joint, [out[: (end - begin) * joint] for out in rows]
            )
