"""Machine code on disk is used again, and isn't when a file that a kernel calls into, or a constant, has changed."""

import subprocess
import sys
import textwrap

import pytest
from numba.core.caching import NullCache

from omstore import compiled
from omstore.kernel_cache import stamp_cache, taken_from_elsewhere
from omstore.rows.kernels import sample_rows

FILES = {
    "constants.py": "STEP = 1\n",
    "codes.py": "CODE = 100\n",
    "pair.py": """
        from typing import Any, NamedTuple

        class Pair(NamedTuple):
            first: Any
            second: Any
    """,
    "deep.py": """
        from omstore.compiled import inner_kernel

        @inner_kernel
        def deep(x):
            return x + 1000
    """,
    "inner.py": """
        from omstore.compiled import inlined_kernel
        from made.constants import STEP
        from made.deep import deep

        @inlined_kernel
        def inner(x):
            return deep(x) + STEP
    """,
    "outer.py": """
        from omstore.compiled import kernel
        from made import codes
        from made.inner import inner
        from made.pair import Pair

        LAST = 10000

        @kernel
        def outer(x):
            return inner(x) + codes.CODE + LAST + Pair(100000, 0).first

        @kernel
        def alone(x):
            return x + 1
    """,
}
RUN = """
from made.outer import alone, outer
alone(1)
print(outer(0), sum(outer.stats.cache_hits.values()), sum(alone.stats.cache_hits.values()))
"""


@pytest.fixture
def made(tmp_path):
    """Give a package of kernels, and a function that runs it in a process of its own."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, text in FILES.items():
        (folder / name).write_text(textwrap.dedent(text))

    def run():
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{RUN}"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return [int(word) for word in done.stdout.split()]

    return folder, run


def test_changes_elsewhere_are_noticed(made):
    folder, run = made
    assert run() == [111101, 0, 0]
    assert run() == [111101, 1, 1]  # from the disk
    for name, before, after, result in (
        ("deep.py", "1000", "2000", 112101),
        ("inner.py", "+ STEP", "+ 5 * STEP", 112105),
        ("constants.py", "1", "3", 112115),
        ("codes.py", "100", "200", 112215),
        ("pair.py", "first: Any\n    second", "second: Any\n    first", 12215),
    ):
        (folder / name).write_text((folder / name).read_text().replace(before, after))
        assert run()[:2] == [result, 0], name
        assert run()[:2] == [result, 1], name


def test_processes_that_compile_at_once_dont_take_each_others_code(made):
    folder, run = made
    run()
    code = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(folder.parent)!r})
        from omstore.compiled import kernel
        from made.outer import outer
        one, two = (kernel(outer.py_func)._cache._cache_file for _ in range(2))
        first = dict(one._load_index())
        one._load_index = two._load_index = lambda: dict(first)  # both look before either has saved
        write = one._save_data

        def write_late(name, data):
            two.save("other types", "other code")
            write(name, data)

        one._save_data = write_late
        one.save("types", "code")
        del one._load_index, two._load_index, one._save_data
        print(one.load("types"), two.load("other types"))
        two.save("other types", "other code")
        print(one.load("types"), two.load("other types"))
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["code None", "code other code"]
    assert run() == [111101, 1, 1]


def test_code_of_earlier_stamps_is_deleted(made):
    folder, run = made
    run()
    cache = folder / "__pycache__"
    before = {path.name for path in cache.glob("outer.outer-*.nbc")}
    (folder / "deep.py").write_text((folder / "deep.py").read_text().replace("1000", "2000"))
    assert run() == [112101, 0, 0]
    after = {path.name for path in cache.glob("outer.outer-*.nbc")}
    assert len(before) == len(after) == 1
    assert not before & after


def test_without_a_stamp_only_what_calls_nothing_elsewhere_is_cached():
    """As with a numba that keeps its stamp somewhere else."""
    assert sample_rows.py_func.__module__ != compiled.__name__
    assert taken_from_elsewhere(sample_rows.py_func)[0]  # prefetch
    assert not stamp_cache(object(), sample_rows.py_func)
    assert taken_from_elsewhere(stamp_cache)[0] == ()
    assert stamp_cache(object(), stamp_cache)


def test_a_file_that_cannot_be_read_is_no_error(made):
    folder, _ = made
    code = (
        f"import sys, pathlib; sys.path.insert(0, {str(folder.parent)!r}); import made.inner; "
        f"pathlib.Path({str(folder / 'deep.py')!r}).unlink(); from made.outer import outer; "
        "print(outer(0), type(outer._cache).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "111101 NullCache\n"


def test_what_cannot_be_stamped_is_compiled_afresh(monkeypatch):
    def twice(x):
        return 2 * x

    assert not isinstance(compiled.kernel(twice)._cache, NullCache)
    monkeypatch.setattr(compiled, "stamp_cache", lambda kernel, function: False)
    made = compiled.kernel(twice)
    assert isinstance(made._cache, NullCache)
    assert made(21) == 42


def test_stamps_of_the_project_are_the_same_in_every_process():
    code = textwrap.dedent("""
        import importlib, pkgutil
        import omstore, trainer
        from omstore.kernel_cache import taken_from_elsewhere
        found = []
        for package in (omstore, trainer):
            for each in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
                if each.name.endswith("__main__"):
                    continue
                for name, value in vars(importlib.import_module(each.name)).items():
                    if hasattr(value, "py_func") and value.py_func.__module__ == each.name:
                        found.append((each.name, name, taken_from_elsewhere(value.py_func)))
        print(len(found) > 100, *found)
    """)
    first, second = (
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"},
        ).stdout
        for seed in ("1", "2")
    )  # fmt: skip
    assert first.startswith("True")
    assert first == second
