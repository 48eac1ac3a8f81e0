"""exp(B) of a skew-Hermitian B by squaring, and its gradient: matrix products alone."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from evenflow.maps.chebyshev import Polynomial, nonic, quartic, sextic
from evenflow.maps.map import Map
from evenflow.maps.matrix_operations import addmm, tighten
from evenflow.runtime.captured_function import in_capturing

# In-place changes of the numbers, a few for each update, after which a map that was not replayed is measured again.
UNSEEN_CHANGES = 8

# The largest angles for which the polynomials of one, two and three Hermitian matrices are exact up to rounding.
ANGLES = {torch.float32: (0.12, 0.5, 1.6), torch.float64: (0.0007, 0.018, 0.2)}
POLYNOMIALS = {
    dtype: tuple(fit(angle) for fit, angle in zip((quartic, sextic, nonic), angles, strict=True))
    for dtype, angles in ANGLES.items()
}


def norm(B2: Tensor) -> Tensor:
    """Return for each matrix an upper bound of the square of B's largest angle."""
    return torch.linalg.vector_norm(B2, 1, dim=-1).amax(-1)


def largest(squares: Tensor) -> Tensor:
    """Return the largest finite square, so that a matrix with inf or nan does not affect the others."""
    return torch.where(torch.isfinite(squares), squares, 0.0).max()


def plan(angle: float, dtype: torch.dtype) -> tuple[int, int]:
    """Return the number of Hermitian matrices of the polynomial for angles up to `angle`, and that of its squarings."""
    *small, most = ANGLES[dtype.to_real()]
    if not 0 < angle < math.inf:
        return 1, 0
    return 1 + sum(angle > limit for limit in small), max(0, math.ceil(math.log2(angle / most)))


def covered_angle(angle: float, dtype: torch.dtype) -> float:
    """Return the largest angle for which the squarings for `angle` suffice."""
    return ANGLES[dtype.to_real()][-1] * 2.0 ** plan(angle, dtype)[1]


def polynomial(dtype: torch.dtype, count: int, s: int) -> Polynomial:
    """Return the polynomial ``exp(B / 2ˢ) - I`` of B and `count` Hermitian matrices."""
    unscaled = POLYNOMIALS[dtype.to_real()][count - 1]
    return unscaled.scaled(2.0**-s) if s else unscaled


def addmm_into(c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """`addmm` in place of c, without a copy."""
    if c.dim() == 2:
        return c.addmm_(a, b, beta=beta, alpha=alpha)
    flat = (x.flatten(0, -3) for x in (a, b))
    return c.flatten(0, -3).baddbmm_(*flat, beta=beta, alpha=alpha).reshape(c.shape)


class AngleRange:
    """The largest angle for which a captured exponential is valid, since a CUDA graph cannot read how large B is.

    It is at least twice the angle at the capture and `ROOM` more, as far as the squarings for that suffice. Every
    replay writes the largest square of an angle so far to `square`, and to `square_on_host`, so that the map can be
    captured again when half of the range is used up. A matrix beyond the range is all nan.
    """

    ROOM = 6.0  # some steps of Adam with a large learning rate, which changes every entry alike at first
    LAG = 4  # replays by which the host may run ahead of the square it reads

    def __init__(self, largest: float, square: Tensor, square_on_host: Tensor | None = None) -> None:
        self.largest, self.square, self.square_on_host = largest, square, square_on_host
        self.exhausted = False  # measured to be used up, without a replay
        self._events: deque[torch.cuda.Event] = deque()  # one for each of the last calls of `needs_recapture`

    @classmethod
    def measure(cls, B: Tensor) -> AngleRange:
        """The range for B and what it may grow to."""
        square = torch.zeros((), dtype=B.dtype.to_real(), device=B.device)
        on_host = torch.zeros_like(square, device="cpu", pin_memory=True)
        return cls(cls.largest_for(math.sqrt(largest(norm(B @ B)).item()), B.dtype), square, on_host)

    @classmethod
    def largest_for(cls, angle: float, dtype: torch.dtype) -> float:
        """The largest angle for which a capture at `angle` is valid."""
        return covered_angle(2 * angle + cls.ROOM, dtype)

    def needs_recapture(self) -> bool:
        """Return True if half of the range is used up; asked before each replay.

        The answer waits for the event of `LAG` replays ago. That leaves the GPU enough work and keeps the host from
        running hundreds of replays ahead of an angle that grows.
        """
        if self.exhausted or self.square_on_host is None or torch.cuda.is_current_stream_capturing():
            return self.exhausted
        if len(self._events) < self.LAG:
            self._events.append(torch.cuda.Event())
        else:
            self._events[0].synchronize()
            self._events.rotate(-1)
        self._events[-1].record(torch.cuda.current_stream(self.square.device))
        return not self.square_on_host.item() <= (self.largest / 2) ** 2

    def check(self, W: Tensor, B2: Tensor) -> Tensor:
        """Return W, or nan beyond the range; part of the capture."""
        squares = norm(B2)
        torch.maximum(self.square, largest(squares), out=self.square)  # of all captures that share the range
        if self.square_on_host is not None:
            self.square_on_host.copy_(self.square, non_blocking=True)
        return W * torch.where(squares <= self.largest**2, 1.0, math.nan).to(W.dtype)[..., None, None]


class WithAngleRange(Map):
    """A map by `exponential`, whose captures are valid for a range of angles."""

    angle_range: AngleRange | None = None
    _seen_version: int | None = None  # of the numbers, when `needs_recapture` last saw them

    def prepare_capture(self, *raw: Tensor) -> None:
        measured = AngleRange.measure(self._skew(*raw))
        before = self.angle_range
        if before is None or before.needs_recapture() or measured.largest > before.largest:
            self.angle_range = measured  # else captures share the range, and one event serves all of them

    @property
    def captured_range(self) -> AngleRange | None:
        return self.angle_range

    def needs_recapture(self, *raw: Tensor) -> bool:
        if self.angle_range is None:
            return False
        if raw:
            before, self._seen_version = self._seen_version, sum(0 if r.is_inference() else r._version for r in raw)
            changes = 0 if before is None else self._seen_version - before
            if changes > UNSEEN_CHANGES and not torch.cuda.is_current_stream_capturing():
                B = self._skew(*raw)
                self.angle_range.exhausted = not largest(norm(B @ B)).item() <= (self.angle_range.largest / 2) ** 2
        return self.angle_range.needs_recapture()

    def _skew(self, *raw: Tensor) -> Tensor:
        return self.skew(self.full(*raw)[0].detach())  # type: ignore[operator]

    def _apply(self, *args: Any, **options: Any) -> Any:
        self.angle_range = None  # its tensors stay on the device that the map leaves
        return super()._apply(*args, **options)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        self.angle_range = None  # the loaded numbers may be larger
        super()._load_from_state_dict(*args, **options)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"angle_range": None}  # a copy has no captures, and events cannot be copied


def exponential(B: Tensor, angle_range: AngleRange | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return exp(B) ``(..., n, n)``, and the tensors that `exponential_vjp` needs.

    These are B, the Hermitian matrices of the polynomial, B² first, and ``exp(B / 2ᵏ) - I`` for k = s ... 1. Only a
    polynomial of all three Hermitian matrices is squared, so that the number of tensors tells how many are Hermitian.
    """
    B2 = B @ B
    captured = B.is_cuda and torch.cuda.is_current_stream_capturing()
    if captured:
        if angle_range is None or not in_capturing():
            # Nothing asks whether a graph of the user's own needs a new capture, so its range is large.
            angle_range = AngleRange(covered_angle(512.0, B.dtype), torch.zeros_like(largest(norm(B2))))
        angle = angle_range.largest
    else:
        angle = math.sqrt(largest(norm(B2)).item()) if B2.numel() else 0.0
        if B.is_cuda:  # as many squarings as in a capture, so that bits do not change once there is one
            limit = -1.0 if angle_range is None else angle_range.largest
            angle = limit if angle <= limit else AngleRange.largest_for(angle, B.dtype)
    count, s = plan(angle, B.dtype)
    c, x, steps, a, b = polynomial(B.dtype, count, s)
    hermitian = [B2]
    for p, q, r in steps:
        Y = addmm(hermitian[-1], hermitian[-1], hermitian[-1], q, p)
        hermitian.append(Y.add_(B2, alpha=r) if r else Y)
    # E = exp(B / 2ˢ) - I. Leaving out the I keeps small numbers exact: (I + E)² = I + (2E + E²).
    plain = torch.add(B, B2, alpha=x[0] / c)
    for Y, share in zip(hermitian[1:], x[1:], strict=True):
        plain.add_(Y, alpha=share / c)
    E = addmm_into(plain, hermitian[-1], torch.add(B, B2, alpha=b / a), c, a)
    roots = []
    for _ in range(s):
        roots.append(E)
        E = addmm(E, E, E, 2)
    E.diagonal(dim1=-2, dim2=-1).add_(1)
    # In single precision rounding moves the product off the rotations by some 1e-6.
    W = tighten(E) if E.dtype.to_real() == torch.float32 else E
    if captured:
        assert angle_range is not None
        W = angle_range.check(W, B2)
    return W, (B, *hermitian, *roots)


def exponential_vjp(G: Tensor, B: Tensor, *saved: Tensor) -> Tensor:
    """Return a gradient of B, whose skew-Hermitian part counts, from the gradient G of exp(B)."""
    most = len(POLYNOMIALS[B.dtype.to_real()])
    hermitian, roots = saved[:most], saved[most:]
    c, x, steps, a, b = polynomial(B.dtype, len(hermitian), len(roots))
    for E in reversed(roots):
        G = addmm_into(addmm(G, G, E.mH, 2), E.mH, G)
    # Backwards through E = cB + Σ xY + Y(aB + bB²) with the last Y: `right` is the gradient of the bracket, S of Y.
    right = hermitian[-1] @ G
    S = addmm(G, G, torch.add(B, hermitian[0], alpha=b / a).mH, x[-1], a)
    square = b * right  # the gradient of B² besides that of its Y
    for Y, (p, q, r), share in zip(hermitian[-2::-1], reversed(steps), x[-2::-1], strict=True):
        # The Hermitian part of S counts, and then YS is the adjoint of SY.
        S = S + S.mH
        if r:
            square.add_(S, alpha=r / 2)
        S = addmm_into(torch.add(G, S, alpha=q / 2 / share), S, Y, share, p)
    S.add_(square)
    S = S + S.mH
    # And BS is minus the adjoint of SB.
    return addmm_into(torch.add(G, right, alpha=a / c), S, B, c, -1)
