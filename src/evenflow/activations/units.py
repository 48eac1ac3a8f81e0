"""The non-linearities that see one unit at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.activations.activation import Activation


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
