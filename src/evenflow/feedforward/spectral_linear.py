"""A linear layer whose singular values are held within a margin."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from evenflow import maps
from evenflow.checks import whole_number
from evenflow.runtime.picklable import Picklable
from evenflow.runtime.rewritten import NotQuantized

Reflectors = int | tuple[int, int] | None


class SpectralLinear(Picklable, NotQuantized, nn.Linear):
    """``y = W x + b`` with ``W = U diag(s) Vᵀ``, any shape, and every s_i within ``center ± margin``.

    Shapes:
        x ``(..., in_features)``, y ``(..., out_features)``. Numbers: ``m(in + out) - m(m-1) + min(in, out)`` for W with
        m reflectors on either side, and ``out`` for b.

    Args:
        in_features, out_features, bias, device, dtype: as in `torch.nn.Linear`.
        reflectors: number on each side, or a pair. Default: min(in, out), with which W can be every matrix that the
            margin allows (Theorem 4 of the document).
        center: the middle of the interval of singular values. Default: 1.
        margin: half of its length, or None for no bound. Default: 0.01.
        bound: ``"sigmoid"`` (default) or ``"clip"``, see `maps.SVD`.
        generator: source of the initial numbers. Default: torch's global generator.

    Starting value: random reflectors, every s_i at the center, b zero.

    >>> layer = SpectralLinear(784, 128, margin=0.1)
    >>> bool((torch.linalg.svdvals(layer.weight) - 1).abs().max() < 1e-5)
    True

    Reference: Zhang, Lei and Dhillon 2018.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        reflectors: Reflectors = None,
        center: float = 1.0,
        margin: float | str | None = 0.01,
        bound: str = "sigmoid",
        generator: torch.Generator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        whole_number("in_features", in_features, 1)
        whole_number("out_features", out_features, 1)
        super().__init__(in_features, out_features, bias, device, dtype)
        map = maps.SVD(out_features, in_features, reflectors=reflectors, center=center, margin=margin, bound=bound)
        maps.attach(self, "weight", map, generator=generator)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw new initial values."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if parametrize.is_parametrized(self, "weight"):
            map, raw = self._svd()
            with torch.no_grad():
                for number, first in zip(raw, map.start(generator), strict=True):
                    number.copy_(first)

    @torch.no_grad()
    def share_reflectors(self) -> None:
        """Copy the reflectors of U to V, so that ``W = U diag(s) Uᵀ``, the identity if every s_i is 1; W is square."""
        if self.in_features != self.out_features:
            raise ValueError(f"share_reflectors needs a square layer, got {self.in_features} to {self.out_features}")
        _, (u, v, _) = self._svd()
        if u.shape != v.shape:
            raise ValueError(
                f"share_reflectors needs as many reflectors on either side, got {len(u)} and {len(v)} numbers"
            )
        v.copy_(u)

    def singular_values(self) -> Tensor:
        """Return s ``(min(in, out))``, without the matrix."""
        map, raw = self._svd()
        return map.singular_values(*raw)

    def _svd(self) -> tuple[maps.SVD, list[Tensor]]:
        return maps.map_of(self, "weight")  # type: ignore[return-value]
