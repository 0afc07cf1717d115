"""A check and the problems it found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Check", "Problems"]

_LISTED = 10


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes
    ----------
    name : str
    looked_at : str
        What was compared, and how much of it; empty where the check couldn't be made.
    problems : tuple of str
        The first ten.
    num_problems : int
        All that were met; checks may stop looking after a few.
    seconds : float
    """

    name: str
    looked_at: str
    problems: tuple[str, ...]
    num_problems: int
    seconds: float


class Problems:
    """Collects what is wrong, and keeps the first of it."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._count = 0

    def add(self, text: str) -> None:
        """Add one problem."""
        self.count(1)
        if len(self._first) < _LISTED:
            self._first.append(text)

    def count(self, more: int) -> None:
        """Count problems that aren't described."""
        self._count += more

    @property
    def listing(self) -> bool:
        """Whether another one would still be described."""
        return len(self._first) < _LISTED

    def check(self, name: str, looked_at: str, seconds: float) -> Check:
        """Make the check's result."""
        return Check(name, looked_at, tuple(self._first), self._count, seconds)
