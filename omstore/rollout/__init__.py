"""Rollouts in compiled code over the rows of any encoding, and the random numbers they are made of."""

from __future__ import annotations

from omstore.rollout.policies import GrowingPolicyTable, PolicyTable, Sides
from omstore.rollout.running import RolloutState, rollout
from omstore.rollout.tables import RolloutTables
from omstore.rollout.uniforms import extend_key, stream_key, uniform

__all__ = [
    "GrowingPolicyTable",
    "PolicyTable",
    "RolloutState",
    "RolloutTables",
    "Sides",
    "extend_key",
    "rollout",
    "stream_key",
    "uniform",
]
