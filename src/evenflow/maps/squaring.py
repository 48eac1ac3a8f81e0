"""exp(B) of a skew-Hermitian B by squaring, and its gradient: matrix products alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.maps.differentiated import addmm, tighten


def _quartic(angle: float) -> tuple[float, float, float, float]:
    """c1 ... c4 of ``c1 z + c2 z² + c3 z³ + c4 z⁴ ≈ exp(z) - 1`` for z = ix, |x| <= angle.

    Chebyshev's series of ``exp(i angle x)`` cut after the fourth term: sixteen times closer than Taylor's.
    """
    J = [
        sum((-1) ** m / math.factorial(m) / math.factorial(m + k) * (angle / 2) ** (2 * m + k) for m in range(12))
        for k in range(5)
    ]
    # iᵏ T_k(z / (i angle)) for k = 1 ... 4 is u, 2u² + 1, 4u³ + 3u, 8u⁴ + 8u² + 1 with u = z / angle.
    return (
        (2 * J[1] + 6 * J[3]) / angle,
        (4 * J[2] + 16 * J[4]) / angle**2,
        8 * J[3] / angle**3,
        16 * J[4] / angle**4,
    )


# The largest angle for which the quartic is right to rounding.
ANGLE = {torch.float32: 0.125, torch.float64: 0.002}
QUARTIC = {dtype: _quartic(angle) for dtype, angle in ANGLE.items()}


def norm(B2: Tensor) -> Tensor:
    """For each matrix a number not below the square of B's largest angle."""
    return torch.linalg.vector_norm(B2, 1, dim=-1).amax(-1)


def largest(squares: Tensor) -> Tensor:
    """Of all matrices; one that is infinite or not a number stays so by itself and is none of the others' business."""
    return torch.where(torch.isfinite(squares), squares, 0.0).max()


def squarings(angle: float, dtype: torch.dtype) -> int:
    """How often ``exp(B / 2ˢ)`` is squared for angles up to `angle`."""
    if not 0 < angle < math.inf:
        return 0
    return max(0, math.ceil(math.log2(angle / ANGLE[dtype.to_real()])))


class Headroom:
    """The largest angle a recorded exponential is right for: a CUDA graph cannot read how large B has become.

    It is four times the angle at the time of recording. Every replay leaves the angle it met in `met`, on the host, so
    that the recording can be made anew in time; a matrix beyond the largest angle is all nan.
    """

    FACTOR = 4.0

    def __init__(self, largest: float, met: Tensor) -> None:
        self.largest, self.met = largest, met

    @classmethod
    def over(cls, B: Tensor) -> Headroom:
        """For B and what it may grow to."""
        angle = math.sqrt(largest(norm(B @ B)).item())
        return cls(max(1.0, cls.FACTOR * angle), torch.zeros((), dtype=B.dtype.to_real(), pin_memory=True))

    @property
    def outgrown(self) -> bool:
        """Whether half of it is used up; says so after the replay that found it, without waiting for one."""
        return not self.met.item() <= (self.largest / 2) ** 2

    def check(self, W: Tensor, B2: Tensor) -> Tensor:
        """W, or nan; part of the recording."""
        squares = norm(B2)
        self.met.copy_(largest(squares), non_blocking=True)
        return W * torch.where(squares <= self.largest**2, 1.0, math.nan).to(W.dtype)[..., None, None]


class Recordable:
    """What a map by `exponential` adds to be recorded: its headroom, as `Map` asks for it."""

    headroom: Headroom | None = None

    def prepare(self, *raw: Tensor) -> None:
        self.headroom = Headroom.over(self.skew(self.full(*raw)[0].detach()))  # type: ignore[attr-defined]

    @property
    def outgrown(self) -> bool:
        return self.headroom is not None and self.headroom.outgrown


def exponential(B: Tensor, headroom: Headroom | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """exp(B) ``(..., n, n)``, and what `exponential_slope` needs: B, B² and ``exp(B / 2ᵏ) - I`` for k = s ... 1."""
    c1, c2, c3, c4 = QUARTIC[B.dtype.to_real()]
    B2 = B @ B
    captured = B.is_cuda and torch.cuda.is_current_stream_capturing()
    if captured:
        # In a graph of the user's own nobody looks at how much is used up, so there is much of it.
        headroom = headroom or Headroom(512.0, torch.zeros_like(largest(norm(B2))))
        angle = headroom.largest
    else:
        angle = math.sqrt(largest(norm(B2)).item()) if B2.numel() else 0.0
    s = squarings(angle, B.dtype)
    t = 2.0**-s
    # E = exp(B / 2ˢ) - I. Leaving out the I keeps small numbers exact: (I + E)² = I + (2E + E²).
    E = addmm(torch.add(B, B2, alpha=t * c2 / c1), B2, torch.add(B, B2, alpha=t * c4 / c3), t * c1, t**3 * c3)
    roots = []
    for _ in range(s):
        roots.append(E)
        E = addmm(E, E, E, 2)
    E.diagonal(dim1=-2, dim2=-1).add_(1)
    # In single precision rounding moves the product off the rotations by some 1e-6.
    W = tighten(E) if E.dtype.to_real() == torch.float32 else E
    if captured:
        assert headroom is not None
        W = headroom.check(W, B2)
    return W, (B, B2, *roots)


def exponential_slope(G: Tensor, B: Tensor, B2: Tensor, *roots: Tensor) -> Tensor:
    """A gradient of B, of which the skew-Hermitian part counts, from the gradient G of exp(B)."""
    c1, c2, c3, c4 = QUARTIC[B.dtype.to_real()]
    t = 2.0 ** -len(roots)
    for E in reversed(roots):
        G = addmm(addmm(G, G, E.mH, 2), E.mH, G)
    # E = c1 A + c2 A² + A²(c3 A + c4 A²) for A = tB, whose square is Hermitian.
    right = B2 @ G
    S = addmm(torch.add(G, right, alpha=t * t * c4 / c2), G, torch.add(B, B2, alpha=t * c4 / c3).mH, c2, t * c3)
    # Of the gradient S of A² the Hermitian half counts, and then AS is minus the adjoint of SA.
    S = S + S.mH
    return addmm(torch.add(G, right, alpha=t * t * c3 / c1), S, B, t * c1, -t * t)
