"""Expected returns of factored rows, contracting one component's kernel at a time; compiled.

Joint successors are never listed. For the local state of the first component, the gains of all next nodes are mixed
by each of its actions; of what comes out, the second component mixes a part for its local state, and so on: each stage
is kept while the local states that it belongs to stay the same, which the order of nodes sees to.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel, kernel

__all__ = ["BAD_BLOCK", "BAD_CODE", "BAD_NODE", "OK", "back_up_products", "respond_products"]

OK, BAD_NODE, BAD_CODE, BAD_BLOCK = 0, 1, 2, 3

_FACTORS = (1 << 32) - 1  # among patterns: the row factors


@inner_kernel
def _mix(
    source: Any, at: Any, step: Any, nexts: Any, chances: Any, first: Any, stop: Any, out: Any, length: Any
) -> None:
    """Write the sum of `chances` times the slices of `source` that `nexts` number, each of `length` numbers.

    Several slices at a time: each pass over `out` costs as much as one over a slice.
    """
    count = stop - first
    if count == 0:
        out[:length] = 0.0
        return
    a = source[at + nexts[first] * step : at + nexts[first] * step + length]
    p = chances[first]
    if count == 1:
        for i in range(length):
            out[i] = p * a[i]
        return
    b = source[at + nexts[first + 1] * step : at + nexts[first + 1] * step + length]
    q = chances[first + 1]
    if count == 2:
        for i in range(length):
            out[i] = p * a[i] + q * b[i]
        return
    c = source[at + nexts[first + 2] * step : at + nexts[first + 2] * step + length]
    r = chances[first + 2]
    if count == 3:
        for i in range(length):
            out[i] = p * a[i] + q * b[i] + r * c[i]
        return
    d = source[at + nexts[first + 3] * step : at + nexts[first + 3] * step + length]
    s = chances[first + 3]
    if count == 4:
        for i in range(length):
            out[i] = p * a[i] + q * b[i] + r * c[i] + s * d[i]
        return
    e = source[at + nexts[first + 4] * step : at + nexts[first + 4] * step + length]
    t = chances[first + 4]
    for i in range(length):
        out[i] = p * a[i] + q * b[i] + r * c[i] + s * d[i] + t * e[i]
    for k in range(first + 5, stop):
        more = source[at + nexts[k] * step : at + nexts[k] * step + length]
        u = chances[k]
        for i in range(length):
            out[i] += u * more[i]


@inner_kernel
def _find_best(
    turned: Any,
    lanes: Any,
    nexts: Any,
    chances: Any,
    offsets: Any,
    first_pair: Any,
    num_actions: Any,
    best: Any,
) -> None:
    """Write the best over the last component's actions, for each head; as `_mix` does, but nothing else is kept."""
    best[:] = -np.inf
    for pair in range(first_pair, first_pair + num_actions):
        first, count = offsets[pair], offsets[pair + 1] - offsets[pair]
        if count == 0:
            continue
        a = turned[nexts[first] * lanes : nexts[first] * lanes + lanes]
        p = chances[first]
        if count == 1:
            for i in range(lanes):
                x = p * a[i]
                best[i] = x if x > best[i] else best[i]
            continue
        b = turned[nexts[first + 1] * lanes : nexts[first + 1] * lanes + lanes]
        q = chances[first + 1]
        if count == 2:
            for i in range(lanes):
                x = p * a[i] + q * b[i]
                best[i] = x if x > best[i] else best[i]
            continue
        c = turned[nexts[first + 2] * lanes : nexts[first + 2] * lanes + lanes]
        r = chances[first + 2]
        if count == 3:
            for i in range(lanes):
                x = p * a[i] + q * b[i] + r * c[i]
                best[i] = x if x > best[i] else best[i]
            continue
        d = turned[nexts[first + 3] * lanes : nexts[first + 3] * lanes + lanes]
        s = chances[first + 3]
        if count == 4:
            for i in range(lanes):
                x = p * a[i] + q * b[i] + r * c[i] + s * d[i]
                best[i] = x if x > best[i] else best[i]
            continue
        e = turned[nexts[first + 4] * lanes : nexts[first + 4] * lanes + lanes]
        t = chances[first + 4]
        if count == 5:
            for i in range(lanes):
                x = p * a[i] + q * b[i] + r * c[i] + s * d[i] + t * e[i]
                best[i] = x if x > best[i] else best[i]
            continue
        for i in range(lanes):
            x = p * a[i] + q * b[i] + r * c[i] + s * d[i] + t * e[i]
            for k in range(first + 5, first + count):
                x += chances[k] * turned[nexts[k] * lanes + i]
            best[i] = x if x > best[i] else best[i]


@inner_kernel
def _set_stages(
    head: Any,
    sizes: Any,
    tails: Any,
    actions: Any,
    pair_start: Any,
    offsets: Any,
    nexts: Any,
    chances: Any,
    combos: Any,
    combo_start: Any,
    combo_source: Any,
    combo_action: Any,
    always: Any,
    table: Any,
    work: Any,
    work_start: Any,
    lanes: Any,
    local: Any,
    staged: Any,
    head_legal: Any,
) -> None:
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
        tail = tails[stage]
        first_pair = pair_start[stage] + local[stage] * actions[stage]
        for combo in range(combos[stage]):
            number = combo_start[stage] + combo
            pair = first_pair + combo_action[number]
            place = work_start[stage] + combo * tail
            out = work[place : place + tail]
            if stage == 0:
                _mix(table, 0, tail, nexts, chances, offsets[pair], offsets[pair + 1], out, tail)
            else:
                source = work_start[stage - 1] + combo_source[number] * tails[stage - 1]
                _mix(work, source, tail, nexts, chances, offsets[pair], offsets[pair + 1], out, tail)
        staged[stage] = local[stage]
    heads, size = combos[last - 1], sizes[last]
    mixed = work[work_start[last - 1] : work_start[last - 1] + heads * size]
    turned = work[work_start[last] : work_start[last] + size * lanes]
    for state in range(size):
        for combo in range(heads):
            turned[state * lanes + combo] = mixed[combo * size + state]
    if not always:
        for combo in range(heads):
            legal, source = True, combo
            for stage in range(last - 1, -1, -1):
                number = combo_start[stage] + source
                pair = pair_start[stage] + local[stage] * actions[stage] + combo_action[number]
                legal = legal and offsets[pair] < offsets[pair + 1]
                source = combo_source[number]
            head_legal[combo] = legal


@inner_kernel
def _row_of_pattern(
    node: Any,
    pattern: Any,
    num_nodes: Any,
    product: Any,
    gain: Any,
    start: Any,
    pattern_offsets: Any,
    delta: Any,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    chance_of: Any,
) -> tuple[int, float]:
    """Return the expected return of a row that doesn't factor; patterns are checked, nodes aren't."""
    begin, end = np.int64(pattern_offsets[pattern]), np.int64(pattern_offsets[pattern + 1])
    if begin == end:
        return OK, np.nan
    codes = np.int64(list_offsets[pattern_list[pattern]]) if pattern_list.size else 0
    total = 0.0
    for entry in range(begin, end):
        follows = node + np.int64(delta[entry])
        if follows < 0 or follows >= num_nodes:
            return BAD_NODE, 0.0
        at = np.int64(product[follows]) if product.size else follows
        if at >= gain.size:
            return BAD_NODE, 0.0
        code = np.int64(list_code[codes + entry - begin]) if pattern_list.size else 0
        if code >= chance_of.size:
            return BAD_CODE, 0.0
        total += chance_of[code] * (start + gain[at])
    return OK, total


@kernel
def back_up_products(
    first: Any,
    stop: Any,
    best_only: Any,
    sizes: Any,
    tails: Any,
    actions: Any,
    pair_start: Any,
    offsets: Any,
    nexts: Any,
    chances: Any,
    combos: Any,
    combo_start: Any,
    combo_source: Any,
    combo_action: Any,
    joint_head: Any,
    joint_action: Any,
    always: Any,
    product: Any,
    node_at: Any,
    num_nodes: Any,
    block: Any,
    block_pattern: Any,
    block_same: Any,
    pattern_offsets: Any,
    delta: Any,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    chance_of: Any,
    table: Any,
    plain: Any,
    base: Any,
    marked: Any,
    work: Any,
    work_start: Any,
    lanes: Any,
    staged: Any,
    local: Any,
    head_legal: Any,
    out: Any,
) -> tuple[int, int]:
    """Back up the nodes with product numbers first..stop-1, in this order.

    Parameters
    ----------
    first, stop : int
    best_only : bool
        Whether `out` is for each node's best row (0 where none is legal), and every combination of a head's actions
        with the last component's is a joint action; else for all rows, NaN where they aren't legal.
    sizes, tails, actions, pair_start, offsets, nexts, chances, combos, combo_start, combo_source, combo_action,
    joint_head, joint_action, always, lanes, work_start
        Of `omstore.exact.factored.Stages`.
    product, node_at : (N,), (products,) unsigned integers, or empty
        Node -> product number, and back (N: no node); empty where they are equal.
    block, block_pattern, pattern_offsets, delta, pattern_list, list_offsets, list_code
        The exceptions; `block_same` is the pattern of all rows of a block, -1 where they differ.
    chance_of : (K,) float64
        Probability of the exceptions' codes.
    table, plain, base, marked : arrays
        Of `omstore.exact.gains.Gains`, by product number; marked nodes have patterns only.
    work, staged, local, head_legal : arrays
        Kept by the caller for the next call with the same `table`; `staged` is -1 at the beginning.
    out : (nodes,) or (nodes * A,) float64

    Returns
    -------
    status, node : int
        ``OK``, or what is wrong with the node.
    """
    last = sizes.size - 1
    size, heads = sizes[last], combos[last - 1]
    num_joint = joint_head.size
    turned, mixed = work_start[last], work_start[last] + size * lanes
    best = work[mixed + actions[last] * lanes : mixed + actions[last] * lanes + lanes]
    ready = -1
    written = 0
    for number in range(first, stop):
        node = int(number)
        if node_at.size:
            node = int(node_at[number])
            if node >= num_nodes:
                continue
        which = np.int64(block[node]) - 1 if block.size else -1
        if which >= block_same.size:
            return BAD_BLOCK, node
        gain, start = table, 0.0
        if marked.size and marked[node]:
            gain, start = plain, base[node]
        if which >= 0 and block_same[which] >= 0:
            status, value = _row_of_pattern(
                node, block_same[which], num_nodes, product, gain, start,
                pattern_offsets, delta, pattern_list, list_offsets, list_code, chance_of,
            )  # fmt: skip
            if status != OK:
                return status, node
            if best_only:
                out[written] = value if value == value else 0.0
            else:
                out[written * num_joint : (written + 1) * num_joint] = value
            written += 1
            continue
        head = number // size
        if head != ready:
            _set_stages(
                head, sizes, tails, actions, pair_start, offsets, nexts, chances,
                combos, combo_start, combo_source, combo_action, always, table,
                work, work_start, lanes, local, staged, head_legal,
            )  # fmt: skip
            ready = head
        first_pair = pair_start[last] + (number - head * size) * actions[last]
        if best_only and which < 0:
            _find_best(work[turned:mixed], lanes, nexts, chances, offsets, first_pair, actions[last], best)
            value = -np.inf
            for i in range(heads):
                if (always or head_legal[i]) and best[i] > value:
                    value = best[i]
            out[written] = value if value > -np.inf else 0.0
            written += 1
            continue
        for action in range(actions[last]):
            begin, end = offsets[first_pair + action], offsets[first_pair + action + 1]
            place = mixed + action * lanes
            _mix(work, turned, lanes, nexts, chances, begin, end, work[place : place + lanes], lanes)
        value = -np.inf
        for joint in range(num_joint):
            action, combo = joint_action[joint], joint_head[joint]
            worth = work[mixed + action * lanes + combo]
            if not always:
                pair = first_pair + action
                if not head_legal[combo] or offsets[pair] == offsets[pair + 1]:
                    worth = np.nan
            if which >= 0 and block_pattern[which, joint] != _FACTORS:
                status, worth = _row_of_pattern(
                    node, block_pattern[which, joint], num_nodes, product, gain, start,
                    pattern_offsets, delta, pattern_list, list_offsets, list_code, chance_of,
                )  # fmt: skip
                if status != OK:
                    return status, node
            if best_only:
                if worth > value:
                    value = worth
            else:
                out[written * num_joint + joint] = worth
        if best_only:
            out[written] = value if value > -np.inf else 0.0
        written += 1
    return OK, written


@inner_kernel
def _dot(a: Any, b: Any, length: Any, sums: Any) -> float:
    """Return the sum of products, sixteen sums side by side; `length` is a multiple of 16."""
    sums[:16] = 0.0
    for first in range(0, length, 16):
        x, y = a[first : first + 16], b[first : first + 16]
        for i in range(16):
            sums[i] += x[i] * y[i]
    total = 0.0
    for i in range(16):
        total += sums[i]
    return total


@kernel
def respond_products(
    first: Any,
    stop: Any,
    last_plays: Any,
    heads_play: Any,
    head_of: Any,
    sizes: Any,
    tails: Any,
    actions: Any,
    pair_start: Any,
    offsets: Any,
    nexts: Any,
    chances: Any,
    combos: Any,
    combo_start: Any,
    combo_source: Any,
    combo_action: Any,
    product: Any,
    node_at: Any,
    num_nodes: Any,
    block: Any,
    block_same: Any,
    pattern_offsets: Any,
    delta: Any,
    pattern_list: Any,
    list_offsets: Any,
    list_code: Any,
    chance_of: Any,
    table: Any,
    plain: Any,
    base: Any,
    marked: Any,
    work: Any,
    work_start: Any,
    lanes: Any,
    staged: Any,
    local: Any,
    head_legal: Any,
    out: Any,
    chosen: Any,
) -> tuple[int, int]:
    """Back up nodes where one side is the last component's agent, the other all others; all rows are legal.

    What is weighed by a policy is summed before it is mixed, so nothing is made for each joint action.

    Parameters
    ----------
    last_plays, heads_play : (nodes, actions) float64
        Policies of the last component's agent and of the others; empty: this side plays the best.
    head_of : (heads,) int64
        The head of each of the others' actions.
    block, block_same, ...
        As for `back_up_products`; all of `block_same` are patterns.
    out : (nodes,) float64
    chosen : (nodes,) int64, or empty
        The best action of the side that plays it.
    """
    last = sizes.size - 1
    size, heads, moves = sizes[last], combos[last - 1], actions[last]
    turned = work[work_start[last] : work_start[last] + size * lanes]
    weights, mixed, sums = np.zeros(lanes), np.zeros(lanes), np.empty(16)
    worth, met = np.empty(size), np.full(size, -1, np.int64)
    values, alike = np.empty(moves), np.ones(max(moves, heads))
    ready = -1
    written = 0
    for number in range(first, stop):
        node = int(number)
        if node_at.size:
            node = int(node_at[number])
            if node >= num_nodes:
                continue
        which = np.int64(block[node]) - 1 if block.size else -1
        if which >= block_same.size:
            return BAD_BLOCK, node
        if which >= 0:
            gain, start = table, 0.0
            if marked.size and marked[node]:
                gain, start = plain, base[node]
            status, value = _row_of_pattern(
                node, block_same[which], num_nodes, product, gain, start,
                pattern_offsets, delta, pattern_list, list_offsets, list_code, chance_of,
            )  # fmt: skip
            if status != OK:
                return status, node
            out[written] = value
            if chosen.size:
                chosen[written] = 0
            written += 1
            continue
        head = number // size
        if head != ready:
            _set_stages(
                head, sizes, tails, actions, pair_start, offsets, nexts, chances,
                combos, combo_start, combo_source, combo_action, True, table,
                work, work_start, lanes, local, staged, head_legal,
            )  # fmt: skip
            ready = head
        first_pair = pair_start[last] + (number - head * size) * moves
        best, action = -np.inf, 0
        mine, theirs = alike, alike
        mine_mass, theirs_mass = 0.0, 0.0
        if last_plays.size:
            mine = last_plays[written]
            for a in range(moves):
                mine_mass += mine[a]
        if heads_play.size:
            theirs = heads_play[written]
            for t in range(heads):
                theirs_mass += theirs[t]
        # Without a chance on any joint action, each is as likely: then nobody has a choice.
        nobody = (last_plays.size and mine_mass == 0.0) or (heads_play.size and theirs_mass == 0.0)
        if nobody:
            mine, theirs = alike, alike
            mine_mass, theirs_mass = float(moves), float(heads)
        if heads_play.size or nobody:
            for t in range(heads):
                weights[head_of[t]] = theirs[t]
            for a in range(moves):
                values[a] = 0.0
                for k in range(offsets[first_pair + a], offsets[first_pair + a + 1]):
                    follows = nexts[k]
                    if met[follows] != number:
                        met[follows] = number
                        rows = turned[follows * lanes : follows * lanes + lanes]
                        worth[follows] = _dot(rows, weights, lanes, sums)
                    values[a] += chances[k] * worth[follows]
            if last_plays.size or nobody:
                best = 0.0
                for a in range(moves):
                    best += mine[a] * values[a]
                best /= mine_mass * theirs_mass
            else:
                for a in range(moves):
                    value = values[a] / theirs_mass
                    if value > best:
                        best, action = value, a
        else:
            mixed[:] = 0.0
            for a in range(moves):
                for k in range(offsets[first_pair + a], offsets[first_pair + a + 1]):
                    follows = nexts[k]
                    if met[follows] != number:
                        met[follows] = number
                        worth[follows] = 0.0
                    worth[follows] += mine[a] * chances[k]
            for a in range(moves):
                for k in range(offsets[first_pair + a], offsets[first_pair + a + 1]):
                    follows = nexts[k]
                    if met[follows] == number:
                        met[follows] = -1
                        chance = worth[follows]
                        rows = turned[follows * lanes : follows * lanes + lanes]
                        for i in range(lanes):
                            mixed[i] += chance * rows[i]
            for t in range(heads):
                value = mixed[head_of[t]] / mine_mass
                if value > best:
                    best, action = value, t
        out[written] = best
        if chosen.size:
            chosen[written] = action
        written += 1
    return OK, written
