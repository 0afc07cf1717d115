"""Drawing successors for a rollout: by compiled code made for it, or by `RowEncoding.sample`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError
from omstore.read.attributes import Attribute
from omstore.rollout.pattern_successor_kernels import draw_patterns
from omstore.rollout.successor_kernels import draw_factored
from omstore.rows import DictionaryRows, FactoredRows, Probabilities, RowEncoding
from omstore.rows.encoding import DrawnEdges, raise_status
from omstore.rows.factored_kernels import BAD_PRODUCT
from omstore.rows.factored_tables import build_tables, code_table
from omstore.rows.kernels import OK
from omstore.rows.pattern_kernels import SCAN, SEARCH_LISTS

__all__ = ["DictionarySource", "Drawn", "FactoredSource", "RowSource", "SuccessorSource", "successor_source"]

_EXACT = 1 << 53  # whole numbers below are exact as float64


@dataclass(frozen=True)
class Drawn:
    """Edges drawn: next nodes, codes (empty where nobody needs them), and all of the edges where they are
    known."""

    next_node: NDArray[np.int64]
    code: NDArray[np.int64]
    edges: DrawnEdges | None = None


class SuccessorSource(ABC):
    """Draws one successor of each of a batch of rows; several threads may use it at once."""

    @abstractmethod
    def draw(
        self, nodes: NDArray[np.int64], joint_actions: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> Drawn:
        """Draw, (n,) each; the edge at which the running sum of probabilities passes the uniform number."""


class RowSource(SuccessorSource):
    """Asks the row encoding, whichever it is."""

    def __init__(self, encoding: RowEncoding, probability: Attribute) -> None:
        self._encoding = encoding
        self._probabilities = Probabilities(probability.level, probability.values)

    def draw(
        self, nodes: NDArray[np.int64], joint_actions: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> Drawn:
        """Draw; see :class:`SuccessorSource`."""
        rows = nodes * self._encoding.size.num_joint_actions + joint_actions
        edges = self._encoding.sample(rows, uniforms, self._probabilities)
        return Drawn(edges.next_node, edges.outcome, edges)


class FactoredSource(SuccessorSource):
    """Draws from factored rows without numbering edges; rows that don't factor are asked for.

    Parameters
    ----------
    encoding : FactoredRows
        In the order of product numbers (`FactoredRows.ordered`), of which there are fewer than 2^53.
    probability : Attribute
        Not at level ``edge``.
    coded : bool
        Whether outcome codes are needed.
    """

    def __init__(self, encoding: FactoredRows, probability: Attribute, coded: bool) -> None:
        size, factoring = encoding.size, encoding.factoring
        self._encoding = encoding
        self._coded = coded and size.num_outcomes > 1
        tables = build_tables(factoring, size.num_joint_actions)
        nothing = as_input(np.empty(0), np.uint32)
        node_at = encoding.node_at
        product = nothing if factoring.product is None else factoring.product
        self._tables = (
            tables.layout,
            tables.action_pair,
            tables.pairs,
            as_input(
                np.column_stack((tables.chances.reshape(-1, 2), tables.gains.reshape(-1, 2))), np.float64
            ).reshape(-1),
            tables.cumulative,
            tables.padded,
            int(tables.longest),
            code_table(factoring.combination, size.num_outcomes),
            self._coded,
            factoring.num_products,
            as_input(product, product.dtype),
            nothing if node_at is None else as_input(node_at, node_at.dtype),
            encoding.block,
            as_input(np.empty((0, 1)), np.uint32)
            if encoding.exceptions is None
            else encoding.exceptions.block_pattern,
            size.num_nodes,
            size.num_outcomes,
        )
        self._probabilities = Probabilities(probability.level, probability.values)
        chances = encoding.exception_probability
        if probability.level == "rows" and chances is not None:
            self._probabilities = Probabilities("graph" if len(chances) == 1 else "outcome", chances)

    def draw(
        self, nodes: NDArray[np.int64], joint_actions: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> Drawn:
        """Draw; see :class:`SuccessorSource`."""
        count = len(nodes)
        next_node = np.empty(count, np.int64)
        code = np.zeros(count if self._coded else 0, np.int64)
        room = count if self._encoding.exceptions is not None else 0
        exceptional, patterns = np.empty(room, np.int64), np.empty(room, np.int64)
        status, position, listed = draw_factored(
            *self._tables, count, nodes, joint_actions, uniforms, next_node, code, exceptional, patterns
        )
        if status == BAD_PRODUCT:
            raise CorruptStoreError(
                f"rows: node {nodes[position]} is damaged: rows/product isn't within 0 to "
                f"{self._encoding.factoring.num_products - 1:,}",
                "Convert or build the store again.",
            )
        self._raise(status, position, nodes, joint_actions)
        if listed:
            self._draw_exceptions(
                nodes, joint_actions, uniforms, next_node, code, exceptional[:listed], patterns[:listed]
            )
        return Drawn(next_node, code)

    def _draw_exceptions(
        self,
        nodes: NDArray[np.int64],
        joint_actions: NDArray[np.int64],
        uniforms: NDArray[np.float64],
        next_node: NDArray[np.int64],
        code: NDArray[np.int64],
        exceptional: NDArray[np.int64],
        patterns: NDArray[np.int64],
    ) -> None:
        exceptions = self._encoding.exceptions
        assert exceptions is not None  # rows with a pattern were found
        own = nodes[exceptional]
        first_edges = np.zeros(len(own), np.int64)  # nobody looks at the numbers of edges
        part, status, position = exceptions.sample(
            own, patterns, first_edges, uniforms[exceptional], self._probabilities
        )
        self._raise(status, position, own, joint_actions[exceptional])
        next_node[exceptional] = part.next_node
        if self._coded:
            code[exceptional] = part.outcome

    def _raise(
        self, status: int, position: int, nodes: NDArray[np.int64], joint_actions: NDArray[np.int64]
    ) -> None:
        if status != OK:
            size = self._encoding.size
            row = int(nodes[position] * size.num_joint_actions + joint_actions[position])
            raise_status(status, position, row, size)


class DictionarySource(SuccessorSource):
    """Draws from dictionary rows without numbering edges.

    Parameters
    ----------
    encoding : DictionaryRows
    probability : Attribute
        Not at level ``edge``.
    coded : bool
        Whether outcome codes are needed.
    search : (how, cumulative, guide)
        What the `PatternTable` prepared for indexed search.
    """

    def __init__(
        self,
        encoding: DictionaryRows,
        probability: Attribute,
        coded: bool,
        search: tuple[int, NDArray[np.float64], NDArray[np.uint32]],
    ) -> None:
        size, table = encoding.size, encoding.table
        self._size = size
        self._coded = coded and size.num_outcomes > 1
        how, cumulative, guide = search
        self._tables = (
            encoding.position,
            table.node_at,
            table.num_positions,
            encoding.block,
            encoding.block_pattern,
            size.num_joint_actions,
            table.pattern_offsets,
            table.delta,
            table.pattern_list,
            table.list_offsets,
            table.list_code,
            how == SEARCH_LISTS,
            float(probability.values[0]),
            cumulative,
            guide,
            self._coded,
            size.num_nodes,
            size.num_outcomes,
        )

    def draw(
        self, nodes: NDArray[np.int64], joint_actions: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> Drawn:
        """Draw; see :class:`SuccessorSource`."""
        count = len(nodes)
        next_node = np.empty(count, np.int64)
        code = np.zeros(count if self._coded else 0, np.int64)
        status, position = draw_patterns(
            *self._tables, count, nodes, joint_actions, uniforms, next_node, code
        )
        if status != OK:
            row = int(nodes[position] * self._size.num_joint_actions + joint_actions[position])
            raise_status(status, position, row, self._size)
        return Drawn(next_node, code)


def successor_source(
    encoding: RowEncoding, probability: Attribute, coded: bool, edges: bool
) -> SuccessorSource:
    """Choose how to draw.

    Parameters
    ----------
    encoding : RowEncoding
    probability : Attribute
    coded, edges : bool
        Whether outcome codes, and whole edges, are needed.
    """
    if (
        isinstance(encoding, FactoredRows)
        and encoding.ordered
        and encoding.factoring.num_products < _EXACT
        and probability.level != "edge"
        and not edges
    ):
        return FactoredSource(encoding, probability, coded)
    if isinstance(encoding, DictionaryRows) and probability.level != "edge" and not edges:
        mode = Probabilities(probability.level, probability.values).mode
        # The table keeps what it prepares, and `sample` uses the same.
        search = encoding.table.prepared(mode, as_input(np.asarray(probability.values), np.float64))
        if search[0] != SCAN:
            return DictionarySource(encoding, probability, coded, search)
    return RowSource(encoding, probability)
