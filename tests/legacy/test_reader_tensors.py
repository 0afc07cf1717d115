"""Torch tensors in plain pickles: read without torch, from the legacy storage format inside them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omstore.errors import UnsupportedPickleError
from omstore.legacy.reader import DiscardRows, read_pickle
from tests.legacy.walk import Collect, check_all

torch = pytest.importorskip("torch")

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"]


def check(path: Path, value: Any, protocol: int) -> tuple[Any, Collect]:
    path.write_bytes(pickle.dumps(value, protocol))
    sink = Collect()
    tree = read_pickle(path, sink)
    check_all(value, tree, sink)
    return tree, sink


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_observations_of_every_dtype(tmp_path: Path, dtype: str, protocol: int) -> None:
    kind = getattr(torch, dtype)
    values = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (40, 6)))
    records = [
        {
            "obs": values[i].to(kind).clone(),
            "reward": torch.tensor(i % 2).to(kind),
            "matrix": torch.ones(2, 3, dtype=kind),
        }
        for i in range(40)
    ]
    tree, _ = check(tmp_path / "D.pkl", records, protocol)
    (table,) = tree.tables
    assert [column.origin for column in table.columns] == ["tensor"] * 3
    assert [column.shape for column in table.columns] == [(6,), (), (2, 3)]


def test_views_into_one_storage(tmp_path: Path) -> None:
    """Rows of one matrix share its storage, each at an offset."""
    matrix = torch.arange(1200 * 5, dtype=torch.float32).reshape(1200, 5)
    check(tmp_path / "D.pkl", [{"obs": matrix[i][2:4], "done": bool(i % 2)} for i in range(1200)], 4)


def test_columns_parameters_and_gradients(tmp_path: Path) -> None:
    columns = {
        "obs": torch.rand(50, 3, dtype=torch.float64),
        "offset": torch.arange(30)[10:20],
        "parameter": torch.nn.Parameter(torch.ones(4)),
        "empty": torch.zeros(0, 3),
    }
    path = tmp_path / "D.pkl"
    path.write_bytes(pickle.dumps(columns, 4))
    tree = read_pickle(path, DiscardRows())
    data = path.read_bytes()
    for name, tensor in columns.items():
        reference = tree.root[name]
        found = np.frombuffer(data, reference.dtype, tensor.numel(), reference.offset).reshape(
            reference.shape
        )
        assert np.array_equal(found, tensor.detach().numpy())


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(lambda: torch.rand(3, 4).T, id="transposed"),
        pytest.param(lambda: torch.rand(8)[::2], id="strided"),
        pytest.param(lambda: torch.rand(4).to(torch.bfloat16), id="bfloat16"),
        pytest.param(lambda: torch.rand(4).to(torch.complex64), id="complex"),
    ],
)
def test_other_tensors_are_refused_with_advice(tmp_path: Path, tensor: Any) -> None:
    path = tmp_path / "D.pkl"
    path.write_bytes(pickle.dumps([{"obs": tensor()}], 4))
    with pytest.raises(UnsupportedPickleError, match=r"torch tensor.*\n.*contiguous"):
        read_pickle(path, DiscardRows())


def test_protocol_2_is_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "D.pkl"
    path.write_bytes(pickle.dumps([{"obs": torch.ones(3)}], 2))
    with pytest.raises(UnsupportedPickleError, match="torch tensor"):
        read_pickle(path, DiscardRows())
