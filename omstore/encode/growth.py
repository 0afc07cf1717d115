"""How the patterns of a sample grow while it does, and what that says of the whole graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.errors import MemoryBudgetError
from omstore.rows import GraphSize, RowChunk
from omstore.rows.collecting import PatternCollector, PatternMemory

__all__ = ["PATTERN_MEMORY", "Growth", "SampledPatterns"]

PATTERN_MEMORY = 24 << 20
"""Bytes that a sample's patterns may take; a graph with more of them has few alike."""


@dataclass(frozen=True)
class Growth:
    """How a quantity grew while a sample did: at a quarter of it, half, and all.

    Attributes
    ----------
    quarter, half, whole : float
    """

    quarter: float
    half: float
    whole: float

    @classmethod
    def linear(cls, whole: float) -> Growth:
        """Make one in proportion to the sample."""
        return cls(whole / 4, whole / 2, whole)

    def extrapolate(self, share: float) -> tuple[float, float, float]:
        """Predict the quantity for the whole graph, of which the sample is `share`.

        Doubling the sample multiplied the quantity by 2^s; s falls from doubling to doubling, as the last two
        tell. Expected is that it goes on falling by the same factor; at least what was seen; at most that it
        falls no more.

        Returns
        -------
        expected, low, high : float
        """
        if share >= 1 or self.whole <= 0 or self.half <= 0:
            return self.whole, self.whole, self.whole
        doublings = -math.log2(share)
        last = min(1.0, math.log2(self.whole / self.half))
        before = min(1.0, math.log2(self.half / self.quarter)) if self.quarter > 0 else 1.0
        factor = min(1.0, last / before) if before > 0 else 0.0
        expected = 0.0
        slope, left = last * factor, doublings
        while left > 0:
            step = min(1.0, left)
            expected += slope * step
            slope, left = slope * factor, left - step
        return self.whole * 2.0**expected, self.whole, self.whole * 2.0 ** (last * doublings)


class SampledPatterns:
    """Distinct patterns of the rows seen, as long as they are few enough.

    Attributes
    ----------
    num_edges : int
        Of the rows collected.
    num_patterns, num_blocks, used : int
        Distinct ones, and the bytes they took in memory.
    overflowed : bool
        Whether they were more than `PATTERN_MEMORY` holds.
    """

    def __init__(self, size: GraphSize) -> None:
        self.size = size
        self.memory = PatternMemory(PATTERN_MEMORY)
        self.collector: PatternCollector | None = None
        self.num_patterns = self.num_blocks = 0
        self.used = 0
        self.overflowed = False
        self.num_edges = 0
        self._grown: list[tuple[float, float]] = []

    def begin(self, positions: NDArray[Any] | None = None, num_positions: int | None = None) -> None:
        """Begin collecting; without a call nothing is."""
        size = self.size
        try:
            self.collector = PatternCollector(
                size.num_nodes,
                size.num_joint_actions,
                size.num_outcomes,
                positions=positions,
                num_positions=None if positions is None else num_positions,
                memory=self.memory,
            )
        except MemoryBudgetError:  # so many joint actions that not even the first block has room
            self.overflowed = True

    def add(self, chunk: RowChunk, keep: NDArray[np.uint8] | None = None) -> None:
        """Collect the rows of a chunk (those to `keep`); after too many, nothing any more."""
        if self.collector is not None:
            try:
                self.collector.add(chunk, keep)
                self.num_edges = self.collector.num_edges
            except MemoryBudgetError:
                self._grown = []
                self.note_growth()
                self.overflowed = True
                self.collector.release()
                self.collector = None

    def note_growth(self) -> None:
        """Remember how many bytes there are after a part of the sample."""
        if self.collector is not None:
            counts = self.collector.counts()
            blocks = 4.0 * self.size.num_joint_actions * counts.num_blocks
            self._grown.append((counts.nbytes - blocks, blocks))
            self.num_patterns, self.num_blocks = counts.num_patterns, counts.num_blocks
            self.used = self.memory.used

    def growth(self) -> tuple[Growth, Growth] | None:
        """How the bytes of patterns, and those of blocks, grew; in proportion where they were too many."""
        if self.collector is not None:
            self.collector.release()
            self.collector = None
        if self.overflowed and self._grown:
            return Growth.linear(self._grown[0][0]), Growth.linear(self._grown[0][1])
        if len(self._grown) < 3:
            return None
        patterns, blocks = zip(*self._grown, strict=True)
        return Growth(*patterns), Growth(*blocks)
