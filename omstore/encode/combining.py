"""From kernels to outcome codes: classes of probabilities, and which code a combination of them has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.encode import factoring_kernels as kernels
from omstore.encode.kernel_votes import TOLERANCE, Votes, pairs_of
from omstore.encode.local_states import ProductNumbers
from omstore.encode.row_sample import RowSample, RowSampler

__all__ = [
    "MAX_COMBINATIONS",
    "CodeVotes",
    "FactoredKernels",
    "Matched",
    "classify",
    "match",
    "rare_rows",
    "sharpen",
]

MAX_COMBINATIONS = 1 << 22
"""Combinations of classes that a table of outcome codes may have."""

_LARGEST_DENOMINATOR = 10_000  # a probability within the tolerance of such a fraction is meant to be it
_BACKFITS = 8  # passes: components share edges evenly, so few are needed
_PRODUCT_TOLERANCE = 1e-11  # between an outcome's probability and the product of its classes'


@dataclass(frozen=True)
class FactoredKernels:
    """The kernels of all components, with a class for each probability.

    Attributes
    ----------
    votes : list of Votes
    values : list of (num_classes,) float64
        The probability of each class of each component.
    outcome_class : list of (m,) int64
        Of every outcome of each component's kernels.
    """

    votes: list[Votes]
    values: list[NDArray[np.float64]]
    outcome_class: list[NDArray[np.int64]]

    @property
    def num_combinations(self) -> int:
        """Combinations of classes, the last component's changing fastest."""
        return math.prod(len(values) for values in self.values)

    @property
    def class_strides(self) -> NDArray[np.int64]:
        """(C,) what a class counts in the number of a combination."""
        counts = [len(values) for values in self.values]
        later = [math.prod(counts[c + 1 :]) for c in range(len(counts))]
        return np.array(later, np.int64)

    def product_of(self, combination: NDArray[np.int64]) -> NDArray[np.float64]:
        """Multiply the probabilities of combinations of classes, in the order of the components."""
        chance = np.ones(len(combination))
        for values, stride in zip(self.values, self.class_strides.tolist(), strict=True):
            chance *= values[combination // stride % len(values)]
        return chance


@dataclass(frozen=True)
class Matched:
    """How rows compare with the product of their kernels.

    Attributes
    ----------
    fits : (R,) bool
        Whether the row has exactly the product's next nodes.
    combination : (E',) int64
        Combination of classes of every edge; -1 in rows that don't fit.
    outcomes : (E', C) int64, or (0, C)
        Each component's outcome of every edge, all components' numbered through; where it was asked for.
    """

    fits: NDArray[np.bool_]
    combination: NDArray[np.int64]
    outcomes: NDArray[np.int64]


def classify(votes: Sequence[Votes]) -> FactoredKernels:
    """Give each distinct probability of a component a class; those within 1e-12 are one.

    The probability of a class is the fraction with a denominator of at most 10,000 that lies within 1e-12, if
    one does: marginals of rows are sums, and rounded; else the middle one of those it stands for.
    """
    values, classes = [], []
    for component in votes:
        ordered = np.unique(component.chance)
        heads = np.flatnonzero(np.diff(ordered, prepend=-1.0) > TOLERANCE)
        ends = np.append(heads[1:], len(ordered))
        of_value = np.searchsorted(heads, np.arange(len(ordered)), side="right") - 1
        values.append(
            np.array([_snap(float(ordered[(a + b) // 2])) for a, b in zip(heads, ends, strict=True)])
        )
        classes.append(of_value[np.searchsorted(ordered, component.chance)].astype(np.int64))
    return FactoredKernels(list(votes), values, classes)


def match(
    sampler: RowSampler,
    numbers: ProductNumbers,
    factored: FactoredKernels,
    rows: RowSample,
    *,
    outcomes: bool = False,
) -> Matched:
    """Compare rows with the product of their kernels."""
    pairs = np.empty((len(rows.nodes), len(factored.votes)), np.int64)
    base = entries = 0
    bounds = []
    for component, votes in enumerate(factored.votes):
        pairs[:, component] = pairs_of(sampler, numbers, votes, component, rows) + base
        bounds.append(votes.bounds[:-1] + entries)
        base += len(votes.votes)
        entries += len(votes.next_state)
    fits = np.zeros(len(rows.nodes), np.uint8)
    combination = np.empty(len(rows.next_node), np.int64)
    which = np.empty((len(rows.next_node) if outcomes else 0, len(factored.votes)), np.int64)
    kernels.match_rows(
        pairs,
        as_input(numbers.strides, np.int64),
        as_input(numbers.sizes, np.int64),
        as_input(factored.class_strides, np.int64),
        as_input(np.append(np.concatenate(bounds), entries), np.int64),
        as_input(np.concatenate([votes.next_state for votes in factored.votes]), np.int64),
        as_input(np.concatenate(factored.outcome_class), np.int64),
        as_input(rows.offsets, np.int64),
        as_input(rows.next_node, np.int64),
        numbers.product,
        fits,
        combination,
        which,
    )
    return Matched(fits > 0, combination, which)


def sharpen(factored: FactoredKernels, rows: RowSample, matched: Matched) -> FactoredKernels:
    """Tell probabilities apart that differ in their last bits only, and find those bits.

    An exporter that adds up 0.9 + 0.025 + 0.025 in one cell and 0.025 + 0.025 + 0.9 in another makes two
    probabilities, and two outcome codes of each combination with them. By how much an edge's probability is off
    the product of the classes' is, but for rounding, the sum of what its outcomes are off by; so that is fitted
    by least squares, one component after the other (backfitting: Breiman and Friedman, JASA 80, 1985), and
    rounded to units in the last place.

    Parameters
    ----------
    matched : Matched
        With outcomes.
    """
    used = np.flatnonzero((matched.combination >= 0) & (rows.chance > 0))
    expected = factored.product_of(matched.combination[used])
    off = rows.chance[used] / expected - 1.0
    near = np.abs(off) <= _PRODUCT_TOLERANCE
    used = used[near]
    off = (rows.chance[used] - expected[near]) / expected[near]
    firsts = np.cumsum([0, *(len(classes) for classes in factored.outcome_class)])
    which = [matched.outcomes[used, c] - firsts[c] for c in range(len(factored.votes))]
    shifts = [np.zeros(len(classes)) for classes in factored.outcome_class]
    counts = [np.maximum(np.bincount(w, minlength=len(s)), 1) for w, s in zip(which, shifts, strict=True)]
    for _ in range(_BACKFITS):
        for c, shift in enumerate(shifts):
            off += shift[which[c]]
            shift[:] = np.bincount(which[c], weights=off, minlength=len(shift)) / counts[c]
            off -= shift[which[c]]
    values, classes = [], []
    for c, shift in enumerate(shifts):
        chance = factored.values[c][factored.outcome_class[c]]
        # What is taken from one component may be given to another; kernels sum to 1, so it averages to nothing.
        shift -= (shift * chance).sum() / max(chance.sum(), 1.0)
        unit = np.spacing(chance)
        exact, outcome_class = np.unique(chance + np.rint(shift * chance / unit) * unit, return_inverse=True)
        values.append(exact)
        classes.append(outcome_class.astype(np.int64))
    return FactoredKernels(factored.votes, values, classes)


class CodeVotes:
    """Counts which outcome code every combination of classes has in the rows that fit.

    A code stands for election only where its probability is the product of the classes' (within 1e-11): agents
    may be correlated, and then their kernels draw something else.

    Parameters
    ----------
    factored : FactoredKernels
    table : (K,) float64
        The probability of each outcome code.
    """

    def __init__(self, factored: FactoredKernels, table: NDArray[np.float64]) -> None:
        self._factored = factored
        self._table = table
        self._keys = np.empty(0, np.int64)
        self._counts = np.empty(0, np.int64)

    def count(self, matched: Matched, rows: RowSample) -> None:
        """Add the votes of rows."""
        assert rows.code is not None
        voting = matched.combination >= 0
        keys = matched.combination[voting] * len(self._table) + rows.code[voting]
        space = self._factored.num_combinations * len(self._table)
        if space <= 1 << 24:
            counts = np.bincount(keys, minlength=0)
            keys = np.flatnonzero(counts)
            counts = counts[keys]
        else:
            keys, counts = np.unique(keys, return_counts=True)
        expected = self._factored.product_of(keys // len(self._table))
        right = np.abs(self._table[keys % len(self._table)] - expected) <= _PRODUCT_TOLERANCE
        self._keys, inverse = np.unique(np.concatenate((self._keys, keys[right])), return_inverse=True)
        merged = np.zeros(len(self._keys), np.int64)
        np.add.at(merged, inverse, np.concatenate((self._counts, counts[right])))
        self._counts = merged

    def elected(self) -> NDArray[np.int64]:
        """Return the code of each combination that most edges have, the least among equals; -1 without votes."""
        codes = np.full(self._factored.num_combinations, -1, np.int64)
        order = np.lexsort((-self._keys, self._counts))  # the last one written stays
        codes[self._keys[order] // len(self._table)] = self._keys[order] % len(self._table)
        return codes

    def completed(self) -> NDArray[np.int64]:
        """Return :meth:`elected`, and where nobody voted the code with the product's probability, if one has.

        Whether that is right is seen when all rows are compared.
        """
        codes = self.elected()
        missing = np.flatnonzero(codes < 0)
        order = np.argsort(self._table, kind="stable")
        ordered = self._table[order]
        wanted = self._factored.product_of(missing)
        first = np.searchsorted(ordered, wanted - TOLERANCE)
        last = np.searchsorted(ordered, wanted + TOLERANCE, side="right")
        nearest = np.clip(np.searchsorted(ordered, wanted), 0, len(ordered) - 1)
        below = np.clip(nearest - 1, 0, None)
        nearest = np.where(
            np.abs(ordered[below] - wanted) < np.abs(ordered[nearest] - wanted), below, nearest
        )
        found = last > first
        codes[missing[found]] = order[nearest[found]]
        return codes


def rare_rows(
    sampler: RowSampler,
    numbers: ProductNumbers,
    factored: FactoredKernels,
    combinations: NDArray[np.int64],
    tries: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose rows with an edge of each given combination of classes: nodes and joint actions.

    For each try and component a pair is drawn among those that have an outcome of the class; where there is no
    node with these local states, the try is void.
    """
    number = np.zeros(len(combinations) * tries, np.int64)
    joint = sampler.grid.draw(rng, len(number))
    wanted = np.repeat(combinations, tries)
    for component, votes in enumerate(factored.votes):
        stride = int(factored.class_strides[component])
        by_class = np.argsort(factored.outcome_class[component], kind="stable")
        classes = len(factored.values[component])
        bounds = np.searchsorted(factored.outcome_class[component][by_class], np.arange(classes + 1))
        needed = wanted // stride % classes
        spread = bounds[needed + 1] - bounds[needed]
        drawn = bounds[needed] + (rng.random(len(needed)) * spread).astype(np.int64)
        entry = by_class[np.minimum(drawn, bounds[needed + 1] - 1)]
        pair = np.searchsorted(votes.bounds, entry, side="right") - 1
        number += pair // votes.num_actions * int(numbers.strides[component])
        if votes.agent is not None:
            joint = sampler.grid.with_action(joint, votes.agent, pair % votes.num_actions)
    nodes = numbers.find(number)
    return nodes[nodes >= 0], joint[nodes >= 0]


def _snap(value: float) -> float:
    fraction = float(Fraction(value).limit_denominator(_LARGEST_DENOMINATOR))
    return fraction if abs(fraction - value) <= TOLERANCE else value
