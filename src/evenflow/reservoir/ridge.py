"""Ridge regression from data that comes in pieces."""

from __future__ import annotations

import torch
from torch import Tensor


class Ridge:
    """``min_W,b  Σ w |y - W φ - b|² + λ |W|²``, solved directly from running sums.

    Means and centred products are merged piece by piece in float64, so that a series of any length needs memory for
    ``(F + O) F`` numbers, and an offset in the data costs no precision. b is not penalised.

    Shapes:
        φ ``(N, F)``, y ``(N, O)``, w ``(N)`` of each piece; W ``(O, F)``, b ``(O)``.

    >>> ridge = Ridge()
    >>> for features, targets in zip(series.split(250), series.square().split(250)):
    ...     ridge.add(features, targets)
    >>> W, b = ridge.solve(1e-6)

    Reference: Chan, Golub and LeVeque 1983 (the merging).
    """

    def __init__(self) -> None:
        self.count = 0.0
        self.mean = torch.zeros(0, dtype=torch.float64)
        self.products = torch.zeros(0, 0, dtype=torch.float64)
        self.features = 0

    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Merge one piece into the sums.

        Args:
            weights: w, above zero; a weight of 2 counts as the same row twice. Default: 1.
        """
        if len(features) == 0:
            return
        rows = torch.cat((features, targets), -1).double()
        if not bool(rows.isfinite().all()):
            raise ValueError("x and y must hold finite numbers, got inf or nan in the states or the targets")
        weight = None if weights is None else weights.to(rows)[:, None]
        count = len(rows) if weight is None else float(weight.sum())
        mean = rows.mean(0) if weight is None else (weight * rows).sum(0) / count
        rows = rows - mean
        products = rows[:, : features.shape[-1]].mT @ (rows if weight is None else weight * rows)
        if self.count == 0:
            self.count, self.mean, self.products, self.features = count, mean, products, features.shape[-1]
            return
        if mean.shape != self.mean.shape or features.shape[-1] != self.features:
            outputs = len(self.mean) - self.features
            raise ValueError(f"y must be as wide as before, {outputs}, got {targets.shape[-1]}")
        mean, products = mean.to(self.mean.device), products.to(self.mean.device)  # the network may have moved
        both = self.count + count
        shift = mean - self.mean
        self.products += products + torch.outer(shift[: self.features], shift) * (self.count * count / both)
        self.mean += shift * (count / both)
        self.count = both

    def solve(self, penalty: float) -> tuple[Tensor, Tensor]:
        """W and b in float64; the smallest W if there are several solutions."""
        if self.count == 0:
            raise ValueError("there is nothing to solve from: no step was seen beyond the washout")
        inner, outer = self.products.split((self.features, len(self.mean) - self.features), -1)
        system = inner.clone()
        system.diagonal().add_(penalty)
        factor, failed = torch.linalg.cholesky_ex(system)
        if int(failed) == 0 and penalty > 0:
            W = torch.cholesky_solve(outer, factor).mT
        else:
            W = (torch.linalg.pinv(system, hermitian=True) @ outer).mT
        return W, self.mean[self.features :] - W @ self.mean[: self.features]
