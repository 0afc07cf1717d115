"""What the commands of `omtrain` share: the decorator, and a session that training asks whether to stop."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field

from omstore import terminal
from trainer.stopping import Stop

__all__ = ["Session", "command"]


@dataclass
class Session(terminal.Session):
    """How a command was asked to talk, and whether it was asked to stop.

    Attributes
    ----------
    stop : Stop
        Told of signals.
    """

    stop: Stop = field(default_factory=Stop)

    @property
    def speaks(self) -> bool:
        """Whether this is the process that speaks, of those that ``torchrun`` started."""
        return os.environ.get("RANK", "0") == "0"

    def on_signal(self, number: int) -> None:
        """Ask to stop."""
        self.stop.request(number)


command = functools.partial(terminal.command, session=Session, context={"max_content_width": 110})
"""Makes a command of a function; see `omstore.terminal.command`."""
