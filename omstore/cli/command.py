"""What the commands of `omstore` share: the decorator, and options that several have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from omstore import terminal
from omstore.errors import OmstoreError

__all__ = ["allow_model_import_option", "command", "max_ram_option"]

command = functools.partial(terminal.command, context={"show_default": True})
"""Makes a command of a function; see `omstore.terminal.command`."""


def allow_model_import_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--allow-model-import``: for stores whose rows a model answers."""
    return click.option(
        "--allow-model-import",
        is_flag=True,
        show_default=False,
        help="Import, and so execute, the model that a store with procedural rows names. Other stores execute "
        "nothing.",
    )(function)


def max_ram_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--max-ram``: bytes of anonymous memory."""

    def parse(context: click.Context, option: click.Parameter, text: str) -> int:
        from omstore.memory import parse_bytes

        try:
            return parse_bytes(text)
        except OmstoreError as error:
            raise click.BadParameter(f"{error.message}. {error.hint}") from error

    return click.option(
        "--max-ram",
        default="512M",
        metavar="SIZE",
        callback=parse,
        help="Anonymous memory to use, such as 512M or 2G (units of 1024). Pages of mapped files come on "
        "top, and are the kernel's to drop.",
    )(function)
