"""Dicts per agent may name the agents in any order; agent 0 is the first of the graph's."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import omstore
from omstore.convert import ConvertOptions, convert

STATES = [(0, 0, 1), (0, 1, 0), (1, 0, 0)]


def in_order(order: str, x: Any, y: Any) -> dict[str, Any]:
    return {name: {"x": x, "y": y}[name] for name in order}


@pytest.mark.parametrize(("action_order", "reward_order"), [("xy", "xy"), ("xy", "yx"), ("yx", "xy")])
@pytest.mark.parametrize("replay_order", ["xy", "yx"])
def test_agents_keep_their_places(
    tmp_path: Path, action_order: str, reward_order: str, replay_order: str
) -> None:
    edges = [
        {
            "src": source,
            "joint_action": in_order(action_order, a, b),
            "dst": (source + a + b) % 3,
            "prob": 1.0,
            "reward": in_order(reward_order, 1.0 * a, 10.0 * b),
            "done": False,
        }
        for source in range(3)
        for a in range(3)
        for b in range(2)
    ]
    transitions = [
        {
            # each agent sees another state, so that the focal one can be told
            "obs": in_order(replay_order, np.array(STATES[i], np.uint8), np.array(STATES[i - 1], np.uint8)),
            "actions": in_order(replay_order, 2, 1),
            "rewards": in_order(replay_order, 3.0, 20.0),
            "next_obs": in_order(replay_order, np.array(STATES[i], np.uint8), np.array(STATES[i], np.uint8)),
            "done": False,
        }
        for i in range(3)
    ]
    (tmp_path / "wm").mkdir()
    for name, value in (("env_transition_graph", {"states": STATES, "edges": edges}), ("D", transitions)):
        (tmp_path / "wm" / f"{name}.pkl").write_bytes(pickle.dumps(value, 4))
    report = convert(tmp_path, ConvertOptions())
    assert report.agents == list(action_order)
    x, y = action_order.index("x"), action_order.index("y")
    with omstore.open(tmp_path) as store:
        graph, replay = store.graph, store.replay
        assert graph is not None
        assert replay is not None
        assert [graph.num_actions[x], graph.num_actions[y]] == [3, 2]
        actions = np.zeros((1, 2), np.int64)
        actions[0, x], actions[0, y] = 2, 1
        found = graph.successors(np.array([0]), graph.encode_joint(actions))
        assert [found.reward[0, x], found.reward[0, y]] == [2.0, 10.0]
        taken = graph.decode_joint(replay.joint_actions[:])
        assert taken[:, [x, y]].tolist() == [[2, 1]] * 3
        assert replay.rewards(slice(0, 3))[:, [x, y]].tolist() == [[3.0, 20.0]] * 3
        focal = np.array(STATES) if x == 0 else np.array([STATES[i - 1] for i in range(3)])
        assert np.array_equal(replay.states(slice(0, 3)), focal)
