"""The gated form of the antisymmetric recurrent cell."""

from __future__ import annotations

from torch import Tensor

from evenflow.cells.cell import Cell, Change, Matrix, unchanged
from evenflow.checks import number


class GatedAntisymmetric(Cell):
    """``h_t = h_{t-1} + ε z tanh(U h_{t-1} + W_n x_t + b_n)`` with a gate ``z = σ(U h_{t-1} + W_z x_t + b_z)``.

    Gate and candidate share U. The paper's U is M - Mᵀ - γ I, the layer's map ``"antisymmetric"``.

    Args:
        epsilon: ε, the length of a step. Default: 0.01.

    Weights: weight_ih ``(2H, I)`` and bias ``(2H)``, in the order z, n; weight_hh ``(H, H)``.

    >>> layer = GatedAntisymmetricRNN(2, 128, epsilon=0.1)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Chang, Chen, Haber and Chi 2019, equation 15.
    """

    blocks = 2
    equation = "h = h + ε z tanh(W x + b + U h), z = σ(W x + b + U h)"

    def __init__(self, epsilon: float = 0.01) -> None:
        number("epsilon", epsilon, above=0)
        self.epsilon = epsilon

    def settings(self) -> dict[str, object]:
        return {"epsilon": self.epsilon}

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return (Matrix("weight_hh", hidden_size),)

    def step(self, a: Tensor, h: Tensor, U: Tensor, *, read: Change = unchanged) -> Tensor:
        a_z, a_n = a.chunk(2, -1)
        u = read(h) @ U.mT
        return h + self.epsilon * (a_z + u).sigmoid() * (a_n + u).tanh()
