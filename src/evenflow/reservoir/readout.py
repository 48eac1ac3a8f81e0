"""A readout solved by least squares over a recurrence that is not trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from evenflow.checks import whole_number
from evenflow.layers.recurrent import Recurrent
from evenflow.reservoir.ridge import Ridge

PIECE = 2**22  # numbers of state in memory at once while a long series is read


class SeriesPosition(NamedTuple):
    """The position in a series after a piece of it.

    Attributes:
        state: the state of the layer.
        washout: the number of following steps that still belong to the washout.

    >>> esn = EchoState(1, 50)
    >>> esn.partial_fit(series[:60], series[1:61]).washout  # of the 100 steps
    40
    """

    state: Tensor
    washout: int


class SolvedReadout(Recurrent):
    """``y_t = W_o (h_t, x_t) + b_o`` over a layer with one state h, with W_o and b_o from `Ridge`.

    Shapes:
        x ``(T, B, I)``, ``(B, T, I)`` with `batch_first`, or ``(T, I)``; y likewise, O wide; W_o ``(O, H + I)``.

    Weights: the buffers ``readout_weight`` and ``readout_bias``; None before `fit` or `solve`.
    """

    weight_hh_l0: Tensor
    readout_weight: Tensor | None
    readout_bias: Tensor | None

    def _start_readout(self, washout: int, ridge: float) -> None:
        self.washout, self.ridge = washout, ridge
        self.register_buffer("readout_weight", None)
        self.register_buffer("readout_bias", None)
        self._sums = Ridge()

    def fit(self, x: Tensor | Iterable[tuple[Tensor, Tensor]], y: Tensor | None = None) -> Self:
        """Solve for the readout from inputs x to targets y, and store it.

        Args:
            x: a series or a batch of series, of any length: only a piece of the states is in memory at once. Or,
                without y, an iterable of pairs (x, y), the pieces of one series in order.
            y: the targets, with the shape of x but O wide.
        """
        pairs: Iterable[tuple[Tensor, Tensor]]
        if isinstance(x, (Tensor, PackedSequence)):
            if not isinstance(y, Tensor):
                hint = ": torch.tensor(y, dtype=torch.float32) is one" if hasattr(y, "shape") else ""
                raise ValueError(f"y must be a tensor of targets for this x, got {type(y).__name__}{hint}")
            pairs = [(x, y)]  # type: ignore[list-item]
        elif hasattr(x, "shape"):
            raise ValueError(f"x must be a tensor, got {type(x).__name__}: torch.tensor(x, dtype=torch.float32) is one")
        elif y is not None:
            raise ValueError("y must be left out where x is an iterable of pairs (x, y)")
        else:
            pairs = x
        self._sums, position = Ridge(), None
        for piece, targets in pairs:
            position = self.partial_fit(piece, targets, position)
        self.solve()
        return self

    def forward(
        self,
        input: Tensor | PackedSequence,
        hx: SeriesPosition | Tensor | tuple[Tensor, ...] | None = None,
        resets: Tensor | PackedSequence | None = None,
        dt: Tensor | PackedSequence | None = None,
    ) -> tuple[Tensor | PackedSequence, Tensor | tuple[Tensor, ...]]:
        return super().forward(input, hx.state if isinstance(hx, SeriesPosition) else hx, resets, dt)

    @torch.no_grad()
    def partial_fit(self, x: Tensor, y: Tensor, state: SeriesPosition | Tensor | None = None) -> SeriesPosition:
        """Add a piece of a series to the sums that `solve` uses; returns the position in the series after it.

        The position counts the washout of its series, so pieces of several series may come in any order.

        Args:
            x: the inputs.
            y: the targets, with the shape of x but O wide.
            state: the result for the previous piece. None starts a new series, whose first `washout` steps are left
                out. After a state from `predict`, `run` or the layer, no steps are left out.
        """
        time = self._time(x, "x")
        self._time(y, "y")
        if x.shape[:-1] != y.shape[:-1]:
            raise ValueError(f"y must have as many steps and rows as x, got {tuple(y.shape)} and {tuple(x.shape)}")
        left = self.washout if state is None else state.washout if isinstance(state, SeriesPosition) else 0
        done = 0
        for features, after in self._pieces(x, state):
            steps = features.shape[time]
            skip = min(left, steps)
            kept = features.narrow(time, skip, steps - skip)
            targets = y.narrow(time, done + skip, steps - skip)
            self._sums.add(kept.flatten(0, -2), targets.flatten(0, -2).to(kept.device))
            left, done, state = left - skip, done + steps, after
        assert isinstance(state, Tensor)
        return SeriesPosition(state, left)

    def solve(self) -> None:
        """Solve for the readout from all pieces passed to `partial_fit`, and store it."""
        weight, bias = self._sums.solve(self.ridge)
        self.readout_weight, self.readout_bias = weight.to(self.weight_hh_l0), bias.to(self.weight_hh_l0)

    @torch.no_grad()
    def predict(self, x: Tensor, state: SeriesPosition | Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The outputs y for every step of x, and the state after the last step."""
        self._need_readout()
        time, outputs = self._time(x, "x"), []
        for features, after in self._pieces(x, state):
            outputs.append(self._read(features))
            state = after
        assert isinstance(state, Tensor)
        return torch.cat(outputs, time), state

    @torch.no_grad()
    def run(self, steps: int, state: SeriesPosition | Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Generate `steps` outputs, each of which is the next input.

        Args:
            steps: how many.
            state: from `predict`, the layer, `run` or `partial_fit`.
            start: the first input, ``(B, I)`` or ``(I)``; usually the last output of `predict`.

        Returns:
            the outputs, with the dimensions of x, and the state.
        """
        weight = self._need_readout()
        whole_number("steps", steps, 1)
        if len(weight) != self.input_size:
            raise ValueError(
                f"run feeds outputs back, so they must be {self.input_size} wide like the input, got {len(weight)}"
            )
        if start.dim() not in (1, 2) or start.shape[-1] != self.input_size:
            raise ValueError(f"start must be (B, I) or (I) with I = {self.input_size}, got {tuple(start.shape)}")
        time = 1 if self.batch_first and start.dim() == 2 else 0
        outputs, x = [], start.unsqueeze(time)
        for _ in range(steps):
            ((features, state),) = self._pieces(x, state)
            x = self._read(features)
            outputs.append(x)
        assert isinstance(state, Tensor)
        return torch.cat(outputs, time), state

    def _time(self, x: Tensor, name: str) -> int:
        """The time dimension of x."""
        if not isinstance(x, Tensor) or x.dim() not in (2, 3):
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"{name} must be a tensor of two or three dimensions, got {got}")
        return 1 if self.batch_first and x.dim() == 3 else 0

    def _pieces(self, x: Tensor, state: SeriesPosition | Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Features (h, x), H + I wide, and the state after them, for a bounded number of steps at a time."""
        time = self._time(x, "x")
        rows = max(1, x.shape[1 - time]) if x.dim() == 3 else 1
        h_n = state.state if isinstance(state, SeriesPosition) else state
        for piece in x.split(max(1, PIECE // (rows * (self.hidden_size + self.input_size))), time):
            h, h_n = self(piece, h_n)
            yield torch.cat((h, piece.to(h.dtype)), -1), h_n

    def _read(self, features: Tensor) -> Tensor:
        return torch.nn.functional.linear(features, self._need_readout(), self.readout_bias)

    def _need_readout(self) -> Tensor:
        if self.readout_weight is None:
            raise ValueError("there is no readout yet: call fit first")
        return self.readout_weight

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        # A new network does not know yet how wide its readout is.
        for name in ("readout_weight", "readout_bias"):
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, self.weight_hh_l0.new_empty(saved.shape))
        super()._load_from_state_dict(state_dict, prefix, *args)
