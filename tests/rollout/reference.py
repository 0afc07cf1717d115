"""Rollouts and exact action values in plain NumPy and Python, from what their documentation says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import omstore
from omstore.rollout import extend_key, uniform

Floats = NDArray[np.float64]


class Sides:
    """joint[l, o]: the joint action of the learner's action l and the other side's o."""

    def __init__(self, num_actions: Sequence[int], learner: Sequence[int]) -> None:
        others = [agent for agent in range(len(num_actions)) if agent not in learner]
        self.learner = list(itertools.product(*(range(num_actions[agent]) for agent in learner)))
        self.others = list(itertools.product(*(range(num_actions[agent]) for agent in others)))
        self.joint = np.zeros((len(self.learner), len(self.others)), np.int64)
        for (mine, own), (o, theirs) in itertools.product(enumerate(self.learner), enumerate(self.others)):
            actions = dict(zip((*learner, *others), (*own, *theirs), strict=True))
            joint = 0
            for agent, count in enumerate(num_actions):
                joint = joint * count + actions[agent]
            self.joint[mine, o] = joint


def joint_policy(legal: NDArray[np.bool_], own: Floats, theirs: Floats) -> Floats | None:
    """(L, O) probabilities restricted to legal joint actions, or None where there is none."""
    if not legal.any():
        return None
    product = np.outer(own, theirs) * legal
    if product.sum() == 0.0:
        product = legal.astype(np.float64)
    return product / product.sum()


def exact_action_values(
    graph: omstore.Graph,
    learner: Sequence[int],
    own: Floats,
    theirs: Floats,
    *,
    horizon: int,
    discount: float,
    reward_weights: Sequence[float],
) -> Floats:
    """(N, L) expected discounted returns of each first action, NaN where none is legal; by backward induction."""
    sides = Sides(graph.num_actions, learner)
    n, a = graph.num_nodes, graph.num_joint_actions
    chunks = list(graph.sweep(1 << 12))
    offsets = np.concatenate([chunk.successors.outdegree for chunk in chunks])
    row = np.repeat(np.arange(n * a), offsets)
    next_node = np.concatenate([chunk.successors.next_node for chunk in chunks])
    probability = np.concatenate([chunk.successors.probability for chunk in chunks])
    reward = np.concatenate([chunk.successors.reward for chunk in chunks]) @ np.asarray(reward_weights, float)
    goes_on = ~np.concatenate([chunk.successors.done for chunk in chunks])
    legal = (offsets > 0).reshape(n, a)[:, sides.joint]
    joint = np.zeros((n, *sides.joint.shape))
    for node in range(n):
        chances = joint_policy(legal[node], own[node], theirs[node])
        joint[node] = 0.0 if chances is None else chances
    value = np.zeros(n)
    for left in range(horizon):
        gain = probability * (reward + discount * goes_on * value[next_node])
        rows = np.bincount(row, weights=gain, minlength=n * a).reshape(n, a)[:, sides.joint]
        if left + 1 < horizon:
            value = (joint * rows).sum(axis=(1, 2))
    values = np.full((n, len(sides.learner)), np.nan)
    for node, first in np.ndindex(values.shape):
        certain = np.eye(len(sides.learner))[first]
        if legal[node, first].any():
            chances = joint_policy(legal[node] & (certain > 0)[:, None], certain, theirs[node])
            assert chances is not None
            values[node, first] = (chances * rows[node]).sum()
    return values


def _drawn(probabilities: Floats, number: float) -> int:
    sums = np.cumsum(probabilities.astype(np.float64)).astype(np.float32)
    last = int(np.flatnonzero(probabilities)[-1])
    return min(int((sums.astype(np.float64) <= number).sum()), last)


def _tabulated(probabilities: Floats) -> Floats:
    """What a float32 table of cumulative probabilities makes of them."""
    sums = np.cumsum(probabilities.astype(np.float64)).astype(np.float32).astype(np.float64)
    sums[int(np.flatnonzero(probabilities)[-1]) :] = 1.0
    return np.diff(np.minimum(sums, 1.0), prepend=0.0)


def _chosen(weights: list[float], number: float) -> int:
    total = reached = 0.0
    for weight in weights:
        total += weight
    last = -1
    for k, weight in enumerate(weights):
        if weight > 0:
            reached, last = reached + weight, k
            if number * total < reached:
                break
    return last


def draw_joint(
    legal: NDArray[np.bool_], candidate: int | None, own: Floats, theirs: Floats, number: float, other: float
) -> tuple[int, int] | None:
    """(l, o), or None where nothing is legal: o by its marginal, l given o."""
    if legal.all():
        o = _drawn(theirs, number)
        return (_drawn(own, other) if candidate is None else candidate), o
    if candidate is not None:
        legal = legal & (np.arange(len(legal)) == candidate)[:, None]
    if not legal.any():
        return None
    products = [(_tabulated(own) if candidate is None else np.ones(len(own)), _tabulated(theirs))]
    products.append((np.ones(len(own)), np.ones(len(theirs))))
    for p_own, p_other in products:
        weights = [
            float(sum(p_own[k] for k in np.flatnonzero(legal[:, o]))) * p_other[o]
            for o in range(len(p_other))
        ]
        if math.fsum(weights) > 0:
            break
    o = _chosen(weights, number)
    if candidate is not None:
        return candidate, o
    return _chosen(
        [p if allowed else 0.0 for p, allowed in zip(p_own.tolist(), legal[:, o], strict=True)], other
    ), o


def rollout_returns(
    graph: omstore.Graph,
    root: int,
    candidate: int,
    key: int,
    learner: Sequence[int],
    own: Floats,
    theirs: Floats,
    *,
    n_rollouts: int,
    horizon: int,
    discount: float,
    reward_weights: Sequence[float],
) -> list[float]:
    """The return of every rollout of one candidate, one environment at a time."""
    sides = Sides(graph.num_actions, learner)
    all_legal = graph.legal(np.arange(graph.num_nodes))[:, sides.joint]
    returns = []
    for rollout in range(n_rollouts):
        stream = extend_key(np.uint64(key), candidate, rollout)
        node, total, power = root, 0.0, 1.0
        for step in range(horizon):
            numbers = uniform(stream, 3 * step + np.arange(3))
            pair = draw_joint(
                all_legal[node],
                candidate if step == 0 else None,
                own[node],
                theirs[node],
                numbers[0],
                numbers[1],
            )
            if pair is None:
                assert step > 0
                break
            found = graph.successors([node], [sides.joint[pair]])
            reached = 0.0
            for edge, probability in enumerate(found.probability):
                if probability > 0:
                    reached += float(probability)
                    chosen = edge
                    if numbers[2] < reached:
                        break
            reward = 0.0
            for weight, part in zip(reward_weights, found.reward[chosen], strict=True):
                reward += weight * float(part)
            total += power * reward
            power *= discount
            node = int(found.next_node[chosen])
            if found.done[chosen]:
                break
        returns.append(total)
    return returns
