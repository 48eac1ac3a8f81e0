"""Cells, tiles and inputs for the emulated CUDA kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import evenflow
from evenflow.activations import ACTIVATIONS
from evenflow.cells import (
    LSTM1997,
    AdaptiveSaturated,
    Cell,
    CfCStep,
    DiagonalSSM,
    Elman,
    GatedAntisymmetric,
    GatedFeedback,
    GORUStep,
    GRUStep,
    IndRNNStep,
    LinOSSStep,
    LipschitzStep,
    LRUStep,
    LSTMStep,
    LTCStep,
    MinGRUStep,
    MinLSTMStep,
    PeepholeLSTM,
    Regularised,
    RGLRUStep,
    RotRNNStep,
    ScalarGated,
    SCRNStep,
    SLSTMStep,
    UnICORNNStep,
)
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import step_kernels
from evenflow.scan.cuda.kernels import RecurrenceKernel
from evenflow.scan.cuda.launch_plan import StepTile
from evenflow.scan.cuda.tile import Tile

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from own_cells import CELLS as OWN

MODELS, STEPS, BATCH = 2, 4, 4

CELLS: dict[str, Cell] = {f"elman {name}": Elman(name) for name in ACTIVATIONS}
CELLS |= {f"gated {name}": ScalarGated(name) for name in ACTIVATIONS}
CELLS |= {"gru": GRUStep(), "lstm": LSTMStep(), "lstm peephole": PeepholeLSTM()}
CELLS |= {"lstm 1997": LSTM1997(), "lstm 1997, full": LSTM1997("full"), "scrn": SCRNStep()}
CELLS |= {
    f"{name} regularised": Regularised(CELLS[name], recurrent_dropout=0.3, zoneout=0.2, layer_norm=True)
    for name in ("gru", "lstm")
}
CELLS |= {f"gated feedback {unit}": GatedFeedback(unit, 2) for unit in ("tanh", "gru", "lstm")}
CELLS |= {name: make() for name, make in OWN.items()}
CELLS |= {
    "adaptive saturated": AdaptiveSaturated(),
    "antisymmetric with a gate": GatedAntisymmetric(),
    "goru": GORUStep(),
}
CELLS |= {"lipschitz": LipschitzStep(), "slstm": SLSTMStep()}
CELLS |= {"indrnn": IndRNNStep(), "unicornn": UnICORNNStep()}
CELLS |= {"lru": LRUStep(), "diagonal ssm": DiagonalSSM(), "linoss": LinOSSStep(), "rotrnn": RotRNNStep()}
CELLS |= {"mingru": MinGRUStep(), "minlstm": MinLSTMStep(), "rglru": RGLRUStep(), "cfc": CfCStep(), "ltc": LTCStep(2)}


@evenflow.cell(matrices={"U": 2, "V": 1})
def numbers_per_row(a: Tensor, h: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """Products with numbers per row: of states, of what the step computes, of numbers per row, by rows and columns."""
    g, s = torch.sigmoid(h @ U[:2].mT).split(1, -1)
    x = torch.tanh(a + g * (h @ V.mT) + s @ U[: h.shape[-1], :1].mT)
    e = (x * s) @ V[:, 1:2]
    return torch.tanh(x + e * h + e @ V[3:4] + g @ U[5:6, 2:3].mT + (x @ V[2:3].mT).sigmoid())


CELLS["numbers per row"] = numbers_per_row()
CELLS |= {f"gated feedback {unit}, three layers": GatedFeedback(unit, 3) for unit in ("tanh", "gru", "lstm")}


class Case(NamedTuple):
    """One cell on one tile."""

    cell: str
    hidden: int
    tile: Tile
    resets: bool = False

    def __str__(self) -> str:
        t = self.tile
        kinds = f"{', part in shared memory' if t.held < 100 else ''}{', prefetch ring' if t.prefetch_slots else ''}"
        kinds += f"{', async store' if t.async_store else ''}"
        kinds += f"{', tensor cores' if t.tensor_cores else ''}{', scatter' if t.scatter else ''}"
        kinds += f"{', one step ahead' if t.ahead == 1 else ''}{', resets' if self.resets else ''}"
        return f"{self.cell} H{self.hidden} C{t.blocks} KS{t.lanes} JT{t.units} R{t.rows}{kinds}"

    def step(self) -> CompiledStep:
        """The cell's step at this size, with kernels of its own."""
        cell, H = CELLS[self.cell], self.hidden
        weights = {m.name: torch.empty(m.blocks * m.size, m.size, device="meta") for m in cell.matrices(H)}
        weights |= {name: v.to("meta") for name, v in cell.start(3, H, True, None).items()}
        states, a = [H] * cell.state_size, 0
        if isinstance(cell, GatedFeedback):
            weights = {f"{name}_l{j}": v for name, v in weights.items() for j in range(cell.layers)}
            for j in range(1, cell.layers):
                weights[f"weight_ih_l{j}"] = torch.empty(cell.blocks * H, H, device="meta")
                weights[f"weight_ih_gate_l{j}"] = torch.empty(cell.layers, H, device="meta")
            states = [cell.layers * H] * cell.state_size
        weights = cell.prepare(weights)  # type: ignore[assignment]
        a = weights["weight_ih"].shape[0]
        if isinstance(cell, Regularised):
            masks = cell.masks((1, 1), H, weights["weight_ih"])
            a += 0 if masks is None else masks.shape[-1]
        found = cell.program(a, states, weights)
        assert isinstance(found, str), found
        return CompiledStep(CompiledStep(found).from_zero if self.resets else found)


class Problem(NamedTuple):
    """The tensors of a scan."""

    a: Tensor
    states: list[Tensor]
    matrices: list[Tensor]
    parameters: list[Tensor | None]

    def to(self, dtype: torch.dtype) -> Problem:
        cast = [[None if v is None else v.to(dtype) for v in several] for several in self[1:]]
        return Problem(self.a.to(dtype), *cast)  # type: ignore[arg-type]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def inputs(step: CompiledStep, models: int = MODELS, steps: int = STEPS, batch: int = BATCH) -> Problem:
    program = step.program
    states = [normal(models, batch, size, seed=10 + i) for i, size in enumerate(step.state_sizes)]
    matrices = [normal(models, *s, seed=20 + i) / s[1] ** 0.5 for i, s in enumerate(program.matrices)]
    sizes = [sum(v.width for v in blocks) for blocks in program.parameters]
    parameters = [0.4 * normal(models, n, seed=30 + i) if n else None for i, n in enumerate(sizes)]
    # Derived parameters, such as a scale, are above zero; a step with restarts does not know which are derived.
    for i in range(0 if program.resets else len(sizes) - len(program.derived), len(sizes)):
        value = parameters[i]
        parameters[i] = None if value is None else 0.5 + value.abs()
    return Problem(normal(models, steps, batch, step.a_size), states, matrices, parameters)


def resets(step: CompiledStep, models: int = MODELS, steps: int = STEPS, batch: int = BATCH) -> Tensor | None:
    """A third of all rows restart, if the step has restarts."""
    return (normal(models, steps, batch, 1, seed=40) > 0.4).float() if step.program.resets else None


@contextmanager
def on(tile: Tile | None, waves: Sequence[tuple[int, Tile]] = ()) -> Iterator[None]:
    """Kernels take this tile, in one launch or in waves, instead of the plan's."""

    def choices(shapes, streams, hidden, batch, *_):  # type: ignore[no-untyped-def]
        listed = waves or ((batch, tile),)
        # Several products, and numbers that come out of one, cannot be scattered.
        gathers = len(shapes) > 1 or shapes[0][0] > 1
        return tuple(
            (rows, StepTile(replace(t, scatter=False) if gathers else t, (t.held,) * len(shapes))) for rows, t in listed
        )

    with pytest.MonkeyPatch.context() as patch:
        if tile is not None or waves:
            patch.setattr(step_kernels, "plan_launches", choices)
        yield


def kernels(case: Case) -> Iterator[RecurrenceKernel]:
    """Those of both directions."""
    step = case.step()
    with on(case.tile):
        for backward in (False, True):
            for _, kernel in step_kernels.kernels(step, backward, MODELS, BATCH, torch.device("cpu")):
                yield kernel
