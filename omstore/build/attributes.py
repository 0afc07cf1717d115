"""Rewards and done flags of a model that gives them by state: attributes of nodes, none of edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omstore.encode.distinct import DistinctWords, sort_words, words_of
from omstore.encode.hoist import code_dtype
from omstore.errors import ModelError
from omstore.model.checks import Answers
from omstore.model.rows import ProceduralRows
from omstore.read.attributes import Attribute

__all__ = ["NodeAttributes", "node_attributes"]

_STEP = 1 << 14


@dataclass(frozen=True)
class NodeAttributes:
    """What edges carry, by node.

    Attributes
    ----------
    attributes : tuple of Attribute
        Probability, reward and done.
    absorbing : (m,) int64
        The absorbing nodes, ascending.
    """

    attributes: tuple[Attribute, ...]
    absorbing: NDArray[np.int64]


def node_attributes(source: ProceduralRows) -> NodeAttributes:
    """Ask the model for the rewards and flags of all of its nodes.

    Memory: 9 bytes a node, 8 for each absorbing one.

    Raises
    ------
    ModelError
        If there are more than 65,535 distinct rewards.
    """
    answers = Answers(source.model)
    num_nodes, agents = source.size.num_nodes, len(source.model.agents)
    done = np.zeros(num_nodes, np.uint8)
    numbers = np.zeros(num_nodes, np.int32)
    distinct = DistinctWords(agents)
    distinct.number(words_of(np.zeros((1, agents))))  # number 0: what absorbing nodes' edges carry
    absorbing: list[NDArray[np.int64]] = []
    for first in range(0, num_nodes, _STEP):
        nodes = np.arange(first, min(first + _STEP, num_nodes))
        states = source.numbering.states(nodes)
        absorbing.append(nodes[answers.absorbing(states)])
        done[nodes] = answers.done(states)
        numbers[nodes] = distinct.number(words_of(answers.reward(states)))
        if distinct.overflowed or len(distinct.words) >= 1 << 16:
            raise ModelError(
                f"{type(source.model).__name__}.reward has more than 65,535 distinct values",
                "Round the rewards, or return them with the outcomes of `successors` of a TransitionModel.",
            )
    frozen = np.concatenate([np.empty(0, np.int64), *absorbing])
    reward = _reward(distinct, numbers, frozen, agents)
    flags = Attribute("done", "next_node", done)
    if num_nodes and (done == done[0]).all():
        flags = Attribute("done", "graph", done[:1].copy())
    return NodeAttributes((_probability(source), reward, flags), frozen)


def _probability(source: ProceduralRows) -> Attribute:
    values = source.probabilities
    if not len(values):
        return Attribute("probability", "rows", np.empty(0))
    return Attribute("probability", "outcome" if len(values) > 1 else "graph", values)


def _reward(
    distinct: DistinctWords, numbers: NDArray[np.int32], frozen: NDArray[np.int64], agents: int
) -> Attribute:
    """The reward at the lowest level at which it is a function: an absorbing node's edges carry 0."""
    order, code_of = sort_words(distinct.words, np.ones(agents, np.bool_))
    values = distinct.words[order].view(np.float64).reshape(-1, agents)
    dtype = code_dtype(len(order) + 1)  # a node's own code is stored + 1
    codes = code_of.astype(dtype)[numbers]
    zero = int(code_of[0])
    own = None
    if len(frozen) and (codes[frozen] != zero).any():
        own = np.zeros(len(codes), dtype)
        own[frozen] = zero + 1
    elif len(codes) and (codes == codes[0]).all():
        return Attribute("reward", "graph", values[codes[0] : int(codes[0]) + 1].copy())
    return Attribute("reward", "next_node" if own is None else "next_node_unless_node", values, codes, own)
