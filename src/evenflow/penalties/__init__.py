"""Penalties: terms added to the loss that favour some weights, states or gradients over others."""

from __future__ import annotations

import re

from evenflow.checks import unknown
from evenflow.penalties.penalty import Penalty, Sum, Watched
from evenflow.penalties.state_penalties import NormPreserving, Stabilizer
from evenflow.penalties.weight_penalties import MatrixDecay, SingularValuePrior, SoftOrthogonality, WeightDecay

PENALTIES: dict[str, type[Penalty]] = {
    kind.name: kind
    for kind in (SoftOrthogonality, SingularValuePrior, WeightDecay, MatrixDecay, Stabilizer, NormPreserving)
}

__all__ = [
    "PENALTIES",
    "MatrixDecay",
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


def make(penalty: str | Penalty) -> Penalty:
    """The penalty of this name, with its strength in brackets; a plus joins several.

    >>> make("soft_orthogonality(0.001) + stabilizer")
    soft_orthogonality(0.001) + stabilizer(50.0)
    """
    if isinstance(penalty, Penalty):
        return penalty
    parts = re.split(r"(?<![eE])\+", str(penalty))  # not the plus of 1e+3
    return _one(parts[0]) if len(parts) == 1 else Sum([_one(part) for part in parts])


def _one(text: str) -> Penalty:
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", text)
    name, number = match.groups() if match else (text.strip(), None)
    if name not in PENALTIES:
        raise ValueError(unknown("penalty", name, PENALTIES))
    if number is None:
        return PENALTIES[name]()
    try:
        strength = float(number)
    except ValueError:
        raise ValueError(f"the strength of {name} must be a number of at least 0, got {number!r}") from None
    return PENALTIES[name](strength)
