"""Values of edges compared with their source's, at every level; anything moved wrongly is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from omstore.encode.value_proof import ValueComparison
from omstore.errors import ProofError
from omstore.read.attributes import Attribute
from omstore.rows import CsrRows, GraphSize
from omstore.rows.proof import prove

# Two nodes, two joint actions. Node 0 moves to 0 or 1; node 1 stays whatever is done.
OFFSETS = np.array([0, 2, 3, 4, 5], np.uint64)
NEXT = np.array([0, 1, 1, 1, 1], np.uint32)
CODE = np.array([0, 1, 2, 3, 3], np.uint8)
REWARD = np.array([[0.5], [1.0], [1.0], [-0.0]])  # by code: entering 0, entering 1 (twice), staying in 1
SOURCE = CsrRows(GraphSize(2, 2, 5, 4), OFFSETS, NEXT, CODE)
GIVEN = [Attribute("reward", "outcome", REWARD)]
SAME = np.arange(4)


def prove_values(
    source: CsrRows, given: list[Attribute], written: dict[str, Attribute], code_map: np.ndarray
) -> int:
    """Compare all edges in a proof's sweep; how many attributes were compared."""
    comparison = ValueComparison(given, written, code_map, source.size.num_joint_actions)
    prove(source, source, also=comparison.check)
    return len(comparison.names)


def coded(values: list[float], codes: list[int], own: list[int] | None = None) -> Attribute:
    level = "next_node" if own is None else "next_node_unless_node"
    return Attribute(
        "reward",
        level,
        np.array(values)[:, None],
        np.array(codes, np.uint8),
        None if own is None else np.array(own, np.uint8),
    )


def test_values_that_are_right_everywhere_pass() -> None:
    right = coded([-0.0, 0.5, 1.0], codes=[1, 2], own=[0, 1])
    assert prove_values(SOURCE, GIVEN, {"reward": right}, SAME) == 1


@pytest.mark.parametrize(
    ("wrong", "row"),
    [
        (coded([-0.0, 0.5, 1.0], codes=[1, 2], own=[0, 0]), 2),  # staying in 1 would carry 1
        (coded([0.0, 0.5, 1.0], codes=[1, 2], own=[0, 1]), 2),  # 0.0 isn't -0.0
        (coded([-0.0, 0.5, 1.0], codes=[2, 2], own=[0, 1]), 0),
        (coded([-0.0, 0.5, 1.0], codes=[1, 1], own=[0, 1]), 0),
        (coded([-0.0, 0.5, 1.0], codes=[1, 2], own=[3, 1]), 0),
        (coded([0.5, 1.0], codes=[0, 1]), 2),
        (coded([0.5], codes=[0, 1]), 0),  # a code of no value
        (Attribute("reward", "node", np.array([[0.5], [-0.0]])), 0),
        (Attribute("reward", "graph", np.array([[1.0]])), 0),
    ],
)
def test_values_that_are_wrong_somewhere_are_found(wrong: Attribute, row: int) -> None:
    with pytest.raises(ProofError, match=rf"row {row} .*reward"):
        prove_values(SOURCE, GIVEN, {"reward": wrong}, SAME)


def test_levels_of_nodes_and_of_outcomes() -> None:
    by_next = replace(GIVEN[0], values=np.array([[0.5], [1.0], [1.0], [1.0]]))
    assert prove_values(SOURCE, [by_next], {"reward": coded([0.5, 1.0], codes=[0, 1])}, SAME) == 1
    uncoded = Attribute("reward", "next_node", np.array([[0.5], [1.0]]))
    assert prove_values(SOURCE, [by_next], {"reward": uncoded}, SAME) == 1
    fewer = Attribute("reward", "outcome", np.array([[0.5], [1.0], [-0.0]]))
    assert prove_values(SOURCE, GIVEN, {"reward": fewer}, np.array([0, 1, 1, 2])) == 1
    with pytest.raises(ProofError, match="row 1 "):
        prove_values(SOURCE, GIVEN, {"reward": fewer}, np.array([0, 1, 2, 2]))
    by_node = replace(GIVEN[0], values=np.array([[7.0], [7.0], [7.0], [8.0]]))
    stored = Attribute("reward", "node", np.array([[7.0], [8.0]]), np.array([0, 1], np.uint8))
    assert prove_values(SOURCE, [by_node], {"reward": stored}, SAME) == 1


def test_what_was_not_moved_is_passed_over() -> None:
    kept = Attribute("visits", "edge", np.arange(5))
    assert prove_values(SOURCE, [kept], {"visits": kept}, SAME) == 0
