"""Initial matrices: each a function of its size and a generator.

Arguments of all of them: `rows` and `columns` (default: `rows`), the size; `generator`, the source of the random
numbers (default: torch's global one); `dtype` and `device` of the result. One seed gives one matrix in every dtype.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

from evenflow.checks import number, whole_number


def orthogonal(
    rows: int,
    columns: int | None = None,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """A matrix drawn uniformly (Haar) from the orthogonal ones; semi-orthogonal if it is not square.

    >>> W = orthogonal(4, generator=torch.Generator().manual_seed(0))
    >>> bool((W.T @ W - torch.eye(4)).abs().max() < 1e-6)
    True

    Reference: Saxe et al. 2014.
    """
    rows, columns = _size(rows, columns)
    normal = _normal(max(rows, columns), min(rows, columns), generator)
    q, r = torch.linalg.qr(normal)
    # QR alone prefers some signs; the signs of R's diagonal make the draw uniform.
    q = q * torch.where(r.diagonal() < 0, -1.0, 1.0)
    return (q if rows >= columns else q.mT).contiguous().to(device, dtype)


def identity(
    rows: int,
    columns: int | None = None,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Ones on the diagonal, zeros elsewhere; nothing is drawn.

    >>> identity(2, 3)
    tensor([[1., 0., 0.],
            [0., 1., 0.]])

    Reference: Le et al. 2015.
    """
    rows, columns = _size(rows, columns)
    return torch.eye(rows, columns, dtype=dtype, device=device)


def glorot_normal(
    rows: int,
    columns: int | None = None,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Normal numbers of variance ``2 / (rows + columns)``.

    >>> glorot_normal(64, 64).var() < 2 / 64
    tensor(True)

    Reference: Glorot and Bengio 2010.
    """
    rows, columns = _size(rows, columns)
    return (_normal(rows, columns, generator) * sqrt(2 / (rows + columns))).to(device, dtype)


def glorot_uniform(
    rows: int,
    columns: int | None = None,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Uniform numbers within ``±√(6 / (rows + columns))``.

    >>> glorot_uniform(64, 32).abs().max() <= (6 / 96) ** 0.5
    tensor(True)

    Reference: Glorot and Bengio 2010.
    """
    rows, columns = _size(rows, columns)
    where = None if generator is None else generator.device
    draw = torch.rand(rows, columns, generator=generator, dtype=torch.float64, device=where)
    return ((2 * draw - 1) * sqrt(6 / (rows + columns))).to(device, dtype)


def spectral_radius(
    rows: int,
    columns: int | None = None,
    *,
    radius: float = 1.0,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor:
    """Normal numbers scaled so that the largest eigenvalue has the absolute value `radius`. Square only.

    >>> torch.linalg.eigvals(spectral_radius(64, radius=0.9)).abs().max()
    tensor(0.9000)

    Reference: Galvan 2018.
    """
    rows, columns = _size(rows, columns)
    if rows != columns:
        raise ValueError(f"spectral_radius needs a square matrix, got {rows} x {columns}")
    number("radius", radius, above=0)
    normal = _normal(rows, columns, generator)
    return (normal * (radius / torch.linalg.eigvals(normal).abs().max())).to(device, dtype)


def _size(rows: int, columns: int | None) -> tuple[int, int]:
    columns = rows if columns is None else columns
    whole_number("rows", rows, 1)
    whole_number("columns", columns, 1)
    return rows, columns


def _normal(rows: int, columns: int, generator: torch.Generator | None) -> Tensor:
    """Normal numbers in float64, on the generator's device."""
    where = None if generator is None else generator.device
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, device=where)
