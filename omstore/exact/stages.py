"""How the kernels of components are contracted one after the other, and the buffers that this takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.exact.factored_kernels import Buffers, Plan
from omstore.exact.vector_sums import LANES
from omstore.rows.factored_tables import Component

__all__ = ["Stages"]


@dataclass(frozen=True, eq=False)
class Stages:
    """How the kernels of C components are contracted, the first component's first.

    A *combination* of a stage is one of the actions of all agents that move components up to it. *Heads* are those of
    the components but the last.

    Attributes
    ----------
    sizes, actions : (C,) int64
    tails : (C,) int64
        Product of the sizes behind a component.
    pair_start : (C,) int64
        First pair of a component.
    offsets : (pairs + 1,) int64
    nexts, chances : (outcomes,) int64, float64
    combos, combo_start : (C,) int64
        Combinations of each stage, and where they begin in the next two.
    combo_source, combo_action : (combinations,) int64
        The combination of the stage before that one is made of, and the action of this component's agent.
    joint_head, joint_action : (A,) int64
        What joint actions are made of: a head, and the action of the last component's agent.
    always : bool
        Whether all pairs have outcomes.
    whole : bool
        Whether every head goes with every action of the last component's agent.
    lanes : int
        Heads, filled up to whole vectors.
    work_start : (C,) int64
        Where each stage begins in a thread's buffer; the last is what is turned round for the last component.
    work : int
        Numbers in a thread's buffer.
    reach_start, reach : (size + 1,), (n,) int64
        Where the local states begin that each of the last component leads to by any action, and these.
    slot : (outcomes,) int64
        Where an outcome of the last component is among them.
    """

    sizes: NDArray[np.int64]
    tails: NDArray[np.int64]
    actions: NDArray[np.int64]
    pair_start: NDArray[np.int64]
    offsets: NDArray[np.int64]
    nexts: NDArray[np.int64]
    chances: NDArray[np.float64]
    combos: NDArray[np.int64]
    combo_start: NDArray[np.int64]
    combo_source: NDArray[np.int64]
    combo_action: NDArray[np.int64]
    joint_head: NDArray[np.int64]
    joint_action: NDArray[np.int64]
    always: bool
    whole: bool
    lanes: int
    work_start: NDArray[np.int64]
    work: int
    reach_start: NDArray[np.int64]
    reach: NDArray[np.int64]
    slot: NDArray[np.int64]

    @classmethod
    def of(cls, components: Sequence[Component], num_actions: Sequence[int]) -> Stages:
        """Lay out the stages of two components or more, moved by agents with these numbers of actions."""
        sizes = np.array([part.size for part in components])
        tails = np.array([int(np.prod(sizes[k + 1 :], dtype=object)) for k in range(len(sizes))], object)
        pairs = [part.num_pairs for part in components]
        outcomes = np.cumsum([0] + [len(part.next_state) for part in components])
        offsets = [part.offsets[:-1] + at for part, at in zip(components, outcomes, strict=False)]
        seen: list[int] = []
        digits = np.zeros((1, 0), np.int64)  # of each combination: the action of every agent seen
        combos, sources, actions = [], [], []
        for part in components[:-1]:
            digits, seen, source, action = _extend(part, digits, seen)
            combos.append(len(digits))
            sources.append(source)
            actions.append(action)
        heads = len(digits)
        digits, seen, head, action = _extend(components[-1], digits, seen)
        strides = np.array([int(np.prod(num_actions[agent + 1 :], dtype=object)) for agent in seen], np.int64)
        order = np.argsort(digits @ strides) if seen else np.zeros(1, np.int64)
        lanes = -(-heads // LANES) * LANES
        lengths = [count * int(tail) for count, tail in zip(combos, tails, strict=False)]
        lengths.append((int(sizes[-1]) + components[-1].num_actions + 1) * lanes)
        starts = np.cumsum([0, *lengths])
        return cls(
            as_input(sizes, np.int64),
            as_input(tails, np.int64),
            as_input(np.array([part.num_actions for part in components]), np.int64),
            as_input(np.cumsum([0, *pairs[:-1]]), np.int64),
            as_input(np.concatenate([*offsets, outcomes[-1:]]), np.int64),
            as_input(np.concatenate([part.next_state for part in components]), np.int64),
            as_input(np.concatenate([part.probability for part in components]), np.float64),
            as_input(np.array([*combos, len(digits)]), np.int64),
            as_input(np.cumsum([0, *combos]), np.int64),
            as_input(np.concatenate(sources), np.int64),
            as_input(np.concatenate(actions), np.int64),
            as_input(head[order], np.int64),
            as_input(action[order], np.int64),
            all(bool((np.diff(part.offsets) > 0).all()) for part in components),
            len(digits) == heads * components[-1].num_actions,
            lanes,
            as_input(starts[:-1], np.int64),
            int(starts[-1]),
            *_reached(components[-1], int(outcomes[-1])),
        )

    @property
    def plan(self) -> Plan:
        """What kernels need to know."""
        return Plan(
            self.sizes,
            self.tails,
            self.actions,
            self.pair_start,
            self.offsets,
            self.nexts,
            self.chances,
            self.combos,
            self.combo_start,
            self.combo_source,
            self.combo_action,
            self.work_start,
            self.lanes,
            self.always,
        )

    def buffers(self) -> Buffers:
        """Make a thread's buffers."""
        return Buffers(
            np.zeros(self.work),
            np.full(len(self.sizes), -1, np.int64),
            np.empty(len(self.sizes), np.int64),
            np.empty(self.lanes, np.uint8),
        )


def _reached(
    part: Component, outcomes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Find the local states that each leads to; `outcomes` is that of all components, the last ones being the part's."""
    state = np.repeat(np.arange(part.num_pairs) // part.num_actions, np.diff(part.offsets))
    found, place = np.unique(state * part.size + part.next_state, return_inverse=True)
    start = np.searchsorted(found, np.arange(part.size + 1) * part.size)
    slot = np.zeros(outcomes, np.int64)
    slot[outcomes - len(place) :] = place.reshape(-1)
    return as_input(start, np.int64), as_input(found % part.size, np.int64), as_input(slot, np.int64)


def _extend(
    part: Component, digits: NDArray[np.int64], seen: Sequence[int]
) -> tuple[NDArray[np.int64], list[int], NDArray[np.int64], NDArray[np.int64]]:
    """Combine with the actions of a component's agent: combinations, agents, and what they are made of."""
    before = np.arange(len(digits))
    if part.agent is None:
        return digits, list(seen), before, np.zeros_like(before)
    if part.agent in seen:
        return digits, list(seen), before, digits[:, seen.index(part.agent)]
    action = np.repeat(np.arange(part.num_actions), len(digits))
    source = np.tile(before, part.num_actions)
    return np.column_stack((digits[source], action)), [*seen, part.agent], source, action
