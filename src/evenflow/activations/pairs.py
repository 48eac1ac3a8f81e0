"""The non-linearities of pairs of units, i and i + H/2."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor

from evenflow.activations.activation import Activation


class Oplu(Activation):
    """Sorts pairs of units: unit i takes the larger and unit i + H/2 the smaller of the two.

    Its Jacobian is a permutation, so norms pass unchanged both ways (Chernodub and Nowicki 2016).
    """

    name, equation, slope_bounds = "oplu", "(max(a_i, a_j), min(a_i, a_j)), j = i + H/2", (1.0, 1.0)
    reads_output, marks, paired = False, True, True

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


class ComplexModRelu(Activation):
    """Shrinks pairs of units and keeps their direction: ``a max(|a| + b, 0) / |a|``, a trained b per pair.

    A pair is a complex number, unit i its real and unit i + H/2 its imaginary part (Arjovsky et al. 2016). At a = 0
    there is no direction, and the value and its gradient are 0. Along a pair's direction the slope is 0 or 1, across it
    ``1 + b / |a|``, which with b > 0 has no bound.
    """

    name, equation, slope_bounds = "complex_modrelu", "a max(|a| + b, 0) / |a|, a = (a_i, a_j), j = i + H/2", (0.0, inf)
    trained = paired = precise = True

    def start(self, size: int, generator: torch.Generator | None = None) -> Tensor:
        if size % 2:
            raise ValueError(f"complex_modrelu shrinks pairs of units, so hidden_size must be even, got {size}")
        return torch.empty(size // 2).uniform_(-0.01, 0.01, generator=generator)

    def __call__(self, a: Tensor, p: Tensor | None = None) -> Tensor:
        assert p is not None
        left, right = a.chunk(2, -1)
        square = left.square() + right.square()
        size = square.masked_fill(square == 0, 1.0).sqrt()  # the root has no slope at 0
        scale = (torch.relu(size + p) / size).masked_fill(square == 0, 0.0)
        return torch.cat([scale * left, scale * right], -1)

    def write(self, a: Tensor, p: Tensor | None, out: Tensor) -> None:
        out.copy_(self(a, p))

    def slopes(self, kept: Tensor, p: Tensor | None) -> Tensor:
        """Each pair's direction, and the slope across it, ``(..., H + H/2)``; zeros where the pair is off."""
        assert p is not None
        direction, size = _direction(kept)
        before = torch.maximum(size - p, torch.finfo(size.dtype).eps * size)  # |a|, of which rounding may leave nothing
        across = torch.where(size == 0, 0.0, size / before)
        return torch.cat([direction, across], -1)

    def pull(self, g: Tensor, slopes: Tensor, out: Tensor) -> None:
        left, right = g.chunk(2, -1)
        toward_left, toward_right, across = slopes.chunk(3, -1)
        along = (left * toward_left + right * toward_right) * (1 - across)
        upper = torch.addcmul(across * left, along, toward_left)
        half = left.shape[-1]
        torch.addcmul(across * right, along, toward_right, out=out[..., half:])
        out[..., :half] = upper

    def parameter_gradient(self, kept: Tensor, g: Tensor) -> Tensor:
        return (_direction(kept)[0] * g).sum((0, 1)).unflatten(0, (2, -1)).sum(0)


def _direction(a: Tensor) -> tuple[Tensor, Tensor]:
    """``a / |a|`` of each pair, zero where a is, ``(..., H)``, and ``|a|``, ``(..., H/2)``."""
    left, right = a.chunk(2, -1)
    size = (left.square() + right.square()).sqrt()
    inverse = torch.where(size == 0, 0.0, 1 / size)
    return torch.cat([inverse * left, inverse * right], -1), size
