"""Adam, against torch's own."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from omstore.errors import UsageError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from trainer.adam import Adam  # noqa: E402


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)).double()


def gradients_of(net: nn.Sequential, step: int) -> None:
    batch = torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    net(batch).pow(3).sum().backward()


def weights(net: nn.Sequential) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def test_the_same_updates_as_torch() -> None:
    ours, theirs = model(), model()
    mine = Adam(ours.parameters(), lr=0.01, betas=(0.8, 0.99), eps=1e-6)
    reference = torch.optim.Adam(theirs.parameters(), lr=0.01, betas=(0.8, 0.99), eps=1e-6, foreach=False)
    for step in range(30):
        if step == 20:
            mine.lr = reference.param_groups[0]["lr"] = 0.001
        for net, optimizer in ((ours, mine), (theirs, reference)):
            optimizer.zero_grad()
            gradients_of(net, step)
            optimizer.step()
        for a, b in zip(weights(ours), weights(theirs), strict=True):
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)
    assert mine.steps == 30


def test_going_on_gives_the_same_to_the_bit() -> None:
    whole = model()
    optimizer = Adam(whole.parameters(), lr=0.01)
    saved = io.BytesIO()
    for step in range(10):
        optimizer.zero_grad()
        gradients_of(whole, step)
        optimizer.step()
        if step == 3:
            torch.save({"model": whole.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    resumed = model()
    resumed.load_state_dict(state["model"])
    again = Adam(resumed.parameters(), lr=1.0)
    again.load_state_dict(state["optimizer"])
    assert (again.lr, again.steps) == (0.01, 4)
    for step in range(4, 10):
        again.zero_grad()
        gradients_of(resumed, step)
        again.step()
    assert all(torch.equal(a, b) for a, b in zip(weights(resumed), weights(whole), strict=True))


def test_a_parameter_without_a_gradient_stays() -> None:
    net = model()
    before = weights(net)
    optimizer = Adam(net.parameters(), lr=0.1)
    net[2].bias.grad = torch.ones(4, dtype=torch.float64)
    optimizer.step()
    after = weights(net)
    assert all(torch.equal(a, b) for a, b in zip(before[:3], after[:3], strict=True))
    assert torch.allclose(after[3], before[3] - 0.1), "the first step is lr in each direction"


def test_what_is_refused() -> None:
    with pytest.raises(UsageError):
        Adam([], lr=0.1)
    with pytest.raises(UsageError):
        Adam(model().parameters(), lr=-0.1)
    state = Adam([nn.Parameter(torch.zeros(3))], lr=0.1).state_dict()
    with pytest.raises(UsageError, match="other parameters"):
        Adam([nn.Parameter(torch.zeros(4))], lr=0.1).load_state_dict(state)


def test_training_does_not_import_the_compiler() -> None:
    program = (
        "import sys, torch, numpy as np\n"
        "from trainer.buffer import OMBuffer\n"
        "from trainer.models import ImaginedOpponent\n"
        "buffer = OMBuffer(9, 3, num_actions=2)\n"
        "buffer.add(np.eye(3), [0, 1, 0])\n"
        "ImaginedOpponent(3, 2, 4).fit_level0(buffer)\n"
        "sys.exit('torch._dynamo' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
