"""Expected returns of rows that factor, contracting one component's kernel at a time; compiled.

Joint successors are never listed. For the local state of the first component, the gains of all next nodes are mixed
by each of its actions; of what comes out, the second component mixes a part for its local state, and so on: each stage
is kept while the local states that it belongs to stay the same, which the order of nodes sees to. For the last
component everything is turned round: heads, the combinations of all others' actions, lie side by side in lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from omstore.compiled import inner_kernel, kernel
from omstore.exact.exception_kernels import BAD_BLOCK, NO_BLOCK, OK, find_node
from omstore.exact.vector_sums import find_best, mix, turn

__all__ = ["Buffers", "Plan", "back_up_products", "best_products", "set_stages"]


class Plan(NamedTuple):
    """What is contracted, and how: see `omstore.exact.stages.Stages` for each array.

    Kernels take what is in it one by one: numba counts references to an array whenever it takes it out of a tuple.
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
    work_start: NDArray[np.int64]
    lanes: int
    always: bool


class Buffers(NamedTuple):
    """A thread's own; kept for the next call with the same gains. `staged` is -1 at the beginning."""

    work: NDArray[np.float64]
    staged: NDArray[np.int64]
    local: NDArray[np.int64]
    head_legal: NDArray[np.uint8]


@inner_kernel
def set_stages(
    head: Any,
    sizes: Any, tails: Any, actions: Any, pair_start: Any, offsets: Any, nexts: Any, chances: Any, combos: Any,
    combo_start: Any, combo_source: Any, combo_action: Any, work_start: Any, lanes: Any, always: Any,
    table: Any, work: Any, staged: Any, local: Any, head_legal: Any,
) -> None:  # fmt: skip
    """Mix the gains for the local states of a head, that is, of all components but the last."""
    last = sizes.size - 1
    rest = head
    for k in range(last - 1, -1, -1):
        local[k] = rest % sizes[k]
        rest //= sizes[k]
    k = 0
    while k < last and staged[k] == local[k]:
        k += 1
    for stage in range(k, last):
        tail, first_pair = tails[stage], pair_start[stage] + local[stage] * actions[stage]
        for combo in range(combos[stage]):
            number = combo_start[stage] + combo
            pair = first_pair + combo_action[number]
            first, stop = offsets[pair], offsets[pair + 1]
            place = work_start[stage] + combo * tail
            if stage == 0:
                mix(table, 0, tail, nexts, chances, first, stop, work, place, tail)
            else:
                source = work_start[stage - 1] + combo_source[number] * tails[stage - 1]
                mix(work, source, tail, nexts, chances, first, stop, work, place, tail)
        staged[stage] = local[stage]
    heads, size = combos[last - 1], sizes[last]
    mixed, turned, top = work_start[last - 1], work_start[last], heads - 1
    for lane in range(0, lanes, 4):  # lanes without a head are copies of the last one: the best is the same
        a, b = mixed + min(lane, top) * size, mixed + min(lane + 1, top) * size
        c, d = mixed + min(lane + 2, top) * size, mixed + min(lane + 3, top) * size
        if size >= 4:
            state = 0
            while state < size:
                state = min(state, size - 4)
                place = turned + state * lanes + lane
                turn(work, a + state, b + state, c + state, d + state, work, place, lanes)
                state += 4
        else:
            for state in range(size):
                place = turned + state * lanes + lane
                work[place], work[place + 1] = work[a + state], work[b + state]
                work[place + 2], work[place + 3] = work[c + state], work[d + state]
    if always:
        return
    for lane in range(lanes):
        legal, source = True, min(lane, top)
        for stage in range(last - 1, -1, -1):
            number = combo_start[stage] + source
            pair = pair_start[stage] + local[stage] * actions[stage] + combo_action[number]
            legal = legal and offsets[pair] < offsets[pair + 1]
            source = combo_source[number]
        head_legal[lane] = legal
        if not legal:
            for state in range(size):
                work[turned + state * lanes + lane] = -np.inf


@kernel
def best_products(
    first: Any, stop: Any,
    sizes: Any, tails: Any, actions: Any, pair_start: Any, offsets: Any, nexts: Any, chances: Any, combos: Any,
    combo_start: Any, combo_source: Any, combo_action: Any, work_start: Any, lanes: Any, always: Any,
    node_at: Any, num_nodes: Any, block: Any, block_same: Any, table: Any,
    work: Any, staged: Any, local: Any, head_legal: Any, out: Any,
) -> tuple[int, int]:  # fmt: skip
    """Write the best row of each node with product numbers first..stop-1, 0 where none is legal.

    Every combination of a head's actions with the last component's is a joint action, and each node's rows all
    factor, or none does; nodes whose rows don't factor are left out. Arguments as for `back_up_products`.

    Returns
    -------
    status, node : int
        ``OK``, or what is wrong with the node.
    """
    last = sizes.size - 1
    size, moves, turned, first_pair = sizes[last], actions[last], work_start[last], pair_start[last]
    written = 0
    for head in range(first // size, (stop + size - 1) // size):
        ready = False
        for number in range(max(first, head * size), min(stop, head * size + size)):
            node, which = find_node(number, node_at, num_nodes, block, block_same)
            if node < 0:
                continue
            if which == NO_BLOCK:
                return BAD_BLOCK, node
            if which < 0:
                if not ready:
                    set_stages(
                        head, sizes, tails, actions, pair_start, offsets, nexts, chances, combos, combo_start,
                        combo_source, combo_action, work_start, lanes, always, table,
                        work, staged, local, head_legal,
                    )  # fmt: skip
                    ready = True
                pair = first_pair + (number - head * size) * moves
                value = find_best(work, turned, lanes, nexts, chances, offsets, pair, pair + moves)
                out[written] = value if value > -np.inf else 0.0
            written += 1
    return OK, written


@kernel
def back_up_products(
    first: Any, stop: Any, joint_head: Any, joint_action: Any,
    sizes: Any, tails: Any, actions: Any, pair_start: Any, offsets: Any, nexts: Any, chances: Any, combos: Any,
    combo_start: Any, combo_source: Any, combo_action: Any, work_start: Any, lanes: Any, always: Any,
    node_at: Any, num_nodes: Any, block: Any, block_same: Any, table: Any,
    work: Any, staged: Any, local: Any, head_legal: Any, out: Any,
) -> tuple[int, int]:  # fmt: skip
    """Back up all rows of the nodes with product numbers first..stop-1, in this order, as if they factored.

    Parameters
    ----------
    first, stop : int
    joint_head, joint_action : (A,) int64
    sizes, ..., always
        Of `omstore.exact.stages.Stages`.
    node_at : (products,) unsigned integers, or empty
        Product number -> node (N: none); empty where they are equal.
    block : (N,) unsigned integers, or empty
        1 + the node's block of patterns; 0: all rows factor.
    block_same : (blocks,) int64
        -1 where some rows of the block factor; nodes of other blocks are left out.
    table : (products,) float64
        Of `omstore.exact.gains.Gains`.
    work, staged, local, head_legal : arrays
        `Buffers`.
    out : (nodes * A,) float64
        NaN where a row isn't legal.

    Returns
    -------
    status, node : int
        ``OK``, or what is wrong with the node.
    """
    last = sizes.size - 1
    size, moves, turned, first_pair = sizes[last], actions[last], work_start[last], pair_start[last]
    num_joint = joint_head.size
    mixed = turned + size * lanes
    written = 0
    for head in range(first // size, (stop + size - 1) // size):
        ready = False
        for number in range(max(first, head * size), min(stop, head * size + size)):
            node, which = find_node(number, node_at, num_nodes, block, block_same)
            if node < 0:
                continue
            if which == NO_BLOCK:
                return BAD_BLOCK, node
            if which >= 0 and block_same[which] >= 0:
                written += 1
                continue
            if not ready:
                set_stages(
                    head, sizes, tails, actions, pair_start, offsets, nexts, chances, combos, combo_start,
                    combo_source, combo_action, work_start, lanes, always, table,
                    work, staged, local, head_legal,
                )  # fmt: skip
                ready = True
            pair = first_pair + (number - head * size) * moves
            for action in range(moves):
                begin, end = offsets[pair + action], offsets[pair + action + 1]
                mix(work, turned, lanes, nexts, chances, begin, end, work, mixed + action * lanes, lanes)
            for joint in range(num_joint):
                action, combo = joint_action[joint], joint_head[joint]
                worth = work[mixed + action * lanes + combo]
                if not always and (
                    offsets[pair + action] == offsets[pair + action + 1] or not head_legal[combo]
                ):
                    worth = np.nan
                out[written * num_joint + joint] = worth
            written += 1
    return OK, written
