"""What an edge is worth as a function of its next node; compiled."""

from __future__ import annotations

from typing import Any

from omstore.compiled import kernel

__all__ = ["BAD_CODE", "BAD_PLACE", "OK", "fold"]

OK, BAD_CODE, BAD_PLACE = 0, 1, 2

# Numbered as in omstore.rollout.outcome_kernels, whose tables these are.
_CONSTANT, _BY_NEXT, _BY_NODE, _UNLESS = 0, 1, 2, 3


@kernel
def fold(
    values: Any,
    discount: Any,
    sign: Any,
    reward_how: Any,
    reward: Any,
    reward_codes: Any,
    reward_own: Any,
    done_how: Any,
    done: Any,
    done_codes: Any,
    place: Any,
    table: Any,
    plain: Any,
    base: Any,
    marked: Any,
) -> tuple[int, int]:
    """Write the gain of entering each node: its reward, and the discounted value of what follows.

    Parameters
    ----------
    values : (N,) float64
    discount, sign : float
    reward_how, reward, reward_codes, reward_own, done_how, done, done_codes
        Of `omstore.rollout.outcomes.OutcomeTable`; what depends on more than nodes counts as 0.
    place : (N,) unsigned integers, or empty
        Where a node's gain is written; empty: at the node.
    table : (places,) float64
    plain : (places,) float64, or empty
        The same without rewards.
    base, marked : (N,) float64 and uint8, or empty
        The reward that all edges of a node have, and whether it has one.

    Returns
    -------
    status, node : int
    """
    for node in range(values.size):
        at = node
        if place.size:
            at = int(place[node])
        if at < 0 or at >= table.size:
            return BAD_PLACE, node
        ends = False
        if done_how == _CONSTANT:
            ends = done[0] != 0
        elif done_how == _BY_NEXT:
            which = int(done_codes[node]) if done_codes.size else node
            if which >= done.size:
                return BAD_CODE, node
            ends = done[which] != 0
        later = 0.0 if ends else discount * values[node]
        gain = 0.0
        if reward_how == _CONSTANT:
            gain = reward[0]
        elif reward_how in (_BY_NEXT, _UNLESS):
            which = int(reward_codes[node]) if reward_codes.size else node
            if which >= reward.size:
                return BAD_CODE, node
            gain = reward[which]
        table[at] = sign * (gain + later)
        if plain.size:
            plain[at] = sign * later
        if marked.size:
            marked[node] = 0
            if reward_how == _BY_NODE:
                which = int(reward_codes[node]) if reward_codes.size else node
                if which >= reward.size:
                    return BAD_CODE, node
                base[node] = sign * reward[which]
                marked[node] = 1
            elif reward_own[node] > 0:
                which = int(reward_own[node]) - 1
                if which >= reward.size:
                    return BAD_CODE, node
                base[node] = sign * reward[which]
                marked[node] = 1
    return OK, 0
