"""The non-linearities: each a function in torch operations with the bounds of its slope, listed in `ACTIVATIONS`.

What is listed here works by its name in every layer and engine; the compiled code and its backward pass come from the
function. One of your own, a function of a tensor or an `Activation`, works in its place.

>>> f = make("leaky(0.5)")
>>> f(torch.tensor([-2.0, 2.0]))
tensor([-1.,  2.])
>>> f.slope_bounds
(0.5, 1.0)
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from torch import Tensor, nn

from evenflow.activations import pairs, units
from evenflow.activations.activation import Activation, activation

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
    """The activation of that name, with its constant in brackets where it has one, as in ``"leaky(0.5)"``.

    Args:
        activation: a name; or a function of one tensor, of whose slope nothing is known; or an `Activation`, as it is.
    """
    if isinstance(activation, Activation):
        return activation
    if callable(activation):
        _check(activation)
        return Activation(activation)
    found = re.fullmatch(rf"\s*(\w+)\s*(?:\(\s*({NUMBER})\s*\))?\s*", str(activation))
    name, number = found.groups() if found else (str(activation), None)
    if name not in ACTIVATIONS:
        near = difflib.get_close_matches(name, ACTIVATIONS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no activation {activation!r}; {hint}known are {', '.join(ACTIVATIONS)}")
    f = ACTIVATIONS[name]
    if number is None:
        return f
    if len(f.constants) != 1:
        raise ValueError(f"activation {name!r} takes no number, got {activation!r}")
    return f.given(**dict.fromkeys(f.constants, float(number)))


def _check(function: Callable[[Tensor], Tensor]) -> None:
    """Refuse what can be called but is no function of a tensor, or trains numbers where no layer would find them."""
    if isinstance(function, type):
        raise ValueError(
            f"activation must be a name, a function of a tensor or an Activation, got the class {function.__name__}"
        )
    if isinstance(function, nn.Module) and any(True for _ in function.parameters()):
        raise ValueError(
            f"activation {function} has trained numbers of its own, which the layer would not train; "
            "make an Activation of a function of a and p with their start"
        )
