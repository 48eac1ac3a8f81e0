"""The non-linearities, each with its slopes.

An activation is stateless. Besides being callable it offers the pieces of a hand-written backward pass: `write` (the
value), `slopes` (for all steps in one go) and `pull` (the gradient through one step). A number it trains, if any, is a
tensor that the layer owns and passes in as `p`.

>>> f = make("leaky(0.5)")
>>> f(torch.tensor([-2.0, 2.0]))
tensor([-1.,  2.])
>>> f.slope_bounds
(0.5, 1.0)
"""

from __future__ import annotations

import difflib
import re

from evenflow.activations.activation import Activation
from evenflow.activations.pairs import ComplexModRelu, Oplu
from evenflow.activations.units import Abs, Identity, Leaky, ModRelu, PRelu, Relu, Tanh

__all__ = [
    "ACTIVATIONS",
    "Abs",
    "Activation",
    "ComplexModRelu",
    "Identity",
    "Leaky",
    "ModRelu",
    "Oplu",
    "PRelu",
    "Relu",
    "Tanh",
    "make",
]

ACTIVATIONS: dict[str, type[Activation]] = {
    kind.name: kind for kind in (Identity, Relu, Leaky, PRelu, Tanh, Abs, Oplu, ModRelu, ComplexModRelu)
}

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


def make(activation: str | Activation) -> Activation:
    """The activation of that name; leaky and prelu take their slope in brackets, as in ``"leaky(0.5)"``."""
    if isinstance(activation, Activation):
        return activation
    found = re.fullmatch(rf"\s*(\w+)\s*(?:\(\s*({NUMBER})\s*\))?\s*", str(activation))
    name, number = found.groups() if found else (str(activation), None)
    if name not in ACTIVATIONS:
        near = difflib.get_close_matches(name, ACTIVATIONS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no activation {activation!r}; {hint}known are {', '.join(ACTIVATIONS)}")
    if number is None:
        return ACTIVATIONS[name]()
    if name not in ("leaky", "prelu"):
        raise ValueError(f"activation {name!r} takes no number, got {activation!r}")
    return ACTIVATIONS[name](float(number))  # type: ignore[call-arg]
