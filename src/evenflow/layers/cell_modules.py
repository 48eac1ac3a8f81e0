"""`RecurrentCell` and the named cells: modules of one time step, for code that loops over time itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy

from evenflow.activations import ActivationChoice
from evenflow.cells import Cell, CellMaker, GRUStep
from evenflow.layers.layer_weights import MapChoice
from evenflow.layers.named import lstm_step, plain_step
from evenflow.layers.recurrent import Recurrent
from evenflow.runtime.rewritten import traced_call

OPTIONS_OF_LAYERS = (
    "num_layers",
    "batch_first",
    "dropout",
    "bidirectional",
    "initial_state",
    "checkpoint_every",
    "storage",
    "recurrent_dropout",
    "weight_dropout",
)


class RecurrentCell(Recurrent):
    """One time step of any cell as a module, with the signature of `torch.nn.RNNCell`: ``h = cell(x, h)``.

    A loop over it gives the states and gradients of the layer with the same weights.

    Shapes:
        input ``(B, I)`` or ``(I)``; each state ``(B, H)`` or ``(H)``, a tuple where the cell has several, as in
        `torch.nn.LSTMCell`. The result is the new state or states.

    Args:
        cell: what the step computes, as in `Recurrent`.
        input_size: I, the numbers of the input at each step.
        hidden_size: H, the units of the state.
        bias: whether the pre-activations have a bias. Default: True.
        map: what makes the recurrent matrix, as in `Recurrent`. Default: ``"free"``.
        device, dtype: of the weights. Default: torch's default device and dtype.
        options: ``zoneout``, ``layer_norm``, ``input_range``, ``engine`` and ``generator``, as in `Recurrent`, and
            options of the map.

    Weights have the names of torch's cells: ``weight_ih``, ``weight_hh``, and one ``bias``; `load_state_dict` takes the
    state dict of torch's cell and adds its two biases. With gradients the matrix of a map is computed in every step,
    unless ``torch.nn.utils.parametrize.cached()`` surrounds the loop.

    >>> cell = RecurrentCell(cells.SCRNStep(), 2, 128, map="exponential")
    >>> h = torch.zeros(50, 128)
    >>> for x_t in torch.randn(100, 50, 2):
    ...     h = cell(x_t, h)
    """

    takes_one_step = True

    def __init__(
        self,
        cell: Cell | CellMaker,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        map: MapChoice = "free",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        for name in OPTIONS_OF_LAYERS:
            if name in options:
                raise ValueError(f"{type(self).__name__} is one step of one layer and has no option {name!r}")
        super().__init__(cell, input_size, hidden_size, bias=bias, map=map, device=device, dtype=dtype, **options)
        if not bias:
            self.register_parameter("bias", None)

    @property
    def suffixes(self) -> list[str]:
        """One empty ending: the weights of a cell are ``weight_ih``, ``weight_hh`` and so on."""
        return [""]

    def forward(  # type: ignore[override]
        self, input: Tensor, hx: Tensor | tuple[Tensor, ...] | None = None, dt: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """The new state, or states.

        Args:
            input: the input of this step.
            hx: the state before, a tuple where the cell has several. Default: zeros.
            dt: for cells in continuous time, the time since the step before, ``(B)``, or a single number without a
                batch. Default: 1.
        """
        if isinstance(input, Proxy):
            return traced_call(self, input, hx, *(() if dt is None else (dt,)))
        if hx is not None and dt is None and (done := self.kept_step(input, hx)) is not None:
            return done[1]
        self.check_step(input)
        if isinstance(hx, Tensor):
            hx = hx.unsqueeze(0)
        elif hx is not None:
            hx = tuple(s.unsqueeze(0) for s in hx)
        _, state = super().forward(input.unsqueeze(0), hx, dt=None if dt is None else dt.unsqueeze(0))
        return state.squeeze(0) if isinstance(state, Tensor) else tuple(s.squeeze(0) for s in state)

    def step(
        self, input: Tensor, hx: Tensor | tuple[Tensor, ...] | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """The output and the new state, or states, in the form that a cell takes them."""
        state = self(input, hx) if dt is None else self(input, hx, dt)
        return state if isinstance(state, Tensor) else state[0], state


class RNNCell(RecurrentCell):
    """One step ``h = f(W_ih x + b + W_hh h)``, with the signature of `torch.nn.RNNCell`; see `RNN`.

    Args:
        nonlinearity: ``"tanh"`` (default) or ``"relu"``, torch's name for `activation`.
        activation, gain, leak: as in `RNN`.
        others: as in `RecurrentCell`.

    >>> cell = RNNCell(2, 128, map="exponential", activation="abs")
    >>> h = cell(torch.randn(50, 2))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        activation: ActivationChoice = "tanh",
        gain: float = 1.0,
        leak: float = 1.0,
        **options: Any,
    ) -> None:
        cell = plain_step(nonlinearity, activation, gain, leak)
        super().__init__(cell, input_size, hidden_size, bias, device=device, dtype=dtype, **options)


class GRUCell(RecurrentCell):
    """One step of the gated recurrent unit, with the signature of `torch.nn.GRUCell`; see `GRU`.

    Args:
        others: as in `RecurrentCell`; the map is that of the candidate's matrix ``weight_hh_n``.

    >>> h = GRUCell(2, 128)(torch.randn(50, 2), torch.zeros(50, 128))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        super().__init__(GRUStep(), input_size, hidden_size, bias, device=device, dtype=dtype, **options)


class LSTMCell(RecurrentCell):
    """One step of the long short-term memory, with the signature of `torch.nn.LSTMCell`; see `LSTM`.

    Args:
        form, forget_bias: as in `LSTM`.
        others: as in `RecurrentCell`.

    >>> h, c = LSTMCell(2, 128)(torch.randn(50, 2), (torch.zeros(50, 128), torch.zeros(50, 128)))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        form: str = "standard",
        forget_bias: float | None = None,
        **options: Any,
    ) -> None:
        cell = lstm_step(form, forget_bias)
        super().__init__(cell, input_size, hidden_size, bias, device=device, dtype=dtype, **options)
