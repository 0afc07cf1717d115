"""Nodes that share a block of patterns, side by side: each pattern is summed once for many of them; compiled.

What one node of a block leads to lies as far from its position as what any other one leads to. So the gains of all next
nodes are fetched once for each node, into a lane of a buffer; a pattern is then the same few numbers of every lane,
weighed alike, and rows of the same pattern are one. A lane is summed in the order of the pattern's entries, whatever
lies beside it, to what going through the edges one by one makes of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import inlined_kernel, kernel
from omstore.exact.vector_sums import LANES, mix_rounded

__all__ = [
    "BAD_BLOCK",
    "BAD_NODE",
    "BAD_PATTERN",
    "OK",
    "Layout",
    "Places",
    "expect_group",
    "lay_out",
    "measure_blocks",
    "write_rows",
]

OK, BAD_NODE, BAD_BLOCK, BAD_PATTERN = 0, 1, 2, 3


class Layout(NamedTuple):
    """The blocks of some nodes.

    Nodes are taken in the order of their blocks; a *unit* is a place in this order.

    Attributes
    ----------
    first_unit, first_pattern, first_reach : (blocks + 1,) int64
        Where each block begins among units, in `first_entry`, and in `reach`.
    low, high : (blocks,) int64
        Least and most of a block's `reach`.
    which : (blocks * A,) int32
        The pattern of each row of a block, counted within the block from 1; 0: not legal.
    first_entry : (patterns + 1,) int64
        Where each pattern begins in the last two.
    reach : (n,) int64
        Position of a next node - position of the node: each of a block once.
    slots, chances : (entries,) int64, float64
        Which of the block's `reach` an entry of a pattern is, and its probability.
    """

    first_unit: NDArray[np.int64]
    first_pattern: NDArray[np.int64]
    first_reach: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    which: NDArray[np.int32]
    first_entry: NDArray[np.int64]
    reach: NDArray[np.int64]
    slots: NDArray[np.int64]
    chances: NDArray[np.float64]


class Places(NamedTuple):
    """Where nodes are: `order`, (N,), the node of each unit; `position`, (N,), and `node_at`, (positions,), of
    `omstore.rows.DictionaryRows`, empty where positions are nodes."""

    order: NDArray[Any]
    position: NDArray[Any]
    node_at: NDArray[Any]


@kernel
def measure_blocks(block_pattern: Any, offsets: Any, seen: Any) -> tuple[Any, int]:
    """Return the most entries that the patterns of a block have, each counted once; -1 where one doesn't exist; and
    the block.

    Parameters
    ----------
    block_pattern : (blocks, A) uint32
    offsets : (patterns + 1,) uint64
        Checked.
    seen : (patterns,) int64
        -1 each.
    """
    most, where = np.int64(0), 0
    for block in range(block_pattern.shape[0]):
        entries = np.int64(0)
        for joint in range(block_pattern.shape[1]):
            pattern = np.int64(block_pattern[block, joint])
            if pattern >= seen.size:
                return -1, block
            if seen[pattern] != block:
                seen[pattern] = block
                entries += np.int64(offsets[pattern + 1]) - np.int64(offsets[pattern])
        if entries > most:
            most, where = entries, block
    return most, where


@kernel
def lay_out(
    begin: Any, stop: Any, order: Any, block: Any, block_pattern: Any,
    offsets: Any, delta: Any, list_of: Any, list_offsets: Any, list_code: Any, chance_of: Any,
    lowest: Any, local: Any, slot_of: Any, layout: Any,
) -> tuple[int, int, int]:  # fmt: skip
    """Lay out the blocks of units from `begin` on, as far as there is room, or to `stop`.

    Parameters
    ----------
    begin, stop : int
    order : (N,) unsigned integers
        Of `Places`.
    block, block_pattern, offsets, delta, list_of, list_offsets, list_code
        Of `omstore.rows.DictionaryRows`; checked but for `block`.
    chance_of : (K,) float64
    lowest : int
        Least of `delta`.
    local : (patterns,) int32
        -1 each, and so again afterwards.
    slot_of : (deltas,) int32
        The same, for every difference from `lowest` on.
    layout : Layout
        Written; room for a block at least.

    Returns
    -------
    status, unit, blocks : int
        Where it stopped, or the unit whose block doesn't exist; blocks laid out.
    """
    first_unit, first_pattern, first_reach = layout.first_unit, layout.first_pattern, layout.first_reach
    which, first_entry, reach = layout.which, layout.first_entry, layout.reach
    slots, chances = layout.slots, layout.chances
    num_joint = block_pattern.shape[1]
    patterns_of = np.empty(num_joint, np.uint64)
    blocks, patterns, entries, reached, unit = 0, 0, 0, 0, begin
    first_unit[0], first_pattern[0], first_reach[0], first_entry[0] = begin, 0, 0, 0
    while unit < stop and blocks < layout.low.size:
        own = np.int64(block[order[unit]])
        if own >= block_pattern.shape[0]:
            return BAD_BLOCK, unit, blocks
        low, high, room, seen = np.int64(0), np.int64(0), True, 0
        for joint in range(num_joint):
            pattern = np.uint64(block_pattern[own, joint])
            number = local[pattern]
            if number < 0:
                start, end = np.int64(offsets[pattern]), np.int64(offsets[pattern + 1])
                if entries + end - start > slots.size:
                    room = False
                    break
                number = np.int32(0)
                if start < end:
                    patterns += 1
                    first_entry[patterns] = entries + end - start
                    number = np.int32(patterns - first_pattern[blocks])
                    low = np.int64(delta[start]) if number == 1 else min(low, np.int64(delta[start]))
                    high = np.int64(delta[end - 1]) if number == 1 else max(high, np.int64(delta[end - 1]))
                codes = np.int64(list_offsets[list_of[pattern]]) if list_of.size else np.int64(0)
                for entry in range(start, end):
                    far = np.int64(delta[entry])
                    place = np.uint64(far - lowest)
                    if slot_of[place] < 0:
                        slot_of[place] = reached - first_reach[blocks]
                        reach[reached] = far
                        reached += 1
                    slots[entries] = slot_of[place]
                    chances[entries] = chance_of[list_code[codes + entry - start] if list_of.size else 0]
                    entries += 1
                local[pattern] = number
                patterns_of[seen] = pattern
                seen += 1
            which[blocks * num_joint + joint] = number
        for each in range(seen):
            local[patterns_of[each]] = -1
        for each in range(first_reach[blocks], reached):
            slot_of[np.uint64(reach[each] - lowest)] = -1
        if not room:
            break
        layout.low[blocks], layout.high[blocks] = low, high
        while unit < stop and block[order[unit]] == own:
            unit += 1
        blocks += 1
        first_unit[blocks], first_pattern[blocks], first_reach[blocks] = unit, patterns, reached
    return OK, unit, blocks


@inlined_kernel
def place_group(
    unit: Any, count: Any, block: Any, layout: Any, places: Any, num_positions: Any, at: Any
) -> int:
    """Write the positions of units that share a block, as many as fill whole vectors, the last one again and again;
    returns the first lane from which a position that doesn't exist is reached, or -1."""
    low, high = layout.low[block], layout.high[block]
    order, position = places.order, places.position
    wrong = -1
    for lane in range(count):
        node = np.int64(order[unit + lane])
        at[lane] = np.int64(position[node]) if position.size else node
        if wrong < 0 and (at[lane] + low < 0 or at[lane] + high >= num_positions):
            wrong = lane
    for lane in range(count, -(-count // LANES) * LANES):
        at[lane] = at[count - 1]
    return wrong  # in one place: numba then sees that references needn't be counted


@inlined_kernel
def expect_group(
    unit: Any, count: Any, block: Any, layout: Any, places: Any,
    table: Any, plain: Any, base: Any, marked: Any, at: Any, gain: Any, worth: Any,
) -> int:  # fmt: skip
    """Write what each pattern of a block is worth at units that have it, a lane each.

    Parameters
    ----------
    unit, count : int
        The first unit, and how many: no more than there are lanes.
    block : int
        Of the layout.
    layout, places : Layout, Places
    table, plain, base, marked : arrays
        Of `omstore.exact.gains.Gains`, by position; NaN where no node is.
    at : (lanes,) int64
    gain, worth : (n, lanes) float64
        For the gain of each of the block's next nodes, and the result, as `Layout.which` counts patterns.

    Returns
    -------
    lane : int
        One whose unit leads to what is no node; -1: none does.
    """
    wrong = place_group(unit, count, block, layout, places, table.size, at)
    lanes, width = -(-count // LANES) * LANES if wrong < 0 else 0, gain.shape[1]
    first, reached = layout.first_reach[block], layout.first_reach[block + 1] - layout.first_reach[block]
    reach, order, node_at = layout.reach, places.order, places.node_at
    for lane in range(0, lanes, LANES):
        a, b, c, d = at[lane], at[lane + 1], at[lane + 2], at[lane + 3]
        for slot in range(reached):  # positions aren't negative: they were checked
            far = reach[first + slot]
            gain[slot, lane], gain[slot, lane + 1] = table[np.uint64(a + far)], table[np.uint64(b + far)]
            gain[slot, lane + 2], gain[slot, lane + 3] = table[np.uint64(c + far)], table[np.uint64(d + far)]
    for lane in range(count if marked.size and wrong < 0 else 0):
        node = np.int64(order[unit + lane])
        if marked[node]:
            for slot in range(reached):
                gain[slot, lane] = base[node] + plain[at[lane] + reach[first + slot]]
    for slot in range(reached if node_at.size and wrong < 0 else 0):
        odd = False
        for lane in range(lanes):
            odd |= gain[slot, lane] != gain[slot, lane]
        for lane in range(count if odd and wrong < 0 else 0):
            if np.int64(node_at[at[lane] + reach[first + slot]]) >= order.size:
                wrong = lane
    begin, end = layout.first_pattern[block], layout.first_pattern[block + 1]
    first_entry, slots, chances = layout.first_entry, layout.slots, layout.chances
    for pattern in range(begin, end if wrong < 0 else begin):
        start, stop = first_entry[pattern], first_entry[pattern + 1]
        mix_rounded(gain, width, slots, chances, start, stop, worth, (pattern - begin + 1) * width, lanes)
    return wrong


@kernel
def write_rows(
    blocks: Any, layout: Any, places: Any, num_joint: Any,
    table: Any, plain: Any, base: Any, marked: Any, at: Any, gain: Any, worth: Any, out: Any,
) -> tuple[int, int]:  # fmt: skip
    """Write the expected returns of all rows of the units laid out, (units * A,); NaN where one isn't legal.

    Arguments as for `expect_group`. Returns status and unit.
    """
    which, begin = layout.which, layout.first_unit[0]
    for block in range(blocks):
        for unit in range(layout.first_unit[block], layout.first_unit[block + 1], at.size):
            count = min(at.size, layout.first_unit[block + 1] - unit)
            wrong = expect_group(
                unit, count, block, layout, places, table, plain, base, marked, at, gain, worth
            )
            if wrong >= 0:
                return BAD_NODE, unit + wrong
            for lane in range(count):
                row = (unit + lane - begin) * num_joint
                for joint in range(num_joint):
                    pattern = which[block * num_joint + joint]
                    out[row + joint] = worth[pattern, lane] if pattern > 0 else np.nan
    return OK, 0
