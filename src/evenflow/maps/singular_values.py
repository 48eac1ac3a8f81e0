"""Singular values held within a margin, for the two SVD maps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow.checks import one_of
from evenflow.maps.map import Map

BOUNDS = ("sigmoid", "clip")
ROUNDING = 1e-5  # share of the margin by which a singular value may lie outside and count as on its edge


class SingularValues:
    """k singular values from k free numbers.

    ``"sigmoid"``: ``s = 2r(σ(p) - ½) + s*``, inside [s* - r, s* + r] for every p. ``"clip"``: s = p, and p is cut to
    that interval after each update, by `fit` or by `maps.move_bases` in a loop of your own, so that a value at the edge
    can come back. Before that, p outside of the interval counts as its edge. ``margin=None``: s = p, anything. A margin
    above s* lets s be negative.

    Args:
        center: s*, the middle.
        margin: r, at least 0. None, or ``"none"`` in a TOML file, for no bound.
        bound: ``"sigmoid"`` or ``"clip"``.

    Reference: Vorontsov et al. 2017.
    """

    def __init__(self, center: float, margin: float | str | None, bound: str) -> None:
        if margin == "none":
            margin = None
        if margin is not None and (isinstance(margin, str) or not 0 <= margin < float("inf")):
            raise ValueError(f"margin must be a number of at least 0, or None for no bound, got {margin!r}")
        one_of("bound", bound, BOUNDS)
        self.center, self.margin, self.bound = float(center), margin, bound

    def values(self, p: Tensor) -> Tensor:
        """Return the singular values of the numbers p."""
        if self.margin is None:
            return p
        if self.bound == "clip":
            return p.clamp(*self.interval)
        return self.margin * torch.tanh(p / 2) + self.center  # tanh(p/2) = 2σ(p) - 1

    @property
    def interval(self) -> tuple[float, float]:
        """The least and the largest singular value; infinite without a bound."""
        margin = math.inf if self.margin is None else self.margin
        return self.center - margin, self.center + margin

    def derivatives(self, p: Tensor) -> Tensor:
        """Return the derivative of each singular value by its number."""
        if self.margin is None:
            return torch.ones_like(p)
        if self.bound == "clip":
            low, high = self.interval
            return ((p >= low) & (p <= high)).to(p.dtype)  # at the edge itself 1, so that p can come back
        return 0.5 * self.margin * (1 - torch.tanh(p / 2).square())

    def allows(self, s: Tensor) -> bool:
        """Return True if all singular values lie within the margin, up to rounding."""
        if self.margin is None:
            return True
        return (s - self.center).abs().max().item() <= self.margin + ROUNDING * max(self.margin, self.margin == 0)

    def inverse(self, s: Tensor) -> Tensor:
        """Return numbers that give the singular values s, or raise a ValueError."""
        if self.margin is None:
            return s
        if not self.allows(s):
            low, high = self.interval
            raise ValueError(
                f"singular values must lie within [{low:g}, {high:g}], got ones from {s.min():.4g} to {s.max():.4g}"
            )
        if self.bound == "clip" or self.margin == 0:
            return s
        edge = 1 - torch.finfo(s.dtype).eps
        return 2 * torch.atanh(((s - self.center) / self.margin).clamp(-edge, edge))

    def start(self, count: int) -> Tensor:
        """Return numbers that give s* everywhere."""
        return torch.full((count,), self.center if self.margin is None or self.bound == "clip" else 0.0)

    def __repr__(self) -> str:
        return f"center={self.center:g}, margin={self.margin}, bound={self.bound!r}"


class WithSingularValues(Map):
    """A map whose third raw tensor holds the singular values of the matrix, within the margin of `spectrum`."""

    spectrum: SingularValues

    def singular_values(self, *raw: Tensor) -> Tensor:
        """Return s ``(..., min(rows, columns))`` without the matrix; with a margin above s* some may be negative."""
        return self.spectrum.values(raw[2])

    @torch.no_grad()
    def project(self, *raw: Tensor) -> None:
        if self.spectrum.bound == "clip":
            raw[2].clamp_(*self.spectrum.interval)

    def penalty(self, *raw: Tensor) -> Tensor:
        """Return ``|s - s*|²``, a penalty for the loss in place of a bound (``margin=None``)."""
        return (self.singular_values(*raw) - self.spectrum.center).square().sum(-1)
