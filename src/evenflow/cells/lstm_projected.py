"""The long short-term memory cell with a projected output."""

from __future__ import annotations

import torch
from torch import Tensor

from evenflow import init
from evenflow.cells.cell import Change, Matrix, unchanged
from evenflow.cells.lstm import LSTMStep
from evenflow.checks import whole_number


class ProjectedLSTM(LSTMStep):
    """``h_t = W_hr (σ(o) tanh(c_t))``, with fewer numbers in h than in c; otherwise as `LSTMStep`.

    Args:
        proj_size: P, the numbers of h, below the layer's hidden_size.
        forget_bias: starting value of the forget gate's bias.

    Weights:
        weight_hh ``(4H, P)``, orthonormal columns in each gate; weight_hr ``(P, H)``, Glorot uniform.

    >>> layer = Recurrent(cells.ProjectedLSTM(32), 2, 128)  # the same as LSTM(2, 128, proj_size=32)
    >>> output, (h_n, c_n) = layer(torch.randn(100, 8, 2))
    >>> h_n.shape, c_n.shape
    (torch.Size([1, 8, 32]), torch.Size([1, 8, 128]))

    Reference: Sak, Senior and Beaufays 2014.
    """

    recurrent = ("weight_hh", "weight_hr")
    equation = "c = σ(f) c + σ(i) tanh(g); h = W_hr (σ(o) tanh(c))"

    def __init__(self, proj_size: int, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias)
        whole_number("proj_size", proj_size, 1)
        self.proj_size = proj_size

    @property
    def fed_back(self) -> tuple[str, ...]:
        return ("weight_hh",)

    def settings(self) -> dict[str, object]:
        return {"proj_size": self.proj_size}

    def state_sizes(self, hidden_size: int) -> tuple[int, ...]:
        return self.proj_size, hidden_size

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return ()

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        if self.proj_size >= hidden_size:
            raise ValueError(f"proj_size must be below hidden_size = {hidden_size}, got {self.proj_size}")
        gates = [init.orthogonal(hidden_size, self.proj_size, generator=generator) for _ in range(self.blocks)]
        projection = init.glorot_uniform(self.proj_size, hidden_size, generator=generator)
        return {"weight_hh": torch.cat(gates), "weight_hr": projection}

    def step(  # type: ignore[override]
        self,
        a: Tensor,
        h: Tensor,
        c: Tensor,
        U: Tensor,
        R: Tensor,
        *,
        read: Change = unchanged,
        normal: Change = unchanged,
    ) -> tuple[Tensor, Tensor]:
        m, c = super().step(a, h, c, U, read=read, normal=normal)
        return m @ R.mT, c
