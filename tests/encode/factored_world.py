"""Small worlds that factor by construction, laid out in state vectors in several ways, with exceptions put in."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.format.states import StateCodec
from omstore.rows import CsrRows, GraphSize
from omstore.rows.factored_tables import Factoring

Row = list[tuple[int, float]]
Kernel = dict[tuple[int, int], list[tuple[int, float]]]
"""(local state, action) -> (next local state, probability), ascending; a missing pair is illegal."""


@dataclass
class Part:
    """A component: who moves it, its local states, and its kernel."""

    agent: int | None
    size: int
    kernel: Kernel


def random_part(
    rng: np.random.Generator, agent: int | None, size: int, actions: int, legal: float = 1.0
) -> Part:
    """A kernel with 1 to 3 outcomes a pair, of tenths."""
    kernel: Kernel = {}
    for state, action in itertools.product(range(size), range(actions)):
        if rng.random() >= legal and action > 0:
            continue
        nexts = np.sort(rng.permutation(size)[: rng.integers(1, min(3, size) + 1)]).tolist()
        tenths = np.diff([0, *np.sort(rng.permutation(9)[: len(nexts) - 1] + 1).tolist(), 10])
        kernel[state, action] = [(n, float(t) / 10) for n, t in zip(nexts, tenths, strict=True)]
    return Part(agent, size, kernel)


@dataclass
class FactoredWorld:
    """Parts that move independently, every state of their product; nodes sorted by state vector.

    `layout`: ``one-hot`` blocks; ``bits`` of all blocks mixed; ``integers``.
    """

    parts: list[Part]
    num_actions: tuple[int, ...]
    layout: str = "one-hot"
    seed: int = 0
    exceptions: dict[tuple[int, int], Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = [part.size for part in self.parts]
        tuples = np.array(list(itertools.product(*map(range, sizes))))
        if self.layout == "integers":
            states = tuples * 3 + 5
            self.codec = StateCodec(len(sizes), 8)
        else:
            blocks = [
                np.eye(size, dtype=np.uint8)[column] for size, column in zip(sizes, tuples.T, strict=True)
            ]
            states = np.concatenate(blocks, axis=1)
            if self.layout == "bits":
                states = states[:, np.random.default_rng(self.seed).permutation(states.shape[1])]
            self.codec = StateCodec(states.shape[1], 1)
        packed = self.codec.pack(states)
        order = np.lexsort(packed.T[::-1])
        self.packed = packed[order]
        self.packed.flags.writeable = False
        self.tuples = [tuple(row) for row in tuples[order].tolist()]
        self.node_of = {local: node for node, local in enumerate(self.tuples)}
        self.num_nodes = len(self.tuples)
        self.num_joint_actions = math.prod(self.num_actions)

    def row(self, node: int, joint: int) -> Row:
        """(next node, probability) of a row, ascending."""
        if (node, joint) in self.exceptions:
            return self.exceptions[node, joint]
        actions = np.unravel_index(joint, self.num_actions)
        outcomes = []
        for part, local in zip(self.parts, self.tuples[node], strict=True):
            action = 0 if part.agent is None else int(actions[part.agent])
            outcomes.append(part.kernel.get((local, action), []))
        row = []
        for choice in itertools.product(*outcomes):
            chance = 1.0
            for _, p in choice:
                chance *= p
            row.append((self.node_of[tuple(n for n, _ in choice)], chance))
        return sorted(row)

    def rows(self) -> list[Row]:
        return [self.row(*pair) for pair in np.ndindex(self.num_nodes, self.num_joint_actions)]

    def encoded(self) -> tuple[CsrRows, NDArray[np.float64]]:
        """The rows as csr, and the probability of each outcome code."""
        rows = self.rows()
        chances = np.array([p for row in rows for _, p in row])
        table, code = np.unique(chances, return_inverse=True)
        offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.uint64)
        nexts = np.array([n for row in rows for n, _ in row], np.uint32)
        size = GraphSize(self.num_nodes, self.num_joint_actions, len(nexts), len(table))
        codes = code.astype(np.uint8 if len(table) <= 256 else np.uint16) if len(table) > 1 else None
        return CsrRows(size, offsets, nexts, codes), table


def expand(
    factoring: Factoring, table: NDArray[np.float64], node: int, joint: int, num_nodes: int, num_actions: Any
) -> Row:
    """What a factoring says of a row: slow and obvious. A combination that never occurs has probability nan."""
    product = np.arange(num_nodes) if factoring.product is None else factoring.product
    sizes = [component.size for component in factoring.components]
    local = np.unravel_index(int(product[node]), sizes)
    actions = np.unravel_index(joint, num_actions)
    outcomes = []
    for component, state in zip(factoring.components, local, strict=True):
        action = 0 if component.agent is None else int(actions[component.agent])
        pair = int(state) * component.num_actions + action
        part = slice(int(component.offsets[pair]), int(component.offsets[pair + 1]))
        classes = component.outcome_class
        outcomes.append(
            list(
                zip(
                    component.next_state[part].tolist(),
                    component.probability[part].tolist(),
                    [0] * (part.stop - part.start) if classes is None else classes[part].tolist(),
                    strict=True,
                )
            )
        )
    back = {int(number): n for n, number in enumerate(product)}
    row = []
    for choice in itertools.product(*outcomes):
        number, combination, chance = 0, 0, 1.0
        for (state, p, outcome_class), component in zip(choice, factoring.components, strict=True):
            number = number * component.size + state
            combination = combination * component.num_classes + outcome_class
            chance *= p
        if factoring.combination is not None:
            code = int(factoring.combination[combination])
            chance = float(table[code]) if code >= 0 else float("nan")
        row.append((back.get(number, -1), chance))
    return sorted(row)
