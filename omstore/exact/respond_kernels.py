"""What rows that factor come to under a policy of one agent, of all others, or of both; compiled."""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import kernel
from omstore.exact.exception_kernels import BAD_BLOCK, NO_BLOCK, OK, find_node
from omstore.exact.factored_kernels import set_stages
from omstore.exact.vector_sums import dot, mix

__all__ = ["respond_products"]


@kernel
def respond_products(
    first: Any, stop: Any, last_plays: Any, last_step: Any, heads_play: Any, heads_step: Any, head_of: Any,
    reach_start: Any, reach: Any, slot: Any,
    sizes: Any, tails: Any, actions: Any, pair_start: Any, offsets: Any, nexts: Any, chances: Any, combos: Any,
    combo_start: Any, combo_source: Any, combo_action: Any, work_start: Any, lanes: Any, always: Any,
    node_at: Any, num_nodes: Any, block: Any, block_same: Any, table: Any,
    work: Any, staged: Any, local: Any, head_legal: Any, out: Any, chosen: Any,
) -> tuple[int, int]:  # fmt: skip
    """Back up nodes where one side is the last component's agent, the other all others; all rows are legal.

    What is weighed by a policy is summed before it is mixed, so nothing is made for each joint action. Nodes whose
    rows don't factor are left out; other arguments as for
    `omstore.exact.factored_kernels.back_up_products`.

    Parameters
    ----------
    last_plays, heads_play : (nodes * actions,) float64
        Policies of the last component's agent and of the others; empty: this side plays the best.
    last_step, heads_step : int
        From a node to the next in these; 0: all nodes have the same.
    head_of : (heads,) int64
        The head of each of the others' actions.
    reach_start, reach, slot : (states + 1,), (n,), (outcomes,) int64
        Of `omstore.exact.stages.Stages`.
    out : (nodes,) float64
    chosen : (nodes,) int64
        The best action of the side that plays it.
    """
    last = sizes.size - 1
    size, moves, turned, first_pair = sizes[last], actions[last], work_start[last], pair_start[last]
    heads = combos[last - 1]
    weights, ones, mixed, worth = np.zeros(lanes), np.ones(lanes), np.empty(lanes), np.empty(reach.size)
    weighed, mine_mass, theirs_mass = False, 0.0, 0.0
    written = 0
    for head in range(first // size, (stop + size - 1) // size):
        ready = False
        for number in range(max(first, head * size), min(stop, head * size + size)):
            node, which = find_node(number, node_at, num_nodes, block, block_same)
            if node < 0:
                continue
            if which == NO_BLOCK:
                return BAD_BLOCK, node
            if which >= 0:
                written += 1
                continue
            if not ready:
                set_stages(
                    head, sizes, tails, actions, pair_start, offsets, nexts, chances, combos, combo_start,
                    combo_source, combo_action, work_start, lanes, always, table,
                    work, staged, local, head_legal,
                )  # fmt: skip
                ready = True
            state = number - head * size
            pair, begin, end = first_pair + state * moves, reach_start[state], reach_start[state + 1]
            mine_at, theirs_at = written * last_step, written * heads_step
            if last_plays.size and (last_step or not weighed):
                mine_mass = 0.0
                for a in range(moves):
                    mine_mass += last_plays[mine_at + a]
            if heads_play.size and (heads_step or not weighed):
                for t in range(heads):
                    weights[head_of[t]] = heads_play[theirs_at + t]
                theirs_mass = dot(weights, 0, ones, 0, lanes)
            weighed = True
            # Without a chance on any joint action, each is as likely: then nobody has a choice.
            nobody = (last_plays.size and mine_mass == 0.0) or (heads_play.size and theirs_mass == 0.0)
            if nobody:
                for t in range(heads):
                    weights[head_of[t]] = 1.0
                weighed = False
            best, action, total = -np.inf, 0, 0.0
            if heads_play.size or nobody:
                for j in range(begin, end):
                    worth[j] = dot(work, turned + reach[j] * lanes, weights, 0, lanes)
                for a in range(moves):
                    value = 0.0
                    for k in range(offsets[pair + a], offsets[pair + a + 1]):
                        value += chances[k] * worth[slot[k]]
                    if nobody:
                        total += value
                    elif last_plays.size:
                        total += last_plays[mine_at + a] * value
                    elif value > best:
                        best, action = value, a
                if nobody:
                    best = total / (moves * heads)
                else:
                    best = (total / mine_mass if last_plays.size else best) / theirs_mass
            else:
                for j in range(begin, end):
                    worth[j] = 0.0
                for a in range(moves):
                    plays = last_plays[mine_at + a]
                    for k in range(offsets[pair + a], offsets[pair + a + 1]):
                        worth[slot[k]] += plays * chances[k]
                mix(work, turned, lanes, reach, worth, begin, end, mixed, 0, lanes)
                for t in range(heads):
                    value = mixed[head_of[t]]
                    if value > best:
                        best, action = value, t
                best /= mine_mass
            out[written], chosen[written] = best, action
            written += 1
    return OK, written
