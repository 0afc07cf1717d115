"""Where the work of an update is shared among processes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["Ranks", "SingleProcess"]


class Ranks(Protocol):
    """Processes that do one training together; every rank does the same updates."""

    @property
    def rank(self) -> int:
        """Which this process is, 0 to size - 1."""

    @property
    def size(self) -> int:
        """How many there are."""

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, rank 0's first; (r, ...) -> (size * r, ...). All give as many."""


class SingleProcess:
    """No other processes."""

    rank = 0
    size = 1

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows themselves."""
        return rows
