"""`omstore compact`, and what `convert` says of row encodings."""

from __future__ import annotations

import json


def test_a_dry_run_compares_the_encodings_on_stdout(run, converted):
    ran = run("compact", converted, "--dry-run")
    assert ran.code == 0
    assert "nothing was published" in ran.out
    for encoding in ("csr", "csr-compressed", "dictionary", "factored"):
        assert encoding in ran.out.split("row encodings")[1]
    assert "(chosen)" in ran.out
    assert "factored is impossible: " in ran.out
    document = json.loads(run("compact", converted, "--dry-run", "--json").out)
    assert document["version"] is None
    assert [forecast["encoding"] for forecast in document["forecasts"]] == [
        "csr", "csr-compressed", "dictionary", "factored",
    ]  # fmt: skip
    assert document["encoding_reason"] in ran.out


def test_compacting_publishes_what_is_proven(run, fresh):
    assert run("convert", fresh, "--quiet").code == 0
    ran = run("compact", fresh, "--rows", "dictionary")
    assert ran.code == 0
    assert "compacted: v000002 is live" in ran.out
    assert "are those of the source, to the bit" in ran.out
    assert "row encodings" in ran.err
    assert "row encodings" not in ran.out
    quiet = run("compact", fresh, "--rows", "csr", "--quiet")
    assert (quiet.code, quiet.err) == (0, "")
    assert run("verify", fresh, "--against", fresh).code == 0


def test_what_is_impossible_is_refused_with_the_reason(run, fresh):
    ran = run("convert", fresh, "--rows", "factored")
    assert ran.code == 2
    assert "--rows factored is impossible for this graph" in ran.err
    assert "hint: Use --rows auto" in ran.err
    assert not (fresh / "store" / "CURRENT").exists()


def test_conversion_shows_forecasts_and_proof(run, fresh):
    ran = run("convert", fresh, "--rows", "dictionary", "--json")
    document = json.loads(ran.out)
    assert document["encoding"] == "dictionary"
    assert document["proof"]["edges"] == document["num_edges"]
    assert document["forecasts"][0]["encoding"] == "dictionary"
    dry = json.loads(run("convert", fresh, "--dry-run", "--json").out)
    assert len(dry["forecasts"]) == 4
