"""The command: results on stdout, errors in two lines, exit codes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.small_runs import SETTINGS, results
from trainer.cli import main
from trainer.cli.main import omtrain_command
from trainer.models import OpponentMLP

ROOT = Path(__file__).resolve().parents[2]
FLAGS = [
    "--no-strict",
    *(f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()),
]


@pytest.fixture
def omtrain(capsys):
    """Run a command line in this process: (code, stdout, stderr)."""

    def run(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


def test_the_help_doesnt_wait_for_torch():
    code = "import sys, trainer.cli.main; print(sorted({'torch', 'numba', 'zarr'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


class TestTrain:
    def test_export_alone_is_train(self, omtrain, export, trained):
        code, out, err = omtrain(export, *FLAGS)
        assert code == 0
        assert out.startswith(f"{export} trained: {export}/om/iop_stack.pt\n")
        assert re.search(r"memory +[\d.]+ [MG]iB anonymous, [\d.]+ [MG]iB file-backed at the peak", out)
        assert "soft-rollout-PI 4/4 | team level=L2: local=4/4 global=240/240 (100.0%) roots=50/50" in err
        assert results(export) == results(trained)

    def test_json(self, omtrain, export):
        code, out, err = omtrain("train", export, *FLAGS, "--json", "--quiet")
        report = json.loads(out)
        assert (code, err) == (0, "")
        assert (report["updates"], report["resumed_from"], report["ranks"]) == (28, None, 1)
        assert [phase["local"] for phase in report["phases"]] == [5, 4, 5, 4]
        code, out, err = omtrain(export, *FLAGS, "--json")
        assert json.loads(out)["resumed_from"] == 28
        assert "after 28 of 28 updates, which was the last" in err

    def test_a_file_and_flags(self, omtrain, export, trained, tmp_path):
        file = tmp_path / "run.toml"
        text = "\n".join(
            f"{name} = {json.dumps(value)}" for name, value in SETTINGS.items() if name != "batch"
        )
        file.write_text(text + "\nbatch = 99\nstrict = false\n")
        code, _, _ = omtrain(export, "--config", file, "--batch", "16", "-q")
        assert code == 0
        assert results(export) == results(trained)


class TestSignals:
    @pytest.mark.parametrize(
        ("number", "code", "name"), [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")]
    )
    @pytest.mark.parametrize("call", [15, 30, 39])
    def test_a_checkpoint_and_how_to_go_on(
        self, omtrain, export, trained, monkeypatch, number, code, name, call
    ):
        calls = []
        forward = OpponentMLP.forward

        def counting(self, states):
            calls.append(1)
            if len(calls) == call:
                os.kill(os.getpid(), number)
            return forward(self, states)

        monkeypatch.setattr(OpponentMLP, "forward", counting)
        before = signal.getsignal(number)
        found, out, err = omtrain(export, *FLAGS)
        assert (found, out) == (code, "")
        last = err.splitlines()[-1]
        again = last.removeprefix(f"stopped by {name}: go on from the last checkpoint with: omtrain ")
        assert again != last
        assert signal.getsignal(number) is before
        found, _, err = omtrain(*shlex.split(again))
        assert found == 0
        assert "going on from" in err
        assert results(export) == results(trained)

    def test_before_training_it_stops_at_once(self, omtrain, export, monkeypatch):
        monkeypatch.setattr(
            "trainer.beginning.prepare_om_training_inputs",
            lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM),
        )
        code, _, err = omtrain(export, *FLAGS)
        assert code == 143
        assert err.splitlines()[-1].startswith(
            "stopped by SIGTERM: there is no checkpoint yet; begin with: omtrain"
        )


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "code", "message", "hint"),
        [
            (["--lrr", "1"], 2, "No such option '--lrr'", "omtrain train --help"),
            (["--lr", "x"], 2, "lr is a number, not 'x'", ""),
            (["--device", "tpu"], 2, "device is one of auto, cpu, cuda, not 'tpu'", ""),
            (["--max-ram", "lots"], 2, "'lots' isn't a size", "512M"),
            (["--config", "/nothing.toml"], 2, "/nothing.toml can't be read", "TOML"),
            (["--focal-agent", "nobody"], 2, "there is no agent 'nobody'", "agents are"),
            (["--store-version", "v000009"], 1, "v000009", ""),
        ],
    )
    def test_two_lines(self, omtrain, stored, arguments, code, message, hint):
        found, out, err = omtrain(stored, *arguments)
        assert (found, out) == (code, "")
        assert message in err
        assert hint in err
        assert "Traceback" not in err
        assert not (stored / "om" / "iop_stack.pt").exists()

    def test_states_that_are_not_in_the_graph(self, omtrain, export):
        code, _, err = omtrain(export, "-q")
        assert code == 2
        assert "error: " in err
        assert "--no-strict" in err

    def test_no_store(self, omtrain, tmp_path):
        code, _, err = omtrain(tmp_path)
        assert code == 1
        assert "omstore convert" in err

    def test_debug_shows_the_traceback(self, omtrain, tmp_path):
        assert "Traceback" in omtrain(tmp_path, "--debug")[2]

    def test_nothing_given(self, omtrain):
        code, _, err = omtrain()
        assert code == 2
        assert "Usage: omtrain" in err


class TestShow:
    def test_an_export(self, omtrain, trained):
        code, out, err = omtrain("show", trained)
        assert (code, err) == (0, "")
        assert "an opponent model of 3 levels" in out
        assert re.search(r"phase 4/4 +team level=L2: 4 updates, 50 root states, policy_ce \d", out)
        assert re.search(r"temperature +0\.1\n", out)

    def test_a_file_as_json(self, omtrain, trained):
        code, out, _ = omtrain("show", trained / "om" / "iop_stack.pt", "--json")
        document = json.loads(out)
        assert code == 0
        # 13 x 16, 16 x 16, 16 x 12 and 16 x 2 weights, and biases
        assert document["parameters"] == {"level": 13 * 16 + 16 + 272 + 17 * 12, "agent": 224 + 272 + 17 * 2}
        assert document["levels"] == 3
        assert "layers" not in document

    def test_nothing_trained(self, omtrain, stored):
        code, _, err = omtrain("show", stored)
        assert code == 1
        assert f"omtrain {stored}" in err


def documented():
    text = "\n".join(
        path.read_text()
        for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "tools" / "demo.sh"]
    )
    found = re.findall(
        r"^ *(?:run )?((?:torchrun .*-m trainer\.cli|omtrain) .*?)(?:\s+#.*)?$", text, re.MULTILINE
    )
    return sorted(set(found))


@pytest.mark.parametrize("line", documented())
def test_documented_command_lines_parse(line):
    arguments = shlex.split(
        re.sub(r"^torchrun .* -m trainer\.cli ", "omtrain ", line).replace('"$export"', "x")
    )[1:]
    name = arguments.pop(0) if arguments[0] in omtrain_command.commands else "train"
    omtrain_command.commands[name].make_context(name, arguments)


def test_there_are_documented_command_lines():
    assert len(documented()) >= 3


@pytest.mark.parametrize("name", omtrain_command.commands)
def test_every_command_has_examples(name):
    assert "Examples:" in omtrain_command.commands[name].help
