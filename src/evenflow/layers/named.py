"""The recurrent layers by name: each a cell with a constructor of its own."""

from __future__ import annotations

from typing import Any

from evenflow.activations import ActivationChoice
from evenflow.cells import (
    LSTM1997,
    Cell,
    ComplexElman,
    Elman,
    GRUStep,
    LSTMStep,
    PeepholeLSTM,
    ProjectedLSTM,
    ResetFirstGRU,
    ScalarGated,
    SCRNStep,
)
from evenflow.checks import number, one_of, whole_number
from evenflow.layers.layer_weights import MapChoice
from evenflow.layers.recurrent import Recurrent
from evenflow.runtime.shared_arguments import with_shared_arguments


def plain_step(nonlinearity: str | None, activation: ActivationChoice, gain: float, leak: float) -> Cell:
    """The cell of `RNN` and `RNNCell`."""
    if nonlinearity is not None:
        one_of("nonlinearity", nonlinearity, ("tanh", "relu"))
        if activation != "tanh":
            raise ValueError(
                f"nonlinearity must be left out beside activation, got {nonlinearity!r} and {activation!r}"
            )
        activation = nonlinearity
    number("leak", leak)
    if not 0 < leak <= 1:
        raise ValueError(f"leak must lie above 0 and be at most 1, got {leak}")
    return ScalarGated(activation, "fixed", leak, 1 - leak, gain) if leak < 1 else Elman(activation, gain)


def lstm_step(form: str, forget_bias: float | None, proj_size: int = 0) -> Cell:
    """The cell of `LSTM` and `LSTMCell`."""
    one_of("form", form, ("standard", "peephole", "1997"))
    if form == "1997" and forget_bias is not None:
        raise ValueError(f"the LSTM of 1997 has no forget gate, got forget_bias {forget_bias}")
    whole_number("proj_size", proj_size, 0)
    if proj_size and form != "standard":
        raise ValueError(f"proj_size must be 0 with form={form!r}, got {proj_size}")
    start = 1.0 if forget_bias is None else forget_bias
    number("forget_bias", start)
    if proj_size:
        return ProjectedLSTM(proj_size, start)
    return LSTM1997() if form == "1997" else PeepholeLSTM(start) if form == "peephole" else LSTMStep(start)


@with_shared_arguments
class RNN(Recurrent):
    """The plain recurrent layer, ``h_t = f(W_ih x_t + b + W_hh h_{t-1})``, with any map and activation.

    Args:
        nonlinearity: ``"tanh"`` or ``"relu"``, the name that `torch.nn.RNN` has for `activation`. Default: None.
        activation: f, a name of `activations.ACTIVATIONS`, where ``"leaky(0.5)"`` gives a slope; a function of a
            tensor, such as `torch.sin`; or an `Activation`. Default: ``"tanh"``.
        gain: a fixed factor on the pre-activation, ``f(gain (...))``. Default: 1.
        leak: a fixed share of the new value, ``h_t = (1 - leak) h_{t-1} + leak f(...)`` (leaky units), above 0 and at
            most 1. Default: 1.
        others: as in `Recurrent`.

    Starting value: W_ih Glorot uniform, b zero, W_hh as its map says (orthogonal for ``"free"``).

    >>> layer = RNN(2, 128, map="exponential", activation="abs")
    >>> output, h_n = layer(torch.randn(784, 50, 2))
    >>> bool(residual(layer.weight_hh_l0) < 1e-6)
    True

    Reference: Elman 1990.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str | None = None,
        *positional: Any,
        activation: ActivationChoice = "tanh",
        gain: float = 1.0,
        leak: float = 1.0,
        **options: Any,
    ) -> None:
        cell = plain_step(nonlinearity, activation, gain, leak)
        super().__init__(cell, input_size, hidden_size, num_layers, *positional, **options)


@with_shared_arguments
class ComplexRNN(Recurrent):
    """The plain layer with complex units, ``z_t = modrelu(W_ih x_t + b + W_hh z_{t-1})``, for the unitary maps.

    Args:
        hidden_size: of the output, even: the real parts of half as many complex units, then their imaginary parts.
        map: ``"unitary"`` (default), all unitary matrices; or ``"unitary_product"``. A real map acts on both parts.
        others: as in `Recurrent`.

    See `cells.ComplexElman` for the weights.

    >>> layer = ComplexRNN(2, 256)  # 128 complex units
    >>> bool(residual(layer.weight_hh_l0) < 1e-5)
    True

    References: Arjovsky et al. 2016; Wisdom et al. 2016.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *positional: Any,
        map: MapChoice = "unitary",
        **options: Any,
    ) -> None:
        super().__init__(ComplexElman(), input_size, hidden_size, num_layers, *positional, map=map, **options)


@with_shared_arguments
class ScalarGatedRNN(Recurrent):
    """The layer of FastRNN and SGORNN, ``h_t = α f(W_ih x_t + b + W_hh h_{t-1}) + β h_{t-1}``.

    Args:
        activation: f, as in `RNN`. Default: ``"relu"``.
        gates: ``"free"`` (default), ``"bounded"`` (β <= 1 - 2α, for an orthogonal W_hh) or ``"fixed"``; see
            `cells.ScalarGated`.
        alpha, beta: the starting values of the two gates, or their values if they are fixed. Default: 0.023 and 0.9526.
        gain: a fixed factor on the pre-activation. Default: 1.
        others: as in `Recurrent`.

    >>> layer = ScalarGatedRNN(2, 128, map="rotations", gates="bounded")

    References: Kusupati et al. 2018; the SGORNN document.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *positional: Any,
        activation: ActivationChoice = "relu",
        gates: str = "free",
        alpha: float = 0.023,
        beta: float = 0.9526,
        gain: float = 1.0,
        **options: Any,
    ) -> None:
        cell = ScalarGated(activation, gates, alpha, beta, gain)
        super().__init__(cell, input_size, hidden_size, num_layers, *positional, **options)


@with_shared_arguments
class GRU(Recurrent):
    """The gated recurrent layer; the map makes the candidate's recurrent matrix, those of the gates are free.

    Args:
        form: ``"standard"`` (default), as in torch; or ``"2014"``, whose reset gate acts before the product, see
            `cells.ResetFirstGRU`.
        map: of ``weight_hh_n_l0``, see `cells.GRUStep`. Default: ``"free"``, which is `torch.nn.GRU`.
        others: as in `Recurrent`.

    >>> layer = GRU(2, 128, map="exponential")
    >>> bool(residual(layer.weight_hh_n_l0) < 1e-5)
    True

    References: Cho et al. 2014; the uRNN document (uGRU).
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *positional: Any,
        form: str = "standard",
        **options: Any,
    ) -> None:
        one_of("form", form, ("standard", "2014"))
        cell = GRUStep() if form == "standard" else ResetFirstGRU()
        super().__init__(cell, input_size, hidden_size, num_layers, *positional, **options)


@with_shared_arguments
class LSTM(Recurrent):
    """The long short-term memory layer; states are pairs (h, c) as in `torch.nn.LSTM`.

    Args:
        proj_size: the numbers of h, if fewer than `hidden_size`: `cells.ProjectedLSTM`. Default: 0, no projection.
        form: ``"standard"`` (default); ``"peephole"``, whose gates also read the memory; or ``"1997"``, without a
            forget gate and with the truncated gradient. See `cells.LSTMStep`, `cells.PeepholeLSTM`, `cells.LSTM1997`.
        forget_bias: the starting value of the forget gate's bias. Default: 1.
        map: ``"free"`` (default), or one for each matrix by its name. Each gate's recurrent matrix starts orthogonal.
        others: as in `Recurrent`.

    >>> layer = LSTM(2, 128, form="peephole")
    >>> output, (h_n, c_n) = layer(torch.randn(100, 8, 2))
    >>> output.shape
    torch.Size([100, 8, 128])

    References: Hochreiter and Schmidhuber 1997; Gers et al. 2000; Gers and Schmidhuber 2000.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        form: str = "standard",
        forget_bias: float | None = None,
        **options: Any,
    ) -> None:
        cell = lstm_step(form, forget_bias, proj_size)
        torchs = bias, batch_first, dropout, bidirectional
        super().__init__(cell, input_size, hidden_size, num_layers, *torchs, **options)


@with_shared_arguments
class SCRN(Recurrent):
    """The structurally constrained layer: plain units h and slow context units s, both in the output.

    ``s_t = (1 - α) B x_t + α s_{t-1}``, ``h_t = f(A x_t + b + P s_t + R h_{t-1})``.

    Args:
        hidden_size: of the output, h and s together; 100 plain and 40 context units are ``hidden_size=140``.
        context_size: how many units are context. Default: a quarter.
        activation: f, as in `RNN`. Default: ``"tanh"``.
        rates: ``"fixed"`` (default), one α; or ``"learned"``, one per context unit.
        alpha: α, or its starting value. Default: 0.95.
        map: of R, see `cells.SCRNStep` for the weights. Default: ``"free"``.
        others: as in `Recurrent`.

    The output is h and then s, so the readout of a `SequenceModel` on it is the documents' ``U h_t + V s_t``: U are the
    first columns of its weight, V the last `context_size` ones.

    >>> layer = SCRN(2, 128, context_size=32)
    >>> layer(torch.randn(100, 8, 2))[0].shape[:2]
    torch.Size([100, 8])

    References: Mikolov et al. 2015; Galvan, 2.1.3.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *positional: Any,
        context_size: int | None = None,
        activation: ActivationChoice = "tanh",
        rates: str = "fixed",
        alpha: float = 0.95,
        **options: Any,
    ) -> None:
        cell = SCRNStep(context_size, activation, rates, alpha)
        super().__init__(cell, input_size, hidden_size, num_layers, *positional, **options)
