"""Proving that what edges carry is what their source says, wherever the values went.

The rows' proof compares next nodes and outcome codes. Attributes that were taken out of the outcomes have no
code any more: here each edge's value, as its source's code tells it, is compared with the one that a reader of
the written files would find. None of the code that moved them takes part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input, kernel
from omstore.encode.distinct import words_of
from omstore.errors import CorruptStoreError, ProofError
from omstore.read.attributes import Attribute
from omstore.rows import RowChunk

__all__ = ["ValueComparison"]

_BY_CODE, _BY_NODE, _BY_NEXT, _CONSTANT = 0, 1, 2, 3
_MODES = {
    "graph": _CONSTANT,
    "outcome": _BY_CODE,
    "node": _BY_NODE,
    "next_node": _BY_NEXT,
    "next_node_unless_node": _BY_NEXT,
}


@kernel
def _first_difference(
    first_row: int,
    num_joint_actions: int,
    offsets: Any,
    next_node: Any,
    codes: Any,
    mode: int,
    value_of: Any,
    node_codes: Any,
    own: Any,
    known: Any,
    given: Any,
    found: Any,
) -> tuple[int, int]:
    """Return the row and edge of the first edge whose value isn't the given one; -1, -1 where there is none.

    ``given[code]`` is what the source says, ``found[place]`` what is stored; ``value_of`` maps the source's
    codes to places. ``known[code]`` holds a place that was found equal before. An array of nodes may be empty.
    """
    for row in range(offsets.size - 1):
        node = (first_row + row) // num_joint_actions
        if node < 0 or (mode == _BY_NODE and node_codes.size and node >= node_codes.size):
            return row, -1
        for edge in range(offsets[row], offsets[row + 1]):
            code = np.int64(codes[edge]) if codes.size else np.int64(0)
            if code < 0 or code >= given.shape[0]:
                return row, edge
            place: Any = np.int64(0)
            if mode == _BY_CODE:
                place = value_of[code]
            elif mode != _CONSTANT:
                at = node if mode == _BY_NODE else np.int64(next_node[edge])
                if own.size and own[node] > 0:
                    place = np.int64(own[node]) - 1
                elif node_codes.size:
                    if at < 0 or at >= node_codes.size:
                        return row, edge
                    place = np.int64(node_codes[at])
                else:
                    place = at
            if place == known[code]:
                continue
            if place < 0 or place >= found.shape[0]:
                return row, edge
            for k in range(given.shape[1]):
                if given[code, k] != found[place, k]:
                    return row, edge
            known[code] = place
    return -1, -1


class _Compared:
    """An attribute as it was given, by outcome code, and as it was written."""

    def __init__(self, given: Attribute, written: Attribute, code_map: NDArray[np.int64]) -> None:
        self.name = given.name
        self.mode = _MODES[written.level]
        self.given = as_input(words_of(np.asarray(given.values)), np.int64)
        self.found = as_input(words_of(np.asarray(written.values)), np.int64)
        self.value_of = as_input(code_map, np.int64)
        none = np.empty(0, np.uint16)
        self.codes = as_input(none if written.codes is None else written.codes, np.uint16)
        self.own = as_input(none if written.own is None else written.own, np.uint16)
        if self.given.shape[1] != self.found.shape[1]:
            raise ProofError(f"{self.name} was written with another shape than it was given with")


class ValueComparison:
    """Compares the values of edges, chunk by chunk of the source's rows, to the bit.

    Parameters
    ----------
    given : sequence of Attribute
        Those at level ``outcome``: values by the source's codes. Others are passed over.
    written : mapping of str to Attribute
        By name, as opened from the files written. One at level ``rows``, ``row`` or ``edge`` is passed over:
        it wasn't moved, or is compared with the rows.
    code_map : (source's K,) int64
        The source's outcome code -> the one written.
    num_joint_actions : int

    Attributes
    ----------
    names : tuple of str
        The attributes that are compared.

    Notes
    -----
    Memory: 2 to 4 bytes a node and attribute, 8 a code for each thread.
    """

    def __init__(
        self,
        given: Sequence[Attribute],
        written: Mapping[str, Attribute],
        code_map: NDArray[np.int64],
        num_joint_actions: int,
    ) -> None:
        self._actions = num_joint_actions
        self._compared = [
            _Compared(attribute, written[attribute.name], code_map)
            for attribute in given
            if attribute.level == "outcome" and written[attribute.name].level in _MODES
        ]
        self.names = tuple(one.name for one in self._compared)

    def check(self, chunk: RowChunk) -> None:
        """Compare a chunk; several threads may, each one of its own.

        Raises
        ------
        ProofError
            Naming a row and the attribute.
        CorruptStoreError
            If the source names a node or code that doesn't exist.
        """
        if not self._compared:
            return
        none = np.empty(0, np.int64)
        codes = as_input(none if chunk.outcome is None else chunk.outcome, np.int64)
        offsets = as_input(chunk.offsets, np.int64)
        next_node = as_input(chunk.next_node, np.int64)
        for one in self._compared:
            row, edge = _first_difference(
                chunk.first_row, self._actions, offsets, next_node, codes, one.mode, one.value_of,
                one.codes, one.own, np.full(len(one.given), -1, np.int64), one.given, one.found,
            )  # fmt: skip
            if row >= 0:
                raise _difference(one, chunk.first_row + row, edge, self._actions, codes)


def _difference(
    one: _Compared, row: int, edge: int, actions: int, codes: NDArray[np.int64]
) -> ProofError | CorruptStoreError:
    where = f"row {row} (node {row // actions}, joint action {row % actions})"
    code = int(codes[edge]) if len(codes) and edge >= 0 else 0
    if edge < 0 or not 0 <= code < len(one.given):
        return CorruptStoreError(f"rows: {where} of the source is damaged: a node or code that doesn't exist")
    return ProofError(
        f"{where}: {one.name} as written isn't what its source says (outcome code {code} there)"
    )
