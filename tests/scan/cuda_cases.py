"""Shapes and inputs for the emulated CUDA kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from evenflow.scan.cuda.plan import Tile

MODELS, STEPS, BATCH = 2, 4, 4


class Case(NamedTuple):
    """One kernel's shape: units and tile."""

    hidden: int
    tile: Tile | None  # None: the plan's

    @property
    def gathering(self) -> Tile | None:
        """The tile for a product with several numbers per unit, which cannot be scattered."""
        return self.tile and replace(self.tile, scatter=False)

    def __str__(self) -> str:
        t = self.tile
        if t is None:
            return f"H{self.hidden}, the plan's"
        kinds = f"{', part in shared memory' if t.held < 100 else ''}{', ring' if t.ring else ''}"
        kinds += f"{', mail' if t.mail else ''}"
        kinds += f"{', tensor cores' if t.tensor else ''}{', scatter' if t.scatter else ''}"
        return f"H{self.hidden} C{t.blocks} KS{t.lanes} JT{t.units} R{t.rows}{kinds}"


def states_of(case: Case) -> Tensor:
    return torch.empty(MODELS, STEPS, BATCH, case.hidden, device="meta")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def elman_inputs(case: Case, activation: str, gated: bool) -> tuple[Tensor | None, ...]:
    size = case.hidden
    a, weight, h0 = (
        normal(MODELS, STEPS, BATCH, size),
        normal(MODELS, size, size, seed=1) / size**0.5,
        normal(MODELS, BATCH, size, seed=2),
    )
    parameter = {
        "prelu": torch.tensor([[0.3], [0.1]]),
        "modrelu": 0.3 * normal(MODELS, size, seed=3),
        "complex_modrelu": 0.3 * normal(MODELS, size // 2, seed=3),
    }.get(activation)
    shares = (torch.tensor([[0.3], [0.5]]), torch.tensor([[0.6], [0.4]])) if gated else (None, None)
    return a, weight, h0, *shares, parameter


def gru_inputs(size: int) -> tuple[Tensor, ...]:
    a, weight = normal(MODELS, STEPS, BATCH, 3 * size), normal(MODELS, 3 * size, size, seed=1) / size**0.5
    return a, weight, normal(MODELS, size, seed=2), normal(MODELS, BATCH, size, seed=3)


def lstm_inputs(size: int, gates: int, peephole: bool) -> tuple[Tensor | None, ...]:
    a, weight = normal(MODELS, STEPS, BATCH, gates * size), normal(MODELS, gates * size, size, seed=1) / size**0.5
    states = normal(MODELS, BATCH, size, seed=2), normal(MODELS, BATCH, size, seed=3)
    return a, weight, *states, normal(MODELS, 3 * size, seed=4) if peephole else None
