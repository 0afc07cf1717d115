"""What blocks of patterns come to under two policies, under the best action, and for mass that is moved on; compiled.

Which rows are legal is the same at all nodes of a block. Lanes as in `omstore.exact.block_kernels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inlined_kernel, kernel
from omstore.exact.block_kernels import BAD_NODE, OK, expect_group, place_group
from omstore.exact.vector_sums import LANES, find_most, spread, weigh

__all__ = ["play_blocks", "push_blocks"]


@inlined_kernel
def _turn_policy(policy: Any, step: Any, row: Any, count: Any, turned: Any) -> None:
    """Write the probabilities of nodes into lanes, (actions, lanes); the last node's again to fill a vector."""
    for lane in range(0, count, LANES):
        a, b, c, d = (
            np.uint64((row + lane) * step),
            np.uint64((row + min(lane + 1, count - 1)) * step),
            np.uint64((row + min(lane + 2, count - 1)) * step),
            np.uint64((row + min(lane + 3, count - 1)) * step),
        )
        for action in range(turned.shape[0]):
            turned[action, lane], turned[action, lane + 1] = policy[a, action], policy[b, action]
            turned[action, lane + 2], turned[action, lane + 3] = policy[c, action], policy[d, action]


@inlined_kernel
def _mean_of_legal(block: Any, which: Any, num_joint: Any, worth: Any, lane: Any) -> float:
    """Return the mean of all legal rows; 0 where there is none."""
    total, legal = 0.0, 0
    for joint in range(num_joint):
        pattern = which[block * num_joint + joint]
        if pattern > 0:
            total += worth[pattern, lane]
            legal += 1
    return total / legal if legal else 0.0


@inlined_kernel
def _count_legal(block: Any, which: Any, num_joint: Any) -> int:
    """Return how many rows of a block are legal."""
    legal = 0
    for joint in range(num_joint):
        legal += which[block * num_joint + joint] > 0
    return legal


@inlined_kernel
def _choose(
    lane: Any, block: Any, which: Any, own_joint: Any, other_joint: Any, worth: Any, total: Any, mass: Any
) -> tuple[float, int]:
    """Return the best action at a node and its value; -1 and 0 where none is legal."""
    num_joint = own_joint.size * other_joint.size
    best, action = 0.0, -1
    for a in range(own_joint.size):
        legal = False
        for o in range(other_joint.size):
            legal = legal or which[block * num_joint + own_joint[a] + other_joint[o]] > 0
        if not legal:
            continue
        if mass[a, lane] > 0.0:
            value = total[a, lane] / mass[a, lane]
        else:
            value = _mean_of_legal(block, which, num_joint, worth, lane)
        if value > best or action < 0:
            best, action = value, a
    return best, action


@inlined_kernel
def _first_as_good(block: Any, which: Any, num_joint: Any, worth: Any, lane: Any, value: Any) -> int:
    """Return the lowest joint action that is worth the best."""
    for joint in range(num_joint):
        pattern = which[block * num_joint + joint]
        if pattern > 0 and worth[pattern, lane] == value:
            return joint
    return 0


@inlined_kernel
def _find_action(lanes: Any, total: Any, met: Any, value: Any, action_of: Any) -> None:
    """Write the most that an action is worth, and the lowest action that is; all are legal."""
    for lane in range(lanes):
        value[lane], action_of[lane] = total[0, lane] / met[lane], 0
    for a in range(1, total.shape[0]):
        for lane in range(lanes):
            worth = total[a, lane] / met[lane]
            more = worth > value[lane]
            action_of[lane] = a if more else action_of[lane]
            value[lane] = worth if more else value[lane]


@kernel
def play_blocks(
    blocks: Any, layout: Any, places: Any,
    own_plays: Any, own_step: Any, other_plays: Any, other_step: Any, own_joint: Any, other_joint: Any,
    table: Any, plain: Any, base: Any, marked: Any, at: Any, gain: Any, worth: Any, chooses: Any, out: Any, chosen: Any,
) -> tuple[int, int]:  # fmt: skip
    """Write the values of the units laid out, under policies or by the own side's best action.

    Joint actions are played as `omstore.exact.Backup` says. Other arguments as for
    `omstore.exact.block_kernels.expect_group`.

    Parameters
    ----------
    own_joint, other_joint : (L,), (O,) int32
        What actions add to the joint action.
    own_plays, other_plays : (units or 1, L), (units or 1, O) float64
        Policies; the own side's empty: it plays the best; the other's empty: it has no choice.
    own_step, other_step : int
        1, or 0 where all units have the same.
    out : (units,) float64
        0 where no joint action is legal.
    chooses : bool
        Whether anybody asks for the best action.
    chosen : (units,) int64
        The best action, the lowest of those that are as good; -1 where none is legal.

    Returns
    -------
    status, unit : int
    """
    which, begin, width = layout.which, layout.first_unit[0], at.size
    num_own, num_other = own_joint.size, other_joint.size
    num_joint = num_own * num_other
    own, other = np.zeros((num_own, width)), np.ones((num_other, width))
    total, mass, legal_of = np.zeros((num_own, width)), np.zeros((num_own, width)), np.ones(worth.shape)
    each, nothing = np.arange(num_own).astype(np.int32), np.zeros(max(num_own, num_other), np.int32)
    one = np.ones(1, np.int32)
    value, met, action_of = np.zeros(width), np.zeros(width), np.zeros(width, np.int64)
    worth[0], legal_of[0] = 0.0, 0.0
    for block in range(blocks):
        legal = _count_legal(block, which, num_joint)
        patterns = layout.first_pattern[block + 1] - layout.first_pattern[block]
        for unit in range(layout.first_unit[block], layout.first_unit[block + 1], width):
            count = min(width, layout.first_unit[block + 1] - unit)
            row, lanes = unit - begin, -(-count // LANES) * LANES
            if not legal:
                for lane in range(count):
                    out[row + lane], chosen[row + lane] = 0.0, -1
                continue
            wrong = expect_group(
                unit, count, block, layout, places, table, plain, base, marked, at, gain, worth
            )
            if wrong >= 0:
                return BAD_NODE, unit + wrong
            if not own_plays.size and not other_plays.size:
                find_most(worth, width, 1, patterns + 1, value, lanes)
                for lane in range(count):
                    out[row + lane] = value[lane]
                    if chooses:
                        chosen[row + lane] = _first_as_good(block, which, num_joint, worth, lane, value[lane])
                continue
            if other_plays.size:
                _turn_policy(other_plays, other_step, row, count, other)
            for a in range(num_own):
                first = block * num_joint + own_joint[a]
                weigh(worth, width, which, first, other_joint, other, total, a * width, lanes)
                if legal < num_joint:
                    weigh(legal_of, width, which, first, other_joint, other, mass, a * width, lanes)
            if legal == num_joint:  # then the mass is the same for all actions
                weigh(legal_of, width, one, 0, nothing[:num_other], other, met, 0, lanes)
            if own_plays.size:
                _turn_policy(own_plays, own_step, row, count, own)
                weigh(total, width, each, 0, each, own, value, 0, lanes)
                if legal == num_joint:
                    weigh(met, width, nothing, 0, nothing[:num_own], own, met, 0, lanes)
                else:
                    weigh(mass, width, each, 0, each, own, met, 0, lanes)
                for lane in range(count):
                    if met[lane] > 0.0:
                        out[row + lane] = value[lane] / met[lane]
                    else:
                        out[row + lane] = _mean_of_legal(block, which, num_joint, worth, lane)
                    chosen[row + lane] = -1
            elif legal == num_joint:
                _find_action(lanes, total, met, value, action_of)
                for lane in range(count):
                    out[row + lane], chosen[row + lane] = value[lane], action_of[lane]
                    if not met[lane] > 0.0:  # whatever is done, any row is as likely
                        out[row + lane] = _mean_of_legal(block, which, num_joint, worth, lane)
                        chosen[row + lane] = 0
            else:
                for lane in range(count):
                    out[row + lane], chosen[row + lane] = _choose(
                        lane, block, which, own_joint, other_joint, worth, total, mass
                    )
    return OK, 0


@inlined_kernel
def _add_played(
    block: Any, lane: Any, which: Any, own: Any, own_joint: Any, other: Any, other_joint: Any, weight: Any,
    total: Any,
) -> None:  # fmt: skip
    """Add to patterns how likely policies play their rows, at four nodes, and write how likely they play any."""
    num_other = other_joint.size
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    for mine in range(own_joint.size):
        first = block * own_joint.size * num_other + own_joint[mine]
        p, q, r, s = own[mine, lane], own[mine, lane + 1], own[mine, lane + 2], own[mine, lane + 3]
        for theirs in range(num_other):
            pattern = np.uint64(which[first + other_joint[theirs]])
            if pattern > 0:
                w, x = p * other[theirs, lane], q * other[theirs, lane + 1]
                y, z = r * other[theirs, lane + 2], s * other[theirs, lane + 3]
                a, b, c, d = a + w, b + x, c + y, d + z
                weight[pattern, lane] += w
                weight[pattern, lane + 1] += x
                weight[pattern, lane + 2] += y
                weight[pattern, lane + 3] += z
    total[lane], total[lane + 1], total[lane + 2], total[lane + 3] = a, b, c, d


@kernel
def push_blocks(
    blocks: Any, layout: Any, places: Any,
    own_plays: Any, own_step: Any, other_plays: Any, other_step: Any, own_joint: Any, other_joint: Any,
    mass: Any, at: Any, moved: Any, weight: Any, out: Any,
) -> tuple[int, int]:  # fmt: skip
    """Move the mass on the units laid out along their rows, both sides playing by policies.

    What comes to a position is added in the order of units. Other arguments as for `play_blocks`.

    Parameters
    ----------
    mass : (units,) float64
    moved, weight : (n, lanes) float64
        For what goes to each of a block's next nodes, and for the mass on each pattern.
    out : (positions,) float64
        Added to.
    """
    which, reach, begin = layout.which, layout.reach, layout.first_unit[0]
    first_entry, slots, chances = layout.first_entry, layout.slots, layout.chances
    num_joint, num_other = own_joint.size * other_joint.size, other_joint.size
    own, other = np.zeros((own_joint.size, at.size)), np.zeros((num_other, at.size))
    total, width = np.zeros(at.size), at.size
    for block in range(blocks):
        first, reached = layout.first_reach[block], layout.first_reach[block + 1] - layout.first_reach[block]
        first_pattern = layout.first_pattern[block]
        patterns = layout.first_pattern[block + 1] - first_pattern
        if not patterns:
            continue
        for unit in range(layout.first_unit[block], layout.first_unit[block + 1], at.size):
            count = min(at.size, layout.first_unit[block + 1] - unit)
            row, lanes = unit - begin, -(-count // LANES) * LANES
            some = False
            for lane in range(count):
                some = some or mass[row + lane] != 0.0
            if not some:
                continue
            wrong = place_group(unit, count, block, layout, places, out.size, at)
            if wrong >= 0:
                return BAD_NODE, unit + wrong
            _turn_policy(own_plays, own_step, row, count, own)
            _turn_policy(other_plays, other_step, row, count, other)
            weight[: patterns + 1, :lanes] = 0.0
            moved[:reached, :lanes] = 0.0
            for lane in range(0, lanes, LANES):
                _add_played(block, lane, which, own, own_joint, other, other_joint, weight, total)
            for lane in range(count):
                if not total[lane] > 0.0:  # no chance on any joint action: each legal one is as likely
                    for joint in range(num_joint):
                        pattern = which[block * num_joint + joint]
                        if pattern > 0:
                            weight[pattern, lane] += 1.0
                            total[lane] += 1.0
                total[lane] = mass[row + lane] / total[lane]
            for pattern in range(1, patterns + 1):
                some = False
                for lane in range(lanes):
                    weight[pattern, lane] *= total[lane]
                    some = some or weight[pattern, lane] != 0.0
                start, stop = first_entry[first_pattern + pattern - 1], first_entry[first_pattern + pattern]
                if some:
                    spread(weight, pattern * width, width, slots, chances, start, stop, moved, lanes)
            for lane in range(count):
                if mass[row + lane] != 0.0:
                    for slot in range(reached):
                        out[at[lane] + reach[first + slot]] += moved[slot, lane]
    return OK, 0
