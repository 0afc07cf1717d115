"""`omstore build` on the command line."""

import json

import pytest

import omstore
from omstore.cli.main import main
from tests.model import small_worlds


@pytest.fixture
def omstore_says(capsys):
    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_pursuit(omstore_says, tmp_path):
    code, out, err = omstore_says("build", "pursuit", "--agents", 2, "--slip", 0.1, tmp_path, "--rows", "csr")
    assert code == 0, err
    assert "v000001 is live" in out
    assert "571,152" in out
    assert omstore.open(tmp_path).graph.num_edges == 571_152


def test_json_and_a_replay(omstore_says, tmp_path):
    code, out, _ = omstore_says(
        "build",
        "pursuit",
        "--agents",
        2,
        tmp_path,
        "--rows",
        "csr",
        "--transitions",
        50,
        "--seed",
        3,
        "--json",
        "-q",
    )
    document = json.loads(out)
    assert code == 0
    assert document["num_edges"] == 48_400
    assert document["num_transitions"] == 50
    assert document["parameters"] == {"agents": 2, "slip": 0.0}
    assert len(omstore.open(tmp_path).replay) == 50


def test_a_map_from_a_file(omstore_says, tmp_path):
    (tmp_path / "map.txt").write_text("...\n.#.\n")
    code, _, err = omstore_says(
        "build", "pursuit", "--agents", 2, "--grid", tmp_path / "map.txt", tmp_path / "e", "--rows", "csr"
    )
    assert code == 0, err
    assert omstore.open(tmp_path / "e").graph.num_nodes == 25


def test_ones_own_model_with_parameters(omstore_says, tmp_path):
    model = f"{small_worlds.__file__}:make_drift"
    code, out, err = omstore_says(
        "build", model, tmp_path, "--set", "length=4", "--set", "slip=0.5", "--rows", "csr"
    )
    assert code == 0, err
    assert "can be reached" in out
    assert omstore.open(tmp_path).manifest.options["parameters"] == {"length": 4, "slip": 0.5}


def test_a_dry_run(omstore_says, tmp_path):
    code, out, _ = omstore_says("build", "pursuit", "--agents", 6, tmp_path, "--dry-run", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["version"] is None
    assert "7,256,313,856" in document["problem"]
    assert document["num_nodes"] == 44**6
    code, out, _ = omstore_says("build", "pursuit", "--agents", 6, tmp_path, "--dry-run")
    assert "doesn't fit" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chess"], "there is no model 'chess'"),
        (["pursuit", "--agents", 1], "at least 2 agents"),
        (["pursuit", "--set", "agents"], "isn't NAME=VALUE"),
        (["pursuit", "--set", "agents=3", "--agents", 3], "given twice"),
        (["pursuit", "--set", "size=3"], "doesn't take these parameters"),
        (["pursuit", "--grid", "/nowhere/map"], "can't be read"),
        (["pursuit", "--agents", 5], "--max-ram"),
    ],
)
def test_mistakes_are_said_without_a_traceback(omstore_says, tmp_path, arguments, message):
    code, _, err = omstore_says("build", *arguments, tmp_path)
    assert code != 0
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "store").exists()
