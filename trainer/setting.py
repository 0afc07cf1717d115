"""One setting of a dataclass of settings: its default, unit and sentence, and the values it takes from files and flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omstore.errors import UsageError
from omstore.memory import parse_bytes

__all__ = ["Setting", "setting", "shown"]


def setting(default: Any, unit: str, sentence: str, *, decides: bool = True) -> Any:
    """Make a field of a dataclass of settings.

    Parameters
    ----------
    default : object
    unit : str
        What its value counts, or how it is written.
    sentence : str
        What it is, for people.
    decides : bool
        Whether results depend on it.

    Returns
    -------
    dataclasses.Field
        With metadata ``"unit"``, ``"help"`` and ``"decides"``.
    """
    return field(default=default, metadata={"unit": unit, "help": sentence, "decides": decides})


@dataclass(frozen=True)
class Setting:
    """A field of a dataclass of settings, made by `setting`.

    Attributes
    ----------
    name : str
    kind : type
        int, float, bool or str.
    choices : tuple of str
        Where only some words are allowed; else empty.
    optional : bool
        Whether it may be None, written ``none`` in files and flags.
    default : object
    unit, help : str
    decides : bool
        Whether results depend on it.
    """

    name: str
    kind: type
    choices: tuple[str, ...]
    optional: bool
    default: Any
    unit: str
    help: str
    decides: bool

    @property
    def flag(self) -> str:
        """Such as ``--agent-root-state-samples``."""
        return "--" + self.name.replace("_", "-")

    def coerce(self, value: Any) -> Any:
        """Return a value as this setting keeps it, from one given in Python, a file or a flag.

        Raises
        ------
        UsageError
            If it isn't of the setting's kind.
        """
        if self.optional and (value is None or value == "none"):
            return None
        good = self._coerced(value)
        if good is None or (self.choices and good not in self.choices):
            raise UsageError(f"{self.name} is {self._wanted()}, not {value!r}")
        return good

    def _coerced(self, value: Any) -> Any:
        if self.name == "max_ram":
            return (
                parse_bytes(value) if isinstance(value, int | str) and not isinstance(value, bool) else None
            )
        if self.name == "focal_agent" and isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool)):
            return value
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if self.kind in (int, float) and isinstance(value, str):
            try:
                return self.kind(value.replace("_", ""))
            except ValueError:
                return None
        return None

    def _wanted(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        kinds = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        return kinds[self.kind] + (", or none" if self.optional else "")


def shown(value: Any) -> str:
    """Write a setting's value for people."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
