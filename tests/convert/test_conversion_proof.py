"""What conversion writes is compared with the sorted rows before it is published, whatever encoding was asked for."""

import numpy as np
import pytest

import omstore
from omstore.convert import ConvertOptions, convert
from omstore.encode import encode
from omstore.errors import ProofError
from tools.exports.spec import ExportSpec
from tools.make_export import write_export

WORLD = {"world": "random", "num_nodes": 60, "transitions": 40}


class Damaged:
    """A writer of rows that gives an edge of the longest row another next node, or another outcome."""

    def __init__(self, writer, what, num_nodes):
        self.writer, self.what, self.num_nodes = writer, what, num_nodes

    def append(self, outdegree, next_node, outcome):
        next_node = next_node.copy()
        outcome = None if outcome is None else outcome.copy()
        row = int(np.argmax(outdegree))
        begin, end = int(np.sum(outdegree[:row])), int(np.sum(outdegree[: row + 1]))
        if self.what == "next node":
            nodes = next_node[begin:end]
            other = min(set(range(self.num_nodes)) - set(nodes.tolist()))
            nodes[:] = np.sort(np.append(nodes[1:], other))
        else:
            outcome[begin] = 1 - min(1, outcome[begin])
        self.writer.append(outdegree, next_node, outcome)

    def finish(self):
        return self.writer.finish()


@pytest.fixture
def damage(monkeypatch):
    """Give a function after whose call rows are damaged while they are written."""
    make = encode.row_writer

    def damaging(what):
        monkeypatch.setattr(
            encode, "row_writer", lambda *about: Damaged(make(*about), what, num_nodes=about[2])
        )

    return damaging


@pytest.mark.parametrize("what", ["next node", "outcome"])
def test_damaged_rows_are_not_published(tmp_path, damage, what):
    write_export(tmp_path, ExportSpec(**WORLD))
    convert(tmp_path, ConvertOptions(rows="csr"))
    damage(what)
    with pytest.raises(ProofError, match=r"row \d+ \(node \d+, joint action \d+\) isn't what its source has"):
        convert(tmp_path, ConvertOptions(rows="csr-compressed"))
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["CURRENT", "LOCK", "v000001"]
    with omstore.open(tmp_path) as store:
        assert store.manifest.rows["encoding"] == "csr"


def test_the_manifest_says_what_was_compared(tmp_path):
    write_export(tmp_path, ExportSpec(**WORLD))
    report = convert(tmp_path, ConvertOptions(rows="csr-compressed"))
    with omstore.open(tmp_path) as store:
        counts = store.manifest.counts
        proof = {"rows": counts.num_rows, "edges": counts.num_edges, "largest_difference_ulp": 0}
        assert store.manifest.rows["proof"] == proof == report.proof
