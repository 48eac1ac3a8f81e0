"""Numbers added to the loss, for weights, states and gradients that are wanted in some ways more than in others."""

from __future__ import annotations

from evenflow.penalties.make import PENALTIES, make
from evenflow.penalties.norm_preserving import NormPreserving
from evenflow.penalties.penalty import Penalty, Sum, Watched
from evenflow.penalties.stabilizer import Stabilizer
from evenflow.penalties.weights import SingularValuePrior, SoftOrthogonality, WeightDecay

__all__ = [
    "PENALTIES",
    "NormPreserving",
    "Penalty",
    "SingularValuePrior",
    "SoftOrthogonality",
    "Stabilizer",
    "Sum",
    "Watched",
    "WeightDecay",
    "make",
]
