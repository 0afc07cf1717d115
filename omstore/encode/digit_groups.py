"""Which digits of the state an agent moves: they are one component.

A digit that answers to an agent's action (its distribution differs between rows that differ in that action alone)
belongs to the agent. Where that is doubtful - a door that opens under whoever stands before it answers to
nobody's action, and rows that are exceptions make a digit answer to everybody's - the digit goes where it is
predictable: to the agent whose digits and action determine where it goes, or to nobody.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import as_input
from omstore.encode import factoring_kernels as kernels
from omstore.encode.coordinates import Coordinates
from omstore.encode.kernel_votes import TOLERANCE
from omstore.encode.row_sample import ActionGrid, RowSample
from omstore.rows.factored_tables import MAX_COMPONENTS

__all__ = ["Looked", "group_digits"]

_OFTEN = 0.5  # of the nodes: a digit that answers so often is the agent's, if none other has half as much
_SELDOM = (
    0.1  # of the answers to its agent; a bit of an agent's cell answers in few nodes, but to nobody else
)
_PREDICTABLE = (
    0.5  # two rows agree so often where the digit is predictable; (1 - exceptions) squared, at best
)
_BETTER = 0.01  # a digit goes to an agent if it is so much more predictable than by itself
_FEWEST_PAIRS = 16  # of rows, to tell whether they agree
_MOST_DOUBTFUL = 64  # digits: each costs a sort of the rows for every agent
_FINGERPRINTS = 1 << 21  # numbers made at a time


@dataclass(frozen=True)
class Looked:
    """The rows looked at: of every node, and each agent, some actions with those of the others fixed.

    Attributes
    ----------
    rows : RowSample
        Those of a node together.
    absorbing : (R,) bool
        Whether all rows of the row's node lead nowhere else.
    columns : list of slice
        Each agent's rows among those of a node.
    per_node : int
        Rows of a node.
    """

    rows: RowSample
    absorbing: NDArray[np.bool_]
    columns: list[slice]
    per_node: int

    @property
    def num_nodes(self) -> int:
        """Nodes looked at."""
        return len(self.rows.nodes) // self.per_node


def group_digits(
    looked: Looked, coordinates: Coordinates, grid: ActionGrid
) -> dict[int | None, list[int]] | str:
    """Give every digit to an agent, or to nobody.

    Returns
    -------
    dict, or str
        Agent (or None) -> digits, in the order of their first ones; agents without any come last. Else a sentence
        that says why there is nothing to factor.
    """
    digits = coordinates.num_digits
    if not digits:
        return "There is only one state."
    answers = _answers(looked, coordinates)
    owner = answers.argmax(axis=1)
    most = answers.max(axis=1)
    second = np.sort(answers, axis=1)[:, -2] if answers.shape[1] > 1 else np.zeros(digits, np.int64)
    often = (most >= _OFTEN * looked.num_nodes) & (second <= 0.5 * most)
    alone = (second <= _SELDOM * most) & (answers.shape[1] > 1)
    clear = (most > 0) & (often | alone)
    groups: dict[int | None, list[int]] = {}
    for digit in np.flatnonzero(clear).tolist():
        groups.setdefault(int(owner[digit]), []).append(digit)
    doubtful = np.flatnonzero(~clear).tolist()
    if len(doubtful) > _MOST_DOUBTFUL:
        for digit in doubtful:
            groups.setdefault(int(owner[digit]) if most[digit] else None, []).append(digit)
    else:
        problem = _place(doubtful, groups, answers, looked, coordinates, grid)
        if problem:
            return problem
    _place_by_legality(groups, looked, coordinates, grid)
    if len(groups) < 2:
        return _one_group(next(iter(groups)), looked)
    still = [agent for agent in range(len(grid.num_actions)) if agent not in groups]
    if len(groups) + len(still) > MAX_COMPONENTS:
        return f"{len(groups) + len(still)} components are more than {MAX_COMPONENTS}."
    ordered = sorted(groups, key=lambda agent: min(groups[agent]))
    return {agent: sorted(groups[agent]) for agent in ordered} | {agent: [] for agent in still}


def _answers(looked: Looked, coordinates: Coordinates) -> NDArray[np.int64]:
    """(C, agents) in how many nodes the distribution of a digit depends on the agent's action."""
    rows, digits, per_node = looked.rows, coordinates.num_digits, looked.per_node
    answers = np.zeros((digits, len(looked.columns)), np.int64)
    step = max(1, _FINGERPRINTS // (per_node * digits)) * per_node
    for first in range(0, len(rows.nodes), step):
        part = slice(first, min(first + step, len(rows.nodes)))
        prints = _fingerprints(rows, part, coordinates).reshape(-1, per_node, digits)
        legal = rows.legal[part].reshape(-1, per_node)
        for agent, columns in enumerate(looked.columns):
            can = legal[:, columns, None]
            largest = np.where(can, prints[:, columns], -np.inf).max(axis=1)
            least = np.where(can, prints[:, columns], np.inf).min(axis=1)
            answers[:, agent] += (largest - least > TOLERANCE).sum(axis=0)
    return answers


def _fingerprints(
    rows: RowSample, part: slice, coordinates: Coordinates, digits: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """(n, C) a number for the distribution of the change of each digit (of some, in their order) in rows."""
    component_digit = coordinates.component_digit()
    count = coordinates.num_digits
    if digits is not None:
        place = np.full(count + 1, -1)  # the last is that of components which are no digit's
        place[digits] = np.arange(len(digits))
        component_digit, count = place[component_digit], len(digits)
    prints = np.zeros((part.stop - part.start, count))
    kernels.fingerprint_rows(
        as_input(coordinates.packed, np.uint8),
        coordinates.codec.component_bits,
        as_input(component_digit, np.int64),
        as_input(rows.nodes[part], np.int64),
        as_input(rows.offsets[part.start : part.stop + 1], np.int64),
        as_input(rows.next_node, np.int64),
        as_input(rows.chance, np.float64),
        prints,
    )
    return prints


def _place(
    doubtful: list[int],
    groups: dict[int | None, list[int]],
    answers: NDArray[np.int64],
    looked: Looked,
    coordinates: Coordinates,
    grid: ActionGrid,
) -> str:
    """Put each doubtful digit where it is predictable; returns a sentence about one that is nowhere."""
    if not doubtful:
        return ""
    rows = looked.rows
    prints = _fingerprints(rows, slice(0, len(rows.nodes)), coordinates, np.array(doubtful))
    usable = rows.legal & ~looked.absorbing
    if not usable.any():
        usable = rows.legal
    by_node = coordinates.digits(coordinates.packed[rows.nodes[:: looked.per_node]])
    node = np.repeat(np.arange(looked.num_nodes), looked.per_node)[usable]
    change = np.rint(prints[usable] * 2.0**32)  # equal ones may differ in their last bits
    for column, digit in enumerate(doubtful):
        default = int(answers[digit].argmax()) if answers[digit].any() else None
        by_itself = _agreement(by_node[:, doubtful][node], None, change[:, column])
        best, most = None, by_itself + _BETTER
        for agent in range(len(grid.num_actions)):
            own = sorted({digit, *groups.get(agent, ())})
            action = grid.action(rows.joint[usable], agent)
            agreement = _agreement(by_node[:, own][node], action, change[:, column])
            if agreement > most:
                best, most = agent, agreement
        most = by_itself if best is None else most
        if 0 <= most < _PREDICTABLE:
            return (
                f"Agents don't move independently: on where {coordinates.describe(digit)} of the state goes, two "
                f"random rows agree in {most:.0%} of cases if {_telling(best)} the same in both."
            )
        groups.setdefault(best if most >= 0 else default, []).append(digit)
    return ""


def _place_by_legality(
    groups: dict[int | None, list[int]], looked: Looked, coordinates: Coordinates, grid: ActionGrid
) -> None:
    """Give digits that nobody moves to an agent without any, if its actions are legal by them."""
    rows = looked.rows
    if None not in groups or rows.legal.all():
        return
    by_node = coordinates.digits(coordinates.packed[rows.nodes[:: looked.per_node]])
    legal = rows.legal.astype(np.float64)
    for agent in range(len(grid.num_actions)):
        if agent in groups:
            continue
        action = grid.action(rows.joint, agent)
        by_action = _agreement(action[:, None], None, legal)
        for digit in list(groups.get(None, ())):
            value = np.repeat(by_node[:, digit : digit + 1], looked.per_node, axis=0)
            by_value = _agreement(value, None, legal)
            if _agreement(value, action, legal) > max(by_value, by_action) + _BETTER:
                groups.setdefault(agent, []).append(digit)
                groups[None].remove(digit)
        if not groups.get(None):
            groups.pop(None, None)


def _telling(agent: int | None) -> str:
    return "it is" if agent is None else f"agent {agent}'s action and part of the state are"


def _agreement(
    values: NDArray[np.int64], action: NDArray[np.int64] | None, change: NDArray[np.float64]
) -> float:
    """How often two rows with equal values (and action) have equal changes; -1 where there are too few of them."""
    key = np.zeros(len(values), np.uint64)
    columns = values.T if action is None else np.concatenate((values.T, action[None]))
    for column in columns:
        key = (key * np.uint64(0x9E3779B97F4A7C15)) ^ (column.astype(np.uint64) + (key >> np.uint64(29)))
    _, key_counts = np.unique(key, return_counts=True)
    pairs = (key_counts * (key_counts - 1)).sum()
    if pairs < 2 * _FEWEST_PAIRS:
        return -1.0
    both = np.stack((key.view(np.int64), change.astype(np.int64)), axis=1)
    order = np.lexsort((both[:, 1], both[:, 0]))
    heads = np.flatnonzero(np.concatenate(([True], (np.diff(both[order], axis=0) != 0).any(axis=1))))
    counts = np.diff(np.append(heads, len(order)))
    return float((counts * (counts - 1)).sum() / pairs)


def _one_group(agent: int | None, looked: Looked) -> str:
    """Say why there is nothing to factor: all digits are one agent's, or nobody's."""
    if agent is None:
        reason = "Nothing in the state was seen to answer to any agent's action"
    else:
        reason = f"All that changes in the state answers to agent {agent}'s action alone, or most"
    legal = looked.rows.legal.mean()
    if legal > _OFTEN:
        return f"{reason}."
    return f"{reason}: only {legal:.1%} of {len(looked.rows.nodes):,} random rows have successors."
