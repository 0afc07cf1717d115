"""One torch thread, where threads would change the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["one_torch_thread"]


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch use one thread in this block, whatever it is set to outside.

    A matrix product or a sum over a batch is split among torch's threads, and every split rounds in another
    way; with one thread there is one way. Other Python threads that start work of torch's meanwhile may be
    held to one thread too.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
