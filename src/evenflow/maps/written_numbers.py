"""Notices numbers of a map that were written as if they were the matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

HOW = "assign the matrix itself, as in layer.weight_hh_l0 = matrix"


def check_shapes(name: str, raw: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise a ValueError for numbers of another shape than a map needs, such as a matrix in their place."""
    if any(r.shape[max(r.dim() - len(shape), 0) :] != shape for r, shape in zip(raw, shapes, strict=True)):
        expected, got = (", ".join(str(tuple(s)) for s in each) for each in (shapes, [r.shape for r in raw]))
        raise ValueError(f"{name} makes its matrix of free numbers of shape {expected}, got {got}; {HOW}")


def warn_of_orthogonal(name: str, raw: Sequence[Tensor], stiefel: Sequence[bool]) -> None:
    """Warn if `torch.nn.init.orthogonal_` or `eye_` was applied to numbers that are no matrix."""
    for r, bases in zip(raw, stiefel, strict=True):
        if bases or not r.is_cpu or r.dim() != 2 or min(r.shape) < 2:
            continue
        with torch.no_grad():
            rows = (r if r.shape[0] <= r.shape[1] else r.mT).double()
            orthogonal = torch.allclose(rows @ rows.mT, torch.eye(len(rows), dtype=rows.dtype), atol=1e-4)
        if orthogonal:
            warnings.warn(
                f"the free numbers of {name} were overwritten with an orthogonal matrix. They are not the matrix: the "
                f"map makes it of them. To set it, {HOW}",
                UserWarning,
                stacklevel=2,
            )
