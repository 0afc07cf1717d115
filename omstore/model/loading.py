"""Finding a model by name: built in, in a module, or in a file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omstore.errors import ModelError, ModelNotFoundError, OmstoreError
from omstore.model.checks import checked_model
from omstore.model.protocol import ModelOrigin, TransitionModel
from omstore.model.pursuit import Pursuit

__all__ = ["BUILT_IN", "is_built_in", "load_model"]

BUILT_IN: dict[str, Callable[..., TransitionModel]] = {"pursuit": Pursuit}
"""Models that ship with omstore, by name; loading one imports nothing."""

_WAYS = "Give a built-in model (pursuit), module:factory, or path/to/file.py:factory."


def is_built_in(name: str) -> bool:
    """Whether a model ships with omstore, so that loading it imports nothing of anybody else's."""
    return name in BUILT_IN


def load_model(name: str, parameters: Mapping[str, Any] | None = None) -> TransitionModel:
    """Make a model.

    Anything but a built-in model imports, and so executes, the module or file it names.

    Parameters
    ----------
    name : str
        ``pursuit``, ``module:factory`` or ``path/to/file.py:factory``; the factory may be a class.
    parameters : mapping, optional
        Keyword arguments of the factory.

    Raises
    ------
    ModelNotFoundError
        If there is no such model, or it doesn't take the parameters.
    ModelError
        If it can't be imported or made, or what it gives is no transition model.
    """
    parameters = dict(parameters or {})
    factory = BUILT_IN.get(name) or _imported(name)
    try:
        inspect.signature(factory).bind(**parameters)
    except TypeError as error:
        raise ModelNotFoundError(
            f"the model {name} doesn't take these parameters: {error}",
            f"It takes: {_takes(factory)}.",
        ) from error
    except ValueError:  # no signature to be had; the call will tell
        pass
    try:
        model = factory(**parameters)
    except OmstoreError:
        raise
    except Exception as error:
        raise ModelError(f"the model {name} can't be made: {type(error).__name__}: {error}") from error
    if not isinstance(model, TransitionModel):
        raise ModelError(
            f"{name} gives {type(model).__name__}, not a TransitionModel",
            "Subclass omstore.TransitionModel or omstore.IndependentModel (docs/models.md).",
        )
    if model.origin is None:
        model.origin = ModelOrigin(_absolute(name), parameters)
    return checked_model(model)


def _takes(factory: Callable[..., Any]) -> str:
    return ", ".join(inspect.signature(factory).parameters) or "none"


def _absolute(name: str) -> str:
    """Write a file's path in full, so that the model is found from another working folder too."""
    module, _, factory = name.rpartition(":")
    return f"{Path(module).absolute()}:{factory}" if module.endswith(".py") else name


def _imported(name: str) -> Callable[..., Any]:
    module_name, colon, attribute = name.rpartition(":")
    if not colon or not module_name or not attribute:
        raise ModelNotFoundError(f"there is no model {name!r}", _WAYS)
    module = _file_module(Path(module_name)) if module_name.endswith(".py") else _module(module_name)
    value: Any = module
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if not callable(value):
        there = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, TransitionModel)]
        own = ", ".join(n for n in there if n not in ("TransitionModel", "IndependentModel"))
        raise ModelNotFoundError(
            f"{module_name} has no {attribute} that could be called", f"It has: {own}." if own else _WAYS
        )
    found: Callable[..., Any] = value
    return found


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ModelNotFoundError(
                f"there is no module {name}",
                f"Run from the folder it is in, set PYTHONPATH, or give the file: path/to/{name}.py:factory.",
            ) from error
        raise ModelError(f"{name} can't be imported: {error}") from error
    except Exception as error:
        raise ModelError(f"{name} can't be imported: {type(error).__name__}: {error}") from error


def _file_module(path: Path) -> Any:
    path = path.absolute()
    if not path.is_file():
        raise ModelNotFoundError(f"there is no file {path}", _WAYS)
    name = f"omstore_model_{path.stem}"
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None  # the name ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(f"{path} can't be imported: {type(error).__name__}: {error}") from error
    return module
