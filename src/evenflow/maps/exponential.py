"""Rotations as exponentials of skew-symmetric matrices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from evenflow.checks import one_of
from evenflow.maps.logarithm import unitary_log
from evenflow.maps.matrix_operations import tighten
from evenflow.maps.skew import Skew
from evenflow.maps.squaring import WithAngleRange, exponential, exponential_vjp
from evenflow.runtime.torch_state import is_tracing

GRADIENTS = ("exact", "plumbley")
METHODS = ("squaring", "eigen")


class Exponential(WithAngleRange, Skew):
    """``W = exp(B)`` of a skew-symmetric B: every rotation (orthogonal, determinant +1).

    Shapes:
        raw ``(..., n(n-1)/2)``, matrix ``(..., n, n)``. n(n-1)/2 numbers; 14 products of n x n matrices for a
        value and its gradient at the default start (in float64: 21; on a GPU: 20), three more each time the largest
        angle doubles.

    Args:
        gradient: ``"exact"``, or ``"plumbley"``: ``dB = G Wᵀ - W Gᵀ`` with G the gradient of W, which is exact at
            B = 0 only and costs one product.
        method: ``"squaring"``: a polynomial of ``B / 2ˢ``, squared s times. ``"eigen"``: the eigenvectors of the
            Hermitian iB, as in Lin and Wang; several times slower, see ``benchmarks/maps.py``.
        init: ``"henaff"`` (default), ``"cayley"``, ``"haar"`` or ``"identity"``, see `Skew`.
        rows, columns, precision: see `Map`.

    Starting value: 2 x 2 rotations with angles U(-π, π), the usual start of expRNN.

    >>> map = Exponential(64)
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Note, the gradient: neither method divides by a difference of eigenvalues, so that the gradient is right at B = 0
    and at equal eigenvalues.
    Note, CUDA: s is read from the device once per value. In a CUDA graph it is fixed for a range of angles; numbers
    beyond the range give a matrix of nan, see `squaring.AngleRange`.

    Reference: Lin and Wang 2018; Plumbley 2004; Lezcano-Casado and Martínez-Rubio 2019.
    """

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        gradient: str = "exact",
        method: str = "squaring",
        init: str = "henaff",
        precision: str | None = None,
    ) -> None:
        super().__init__(rows, columns, init=init, precision=precision)
        one_of("gradient", gradient, GRADIENTS)
        one_of("method", method, METHODS)
        self.gradient, self.method = gradient, method
        self.capturable = method != "eigen"  # the eigenvalue solver synchronises with the host

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        B = self.skew(raw[0])
        return _eigen(B) if self.method == "eigen" else exponential(B, self.angle_range)

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        if self.gradient == "plumbley":
            return (self.pack(G @ W.mT),)
        return (self.pack(_eigen_vjp(G, *saved) if self.method == "eigen" else exponential_vjp(G, *saved)),)

    def plain(self, *raw: Tensor) -> Tensor:
        if self.gradient == "plumbley":
            raise ValueError("gradient='plumbley' is a rule for one gradient; it has no gradient of its own")
        B = self.skew(raw[0])
        # In float32 torch's is off by some 1e-5, with which lengths are not preserved.
        return torch.linalg.matrix_exp(B if B.device.type == "mps" else B.double()).to(B.dtype)

    def matrix(self, *raw: Tensor) -> Tensor:
        if is_tracing():
            return torch.ops.evenflow.exponential(raw[0], self.rows, self.gradient, self.method)
        return super().matrix(*raw)

    def logarithm(self, matrix: Tensor) -> Tensor:
        if torch.linalg.det(matrix) < 0:
            raise ValueError(
                "Exponential makes rotations (determinant +1) alone, got a matrix of determinant -1; use Householder"
            )
        return unitary_log(matrix)

    def block(self, angle: Tensor) -> Tensor:
        return angle

    def extra_repr(self) -> str:
        return f"{self.rows}, gradient={self.gradient!r}, method={self.method!r}, init={self.init!r}"


def _eigen(B: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    # iB is Hermitian: B = -i U diag(λ) Uᴴ.
    values, U = torch.linalg.eigh(B * 1j)
    W = ((U * torch.exp(-1j * values).unsqueeze(-2)) @ U.mH).real.contiguous()
    return tighten(W) if W.dtype == torch.float32 else W, (values, U)


def _eigen_vjp(G: Tensor, values: Tensor, U: Tensor) -> Tensor:
    a, b = values.unsqueeze(-1), values.unsqueeze(-2)
    # (e^{-ia} - e^{-ib}) / (-i(a - b)) with its limit at a = b.
    ratio = torch.exp(-0.5j * (a + b)) * torch.sinc((a - b) / (2 * math.pi))
    return (U @ ((U.mH @ G.to(U.dtype) @ U) * ratio.conj()) @ U.mH).real


# For torch.compile, which cannot trace a number read from the device: the matrix and its gradient as two operators.


@torch.library.custom_op("evenflow::exponential", mutates_args=())
def _operator(raw: Tensor, n: int, gradient: str, method: str) -> Tensor:
    return Exponential(n, gradient=gradient, method=method).evaluate(raw)[0]


@torch.library.custom_op("evenflow::exponential_backward", mutates_args=())
def _operator_backward(raw: Tensor, n: int, gradient: str, method: str, G: Tensor) -> Tensor:
    map = Exponential(n, gradient=gradient, method=method)
    W, saved = map.evaluate(raw)
    return map.vjp(G, W, *saved)[0]


@_operator.register_fake
def _(raw: Tensor, n: int, gradient: str, method: str) -> Tensor:
    return raw.new_empty(*raw.shape[:-1], n, n)


@_operator_backward.register_fake
def _(raw: Tensor, n: int, gradient: str, method: str, G: Tensor) -> Tensor:
    return torch.empty_like(raw)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    raw, *ctx.settings = inputs
    ctx.save_for_backward(raw)


def _gradient(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
    (raw,) = ctx.saved_tensors
    return torch.ops.evenflow.exponential_backward(raw, *ctx.settings, G), None, None, None


_operator.register_autograd(_gradient, setup_context=_keep)
