"""Random worlds of independent components, and their rows enumerated slowly and obviously."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omstore.publish.staging import Staging
from omstore.rows import CsrRows, FactoredRows, GraphSize, open_rows
from omstore.rows.encoding import next_node_dtype, outcome_dtype
from omstore.rows.factored import Component, Factoring
from omstore.rows.factored_writer import write_factored

Edge = tuple[int, int]  # next node, outcome code
SOME = (0.1, 0.2, 0.25, 0.5, 1.0)


def random_component(
    rng: np.random.Generator, agent: int | None, size: int, num_actions: int, *, empty: float = 0.1
) -> Component:
    """A component with random kernels; classes are its distinct probabilities."""
    offsets, states, chances = [0], [], []
    for _ in range(size * num_actions):
        count = 0 if rng.random() < empty else int(rng.integers(1, size + 1))
        states += sorted(rng.choice(size, count, replace=False).tolist())
        weights = rng.integers(0 if count > 2 else 1, 4, count).astype(float)
        if count and not weights.any():
            weights[0] = 1.0
        chances += (weights / weights.sum()).tolist() if count else []
        offsets.append(len(states))
    values, classes = np.unique(np.array(chances, np.float64), return_inverse=True)
    return Component(
        agent,
        size,
        num_actions,
        np.array(offsets, np.int64),
        np.array(states, np.int64),
        np.array(chances, np.float64),
        classes.reshape(-1).astype(np.int64),
        max(1, len(values)),
    )


def combine(components: list[Component]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Outcome codes of all combinations of classes: the numbers of their distinct products. And these."""
    products = np.ones(1)
    for component in components:
        values = np.ones(component.num_classes)
        assert component.outcome_class is not None
        values[component.outcome_class] = component.probability
        products = (products[:, None] * values).reshape(-1)
    table, codes = np.unique(products, return_inverse=True)
    return codes.reshape(-1).astype(np.int64), table


@dataclass
class World:
    """Components, what combines them, and rows: those they make, but for exceptions."""

    factoring: Factoring
    values: NDArray[np.float64]
    num_nodes: int
    num_joint_actions: int
    rows: list[list[Edge]]
    made: list[list[Edge] | None]

    @property
    def size(self) -> GraphSize:
        edges = sum(map(len, self.rows))
        return GraphSize(self.num_nodes, self.num_joint_actions, edges, len(self.values))

    @property
    def first_edges(self) -> list[int]:
        return [0, *itertools.accumulate(map(len, self.rows))]

    def csr(self) -> CsrRows:
        """The rows as they are, in memory."""
        size = self.size
        codes = np.array([code for row in self.rows for _, code in row], outcome_dtype(size.num_outcomes))
        return CsrRows(
            size,
            np.array(self.first_edges, np.uint64),
            np.array([node for row in self.rows for node, _ in row], next_node_dtype(size.num_nodes)),
            codes if size.num_outcomes > 1 else None,
        )

    def exceptional(self) -> list[int]:
        """Nodes with a row that the components don't make."""
        wrong = {r // self.num_joint_actions for r, row in enumerate(self.rows) if row != self.made[r]}
        return sorted(wrong)

    def write(self, staging: Staging, **options: Any) -> FactoredRows:
        """Write the rows as factored and open them."""
        options = {"max_exceptions": 1.0} | options
        description, size = write_factored(self.csr(), self.factoring, staging, **options)
        opened = open_rows(staging.path, description, size)
        assert isinstance(opened, FactoredRows)
        return opened


def slow_rows(
    factoring: Factoring, codes: NDArray[np.int64], num_nodes: int, num_joint_actions: int
) -> list[list[Edge] | None]:
    """What the components make of every row, sorted; None where a next state isn't there."""
    components = factoring.components
    sizes = [component.size for component in components]
    product = list(range(num_nodes)) if factoring.product is None else factoring.product.tolist()
    node_at = {number: node for node, number in enumerate(product)}
    actions = factoring.num_actions
    rows: list[list[Edge] | None] = []
    for node, joint in itertools.product(range(num_nodes), range(num_joint_actions)):
        states = np.unravel_index(product[node], sizes)
        chosen = np.unravel_index(joint, actions) if actions else ()
        outcomes = []
        for component, state in zip(components, states, strict=True):
            action = 0 if component.agent is None else int(chosen[component.agent])
            pair = int(state) * component.num_actions + action
            part = slice(int(component.offsets[pair]), int(component.offsets[pair + 1]))
            assert component.outcome_class is not None
            outcomes.append(
                list(
                    zip(
                        component.next_state[part].tolist(),
                        component.outcome_class[part].tolist(),
                        strict=True,
                    )
                )
            )
        row: list[Edge] | None = []
        for combination in itertools.product(*outcomes):
            number = int(np.ravel_multi_index([state for state, _ in combination], sizes))
            kind = 0
            for component, (_, own) in zip(components, combination, strict=True):
                kind = kind * component.num_classes + own
            if number not in node_at:
                row = None
                break
            assert row is not None
            row.append((node_at[number], int(codes[kind])))
        rows.append(None if row is None else sorted(row))
    return rows


def random_world(
    seed: int,
    *,
    agents: tuple[int | None, ...] = (0, 1),
    num_actions: tuple[int, ...] = (2, 3),
    sizes: tuple[int, ...] = (3, 4),
    missing: float = 0.0,
    shuffled: bool = False,
    exceptions: float = 0.0,
    empty: float = 0.1,
) -> World:
    """A random world.

    `agents` and `sizes` are those of the components; of the states a share is `missing`, of the rows a share
    are `exceptions`, and nodes are `shuffled` or in the order of product numbers.
    """
    rng = np.random.default_rng(seed)
    components = [
        random_component(rng, agent, size, 1 if agent is None else num_actions[agent], empty=empty)
        for agent, size in zip(agents, sizes, strict=True)
    ]
    codes, values = combine(components)
    total = math.prod(sizes)
    product = None
    if missing or shuffled:
        kept = max(1, int(total * (1 - missing)))
        product = rng.permutation(total)[:kept].astype(np.int64)
        product = product if shuffled else np.sort(product)
    factoring = Factoring(components, codes, product)
    num_nodes = total if product is None else len(product)
    actions = math.prod(num_actions)
    made = slow_rows(factoring, codes, num_nodes, actions)
    rows = []
    for own in made:
        if own is None or rng.random() < exceptions:
            count = int(rng.integers(0, 4))
            pairs = zip(
                rng.integers(0, num_nodes, count).tolist(),
                rng.integers(0, len(values), count).tolist(),
                strict=True,
            )
            own = sorted(pairs)
        rows.append(own)
    return World(factoring, values, num_nodes, actions, rows, made)
