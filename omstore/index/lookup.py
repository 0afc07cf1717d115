"""Looking states up in the index."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.errors import CorruptStoreError, UsageError
from omstore.format.hot import drop_pages
from omstore.index.build import capacity_for
from omstore.index.kernels import CORRUPT, find_bits, find_packed

__all__ = ["StateIndex"]


class StateIndex:
    """Finds the nodes of states, in batches.

    A hit is confirmed against the full packed state, so no collision of hashes can conflate two states.
    Costs no memory but the result and a few KiB: the slots and states stay mapped.

    Parameters
    ----------
    slots : (S,) uint64 array
        The table that `build_index` wrote for these states.
    packed : (N, Wb) uint8 array
        The packed states, in node order.
    where : str
        What to call the table in errors: its path.

    Raises
    ------
    CorruptStoreError
        If the table can't be one for this number of states.
    """

    def __init__(
        self, slots: NDArray[np.uint64], packed: NDArray[np.uint8], where: str = "index/slots"
    ) -> None:
        self._where = where
        self._capacity = capacity_for(len(packed))
        if slots.ndim != 1 or len(slots) < self._capacity + 1:
            raise CorruptStoreError(
                f"{where}: {len(slots):,} slots, but {len(packed):,} states have over {self._capacity:,}",
                "Convert or build the store again.",
            )
        self._packed = packed
        self._key_bytes = packed.shape[1]
        self._slots = as_input(slots, np.uint64)
        self._flat = as_input(packed, np.uint8).reshape(-1)

    def lookup_packed(self, keys: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the node of each packed state, (B, Wb) uint8 -> (B,) int64, -1 where there is none.

        Raises
        ------
        UsageError
            If `keys` has another shape or dtype.
        CorruptStoreError
            If the table is damaged where it was read.
        """
        keys = np.asarray(keys)
        if keys.ndim != 2 or keys.shape[1] != self._key_bytes or keys.dtype != np.uint8:
            raise UsageError(
                f"packed states must be (B, {self._key_bytes}) uint8, not {keys.shape} {keys.dtype}",
                "Pack vectors with the store's StateCodec, or look the vectors themselves up.",
            )
        nodes = np.empty(len(keys), np.int64)
        flat = as_input(keys, np.uint8).reshape(-1)
        if find_packed(self._slots, self._capacity, self._flat, self._key_bytes, flat, nodes) == CORRUPT:
            self._corrupt()
        return nodes

    def lookup_bits(self, states: NDArray[Any]) -> NDArray[np.int64]:
        """Return the node of each state of 0/1 components, (B, W) uint8 or bool -> (B,) int64, -1 where none.

        Packs, hashes and probes in one pass.

        Raises
        ------
        UsageError
            If a component is neither 0 nor 1; the message names the first such state.
        CorruptStoreError
            If the table is damaged where it was read.
        """
        width = states.shape[1]
        if states.dtype == np.bool_:
            states = np.ascontiguousarray(states).view(np.uint8)
        if states.dtype != np.uint8 or (width + 7) // 8 != self._key_bytes:
            raise UsageError(
                f"states of {width} components {states.dtype} don't pack to {self._key_bytes} bytes"
            )
        nodes = np.empty(len(states), np.int64)
        flat = as_input(states, np.uint8).reshape(-1)
        bad = find_bits(self._slots, self._capacity, self._flat, flat, width, nodes)
        if bad == CORRUPT:
            self._corrupt()
        if bad >= 0:
            component = int(np.flatnonzero(states[bad] > 1)[0])
            raise UsageError(
                f"state {bad} of the batch: component {component} is {int(states[bad, component])}, "
                "neither 0 nor 1"
            )
        return nodes

    def verify(self, chunk_rows: int = 1 << 18) -> None:
        """Look every state of the graph up and check that its own node comes back.

        Reads the states front to back and the slots at random; duplicate states are found as well.

        Raises
        ------
        CorruptStoreError
            Naming the first node that isn't found.
        """
        for start in range(0, len(self._packed), chunk_rows):
            found = self.lookup_packed(self._packed[start : start + chunk_rows])
            wrong = np.flatnonzero(found != np.arange(start, start + len(found)))
            if wrong.size:
                node = start + int(wrong[0])
                raise CorruptStoreError(
                    f"{self._where}: the state of node {node} is found at node {int(found[wrong[0]])}",
                    "Convert or build the store again.",
                )
            drop_pages(self._packed[start : start + chunk_rows])

    def _corrupt(self) -> NoReturn:
        raise CorruptStoreError(
            f"{self._where}: a slot names a node that doesn't exist, or the table has no end",
            "Convert or build the store again.",
        )
