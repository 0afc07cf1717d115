"""`omstore export` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from omstore.cli import main
from omstore.cli.export import _FORMATS
from omstore.exporting import FORMATS
from tests.read.made_stores import Made


def test_the_command_offers_what_there_is() -> None:
    assert _FORMATS == FORMATS


@pytest.mark.parametrize("to", FORMATS)
def test_results_as_text_and_as_json(
    made: Made, tmp_path: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "graph"
    assert main(["export", str(made.export), "--to", to, str(out)]) == 0
    text = capsys.readouterr().out
    assert f"{out}: {to} of v000001" in text
    assert main(["export", str(made.export), str(out), "--to", to, "--force", "--json", "-q"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    files = list(out.iterdir()) if to == "parquet" else [out]
    assert document["size"] == sum(file.stat().st_size for file in files)
    assert document["num_nodes"] == made.world.num_nodes
    assert (document["format"], document["path"], captured.err) == (to, str(out), "")
    assert bool(document["notes"]) == (to == "umb")
    arguments = ["export", str(made.export), str(tmp_path / "less"), "--to", to, "--no-rewards", "--json"]
    assert main(arguments) == 0
    less = json.loads(capsys.readouterr().out)
    assert less["size"] < document["size"]
    assert less["notes"] == [*document["notes"], "rewards were left out"]


def test_usage_errors_name_the_way_out(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "graph.npz"
    np.savez(out, a=1)
    assert main(["export", str(made.export), "--to", "npz", str(out)]) == 2
    error = capsys.readouterr().err
    assert "exists already" in error
    assert "hint: Name another one, or replace it with --force." in error
    assert main(["export", str(made.export), str(out), "--to", "hdf5"]) == 2
    assert "'npz', 'scipy', 'parquet', 'umb'" in capsys.readouterr().err
    assert main(["export", str(tmp_path), str(tmp_path / "x"), "--to", "npz"]) == 1
    assert main(["export", str(made.export), "--to", "npz", str(tmp_path / "no" / "x")]) == 2
    assert f"mkdir -p {tmp_path / 'no'}" in capsys.readouterr().err
