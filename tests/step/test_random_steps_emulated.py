"""The CUDA kernels of random steps, emulated on a CPU, against torch operations in double precision.

EVENFLOW_EXAMPLES=500 pytest tests/step/test_random_steps_emulated.py
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from random_steps import Step, steps
from test_random_steps import Run, by_engine, compiled, examples, numbers, runs
from torch import Tensor

from evenflow.runtime import compile_cuda as build
from evenflow.scan import torch_operations
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import cuda_recurrence as recurrence
from evenflow.scan.cuda import launch_plan, step_kernels
from evenflow.scan.cuda.launch_plan import Shapes
from evenflow.scan.cuda.tile import Tile
from evenflow.step.trace import Untranslatable

sys.path.insert(0, str(Path(__file__).parents[1] / "scan"))
from cuda_emulator import COMPILER, Emulator

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
EXAMPLES = 25  # each is two kernels for a C++ compiler
CLOSE = 1e-4  # of the largest number of a tensor, and twenty times what torch operations lose in single precision
TILES = [Tile(1, 8, 4, 2), Tile(2, 8, 2, 2), Tile(2, 8, 2, 2, held=1, async_store=True)]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Kernels are compiled for the CPU when they are launched, on a tile that is not the plan's."""
    made: dict[Any, Emulator] = {}

    def launch(kernel: Any, job: ctypes.Structure, like: Tensor, models: int, batch: int) -> None:
        if kernel not in made:
            folder = tmp_path / str(len(made))
            folder.mkdir()
            made[kernel] = Emulator([kernel], folder)
            made[kernel].order = len(made) % 3
        made[kernel].launch(kernel, job, like, models, batch)

    def choices(shapes: Shapes, streams: int, hidden: int, batch: int, *_: Any) -> Any:
        fitting = (
            launch_plan.fit_registers(tile, hidden, shapes, streams) for tile in TILES[len(made) // 2 % len(TILES) :]
        )
        choice = next((c for c in fitting if c is not None), None)
        return () if choice is None else ((batch, choice),)

    monkeypatch.setattr(build, "launch", launch)
    monkeypatch.setattr(step_kernels, "plan_launches", choices)
    return tmp_path


def single(given: Any) -> Any:
    a, *several = given
    return a.float(), *([None if v is None else v.float() for v in each] for each in several)


@pytest.mark.slow
@pytest.mark.usefixtures("emulated")
def test_kernels_are_the_step() -> None:
    tried = 0

    @examples(EXAMPLES)
    @given(steps(), runs())
    def hold(step: Step, run: Run) -> None:
        nonlocal tried
        made, values = compiled(step), numbers(step, run)
        try:
            if not all(step_kernels.kernels(made, back, 1, run.batch, torch.device("cpu")) for back in (False, True)):
                return  # too wide for the small tiles of this test
        except Untranslatable:
            return
        exact = by_engine(torch_operations, made, run, values)
        loose = by_engine(torch_operations, made, run, single(values))
        if not all(v.isfinite().all() for v in (*exact.values(), *loose.values())):
            return
        lost = {name: off(loose[name], exact[name]) for name in exact}
        if max(lost.values()) > CLOSE:  # near a kink, or much is made of small differences
            return
        tried += 1
        found = by_engine(recurrence, made, run, single(values))
        said = {name: off(found[name], exact[name]) for name in exact}
        bad = {name: error for name, error in said.items() if not error <= max(CLOSE, 20 * lost[name])}
        assert found.keys() == exact.keys()
        assert not bad, f"{bad}\n{run}\n{step}"

    hold()
    assert tried >= EXAMPLES // 2


def off(got: Tensor, wanted: Tensor) -> float:
    if not wanted.numel():
        return 0.0
    return ((got.double() - wanted).abs().max() / wanted.abs().max().clamp(min=1.0)).item()


def test_the_widest_block_decides() -> None:
    """A number per row among wide blocks takes no tile of its own."""
    import evenflow

    layer = evenflow.GatedFeedbackRNN(2, 7, 2)
    layer(torch.randn(2, 2, 2))
    (program,) = layer.cell.programs.values()
    assert step_kernels.direction(CompiledStep(program), False).width == 7
