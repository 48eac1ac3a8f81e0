"""The plan's tile of any cell, way and size beside its neighbours, for `cells_cuda.py --tiles`.

Rows, lanes, units or blocks halved or doubled, both exchanges, a little more and less in registers, and the tiles of
all tables. Every result is compared with the torch operations in double precision before it is timed; times are those
of a kernel alone, without the weight gradient, medians in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import layers_by_name
import torch
from cuda_inputs import doubled, gradients, inputs, off
from cuda_run import Run, milliseconds, on, with_tile

from evenflow.runtime import compile_cuda as build
from evenflow.scan import torch_operations
from evenflow.scan.compiled_step import CompiledStep
from evenflow.scan.cuda import cuda_recurrence as recurrence
from evenflow.scan.cuda import launch_plan, step_kernels, tile_tables
from evenflow.scan.cuda.gpu_capacity import H200, gpu_capacity
from evenflow.scan.cuda.kernels import RecurrenceKernel
from evenflow.scan.cuda.launch_plan import Shapes, StepTile
from evenflow.scan.cuda.tile import ALL, Tile
from evenflow.scan.engine import ScanInputs, ScanOutputs, scan_gradients

STEPS = 784
MOST_ERROR = 1e-5
TABLES = (
    tile_tables.ELMAN,
    tile_tables.GRU_FORWARD,
    tile_tables.GRU_BACKWARD,
    tile_tables.LSTM_FORWARD,
    tile_tables.LSTM_BACKWARD,
    ((1024, tile_tables.MANY_PRODUCTS),),
)


def neighbours(chosen: StepTile, hidden: int, shapes: Shapes, streams: int) -> Iterator[StepTile]:
    """The chosen one, then those that can be launched among what is near it and in the tables."""
    yield chosen
    tile = chosen.tile
    changes: list[dict[str, Any]] = [{"async_store": not tile.async_store}] if tile.blocks > 1 else []
    changes.append({"ahead": 4 - tile.ahead})
    for name in ("rows", "lanes", "units", "blocks"):
        for value in (getattr(tile, name) // 2, getattr(tile, name) * 2):
            changes.append({name: value})
    changes += [
        {"blocks": tile.blocks * 2, "lanes": tile.lanes * 2},
        {"lanes": tile.lanes // 2, "units": tile.units // 2},
        {"lanes": tile.lanes * 2, "units": tile.units * 2},
    ]
    near = [replace(tile, **change) for change in changes]
    near += [t for table in TABLES for _, tiles in table for t in tiles if not t.prefetch_slots]
    for t in near:
        for async_store in sorted({t.async_store, t.blocks > 1}):
            one = replace(t, async_store=async_store and t.blocks > 1, held=ALL)
            one = replace(one, scatter=one.scatter and _scatters(shapes))
            if (
                _possible(one, hidden, shapes)
                and (choice := launch_plan.fit_registers(one, hidden, shapes, streams)) is not None
            ):
                yield choice
    for more in (-4, -2, -1, 1, 2, 4):
        held = tuple(
            h if h >= ALL or not s.weighted else max(0, h + more) for h, s in zip(chosen.held, shapes, strict=True)
        )
        other = replace(chosen, held=held)
        if other.memory(hidden, shapes, streams) <= H200.shared_bytes:
            yield other
    if tile.scatter:
        yield with_tile(chosen, scatter=False)


def _scatters(shapes: Shapes) -> bool:
    return len(shapes) == 1 and shapes[0].out == 1


def _possible(t: Tile, hidden: int, shapes: Shapes) -> bool:
    """Whether `tile.cuh` has such a tile."""
    if min(t.rows, t.lanes, t.units, t.blocks) < 1 or t.blocks > 16 or t.rows > 16:
        return False
    values, owned, threads = t.rows * t.units, t.owned(hidden), t.threads(hidden)
    if threads > launch_plan.THREADS or threads % 32:
        return False
    items = max(1, values // t.lanes)
    if items > min(t.units, 4) or items == 3 or (values % t.lanes and t.lanes % values):
        return False
    if not t.tensor_cores:
        return 4 <= t.lanes <= 32 and t.units <= t.lanes
    copies = max(1, t.lanes // values)
    if t.lanes % 32 or t.rows % 8 or t.units % 16 or copies > t.blocks or 16 // items * copies > 32:
        return False
    if t.lanes > 32 and owned // t.units >= 16:
        return False
    return not t.scatter or (t.async_store and owned % 16 == 0 and t.blocks * owned * 2 % threads == 0)


class Direction:
    """One way of a cell at one size: its inputs, and what is right."""

    def __init__(self, cell: str, hidden: int, batch: int, models: int = 1, steps: int = STEPS) -> None:
        self.cell, self.hidden, self.batch, self.models, self.steps = cell, hidden, batch, models, steps
        self.text = layers_by_name.step_of(layers_by_name.made(cell, hidden)).text
        step = CompiledStep(self.text)
        self.given = inputs(step, cell, models, steps, batch)
        new, kept, marks = torch_operations.forward(ScanInputs(step, *self.given.double()))
        self.expected = new
        self.stored = [s.float() for s in new], kept.float(), marks
        self.grads = [torch.randn_like(s, dtype=torch.float32) for s in new]
        wide = doubled(self.stored[0]), self.stored[1].double(), marks
        back = scan_gradients(
            torch_operations,
            ScanInputs(step, *self.given.double()),
            ScanOutputs(*wide),
            doubled(self.grads),
            False,
        )
        self.expected_back = gradients(back)

    def step(self) -> CompiledStep:
        """Without kernels yet."""
        return CompiledStep(self.text)

    def planned(self, way: str) -> tuple[StepTile, int, Shapes, int] | None:
        """The plan's choice, the number of units, and the shapes and streams of the products."""
        runs = step_kernels.kernels(self.step(), way == "backward", self.models, self.batch, self.given.a.device)
        if not runs:
            return None
        kernel = runs[0][1]
        return kernel.step_tile, kernel.hidden, kernel.shapes, kernel.streams

    def kernel(self, way: str, choice: StepTile | None) -> RecurrenceKernel:
        with on(choice):
            found = step_kernels.kernels(self.step(), way == "backward", self.models, self.batch, self.given.a.device)
        return found[0][1]

    def run(self, way: str, step: CompiledStep) -> Any:
        if way == "forward":
            return recurrence.forward(ScanInputs(step, *self.given))
        return scan_gradients(recurrence, ScanInputs(step, *self.given), ScanOutputs(*self.stored), self.grads, False)

    def error(self, way: str, step: CompiledStep) -> float:
        found = self.run(way, step)
        if way == "forward":
            return max(off(one, other) for one, other in zip(found[0], self.expected, strict=True))
        named = gradients(found)
        return max(off(named[name], value) for name, value in self.expected_back.items() if "parameter" not in name)

    def alone(self, way: str, step: CompiledStep) -> float:
        """Milliseconds of the launches, without what is computed around them."""
        launch, marks = recurrence.launch_waves, []

        def marked(*given: Any) -> None:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            launch(*given)
            end.record()
            marks.append((begin, end))

        recurrence.launch_waves = marked
        try:
            milliseconds(lambda: self.run(way, step))
        finally:
            recurrence.launch_waves = launch
        times = sorted(begin.elapsed_time(end) for begin, end in marks[len(marks) // 3 :])
        return times[len(times) // 2]


def shown(choice: StepTile) -> str:
    t = choice.tile
    kinds = "".join(
        f" {kind}" for kind in ("async_store", "tensor_cores", "scatter", "prefetch_slots") if getattr(t, kind)
    )
    held = " ".join("all" if h >= ALL else str(h) for h in choice.held)
    return f"C{t.blocks} KS{t.lanes} JT{t.units} R{t.rows}{kinds} held {held}"


def measure(cell: str, hidden: int, batch: int, folder: Path, seconds: float) -> None:
    """Both ways of a cell, to tiles-cuda.json."""
    run = Run(folder, seconds, "tiles-cuda")
    run.alive(f"the reference of {cell}")
    problem_of = Direction(cell, hidden, batch)
    machine = gpu_capacity(torch.device("cuda", 0))
    for way in ("forward", "backward"):
        planned = problem_of.planned(way)
        if planned is None:
            print(f"{cell} {way} H={hidden}: no tile runs as many units", flush=True)
            continue
        chosen, units, shapes, streams = planned
        listed = [c for c in dict.fromkeys(neighbours(chosen, units, shapes, streams)) if machine.runs(c.tile)]
        # A kernel that hangs ends the run, and those that wait for asynchronous stores may: they come last, except the
        # plan's.
        listed = [listed[0], *sorted(listed[1:], key=lambda c: c.tile.async_store)]
        run.prepare([problem_of.kernel(way, choice) for choice in listed])
        planned_ms = None
        for choice in listed:
            if run.over():
                print("no time for the other tiles", flush=True)
                break
            name = f"{cell} {way} H={hidden} B={batch} {shown(choice)}"
            run.alive(name)
            row: dict[str, Any] = {"name": name, "cell": cell, "way": way, "hidden": hidden, "batch": batch}
            row |= {"tile": asdict(choice.tile), "held": list(choice.held), "goal": 1.0}
            try:
                step = problem_of.step()
                with on(choice):
                    row |= build.resources(problem_of.kernel(way, choice), 0)
                    row["error"] = problem_of.error(way, step)
                    row["ms"] = problem_of.alone(way, step)
                planned_ms = planned_ms or row["ms"]
                row["ratio"] = row["ms"] / planned_ms
                said = f"{row['ms']:8.3f} ms  {row['ratio']:.2f} of the plan's  error {row['error']:.1e}"
                said += f"  {row['registers']} registers  {row['local_bytes']} B local"
                said += "  WRONG" if row["error"] > MOST_ERROR else ""
            except RuntimeError as error:
                row["failed"] = said = str(error)[:300]
            run.rows.append(row)
            run.write()
            print(f"{name}: {said}", flush=True)
