"""Rollouts over damaged files: an error that says where, never a read outside an array."""

import shutil

import numpy as np
import pytest

import omstore
from omstore.errors import CorruptStoreError
from omstore.rollout import RolloutTables, rollout
from omstore.rollout.successors import DictionarySource, FactoredSource
from tests.rollout.test_rollouts import case


@pytest.fixture
def damaged(pursuit, partly_legal, tmp_path):
    """Fills a file of a copy of a store with a number, and rolls out there."""

    def run(world, encoding, array, dtype, value, source=None, **changes):
        graph = (pursuit if world == "pursuit" else partly_legal)(encoding)
        export = tmp_path / "export"
        shutil.copytree(graph.__reduce__()[1][0], export / "store")
        (path,) = (export / "store").glob(f"v*/{array}/c/0")
        mapped = np.memmap(path, dtype, "r+")
        mapped[:] = value
        mapped.flush()
        tables = RolloutTables(omstore.open(export).graph)
        if source:
            assert isinstance(tables.source, source)
        arguments, *_ = case(graph, (0,), roots=30, n_rollouts=4, **changes)
        return rollout(tables, **arguments)

    return run


@pytest.mark.parametrize(
    ("encoding", "array", "dtype", "value", "message", "source"),
    [
        ("dictionary", "rows/block", "u4", 1 << 31, "its block, pattern or list", DictionarySource),
        ("dictionary", "rows/delta", "i4", 1 << 30, "a next node isn't within", DictionarySource),
        ("dictionary", "rows/delta", "i4", -(1 << 30), "a next node isn't within", DictionarySource),
        ("dictionary", "rows/pattern_list", "u4", 1 << 31, "its block, pattern or list", DictionarySource),
        ("factored", "rows/exceptions/block", "u1", 255, "its block, pattern or list", FactoredSource),
        ("csr", "rows/next_node", "u4", 1 << 31, "a next node isn't within", None),
    ],
)
def test_damaged_rows(damaged, encoding, array, dtype, value, message, source):
    with pytest.raises(CorruptStoreError, match=message):
        damaged("pursuit", encoding, array, dtype, value, source)


@pytest.mark.parametrize("encoding", ["factored", "dictionary"])
def test_damaged_codes_of_rewards(damaged, encoding):
    with pytest.raises(CorruptStoreError, match="has a code that isn't in the table"):
        damaged("pursuit", encoding, "nodes/attributes/reward", "u1", 255)


def test_an_undamaged_copy_rolls_out(damaged):
    means, _ = damaged("pursuit", "factored", "nodes/attributes/done", "u1", 1)
    assert np.isfinite(means).all()
