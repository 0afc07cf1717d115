"""omtrain evaluate, and --evaluate in training: the library's numbers, and those of brute force."""

from __future__ import annotations

import itertools
import json
import re
import shutil

import numpy as np
import pytest

import omstore
import trainer
from omstore.errors import MemoryBudgetError
from tests.trainer.exact_worlds import stored as stored_graph
from tests.trainer.small_runs import Crash, CrashAfter, results, run
from tests.trainer.test_exact_visiting import moves
from tools.worlds.random_graph import RandomGraph
from trainer.cli import main
from trainer.evaluating import EvaluateOptions
from trainer.exact import ExactModel, Horizon, NamedPolicy, Summary, evaluate_pair
from trainer.exact.phases import EXACT_METRICS


@pytest.fixture
def omtrain(capsys):
    def call(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    world = RandomGraph(5, (2, 3), width=5, max_outdegree=2, illegal=0.0, seed=11)
    return stored_graph(tmp_path_factory.mktemp("five"), world)


class TestBruteForce:
    """A game of two agents with five nodes: each of the 2^5 or 3^5 policies, solved as linear equations."""

    def value(self, graph, agent, team, number):
        gained = np.zeros(5)
        for node, action in itertools.product(range(5), range(6)):
            found = graph.successors([node], [action])
            weight = agent[node, action // 3] * team[node, action % 3]
            gained[node] += weight * (found.probability * found.reward[:, number]).sum()
        _, going_on = moves(graph, agent, team)
        return np.linalg.solve(np.eye(5) - 0.9 * going_on, gained)

    def test_best_responses_and_what_they_gain(self, graph):
        rng = np.random.default_rng(2)
        agent, team = rng.dirichlet(np.ones(2), 5), rng.dirichlet(np.ones(3), 5)
        found = evaluate_pair(
            ExactModel(graph, 0),
            NamedPolicy("mine", agent),
            NamedPolicy("theirs", team),
            Horizon(None, 0.9, 1e-11),
            Summary(5, np.array([4, 4, -1, 0])),
        )
        mine, theirs = self.value(graph, agent, team, 0), self.value(graph, agent, team, 1)
        best_mine = np.max(
            [self.value(graph, np.eye(2)[list(p)], team, 0) for p in itertools.product(range(2), repeat=5)],
            axis=0,
        )
        best_theirs = np.max(
            [self.value(graph, agent, np.eye(3)[list(p)], 1) for p in itertools.product(range(3), repeat=5)],
            axis=0,
        )
        for name, expected in (
            ("agent_return", mine), ("team_return", theirs), ("agent_best", best_mine), ("team_best", best_theirs)
        ):  # fmt: skip
            assert np.allclose(found.arrays[name], expected, atol=1e-10)
            means = getattr(found, name)
            assert means.nodes == pytest.approx(expected.mean(), abs=1e-10)
            assert means.roots == pytest.approx((2 * expected[4] + expected[0]) / 3, abs=1e-10)
            assert 0 < means.error <= 1e-11
        gain = best_mine - mine
        assert gain.max() > 0.01
        assert found.agent_gain.nodes == pytest.approx(gain.mean(), abs=1e-10)
        assert found.team_gain.nodes == pytest.approx((best_theirs - theirs).mean(), abs=1e-10)
        greedy = np.eye(2)[found.arrays["agent_best_action"]]
        assert np.allclose(self.value(graph, greedy, team, 0), best_mine, atol=1e-9)


class TestEvaluate:
    def test_a_trained_export(self, trained):
        report = trainer.evaluate(trained)
        document = report.document
        assert (document["horizon"], document["discount"]) == (3, 0.95)  # as it was trained
        assert document["roots"] == 495  # five of 500 aren't in the graph
        assert [row["level"] for row in document["levels"]] == [0, 1, 2]
        pair = document["pair"]
        assert (pair["agent"], pair["team"]) == ("agent", "level2")
        assert document["levels"][2]["agent_best"] == pair["agent_best"]
        focal = document["focal_agent"]
        names = document["agents"]
        assert pair["returns"][names[focal]] == pair["agent_return"]
        others = [pair["returns"][name]["roots"] for name in names if name != names[focal]]
        assert np.mean(others) == pytest.approx(pair["team_return"]["roots"], abs=1e-12)
        for side in ("agent", "team"):
            assert pair[f"{side}_gain"]["nodes"] >= 0
        assert document["phases"] == []
        json.dumps(document, allow_nan=False)

    def test_values_are_written_and_read(self, trained):
        report = trainer.evaluate(trained)
        found = trainer.open_values(trained)
        assert set(found) == set(report.arrays)
        for name, values in report.arrays.items():
            assert found[name].tobytes() == values.tobytes()
        assert found.document["pair"] == report.document["pair"]
        counts = np.bincount(omstore.open(trained).replay.nodes + 1, minlength=41)[1:]
        assert report.document["pair"]["agent_best"]["roots"] == pytest.approx(
            (counts * found["agent_best"]).sum() / 495, abs=1e-12
        )
        captures = report.document["captures"]
        for kind in ("within", "ever"):
            low, mid, high = (found[f"capture_{kind}{end}"] for end in ("_least", "", "_most"))
            assert (low <= mid + 1e-6).all()
            assert (mid <= high + 1e-6).all()
            assert captures[f"capture_{kind}"]["nodes"] == pytest.approx(mid.mean(), abs=1e-12)
        assert found["visits"].sum() == pytest.approx(report.document["visits"]["visits"])

    def test_nothing_trained(self, stored):
        document = trainer.evaluate(stored, EvaluateOptions(write=False)).document
        assert (document["pair"]["agent"], document["pair"]["team"]) == ("uniform", "uniform")
        assert "levels" not in document
        assert not (stored / "om" / "values").exists()

    def test_too_little_memory(self, trained):
        with pytest.raises(MemoryBudgetError, match="--max-ram"):
            trainer.evaluate(trained, EvaluateOptions(max_ram=1000))


class TestCommand:
    def test_tables(self, omtrain, trained):
        code, out, err = omtrain("evaluate", trained, "--node", "3", "--state", "0" * 13)
        assert (code, out) == (2, "")
        assert "isn't in the graph" in err
        code, out, err = omtrain("evaluate", trained, "--node", "3")
        assert code == 0
        assert "plays agent, the others play level2; returns over 3 steps, discount 0.95" in out
        assert re.search(r"gains \(the team's exploitability\) +\+\d\.\d{6} over root states", out)
        assert re.search(r"^  L2 +[+-]\d", out, re.MULTILINE)
        assert re.search(r"^node 3\n  agent_return +-?\d", out, re.MULTILINE)

    def test_json_and_a_state(self, omtrain, trained):
        graph = omstore.open(trained).graph
        state = "".join(str(bit) for bit in graph.states([7])[0])
        code, out, err = omtrain(
            "evaluate", trained, "--json", "-q", "--converge", "--discount", "0.5", "--state", state, "--no-captures",
            "--no-levels", "--no-visits", "--no-write", "--team", "uniform",
        )  # fmt: skip
        assert (code, err) == (0, "")
        document = json.loads(out)
        assert document["horizon"] is None
        assert document["pair"]["agent_best"]["error"] <= 1e-9
        assert document["nodes"][0]["node"] == 7
        assert not {"captures", "levels", "visits", "values"} & set(document)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--team", "level9"], "levels are 0 to 2"),
            (["--node", "40"], "there is no node 40"),
            (["--state", "0101"], "has 13 components"),
            (["--converge", "--horizon", "3"], "give one of them"),
            (["--converge", "--discount", "1"], "without an end"),
            (["--goal", "nothing.npy"], "nothing.npy can't be read"),
            (["--focal-agent", "nobody"], "there is no agent 'nobody'"),
            (["--horizon", "-1"], "horizon"),
            (["--horizon", "0"], "horizon"),
        ],
    )
    def test_errors(self, omtrain, trained, arguments, message):
        code, out, err = omtrain("evaluate", trained, *arguments)
        assert (code, out) == (2, "")
        assert message in err
        assert "Traceback" not in err

    def test_no_store(self, omtrain, tmp_path):
        code, _, err = omtrain("evaluate", tmp_path)
        assert code == 1
        assert "error: " in err


class TestInTraining:
    def test_exact_values_after_each_phase(self, export, trained, omtrain):
        run(export, evaluate=True)
        lines = [json.loads(line) for line in (export / "om" / "metrics.jsonl").read_text().splitlines()]
        exact = [line for line in lines if line.pop("stage") == "exact"]
        assert [(line["phase"], line["learner"], line["level"]) for line in exact] == [
            (1, "agent", 0), (2, "team", 1), (3, "agent", 1), (4, "team", 2)
        ]  # fmt: skip
        assert all(set(line) == set(EXACT_METRICS) for line in exact)
        # nothing else changes
        others = [
            line
            for line in (export / "om" / "metrics.jsonl").read_text().splitlines()
            if '"exact"' not in line
        ]
        assert "\n".join(others) + "\n" == (trained / "om" / "metrics.jsonl").read_text()
        # the last phase's policies are the artifact's
        report = trainer.evaluate(export)
        pair = report.document["pair"]
        for name in ("agent_return", "team_best", "agent_gain"):
            assert exact[-1][f"{name}_roots"] == pair[name]["roots"]
            assert exact[-1][f"{name}_nodes"] == pair[name]["nodes"]
        assert len(report.document["phases"]) == 4
        _, out, _ = omtrain("evaluate", export)
        assert re.search(r"^  4/4 team level=L2 +[+-]\d", out, re.MULTILINE)

    def test_killed_and_resumed_and_threads(self, export, tmp_path, stored):
        shutil.copytree(stored, tmp_path / "whole")
        run(tmp_path / "whole", evaluate=True)
        for updates in (16, 10):
            with pytest.raises(Crash):
                run(export, evaluate=True, stop=CrashAfter(updates), checkpoint_updates=2)
        run(export, evaluate=True, threads=1)
        assert results(export) == results(tmp_path / "whole")
