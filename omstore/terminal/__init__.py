"""What a command line of this package is made of: commands, errors and signals as messages and exit codes, output.

Both `omstore` and `omtrain` are, so that they answer alike.
"""

from __future__ import annotations

from omstore.terminal.command import Session, command
from omstore.terminal.main import run_command_line, version_option
from omstore.terminal.output import (
    bar,
    can_encode,
    columns,
    percent,
    print_json,
    report_error,
    short_number,
    table,
)
from omstore.terminal.signals import Interrupted, signals, stop_once

__all__ = [
    "Interrupted",
    "Session",
    "bar",
    "can_encode",
    "columns",
    "command",
    "percent",
    "print_json",
    "report_error",
    "run_command_line",
    "short_number",
    "signals",
    "stop_once",
    "table",
    "version_option",
]
