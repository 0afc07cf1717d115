"""Adam, written out: the optimizer of all training here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from omstore.errors import UsageError

__all__ = ["Adam"]


class Adam:
    """Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1).

    The first optimizer of torch's own that is made imports its compiler: 68 MiB of anonymous memory and
    seconds, for the same update. Every element is updated by itself, so threads don't change a bit.

    Parameters
    ----------
    parameters : iterable of nn.Parameter
        Updated in place, on the device where they are.
    lr : float
        Step size; may be set anew before any step.
    betas : tuple of float
        Decay of the running means of gradients and of their squares.
    eps : float
        Added to the root of the mean of squares.

    Attributes
    ----------
    lr : float
    steps : int
        Updates done.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = list(parameters)
        if not self.parameters or not lr >= 0 or not all(0 <= beta < 1 for beta in betas) or not eps > 0:
            raise UsageError(f"Adam of {len(self.parameters)} parameters, lr {lr}, betas {betas}, eps {eps}")
        self.lr = float(lr)
        self.betas = betas
        self.eps = eps
        self.steps = 0
        self._mean = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self._square = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters by their gradients; one without a gradient stays as it is."""
        self.steps += 1
        first, second = self.betas
        step_size = self.lr / (1 - first**self.steps)
        root_correction = (1 - second**self.steps) ** 0.5
        for parameter, mean, square in zip(self.parameters, self._mean, self._square, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            mean.mul_(first).add_(gradient, alpha=1 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
            parameter.addcdiv_(mean, square.sqrt().div_(root_correction).add_(self.eps), value=-step_size)

    def state_dict(self) -> dict[str, Any]:
        """Return what going on later needs: plain numbers, and the tensors themselves, not copies."""
        return {"lr": self.lr, "steps": self.steps, "mean": list(self._mean), "square": list(self._square)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken; tensors are copied.

        Raises
        ------
        UsageError
            If it is of other parameters.
        """
        for name, own in (("mean", self._mean), ("square", self._square)):
            theirs: list[Tensor] = state[name]
            if [t.shape for t in theirs] != [t.shape for t in own]:
                raise UsageError("this state of Adam is of other parameters than these")
        for own_tensors, name in ((self._mean, "mean"), (self._square, "square")):
            for tensor, saved in zip(own_tensors, state[name], strict=True):
                tensor.copy_(saved)
        self.lr = float(state["lr"])
        self.steps = int(state["steps"])
