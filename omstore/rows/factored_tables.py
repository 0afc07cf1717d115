"""What a factored graph is made of: one kernel for each component of the state, and how to combine them.

`Factoring` is the description that finds, models and writers pass around. `Tables` are the same numbers, flat
and scaled, as the compiled kernels want them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.rows.encoding import GraphSize, outcome_dtype
from omstore.rows.factored_draws import SHORT

__all__ = [
    "MAX_COMPONENTS",
    "Component",
    "Factoring",
    "Tables",
    "build_tables",
    "code_table",
    "find_bad_kernel",
    "find_problem",
]

MAX_COMPONENTS = 16
_MAX_PAIRS = (1 << 31) - 1
_MAX_COMBINATIONS = 1 << 26
_MAX_JOINT_ACTIONS = 1 << 26
_PADDED_PAIRS = 1 << 16  # more pairs would make a padded table of more than 4 MiB
_TAIL_ENTRIES = 1 << 14  # of the lists shared by the rows of a node; with their classes they fit the L2 cache
_STRIP_ENTRIES = 1 << 18
_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Component:
    """One component of the state, and where it goes: P(next local state | local state, action of its agent).

    Pairs (local state, action) are numbered ``state * num_actions + action``; a pair owns a slice of the
    arrays, ascending in the next state. A pair without outcomes makes all its rows illegal.

    Attributes
    ----------
    agent : int or None
        Whose action moves it; None: nobody's, and `num_actions` is 1. Several components may share an agent.
    size : int
        Local states, 0..size-1.
    num_actions : int
    offsets : (size * num_actions + 1,) int64
    next_state : (m,) int64
    probability : (m,) float64
    outcome_class : (m,) int64, or None
        What the outcome contributes to the outcome code; None where codes aren't combined (see `Factoring`).
    num_classes : int
    """

    agent: int | None
    size: int
    num_actions: int
    offsets: NDArray[np.int64]
    next_state: NDArray[np.int64]
    probability: NDArray[np.float64]
    outcome_class: NDArray[np.int64] | None = None
    num_classes: int = 1

    @property
    def num_pairs(self) -> int:
        """Pairs of local state and action."""
        return self.size * self.num_actions


@dataclass(frozen=True, eq=False)
class Factoring:
    """Components that move independently, given the joint action.

    Attributes
    ----------
    components : sequence of Component
        Most significant first: a state's product number is the mixed-radix number of its local states.
    combination : (product of num_classes,) int64, or None
        The outcome code of every combination of classes (first component most significant), -1 where it
        never occurs. None (product mode): the probability of an edge is the product over the components, in
        their order, and there are no codes.
    product : (N,) int64, or None
        The product number of every node; None: the node itself.
    """

    components: Sequence[Component]
    combination: NDArray[np.int64] | None = None
    product: NDArray[np.int64] | None = None

    @cached_property
    def num_products(self) -> int:
        """Product numbers: the product of the components' sizes."""
        return math.prod(component.size for component in self.components)

    @cached_property
    def num_actions(self) -> tuple[int, ...]:
        """Actions of each agent that moves a component."""
        actions = {c.agent: c.num_actions for c in self.components if c.agent is not None}
        return tuple(actions[agent] for agent in sorted(actions))


class Tables(NamedTuple):
    """The numbers of a factoring as the kernels read them; all of them checked, so kernels don't check them.

    C components; P pairs over all of them; m outcomes over all pairs; A joint actions; a *tail* is the last
    components' list of outcomes, which is made once for every node and tail action.
    """

    layout: NDArray[np.int64]  # (C, 3) local states, actions, first pair of every component
    action_pair: NDArray[np.int32]  # (A, C) its first pair + the action of its agent
    offsets: NDArray[np.int64]  # (P + 1,)
    scaled_next: NDArray[np.int64]  # (m,) next local state, times what it counts in a product number
    scaled_class: NDArray[np.int32]  # (m,) class, times what it counts in a combination
    head_class: NDArray[np.int32]  # (m,) the same, in units of `kind_unit`
    probability: NDArray[np.float64]  # (m,)
    cumulative: NDArray[np.float64]  # (m,) within the pair; 2 from the last outcome with a chance on
    chances: NDArray[np.float64]  # (2 (m + 1),) the sum within the pair before the outcome, its probability
    gains: NDArray[np.int64]  # (2 (m + 1),) `scaled_next`, `scaled_class`
    pairs: NDArray[np.int32]  # (4 P,) first outcome, outcomes, those of smaller actions, those of all actions
    longest: int  # outcomes of a pair
    padded: NDArray[np.float64]  # (P * SHORT,) `cumulative`, each pair with 2 behind; or empty
    group_start: NDArray[np.int64]  # (groups + 1,) into the next: components by agent, agent 0 first
    group_component: NDArray[np.int64]  # (C,)
    in_order: bool  # components follow each other as agents do, one each
    head: int  # components before the tail
    tail_of: NDArray[np.int32]  # (A,) the tail action
    tail_place: NDArray[np.int64]  # (tail actions + 1,) where its list goes in a buffer
    longest_head: int
    head_kinds: int  # classes that heads make together, or 1 where that is too many to list codes for each
    kind_unit: int  # what a head's class counts in a combination


def find_problem(factoring: Factoring, size: GraphSize) -> str | None:
    """Say what is wrong with a factoring of a graph, or None; in time and memory that its tables need.

    The sums of kernels aren't looked at (see :func:`find_bad_kernel`), nor is `product`.
    """
    components = factoring.components
    if not 1 <= len(components) <= MAX_COMPONENTS:
        return f"there are {len(components)} components instead of 1 to {MAX_COMPONENTS}"
    for number, component in enumerate(components):
        problem = _component_problem(component, factoring.combination is not None)
        if problem:
            return f"component {number} {problem}"
    if sum(len(component.next_state) for component in components) > _MAX_PAIRS:
        return f"the kernels have more than {_MAX_PAIRS:,} outcomes"
    if sum(component.num_pairs for component in components) > _MAX_PAIRS:
        return f"there are more than {_MAX_PAIRS:,} pairs of local state and action"
    if factoring.num_products >= 1 << 63:
        return f"the components make {factoring.num_products:,} product numbers, which take more than 63 bits"
    agents = {c.agent for c in components if c.agent is not None}
    if agents != set(range(len(agents))):
        return f"components are moved by agents {sorted(agents)}, which aren't 0, 1, ..."
    if any(len({c.num_actions for c in components if c.agent == agent}) > 1 for agent in agents):
        return "components of one agent have different numbers of actions"
    if size.num_joint_actions > _MAX_JOINT_ACTIONS:
        return f"there are more than {_MAX_JOINT_ACTIONS:,} joint actions"
    if math.prod(factoring.num_actions) != size.num_joint_actions:
        return f"actions of {factoring.num_actions} don't make {size.num_joint_actions:,} joint actions"
    if factoring.product is None and factoring.num_products != size.num_nodes:
        return f"{factoring.num_products:,} product numbers aren't {size.num_nodes:,} nodes"
    if factoring.combination is not None:
        expected = math.prod(component.num_classes for component in components)
        codes = factoring.combination
        if expected > _MAX_COMBINATIONS or codes.shape != (expected,):
            return f"{codes.size:,} combinations aren't the {expected:,} of the components' classes"
        if codes.min() < -1 or codes.max() >= size.num_outcomes:
            return f"a combination isn't an outcome code within 0 to {size.num_outcomes - 1:,}"
    elif size.num_outcomes != 1:
        return f"classes aren't combined, yet there are {size.num_outcomes:,} outcomes"
    most = math.prod(_most_edges(component) for component in components)
    return f"a node may have {most:,} edges, which take more than 63 bits" if most >= 1 << 63 else None


def find_bad_kernel(factoring: Factoring) -> str | None:
    """Say which pair's probabilities don't sum to 1 within 1e-9, or None."""
    for number, component in enumerate(factoring.components):
        sums = _sums_of(component.offsets, component.probability)
        wrong = np.flatnonzero((np.abs(sums - 1.0) > _SUM_TOLERANCE) & (np.diff(component.offsets) > 0))
        if len(wrong):
            state, action = divmod(int(wrong[0]), component.num_actions)
            return (
                f"the probabilities of component {number} in local state {state} under action {action} sum "
                f"to {sums[wrong[0]]!r}"
            )
    return None


def _component_problem(component: Component, coded: bool) -> str | None:
    offsets, states = component.offsets, component.next_state
    if component.size < 1 or component.num_actions < 1 or component.num_classes < 1:
        return "is empty"
    if component.size > _MAX_PAIRS:
        return f"has more than {_MAX_PAIRS:,} local states"
    if component.agent is None and component.num_actions != 1:
        return f"is moved by nobody, yet by {component.num_actions} actions"
    if component.num_pairs > _MAX_PAIRS or offsets.shape != (component.num_pairs + 1,):
        return f"has {len(offsets)} offsets for {component.num_pairs} pairs of local state and action"
    if offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] != len(states):
        return f"has offsets that don't rise from 0 to {len(states)}"
    if component.probability.shape != states.shape:
        return "has not as many probabilities as next states"
    if len(states) and not 0 <= states.min() <= states.max() < component.size:
        return f"has a next state that isn't within 0 to {component.size - 1}"
    falls = np.diff(states) <= 0
    borders = offsets[1:-1]
    falls[borders[(borders > 0) & (borders < len(states))] - 1] = False
    if falls.any():
        return "has next states that don't ascend within a pair"
    if not ((component.probability >= 0) & (component.probability <= 1 + _SUM_TOLERANCE)).all():
        return "has a probability that isn't within 0 to 1"
    classes = component.outcome_class
    if coded and (classes is None or classes.shape != states.shape):
        return "has not as many classes as next states"
    if classes is not None and len(classes):
        lowest, highest = int(classes.min()), int(classes.max())
        if not 0 <= lowest <= highest < component.num_classes:
            return f"has a class that isn't within 0 to {component.num_classes - 1}"
    return None


def _most_edges(component: Component) -> int:
    """Most outcomes of a local state over all actions."""
    starts = component.offsets[:: component.num_actions]
    return int(np.diff(starts).max())


def _sums_of(offsets: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum slices, in their order (empty ones: 0)."""
    sums = np.zeros(len(offsets) - 1)
    counts = np.diff(offsets)
    for k in range(int(counts.max(initial=0))):  # short: the longest kernel
        longer = np.flatnonzero(counts > k)
        sums[longer] += values[offsets[:-1][longer] + k]
    return sums


def build_tables(factoring: Factoring, num_joint_actions: int) -> Tables:
    """Lay a factoring without problems out for the kernels.

    Memory: 36 bytes an outcome, 72 a pair while they are at most 65,536, ``4 A (C + 1)`` for joint actions.
    """
    components = factoring.components
    strides = _strides([component.size for component in components])
    class_strides = _strides([component.num_classes for component in components])
    pairs = [component.num_pairs for component in components]
    pair_base = np.concatenate(([0], np.cumsum(pairs)[:-1])).astype(np.int64)
    outcomes = np.concatenate(([0], np.cumsum([len(component.next_state) for component in components])))
    offsets = np.concatenate(
        [component.offsets[:-1] + first for component, first in zip(components, outcomes, strict=False)]
        + [outcomes[-1:]]
    )
    scaled_next = np.concatenate(
        [component.next_state * stride for component, stride in zip(components, strides, strict=True)]
    )
    classes = [
        np.zeros(len(component.next_state), np.int64)
        if component.outcome_class is None or factoring.combination is None
        else component.outcome_class * stride
        for component, stride in zip(components, class_strides, strict=True)
    ]
    layout = np.array(
        [(part.size, part.num_actions, first) for part, first in zip(components, pair_base, strict=True)]
    )
    scaled_class = np.concatenate(classes)
    digits = _action_digits(factoring, num_joint_actions)
    probability = np.concatenate([component.probability for component in components])
    cumulative = _cumulative(offsets, probability)
    groups = _groups(components)
    agents = [component.agent for component in components if component.agent is not None]
    head, tail_of, tail_place = _tails(components, digits)
    kinds = math.prod(component.num_classes for component in components[:head])
    kind_unit = math.prod(component.num_classes for component in components[head:])
    longest = [int(np.diff(component.offsets).max()) for component in components]
    return Tables(
        as_input(layout, np.int64),
        as_input(digits + pair_base, np.int32),
        as_input(offsets, np.int64),
        as_input(scaled_next, np.int64),
        as_input(scaled_class, np.int32),
        as_input(scaled_class // kind_unit, np.int32),
        as_input(probability, np.float64),
        as_input(cumulative, np.float64),
        as_input(
            np.column_stack((_reached(offsets, cumulative), np.append(probability, 1.0))).reshape(-1),
            np.float64,
        ),
        as_input(np.append(np.column_stack((scaled_next, scaled_class)).reshape(-1), [0, 0]), np.int64),
        as_input(_pairs(offsets, components, pair_base).reshape(-1), np.int32),
        max(longest),
        as_input(_padded(offsets, cumulative).reshape(-1), np.float64),
        as_input(np.concatenate(([0], np.cumsum([len(group) for group in groups]))), np.int64),
        as_input(np.array([number for group in groups for number in group]), np.int64),
        agents == sorted(set(agents)),
        head,
        as_input(tail_of, np.int32),
        as_input(tail_place, np.int64),
        max(1, math.prod(longest[:head])),
        kinds if factoring.combination is not None and kinds * int(tail_place[-1]) <= _STRIP_ENTRIES else 1,
        kind_unit,
    )


def code_table(combination: NDArray[np.int64] | None, num_outcomes: int) -> NDArray[Any]:
    """Give the codes of combinations in the smallest dtype that also holds K, which stands for never."""
    if combination is None:
        return as_input(np.zeros(1), np.uint8)
    return as_input(np.where(combination < 0, num_outcomes, combination), outcome_dtype(num_outcomes + 1))


def _strides(radices: Sequence[int]) -> list[int]:
    strides = [1]
    for radix in radices[:0:-1]:
        strides.append(strides[-1] * radix)
    return strides[::-1]


def _action_digits(factoring: Factoring, num_joint_actions: int) -> NDArray[np.int64]:
    """(A, C) the action of every component's agent; 0 where nobody moves it."""
    digits = np.zeros((num_joint_actions, len(factoring.components)), np.int64)
    joint = np.arange(num_joint_actions)
    strides = _strides(factoring.num_actions)
    for number, component in enumerate(factoring.components):
        if component.agent is not None:
            digits[:, number] = joint // strides[component.agent] % component.num_actions
    return digits


def _cumulative(offsets: NDArray[np.int64], probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Running sums within pairs; 2 from the last outcome with a chance on: it takes what rounding leaves."""
    sums = probability.astype(np.float64)
    starts, counts = offsets[:-1], np.diff(offsets)
    for k in range(1, int(counts.max(initial=0))):
        longer = starts[counts > k] + k
        sums[longer] += sums[longer - 1]
    last = starts + counts - 1
    open_pairs = np.flatnonzero(counts > 0)
    while len(open_pairs):
        at = last[open_pairs]
        sums[at] = 2.0
        back = (probability[at] <= 0.0) & (at > starts[open_pairs])
        open_pairs = open_pairs[back]
        last[open_pairs] -= 1
    return sums


def _reached(offsets: NDArray[np.int64], cumulative: NDArray[np.float64]) -> NDArray[np.float64]:
    before = np.concatenate((np.zeros(1), cumulative))
    before[offsets[:-1][np.diff(offsets) > 0]] = 0.0
    return before


def _pairs(
    offsets: NDArray[np.int64], components: Sequence[Component], pair_base: NDArray[np.int64]
) -> NDArray[np.int64]:
    pairs = np.empty((len(offsets) - 1, 4), np.int64)
    pairs[:, 0] = offsets[:-1]
    pairs[:, 1] = np.diff(offsets)
    for component, first in zip(components, pair_base, strict=True):
        stop = first + component.num_pairs
        shape = (component.size, component.num_actions)
        starts = offsets[first:stop].reshape(shape)
        pairs[first:stop, 2] = (starts - starts[:, :1]).reshape(-1)
        whole = offsets[first + component.num_actions : stop + 1 : component.num_actions] - starts[:, 0]
        pairs[first:stop, 3] = np.repeat(whole, component.num_actions)
    return pairs


def _padded(offsets: NDArray[np.int64], cumulative: NDArray[np.float64]) -> NDArray[np.float64]:
    pairs = len(offsets) - 1
    if pairs > _PADDED_PAIRS:
        return np.empty((0, SHORT))
    padded = np.full((pairs, SHORT), 2.0)
    counts = np.diff(offsets)
    for k in range(SHORT):
        has = np.flatnonzero((counts > k) & (counts <= SHORT))
        padded[has, k] = cumulative[offsets[has] + k]
    return padded


def _groups(components: Sequence[Component]) -> list[list[int]]:
    """Components by agent, agent 0 first; then those that nobody moves, each alone."""
    agents = sorted({component.agent for component in components if component.agent is not None})
    groups = [[n for n, component in enumerate(components) if component.agent == agent] for agent in agents]
    return groups + [[n] for n, component in enumerate(components) if component.agent is None]


def _tails(
    components: Sequence[Component], digits: NDArray[np.int64]
) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
    """Choose the first component of the tail, number the tails' actions and lay out their lists."""
    most = [_most_edges(component) for component in components]
    head = len(components) - 1
    while head > 1 and math.prod(most[head - 1 :]) <= _TAIL_ENTRIES:
        head -= 1
    tails, tail_of = np.unique(digits[:, head:], axis=0, return_inverse=True)
    longest = np.ones(len(tails), np.int64)
    for number, component in enumerate(components[head:]):
        counts = np.diff(component.offsets).reshape(component.size, component.num_actions).max(axis=0)
        longest *= counts[tails[:, number]]
    return head, tail_of.reshape(-1), np.concatenate(([0], np.cumsum(longest)))
