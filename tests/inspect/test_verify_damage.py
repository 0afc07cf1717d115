"""Damage of every kind is found, named, and nothing else is reported."""

import json

import numpy as np
import pytest

from omstore.inspect import verify


def problems(report):
    return {check.name: check.problems for check in report.checks if check.num_problems}


def test_a_whole_store_is_well(made):
    report = verify(made)
    assert report.ok
    assert [check.name for check in report.checks] == [
        "files",
        "arrays",
        "rows and index",
        "numbers",
        "states",
        "legacy ids",
        "replay",
    ]
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["ok"] is True


def swap(values, i=0, j=1):
    values[[i, j]] = values[[j, i]]


def one(values, at, value):
    values[at] = value


# (array, dtype, edit, check that finds it, words of the message)
DAMAGE = {
    "an outcome code that doesn't exist": (
        "rows/outcome", "u1", lambda v: one(v, 17, 255), "rows and index", "outcome code"
    ),
    "a next node that doesn't exist": (
        "rows/next_node", "<u4", lambda v: one(v, 11, 40), "rows and index", "next node"
    ),
    "offsets that fall": ("rows/offsets", "<u8", lambda v: one(v, 5, 10**12), "rows and index", "offsets"),
    "an index that loses a node": (
        "index/slots", "<u8", lambda v: one(v, slice(None), 0), "rows and index", "index"
    ),
    "a probability above 1": (
        "outcomes/probability", "<f8", lambda v: one(v, 0, 1.5), "numbers", "isn't within 0 to 1"
    ),
    "probabilities that don't sum to 1": (
        "outcomes/probability", "<f8", lambda v: one(v, 0, v[0] * 0.9), "numbers", "sum to"
    ),
    "a NaN for a probability": (
        "outcomes/probability", "<f8", lambda v: one(v, 0, np.nan), "numbers", "isn't within 0 to 1"
    ),
    "a done flag that is 2": (
        "nodes/attributes/done", "u1", lambda v: one(v, slice(None), 2), "numbers", "done"
    ),
    "two legacy ids swapped": ("nodes/legacy_id", "<i8", swap, "legacy ids", "legacy id"),
    "an order that names no node": (
        "nodes/node_of_legacy", "<u4", lambda v: one(v, 3, 4000), "legacy ids", "names no node"
    ),
    "a node twice in the order": (
        "nodes/node_of_legacy", "<u4", lambda v: one(v, 3, v[2]), "legacy ids", "comes after"
    ),
    "a transition at another node": (
        "replay/node", "<i8", lambda v: one(v, 123, (v[123] + 1) % 40), "replay", "transition 123"
    ),
    "a transition that isn't off the graph": (
        "replay/next_node", "<i8", lambda v: one(v, np.flatnonzero(v < 0)[0], 3), "replay", "not 3"
    ),
    "a node out of range in the replay": (
        "replay/node", "<i8", lambda v: one(v, 5, 1 << 40), "replay", "transition 5"
    ),
    "a joint action that doesn't exist": (
        "replay/joint_action", "u1", lambda v: one(v, 9, 6), "replay", "no joint action 6"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_contents_that_make_no_sense_are_found_though_digests_agree(name, tamper):
    array, dtype, edit, check, words = DAMAGE[name]
    found = problems(verify(tamper(array, dtype, edit)))
    assert check in found
    assert words in " ".join(found[check])
    assert "files" not in found


def test_states_out_of_order_are_found(tamper):
    export = tamper("nodes/state", "u1", lambda v: one(v, slice(0, 4), np.roll(v[:4], 2)))
    found = problems(verify(export))
    assert "node 1" in found["states"][0]
    assert "rows and index" in found  # the index finds other nodes as well


def test_changed_bytes_are_found_by_their_digest(copy):
    file = copy / "store" / "v000001" / "replay" / "reward" / "c" / "0" / "0"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert "sha256" in problems(verify(copy))["files"][0]


def test_missing_truncated_and_foreign_files_are_found(copy):
    folder = copy / "store" / "v000001"
    (folder / "nodes/legacy_id/c/0").unlink()
    (folder / "notes.txt").write_text("mine")
    with (folder / "rows/next_node/c/0").open("r+b") as file:
        file.truncate(8)
    report = verify(copy)
    found = problems(report)
    assert sorted(line.split()[0] for line in found["files"]) == [
        "nodes/legacy_id/c/0",
        "notes.txt",
        "rows/next_node/c/0",
    ]
    assert "arrays" in found  # what can't be opened isn't read
    assert [check.name for check in report.checks] == ["files", "arrays"]


def test_a_broken_manifest_is_a_problem_too(copy):
    (copy / "store" / "v000001" / "manifest.json").write_text("{")
    assert not verify(copy).ok
