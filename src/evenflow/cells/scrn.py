"""The structurally constrained recurrent cell: plain units and slow context units."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from evenflow import activations, init
from evenflow.cells.cell import Cell, Change, Matrix, Weights, unchanged
from evenflow.checks import number, one_of, whole_number

RATES = ("fixed", "learned")


class SCRNStep(Cell):
    """``s_t = (1 - α) B x_t + α s_{t-1}``, ``h_t = f(A x_t + b + P s_t + R h_{t-1})``.

    Shapes:
        The state ``(B, H)`` is h, H - k numbers, and then the k numbers of the context s. A readout on it is the
        documents' U h + V s.

    Args:
        context_size: k, below H; None for H / 4, at least 1.
        activation: f.
        rates: ``"fixed"``, one α for all context units; or ``"learned"``, α = σ(β) with a β per unit.
        alpha: α, or its starting value.

    Weights:
        weight_ih ``(H, I)``: A and then B, each Glorot uniform; bias ``(H - k)``, zero; weight_hs ``(H - k, k)``: P,
        Glorot uniform; weight_hh ``(H - k, H - k)``: R, from the layer's map; context_rate ``(k)``: β, if learned.

    Note on f: the documents have the logistic function, here it is tanh by default: zero in, zero out.

    >>> layer = Recurrent(cells.SCRNStep(context_size=32), 2, 128)  # the same as SCRN(2, 128, context_size=32)
    >>> layer(torch.randn(100, 8, 2))[0].shape[:2]
    torch.Size([100, 8])

    References: Mikolov et al. 2015; Galvan, 2.1.3.
    """

    recurrent = ("weight_hh", "weight_hs")
    parameters = ("rate", "activation")
    equation = "s = (1 - α) B x + α s, h = f(A x + b + P s + R h)"

    def __init__(
        self,
        context_size: int | None = None,
        activation: activations.ActivationChoice = "tanh",
        rates: str = "fixed",
        alpha: float = 0.95,
    ) -> None:
        if context_size is not None:
            whole_number("context_size", context_size, 1)
        one_of("rates", rates, RATES)
        number("alpha", alpha)
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
        self.context_size, self.rates, self.alpha = context_size, rates, alpha
        self.activation = activations.make(activation)

    @property
    def fed_back(self) -> tuple[str, ...]:
        return ("weight_hh",)  # weight_hs reads the context of the same step

    def settings(self) -> dict[str, object]:
        context: dict[str, object] = {} if self.context_size is None else {"context_size": self.context_size}
        return {"activation": self.activation.key, "rates": self.rates} | context

    def context(self, hidden_size: int) -> int:
        """The number of context units."""
        k = max(1, hidden_size // 4) if self.context_size is None else self.context_size
        if hidden_size < 2:
            raise ValueError(f"hidden_size must be at least 2, one plain unit and one of context, got {hidden_size}")
        if k >= hidden_size:
            raise ValueError(f"context_size must be below hidden_size = {hidden_size}, got {k}")
        return k

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        return (Matrix("weight_hh", hidden_size - self.context(hidden_size)),)

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        k = self.context(hidden_size)
        sides = (hidden_size - k, k)
        weights = {"weight_ih": torch.cat([init.glorot_uniform(n, input_size, generator=generator) for n in sides])}
        if bias:
            weights["bias"] = torch.zeros(hidden_size - k)
        weights["weight_hs"] = init.glorot_uniform(*sides, generator=generator)
        if self.rates == "learned":
            weights["context_rate"] = torch.full((k,), math.log(self.alpha / (1 - self.alpha)))
        return weights | self.activation.weights(hidden_size - k, generator)

    def prepare(self, weights: Weights) -> Weights:
        """B times 1 - α, a bias as long as the state, and α itself."""
        k = weights["weight_hs"].shape[-1]
        if self.rates == "learned":
            rate = weights["context_rate"].sigmoid()
        else:
            rate = weights["weight_hs"].new_full((k,), self.alpha)
        A, B = weights["weight_ih"].tensor_split([-k])
        ready = {**weights, "weight_ih": torch.cat([A, (1 - rate).unsqueeze(-1) * B]), "rate": rate}
        if "bias" in weights:
            ready["bias"] = torch.nn.functional.pad(weights["bias"], (0, k))
        return ready

    def normalised(self, hidden_size: int) -> int:
        return hidden_size - self.context(hidden_size)

    def step(
        self,
        a: Tensor,
        hs: Tensor,
        R: Tensor,
        P: Tensor,
        rate: Tensor,
        p: Tensor | None = None,
        *,
        read: Change = unchanged,
        normal: Change = unchanged,
    ) -> Tensor:
        k = rate.shape[-1]
        h, s, (a_h, a_s) = read(hs)[:, :-k], hs[:, -k:], a.tensor_split([-k], -1)
        s = rate * s + a_s
        return torch.cat([self.activation(normal(a_h + s @ P.mT + h @ R.mT), p), s], -1)
