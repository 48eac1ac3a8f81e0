"""The plain recurrent cell with complex units, for unitary matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow.activations import ACTIVATIONS
from evenflow.cells.cell import Cell, Change, Matrix, Weights, unchanged
from evenflow.cells.complex_pairs import complex_units


class ComplexElman(Cell):
    """``z_t = f(W_ih x_t + b + W_hh z_{t-1})`` with complex z and ``f(a) = a/|a| max(|a| + p, 0)``, complex modrelu.

    Shapes:
        All tensors outside the cell are real: n = H / 2 complex units are a state ``(B, H)``, first the n real parts,
        then the n imaginary parts. H is even.

    Weights:
        weight_ih ``(H, I)`` and bias ``(H)``, real parts first; weight_hh ``(n, n)``, complex with a unitary map (a
        real matrix acts on both parts alike); activation ``(n)``, the p, from U(-0.01, 0.01).

    The loop over time runs on the real form ``[[Re, -Im], [Im, Re]]`` of weight_hh, computed once per call. It is
    that of `Elman` with the activation `complex_modrelu`.

    >>> layer = Recurrent(cells.ComplexElman(), 2, 128, map="unitary")  # 64 complex units
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    References: Arjovsky et al. 2016; Wisdom et al. 2016.
    """

    takes_complex = True
    activation = ACTIVATIONS["complex_modrelu"]
    parameters = ("activation",)
    equation = "z = f(W x + b + U z), f(a) = a/|a| max(|a| + p, 0)"

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return (Matrix("weight_hh", complex_units(hidden_size)),)

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        return self.activation.weights(hidden_size, generator)

    def prepare(self, weights: Weights) -> Weights:
        U = weights["weight_hh"]
        real, imaginary = (U.real, U.imag) if U.is_complex() else (U, torch.zeros_like(U))
        whole = torch.cat([torch.cat([real, -imaginary], -1), torch.cat([imaginary, real], -1)])
        # There is no complex bfloat16: the map then returns complex64.
        return {**weights, "weight_hh": whole.to(weights["weight_ih"].dtype)}

    def step(self, a: Tensor, h: Tensor, U: Tensor, p: Tensor, *, read: Change = unchanged) -> Tensor:
        return self.activation(a + read(h) @ U.mT, p)
