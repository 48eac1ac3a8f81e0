"""One time step of a layer at a time: the part of `Recurrent` for code that receives its input step by step."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from evenflow.cells import Cell, Regularised
from evenflow.layers.carried_norm import CarriedNorm
from evenflow.layers.layer_run import ObservedLayer
from evenflow.layers.one_step import OneStep


class SteppedLayer(ObservedLayer):
    """A layer that can take one time step at a time."""

    cell: Cell
    input_size: int
    batch_first: bool
    bidirectional: bool
    _one_step: OneStep | None = None  # what `step` keeps
    _carried_norm: CarriedNorm | None = None

    def step(
        self, input: Tensor, hx: Tensor | tuple[Tensor, ...] | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
        """Take one time step, for code that receives its input step by step.

        A loop over `step` gives the outputs, states and gradients of one call of the layer on the whole sequence.
        Without gradients, all that does not change from step to step is kept, and a GPU replays a CUDA graph: a step
        takes about the time of a cell of torch. On a GPU the matrix of a map is computed again when torch counts a
        change to a weight, so change weights under ``torch.no_grad()`` and not through ``p.data``, which torch does not
        count.

        Shapes:
            input ``(B, I)``, or ``(I)`` without a batch; output likewise; states as those of the layer.

        Args:
            input: the input of this step.
            hx: the state before, as the step before or the layer returned it. Default: the initial state.
            dt: for cells in continuous time, the time since the step before, ``(B)``, or a single number without a
                batch. Default: 1.

        >>> layer, state = RNN(2, 128), None
        >>> with torch.no_grad():
        ...     for x_t in torch.randn(100, 50, 2):
        ...         output, state = layer.step(x_t, state)
        """
        if hx is not None and dt is None and (done := self.kept_step(input, hx)) is not None:
            return done
        self.check_step(input)
        time = input.dim() - 1 if self.batch_first else 0
        output, state = self.forward(input.unsqueeze(time), hx, dt=None if dt is None else dt.unsqueeze(time))
        return output.squeeze(time), state

    def kept_step(
        self, input: Tensor, hx: Tensor | tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | tuple[Tensor, ...]] | None:
        """Take a step with the tensors kept between calls; return None where `forward` has to take it."""
        if self._one_step is None:
            self._one_step = OneStep()
        self._look_at(hx)
        return self._one_step(cast(Any, self), input, hx)

    def _look_at(self, hx: Tensor | tuple[Tensor, ...]) -> None:
        """Warn if the state has grown over the calls that carried it."""
        if not torch.compiler.is_compiling():  # a changed number would make the compiler compile again
            if self._carried_norm is None:
                self._carried_norm = CarriedNorm()
            self._carried_norm.look(cast(Any, self), hx)

    def check_step(self, input: Tensor) -> None:
        """Refuse what is no input of one step, and layers that cannot take one."""
        if not isinstance(input, Tensor) or input.dim() not in (1, 2) or input.shape[-1] != self.input_size:
            got = tuple(input.shape) if isinstance(input, Tensor) else type(input).__name__
            raise ValueError(f"input must be one step, (B, I) or (I) with I = {self.input_size}, got {got}")
        if self.bidirectional:
            raise ValueError("step needs a layer that runs one way: the reverse direction begins at the last step")
        if self.training and isinstance(self.cell, Regularised):
            for name in ("recurrent_dropout", "weight_dropout"):
                if p := getattr(self.cell, name):
                    raise ValueError(f"{name} has one mask for a whole sequence, so step needs eval() or 0, got {p}")
