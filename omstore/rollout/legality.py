"""Which joint actions are legal: known once for all where all are, else as bits of each node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.model.rows import ProceduralRows
from omstore.rows import DictionaryRows, FactoredRows, RowEncoding

__all__ = ["Legality"]

_TABLE_BYTES = 64 << 20
_SCANNED_ROWS = 1 << 31  # beyond this, rows are looked at when they are met
_CHUNK_ROWS = 1 << 20


class Legality:
    """The legal joint actions of a graph's nodes.

    Parameters
    ----------
    encoding : RowEncoding
        Read once, unless its kernels or patterns say that every row is legal.
    table_bytes : int
        What the bits of all nodes may take; larger tables aren't made, and the bits of the nodes that a rollout
        is at are asked for at every step. The result is the same.

    Attributes
    ----------
    always : bool
        Whether every row was found to be legal.
    """

    def __init__(self, encoding: RowEncoding, table_bytes: int = _TABLE_BYTES) -> None:
        self._encoding = encoding
        self._num_joint_actions = encoding.size.num_joint_actions
        self._width = -(-self._num_joint_actions // 8)
        self._bits: NDArray[np.uint8] | None = None
        self.always = _surely_legal(encoding)
        if not self.always and encoding.size.num_rows <= _SCANNED_ROWS:
            self._scan(table_bytes)

    def bits(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.uint8], bool]:
        """Return the flags of joint actions, most significant bit first.

        Parameters
        ----------
        nodes : (n,) int64

        Returns
        -------
        bits : (N, ceil(A / 8)) or (n, ceil(A / 8)) uint8
        by_node : bool
            Whether they are those of all nodes.
        """
        if self._bits is not None:
            return self._bits, True
        unique, place = np.unique(nodes, return_inverse=True)
        found = np.empty((len(unique), self._width), np.uint8)
        step = max(1, _CHUNK_ROWS // self._num_joint_actions)
        actions = np.arange(self._num_joint_actions)
        for first in range(0, len(unique), step):
            part = unique[first : first + step]
            rows = (part[:, None] * self._num_joint_actions + actions).reshape(-1)
            legal = (self._encoding.outdegree(rows) > 0).reshape(len(part), -1)
            found[first : first + step] = np.packbits(legal, axis=1)
        return as_input(found[place.reshape(-1)], np.uint8), False

    def _scan(self, table_bytes: int) -> None:
        num_nodes = self._encoding.size.num_nodes
        keep = num_nodes * self._width <= table_bytes
        full = np.packbits(np.ones(self._num_joint_actions, np.bool_))
        bits: NDArray[np.uint8] | None = None
        step = max(1, _CHUNK_ROWS // self._num_joint_actions)
        for first in range(0, num_nodes, step):
            last = min(first + step, num_nodes)
            rows = np.arange(first * self._num_joint_actions, last * self._num_joint_actions)
            legal = (self._encoding.outdegree(rows) > 0).reshape(last - first, -1)
            if bits is None and not legal.all():
                if not keep:
                    return
                bits = np.empty((num_nodes, self._width), np.uint8)
                bits[:first] = full
            if bits is not None:
                bits[first:last] = np.packbits(legal, axis=1)
        self.always = bits is None
        self._bits = None if bits is None else as_input(bits, np.uint8)


def _surely_legal(encoding: RowEncoding) -> bool:
    """Whether what the rows are made of shows that none is empty; false where it takes looking at them."""
    if isinstance(encoding, FactoredRows):
        exceptions = encoding.exceptions
        return all((np.diff(part.offsets) > 0).all() for part in encoding.components) and (
            exceptions is None or bool((np.diff(exceptions.pattern_offsets.view(np.int64)) > 0).all())
        )
    if isinstance(encoding, DictionaryRows):
        return bool((np.diff(encoding.table.pattern_offsets.view(np.int64)) > 0).all())
    if isinstance(encoding, ProceduralRows) and encoding.kernels is not None:
        return all((np.diff(part.offsets) > 0).all() for part in encoding.kernels.parts)
    return False
