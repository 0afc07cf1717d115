"""Exports to train on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.made_exports import make_export
from tests.trainer.small_runs import run


@pytest.fixture(scope="session")
def quick_disk() -> Iterator[None]:
    """That files reach the disk is tested where they are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        patch.setattr("trainer.files._fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory, quick_disk: None) -> Path:
    """An export that nothing was trained on; not to be changed. Five of 500 states aren't in its graph."""
    export = tmp_path_factory.mktemp("stored") / "export"
    make_export(export, 500, strangers=(3, 100, 200, 300, 499))
    return export


@pytest.fixture
def export(stored: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(stored, tmp_path / "export")
    return tmp_path / "export"


@pytest.fixture(scope="session")
def trained(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that was trained without interruption; not to be changed."""
    export = tmp_path_factory.mktemp("trained") / "export"
    shutil.copytree(stored, export)
    run(export)
    return export
