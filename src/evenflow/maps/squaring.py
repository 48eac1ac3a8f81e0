"""exp(B) of a skew-Hermitian B by squaring, and its gradient: matrix products alone."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

from evenflow.maps.chebyshev import Polynomial, nonic, quartic, sextic
from evenflow.maps.differentiated import addmm, tighten
from evenflow.runtime.recorded import Moves, is_watched

# Moves of the numbers, a few for each update, from which a map that was not replayed meanwhile is looked at anew.
RESTED = 8

# The largest angles for which the polynomials are right to rounding: by one, two and three Hermitian matrices.
ANGLES = {torch.float32: (0.12, 0.5, 1.6), torch.float64: (0.0007, 0.018, 0.2)}
POLYNOMIALS = {
    dtype: tuple(fit(angle) for fit, angle in zip((quartic, sextic, nonic), angles, strict=True))
    for dtype, angles in ANGLES.items()
}


def norm(B2: Tensor) -> Tensor:
    """For each matrix a number not below the square of B's largest angle."""
    return torch.linalg.vector_norm(B2, 1, dim=-1).amax(-1)


def largest(squares: Tensor) -> Tensor:
    """Of all matrices; one that is infinite or not a number stays so by itself and is none of the others' business."""
    return torch.where(torch.isfinite(squares), squares, 0.0).max()


def plan(angle: float, dtype: torch.dtype) -> tuple[int, int]:
    """For angles up to `angle`: of how many Hermitian matrices the polynomial is, and how often it is squared."""
    *small, most = ANGLES[dtype.to_real()]
    if not 0 < angle < math.inf:
        return 1, 0
    return 1 + sum(angle > limit for limit in small), max(0, math.ceil(math.log2(angle / most)))


def reach(angle: float, dtype: torch.dtype) -> float:
    """The largest angle for which the squarings for `angle` are enough."""
    return ANGLES[dtype.to_real()][-1] * 2.0 ** plan(angle, dtype)[1]


def polynomial(dtype: torch.dtype, count: int, s: int) -> Polynomial:
    """``exp(B / 2ˢ) - I`` by B and `count` Hermitian matrices."""
    found = POLYNOMIALS[dtype.to_real()][count - 1]
    return found.scaled(2.0**-s) if s else found


def onto(c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """`addmm` into c, which nobody needs any more: without a copy of it."""
    if c.dim() == 2:
        return c.addmm_(a, b, beta=beta, alpha=alpha)
    flat = (x.flatten(0, -3) for x in (a, b))
    return c.flatten(0, -3).baddbmm_(*flat, beta=beta, alpha=alpha).reshape(c.shape)


class Headroom:
    """The largest angle a recorded exponential is right for: a CUDA graph cannot read how large B has become.

    It is at least twice the angle at the time of recording and `ROOM` more, as far as the squarings for that reach.
    Every replay leaves the largest square of an angle it met in `most`, and on the host in `met`, so that the recording
    can be made anew once half of it is used up; a matrix beyond the largest angle is all nan.
    """

    ROOM = 6.0  # some steps of Adam with a large rate, which moves every entry alike at first
    LAG = 4  # replays by which the host may be ahead of what it knows

    def __init__(self, largest: float, most: Tensor, met: Tensor | None = None) -> None:
        self.largest, self.most, self.met = largest, most, met
        self.spent = False  # known to be used up without a replay
        self._asked: deque[torch.cuda.Event] = deque()  # one for each of the last askings

    @classmethod
    def over(cls, B: Tensor) -> Headroom:
        """For B and what it may grow to."""
        most = torch.zeros((), dtype=B.dtype.to_real(), device=B.device)
        met = torch.zeros_like(most, device="cpu", pin_memory=True)
        return cls(cls.needed(math.sqrt(largest(norm(B @ B)).item()), B.dtype), most, met)

    @classmethod
    def needed(cls, angle: float, dtype: torch.dtype) -> float:
        """The largest angle that a recording made at this one is right for."""
        return reach(2 * angle + cls.ROOM, dtype)

    def outgrown(self) -> bool:
        """Whether half of it is used up.

        Asked before each replay. It waits for what was asked for `LAG` replays ago, which leaves a GPU enough to do and
        keeps a host from running hundreds of replays ahead of an angle that grows.
        """
        if self.spent or self.met is None or torch.cuda.is_current_stream_capturing():
            return self.spent
        if len(self._asked) < self.LAG:
            self._asked.append(torch.cuda.Event())
        else:
            self._asked[0].synchronize()
            self._asked.rotate(-1)
        self._asked[-1].record(torch.cuda.current_stream(self.most.device))
        return not self.met.item() <= (self.largest / 2) ** 2

    def check(self, W: Tensor, B2: Tensor) -> Tensor:
        """W, or nan; part of the recording."""
        squares = norm(B2)
        torch.maximum(self.most, largest(squares), out=self.most)  # of all recordings that share it
        if self.met is not None:
            self.met.copy_(self.most, non_blocking=True)
        return W * torch.where(squares <= self.largest**2, 1.0, math.nan).to(W.dtype)[..., None, None]


class Recordable:
    """What a map by `exponential` adds to be recorded: its headroom, as `Map` asks for it."""

    headroom: Headroom | None = None
    _moves: int | None = None  # of the numbers, when they were last looked at

    def prepare(self, *raw: Tensor) -> None:
        needed = Headroom.over(self.skew(self.full(*raw)[0].detach()))  # type: ignore[attr-defined]
        before = self.headroom
        if before is None or before.outgrown() or needed.largest > before.largest:
            self.headroom = needed  # else recordings share it, and one look is for all

    @property
    def recorded_for(self) -> Headroom | None:
        return self.headroom

    def outgrown(self, *raw: Tensor) -> bool:
        if self.headroom is None:
            return False
        if raw:
            before, self._moves = self._moves, Moves.count + sum(0 if r.is_inference() else r._version for r in raw)
            if before is not None and self._moves - before > RESTED and not torch.cuda.is_current_stream_capturing():
                # Nothing was replayed while they moved, so nothing was seen: measure.
                B = self.skew(self.full(*raw)[0].detach())  # type: ignore[attr-defined]
                self.headroom.spent = not largest(norm(B @ B)).item() <= (self.headroom.largest / 2) ** 2
        return self.headroom.outgrown()

    def _apply(self, *args: Any, **options: Any) -> Any:
        self.headroom = None  # it lies on the device that is left
        return super()._apply(*args, **options)  # type: ignore[misc]

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        self.headroom = None  # what is loaded may be larger at once
        super()._load_from_state_dict(*args, **options)  # type: ignore[misc]

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return state | {"headroom": None}  # as the recordings it is for


def exponential(B: Tensor, headroom: Headroom | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
    """exp(B) ``(..., n, n)``, and what `exponential_vjp` needs.

    That is B, the Hermitian matrices of the polynomial, B² first, and ``exp(B / 2ᵏ) - I`` for k = s ... 1. Only a
    polynomial of all three Hermitian matrices is squared, so that their number tells how many of each there are.
    """
    B2 = B @ B
    captured = B.is_cuda and torch.cuda.is_current_stream_capturing()
    if captured:
        if headroom is None or not is_watched():
            # In a graph of the user's own nobody looks at how much is used up, so there is much of it.
            headroom = Headroom(reach(512.0, B.dtype), torch.zeros_like(largest(norm(B2))))
        angle = headroom.largest
    else:
        angle = math.sqrt(largest(norm(B2)).item()) if B2.numel() else 0.0
        if B.is_cuda:  # as often as in a recording, so that bits do not change once there is one
            known = -1.0 if headroom is None else headroom.largest
            angle = known if angle <= known else Headroom.needed(angle, B.dtype)
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
    E = onto(plain, hermitian[-1], torch.add(B, B2, alpha=b / a), c, a)
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
    return W, (B, *hermitian, *roots)


def exponential_vjp(G: Tensor, B: Tensor, *saved: Tensor) -> Tensor:
    """A gradient of B, of which the skew-Hermitian part counts, from the gradient G of exp(B)."""
    most = len(POLYNOMIALS[B.dtype.to_real()])
    hermitian, roots = saved[:most], saved[most:]
    c, x, steps, a, b = polynomial(B.dtype, len(hermitian), len(roots))
    for E in reversed(roots):
        G = onto(addmm(G, G, E.mH, 2), E.mH, G)
    # Backwards through E = cB + Σ xY + Y(aB + bB²) with the last Y: `right` is the gradient of the bracket, S of Y.
    right = hermitian[-1] @ G
    S = addmm(G, G, torch.add(B, hermitian[0], alpha=b / a).mH, x[-1], a)
    square = b * right  # what B² gets besides what its own Y gets
    for Y, (p, q, r), share in zip(hermitian[-2::-1], reversed(steps), x[-2::-1], strict=True):
        # Of S the Hermitian half counts, and then YS is the adjoint of SY.
        S = S + S.mH
        if r:
            square.add_(S, alpha=r / 2)
        S = onto(torch.add(G, S, alpha=q / 2 / share), S, Y, share, p)
    S.add_(square)
    S = S + S.mH
    # And BS is minus the adjoint of SB.
    return onto(torch.add(G, right, alpha=a / c), S, B, c, -1)
