"""States as they are stored: packed so that comparing bytes compares vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from omstore.errors import UsageError

__all__ = ["COMPONENT_BITS", "StateCodec", "component_bits_for"]

COMPONENT_BITS = (1, 8, 16, 32)
"""Bits that a component of a state can take."""


def component_bits_for(largest: int) -> int:
    """Give the fewest bits a component with values 0..`largest` takes.

    Raises
    ------
    UsageError
        If 32 bits don't suffice, or `largest` is negative.
    """
    for bits in COMPONENT_BITS:
        if 0 <= largest < 1 << bits:
            return bits
    raise UsageError(f"A state's component of {largest} doesn't fit 32 unsigned bits")


@dataclass(frozen=True)
class StateCodec:
    """Pack states (vectors of W components) into bytes and back.

    With one bit a component, bits are packed most significant first and the last byte is filled up with
    zeros; with 8, 16 or 32 bits, components are unsigned and big endian. Either way, memcmp order of packed
    states is the lexicographic order of the vectors.

    Parameters
    ----------
    width : int
        Components of a state, W, at least 1.
    component_bits : int
        1, 8, 16 or 32.
    """

    width: int
    component_bits: int

    def __post_init__(self) -> None:
        if self.width < 1:
            raise UsageError(f"A state has at least one component, not {self.width}")
        if self.component_bits not in COMPONENT_BITS:
            raise UsageError(f"A component takes 1, 8, 16 or 32 bits, not {self.component_bits}")

    @property
    def packed_bytes(self) -> int:
        """Bytes of a packed state, Wb."""
        return (self.width * self.component_bits + 7) // 8

    @property
    def dtype(self) -> np.dtype[Any]:
        """What :meth:`unpack` gives: uint8, uint16 or uint32."""
        return np.dtype(f"u{max(1, self.component_bits // 8)}")

    def pack(self, states: np.typing.ArrayLike) -> np.ndarray:
        """Pack a batch of states.

        Parameters
        ----------
        states : array_like, shape (B, W)
            Bool, integers, or floats that are whole numbers.

        Returns
        -------
        numpy.ndarray, shape (B, Wb), uint8
            A new array. Memory: it, and at most one temporary of the size of `states`.

        Raises
        ------
        UsageError
            If the shape is another, or a component doesn't fit `component_bits`.
        """
        given = np.asarray(states)
        if given.ndim != 2 or given.shape[1] != self.width:
            raise UsageError(f"States of shape {given.shape}, where (batch, {self.width}) was expected")
        if given.size == 0:
            return np.empty((len(given), self.packed_bytes), np.uint8)
        self._check_values(given)
        if self.component_bits == 1:
            narrow = given if given.dtype in (np.uint8, np.bool_) else given.astype(np.uint8)
            return np.packbits(narrow, axis=1)
        return np.array(given, self.dtype.newbyteorder(">"), order="C").view(np.uint8)

    def unpack(self, packed: np.ndarray) -> np.ndarray:
        """Unpack a batch of states.

        Parameters
        ----------
        packed : numpy.ndarray, shape (B, Wb), uint8
            As from :meth:`pack`.

        Returns
        -------
        numpy.ndarray, shape (B, W)
            uint8 for 1 or 8 bits a component, else uint16 or uint32; a new array in native byte order.

        Raises
        ------
        UsageError
            If shape or dtype are others.
        """
        if packed.ndim != 2 or packed.shape[1] != self.packed_bytes or packed.dtype != np.uint8:
            raise UsageError(
                f"Packed states of shape {packed.shape} and {packed.dtype}, "
                f"where (batch, {self.packed_bytes}) of uint8 was expected"
            )
        if len(packed) == 0:
            return np.empty((0, self.width), self.dtype)
        if self.component_bits == 1:
            return np.unpackbits(packed, axis=1, count=self.width)
        wide = np.ascontiguousarray(packed).view(self.dtype.newbyteorder(">"))
        return wide.astype(self.dtype)

    def _check_values(self, given: np.ndarray) -> None:
        limit = (1 << self.component_bits) - 1
        if given.dtype.kind == "u" and given.dtype.itemsize * 8 <= self.component_bits:
            return
        if given.dtype.kind == "b":
            return
        if given.dtype.kind not in "iuf":
            raise UsageError(f"A state's components are integers, not {given.dtype}")
        least, largest = given.min(), given.max()
        if not (least >= 0 and largest <= limit):  # NaN fails this as well
            odd = least if not least >= 0 else largest
            raise UsageError(
                f"A state has a component of {odd}, which doesn't fit {self.component_bits} bits (0..{limit})"
            )
        if given.dtype.kind == "f" and (np.trunc(given) != given).any():
            raise UsageError("A state has a component that is no whole number")
