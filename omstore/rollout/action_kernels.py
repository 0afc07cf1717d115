"""The compiled part of rollouts that draws joint actions, and all random numbers.

Environments of a block have a number each; `alive` lists those that go on. What is drawn is written compactly,
in the order of `alive`. A policy comes as ``(cumulative, stride, actions, nodes, row_of)``, see
`omstore.rollout.policies.PolicyTable`. Kernels return a status and the place in `alive` where they stopped.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inlined_kernel, kernel, prefetch
from omstore.rollout.policy_kernels import LANES
from omstore.rows.factored_draws import count_passed

__all__ = [
    "DRAWS",
    "ILLEGAL_CANDIDATE",
    "OK",
    "OTHER_UNCOVERED",
    "UNCOVERED",
    "draw_actions",
    "draw_legal_actions",
    "numbers",
]

OK = 0
UNCOVERED = 1
"""The learner's table has no row for a node."""
OTHER_UNCOVERED = 2
"""The other side's table has no row for a node."""
ILLEGAL_CANDIDATE = 3
"""A candidate is part of no legal joint action of its root."""

DRAWS = 3
"""Random numbers of a step: for the other side's action, the learner's, the successor."""

_SEARCHED = 64  # actions from which on a row is searched instead of compared as a whole
_BATCH = 128  # environments in flight; enough to hide memory latency


@inlined_kernel
def _uniform(key: Any, counter: Any) -> Any:
    """Number `counter` of a stream; the twin of omstore.rollout.uniforms.uniform."""
    bits = key + (np.uint64(counter) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    # Signed: it converts in one instruction.
    return np.float64(np.int64(bits >> np.uint64(11))) * 1.1102230246251565e-16


@kernel
def numbers(keys: Any, counters: Any, out: Any) -> None:
    """Write number ``counters[i]`` of stream ``keys[i]``."""
    for i in range(keys.size):
        out[i] = _uniform(keys[i], counters[i])


@inlined_kernel
def _find_rows(
    table: Any, stride: Any, nodes: Any, row_of: Any, at: Any, first: Any, count: Any, rows: Any
) -> Any:
    """Write the rows of a batch of nodes in a policy table, and ask for them; the first without one, or -1.

    By loops of its own: passing arrays costs more than the work on a node. Sorted nodes are searched for all
    of the batch at once, so that the searches don't wait for memory one after the other.
    """
    num_rows = table.size // stride
    missing = np.int64(-1)
    if row_of.size:
        for i in range(count):
            node = at[np.uint64(first + i)]
            rows[i] = row_of[node] if node < row_of.size else np.int64(-1)
    elif nodes.size:
        for i in range(count):
            rows[i] = 0
        left = np.int64(nodes.size)
        while left > 1:
            half = left >> 1
            for i in range(count):
                beyond = nodes[np.uint64(rows[i] + half)] <= at[np.uint64(first + i)]
                rows[i] += half * np.int64(beyond)
            left -= half
        for i in range(count):
            if nodes[np.uint64(rows[i])] != at[np.uint64(first + i)]:
                rows[i] = -1
    else:
        for i in range(count):
            rows[i] = at[np.uint64(first + i)]
    for i in range(count):
        row = rows[i]
        if row < 0 or row >= num_rows:
            missing = first + i
            break
        prefetch(table, row * stride)
        if stride > 16:
            prefetch(table, row * stride + 16)
    return missing


@inlined_kernel
def _round_down(uniforms: Any, count: Any, rounded: Any, bits: Any) -> None:
    """Write the largest float32 that isn't above each number: it passes the same float32 as the number itself.

    `bits` is the memory of `rounded` as int32.
    """
    for i in range(count):
        rounded[i] = np.float32(uniforms[i])
    for i in range(count):
        bits[i] -= np.int32(np.float64(rounded[i]) > uniforms[i])


@inlined_kernel
def _draw_batch(table: Any, stride: Any, rows: Any, numbers: Any, count: Any, actions: Any) -> None:
    """Write the actions of a batch of rows: how many cumulative probabilities a number of `_round_down` isn't below.

    Of long rows the group of 8 is found first whose last number isn't passed.
    """
    if stride < _SEARCHED:
        for i in range(count):
            at = rows[i] * stride
            passed = count_passed(table, at, numbers[i])
            for k in range(at + LANES, at + stride, LANES):
                passed += count_passed(table, k, numbers[i])
            actions[i] = passed
        return
    for i in range(count):
        actions[i] = 0
    left = stride // LANES
    while left > 1:
        half = left >> 1
        for i in range(count):
            end = table[np.uint64(rows[i] * stride + actions[i] + half * LANES - 1)]
            actions[i] += half * LANES * np.int64(numbers[i] >= end)
        left -= half
    for i in range(count):
        actions[i] += count_passed(table, rows[i] * stride + actions[i], numbers[i])


@kernel
def draw_actions(
    step: int,
    count: int,
    alive: Any,
    keys: Any,
    nodes: Any,
    candidates: Any,
    per_part: int,
    learner_joint: Any,
    other_joint: Any,
    learner: Any,
    learner_stride: int,
    learner_nodes: Any,
    learner_row_of: Any,
    other: Any,
    other_stride: int,
    other_nodes: Any,
    other_row_of: Any,
    out_node: Any,
    out_action: Any,
    out_uniform: Any,
) -> tuple[int, int]:
    """Draw a joint action for each environment that goes on, where all of them are legal.

    At step 0 the learner's action is the candidate: ``candidates[environment // per_part]``.
    """
    own = np.empty(_BATCH, np.int64)
    theirs = np.empty(_BATCH, np.int64)
    action = np.empty(_BATCH, np.int64)
    other_action = np.empty(_BATCH, np.int64)
    own_number = np.empty(_BATCH, np.float64)
    number = np.empty(_BATCH, np.float64)
    rounded = np.empty(_BATCH, np.float32)
    bits_of_rounded = rounded.view(np.int32)
    # Each step is taken for a batch before the next: environments don't wait for each other.
    for first in range(0, count, _BATCH):
        some = min(_BATCH, count - first)
        for i in range(some):
            out_node[np.uint64(first + i)] = nodes[np.uint64(alive[np.uint64(first + i)])]
        missing = _find_rows(other, other_stride, other_nodes, other_row_of, out_node, first, some, theirs)
        if missing >= 0:
            return OTHER_UNCOVERED, missing
        if step:
            missing = _find_rows(
                learner, learner_stride, learner_nodes, learner_row_of, out_node, first, some, own
            )
            if missing >= 0:
                return UNCOVERED, missing
        for i in range(some):
            key = keys[np.uint64(alive[np.uint64(first + i)])]
            number[i] = _uniform(key, DRAWS * step)
            own_number[i] = _uniform(key, DRAWS * step + 1)
            out_uniform[np.uint64(first + i)] = _uniform(key, DRAWS * step + 2)
        _round_down(number, some, rounded, bits_of_rounded)
        _draw_batch(other, other_stride, theirs, rounded, some, other_action)
        if step:
            _round_down(own_number, some, rounded, bits_of_rounded)
            _draw_batch(learner, learner_stride, own, rounded, some, action)
        else:
            for i in range(some):
                action[i] = candidates[np.int64(alive[np.uint64(first + i)]) // per_part]
        for i in range(some):
            joint = np.int64(other_joint[np.uint64(other_action[i])])
            out_action[np.uint64(first + i)] = joint + np.int64(learner_joint[np.uint64(action[i])])
    return OK, -1


@inlined_kernel
def _expand(cumulative: Any, stride: Any, row: Any, probabilities: Any) -> None:
    """Write what draws of a row have: differences of cumulative probabilities, those above 1 being 1."""
    before = 0.0
    for k in range(probabilities.size):
        reached = min(np.float64(cumulative[row * stride + k]), 1.0)
        probabilities[k] = reached - before
        before = reached


@inlined_kernel
def _legal(bits: Any, row: Any, action: Any) -> Any:
    return (bits[row, action >> 3] >> (7 - (action & 7))) & 1


@inlined_kernel
def _all_legal(bits: Any, row: Any, num_actions: Any) -> Any:
    for k in range(num_actions >> 3):
        if bits[row, k] != 255:
            return False
    left = num_actions & 7
    return left == 0 or bits[row, num_actions >> 3] >> (8 - left) == (1 << left) - 1


@inlined_kernel
def _weigh(
    bits: Any, row: Any, learner_joint: Any, other_joint: Any, own: Any, theirs: Any, weights: Any
) -> Any:
    """Write the other side's marginal where joint actions are legal, not normalized; and give its sum."""
    total = 0.0
    for o in range(theirs.size):
        legal = 0.0
        for k in range(own.size):
            if _legal(bits, row, np.int64(learner_joint[k]) + np.int64(other_joint[o])):
                legal += own[k]
        weights[o] = legal * theirs[o]
        total += weights[o]
    return total


@inlined_kernel
def _picked(weights: Any, total: Any, number: Any) -> Any:
    """Where the running sum passes a part of the total; the last positive weight takes what rounding leaves."""
    reached = 0.0
    last = np.int64(-1)
    for k in range(weights.size):
        if weights[k] > 0.0:
            reached += weights[k]
            last = np.int64(k)
            if number * total < reached:
                break
    return last


@kernel
def draw_legal_actions(
    step: int,
    count: int,
    alive: Any,
    keys: Any,
    nodes: Any,
    candidates: Any,
    per_part: int,
    learner_joint: Any,
    other_joint: Any,
    learner: Any,
    learner_stride: int,
    learner_nodes: Any,
    learner_row_of: Any,
    other: Any,
    other_stride: int,
    other_nodes: Any,
    other_row_of: Any,
    bits: Any,
    by_node: bool,
    out_node: Any,
    out_action: Any,
    out_uniform: Any,
) -> tuple[int, int]:
    """Draw a legal joint action for each environment that goes on, and take those out that have none.

    `bits` are the flags of legal joint actions, most significant first: of all nodes, or (not `by_node`) of the
    environments in the order of `alive`. Where all are legal, the draw is that of `draw_actions`. Else p(l, o) is
    proportional to the product of both policies (at step 0 the learner's is certain of the candidate) where
    (l, o) is legal; or, should that be 0 everywhere, each legal pair is as likely. First o is drawn by its
    marginal, then l given o, with the random numbers that they have anyway. Returns a status and how many go
    on, or where it stopped.
    """
    own = np.empty(learner_joint.size, np.float64)
    theirs = np.empty(other_joint.size, np.float64)
    weights = np.empty(other_joint.size, np.float64)
    row = np.zeros(1, np.int64)
    other_row = np.zeros(1, np.int64)
    number = np.empty(1, np.float64)
    own_number = np.empty(1, np.float64)
    rounded = np.empty(1, np.float32)
    bits_of_rounded = rounded.view(np.int32)
    action = np.empty(1, np.int64)
    kept: Any = np.int64(0)
    for i in range(count):
        environment = alive[i]
        node = nodes[environment]
        key = keys[environment]
        mask = node if by_node else np.int64(i)
        out_node[kept] = node
        status = OK
        if (
            step
            and _find_rows(learner, learner_stride, learner_nodes, learner_row_of, out_node, kept, 1, row)
            >= 0
        ):
            status = UNCOVERED
        if _find_rows(other, other_stride, other_nodes, other_row_of, out_node, kept, 1, other_row) >= 0:
            status = OTHER_UNCOVERED
        chosen = np.int64(candidates[environment // per_part])
        number[0] = _uniform(key, DRAWS * step)
        own_number[0] = _uniform(key, DRAWS * step + 1)
        if status == OK and _all_legal(bits, mask, own.size * theirs.size):
            _round_down(number, 1, rounded, bits_of_rounded)
            _draw_batch(other, other_stride, other_row, rounded, 1, action)
            o = action[0]
            if step:
                _round_down(own_number, 1, rounded, bits_of_rounded)
                _draw_batch(learner, learner_stride, row, rounded, 1, action)
                chosen = action[0]
        else:
            total = 0.0
            if status == OK:
                own[:] = 0.0
                if step:
                    _expand(learner, learner_stride, row[0], own)
                else:
                    own[chosen] = 1.0
                _expand(other, other_stride, other_row[0], theirs)
                total = _weigh(bits, mask, learner_joint, other_joint, own, theirs, weights)
            if not total > 0.0:
                own[:] = 1.0 if step else 0.0
                own[0 if step else chosen] = 1.0
                theirs[:] = 1.0
                total = _weigh(bits, mask, learner_joint, other_joint, own, theirs, weights)
                if total == 0.0 and step == 0:
                    return ILLEGAL_CANDIDATE, i
                if total == 0.0:
                    continue
                if status != OK:
                    return status, i
            o = _picked(weights, total, number[0])
            if step:
                total = 0.0
                for k in range(own.size):
                    if not _legal(bits, mask, np.int64(learner_joint[k]) + np.int64(other_joint[o])):
                        own[k] = 0.0
                    total += own[k]
                chosen = _picked(own, total, own_number[0])
        alive[kept] = environment
        out_action[kept] = np.int64(other_joint[o]) + np.int64(learner_joint[chosen])
        out_uniform[kept] = _uniform(key, DRAWS * step + 2)
        kept += 1
    return OK, kept
