"""The worlds of docs/models.md are what the page says they are."""

import re
from pathlib import Path

import numpy as np
import pytest

import omstore
from omstore.build import build
from omstore.model.checks import checked_model
from omstore.model.rows import model_rows

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def block(name):
    found = [
        text
        for text in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if f"class {name}" in text
    ]
    assert len(found) == 1
    names = {}
    exec(found[0], names)
    return found[0], names[name]


def test_the_corridor_is_short_and_right(tmp_path):
    text, corridor = block("Corridor")
    assert len([line for line in text.splitlines() if line.strip()]) <= 24
    model = corridor(5)
    report = build(model, tmp_path)
    # They never pass: positions guard <= thief, 15 of the 25 pairs.
    assert report.num_nodes == 15
    assert report.num_edges == 15 * 9
    graph = omstore.open(tmp_path).graph
    (before,) = graph.lookup(model.vectors(np.array([[1, 2]])))
    found = graph.successors([before], graph.encode_joint([[2, 1]]))
    (caught,) = graph.lookup(model.vectors(np.array([[2, 2]])))
    assert found.next_node.tolist() == [caught]
    assert found.reward.tolist() == [[1.0, -1.0]]
    assert found.done.tolist() == [True]
    again = graph.successors([caught], [0])
    assert (again.next_node.tolist(), again.reward.tolist()) == ([caught], [[0.0, 0.0]])


def test_the_doors():
    rows = model_rows(checked_model(block("Doors")[1]()))
    edges = rows.gather(np.array([0 * 2 + 1]))  # both doors open, push
    assert edges.next_node.tolist() == [0, 1, 2, 3]
    found = rows.probabilities[edges.outcome]
    assert found == pytest.approx([0.2 * 0.9, 0.2 * 0.1, 0.8 * 0.9, 0.8 * 0.1])


def test_the_page_names_every_method_of_a_model():
    text = PAGE.read_text()
    for name in (
        "successors",
        "initial_states",
        "reward",
        "done",
        "absorbing",
        "legal",
        "vectors",
        "component_bits",
    ):
        assert re.search(rf"^\| `{name}[`(]", text, re.MULTILINE), name
    for command in re.findall(r"^omstore build .*", text, re.MULTILINE):
        assert command.split()[2] in ("pursuit", "docs/corridor.py:Corridor")
