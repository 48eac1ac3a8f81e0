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

import torch
from torch import Tensor


class Activation:
    """A non-linearity f with its slopes: ``h = f(a)``, and ``slope_bounds`` [β, γ] with β <= |f'| <= γ everywhere.

    Shapes:
        a, h, gradients: ``(..., H)``; p: whatever `start` returns, with leading model dimensions where a has them.
    """

    name = "identity"
    equation = "a"
    slope_bounds = (1.0, 1.0)
    reads_output = True  # the slopes can be told from f(a), so that a need not be kept
    marks = False  # else from `mark`, a byte for each unit
    trained = False

    def start(self, size: int, generator: torch.Generator | None = None) -> Tensor | None:
        """The trained number of a layer of `size` units, or None."""
        return None

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        return a

    def write(self, a: Tensor, p: Tensor | None, out: Tensor) -> None:
        """Put f(a) into `out`, which may be `a` itself where `reads_output`."""
        if out is not a:
            out.copy_(a)

    def slopes(self, kept: Tensor, p: Tensor | None) -> Tensor | None:
        """f' at every entry of `kept`, outputs where `reads_output`, else pre-activations or their marks as floats.

        None means one.
        """
        return None

    def mark(self, a: Tensor) -> Tensor:
        """Small whole numbers, int8, that have the slopes of a."""
        raise NotImplementedError

    def kept_as(self, gated: bool, dtype: torch.dtype) -> torch.dtype | None:
        """What a backward pass needs of a besides the state: a itself, in its dtype, or its marks, or None for nothing.

        With gates f(a) is not the state, and is found from a again.
        """
        if gated or not (self.reads_output or self.marks):
            return dtype
        return torch.int8 if self.marks else None

    def pull(self, g: Tensor, slopes: Tensor, out: Tensor) -> None:
        """Put the gradient by a, given the gradient g by f(a), into `out`, which may be g itself."""
        torch.mul(g, slopes, out=out)

    def parameter_gradient(self, kept: Tensor, g: Tensor) -> Tensor:
        """The gradient by p of one model, from what `slopes` reads and the gradient by f(a), both ``(T, B, H)``."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """The text that `make` turns into this activation again."""
        return self.name

    def __repr__(self) -> str:
        return self.key


class Identity(Activation):
    pass


class Relu(Activation):
    name, equation, slope_bounds = "relu", "max(a, 0)", (0.0, 1.0)

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        return torch.relu(a)

    def write(self, a: Tensor, p: Tensor | None, out: Tensor) -> None:
        torch.clamp(a, min=0, out=out)

    def slopes(self, kept: Tensor, p: Tensor | None) -> Tensor:
        return (kept > 0).to(kept.dtype)


class Leaky(Activation):
    name, equation = "leaky", "max(a, λa)"

    def __init__(self, slope: float = 0.01) -> None:
        if not 0 < slope < 1:
            raise ValueError(f"the slope of leaky must lie between 0 and 1, got {slope}")
        self.slope = slope
        self.slope_bounds = (slope, 1.0)

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        return torch.nn.functional.leaky_relu(a, self.slope)

    def write(self, a: Tensor, p: Tensor | None, out: Tensor) -> None:
        torch._C._nn.leaky_relu(a, self.slope, out=out)

    def slopes(self, kept: Tensor, p: Tensor | None) -> Tensor:
        return torch.full_like(kept, self.slope).masked_fill_(kept > 0, 1.0)

    @property
    def key(self) -> str:
        return f"leaky({self.slope!r})"


class PRelu(Activation):
    """The leaky unit with one trained slope per layer (He et al. 2015)."""

    name, equation, slope_bounds = "prelu", "max(a, 0) + p min(a, 0)", (0.0, 1.0)
    reads_output, trained = False, True

    def __init__(self, slope: float = 0.25) -> None:
        self.slope = slope

    def start(self, size: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.full((1,), self.slope)

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        assert p is not None
        return torch.where(a > 0, a, p * a)

    def write(self, a: Tensor, p: Tensor | None, out: Tensor) -> None:
        assert p is not None
        torch._C._nn.leaky_relu(a, float(p), out=out)

    def slopes(self, kept: Tensor, p: Tensor | None) -> Tensor:
        assert p is not None
        return p.expand_as(kept).masked_fill(kept > 0, 1.0)

    def parameter_gradient(self, kept: Tensor, g: Tensor) -> Tensor:
        return torch.dot(kept.clamp(max=0).flatten(), g.flatten()).reshape(1)

    @property
    def key(self) -> str:
        return f"prelu({self.slope!r})"


class Tanh(Activation):
    name, equation, slope_bounds = "tanh", "tanh(a)", (0.0, 1.0)

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        return torch.tanh(a)

    def write(self, a: Tensor, p: Tensor | None, out: Tensor) -> None:
        torch.tanh(a, out=out)

    def slopes(self, kept: Tensor, p: Tensor | None) -> Tensor:
        return torch.addcmul(torch.ones((), dtype=kept.dtype, device=kept.device), kept, kept, value=-1)


class Abs(Activation):
    """The absolute value, the activation of the uRNN document: slopes of size one almost everywhere."""

    name, equation, slope_bounds = "abs", "|a|", (1.0, 1.0)
    reads_output, marks = False, True

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        return a.abs()

    def write(self, a: Tensor, p: Tensor | None, out: Tensor) -> None:
        torch.abs(a, out=out)

    def slopes(self, kept: Tensor, p: Tensor | None) -> Tensor:
        return kept.sign()

    def mark(self, a: Tensor) -> Tensor:
        return a.sign().to(torch.int8)


class Oplu(Activation):
    """Sorts pairs of units: unit i takes the larger and unit i + H/2 the smaller of the two.

    Its Jacobian is a permutation, so norms pass unchanged both ways (Chernodub and Nowicki 2016).
    """

    name, equation, slope_bounds = "oplu", "(max(a_i, a_j), min(a_i, a_j)), j = i + H/2", (1.0, 1.0)
    reads_output, marks = False, True

    def start(self, size: int, generator: torch.Generator | None = None) -> None:
        if size % 2:
            raise ValueError(f"oplu sorts pairs of units, so hidden_size must be even, got {size}")

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        left, right = a.chunk(2, -1)
        swap = left < right
        return torch.cat([torch.where(swap, right, left), torch.where(swap, left, right)], -1)

    def write(self, a: Tensor, p: Tensor | None, out: Tensor) -> None:
        half = a.shape[-1] // 2
        torch.maximum(a[..., :half], a[..., half:], out=out[..., :half])
        torch.minimum(a[..., :half], a[..., half:], out=out[..., half:])

    def slopes(self, kept: Tensor, p: Tensor | None) -> Tensor:
        """One where a pair was swapped, ``(..., H/2)``."""
        left, right = kept.chunk(2, -1)
        return (left < right).to(kept.dtype)

    def mark(self, a: Tensor) -> Tensor:
        left, right = a.chunk(2, -1)
        swap = (left < right).to(torch.int8)
        return torch.cat([torch.zeros_like(swap), swap], -1)

    def pull(self, g: Tensor, slopes: Tensor, out: Tensor) -> None:
        left, right = g.chunk(2, -1)
        half = left.shape[-1]
        upper = torch.lerp(left, right, slopes)  # exact: the weights are 0 and 1
        torch.lerp(right, left, slopes, out=out[..., half:])
        out[..., :half] = upper


class ModRelu(Activation):
    """Shrinks the size and keeps the sign: ``sign(a) max(|a| + b, 0)``, a trained b per unit (Arjovsky et al. 2016).

    At a = 0 there is no sign and the value is 0. With b > 0 the function jumps there.
    """

    name, equation, slope_bounds = "modrelu", "sign(a) max(|a| + b, 0)", (0.0, 1.0)
    trained = True

    def start(self, size: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.empty(size).uniform_(-0.01, 0.01, generator=generator)

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        assert p is not None
        return a.sign() * torch.relu(a.abs() + p)

    def write(self, a: Tensor, p: Tensor | None, out: Tensor) -> None:
        assert p is not None
        sign = a.sign()
        torch.abs(a, out=out)
        out.add_(p).clamp_(min=0).mul_(sign)

    def slopes(self, kept: Tensor, p: Tensor | None) -> Tensor:
        return (kept != 0).to(kept.dtype)

    def parameter_gradient(self, kept: Tensor, g: Tensor) -> Tensor:
        return kept.sign().mul_(g).sum((0, 1))  # a unit that is on has its input's sign, one that is off gives 0


ACTIVATIONS: dict[str, type[Activation]] = {
    kind.name: kind for kind in (Identity, Relu, Leaky, PRelu, Tanh, Abs, Oplu, ModRelu)
}


def make(activation: str | Activation) -> Activation:
    """The activation of that name; leaky and prelu take their slope in brackets, as in ``"leaky(0.5)"``."""
    if isinstance(activation, Activation):
        return activation
    found = re.fullmatch(r"\s*(\w+)\s*(?:\(\s*([-+.\deE]+)\s*\))?\s*", str(activation))
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
