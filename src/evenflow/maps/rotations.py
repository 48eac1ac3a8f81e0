"""Orthogonal matrices as layers of plane rotations between fixed permutations."""

from __future__ import annotations

import math
from types import ModuleType

import torch
from torch import Tensor

from evenflow.maps.map import Map
from evenflow.runtime.triton_kernels import triton_module

SPREAD = 0.05  # initial angles are from U(-SPREAD, SPREAD)


class Rotations(Map):
    """``W = R_1 Q_1 ... R_k Q_k``: Q_j a fixed permutation, R_j the rotation of coordinate i with i + n/2 by θ_ji.

    Shapes:
        raw ``(..., k, n/2)``, matrix ``(..., n, n)``. kn/2 numbers, n even; `product` costs O(kn) for each row, the
        matrix n times that.

    Args:
        layers: k, from 1 to 2⌈log2 n⌉ (default).
        seed: of the permutations, which are saved in the state_dict.
        rows, columns, precision: see `Map`.

    Starting value: angles from U(-0.05, 0.05): W is almost a permutation, of either determinant.

    >>> map = Rotations(64)
    >>> bool(residual(map(*map.start())) < 1e-5)
    True

    Note, no inverse: kn/2 angles cannot make every matrix, so a matrix cannot be assigned.

    Reference: Taylor-Melanson et al. 2021.
    """

    orthogonal = True
    permutations: Tensor

    def __init__(
        self,
        rows: int,
        columns: int | None = None,
        *,
        layers: int | None = None,
        seed: int = 0,
        precision: str | None = None,
    ) -> None:
        super().__init__(rows, columns, precision=precision)
        self.need_square()
        if rows % 2:
            raise ValueError(f"Rotations turns pairs, so rows (a layer's hidden_size) must be even, got {rows}")
        most = 2 * math.ceil(math.log2(rows))
        layers = most if layers is None else layers
        if not isinstance(layers, int) or not 1 <= layers <= most:
            raise ValueError(f"layers must be from 1 to {most} (2⌈log2 {rows}⌉), got {layers!r}")
        self.layers, self.seed = layers, seed
        self.register_buffer("permutations", self._permutations().to(torch.get_default_device()))

    def _permutations(self) -> Tensor:
        source = torch.Generator().manual_seed(self.seed)
        draws = [torch.randperm(self.rows, generator=source, device="cpu") for _ in range(self.layers)]
        return torch.stack(draws)

    def reset_buffers(self) -> None:
        self.permutations.copy_(self._permutations())

    @property
    def raw_shapes(self) -> tuple[tuple[int, ...], ...]:
        return ((self.layers, self.rows // 2),)

    def evaluate(self, *raw: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        kernel = _kernel(raw[0])
        W = self.layered_forward(raw[0]) if kernel is None else kernel.forward(raw[0], self.permutations)
        return W, (raw[0],)

    def vjp(self, G: Tensor, W: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
        kernel = _kernel(W)
        if kernel is None:
            return (self.layered_vjp(G, W, saved[0]),)
        return (kernel.vjp(G, W, saved[0], self.permutations),)

    def layered_forward(self, angles: Tensor) -> Tensor:
        """Return the matrix, layer by layer."""
        # Coordinates are rows here, so that a permutation moves whole rows. In float64: in float32, cos² + sin² is off
        # by 6e-8, and these errors add up over the layers.
        full = angles.double()
        cos, sin = (x.unsqueeze(-1).unbind(-3) for x in (full.cos(), full.sin()))
        W = torch.eye(self.rows, dtype=full.dtype, device=full.device).expand(*full.shape[:-2], -1, -1)
        for k in reversed(range(self.layers)):
            W = _rotate(W.index_select(-2, self.permutations[k]), cos[k], sin[k])
        return W.to(angles.dtype)

    def layered_vjp(self, G: Tensor, W: Tensor, angles: Tensor) -> Tensor:
        """Return the gradient of the angles. The opposite rotations undo each layer, so that no layer is saved."""
        cos, sin = (x.unsqueeze(-1).unbind(-3) for x in (angles.cos(), -angles.sin()))
        back = self.permutations.argsort()
        pair, half = torch.cat((W, G), -1), self.rows // 2
        slopes = []
        for k in range(self.layers):
            (a, b), (da, db) = (x.split(half, -2) for x in pair.split(self.rows, -1))
            slopes.append((db * a).sub_(da * b).sum(-1))
            pair = _rotate(pair, cos[k], sin[k]).index_select(-2, back[k])
        return torch.stack(slopes, -2)

    def plain(self, *raw: Tensor) -> Tensor:
        eye = torch.eye(self.rows, dtype=raw[0].dtype, device=raw[0].device)
        return self._rotate_rows(eye.expand(*raw[0].shape[:-2], -1, -1), raw[0]).mT

    def product(self, h: Tensor, *raw: Tensor) -> Tensor:
        return self._rotate_rows(h, self.full(*raw)[0])

    def _rotate_rows(self, h: Tensor, angles: Tensor) -> Tensor:
        # For rows (..., B, n) the angles of each layer are (..., 1, n/2).
        rows = angles.unsqueeze(-2) if angles.dim() > 2 else angles
        layer = -3 if angles.dim() > 2 else -2
        cos, sin = rows.cos().to(h.dtype).unbind(layer), rows.sin().to(h.dtype).unbind(layer)
        for k in reversed(range(self.layers)):
            a, b = h.index_select(-1, self.permutations[k]).chunk(2, -1)
            h = torch.cat((cos[k] * a - sin[k] * b, sin[k] * a + cos[k] * b), -1)
        return h

    def inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        raise ValueError(
            f"Rotations cannot be given a matrix: {self.parameter_count} angles do not make every one; set the angles"
        )

    def start(self, generator: torch.Generator | None = None) -> tuple[Tensor, ...]:
        where = None if generator is None else generator.device
        draw = torch.rand(self.layers, self.rows // 2, generator=generator, device=where).cpu()
        return ((2 * draw - 1) * SPREAD,)

    def extra_repr(self) -> str:
        return f"{self.rows}, layers={self.layers}, seed={self.seed}"


def _kernel(tensor: Tensor) -> ModuleType | None:
    """Return the module of CUDA kernels, or None if they cannot run."""
    return triton_module("evenflow.maps.rotations_cuda", tensor) if tensor.is_cuda else None


def _rotate(X: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate rows i and i + n/2 of X ``(..., n, B)`` by the angle i of ``(..., n/2, 1)``."""
    a, b = X.chunk(2, -2)
    out = torch.empty_like(X)
    top, bottom = out.chunk(2, -2)
    torch.mul(a, cos, out=top).addcmul_(b, sin, value=-1)
    torch.mul(a, sin, out=bottom).addcmul_(b, cos)
    return out
