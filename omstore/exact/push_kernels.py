"""Mass moved forward along rows that factor, one component after the other, and along edges; compiled.

What `omstore.exact.factored_kernels` does, the other way round: mass on nodes goes to the next local states of the last
component, with the actions of all others still open; what has come together there goes on by the component before,
and so on. Mass that meets in a buffer is added in the order of product numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inlined_kernel, inner_kernel, kernel
from omstore.exact.edge_kernels import BAD_CODE, BAD_NODE, PER_CODE, PER_EDGE
from omstore.exact.exception_kernels import BAD_BLOCK, NO_BLOCK, OK, find_node

__all__ = ["push_edges", "push_products", "push_resolved"]


@inner_kernel
def _empty_stage(
    stage: Any, sizes: Any, tails: Any, actions: Any, pair_start: Any, offsets: Any, nexts: Any, chances: Any,
    combos: Any, combo_start: Any, combo_source: Any, combo_action: Any, work_start: Any, work: Any, local: Any,
    out: Any,
) -> None:  # fmt: skip
    """Move what a stage holds on by its component's kernel, to the stage before, or to product numbers."""
    tail = tails[stage]
    first_pair = pair_start[stage] + local[stage] * actions[stage]
    for combo in range(combos[stage]):
        number = combo_start[stage] + combo
        pair = first_pair + combo_action[number]
        held = work[work_start[stage] + combo * tail : work_start[stage] + (combo + 1) * tail]
        for k in range(offsets[pair], offsets[pair + 1]):
            chance = chances[k]
            if stage == 0:
                to = out[nexts[k] * tail : (nexts[k] + 1) * tail]
            else:
                place = work_start[stage - 1] + combo_source[number] * tails[stage - 1] + nexts[k] * tail
                to = work[place : place + tail]
            for i in range(tail):
                to[i] += chance * held[i]
        held[:] = 0.0


@kernel
def push_products(
    first: Any, stop: Any, last_plays: Any, last_step: Any, heads_play: Any, heads_step: Any, head_of: Any,
    reach_start: Any, reach: Any, slot: Any,
    sizes: Any, tails: Any, actions: Any, pair_start: Any, offsets: Any, nexts: Any, chances: Any, combos: Any,
    combo_start: Any, combo_source: Any, combo_action: Any, work_start: Any, lanes: Any, always: Any,
    node_at: Any, num_nodes: Any, block: Any, block_same: Any, mass: Any,
    work: Any, staged: Any, local: Any, head_legal: Any, finish: Any, out: Any,
) -> tuple[int, int]:  # fmt: skip
    """Move the mass on nodes with product numbers first..stop-1 whose rows factor; all of these are legal.

    One side is the last component's agent, the other all others. Arguments as for
    `omstore.exact.respond_kernels.respond_products`, but:

    Parameters
    ----------
    last_plays, heads_play : (nodes * actions,) float64
        Policies of both sides.
    mass : (N,) float64
        On each node.
    work, staged, local : arrays
        Kept by the caller for the next call, with the product numbers that follow; at the beginning 0, and -1 in
        `local`.
    finish : bool
        Whether this is the last call: nothing stays in `work`.
    out : (products,) float64
        Added to: mass that comes.

    Returns
    -------
    status, node : int
    """
    last = sizes.size - 1
    size, moves, turned, first_pair = sizes[last], actions[last], work_start[last], pair_start[last]
    heads = combos[last - 1]
    mixed = work_start[last - 1]
    weights, share = np.zeros(lanes), np.empty(reach.size)
    row = 0
    for head in range(first // size, (stop + size - 1) // size):
        ready = False
        for number in range(max(first, head * size), min(stop, head * size + size)):
            node, which = find_node(number, node_at, num_nodes, block, block_same)
            if node < 0:
                continue
            if which == NO_BLOCK:
                return BAD_BLOCK, node
            plays = row
            row += 1
            if which >= 0 or mass[node] == 0.0:
                continue
            if not ready:
                # stages whose local state changes are emptied first, the last ones before those they go to
                rest, k = head, last
                for stage in range(last - 1, -1, -1):
                    staged[stage] = rest % sizes[stage]
                    rest //= sizes[stage]
                    if staged[stage] != local[stage]:
                        k = stage
                if local[0] >= 0:
                    for stage in range(last - 2, k - 1, -1):
                        _empty_stage(
                            stage, sizes, tails, actions, pair_start, offsets, nexts, chances, combos, combo_start,
                            combo_source, combo_action, work_start, work, local, out,
                        )  # fmt: skip
                local[:last] = staged[:last]
                ready = True
            mine_at, theirs_at = plays * last_step, plays * heads_step
            mine_mass, theirs_mass = 0.0, 0.0
            for a in range(moves):
                mine_mass += last_plays[mine_at + a]
            for t in range(heads):
                weights[head_of[t]] = heads_play[theirs_at + t]
                theirs_mass += heads_play[theirs_at + t]
            nobody = (
                mine_mass == 0.0 or theirs_mass == 0.0
            )  # no chance on any joint action: each is as likely
            if nobody:
                mine_mass, theirs_mass = float(moves), float(heads)
                for t in range(heads):
                    weights[head_of[t]] = 1.0
            scale = mass[node] / (mine_mass * theirs_mass)
            state = number - head * size
            pair = first_pair + state * moves
            for j in range(reach_start[state], reach_start[state + 1]):
                share[j] = 0.0
            for a in range(moves):
                chance = scale if nobody else scale * last_plays[mine_at + a]
                for k in range(offsets[pair + a], offsets[pair + a + 1]):
                    share[slot[k]] += chance * chances[k]
            for j in range(reach_start[state], reach_start[state + 1]):
                chance, place = share[j], turned + reach[j] * lanes
                for i in range(lanes):
                    work[place + i] += chance * weights[i]
        if ready:
            for combo in range(heads):
                for state in range(size):
                    work[mixed + combo * size + state] = work[turned + state * lanes + combo]
            work[turned : turned + size * lanes] = 0.0
            _empty_stage(
                last - 1, sizes, tails, actions, pair_start, offsets, nexts, chances, combos, combo_start,
                combo_source, combo_action, work_start, work, local, out,
            )  # fmt: skip
    if finish and local[0] >= 0:
        for stage in range(last - 2, -1, -1):
            _empty_stage(
                stage, sizes, tails, actions, pair_start, offsets, nexts, chances, combos, combo_start,
                combo_source, combo_action, work_start, work, local, out,
            )  # fmt: skip
    return OK, row


@inlined_kernel
def _played(
    node: Any, offsets: Any, own: Any, own_step: Any, other: Any, other_step: Any, own_joint: Any, other_joint: Any
) -> tuple[float, int]:  # fmt: skip
    """Return how likely the policies play any legal joint action at a node of a chunk, and how many are legal."""
    first = node * own_joint.size * other_joint.size
    total, legal = 0.0, 0
    for a in range(own_joint.size):
        for o in range(other_joint.size):
            row = first + own_joint[a] + other_joint[o]
            if offsets[row] < offsets[row + 1]:
                total += own[node * own_step, a] * other[node * other_step, o]
                legal += 1
    return total, legal


@kernel
def push_edges(
    offsets: Any, next_node: Any, codes: Any, how: Any, probability: Any,
    own: Any, own_step: Any, other: Any, other_step: Any, own_joint: Any, other_joint: Any, mass: Any, out: Any,
) -> tuple[int, int]:  # fmt: skip
    """Move the mass on nodes along their edges, actions being played as `omstore.exact.Backup` says.

    Parameters
    ----------
    offsets, next_node, codes, how, probability
        As for `omstore.exact.edge_kernels.back_up_edges`; a row without edges isn't legal.
    own, other : (n or 1, L), (n or 1, O) float64
    own_step, other_step : int
        1, or 0 where all nodes have the same.
    own_joint, other_joint : (L,), (O,) int32
        What actions add to the joint action.
    mass : (n,) float64
        On each node of the chunk.
    out : (N,) float64
        Added to: mass that comes.

    Returns
    -------
    status, row : int
    """
    num_joint = own_joint.size * other_joint.size
    for node in range(mass.size):
        if mass[node] == 0.0:
            continue
        total, legal = _played(node, offsets, own, own_step, other, other_step, own_joint, other_joint)
        for a in range(own_joint.size if legal else 0):
            for o in range(other_joint.size):
                row = node * num_joint + own_joint[a] + other_joint[o]
                weight = mass[node] / legal
                if total > 0.0:
                    weight = mass[node] * (own[node * own_step, a] * other[node * other_step, o] / total)
                if weight == 0.0:
                    continue
                for edge in range(offsets[row], offsets[row + 1]):
                    follows = np.int64(next_node[edge])
                    if follows < 0 or follows >= out.size:
                        return BAD_NODE, row
                    which = np.int64(edge) if how == PER_EDGE else np.int64(0)
                    if how == PER_CODE:
                        which = np.int64(codes[edge])
                        if which >= probability.size:
                            return BAD_CODE, row
                    out[follows] += weight * probability[which]
    return OK, 0


@kernel
def push_resolved(
    offsets: Any, next_node: Any, probability: Any, done: Any,
    own: Any, own_step: Any, other: Any, other_step: Any, own_joint: Any, other_joint: Any, mass: Any,
    visited: Any, going_on: Any,
) -> None:  # fmt: skip
    """Move the mass on nodes along edges whose attributes are resolved; other arguments as for `push_edges`.

    Parameters
    ----------
    next_node, probability, done : (E,) int64, float64, bool
    visited, going_on : (N,) float64
        Added to: mass that comes, and that of it which came by edges that aren't done.
    """
    num_joint = own_joint.size * other_joint.size
    for node in range(mass.size):
        if mass[node] == 0.0:
            continue
        total, legal = _played(node, offsets, own, own_step, other, other_step, own_joint, other_joint)
        for a in range(own_joint.size if legal else 0):
            for o in range(other_joint.size):
                row = node * num_joint + own_joint[a] + other_joint[o]
                weight = mass[node] / legal
                if total > 0.0:
                    weight = mass[node] * (own[node * own_step, a] * other[node * other_step, o] / total)
                for edge in range(offsets[row], offsets[row + 1]):
                    moved = weight * probability[edge]
                    visited[next_node[edge]] += moved
                    if not done[edge]:
                        going_on[next_node[edge]] += moved
