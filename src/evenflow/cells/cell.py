"""What every cell is: the maths of one time step, and nothing about time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from evenflow import init

Weights = Mapping[str, Tensor]
State = tuple[Tensor, ...]


class Cell:
    """One time step as pure functions of tensors; the layer owns the tensors, the scan owns time.

    Shapes:
        x: ``(T, B, I)``; a (what `project` makes of all steps at once): ``(T, B, blocks * H)``;
        state: a tuple of ``(B, H)``, its first member the layer's output.

    Weights:
        weight_ih ``(blocks * H, I)``, Glorot uniform by block; bias ``(blocks * H)``, zero; weight_hh
        ``(blocks * H, H)``, from the layer's map; and what `extra` adds.
    """

    blocks = 1
    state_size = 1
    equation = ""

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """First values of every weight but the recurrent matrix."""
        weights = {
            "weight_ih": torch.cat(
                [init.glorot_uniform(hidden_size, input_size, generator=generator) for _ in range(self.blocks)]
            )
        }
        if bias:
            weights["bias"] = torch.zeros(self.blocks * hidden_size)
        return weights | self.extra(hidden_size, generator)

    def extra(self, hidden_size: int, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Weights that only this cell has."""
        return {}

    def project(self, x: Tensor, weights: Weights) -> Tensor:
        """The input's share of every step in one product."""
        return torch.nn.functional.linear(x, weights["weight_ih"], weights.get("bias"))

    def step(self, a: Tensor, state: State, weights: Weights) -> State:
        """The next state, from one step of `project` and the state before."""
        raise NotImplementedError
