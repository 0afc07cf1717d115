"""Whatever is given instead of an export, the message says what it is and what was probably meant."""

import pytest

from omstore.errors import ExportNotFoundError, StoreNotFoundError
from omstore.inspect import require_export
from omstore.inspect.exports import exports_below


@pytest.fixture
def tree(tmp_path, monkeypatch):
    for name in ("exports/pursuit/2", "exports/pursuit/3", "exports/chase/1"):
        (tmp_path / name / "wm").mkdir(parents=True)
        (tmp_path / name / "wm" / "D.pkl").write_bytes(b"")
    store = tmp_path / "exports/chase/1/store"
    (store / "v000001").mkdir(parents=True)
    (store / "CURRENT").write_text("v000001\n")
    (store / "v000001" / "manifest.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "env_transition_graph.pkl.gz").write_bytes(b"")
    (tmp_path / "odd" / "wm").mkdir(parents=True)
    (tmp_path / "odd" / "wm" / "graph.pkl").write_bytes(b"")
    (tmp_path / "hollow" / "wm").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES = {
    "nowhere": ("no folder nowhere", ""),
    "exports/pursuit/4": ("no folder", "exports/pursuit"),
    "exports/pursuti/3": ("no folder", "Did you mean: omstore convert exports/pursuit/3"),
    "exports/pursuit": ("has no folder wm/", "exports/pursuit/2, exports/pursuit/3"),
    "exports/chase": ("has no folder wm/", "Did you mean: omstore convert exports/chase/1"),
    "exports/pursuit/3/wm": ("folder of the pickles", "omstore convert exports/pursuit/3"),
    "exports/pursuit/3/wm/D.pkl": ("is a file", "omstore convert exports/pursuit/3"),
    "exports/chase/1/store": ("is a store", "omstore convert exports/chase/1"),
    "exports/chase/1/store/v000001": ("is a store", "omstore convert exports/chase/1"),
    "empty": ("has no folder wm/", "wm/"),
    "bare": ("env_transition_graph.pkl.gz itself", "mkdir bare/wm"),
    "bare/env_transition_graph.pkl.gz": ("is a file", "omstore peek bare"),
    "odd": ("holds neither", "graph.pkl"),
    "hollow": ("holds neither", "empty"),
}


@pytest.mark.parametrize("path", CASES)
def test_what_is_no_export_to_convert(path, tree):
    message, hint = CASES[path]
    with pytest.raises(ExportNotFoundError) as caught:
        require_export(path, "convert", needs="pickles")
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_exports_are_let_through(tree):
    for path in ("exports/pursuit/3", "exports/chase/1", "exports/pursuit/3/"):
        assert require_export(path, "convert", needs="pickles").name in ("3", "1")
    for path in ("exports/chase/1", "exports/chase/1/store", "exports/chase/1/store/v000001"):
        require_export(path, "stats", needs="store")


def test_the_folder_above_wm_when_one_stands_in_it(tree, monkeypatch):
    monkeypatch.chdir(tree / "exports/pursuit/3/wm")
    with pytest.raises(ExportNotFoundError) as caught:
        require_export(".", "convert", needs="pickles")
    assert str(tree / "exports/pursuit/3") in caught.value.hint


def test_where_there_is_no_store_yet(tree):
    with pytest.raises(StoreNotFoundError) as caught:
        require_export("exports/pursuit/3", "stats", needs="store")
    assert caught.value.hint == "Make one: omstore convert exports/pursuit/3"


def test_exports_further_below_are_found_and_no_deeper_than_three_levels(tree):
    (tree / "a/b/c/d/wm").mkdir(parents=True)
    found = sorted(str(path.relative_to(tree)) for path in exports_below(tree))
    assert found == ["exports/chase/1", "exports/pursuit/2", "exports/pursuit/3", "hollow", "odd"]
