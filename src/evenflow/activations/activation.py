"""What every non-linearity offers: its value, and the pieces of a hand-written backward pass."""

from __future__ import annotations

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
    precise = False  # the slopes are told from f(a) by a difference, of which half precision leaves nothing
    trained = False
    paired = False  # units i and i + H/2 see each other

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
