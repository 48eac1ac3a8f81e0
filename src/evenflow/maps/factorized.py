"""Matrices by their singular value decomposition, with bases that an optimiser keeps orthonormal."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.checks import one_of
from evenflow.maps.free import STARTS
from evenflow.maps.singular_values import SingularValues, WithSingularValues
from evenflow.runtime.torch_state import ieee_products


class Factorized(WithSingularValues):
    """``W = U diag(s) Vᵀ``; U and V are raw parameters, which must keep orthonormal columns.

    U and V need an optimiser for the Stiefel manifold, such as `GeodesicSGD`. `stiefel` and `parameter_groups` mark
    them.

    Shapes:
        raw: U ``(..., rows, k)``, V ``(..., columns, k)``, p ``(..., k)`` with k = min(rows, columns); matrix
        ``(..., rows, columns)``. k(rows + columns + 1) numbers, one product.

    Args:
        center, margin, bound: s* (1), r (0.01; None: no bound) and how (``"sigmoid"`` or ``"clip"``), see
            `SingularValues`.
        init: the matrix whose bases are the first ones: ``"orthogonal"`` (default), ``"identity"``,
            ``"glorot_normal"`` or ``"glorot_uniform"``.
        rows, columns, precision: see `Map`.

    Starting value: those bases; all singular values s*, or those of the matrix where there is no bound.

    Note, learning rate: that of p is divided by 2r, so that the margin does not change how fast s moves; see `rates`.

    >>> map = Factorized(64, margin=0.1)
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Reference: Vorontsov et al. 2017.
    """

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        center: float = 1.0,
        margin: float | str | None = 0.01,
        bound: str = "sigmoid",
        init: str = "orthogonal",
        precision: str | None = None,
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        one_of("init", init, [name for name in STARTS if name != "spectral_radius"])
        self.rank, self.init, self.spectrum = min(self.rows, self.columns), init, SingularValues(center, margin, bound)

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return (self.rows, self.rank), (self.columns, self.rank), (self.rank,)

    @property
    def rates(self) -> tuple[float, ...]:
        sigmoid = self.spectrum.bound == "sigmoid" and self.spectrum.margin
        return 1.0, 1.0, 1 / (2 * sigmoid) if sigmoid else 1.0

    @property
    def stiefel(self) -> tuple[bool, ...]:
        return True, True, False

    def matrix(self, *raw: Tensor) -> Tensor:
        left = raw[0] * self.singular_values(*raw).unsqueeze(-2)
        if torch.compiler.is_compiling():
            return left @ raw[1].mT
        with ieee_products(left):  # TF32 cannot resolve a margin of a thousandth
            return left @ raw[1].mT

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        U, s, Vh = torch.linalg.svd(matrix.double(), full_matrices=False)
        return U, Vh.mT, self.spectrum.inverse(s)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        first = STARTS[self.init](self.rows, self.columns, generator=generator, dtype=torch.float64, device="cpu")
        U, s, Vh = torch.linalg.svd(first, full_matrices=False)
        p = s.float() if self.spectrum.margin is None else self.spectrum.start(self.rank)
        return U.float().contiguous(), Vh.mT.float().contiguous(), p

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.spectrum}, init={self.init!r}"
