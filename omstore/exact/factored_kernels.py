"""Expected returns of rows that factor, contracting one component's kernel at a time; compiled.

Joint successors are never listed. For the local state of the first component, the gains of all next nodes are mixed
by each of its actions; of what comes out, the second component mixes a part for its local state, and so on: each stage
is kept while the local states that it belongs to stay the same, which the order of nodes sees to. For the last
component everything is turned round: heads, the combinations of all others' actions, lie side by side in lanes.

Inner loops are generators of LLVM code: sums of four numbers at a time stay in registers from the first outcome to
the last, which no compiler found by itself. A sum is made in the order of outcomes, whatever lies beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numpy.typing import NDArray

from omstore.compiled import inner_kernel, intrinsic, kernel

__all__ = [
    "BAD_BLOCK",
    "LANES",
    "OK",
    "Buffers",
    "Plan",
    "back_up_products",
    "best_products",
    "respond_products",
]

OK, BAD_BLOCK = 0, 3  # as in omstore.exact.exception_kernels

LANES = 4
"""Numbers in a vector; lanes are filled up to a multiple."""

_code: Any = cgutils  # untyped in part
_INDEX, _SHORT, _DOUBLE = ir.IntType(64), ir.IntType(32), ir.DoubleType()
_VECTOR = ir.VectorType(_DOUBLE, LANES)
_LEAST = float("-inf")

# Groups of vectors whose sums stay in registers, of which there are sixteen: eight sums and the chance; or seven sums,
# the best of each, and the chance.
_SUMMED, _COMPARED = (8, 3, 1), (7, 4, 2, 1)


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


# Generators. `place` and the like are positions in an array; nothing is checked.


def _pointers(context: Any, builder: Any, signature: Any, arguments: Any) -> Callable[[int], Any]:
    """Return what finds the data of an array among the arguments."""
    return lambda which: context.make_array(signature.args[which])(context, builder, arguments[which]).data


def _at(builder: Any, data: Any, place: Any, ahead: int, kind: Any) -> Any:
    pointer = builder.gep(data, [builder.add(place, ir.Constant(_INDEX, ahead))])
    return builder.bitcast(pointer, kind.as_pointer())


def _load(builder: Any, data: Any, place: Any, ahead: int = 0, kind: Any = _VECTOR) -> Any:
    return builder.load(_at(builder, data, place, ahead, kind), align=8)


def _fused(builder: Any, kind: Any) -> Any:
    """Return the function that multiplies and adds, rounding once where the machine can."""
    name = "llvm.fmuladd.f64" if kind is _DOUBLE else f"llvm.fmuladd.v{LANES}f64"
    return _code.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)


def _spread(builder: Any, number: Any, kind: Any) -> Any:
    if kind is _DOUBLE:
        return number
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(_SHORT, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_SHORT, LANES), None))


def _greater(builder: Any, a: Any, b: Any) -> Any:
    """Return the greater one; `b` if either is no number."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _sums(
    builder: Any, source: Any, at: Any, step: Any, pair: tuple[Any, Any, Any, Any], width: int, kind: Any
) -> list[Any]:
    """Make `width` sums side by side over the outcomes of a pair, (nexts, chances, first, stop)."""
    nexts, chances, first, stop = pair
    fused = _fused(builder, kind)
    count = 1 if kind is _DOUBLE else LANES
    sums = [_code.alloca_once(builder, kind) for _ in range(width)]
    for each in sums:
        builder.store(ir.Constant(kind, 0.0 if kind is _DOUBLE else None), each)
    with _code.for_range(builder, stop, start=first) as loop:
        chance = _spread(builder, builder.load(builder.gep(chances, [loop.index])), kind)
        follows = builder.load(builder.gep(nexts, [loop.index]))
        place = builder.add(at, builder.mul(follows, step))
        for number, each in enumerate(sums):
            part = _load(builder, source, place, number * count, kind)
            builder.store(builder.call(fused, [chance, part, builder.load(each)]), each)
    return [builder.load(each) for each in sums]


def _groups(builder: Any, length: Any, widths: Sequence[int], make: Callable[[Any, int], None]) -> Any:
    """Go through `length` numbers, `make` being given where a group of as many vectors begins; returns how far."""
    done = ir.Constant(_INDEX, 0)
    for width in widths:
        size = ir.Constant(_INDEX, width * LANES)
        count = builder.sdiv(builder.sub(length, done), size)
        with _code.for_range(builder, count) as loop:
            make(builder.add(done, builder.mul(loop.index, size)), width)
        done = builder.add(done, builder.mul(count, size))
    return done


@intrinsic
def _mix(
    typing: Any, source: Any, at: Any, step: Any, nexts: Any, chances: Any, first: Any, stop: Any,
    out: Any, place: Any, length: Any,
) -> Any:  # fmt: skip
    """Write the sum of `chances` times the slices of `source` that `nexts` number, each of `length` numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        _, at, step, _, _, first, stop, _, place, length = arguments
        pair = data(3), data(4), first, stop

        def make(begin: Any, width: int, kind: Any = _VECTOR) -> None:
            sums = _sums(builder, data(0), builder.add(at, begin), step, pair, width, kind)
            for number, each in enumerate(sums):
                target = _at(builder, data(7), builder.add(place, begin), number * LANES, kind)
                builder.store(each, target, align=8)

        done = _groups(builder, length, _SUMMED, make)
        lanes = ir.Constant(_INDEX, LANES)
        some_left, some_fit = (
            builder.icmp_signed(sign, length, to) for sign, to in ((">", done), (">=", lanes))
        )
        with builder.if_then(some_left), builder.if_else(some_fit) as (long, short):
            with long:  # begins before the end of the last one: what is the same is written again
                make(builder.sub(length, lanes), 1)
            with short, _code.for_range(builder, length) as loop:
                make(loop.index, 1, _DOUBLE)
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, index, nexts, chances, index, index, out, index, index), generate


@intrinsic
def _find_best(
    typing: Any, turned: Any, at: Any, lanes: Any, nexts: Any, chances: Any, offsets: Any, pair: Any, stop: Any
) -> Any:  # fmt: skip
    """Return the best over the last component's actions and all heads; -inf where nothing is legal."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        _, at, lanes, _, _, _, first_pair, stop_pair = arguments
        best = _code.alloca_once(builder, _DOUBLE)
        builder.store(ir.Constant(_DOUBLE, _LEAST), best)

        def make(begin: Any, width: int) -> None:
            bests = [_code.alloca_once(builder, _VECTOR) for _ in range(width)]
            for each in bests:
                builder.store(ir.Constant(_VECTOR, [_LEAST] * LANES), each)
            with _code.for_range(builder, stop_pair, start=first_pair) as loop:
                first = _load(builder, data(5), loop.index, 0, _INDEX)
                stop = _load(builder, data(5), loop.index, 1, _INDEX)
                with builder.if_then(builder.icmp_signed("<", first, stop)):
                    pair = data(3), data(4), first, stop
                    sums = _sums(builder, data(0), builder.add(at, begin), lanes, pair, width, _VECTOR)
                    for one, each in zip(sums, bests, strict=True):
                        builder.store(_greater(builder, one, builder.load(each)), each)
            found = [builder.load(each) for each in bests]
            while len(found) > 1:
                found = [_greater(builder, found[-1], found[-2]), *found[:-2]]
            numbers = [builder.extract_element(found[0], ir.Constant(_SHORT, k)) for k in range(LANES)]
            while len(numbers) > 1:
                numbers = [_greater(builder, numbers[-1], numbers[-2]), *numbers[:-2]]
            builder.store(_greater(builder, numbers[0], builder.load(best)), best)

        _groups(builder, lanes, _COMPARED, make)
        return builder.load(best)

    index = types.int64
    return types.float64(turned, index, index, nexts, chances, offsets, index, index), generate


@intrinsic
def _turn(typing: Any, source: Any, a: Any, b: Any, c: Any, d: Any, out: Any, place: Any, step: Any) -> Any:
    """Write four vectors at `a`, `b`, `c`, `d` as the columns of four vectors, `step` apart."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        rows = [_load(builder, data(0), arguments[1 + k]) for k in range(4)]

        def shuffled(x: Any, y: Any, *which: int) -> Any:
            return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(_SHORT, 4), list(which)))

        even = [shuffled(rows[k], rows[k + 1], 0, 4, 2, 6) for k in (0, 2)]
        odd = [shuffled(rows[k], rows[k + 1], 1, 5, 3, 7) for k in (0, 2)]
        place = arguments[6]
        for which in ((0, 1, 4, 5), (2, 3, 6, 7)):
            for pair in (even, odd):
                builder.store(shuffled(*pair, *which), _at(builder, data(5), place, 0, _VECTOR), align=8)
                place = builder.add(place, arguments[7])
        return context.get_dummy_value()

    index = types.int64
    return types.void(source, index, index, index, index, out, index, index), generate


@intrinsic
def _dot(typing: Any, a: Any, at: Any, b: Any, start: Any, stop: Any) -> Any:
    """Return the sum of ``a[at + k] * b[k]`` for k in start..stop-1, a multiple of four."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = _pointers(context, builder, signature, arguments)
        total = _code.alloca_once(builder, _VECTOR)
        builder.store(ir.Constant(_VECTOR, None), total)
        step = ir.Constant(_INDEX, LANES)
        with _code.for_range_slice(builder, arguments[3], arguments[4], step, _INDEX) as (k, _):
            x, y = _load(builder, data(0), builder.add(arguments[1], k)), _load(builder, data(2), k)
            builder.store(builder.call(_fused(builder, _VECTOR), [x, y, builder.load(total)]), total)
        vector = builder.load(total)
        parts = [builder.extract_element(vector, ir.Constant(_SHORT, k)) for k in range(LANES)]
        return builder.fadd(builder.fadd(parts[0], parts[1]), builder.fadd(parts[2], parts[3]))

    return types.float64(a, types.int64, b, types.int64, types.int64), generate


@inner_kernel
def _set_stages(
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
                _mix(table, 0, tail, nexts, chances, first, stop, work, place, tail)
            else:
                source = work_start[stage - 1] + combo_source[number] * tails[stage - 1]
                _mix(work, source, tail, nexts, chances, first, stop, work, place, tail)
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
                _turn(work, a + state, b + state, c + state, d + state, work, place, lanes)
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
            node: Any = np.int64(number)
            if node_at.size:
                node = np.int64(node_at[number])
                if node < 0 or node >= num_nodes:
                    continue
            which = np.int64(block[node]) - 1 if block.size else np.int64(-1)
            if which >= block_same.size:
                return BAD_BLOCK, node
            if which < 0:
                if not ready:
                    _set_stages(
                        head, sizes, tails, actions, pair_start, offsets, nexts, chances, combos, combo_start,
                        combo_source, combo_action, work_start, lanes, always, table,
                        work, staged, local, head_legal,
                    )  # fmt: skip
                    ready = True
                pair = first_pair + (number - head * size) * moves
                value = _find_best(work, turned, lanes, nexts, chances, offsets, pair, pair + moves)
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
            node: Any = np.int64(number)
            if node_at.size:
                node = np.int64(node_at[number])
                if node < 0 or node >= num_nodes:
                    continue
            which = np.int64(block[node]) - 1 if block.size else np.int64(-1)
            if which >= block_same.size:
                return BAD_BLOCK, node
            if which >= 0 and block_same[which] >= 0:
                written += 1
                continue
            if not ready:
                _set_stages(
                    head, sizes, tails, actions, pair_start, offsets, nexts, chances, combos, combo_start,
                    combo_source, combo_action, work_start, lanes, always, table,
                    work, staged, local, head_legal,
                )  # fmt: skip
                ready = True
            pair = first_pair + (number - head * size) * moves
            for action in range(moves):
                begin, end = offsets[pair + action], offsets[pair + action + 1]
                _mix(work, turned, lanes, nexts, chances, begin, end, work, mixed + action * lanes, lanes)
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
    rows don't factor are left out; other arguments as for `back_up_products`.

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
            node: Any = np.int64(number)
            if node_at.size:
                node = np.int64(node_at[number])
                if node < 0 or node >= num_nodes:
                    continue
            which = np.int64(block[node]) - 1 if block.size else np.int64(-1)
            if which >= block_same.size:
                return BAD_BLOCK, node
            if which >= 0:
                written += 1
                continue
            if not ready:
                _set_stages(
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
                theirs_mass = _dot(weights, 0, ones, 0, lanes)
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
                    worth[j] = _dot(work, turned + reach[j] * lanes, weights, 0, lanes)
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
                _mix(work, turned, lanes, reach, worth, begin, end, mixed, 0, lanes)
                for t in range(heads):
                    value = mixed[head_of[t]]
                    if value > best:
                        best, action = value, t
                best /= mine_mass
            out[written], chosen[written] = best, action
            written += 1
    return OK, written
