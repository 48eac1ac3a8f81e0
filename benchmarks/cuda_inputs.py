"""Numbers for the recurrence of any cell that stay bounded over hundreds of steps, and how far results are off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.derived_parameters import with_derived


class Inputs(NamedTuple):
    """The tensors of a scan, in the order of an engine's arguments."""

    a: Tensor
    states: list[Tensor]
    matrices: list[Tensor]
    parameters: list[Tensor | None]

    def double(self) -> Inputs:
        return Inputs(self.a.double(), *(doubled(several) for several in self[1:]))  # type: ignore[arg-type]


def doubled(values: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [None if v is None else v.double() for v in values]


def normal(*shape: int, seed: int = 0, device: torch.device | str = "cuda") -> Tensor:
    return torch.randn(*shape, generator=torch.Generator(device).manual_seed(seed), device=device)


def mixing(models: int, rows: int, columns: int, seed: int, device: torch.device | str) -> Tensor:
    """A matrix that keeps the length of states: orthogonal blocks where it is made of square ones."""
    size = min(rows, columns)
    if max(rows, columns) % size or size == 1:
        return normal(models, rows, columns, seed=seed, device=device) / columns**0.5
    drawn = normal(models * (rows // size) * (columns // size), size, size, seed=seed, device=device)
    blocks = torch.linalg.qr(drawn)[0].view(models, rows // size, columns // size, size, size)
    return blocks.transpose(2, 3).reshape(models, rows, columns).contiguous()


def inputs(
    step: CompiledStep, cell: str, models: int, steps: int, batch: int, device: torch.device | str = "cuda"
) -> Inputs:
    """For a cell by name: a single number is a share or a slope, and modrelu's biases are below its jump.

    Values that are derived from parameters are those of the parameters.
    """
    states = [normal(models, batch, size, seed=10 + i, device=device) for i, size in enumerate(step.state_sizes)]
    if cell == "slstm":  # it divides by a state
        states = [1 + state.abs() for state in states]
    # Cells that forget nothing, or little, are chaotic with large matrices, and a lipschitz cell grows.
    much = 0.3 if "1997" in cell or cell in ("fastgrnn", "lipschitz", "slstm") else 1.0
    matrices = [much * mixing(models, *shape, 20 + i, device) for i, shape in enumerate(step.program.matrices)]
    parameters: list[Tensor | None] = []
    program = step.program
    for i, blocks in enumerate(program.parameters[: len(program.parameters) - len(program.derived)]):
        size = sum(v.width for v in blocks)
        drawn = 0.3 * normal(models, size, seed=30 + i, device=device) if size else None
        if size == 1:
            drawn = torch.full((models, 1), 0.3 + 0.3 * (i % 2), device=device)
        elif drawn is not None and "modrelu" in cell:
            drawn = -drawn.abs()  # above zero it jumps, and two precisions part where it does
        parameters.append(drawn)
    listed = iter(with_derived(step.text, parameters))
    parameters = [next(listed) if blocks else None for blocks in program.parameters]
    return Inputs(0.5 * normal(models, steps, batch, step.a_size, device=device), states, matrices, parameters)


def gradients(found: tuple[Any, ...]) -> dict[str, Tensor]:
    """What `backward` of an engine gives, by name."""
    d_a, d_states, d_matrices, d_parameters, tap = found
    named = {"d_a": d_a} | {f"d_state {i}": d for i, d in enumerate(d_states)}
    named |= {f"d_matrix {i}": d for i, d in enumerate(d_matrices)}
    named |= {f"d_parameter {i}": d for i, d in enumerate(d_parameters) if d is not None}
    return named if tap is None else named | {"tap": tap}


def off(got: Tensor, expected: Tensor) -> float:
    """‖difference‖ / ‖expected‖."""
    return ((got.double() - expected).norm() / expected.norm().clamp(min=1e-30)).item() if expected.numel() else 0.0
