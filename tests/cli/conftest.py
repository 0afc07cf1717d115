"""Small exports to run commands on, and a way to run them in this process."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator

import pytest

from omstore.cli import main
from omstore.convert import convert
from tools.exports.spec import ExportSpec
from tools.make_export import write_export


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """That what is published is durable is tested where publishing is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("omstore.format.durable._fsync", lambda descriptor: None)
        yield


@dataclasses.dataclass
class Ran:
    """What a command gave."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys) -> Callable[..., Ran]:
    """Give a function that runs a command line."""

    def run_command(*arguments: object) -> Ran:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_command


@pytest.fixture(scope="session")
def pickles(tmp_path_factory):
    """An export that wasn't converted yet."""
    export = tmp_path_factory.mktemp("cli") / "exports" / "random" / "2"
    write_export(export, ExportSpec(world="random", num_nodes=40, transitions=80, kept=True, extra=True))
    return export


@pytest.fixture(scope="session")
def converted(pickles, tmp_path_factory):
    """The same, converted; not to be changed."""
    export = tmp_path_factory.mktemp("cli") / "exports" / "random" / "2"
    shutil.copytree(pickles, export)
    convert(export)
    return export


@pytest.fixture
def fresh(pickles, tmp_path):
    """A copy of the export to convert."""
    export = tmp_path / "exports" / "random" / "2"
    shutil.copytree(pickles, export)
    return export


@pytest.fixture
def store(converted, tmp_path):
    """A copy of the converted export."""
    export = tmp_path / "exports" / "random" / "2"
    shutil.copytree(converted, export)
    return export
