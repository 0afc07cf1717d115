"""The soft target that action values induce, and the objective that pulls a policy to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.models import masked_log_probabilities

__all__ = ["Objective", "objective", "soft_target"]


@dataclass(frozen=True)
class Objective:
    """Means over the roots of a batch, in nats; differentiable.

    Attributes
    ----------
    policy_ce : Tensor
        Cross-entropy from the soft target to the logits.
    entropy : Tensor
        Of the masked policy.
    value : Tensor
        ``policy_ce - entropy_coef * entropy``.
    """

    policy_ce: Tensor
    entropy: Tensor
    value: Tensor


def soft_target(
    action_values: Tensor, evaluated: Tensor, temperature: float, policy: Tensor | None = None
) -> Tensor:
    """Return softmax(Q / temperature) over evaluated actions; from a policy, policy * exp(Q / temperature), normalized.

    The first is where a policy ends; the second a step from where it is, the higher the temperature the shorter: mirror
    descent (Geist et al., "A theory of regularized Markov decision processes", 2019, section 4; Abdolmaleki et al., "Maximum
    a posteriori policy optimisation", 2018). Steps add up, so small differences of values move a policy as far in the
    end.

    Parameters
    ----------
    action_values : (v, actions) float64
        Anything finite where not evaluated.
    evaluated : (v, actions) bool
        At least one in each row.
    temperature : float
    policy : (v, actions) float, optional
        Logits of the policy to step from.

    Returns
    -------
    (v, actions) float64
        0 where not evaluated.
    """
    exponent = action_values / temperature
    if policy is not None:
        exponent = exponent + masked_log_probabilities(policy.to(exponent.dtype), evaluated)
    return torch.softmax(exponent.masked_fill(~evaluated, -torch.inf), dim=1)


def objective(
    logits: Tensor, target: Tensor, legal: Tensor, evaluated: Tensor, entropy_coef: float
) -> Objective:
    """Return what an update lowers.

    The cross-entropy is to the policy restricted to evaluated actions, which are all legal ones unless they are
    capped: the target says nothing about the others, and their probability shouldn't fall for not having been
    drawn. The entropy is that of the policy over all legal actions.

    Parameters
    ----------
    logits : (v, actions) float
    target : (v, actions) float
        Of `soft_target`.
    legal, evaluated : (v, actions) bool
    entropy_coef : float

    Returns
    -------
    Objective
    """
    log_evaluated = masked_log_probabilities(logits, evaluated).masked_fill(~evaluated, 0.0)
    log_legal = masked_log_probabilities(logits, legal).masked_fill(~legal, 0.0)
    policy_ce = -(target.to(logits.dtype) * log_evaluated).sum(dim=1).mean()
    entropy = -(log_legal.exp() * legal * log_legal).sum(dim=1).mean()
    return Objective(policy_ce, entropy, policy_ce - entropy_coef * entropy)
