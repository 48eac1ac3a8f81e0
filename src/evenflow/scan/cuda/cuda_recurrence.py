"""A recurrence by CUDA kernels; see `scan.engine` for the arguments and `step.emit_cuda` for the code."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from evenflow.runtime import compile_cuda as build
from evenflow.scan import chunked
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import launch_plan as plan
from evenflow.scan.cuda import problem
from evenflow.scan.cuda.problem import aligned, lengths
from evenflow.scan.engine import ScanInputs, ScanOutputs, StepGradients
from evenflow.scan.weight_gradient import summed
from evenflow.step.compute import part
from evenflow.step.emit_cuda import CudaBackward, CudaDirection, CudaForward, CudaStage
from evenflow.step.trace import Untranslatable

# What a linear recurrence in pieces costs beyond its steps: for each piece, and once.
STEPS_PER_PIECE, STEPS_TO_BEGIN = 40, 1600


@dataclass(frozen=True)
class RecurrenceKernel:
    """One direction of a step for one number of units and one tile.

    Args:
        function: ``"forward"`` or ``"backward"``.
        body: the job and the function, see `CudaDirection.text`.
        hidden: the widest block.
        shapes: of its products, numbers per unit that come out and go in; streams: numbers that are fetched ahead.
    """

    function: str
    body: str
    hidden: int
    choice: plan.Choice
    shapes: plan.Shapes
    streams: int

    @functools.cached_property
    def threads(self) -> int:
        return self.choice.tile.threads(self.hidden)

    @functools.cached_property
    def memory(self) -> int:
        return self.choice.memory(self.hidden, self.shapes, self.streams)

    @property
    def cluster(self) -> int:
        return self.choice.tile.blocks

    def far(self, like: Tensor, models: int) -> Tensor | None:
        """Room in device memory for the weights of a tile with a ring; None for others."""
        numbers = self.choice.tiles()[0].far(self.hidden, self.shapes[0].out, self.shapes[0].into)
        return like.new_empty(models * numbers) if numbers else None

    def blocks(self, batch: int) -> int:
        """Of its grid, for each model."""
        return -(-batch // self.choice.tile.rows) * self.cluster

    def entry(self, name: str) -> str:
        """The function in a scope of its own, and the line that makes a kernel of it."""
        scope, tiles = f"scope_{name}", []
        for n, (t, (out, into, _)) in enumerate(zip(self.choice.tiles(), self.shapes, strict=True)):
            numbers = (self.hidden, t.blocks, t.lanes, t.units, t.rows, t.held, out, into, 0 if n else self.streams)
            kinds = (str(kind).lower() for kind in (t.mail, t.tensor, t.scatter))
            tiles.append(f"typedef Tile<{', '.join((*map(str, numbers), *kinds, str(t.ring)))}> T{n};")
        total = " + ".join(f"T{n}::BYTES" for n in range(len(tiles)))
        agree = f'static_assert(T0::THREADS == {self.threads} && {total} == {self.memory}, "launch_plan.py");'
        lines = [f"namespace {scope} {{", *tiles, agree, self.body, "}"]
        called = f"ENTRY({name}, {self.threads}, {self.cluster}, {scope}::Job, {scope}::run)"
        return "\n".join([*lines, called, ""])

    def text(self, machine: str = "primitives.cuh") -> str:
        """The whole source, the same for every GPU."""
        return "".join(build.read(file) for file in (machine, *build.SHARED)) + self.entry("run")

    def __hash__(self) -> int:
        return hash((self.function, hashlib.sha256(self.body.encode()).digest(), self.choice, self.shapes))


def missing(step: CompiledStep, weight: Tensor, *tensors: Tensor | None) -> str | None:
    """Why the kernels cannot take these tensors, or None where they can."""
    if why := problem.unable(weight, *tensors):
        return why
    if weight.device not in step.without_kernels:
        step.without_kernels[weight.device] = _without(step, weight.device)
    return step.without_kernels[weight.device]


def _without(step: CompiledStep, device: torch.device) -> str | None:
    """Why no kernel of this GPU runs the step."""
    try:
        directions = [direction(step, backward) for backward in (False, True)]
    except Untranslatable as why:
        return str(why)
    machine = problem.machine(device)
    if all(plan.choices(_shapes(d), d.stream_count, d.width, 1, 1, machine) for d in directions):
        return None
    return f"on this GPU no kernel of this cell runs {directions[0].width} units"


def direction(step: CompiledStep, backward: bool) -> CudaDirection:
    if backward not in step.directions:
        step.directions[backward] = (CudaBackward if backward else CudaForward)(step.places)
    return step.directions[backward]


def _shapes(made: CudaDirection) -> plan.Shapes:
    found = tuple(plan.Shape(len(s.outputs), len(s.inputs), s.number is not None) for s in made.stages)
    return found or (plan.Shape(1, 1, False),)  # threads are shared out by a tile even where there is no product


def kernels(step: CompiledStep, backward: bool, models: int, batch: int, device: torch.device) -> problem.Turns:
    """Rows of the batch and the kernels that run them one after another; the plan chooses the tiles."""
    key = (backward, models, batch, device)
    if key not in step.kernels:
        made = direction(step, backward)
        found = problem.choices(_shapes(made), made.stream_count, made.width, batch, models, device)
        settings = ("backward" if backward else "forward", made.text, made.width)
        step.kernels[key] = tuple(
            (rows, RecurrenceKernel(*settings, choice, _shapes(made), made.stream_count)) for rows, choice in found
        )
    return step.kernels[key]


def weights(made: CudaDirection, stage: CudaStage, matrices: Sequence[Tensor]) -> Tensor:
    """The weights of a stage as its forward product reads them, ``(M, OUT * n, IN * n)`` with every block n wide.

    Blocks of fewer units are filled up with zeros. A number per row is one that every unit has: its rows and columns
    are repeated.
    """
    n = made.width
    inputs, outputs = (stage.outputs, stage.inputs) if made.backward else (stage.inputs, stage.outputs)
    parts = [part(matrices[view.matrix], view) for view, _ in stage.views]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts, -2)
    if all(v.width == n for v in (*inputs, *outputs)):
        return whole.contiguous()
    listed = [v for _, nodes in stage.views for v in nodes]
    rows = _padded(whole, [v.width for v in listed], n, -2)
    return _padded(rows, [v.width for v in inputs], n, -1).contiguous()


def _padded(matrix: Tensor, widths: Sequence[int], n: int, dim: int) -> Tensor:
    """Each block of rows or columns as wide as n."""
    found = []
    for block in matrix.split(list(widths), dim):
        width = block.shape[dim]
        shape = list(block.shape)
        if width == 1 < n:
            shape[dim] = n
            found.append(block.expand(shape))
        else:
            shape[dim] = n - width
            found += [block, block.new_zeros(shape)] if width < n else [block]
    return torch.cat(found, dim)


def forward(inputs: ScanInputs) -> ScanOutputs:
    inputs = replace(inputs, a=aligned(inputs.a), states=[aligned(v) for v in inputs.states])
    step, a = inputs.step, inputs.a
    if step.is_linear and inputs.batch_sizes is None and (pieces := _pieces(a)) > 1:
        chunks = chunked.forward(inputs, pieces, functools.partial(_steps, step))
        if chunks is not None:
            return chunks
    outputs = inputs.empty_outputs()
    tensors = [a, *inputs.states, *inputs.parameters, *outputs.states, outputs.kept, outputs.marks]
    _launch(step, False, a, inputs.batch_sizes, inputs.matrices, tensors)
    return outputs


def backward(inputs: ScanInputs, outputs: ScanOutputs, grads: Sequence[Tensor | None], want_tap: bool) -> StepGradients:
    step, grads = inputs.step, [None if g is None else aligned(g) for g in grads]
    if step.is_linear and inputs.batch_sizes is None and grads[0] is not None and (pieces := _pieces(grads[0])) > 1:
        chunks = chunked.backward(inputs, grads[0], want_tap, pieces, functools.partial(_steps, step))
        if chunks is not None:
            return chunks
    made = direction(step, True)
    assert isinstance(made, CudaBackward)
    gradients, (models, batch) = inputs.empty_gradients(outputs, want_tap), inputs.states[0].shape[:2]
    sums = outputs.kept.new_empty(len(step.added), models, batch, made.width, dtype=torch.float64)
    stored = map(aligned, (*outputs.states, outputs.kept, outputs.marks))
    written = (gradients.a, gradients.rest, *gradients.states, gradients.tap, sums)
    tensors = [*map(aligned, (inputs.a, *inputs.states)), *inputs.parameters, *stored, *grads, *written]
    _launch(step, True, outputs.states[0], inputs.batch_sizes, inputs.matrices, tensors)
    gradients.sums = {v: s.sum(1)[:, : v.width] for v, s in zip(step.added, sums, strict=True)}
    return gradients


def _launch(
    step: CompiledStep,
    back: bool,
    like: Tensor,
    batch_sizes: Sequence[int] | None,
    matrices: Sequence[Tensor],
    tensors: Sequence[Tensor | None],
) -> None:
    models, steps, batch = like.shape[:3]
    made, runs = direction(step, back), kernels(step, back, models, batch, like.device)
    several = [*tensors, *(weights(made, stage, matrices) for stage in made.stages if stage.number is not None)]
    ended, far = lengths(batch_sizes, batch, like), runs[0][1].far(like, models)
    job = _job(len(several))(models=models, steps=steps, batch=batch)
    job.lengths = None if ended is None else ended.data_ptr()
    job.far = None if far is None else far.data_ptr()
    for n, tensor in enumerate(several):
        job.tensor[n] = tensor.data_ptr() if tensor is not None and tensor.numel() else None
    problem.launch(runs, job, like, models)


@functools.cache
def _job(tensors: int) -> type[ctypes.Structure]:
    """The struct of a kernel with so many tensors; its fields are those of `CudaDirection.text`."""
    numbers = [(name, ctypes.c_int64) for name in ("models", "steps", "batch", "begin", "end")]
    pointers = [("lengths", ctypes.c_void_p), ("far", ctypes.c_void_p), ("tensor", ctypes.c_void_p * tensors)]
    return type("Job", (ctypes.Structure,), {"_fields_": [*numbers, *pointers]})


def weight_gradient(d: Tensor, x: Tensor, x0: Tensor | None) -> Tensor:
    """See `engine.scan_gradients`."""
    if x0 is None:
        return summed(d.flatten(1, 2), x.flatten(1, 2))
    return problem.weight_gradient(d, x, x0)


def _steps(step: CompiledStep, a: Tensor, weight: Tensor, h0: Tensor) -> Tensor:
    """All states of a linear recurrence, one step after another."""
    states = torch.empty_like(a)
    none = a.new_empty(0)
    _launch(step, False, a, None, [weight], [a, h0, *(None for _ in step.program.parameters), states, none, none])
    return states


def _pieces(a: Tensor) -> int:
    """Into how many pieces a linear recurrence of ``(M, T, B, H)`` is cut, to run side by side where rows are few.

    Two passes of T / p steps take the place of one of T. What the p pieces have to do one after another, and what it
    takes to begin, is counted in steps.
    """
    models, steps, batch, hidden = a.shape
    if models * batch * steps == 0 or not a.is_cuda:
        return 1
    if torch.cuda.is_current_stream_capturing():  # to look at a number would wait for it
        return 1
    (_, choice), *_ = problem.choices((plan.Shape(1, 1),), 1, hidden, batch, models, a.device)
    rows = problem.machine(a.device).at_once(choice.tile) * choice.tile.rows
    count = min(rows // (models * batch), int(math.sqrt(steps / STEPS_PER_PIECE)))
    return count if count > 2 and steps > 2 * steps / count + STEPS_PER_PIECE * count + STEPS_TO_BEGIN else 1
