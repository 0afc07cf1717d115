"""The machine's one kernel is compiled of many files: its code on disk is stale when any of them changes."""

import hashlib
from importlib import import_module
from pathlib import Path

import pytest

from omstore.kernel_cache import taken_from_elsewhere
from omstore.legacy import opcodes
from omstore.legacy.machine import entry, plan, registers, tags

FOLDER = Path(entry.__file__).parent
NUMBERS = (plan, registers, tags)


def kernel_modules():
    """Give the modules whose functions are compiled, but for the entry: all that aren't lists of numbers."""
    names = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "entry"}
    names -= {module.__name__.rpartition(".")[2] for module in NUMBERS}
    return [import_module(f"omstore.legacy.machine.{name}") for name in sorted(names)]


def test_a_change_of_any_file_is_noticed():
    files, _ = taken_from_elsewhere(entry.run.py_func)
    assert len(kernel_modules()) > 10
    for module in (*kernel_modules(), opcodes):
        digest = hashlib.sha256(Path(module.__file__).read_bytes()).hexdigest()
        assert digest in files, module.__name__


@pytest.mark.parametrize("numbers", NUMBERS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_a_change_of_any_number_is_noticed(monkeypatch, numbers):
    """Wherever a kernel uses one: an import from the file that holds it makes another name for the same number."""
    before = taken_from_elsewhere(entry.run.py_func)[1]
    users = [(module, name) for module in kernel_modules() for name in vars(numbers) if name in vars(module)]
    users = [(module, name) for module, name in users if name.isupper()]
    assert len(users) > 20
    for module, name in users:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, getattr(numbers, name) + 1)
            assert taken_from_elsewhere(entry.run.py_func)[1] != before, (module.__name__, name)
