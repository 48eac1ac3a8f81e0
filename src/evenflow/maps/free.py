"""The map without a constraint: the matrix is the free numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from evenflow import init as starts
from evenflow.checks import number, one_of
from evenflow.maps.map import Map

STARTS: dict[str, Callable[..., Tensor]] = {
    "orthogonal": starts.orthogonal,
    "identity": starts.identity,
    "glorot_normal": starts.glorot_normal,
    "glorot_uniform": starts.glorot_uniform,
    "spectral_radius": starts.spectral_radius,
}


class Free(Map):
    """The unconstrained matrix, ``W = raw``, with a choice of starting values.

    Shapes:
        raw ``(..., rows, columns)``, matrix the same. ``rows · columns`` numbers, no cost.

    Args:
        rows, columns: see `Map`.
        init: ``"orthogonal"`` (default), ``"identity"``, ``"glorot_normal"``, ``"glorot_uniform"`` or
            ``"spectral_radius"``: normal numbers scaled to `radius`.
        radius: largest absolute eigenvalue at the start, for ``init="spectral_radius"`` alone.

    Starting value: as `init` says. `attach` leaves the weight a plain parameter.

    >>> Free(3, init="identity").start()[0].diagonal()
    tensor([1., 1., 1.])
    """

    _checked = True  # its numbers are the matrix

    def __init__(
        self, rows: int, columns: int | None = None, *, init: str = "orthogonal", radius: float | None = None
    ) -> None:
        super().__init__(rows, columns)
        one_of("init", init, STARTS)
        if init == "spectral_radius":
            self.need_square()
            radius = 1.0 if radius is None else radius
            number("radius", radius, above=0)
        elif radius is not None:
            raise ValueError(
                f"radius is a setting of init='spectral_radius' alone, got radius={radius!r} with {init!r}"
            )
        self.init, self.radius = init, radius

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.rows, self.columns),)

    def matrix(self, *raw: Tensor) -> Tensor:
        return raw[0]

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        return (matrix.clone(),)

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        options = {} if self.radius is None else {"radius": self.radius}
        return (STARTS[self.init](self.rows, self.columns, generator=generator, **options),)
