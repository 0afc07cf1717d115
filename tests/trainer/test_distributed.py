"""Ranks: the same numbers as one process; files by one of them; differences noticed."""

import os
import subprocess
import sys

import pytest
import torch

from omstore.errors import UsageError
from tests.trainer.small_runs import SETTINGS, UPDATES, results, run
from trainer.distributed import Processes, digest_tensors, joined, resolve_device

FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]

CHECKS = """
import sys
import torch
from trainer.distributed import DivergedRanksError, joined

with joined("cpu") as (processes, device):
    rank = processes.rank
    assert (processes.size, device.type) == (2, "cpu")
    rows = torch.arange(6, dtype=torch.float64).reshape(3, 2) + 10 * rank
    expected = torch.cat([torch.arange(6, dtype=torch.float64).reshape(3, 2) + 10 * r for r in range(2)])
    assert torch.equal(processes.gather_rows(rows.t().contiguous().t()), expected)
    assert processes.gather_rows(rows[:0]).shape == (0, 2)
    assert processes.anywhere(rank == 1) and not processes.anywhere(False)
    assert processes.from_first(b"abc" if rank == 0 else None) == b"abc"
    assert processes.from_first(b"" if rank == 0 else None) == b""
    processes.check_equal([torch.ones(3), torch.zeros(2, 2)], "same")
    different = torch.ones(3)
    different[1] += rank * 1.2e-7
    try:
        processes.check_equal([different], "after 5 updates")
    except DivergedRanksError as error:
        assert "after 5 updates: rank 1 of 2 holds other weights" in str(error), error
    else:
        raise AssertionError("not noticed")
"""


def torchrun(arguments, *, ranks=2):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *arguments,
    ]  # fmt: skip
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_collectives(tmp_path):
    (tmp_path / "checks.py").write_text(CHECKS)
    done = torchrun([str(tmp_path / "checks.py")])
    assert done.returncode == 0, done.stderr


def test_two_ranks_give_what_one_process_does(export, trained):
    done = torchrun(["-m", "trainer.cli", str(export), *FLAGS, "--no-strict"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained:") == 1
    assert "(cpu, 2 ranks)" in done.stdout
    assert done.stderr.count("soft-rollout-PI 4/4 | team level=L2: local=4/4") == 1
    assert results(export) == results(trained)
    # and one process goes on from what two left
    assert run(export).resumed_from == UPDATES


class TestOneProcess:
    def test_joined_alone(self):
        with joined("cpu") as (processes, device):
            assert (processes.rank, processes.size, device) == (0, 1, torch.device("cpu"))
            rows = torch.ones(3, 2)
            assert processes.gather_rows(rows) is rows
            assert processes.anywhere(True)
            assert processes.from_first(b"x") == b"x"
            processes.check_equal([rows], "nothing")
        assert type(processes) is Processes

    def test_digest_depends_on_every_bit(self):
        one = torch.ones(4)
        other = one.clone()
        other[3] += 1.2e-7
        assert digest_tensors([one]) == digest_tensors([torch.ones(4)])
        assert digest_tensors([one]) != digest_tensors([other])


class TestDevice:
    def test_cpu(self):
        assert resolve_device("cpu") == torch.device("cpu")

    def test_cuda_where_there_is_none(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert resolve_device("auto") == torch.device("cpu")
        with pytest.raises(UsageError, match="finds no cuda device") as error:
            resolve_device("cuda")
        assert "--device cpu" in error.value.hint

    def test_ranks_take_devices_in_turn(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        assert [resolve_device(name, rank).index for name, rank in (("auto", 0), ("cuda", 1), ("cuda", 2))] == [
            0, 1, 0,
        ]  # fmt: skip
