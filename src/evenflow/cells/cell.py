"""What every cell is: the maths of one time step, and nothing about time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from evenflow import init

Weights = Mapping[str, Tensor]
State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Matrix:
    """One recurrent matrix of a cell, ``(blocks * size, size)``; its name begins with ``weight_hh``.

    Args:
        mapped: whether the layer's map makes it; a matrix of several blocks is always free.
    """

    name: str
    size: int
    blocks: int = 1
    mapped: bool = True


class Cell:
    """One time step as pure functions of tensors; the layer owns the tensors, the scan owns time.

    Shapes:
        x: ``(T, B, I)``; a (what `project` makes of all steps at once): ``(T, B, blocks * H)``;
        state: a tuple of ``(B, H)``, its first member the layer's output.

    Weights:
        weight_ih ``(blocks * H, I)``, Glorot uniform by block; bias ``(blocks * H)``, zero; what `extra` adds; and
        the recurrent ones that `matrices` lists, by default weight_hh ``(blocks * H, H)``.
    """

    blocks = 1
    state_size = 1
    takes_complex = False  # whether its matrices may be complex
    equation = ""

    def matrices(self, hidden_size: int) -> tuple[Matrix, ...]:
        """The recurrent matrices, of which the layer makes the starting values."""
        return (Matrix("weight_hh", hidden_size, self.blocks, mapped=self.blocks == 1),)

    def start(
        self, input_size: int, hidden_size: int, bias: bool, generator: torch.Generator | None
    ) -> dict[str, Tensor]:
        """First values of every weight but the recurrent matrices."""
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

    def prepare(self, weights: Weights) -> Weights:
        """The weights as `project` and `step` read them, made once per call: for what would be the same every step."""
        return weights

    def project(self, x: Tensor, weights: Weights) -> Tensor:
        """The input's share of every step in one product."""
        return torch.nn.functional.linear(x, weights["weight_ih"], weights.get("bias"))

    def settings(self) -> dict[str, object]:
        """What a layer's text tells of its cell."""
        return {}

    def step(self, a: Tensor, state: State, weights: Weights) -> State:
        """The next state, from one step of `project` and the state before."""
        raise NotImplementedError
