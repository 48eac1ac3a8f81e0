"""`Activation`: a function in torch operations, bounds of its slope, and the start of its trained parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Tensor]
Bounds = tuple[float, float]


class Activation:
    """A function of the pre-activations: ``h = f(a)``, or ``h = f(a, p)`` with trained parameters p.

    Args:
        function: f, in torch operations; its keyword-only arguments are constants.
        equation: f in text, for tables.
        slopes: (β, γ) with β <= |f'| <= γ wherever f has a derivative; for a function of pairs, bounds of the singular
            values of its Jacobian. Or a function of p and the constants that returns them, with p None for bounds that
            hold for any p. Default: (0, inf).
        start: returns the first p from the size of the layer and a generator; its keyword-only arguments are constants
            too. Default: None, f trains nothing.
        pairs: for a function of the pairs of units i and i + H/2: what it does with them, in words. H is even then.
        name: Default: that of the function.

    Shapes:
        a, h: ``(..., H)``; p: what `start` returns, ``(1)``, ``(H)`` or, one per pair, ``(H / 2)``.

    >>> layer = evenflow.RNN(2, 128, activation=Activation(torch.nn.functional.softplus, slopes=(0, 1)))
    """

    def __init__(
        self,
        function: Function,
        equation: str = "",
        *,
        slopes: Bounds | Callable[..., Bounds] = (0.0, inf),
        start: Function | None = None,
        pairs: str = "",
        name: str = "",
    ) -> None:
        self.function, self.equation = function, equation
        self.name: str = name or getattr(function, "__name__", type(function).__name__)
        self.trained, self.paired = start is not None, bool(pairs)
        self._slopes, self._start, self._pairs = slopes, start, pairs
        self._own = tuple(_constants(function))
        self.constants = _constants(function) | ({} if start is None else _constants(start))
        self.slope_bounds = self.slopes()
        self._base: Activation | None = None

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        constants = {name: self.constants[name] for name in self._own}
        return self.function(a, **constants) if p is None else self.function(a, p, **constants)

    def start(self, size: int, generator: torch.Generator | None = None) -> Tensor | None:
        """The first p of a layer of `size` units, or None."""
        if self.paired and size % 2:
            raise ValueError(f"{self.name} {self._pairs}, so hidden_size must be even, got {size}")
        if self._start is None:
            return None
        constants = {name: value for name, value in self.constants.items() if name not in self._own}
        return self._start(size, generator, **constants)

    def weights(self, size: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """The first p under its name among the weights of a cell; none if f trains nothing."""
        p = self.start(size, generator)
        return {} if p is None else {"activation": p}

    def slopes(self, p: Tensor | None = None) -> Bounds:
        """`slope_bounds` for the parameters p; for any p if None."""
        low, high = self._slopes(p, **self.constants) if callable(self._slopes) else self._slopes
        return float(low), float(high)

    def given(self, **constants: Any) -> Activation:
        """The same activation with other constants.

        >>> activations.make("leaky").given(slope=0.5)
        leaky(0.5)
        """
        for name in constants:
            if name not in self.constants:
                names = ", ".join(self.constants) or "none"
                raise ValueError(f"activation {self.name!r} has no constant {name!r}; it has {names}")
        other = object.__new__(type(self))
        other.__dict__ = {**vars(self), "constants": self.constants | constants, "_base": self._base or self}
        other.slope_bounds = other.slopes()
        return other

    @property
    def key(self) -> str:
        """The name, with the constants in brackets; `make` returns a listed activation for its key."""
        return f"{self.name}({', '.join(map(repr, self.constants.values()))})" if self.constants else self.name

    def __repr__(self) -> str:
        return self.key

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._base is not None:
            return _with_constants, (self._base, self.constants)
        if "__qualname__" in vars(self):
            return str(vars(self)["__qualname__"])  # by its name, as functions are
        return object.__reduce__(self)


def activation(
    equation: str = "",
    *,
    slopes: Bounds | Callable[..., Bounds] = (0.0, inf),
    start: Function | None = None,
    pairs: str = "",
    name: str = "",
) -> Callable[[Function], Activation]:
    """Make an activation of a function; the arguments are those of `Activation`.

    >>> @activation("a σ(p a)", start=lambda size, generator: torch.ones(size))
    ... def swish(a, p):
    ...     return a * torch.sigmoid(p * a)
    >>> layer = evenflow.RNN(2, 128, activation=swish)  # trains 128 more numbers, layer.activation_l0
    """

    def decorate(function: Function) -> Activation:
        f = Activation(function, equation, slopes=slopes, start=start, pairs=pairs, name=name)
        for place in ("__module__", "__qualname__", "__doc__"):
            setattr(f, place, getattr(function, place))
        return f

    return decorate


def _with_constants(base: Activation, constants: dict[str, Any]) -> Activation:
    return base.given(**constants)


def _constants(function: Function) -> dict[str, Any]:
    """The keyword-only arguments of a function, with their defaults."""
    try:
        arguments = inspect.signature(function).parameters.values()
    except ValueError:  # a function of torch has no signature
        return {}
    constants = {each.name: each.default for each in arguments if each.kind is each.KEYWORD_ONLY}
    for name, default in constants.items():
        if default is inspect.Parameter.empty:
            raise ValueError(f"the constant {name!r} of {getattr(function, '__name__', function)} must have a default")
    return constants
