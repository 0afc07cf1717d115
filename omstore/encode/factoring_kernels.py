"""The compiled part of finding a factoring: what moves which digit, local states, kernels by vote, classes.

Rows come in csr form: ``offsets`` (R + 1,), and of their edges ``next_node`` (int64, checked by the encoding
that gathered them) and ``chance`` (float64, the probabilities). ``product`` (N,) int64 is the mixed-radix
number of a node's local states, empty where it is the node itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from omstore.compiled import inner_kernel, kernel
from omstore.encode.coordinate_kernels import mix

__all__ = [
    "fingerprint_rows",
    "keep_nodes",
    "label_states",
    "match_rows",
    "self_loops",
    "vote_kernels",
]


@inner_kernel
def _weight(component: int, value: int) -> float:
    """A fixed random number in [0, 1) for a component's value; 0 for the value 0."""
    if value == 0:
        return 0.0
    key = (np.uint64(component) << np.uint64(32)) ^ np.uint64(value)
    return float(mix(key) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inner_kernel
def _component(packed: Any, i: int, j: int, size: int) -> Any:
    value = np.int64(0)
    for k in range(j * size, (j + 1) * size):
        value = (value << 8) | np.int64(packed[i, k])
    return value


@inner_kernel
def _product(product: Any, node: int) -> Any:
    return product[node] if product.size else np.int64(node)


@inner_kernel
def _sort(values: Any, count: int) -> None:
    """Sort the first values in place (Shell's sort: they are few, and numpy's takes long to compile)."""
    gap = count >> 1
    while gap > 0:
        for i in range(gap, count):
            value = values[i]
            at = i
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap >>= 1


@kernel
def fingerprint_rows(
    packed: Any,
    component_bits: int,
    component_digit: Any,
    nodes: Any,
    offsets: Any,
    next_node: Any,
    chance: Any,
    out: Any,
) -> None:
    """Reduce the distribution of every digit in every row to one number: its expected weight.

    Every value of a digit has a random weight; rows whose distributions of a digit differ have different
    expected weights. Only components that change are visited. `out` (R, C) must hold zeros; the node's own
    weight is left out, so only rows of the same node compare.
    """
    size = component_bits >> 3
    for row in range(nodes.size):
        node = nodes[row]
        for edge in range(offsets[row], offsets[row + 1]):
            successor = next_node[edge]
            p = chance[edge]
            if component_bits == 1:
                for k in range(packed.shape[1]):
                    after = np.int64(packed[successor, k])
                    changed = after ^ np.int64(packed[node, k])
                    j = k * 8
                    while changed and j < component_digit.size:
                        if changed & 128 and component_digit[j] >= 0:
                            weight = _weight(j, 1)
                            out[row, component_digit[j]] += p * (weight if after & 128 else -weight)
                        changed = (changed << 1) & 255
                        after = (after << 1) & 255
                        j += 1
            else:
                for j in range(component_digit.size):
                    value = _component(packed, successor, j, size)
                    own = _component(packed, node, j, size)
                    if value != own and component_digit[j] >= 0:
                        out[row, component_digit[j]] += p * (_weight(j, value) - _weight(j, own))


@kernel
def self_loops(nodes: Any, offsets: Any, next_node: Any, out: Any) -> None:
    """Say of each row whether it only leads back to its node: 1, or 0; 2 for a row without successors."""
    for row in range(nodes.size):
        out[row] = 1 if offsets[row + 1] > offsets[row] else 2
        for edge in range(offsets[row], offsets[row + 1]):
            if next_node[edge] != nodes[row]:
                out[row] = 0
                break


@kernel
def label_states(
    packed: Any, byte: Any, mask: Any, first_node: int, table: Any, owners: Any, count: int, labels: Any
) -> int:
    """Number the distinct values of ``packed & mask`` in the order they are met.

    Parameters
    ----------
    packed : (N, Wb) uint8
    byte, mask : (m,)
        The bytes of a state that matter, and the bits in them.
    first_node : int
        Labels are written for the states of ``first_node`` and on.
    table : (capacity,) int32
        Hash table of labels, -1 where empty; the capacity is a power of two, twice `owners` at least.
    owners : (limit,) int64
        The first node with each label.
    count : int
        Labels given so far.
    labels : (n,) uint32
        Written.

    Returns
    -------
    int
        Labels given by now; -1 where they are more than the limit.
    """
    inside = np.uint64(table.size - 1)
    for i in range(labels.size):
        node = first_node + i
        hashed = np.uint64(0)
        for k in range(byte.size):
            hashed = (hashed ^ np.uint64(packed[node, byte[k]] & mask[k])) * np.uint64(0x100000001B3)
        slot = np.int64(mix(hashed) & inside)
        while True:
            label = np.int64(table[slot])
            if label < 0:
                if count == owners.size:
                    return -1
                table[slot] = count
                owners[count] = node
                labels[i] = count
                count += 1
                break
            same = True
            for k in range(byte.size):
                if (packed[node, byte[k]] ^ packed[owners[label], byte[k]]) & mask[k]:
                    same = False
                    break
            if same:
                labels[i] = label
                break
            slot = (slot + 1) & np.int64(inside)
    return count


@kernel
def keep_nodes(
    product: Any, num_nodes: int, stride: int, wanted: Any, seed: int, keys: Any, kept: Any
) -> None:
    """Keep for each wanted local state of a component a few nodes that have it, drawn at random.

    The nodes with the least hashes stay (bottom-k sampling), in their order. `wanted` (size,) uint8; `keys`
    (size, k) uint64 must be all ones, `kept` (size, k) int64 all -1.
    """
    salt = mix(seed)
    most = kept.shape[1]
    for node in range(num_nodes):
        local = (_product(product, node) // stride) % wanted.size
        if wanted[local] == 0:
            continue
        key = mix(np.uint64(node) ^ salt)
        if key >= keys[local, most - 1]:
            continue
        at = most - 1
        while at > 0 and keys[local, at - 1] > key:
            keys[local, at] = keys[local, at - 1]
            kept[local, at] = kept[local, at - 1]
            at -= 1
        keys[local, at] = key
        kept[local, at] = node


@kernel
def vote_kernels(
    by_pair: Any,
    bounds: Any,
    offsets: Any,
    next_node: Any,
    chance: Any,
    product: Any,
    stride: int,
    size: int,
    most: int,
    tolerance: float,
    out_bounds: Any,
    out_next: Any,
    out_chance: Any,
    out_votes: Any,
) -> int:
    """Let rows vote on the kernels of a component: each row for the distribution of its next local state.

    Parameters
    ----------
    by_pair : (n,) int64
        Row positions, those of one pair (local state, action) together; rows must have successors.
    bounds : (P + 1,) int64
        Where each pair's rows are in `by_pair`; of them at most the first `most` vote.
    stride, size : int
        The component's place in the product, and its number of local states.
    tolerance : float
        Distributions are the same if no probability differs by more.
    out_bounds : (P + 1,) int64, out_next, out_chance : (capacity,)
        The distribution most rows vote for (their mean), next local states ascending; the earliest among
        equals.
    out_votes : (P,) int64
        How many do.

    Returns
    -------
    int
        Entries written, or -1 where the capacity didn't suffice.
    """
    longest = 0
    for i in range(by_pair.size):
        longest = max(longest, offsets[by_pair[i] + 1] - offsets[by_pair[i]])
    longest = min(longest, size)
    dense = np.zeros(size, np.float64)
    lost = np.zeros(size, np.float64)
    met = np.zeros(size, np.uint8)
    touched = np.empty(longest, np.int64)
    nexts = np.empty((most, longest), np.int64)
    chances = np.empty((most, longest), np.float64)
    apart = np.empty((most, longest), np.float64)
    lengths = np.empty(most, np.int64)
    votes = np.empty(most, np.int64)
    total = 0
    out_bounds[0] = 0
    for pair in range(bounds.size - 1):
        count = min(bounds[pair + 1] - bounds[pair], most)
        best = -1
        for v in range(count):
            row = by_pair[bounds[pair] + v]
            n = 0
            for edge in range(offsets[row], offsets[row + 1]):
                local = (_product(product, next_node[edge]) // stride) % size
                if met[local] == 0:
                    met[local] = 1
                    touched[n] = local
                    n += 1
                # The sum's rounding is kept apart (Neumaier, ZAMM 54, 1974): kernels are wanted to the last bit.
                before = dense[local]
                dense[local] = before + chance[edge]
                if before >= chance[edge]:
                    lost[local] += (before - dense[local]) + chance[edge]
                else:
                    lost[local] += (chance[edge] - dense[local]) + before
            _sort(touched, n)
            for k in range(n):
                local = touched[k]
                nexts[v, k] = local
                chances[v, k] = dense[local] + lost[local]
                dense[local] = 0.0
                lost[local] = 0.0
                apart[v, k] = 0.0
                met[local] = 0
            lengths[v] = n
            votes[v] = 1
            for u in range(v):
                if votes[u] == 0 or lengths[u] != n:
                    continue
                same = True
                for k in range(n):
                    if nexts[u, k] != nexts[v, k] or abs(chances[u, k] - chances[v, k]) > tolerance:
                        same = False
                        break
                if same:
                    for k in range(n):
                        apart[u, k] += chances[v, k] - chances[u, k]
                    votes[u] += 1
                    votes[v] = 0
                    break
        for v in range(count):
            if votes[v] > 0 and (best < 0 or votes[v] > votes[best]):
                best = v
        out_votes[pair] = 0
        if best >= 0:
            out_votes[pair] = votes[best]
            if total + lengths[best] > out_next.size:
                return -1
            for k in range(lengths[best]):
                out_next[total + k] = nexts[best, k]
                out_chance[total + k] = chances[best, k] + apart[best, k] / votes[best]
            total += lengths[best]
        out_bounds[pair + 1] = total
    return total


@kernel
def match_rows(
    pairs: Any,
    strides: Any,
    sizes: Any,
    class_strides: Any,
    kernel_bounds: Any,
    kernel_next: Any,
    kernel_class: Any,
    offsets: Any,
    next_node: Any,
    product: Any,
    fits: Any,
    combination: Any,
    outcomes: Any,
) -> None:
    """Compare rows with the product of their kernels, as sets of next nodes, and combine the classes.

    Parameters
    ----------
    pairs : (R, C) int64
        Each row's pair of each component, numbered through all components: an index into `kernel_bounds`.
    strides, sizes, class_strides : (C,) int64
    kernel_bounds, kernel_next, kernel_class : int64
        The kernels of all components, one behind the other.
    fits : (R,) uint8
        Written: whether the row's next nodes are those of the product.
    combination : (E',) int64
        Written: of the classes of each edge; -1 in rows that don't fit.
    outcomes : (E', C) int64, or (0, C)
        Written where wanted: each component's outcome of each edge, an index into `kernel_next`.
    """
    for row in range(pairs.shape[0]):
        begin = offsets[row]
        end = offsets[row + 1]
        expected = np.int64(1)
        for c in range(pairs.shape[1]):
            pair = pairs[row, c]
            length = kernel_bounds[pair + 1] - kernel_bounds[pair]
            # Once there are too many only 0 matters; so the product doesn't overflow.
            if length == 0 or expected <= end - begin:
                expected *= length
        good = expected == end - begin
        last = np.int64(-1)
        for edge in range(begin, end):
            if not good:
                break
            good = next_node[edge] > last  # as many different ones as the product has: all of them
            last = next_node[edge]
            number = _product(product, last)
            combined = np.int64(0)
            for c in range(pairs.shape[1]):
                local = (number // strides[c]) % sizes[c]
                low = kernel_bounds[pairs[row, c]]
                stop = kernel_bounds[pairs[row, c] + 1]
                high = stop
                while low < high:
                    middle = (low + high) >> 1
                    if kernel_next[middle] < local:
                        low = middle + 1
                    else:
                        high = middle
                if low == stop or kernel_next[low] != local:
                    good = False
                    break
                combined += kernel_class[low] * class_strides[c]
                if outcomes.shape[0]:
                    outcomes[edge, c] = low
            combination[edge] = combined
        fits[row] = 1 if good else 0
        if not good:
            combination[begin:end] = -1
