"""The committed sample is what its README says."""

import gzip
import pickle
from pathlib import Path

import numpy as np

from tools.exports.records import legacy_classes
from tools.make_export import ExportSpec, write_export

WM = Path(__file__).parents[2] / "data" / "pursuit" / "2" / "wm"
SPEC = ExportSpec(
    agents=2, slip=0.1, compress="gzip", transitions=2000, behaviour="skewed", extra=True, parts=("replay",)
)


def load(name):
    with legacy_classes(SPEC):
        return pickle.loads(gzip.decompress((WM / name).read_bytes()))


def test_the_graph_is_pursuit_with_two_agents():
    graph = load("env_transition_graph.pkl")
    assert len(graph.nodes) == 1_936
    assert len(graph.edges) == 571_152
    row = np.fromiter((e.src * 25 + e.joint_action[0] * 5 + e.joint_action[1] for e in graph.edges), np.int64)
    sums = np.bincount(row, weights=[e.prob for e in graph.edges])
    np.testing.assert_allclose(sums, np.ones(48_400), rtol=1e-12)
    assert (np.array(graph.nodes).sum(axis=0)[:49] == 44 * np.array(graph.nodes).any(axis=0)[:49]).all()


def test_the_replay_is_what_the_command_makes(tmp_path):
    truth = write_export(tmp_path, SPEC).replay
    replay = load("D.pkl")
    assert len(replay) == 2_000
    np.testing.assert_array_equal([t.obs["pursuer_0"] for t in replay], truth.state)
    np.testing.assert_array_equal([t.next_obs["evader"] for t in replay], truth.next_state)
    np.testing.assert_array_equal([5 * t.actions[0] + t.actions[1] for t in replay], truth.joint_action)
    np.testing.assert_array_equal([list(t.rewards.values()) for t in replay], truth.reward)
    np.testing.assert_array_equal([t.done for t in replay], truth.done)


def test_it_is_small():
    assert sum(path.stat().st_size for path in WM.iterdir()) < 4_000_000
