"""The recurrent layers by name: each a cell with a signature."""

from __future__ import annotations

from typing import Any

from evenflow.activations import Activation
from evenflow.cells import LSTM as LSTMCell
from evenflow.cells import Elman, ScalarGated
from evenflow.recurrent import MapChoice, Recurrent


class RNN(Recurrent):
    """The plain recurrent layer, ``h_t = f(W_ih x_t + b + W_hh h_{t-1})``, with any map and activation.

    Args:
        activation: f, see `activations`; ``"leaky(0.5)"`` gives a slope.
        others: see `Recurrent`.

    Starting value: W_ih Glorot uniform, b zero, W_hh as its map says (orthogonal for ``"free"``).

    >>> layer = RNN(2, 128, map="exponential", activation="abs")
    >>> output, h_n = layer(torch.randn(784, 50, 2))
    >>> residual(layer.weight_hh_l0)
    tensor(5.9605e-07, grad_fn=<AmaxBackward0>)

    Reference: Elman 1990.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        activation: str | Activation = "tanh",
        map: MapChoice = "free",
        **options: Any,
    ) -> None:
        super().__init__(Elman(activation), input_size, hidden_size, num_layers, map=map, **options)


class ScalarGatedRNN(Recurrent):
    """The layer of FastRNN and SGORNN, ``h_t = α f(W_ih x_t + b + W_hh h_{t-1}) + β h_{t-1}``.

    Args:
        gates: ``"free"`` or ``"bounded"`` (β <= 1 - 2α, for an orthogonal W_hh); see `cells.ScalarGated`.
        alpha, beta: where the gates start.
        others: see `Recurrent`.

    >>> layer = ScalarGatedRNN(2, 128, map="rotations", gates="bounded")

    References: Kusupati et al. 2018; the SGORNN document.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        activation: str | Activation = "relu",
        gates: str = "free",
        alpha: float = 0.023,
        beta: float = 0.9526,
        map: MapChoice = "free",
        **options: Any,
    ) -> None:
        cell = ScalarGated(activation, gates, alpha, beta)
        super().__init__(cell, input_size, hidden_size, num_layers, map=map, **options)


class LSTM(Recurrent):
    """The long short-term memory layer; states are pairs (h, c) as in `torch.nn.LSTM`.

    Args:
        forget_bias: where the bias of the forget gate starts.
        others: see `Recurrent`; each gate's recurrent matrix starts orthogonal.

    Reference: Gers et al. 2000.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, *, forget_bias: float = 1.0, **options: Any
    ) -> None:
        if options.get("map", "free") != "free":
            raise ValueError(f"LSTM has no map on its gates, so map must be 'free', got {options['map']!r}")
        super().__init__(LSTMCell(forget_bias), input_size, hidden_size, num_layers, **options)
