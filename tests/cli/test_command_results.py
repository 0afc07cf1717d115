"""The commands end to end: results on stdout, the library's values in JSON, messages on stderr."""

import json

import omstore
from omstore.inspect import stats, verify
from tools.make_export import load_truth


def test_convert_then_stats_verify_versions_gc_rollback(run, fresh):
    truth = load_truth(fresh).graph
    made = run("convert", fresh)
    assert made.code == 0
    assert "v000001 is live" in made.out
    assert f"{truth.src.size:,} in" in made.out
    assert f"next: omstore stats {fresh}" in made.out
    assert "info isn't stored: None in every record" in made.out
    assert "sorting edges" in made.err
    assert "isn't stored" not in made.err  # said once, in the report

    second = json.loads(run("convert", fresh, "--json", "--rows", "csr-compressed", "--keep", "visits").out)
    assert (second["version"], second["encoding"]) == ("v000002", "csr-compressed")
    assert second["num_edges"] == truth.src.size
    assert second["peak_anonymous"] > 0
    assert second["peak_file_backed"] > 0
    with omstore.open(fresh) as store:
        assert store.version == "v000002"
        assert "visits" in store.graph.attributes

    shown = run("stats", fresh)
    assert shown.code == 0
    for words in (
        "successors of a row",
        "legal share",
        "reward of",
        "nodes seen",
        "sha256",
        "csr-compressed",
    ):
        assert words in shown.out
    assert run("verify", fresh, "--against").code == 0
    listed = json.loads(run("versions", fresh, "--json").out)["versions"]
    assert [(v["name"], v["is_current"]) for v in listed] == [("v000001", False), ("v000002", True)]
    assert "v000002 (live)" in run("versions", fresh).out
    assert json.loads(run("rollback", fresh, "--json").out) == {"live": "v000001"}
    assert run("rollback", fresh, "--to", "2").out == f"{fresh}: v000002 is live\n"
    would = json.loads(run("gc", fresh, "--dry-run", "--json").out)
    assert (would["removed"], would["dry_run"]) == (["v000001"], True)
    assert "deleted v000001" in run("gc", fresh).out
    assert run("gc", fresh).out == "nothing to delete\n"


def test_json_is_what_the_library_gives(run, converted):
    expected = stats(converted).to_dict()
    given = json.loads(run("stats", converted, "--json").out)
    expected.pop("seconds"), given.pop("seconds")
    assert given == json.loads(json.dumps(expected))
    checks = json.loads(run("verify", converted, "--json").out)["checks"]
    assert [c["name"] for c in checks] == [check.name for check in verify(converted).checks]


def test_quiet_leaves_stderr_empty(run, fresh):
    ran = run("convert", fresh, "--quiet")
    assert ran.err == ""
    assert ran.out
    assert run("stats", fresh, "-q").err == ""


def test_a_dry_run_publishes_nothing(run, fresh):
    ran = run("convert", fresh, "--dry-run")
    assert ran.code == 0
    assert "nothing was published" in ran.out
    assert "next:" not in ran.out
    assert sorted(path.name for path in fresh.iterdir()) == ["truth", "wm"]


def test_one_pickle_alone_is_converted_and_said(run, fresh):
    (fresh / "wm" / "D.pkl").unlink()
    ran = run("convert", fresh)
    assert ran.code == 0
    assert "there is no replay" in ran.out
    shown = run("stats", fresh)
    assert shown.code == 0
    assert "\nreplay" not in shown.out


def test_peek_shows_and_tries_mappings(run, pickles):
    file = pickles / "wm" / "env_transition_graph.pkl"
    ran = run("peek", file)
    assert ran.code == 0
    for words in ("pursuit_legacy.graph.Edge", "next_node <- dst", "dropped info", "actions  3 x 2"):
        assert words in ran.out
    other = json.loads(run("peek", file, "--map", "probability=visits", "--keep", "kind", "--json").out)
    assert any("probability <- visits" in line for line in other["mapping"])
    replay = run("peek", pickles / "wm" / "D.pkl", "--focal", "1").out
    assert "focal" in replay
    unknown = run("peek", file, "--as", "replay")
    assert unknown.code == 0
    assert "can't be inferred" in unknown.out
    assert "--map" in unknown.out


def test_verify_says_what_is_wrong_and_exits_with_1(run, store):
    file = store / "store" / "v000001" / "rows" / "next_node" / "c" / "0"
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    ran = run("verify", store)
    assert ran.code == 1
    assert "rows/next_node/c/0" in ran.out
    assert "problems" in ran.out
    assert json.loads(run("verify", store, "--json").out)["ok"] is False


def test_a_store_or_a_version_may_be_given_to_look_at(run, converted):
    for path in (converted / "store", converted / "store" / "v000001"):
        assert run("stats", path, "-q").code == 0
        assert run("verify", path, "-q", "--against").code == 0


def test_blocks_where_the_terminal_has_none(converted):
    import os
    import subprocess
    import sys

    def drawn(encoding):
        done = subprocess.run(
            [sys.executable, "-m", "omstore.cli", "stats", str(converted), "-q"],
            capture_output=True,
            check=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
        )
        return done.stdout

    assert "█".encode() in drawn("utf-8")
    assert b"###" in drawn("ascii")
