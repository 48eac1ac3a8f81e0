"""The cell of the Lipschitz recurrent network."""

from __future__ import annotations

from torch import Tensor

from evenflow.cells.cell import Cell, Change, Matrix, unchanged
from evenflow.checks import number


class LipschitzStep(Cell):
    """``h_t = h_{t-1} + ε (A h_{t-1} + tanh(W_hh h_{t-1} + W_ih x_t + b))``: Euler steps of a stable equation.

    Args:
        epsilon: ε, the length of a step. Default: 0.03.

    Weights:
        weight_ih ``(H, I)``, bias ``(H)``, weight_hh and weight_ah ``(H, H)``, the W_hh and the A. With the map
        ``"symmetric_skew"`` both are ``(1 - β)(M + Mᵀ) + β (M - Mᵀ) - γ I`` as in the paper.

    >>> layer = LipschitzRNN(2, 128, epsilon=0.1)  # the same as Recurrent(cells.LipschitzStep(epsilon=0.1), 2, 128)
    >>> output, h_n = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    Reference: Erichson, Azencot, Queiruga, Hodgkinson and Mahoney 2021.
    """

    recurrent = ("weight_hh", "weight_ah")
    equation = "h = h + ε (A h + tanh(W x + b + U h))"

    def __init__(self, epsilon: float = 0.03) -> None:
        number("epsilon", epsilon, above=0)
        self.epsilon = epsilon

    def settings(self) -> dict[str, object]:
        return {"epsilon": self.epsilon}

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return Matrix("weight_hh", hidden_size), Matrix("weight_ah", hidden_size)

    def step(self, a: Tensor, h: Tensor, U: Tensor, A: Tensor, *, read: Change = unchanged) -> Tensor:
        return h + self.epsilon * (read(h) @ A.mT + (a + read(h) @ U.mT).tanh())
