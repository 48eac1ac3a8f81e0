"""The non-linearities: each a function in torch operations with bounds of its slope, listed in `ACTIVATIONS`.

Every layer and engine takes an activation by its name; compiled code and backward pass are generated from the function.
A function of a tensor, or an `Activation`, can be used instead of a name.

>>> f = make("leaky(0.5)")
>>> f(torch.tensor([-2.0, 2.0]))
tensor([-1.,  2.])
>>> f.slope_bounds
(0.5, 1.0)
"""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import Tensor, nn

from evenflow.activations import pairs, units
from evenflow.activations.activation import Activation, activation
from evenflow.checks import unknown

__all__ = ["ACTIVATIONS", "Activation", "ActivationChoice", "activation", "make"]

ActivationChoice = str | Activation | Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    f.name: f
    for f in (
        units.identity,
        units.relu,
        units.leaky,
        units.prelu,
        units.tanh,
        units.sigmoid,
        units.hardtanh,
        units.softsign,
        units.sin,
        units.absolute,
        units.modrelu,
        units.saturated,
        pairs.oplu,
        pairs.complex_modrelu,
    )
}

NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"


def make(activation: ActivationChoice) -> Activation:
    """The activation of a name, with its constant in brackets if it has one, as in ``"leaky(0.5)"``.

    Args:
        activation: a name; a function of one tensor, whose slope has no known bounds; or an `Activation`.

    >>> make("leaky(0.5)")(torch.tensor([-2.0, 2.0]))
    tensor([-1.,  2.])
    """
    if isinstance(activation, Activation):
        return activation
    if callable(activation):
        _check(activation)
        return Activation(activation)
    match = re.fullmatch(rf"\s*(\w+)\s*(?:\(\s*({NUMBER})\s*\))?\s*", str(activation))
    name, number = match.groups() if match else (str(activation), None)
    if name not in ACTIVATIONS:
        raise ValueError(unknown("activation", activation, ACTIVATIONS))
    f = ACTIVATIONS[name]
    if number is None:
        return f
    if len(f.constants) != 1:
        raise ValueError(f"activation {name!r} takes no number, got {activation!r}")
    return f.given(**dict.fromkeys(f.constants, float(number)))


def _check(function: Callable[[Tensor], Tensor]) -> None:
    """Refuse a class, and a module with parameters, which the layer would not train."""
    if isinstance(function, type):
        raise ValueError(
            f"activation must be a name, a function of a tensor or an Activation, got the class {function.__name__}"
        )
    if isinstance(function, nn.Module) and any(True for _ in function.parameters()):
        raise ValueError(
            f"activation {function} has trained numbers of its own, which the layer would not train; "
            "make an Activation of a function of a and p with their start"
        )
