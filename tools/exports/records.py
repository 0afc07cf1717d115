"""The classes of a legacy export, made for the moment of pickling and never importable afterwards."""

from __future__ import annotations

import collections
import dataclasses
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tools.exports.spec import ExportSpec

__all__ = ["MODULE", "LegacyClasses", "edge_roles", "legacy_classes", "transition_roles"]

MODULE = "pursuit_legacy.graph"
"""Where the classes claim to live."""


@dataclasses.dataclass(frozen=True)
class LegacyClasses:
    """Makers of the objects in an export: each takes a record's values in the order of its fields."""

    edge: Callable[..., Any]
    transition: Callable[..., Any]
    graph: Callable[..., Any]
    replay: Callable[..., Any]


def edge_roles(spec: ExportSpec) -> list[str]:
    """Roles of an edge's fields in their order, less those that aren't there."""
    roles = ["src", "action", "dst", "prob", "reward", "done", "info", "kind", "visits"]
    absent = set()
    if not spec.prob:
        absent.add("prob")
    if spec.reward == "none":
        absent.add("reward")
    if not spec.done:
        absent.add("done")
    if not spec.extra:
        absent |= {"info", "kind"}
    if not spec.kept:
        absent.add("visits")
    if not spec.redundant_keys:
        absent |= {"adjacency": {"src"}, "adjacency2": {"src", "action"}}.get(spec.graph, set())
    return [role for role in roles if role not in absent]


def transition_roles(spec: ExportSpec) -> list[str]:
    """Roles of a transition's fields in their order."""
    roles = ["obs", "replay_action", "replay_reward", "next_obs", "done", "info", "kind"]
    absent = {"replay_reward"} if spec.in_replay("reward") == "none" else set()
    if not spec.extra:
        absent |= {"info", "kind"}
    return [role for role in roles if role not in absent]


@contextmanager
def legacy_classes(spec: ExportSpec) -> Iterator[LegacyClasses]:
    """Make the classes importable as `MODULE` inside the ``with``, as pickling (and unpickling) needs."""
    package, module = types.ModuleType(MODULE.partition(".")[0]), types.ModuleType(MODULE)
    package.__path__ = []
    names = spec.field_names
    edge_names = [names.get(role, role) for role in edge_roles(spec)]
    transition_names = [names.get(role, role) for role in transition_roles(spec)]
    classes = LegacyClasses(
        _maker(module, "Edge", spec.record, edge_names),
        _maker(module, "Transition", spec.in_replay("record"), transition_names),
        _class(module, "TransitionGraph"),
        _class(module, "ReplayBuffer"),
    )
    before = {name: sys.modules.get(name) for name in (package.__name__, module.__name__)}
    sys.modules.update({package.__name__: package, module.__name__: module})
    try:
        yield classes
    finally:
        for name, old in before.items():
            if old is None:
                del sys.modules[name]
            else:
                sys.modules[name] = old


def _class(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """Make a plain class whose instances have the attributes they are made with."""

    def __init__(self: Any, **fields: Any) -> None:
        self.__dict__.update(fields)

    cls = type(name, (), {"__init__": __init__, "__module__": module.__name__})
    setattr(module, name, cls)
    return cls


def _maker(module: types.ModuleType, name: str, record: str, fields: Sequence[str]) -> Callable[..., Any]:
    """Make the class (or function) that turns a record's values into an object of the kind `record`."""
    if record == "tuple":
        return lambda *values: values
    if record == "dict":
        return lambda *values: dict(zip(fields, values, strict=True))
    cls: Any
    if record == "namedtuple":
        cls = _named_tuple(name, fields, module.__name__)
    elif record == "plain":
        cls = type(name, (), {"__init__": _plain_init(fields)})
    elif record == "inherited":
        base = dataclasses.make_dataclass("Base" + name, list(fields[:2]))
        base.__module__ = module.__name__
        setattr(module, base.__name__, base)
        cls = dataclasses.make_dataclass(name, list(fields[2:]), bases=(base,))
    else:
        cls = dataclasses.make_dataclass(
            name, list(fields), frozen="frozen" in record, slots="slots" in record
        )
    cls.__module__ = module.__name__
    setattr(module, name, cls)
    made: Callable[..., Any] = cls
    return made


def _named_tuple(name: str, fields: Sequence[str], module: str) -> Any:
    return collections.namedtuple(name, fields, module=module)


def _plain_init(fields: Sequence[str]) -> Callable[..., None]:
    def __init__(self: Any, *values: Any) -> None:
        for name, value in zip(fields, values, strict=True):
            setattr(self, name, value)

    return __init__
