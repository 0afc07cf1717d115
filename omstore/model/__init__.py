"""Transition models: the protocol, state spaces, exploring, the pursuit world, a model's rows."""

from omstore.model.loading import load_model
from omstore.model.protocol import IndependentModel, Kernel, ModelOrigin, Outcomes, TransitionModel
from omstore.model.pursuit import Pursuit
from omstore.model.space import ProductSpace

__all__ = [
    "IndependentModel",
    "Kernel",
    "ModelOrigin",
    "Outcomes",
    "ProductSpace",
    "Pursuit",
    "TransitionModel",
    "load_model",
]
