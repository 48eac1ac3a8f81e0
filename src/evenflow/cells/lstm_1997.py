"""The long short-term memory cell as it was in 1997."""

from __future__ import annotations

from torch import Tensor

from evenflow.cells.cell import Cell, Change, unchanged
from evenflow.checks import one_of

GRADIENTS = ("truncated", "full")


class LSTM1997(Cell):
    """``c_t = c_{t-1} + σ(i) tanh(g)``, ``h_t = σ(o) tanh(c_t)``, with (i, g, o) = W_ih x_t + b + W_hh h_{t-1}.

    There is no forget gate: the memory keeps its value, and its gradient, ∂c_t/∂c_{t-1} = 1.

    Args:
        gradient: ``"truncated"``, the learning rule of 1997: a gradient at the input of a gate or of the cell changes
            the weights there and is not carried back in time; the gradient inside the memory is. Or ``"full"``.

    Note on the truncation: it is ∂(i, g, o)_t/∂h_{t-1} = 0, so the gradient by a weight is a sum over steps of local
    terms, which `test_truncated_gradient_by_hand` adds up. An initial h then has no gradient (a learned one is not
    trained), an initial c has one.

    Note on the squashing: the 1997 paper has sigmoids scaled to [-2, 2] and [-1, 1], Galvan any g and h; here both are
    tanh, as in `LSTMStep`.

    >>> layer = Recurrent(cells.LSTM1997(), 2, 128)  # the same as LSTM(2, 128, form="1997")
    >>> output, (h_n, c_n) = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    References: Hochreiter and Schmidhuber 1997; Galvan, 2.1.1.
    """

    blocks = 3
    states = ("h", "c")
    equation = "c = c + σ(i) tanh(g); h = σ(o) tanh(c)"

    def settings(self) -> dict[str, object]:
        return {"form": "1997"}

    def __init__(self, gradient: str = "truncated") -> None:
        one_of("gradient", gradient, GRADIENTS)
        self.gradient = gradient

    def normalised(self, hidden_size: int) -> int:
        return 4 * hidden_size  # the three pre-activations, and c in the output

    def step(
        self, a: Tensor, h: Tensor, c: Tensor, U: Tensor, *, read: Change = unchanged, normal: Change = unchanged
    ) -> tuple[Tensor, Tensor]:
        if self.gradient == "truncated":
            h = h.detach()
        i, g, o = normal(a + read(h) @ U.mT, 3).chunk(3, -1)
        c = c + i.sigmoid() * g.tanh()
        return o.sigmoid() * normal(c).tanh(), c
