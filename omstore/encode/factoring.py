"""Finding a factoring in explicit rows: which digits an agent moves, and the kernels that move them.

Nothing is known but the state vectors and, for a row, its successors. From random rows it is seen which
digits of the state answer to which agent's action; an agent's digits together are its component, and each row
votes for where its agents' local states lead (`kernel_votes`). What a component does must not depend on the
others: where rows differ from the product of the kernels they are exceptions, and with many of them the graph
doesn't factor.

Everything is found from a number of rows that depends on neither budget nor graph, so it may be wrong about rare
rows. It needs not be right: `write_factored` compares every row with the factoring and stores what differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.encode.combining import (
    MAX_COMBINATIONS,
    CodeVotes,
    FactoredKernels,
    Matched,
    classify,
    match,
    rare_rows,
    sharpen,
)
from omstore.encode.coordinates import Coordinates, find_coordinates
from omstore.encode.digit_groups import Looked, group_digits
from omstore.encode.kernel_votes import Votes, count_votes, visit_lacking
from omstore.encode.local_states import ProductNumbers, number_products
from omstore.encode.row_sample import MAX_EDGES, RowSample, RowSampler
from omstore.format.states import StateCodec
from omstore.rows import Probabilities, RowEncoding
from omstore.rows.factored_tables import Component, Factoring, find_bad_kernel, find_problem

__all__ = ["FoundFactoring", "NotFactored", "find_factoring"]

_NODES = 2048
"""Nodes looked at. A share of 15% is then known within 2 percentage points, and a digit that answers in one
node of 400 is missed once in 160 times."""
_FEWEST_NODES = 16
_ACTIONS = 16  # of an agent that are compared in a node
_MOST_PAIRS = 1 << 18  # of local state and action: a kernel is to be small beside the rows
_MOST_EXCEPTIONS = 0.15  # of all rows, not counting those of absorbing nodes
_MOST_WITH_ABSORBING = 0.40
_RARE_COMBINATIONS = 4096
_RARE_TRIES = 4
_ULPS = 4  # in product mode, between an edge's probability and the product of the kernels'


@dataclass(frozen=True)
class NotFactored:
    """Why no factoring was found.

    Attributes
    ----------
    reason : str
        A sentence, with the numbers.
    exceptions : float or None
        Share of the sampled rows that don't factor, not counting absorbing nodes, where it came to that.
    """

    reason: str
    exceptions: float | None = None


@dataclass(frozen=True, eq=False)
class FoundFactoring(Factoring):
    """A factoring that was found, and how well it fits the rows it was found from.

    Attributes
    ----------
    exceptions : float
        Share of the sampled rows that don't factor, not counting those of absorbing nodes.
    exceptions_with_absorbing : float
        Share of the sampled rows that don't factor.
    """

    exceptions: float = 0.0
    exceptions_with_absorbing: float = 0.0


def find_factoring(
    source: RowEncoding,
    packed: NDArray[np.uint8],
    codec: StateCodec,
    num_actions: Sequence[int],
    probabilities: Probabilities | NDArray[np.float64],
    *,
    seed: int = 0,
    coordinates: Coordinates | None = None,
) -> FoundFactoring | NotFactored:
    """Find per-agent components and kernels in explicit rows.

    Parameters
    ----------
    source : RowEncoding
        Its outcome codes stand for probabilities only: everything else is hoisted before.
    packed : (N, Wb) uint8
        The sorted packed states, usually mapped.
    codec : StateCodec
    num_actions : sequence of int
        Of each agent.
    probabilities : Probabilities, or (K,) float64
        Of the edges; an array is the table by outcome code (or one number where K is 1). By edge or by rows, or
        where the components' probabilities combine in more than 4 million ways, the factoring is one in
        product mode (see `Factoring.combination`).
    seed : int
        Of the random rows: the same seed finds the same, whatever the budget or number of threads.
    coordinates : Coordinates, optional
        Of `packed`, if they are known.

    Returns
    -------
    FoundFactoring, or NotFactored
        Memory: 12 bytes a node, and up to 100 MiB for the rows looked at.
    """
    if not isinstance(probabilities, Probabilities):
        table = np.asarray(probabilities, np.float64)
        probabilities = Probabilities("outcome" if len(table) > 1 else "graph", table)
    if not source.size.num_rows or not source.size.num_edges:
        return NotFactored("The graph has no edges.")
    if coordinates is None:
        coordinates = find_coordinates(packed, codec)
    sampler = RowSampler(source, probabilities, num_actions)
    search = _Search(sampler, coordinates, np.random.default_rng([seed, 0x0F]))
    try:
        return search.run()
    except _Stop as stop:
        return stop.result


class _Stop(Exception):
    def __init__(self, reason: str, exceptions: float | None = None) -> None:
        super().__init__(reason)
        self.result = NotFactored(reason, exceptions)


@dataclass(frozen=True)
class _Combined:
    """What combinations of classes are, and which rows are right then."""

    matched: Matched
    codes: NDArray[np.int64] | None  # by combination; None in product mode
    right: NDArray[np.bool_]


class _Search:
    """One search for a factoring."""

    def __init__(self, sampler: RowSampler, coordinates: Coordinates, rng: np.random.Generator) -> None:
        self._sampler = sampler
        self._coordinates = coordinates
        self._rng = rng
        self._size = sampler.source.size

    def run(self) -> FoundFactoring:
        looked = self._look()
        groups = group_digits(looked, self._coordinates, self._sampler.grid)
        if isinstance(groups, str):
            raise _Stop(groups)
        agents = list(groups)
        numbers = number_products(self._coordinates, list(groups.values()))
        if isinstance(numbers, str):
            raise _Stop(f"The state has no small components: {numbers}.")
        votes = self._vote(looked, agents, numbers)
        factored = classify(votes)
        combined = self._combine(looked, numbers, factored)
        if (combined.matched.fits & ~combined.right).any():
            matched = match(self._sampler, numbers, factored, looked.rows, outcomes=True)
            sharp = sharpen(factored, looked.rows, matched)
            del matched
            again = self._combine(looked, numbers, sharp)
            if again.right.sum() > combined.right.sum():
                factored, combined = sharp, again
        exceptions, with_absorbing = self._judge(looked, combined.right)
        return self._finish(agents, numbers, factored, combined.codes, exceptions, with_absorbing)

    def _look(self) -> Looked:
        """Draw nodes, and of each agent rows that differ in its action only."""
        nodes_all, grid = self._size.num_nodes, self._sampler.grid
        if nodes_all <= _NODES:
            nodes = np.arange(nodes_all)
        else:
            nodes = self._rng.permutation(np.unique(self._rng.integers(0, nodes_all, 2 * _NODES)))[:_NODES]
        columns, joint = [], []
        for agent, count in enumerate(grid.num_actions):
            few = min(count, _ACTIONS)
            first = self._rng.integers(0, count, len(nodes))
            base = grid.draw(self._rng, len(nodes))
            for k in range(few):
                joint.append(grid.with_action(base, agent, (first + k) % count))
            columns.append(slice(len(joint) - few, len(joint)))
        joints = np.stack(joint, axis=1)
        outdegree = self._sampler.outdegree(np.repeat(nodes, len(joint)), joints.reshape(-1))
        ends = np.cumsum(outdegree.reshape(joints.shape).sum(axis=1))
        kept = int(np.searchsorted(ends, MAX_EDGES, side="right"))
        if kept < min(len(nodes), _FEWEST_NODES):
            raise _Stop(
                f"Rows have {outdegree.mean():,.0f} successors on average, too many to compare rows with each other."
            )
        order = np.argsort(nodes[:kept], kind="stable")
        rows = self._sampler.gather(
            np.repeat(nodes[:kept][order], len(joint)), joints[:kept][order].reshape(-1)
        )
        stays = rows.stays.reshape(kept, -1).all(axis=1)
        return Looked(rows, np.repeat(stays, len(joint)), columns, len(joint))

    def _vote(self, looked: Looked, agents: list[int | None], numbers: ProductNumbers) -> list[Votes]:
        grid = self._sampler.grid
        counts = [1 if agent is None else grid.num_actions[agent] for agent in agents]
        pairs = int((numbers.sizes * counts).sum())
        if pairs > _MOST_PAIRS:
            raise _Stop(
                f"The components have {pairs:,} pairs of local state and action, more than {_MOST_PAIRS:,}."
            )
        trusted = looked.rows.legal & ~looked.absorbing
        votes = [
            count_votes(self._sampler, numbers, component, agent, looked.rows, trusted, self._rng)
            for component, agent in enumerate(agents)
        ]
        for component in range(len(votes)):
            visit_lacking(self._sampler, numbers, votes, component, self._rng)
        return votes

    def _combine(self, looked: Looked, numbers: ProductNumbers, factored: FactoredKernels) -> _Combined:
        """Find the outcome code of each combination of classes, or multiply probabilities."""
        rows, count = looked.rows, factored.num_combinations
        if count >= 1 << 62:
            raise _Stop(f"The components' probabilities combine in {count:.1e} ways.")
        matched = match(self._sampler, numbers, factored, rows)
        coded = self._size.num_outcomes > 1
        if self._sampler.level in ("edge", "rows") or (coded and count > MAX_COMBINATIONS):
            return _Combined(matched, None, _products_agree(rows, factored, matched))
        codes = np.zeros(1, np.int64)
        if coded:
            codes = self._elect_codes(looked, numbers, factored, matched)
        return _Combined(matched, codes, _codes_agree(rows, matched, codes))

    def _elect_codes(
        self, looked: Looked, numbers: ProductNumbers, factored: FactoredKernels, matched: Matched
    ) -> NDArray[np.int64]:
        votes = CodeVotes(factored, self._sampler.table)
        votes.count(matched, looked.rows)
        missing = np.flatnonzero(votes.elected() < 0)
        if 0 < len(missing) <= _RARE_COMBINATIONS:
            nodes, joint = rare_rows(self._sampler, numbers, factored, missing, _RARE_TRIES, self._rng)
            for _, rows in self._sampler.batches(nodes, joint, np.arange(len(nodes))):
                votes.count(match(self._sampler, numbers, factored, rows), rows)
        return votes.completed()

    def _judge(self, looked: Looked, right: NDArray[np.bool_]) -> tuple[float, float]:
        """Shares of exceptional rows, without and with absorbing nodes; not factored where they are many."""
        rows = len(right)
        absorbing = looked.absorbing & looked.rows.legal
        wrong = int((~right & ~absorbing).sum())
        of_absorbing = int((~right & absorbing).sum())
        exceptions, with_absorbing = wrong / rows, (wrong + of_absorbing) / rows
        if exceptions > _MOST_EXCEPTIONS:
            raise _Stop(
                f"{exceptions:.1%} of {rows:,} random rows aren't the product of what the agents do alone; at most "
                f"{_MOST_EXCEPTIONS:.0%} may be exceptions.",
                exceptions,
            )
        if with_absorbing > _MOST_WITH_ABSORBING:
            raise _Stop(
                f"{with_absorbing:.1%} of {rows:,} random rows are exceptions, most of them of absorbing nodes; at most "
                f"{_MOST_WITH_ABSORBING:.0%} may be.",
                exceptions,
            )
        return exceptions, with_absorbing

    def _finish(
        self,
        agents: list[int | None],
        numbers: ProductNumbers,
        factored: FactoredKernels,
        combination: NDArray[np.int64] | None,
        exceptions: float,
        with_absorbing: float,
    ) -> FoundFactoring:
        components = []
        for agent, votes, values, classes in zip(
            agents, factored.votes, factored.values, factored.outcome_class, strict=True
        ):
            own: dict[str, Any] = {"outcome_class": classes, "num_classes": len(values)}
            if combination is None:
                own = {"outcome_class": None, "num_classes": 1}
            elif self._size.num_outcomes == 1:
                own = {"outcome_class": np.zeros(len(classes), np.int64), "num_classes": 1}
            components.append(
                Component(
                    agent,
                    votes.size,
                    votes.num_actions,
                    votes.bounds,
                    votes.next_state,
                    values[classes],
                    **own,
                )
            )
        product = numbers.product if len(numbers.product) else None
        found = FoundFactoring(tuple(components), combination, product, exceptions, with_absorbing)
        # In product mode there are no outcome codes.
        size = self._size if combination is not None else replace(self._size, num_outcomes=1)
        problem = find_problem(found, size) or find_bad_kernel(found)
        if problem:
            raise _Stop(f"What was found makes no factoring: {problem}.")
        return found


def _codes_agree(rows: RowSample, matched: Matched, combination: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(R,) whether a row is what the factoring says."""
    if rows.code is None:
        return matched.fits
    expected = combination[np.maximum(matched.combination, 0)]
    return matched.fits & _all_of(expected == rows.code, rows.offsets)


def _products_agree(rows: RowSample, factored: FactoredKernels, matched: Matched) -> NDArray[np.bool_]:
    """(R,) whether a row's probabilities are the products of the kernels'."""
    product = factored.product_of(np.maximum(matched.combination, 0))
    near = np.abs(product - rows.chance) <= _ULPS * np.spacing(rows.chance)
    return matched.fits & _all_of(near, rows.offsets)


def _all_of(good: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(R,) whether all of a row's edges are good."""
    bad = np.concatenate(([0], np.cumsum(~good)))
    return np.asarray(bad[offsets[1:]] == bad[offsets[:-1]])
