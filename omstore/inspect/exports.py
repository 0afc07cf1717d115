"""What a path given as an export is, and what its user probably meant."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from omstore.errors import ExportNotFoundError, OmstoreError, StoreNotFoundError, UsageError
from omstore.format.manifest import MANIFEST_NAME
from omstore.legacy.names import GRAPH_NAME, REPLAY_NAME
from omstore.publish.staging import STORE_NAME

__all__ = ["WM_NAME", "exports_below", "require_export"]

WM_NAME = "wm"
"""The folder of an export that holds the pickles."""

_DEPTH = 3
_LISTED = 5
_ENTRIES = 2_000


def require_export(path: Path, command: str, *, needs: str) -> Path:
    """Check that a path is an export's folder before work begins on it.

    Parameters
    ----------
    path : Path
        As the user gave it.
    command : str
        Such as ``convert``, for the command line in the hint.
    needs : str
        ``"pickles"``, or ``"store"``: then a store's folder and a version's will do as well.

    Returns
    -------
    Path
        The path.

    Raises
    ------
    ExportNotFoundError, StoreNotFoundError
        Saying what the path is instead, with what was probably meant: the folder above ``wm/``, a name
        spelled nearly so, exports further below.
    UsageError
        If `needs` is neither.
    """
    if needs not in ("pickles", "store"):
        raise UsageError(f"an export is needed for its pickles or its store, not {needs!r}")
    path = Path(path)
    kind: type[OmstoreError] = StoreNotFoundError if needs == "store" else ExportNotFoundError
    if not path.exists():
        raise kind(f"there is no folder {path}", _near(path, command))
    if needs == "store" and _is_store(path):
        return path
    if path.is_file():
        raise kind(f"{path} is a file, and `omstore {command}` takes a folder", _of_file(path, command))
    if (path / WM_NAME).is_dir() and needs == "pickles":
        if _pickles(path / WM_NAME):
            return path
        raise kind(f"{path / WM_NAME} holds neither {GRAPH_NAME} nor {REPLAY_NAME}", _other_names(path))
    if (path / STORE_NAME).is_dir() and needs == "store":
        return path
    if _pickles(path):
        raise kind(*_inside(path, command))
    if needs == "pickles" and _is_store(path):
        export = path.parent if path.name == STORE_NAME else path.parent.parent
        raise kind(
            f"{path} is a store, and `omstore {command}` reads the pickles beside it",
            f"Give the export: omstore {command} {export}",
        )
    if needs == "store" and (path / WM_NAME).is_dir():
        raise kind(f"there is no store in {path} yet", f"Make one: omstore convert {path}")
    wanted = f"{WM_NAME}/ with the pickles" if needs == "pickles" else f"{STORE_NAME}/"
    raise kind(f"{path} is no export: it has no folder {wanted}", _below(path, command))


def exports_below(folder: Path) -> Iterator[Path]:
    """Find the exports below a folder: folders with ``wm/`` or ``store/`` in them, three levels deep."""
    pending = [(folder, 0)]
    looked = 0
    while pending and looked < _ENTRIES:
        here, depth = pending.pop(0)
        try:
            with os.scandir(here) as entries:
                names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
        except OSError:
            continue
        looked += 1 + len(names)
        if depth and ((here / WM_NAME).is_dir() or _is_store(here / STORE_NAME)):
            yield here
        elif depth < _DEPTH:
            pending += [(here / name, depth + 1) for name in names]


def _pickles(folder: Path) -> list[str]:
    """Names of an export's pickles in a folder, plain or compressed."""
    if not folder.is_dir():
        return []
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    return [name for name in names if name.startswith((f"{GRAPH_NAME}", f"{REPLAY_NAME}"))]


def _is_store(path: Path) -> bool:
    if (path / MANIFEST_NAME).is_file() or (path / "CURRENT").is_file():
        return True
    return path.name == STORE_NAME and path.is_dir() and any(path.glob("v[0-9]*"))


def _of_file(path: Path, command: str) -> str:
    if path.absolute().parent.name == WM_NAME:
        return f"Give the export: omstore {command} {_above(path.parent)}"
    if path.suffix in (".pkl", ".pickle", ".gz", ".zst", ".xz"):
        return (
            f"See what is in it with `omstore peek {path}`; to convert it, put it at "
            f"EXPORT/{WM_NAME}/{GRAPH_NAME} or EXPORT/{WM_NAME}/{REPLAY_NAME}."
        )
    return "Give the folder that holds wm/, such as exports/pursuit/3."


def _inside(path: Path, command: str) -> tuple[str, str]:
    """What to say of a folder that holds the pickles itself."""
    if path.absolute().name == WM_NAME:
        return (
            f"{path} is the folder of the pickles, not the export",
            f"Give the folder above: omstore {command} {_above(path)}",
        )
    listed = ", ".join(_pickles(path))
    return (
        f"{path} holds {listed} itself; in an export they are in {WM_NAME}/",
        f"Move them: mkdir {path / WM_NAME} && mv {path}/*.pkl* {path / WM_NAME}/",
    )


def _other_names(path: Path) -> str:
    found = sorted(entry.name for entry in (path / WM_NAME).iterdir() if entry.is_file())[:_LISTED]
    if not found:
        return "The folder is empty: was the export stopped before it wrote them?"
    return (
        f"It holds {', '.join(found)}. If these are the transition graph and the replay, rename or link "
        f"them to {GRAPH_NAME} and {REPLAY_NAME}; `omstore peek FILE` shows which is which."
    )


def _near(path: Path, command: str) -> str:
    """Suggest what exists instead of a path that doesn't: a near spelling, or exports where it stops."""
    parent = path
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    if parent.is_dir():
        missing = path.relative_to(parent).parts[0]
        names = sorted(entry.name for entry in parent.iterdir() if entry.is_dir())
        close = difflib.get_close_matches(missing, names, n=1, cutoff=0.6)
        if close:
            rest = path.relative_to(parent).parts[1:]
            meant = parent.joinpath(close[0], *rest)
            return f"Did you mean: omstore {command} {meant if meant.exists() else parent / close[0]}"
    return _below(parent, command)


def _below(path: Path, command: str) -> str:
    found: list[Path] = []
    for export in exports_below(path):
        found.append(export)
        if len(found) > _LISTED:
            break
    if len(found) == 1:
        return f"Did you mean: omstore {command} {found[0]}"
    if found:
        listed = ", ".join(str(export) for export in found[:_LISTED])
        more = ", ..." if len(found) > _LISTED else ""
        return f"There are exports below it: {listed}{more}"
    return "Give the folder that holds wm/, such as exports/pursuit/3."


def _above(path: Path) -> Path:
    """Write the folder above without resolving links; of a bare name, the absolute one."""
    return path.parent if path.parent != Path() and path.name not in ("", "..") else path.absolute().parent
