"""Several processes that do one training together, as `torchrun` starts them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from omstore.errors import OmstoreError, UsageError

__all__ = ["DivergedRanksError", "ProcessGroup", "Processes", "digest_tensors", "joined", "resolve_device"]


class DivergedRanksError(OmstoreError, ArithmeticError):
    """Processes that should hold the same weights don't: their machines round in other ways."""


class Processes:
    """The processes of a training; this class is a single one, whose methods do nothing.

    Every rank makes the same updates with the same numbers; only rollouts are shared out. So there are no gradients to
    average (an average of n equal gradients isn't always the gradient, to the bit), and weights equal one process's.

    Attributes
    ----------
    rank, size : int
        Which this process is, 0 to size - 1; how many there are. Rank 0 writes files and shows progress.
    """

    rank: int = 0
    size: int = 1

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, rank 0's first; (r, ...) -> (size * r, ...). All give as many."""
        return rows

    def anywhere(self, flag: bool) -> bool:
        """Whether a flag is set on any rank; the same answer on all."""
        return flag

    def from_first(self, data: bytes | None) -> bytes:
        """Return the bytes that rank 0 gives; the other ranks give None."""
        if data is None:
            raise UsageError("rank 0 has nothing to send")
        return data

    def check_equal(self, tensors: Iterable[Tensor], what: str) -> None:
        """Check that tensors are the same on all ranks, to the bit.

        Raises
        ------
        DivergedRanksError
            On every rank.
        """


class ProcessGroup(Processes):
    """The processes that `torchrun` started; made by `joined`.

    Parameters
    ----------
    rank, size : int
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, on the device where they are."""
        own = rows.contiguous()
        parts = [torch.empty_like(own) for _ in range(self.size)]
        torch.distributed.all_gather(parts, own)
        return torch.cat(parts)

    def anywhere(self, flag: bool) -> bool:
        """Whether a flag is set on any rank; waits for all."""
        found = torch.tensor([int(flag)], dtype=torch.int64)
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX)
        return bool(found.item())

    def from_first(self, data: bytes | None) -> bytes:
        """Return the bytes that rank 0 gives; waits for all."""
        size = torch.tensor([len(data) if data is not None else 0], dtype=torch.int64)
        torch.distributed.broadcast(size, 0)
        sent = torch.empty(int(size.item()), dtype=torch.uint8)
        if self.rank == 0 and data:
            sent.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        if len(sent):
            torch.distributed.broadcast(sent, 0)
        return sent.numpy().tobytes()

    def check_equal(self, tensors: Iterable[Tensor], what: str) -> None:
        """Check that tensors are the same on all ranks, by their digests."""
        own = torch.frombuffer(bytearray(digest_tensors(tensors)), dtype=torch.uint8)
        digests = self.gather_rows(own[None])
        differing = [rank for rank in range(self.size) if not torch.equal(digests[rank], digests[0])]
        if differing:
            raise DivergedRanksError(
                f"{what}: rank{'s' if len(differing) > 1 else ''} {', '.join(map(str, differing))} of {self.size} "
                f"hold{'' if len(differing) > 1 else 's'} other weights than rank 0",
                "Run all ranks on one type of machine, with the same torch, and on one kind of --device.",
            )


def digest_tensors(tensors: Iterable[Tensor]) -> bytes:
    """Return the sha256 of tensors' bytes, in their order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device of a name: auto, cpu or cuda. Ranks of a machine take its cuda devices in turn.

    Raises
    ------
    UsageError
        If it is cuda and there is none.
    """
    available = name != "cpu" and torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError(
            f"--device cuda: torch {torch.__version__} finds no cuda device on this machine",
            "Use --device cpu, or install a torch with cuda on a machine that has a device.",
        )
    if not available:
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


@contextlib.contextmanager
def joined(device: str) -> Iterator[tuple[Processes, torch.device]]:
    """Join the processes that `torchrun` started; without it, be the only one.

    What is shared is small and on the CPU (action values, checkpoints), and goes through gloo; tensors on cuda
    devices go through nccl.

    Parameters
    ----------
    device : {"auto", "cpu", "cuda"}

    Yields
    ------
    (Processes, torch.device)
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    chosen = resolve_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield Processes(), chosen
        return
    if not torch.distributed.is_available():
        raise UsageError("this torch was built without torch.distributed", "Run it without torchrun.")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    backend = "cpu:gloo,cuda:nccl" if chosen.type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend)
    try:
        yield ProcessGroup(torch.distributed.get_rank(), size), chosen
    finally:
        torch.distributed.destroy_process_group()
