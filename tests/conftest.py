"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell starts what it puts in the background with SIGINT ignored, and the commands that tests start would inherit that:
# Ctrl-C, which they are sent, would do nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
