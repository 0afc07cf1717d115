"""What goes wrong is one message and a next step, with the right exit code; tracebacks only with --debug."""

import os
import shutil
import subprocess
import sys

import pytest

CASES = {
    "no such command": (["frob"], 2, "No such command"),
    "no export": (["convert"], 2, "Missing argument"),
    "an unknown encoding": (["convert", "{pickles}", "--rows", "frob"], 2, "csr-compressed"),
    "a map without a name": (["convert", "{pickles}", "--map", "edges"], 2, "FIELD=NAME"),
    "a map of nothing known": (["convert", "{pickles}", "--map", "frob=x"], 2, "next_observation"),
    "a map to no field": (["peek", "{pickles}/wm/D.pkl", "--map", "frob=x"], 2, "knows no field"),
    "a map given twice": (["convert", "{pickles}", "--map", "edges=a", "--map", "edges=b"], 2, "twice"),
    "no size": (["convert", "{pickles}", "--max-ram", "lots"], 2, "isn't a size"),
    "too little memory": (["convert", "{pickles}", "--max-ram", "1M"], 2, "--max-ram"),
    "no numbers of actions": (["convert", "{pickles}", "--actions", "5,x"], 2, "5,5,5"),
    "too few actions": (["convert", "{pickles}", "--actions", "2,2"], 1, "--actions"),
    "no such agent": (["convert", "{pickles}", "--focal", "bob"], 2, "--focal"),
    "a missing folder": (["convert", "{pickles}/nowhere"], 1, "no folder"),
    "wm itself": (["convert", "{pickles}/wm"], 1, "omstore convert {pickles}"),
    "a pickle": (["convert", "{pickles}/wm/D.pkl"], 1, "omstore convert {pickles}"),
    "a folder above": (["convert", "{above}"], 1, "omstore convert {pickles}"),
    "no store yet": (["stats", "{pickles}"], 1, "omstore convert {pickles}"),
    "no such version": (["stats", "{converted}", "--version", "7"], 1, "v000001"),
    "no version at all": (["stats", "{converted}", "--version", "x"], 2, "isn't a version"),
    "nothing to roll back to": (["rollback", "{converted}"], 1, "older"),
    "a folder to peek at": (["peek", "{pickles}"], 2, "{pickles}/wm/D.pkl"),
    "a missing file to peek at": (["peek", "{pickles}/wm/X.pkl"], 1, "no file"),
    "nothing to compare with": (["verify", "{converted}", "--against", "{converted}/x"], 1, "no folder"),
}


@pytest.mark.parametrize("name", CASES)
def test_mistakes(name, run, pickles, converted):
    arguments, code, words = CASES[name]
    names = {"pickles": pickles, "above": pickles.parent, "converted": converted}
    ran = run(*(argument.format(**names) for argument in arguments), *(["-q"] if len(arguments) > 1 else []))
    assert ran.code == code
    assert words.format(**names) in ran.err
    assert ran.err.startswith("error: ")
    assert "hint: " in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""


def test_a_truncated_pickle_leaves_the_live_version_alone(run, store):
    file = store / "wm" / "env_transition_graph.pkl"
    file.write_bytes(file.read_bytes()[:5000])
    ran = run("convert", store, "-q")
    assert ran.code == 1
    assert "env_transition_graph.pkl ends early" in ran.err
    assert run("verify", store, "-q").code == 0
    assert not list((store / "store").glob(".staging*"))


def test_nothing_is_made_of_a_truncated_pickle(run, fresh):
    file = fresh / "wm" / "D.pkl"
    file.write_bytes(file.read_bytes()[:-10])
    assert run("convert", fresh, "-q").code == 1
    assert not (fresh / "store").exists()


def test_debug_shows_the_traceback_of_a_mistake(run, pickles):
    ran = run("stats", pickles, "--debug")
    assert "Traceback" in ran.err
    assert "error: " in ran.err


def test_what_was_not_expected_is_one_line_and_how_to_see_more(run, pickles, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("oh\nno")

    monkeypatch.setattr("omstore.inspect.peeking.peek", fail)
    ran = run("peek", pickles / "wm" / "D.pkl", "-q")
    assert ran.code == 1
    assert ran.err.splitlines() == [
        "error: ZeroDivisionError: oh no",
        "hint: This wasn't expected: run again with --debug for the traceback.",
    ]
    assert "Traceback" in run("peek", pickles / "wm" / "D.pkl", "--debug").err


def test_a_forbidden_file_is_named(run, pickles, monkeypatch):
    def fail(*_, **__):
        raise PermissionError(13, "Permission denied", "/x/y")

    monkeypatch.setattr("omstore.inspect.peeking.peek", fail)
    ran = run("peek", pickles / "wm" / "D.pkl", "-q")
    assert (ran.code, ran.err) == (1, "error: /x/y: Permission denied\n")


def test_a_reader_that_has_enough_is_no_error(converted):
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"'{sys.executable}' -m omstore.cli stats '{converted}' -q | head -1; exit $PIPESTATUS",
        ],
        capture_output=True,
        text=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""
    assert done.returncode in (0, 141)


def test_a_read_only_disk_is_said_and_can_be_read_from(run, store, tmp_path):
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting isn't allowed here")
    try:
        shutil.copytree(store, disk / "e")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        ran = run("convert", disk / "e", "-q")
        assert ran.code == 1
        assert "Read-only file system" in ran.err
        assert run("stats", disk / "e", "-q").code == 0
        assert run("verify", disk / "e", "-q", "--against").code == 0
        assert run("convert", disk / "e", "-q", "--dry-run").code == 0
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
