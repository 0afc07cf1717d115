"""Kernels of a component by vote: each row that is looked at votes for where its pair leads.

Rows that don't factor (absorbing nodes, agents in each other's way) vote wrongly, but seldom alike; so the
distribution that most rows of a pair (local state, action) agree on is its kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.encode import factoring_kernels as kernels
from omstore.encode.local_states import ProductNumbers
from omstore.encode.row_sample import RowSample, RowSampler, ragged_positions

__all__ = ["TOLERANCE", "Votes", "count_votes", "pairs_of", "visit_lacking"]

TOLERANCE = 1e-12
"""Probabilities that differ by no more are the same."""

_MOST_VOTES = 15  # rows of a pair that are compared
_FEW_VOTES = 3  # pairs with fewer are visited on purpose
_VISITS = 12  # nodes a pair is visited in, and rows
_ROUNDS = 3  # visits of a pair that never had a successor; where actions are seldom legal, one doesn't do
_PAIRS_AT_ONCE = 1 << 14


@dataclass
class Votes:
    """The kernels of one component as far as they are known.

    Attributes
    ----------
    agent : int or None
        Whose action moves it; None: nobody's.
    size, num_actions : int
    bounds : (P + 1,) int64
        P = size * num_actions pairs, ``state * num_actions + action``.
    next_state : (m,) int64
    chance : (m,) float64
    votes : (P,) int64
        Rows that agree on the pair's distribution; 0 where none was seen.
    """

    agent: int | None
    size: int
    num_actions: int
    bounds: NDArray[np.int64]
    next_state: NDArray[np.int64]
    chance: NDArray[np.float64]
    votes: NDArray[np.int64]

    def replace(self, pairs: NDArray[np.int64], other: Votes) -> None:
        """Take the distributions of `pairs` from `other`, which numbers only these, where they have more votes."""
        better = other.votes > self.votes[pairs]
        counts = np.diff(self.bounds)
        starts = self.bounds[:-1].copy()
        starts[pairs[better]] = other.bounds[:-1][better] + len(self.next_state)
        counts[pairs[better]] = np.diff(other.bounds)[better]
        at = ragged_positions(starts, counts)
        self.next_state = np.concatenate((self.next_state, other.next_state))[at]
        self.chance = np.concatenate((self.chance, other.chance))[at]
        self.bounds = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.votes[pairs[better]] = other.votes[better]


def pairs_of(
    sampler: RowSampler, numbers: ProductNumbers, votes: Votes, component: int, rows: RowSample
) -> NDArray[np.int64]:
    """Return the pair of a component that each row has, (R,)."""
    local = numbers.local(rows.nodes, component)
    if votes.agent is None:
        return local
    return local * votes.num_actions + sampler.grid.action(rows.joint, votes.agent)


def count_votes(
    sampler: RowSampler,
    numbers: ProductNumbers,
    component: int,
    agent: int | None,
    rows: RowSample,
    trusted: NDArray[np.bool_],
    rng: np.random.Generator,
) -> Votes:
    """Count the votes of a sample of rows on all pairs of a component, drawing those that vote.

    Parameters
    ----------
    trusted : (R,) bool
        Rows that may vote: legal, and not of a node that looks absorbing.
    """
    actions = 1 if agent is None else sampler.grid.num_actions[agent]
    size = int(numbers.sizes[component])
    blank = Votes(
        agent, size, actions, np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0, np.int64)
    )
    pair = pairs_of(sampler, numbers, blank, component, rows)
    voting = rng.permutation(np.flatnonzero(trusted))
    return _vote(numbers, component, blank, rows, voting, pair, size * actions)


def visit_lacking(
    sampler: RowSampler,
    numbers: ProductNumbers,
    components: list[Votes],
    component: int,
    rng: np.random.Generator,
) -> None:
    """Visit the pairs of a component that have few votes, in random nodes and with random other actions.

    Actions of the other agents are drawn from those that are known to be legal where they are.
    """
    votes = components[component]
    for visit in range(_ROUNDS):
        lacking = np.flatnonzero(votes.votes < (_FEW_VOTES if visit == 0 else 1))
        if not len(lacking):
            return
        kept = _keep_nodes(numbers, component, votes, lacking, int(rng.integers(1 << 62)))
        for first in range(0, len(lacking), _PAIRS_AT_ONCE):
            _visit(
                sampler, numbers, components, component, lacking[first : first + _PAIRS_AT_ONCE], kept, rng
            )


def _keep_nodes(
    numbers: ProductNumbers, component: int, votes: Votes, lacking: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    wanted = np.zeros(votes.size, np.uint8)
    wanted[lacking // votes.num_actions] = 1
    kept = np.full((votes.size, _VISITS), -1, np.int64)
    keys = np.full((votes.size, _VISITS), np.iinfo(np.uint64).max, np.uint64)
    stride = int(numbers.strides[component])
    nodes = numbers.num_nodes
    kernels.keep_nodes(numbers.product, nodes, stride, as_input(wanted, np.uint8), seed, keys, kept)
    return kept


def _visit(
    sampler: RowSampler,
    numbers: ProductNumbers,
    components: list[Votes],
    component: int,
    lacking: NDArray[np.int64],
    kept: NDArray[np.int64],
    rng: np.random.Generator,
) -> None:
    votes = components[component]
    nodes = kept[lacking // votes.num_actions]
    position, _ = np.nonzero(nodes >= 0)
    nodes = nodes[nodes >= 0]
    pair = lacking[position]
    joint = _likely_actions(sampler, numbers, components, nodes, rng)
    if votes.agent is not None:
        joint = sampler.grid.with_action(joint, votes.agent, pair % votes.num_actions)
    absorbing = _look_absorbing(sampler, numbers, components, nodes, rng)
    for at, rows in sampler.batches(nodes, joint, pair):
        trusted = rows.legal & ~absorbing[at]
        seen = np.zeros(len(lacking), np.bool_)
        seen[position[at][trusted]] = True
        trusted |= rows.legal & ~seen[position[at]]  # better an absorbing node's vote than none
        voting = np.flatnonzero(trusted)
        found = _vote(numbers, component, votes, rows, voting, position[at], len(lacking))
        votes.replace(lacking, found)


def _look_absorbing(
    sampler: RowSampler,
    numbers: ProductNumbers,
    components: list[Votes],
    nodes: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.bool_]:
    """Whether two more rows of each node lead nowhere else."""
    distinct, inverse = np.unique(nodes, return_inverse=True)
    stays = np.ones(len(distinct), np.bool_)
    for _ in range(2):
        joint = _likely_actions(sampler, numbers, components, distinct, rng)
        for at, rows in sampler.batches(distinct, joint, np.arange(len(distinct))):
            stays[at] &= rows.stays
    return stays[inverse]


def _likely_actions(
    sampler: RowSampler,
    numbers: ProductNumbers,
    components: list[Votes],
    nodes: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw a joint action for each node, of each agent among those that are known to be legal there, if any."""
    joint = sampler.grid.draw(rng, len(nodes))
    for component, votes in enumerate(components):
        if votes.agent is None or votes.votes.all():
            continue
        local = numbers.local(nodes, component)
        legal = (votes.votes > 0).reshape(votes.size, votes.num_actions)[local]
        rank = np.where(legal, rng.random(legal.shape), -1.0)
        drawn = np.where(legal.any(axis=1), rank.argmax(axis=1), sampler.grid.action(joint, votes.agent))
        joint = sampler.grid.with_action(joint, votes.agent, drawn)
    return joint


def _vote(
    numbers: ProductNumbers,
    component: int,
    votes: Votes,
    rows: RowSample,
    voting: NDArray[np.int64],
    pair: NDArray[np.int64],
    num_pairs: int,
) -> Votes:
    voting = voting[np.argsort(pair[voting], kind="stable")]
    starts = np.searchsorted(pair[voting], np.arange(num_pairs + 1))
    out_votes = np.zeros(num_pairs, np.int64)
    out_bounds = np.zeros(num_pairs + 1, np.int64)
    capacity = max(1 << 12, 8 * num_pairs)
    while True:
        out_next, out_chance = np.empty(capacity, np.int64), np.empty(capacity, np.float64)
        count = kernels.vote_kernels(
            as_input(voting, np.int64),
            as_input(starts, np.int64),
            as_input(rows.offsets, np.int64),
            as_input(rows.next_node, np.int64),
            as_input(rows.chance, np.float64),
            numbers.product,
            int(numbers.strides[component]),
            votes.size,
            _MOST_VOTES,
            TOLERANCE,
            out_bounds,
            out_next,
            out_chance,
            out_votes,
        )
        if count >= 0:
            break
        capacity *= 4
    return Votes(
        votes.agent,
        votes.size,
        votes.num_actions,
        out_bounds,
        out_next[:count].copy(),
        out_chance[:count].copy(),
        out_votes,
    )
